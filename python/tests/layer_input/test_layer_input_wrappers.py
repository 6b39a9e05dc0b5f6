"""The RFC's decorators and classes, on layers of a framework that saves their inputs by itself."""

import copy
import gc
import io
import weakref

import pytest
import torch
import torch.nn.functional as F
from layer_models import DIM, ROWS, assert_equal, batches, gradients, make_context
from torch import nn
from torch.utils.checkpoint import checkpoint

import swapline.sim
from swapline.layer_input import (
    SwapGroupOfLayers,
    SwapLayerInputManager,
    SwapTensors,
    is_valid_for_swap,
    swap_layer_input_fboverlap_1f1b_wrapper,
    swap_layer_input_fboverlap_backward_wrapper,
    swap_layer_input_fboverlap_forward_wrapper,
    swap_layer_input_forward_wrapper,
    swap_layer_input_init_wrapper,
)


def make_layer_class(**options) -> type[nn.Module]:
    """As a framework has it, with the decorators put on as the RFC says: __init__, then forward."""

    class TransformerLayer(nn.Module):
        def __init__(self, is_mtp: bool = False) -> None:
            super().__init__()
            self.is_mtp = is_mtp
            self.up = nn.Linear(DIM, 2 * DIM)
            self.down = nn.Linear(2 * DIM, DIM)

        def forward(self, hidden_states, attention_mask=None):
            x = F.gelu(self.up(F.layer_norm(hidden_states, (DIM,))))
            return hidden_states + self.down(x), None

    options.setdefault("context", make_context())
    TransformerLayer.__init__ = swap_layer_input_init_wrapper(TransformerLayer.__init__, **options)
    TransformerLayer.forward = swap_layer_input_forward_wrapper(TransformerLayer.forward)
    return TransformerLayer


class Plain(nn.Module):
    """The same layer without decorators."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, hidden_states, attention_mask=None):
        x = F.gelu(self.up(F.layer_norm(hidden_states, (DIM,))))
        return hidden_states + self.down(x), None


def make_layers(layer_class, num: int = 5) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(layer_class() for _ in range(num)).to("sim")


def forward(layers, x):
    h = x.requires_grad_() * 1
    for layer in layers:
        h, _ = checkpoint(layer, h, None, use_reentrant=True)
    return h


def train(layers, num_steps: int = 3) -> list[torch.Tensor]:
    for x in batches(num_steps):
        forward(layers, x).square().mean().backward()
    return gradients(layers)


@pytest.fixture(params=[False, True], ids=["eager", "late"])
def machine(request):
    with swapline.sim.settings("tiny", late_copies=request.param):
        yield


def test_wrapped_layers_have_the_same_bits_and_leave_the_device(machine):
    layers = make_layers(make_layer_class())
    assert_equal(train(layers), train(make_layers(Plain)))
    stats = layers[0].swap_manager.group.stats()
    assert stats["num_swapped_out"] == 3 * 4
    assert stats["num_swapped_in"] + stats["num_recalls"] == 3 * 4
    assert stats["num_prefetch_misses"] == 0
    assert [layer.swap_manager.layer_idx for layer in layers] == [0, 1, 2, 3, 4]
    assert all(layer.swap_manager.batch_stack == [] for layer in layers)


def test_inputs_wait_on_the_host_between_forward_and_backward(machine):
    layers = make_layers(make_layer_class())
    loss = forward(layers, batches(1)[0]).sum()
    states = [layer.swap_manager.batch_stack for layer in layers]
    assert states[:3] == [["host"]] * 3
    assert states[3] in (["d2h"], ["host"]) and states[4] == ["device"]
    loss.backward()


def test_backwards_in_any_order(machine):
    """The faults of queues: of the newest, of the oldest, and of one that is stuck."""

    def run(layers):
        losses = [forward(layers, x).sum() for x in batches(3)]
        for i in (1, 2, 0):
            losses[i].backward()
        return gradients(layers)

    assert_equal(run(make_layers(make_layer_class())), run(make_layers(Plain)))


def test_evaluation_and_a_dropped_pass_leave_nothing(machine):
    layers = make_layers(make_layer_class())
    group = layers[0].swap_manager.group
    expected = train(make_layers(Plain))
    with torch.no_grad():
        h = batches(1)[0]
        for layer in layers:
            h, _ = layer(h)
    assert group.stats() == {}
    forward(layers, batches(1)[0])
    assert_equal(train(layers), expected)
    assert group.stats()["resident_inputs"] == 0


def test_keywords_marks_and_checks_are_honoured():
    asked = []

    def check(tensor):
        asked.append(tensor.shape)
        return len(asked) != 2

    layers = make_layers(make_layer_class(custom_check_fn=check, keep_last=0), 3)
    seen = []

    def run(layer, h, marked=None):
        h = h * 1
        if marked is not None:
            h.swap_this_tensor = marked
        seen.append(h)
        return checkpoint(lambda h: layer(hidden_states=h), h, use_reentrant=True)[0]

    x = batches(1)[0].requires_grad_()
    h = run(layers[0], x)
    h = run(layers[1], h)
    h = run(layers[2], h, marked=False)
    assert [bool(layer.swap_manager.batch_stack) for layer in layers] == [True, False, False]
    assert seen[0].swap_this_tensor is True and seen[2].swap_this_tensor is False
    h.sum().backward()


def test_layers_without_manager_and_other_arguments_run_as_they_were():
    layer_class = make_layer_class()
    mtp = layer_class(is_mtp=True).to("sim")
    assert mtp.swap_manager is None
    out, _ = mtp(batches(1)[0])
    assert out.shape == (ROWS, DIM)
    bare = swap_layer_input_forward_wrapper(lambda self, *args: args)
    assert bare(object(), "no tensor") == ("no tensor",)
    layer = layer_class()
    with pytest.raises(TypeError):  # the layer's own
        layer()


def test_mtp_layers_do_not_number_the_others():
    layer_class = make_layer_class()
    layers = [layer_class(), layer_class(is_mtp=True), layer_class()]
    assert [getattr(each.swap_manager, "layer_idx", None) for each in layers] == [0, None, 1]
    assert layers[0].swap_manager.num_layers == 2


def test_a_layer_that_raises_has_its_input_back(machine):
    layer_class = make_layer_class(keep_last=0)
    layer = layer_class().to("sim")
    inner, layer.down = layer.down, None
    h = batches(1)[0].requires_grad_() * 1
    expected = h.detach().cpu()
    with torch.no_grad(), pytest.raises(TypeError):
        layer(h)
    assert layer.swap_manager.batch_stack == []
    assert torch.equal(h.detach().cpu(), expected)
    layer.down = inner


def test_layers_hold_their_group_and_the_decorator_does_not():
    layer_class = make_layer_class()
    first = [layer_class(), layer_class()]
    group = weakref.ref(first[0].swap_manager.group)
    assert first[1].swap_manager.group is group()
    first.clear()
    torch.sim.synchronize()
    gc.collect()
    assert group() is None
    assert layer_class().swap_manager.layer_idx == 0


def test_a_model_that_is_gone_leaves_nothing_of_a_pass_under_way():
    layers = make_layers(make_layer_class(keep_last=0))
    group = weakref.ref(layers[0].swap_manager.group)
    train(layers, 1)
    loss = forward(layers, batches(1)[0]).sum()
    del layers, loss
    torch.sim.synchronize()
    gc.collect()
    assert group() is None


def test_two_models_of_one_class_may_have_groups_of_their_own(machine):
    class_of = [make_layer_class(group=SwapGroupOfLayers(context=make_context())) for _ in range(2)]

    def run(models):
        for x in batches(2):
            losses = [forward(model, x.clone()).sum() for model in models]
            for loss in losses:
                loss.backward()
        return gradients(models[0]) + gradients(models[1])

    models = [make_layers(each, 3) for each in class_of]
    assert models[0][0].swap_manager.group is not models[1][0].swap_manager.group
    assert_equal(run(models), run([make_layers(Plain, 3), make_layers(Plain, 3)]))


def test_copies_and_pickles_of_a_model(machine):
    layers = make_layers(make_layer_class(), 4)
    train(layers, 1)
    twin = copy.deepcopy(layers)
    group = twin[0].swap_manager.group
    assert group is twin[3].swap_manager.group is not layers[0].swap_manager.group
    assert [layer.swap_manager.layer_idx for layer in twin] == [0, 1, 2, 3]
    layers.zero_grad()
    twin.zero_grad()
    assert_equal(train(twin), train(layers))
    file = io.BytesIO()
    torch.save([layer.swap_manager for layer in layers], file)
    file.seek(0)
    managers = torch.load(file, weights_only=False)
    assert [manager.layer_idx for manager in managers] == [0, 1, 2, 3]
    assert managers[0].group is managers[3].group and managers[0].num_layers == 4


class LayerGraph:
    """What a framework's forward-backward overlap keeps of a layer."""

    def __init__(self, layer, layer_input) -> None:
        self.layer = layer
        self.layer_input = layer_input


def run_forward(self, hidden_states, attention_mask=None, checkpoint=False):
    with torch.no_grad():
        return Plain.forward(self, hidden_states)[0], LayerGraph(self, hidden_states)


def run_backward(layer_output_grad, layer_graph):
    h = layer_graph.layer_input.detach().requires_grad_()
    Plain.forward(layer_graph.layer, h)[0].backward(layer_output_grad)
    return h.grad


def run_both(self, hidden_states, attention_mask, grad, bwd_layer_graph=None, checkpoint=False):
    out = run_forward(self, hidden_states)
    back = run_backward(grad, bwd_layer_graph) if bwd_layer_graph is not None else None
    return (*out, back)


def overlapped(layers, first_pass, pair, last_pass) -> list[torch.Tensor]:
    """Three micro-batches: each one's forward runs together with the former one's backward."""
    graphs: list[LayerGraph] = []
    for id, x in enumerate(batches(3)):
        h, made = x * 1, []
        grad = torch.ones(ROWS, DIM, device="sim")
        for layer in layers:
            if graphs:
                h, graph, grad = pair(layer, h, None, grad, graphs.pop(), checkpoint=True)
            else:
                h, graph = first_pass(layer, h, None, True)  # `checkpoint` by position
            made.append(graph)
        graphs = made
    grad = torch.ones(ROWS, DIM, device="sim")
    while graphs:
        grad = last_pass(grad, graphs.pop())
    return gradients(layers)


def test_forward_backward_overlap(machine):
    expected = overlapped(make_layers(Plain), run_forward, run_both, run_backward)
    layers = make_layers(make_layer_class(keep_last=0))
    got = overlapped(
        layers,
        swap_layer_input_fboverlap_forward_wrapper(run_forward),
        swap_layer_input_fboverlap_1f1b_wrapper(run_both),
        swap_layer_input_fboverlap_backward_wrapper(run_backward),
    )
    assert_equal(got, expected)
    stats = layers[0].swap_manager.group.stats()
    assert stats["num_swapped_out"] == 3 * 5
    assert stats["resident_inputs"] == 0


def test_overlap_with_nothing_to_run_backward_or_nothing_to_swap(machine):
    pair = swap_layer_input_fboverlap_1f1b_wrapper(run_both)
    layer_class = make_layer_class(keep_last=0)
    swapped, plain = layer_class().to("sim"), Plain().to("sim")
    h = batches(1)[0] * 1
    pair(swapped, h, None, None, None, checkpoint=True)  # no backward's layer
    assert swapped.swap_manager.batch_stack == ["host"]
    grad = torch.ones(ROWS, DIM, device="sim")
    other = batches(1)[0] * 2
    # A forward's layer without a manager; the backward's input comes back all the same.
    pair(plain, other, None, grad, LayerGraph(swapped, h), checkpoint=True)
    assert swapped.swap_manager.batch_stack == []
    assert torch.equal(h.cpu(), batches(1)[0].cpu())
    pair(swapped, other, None, grad, LayerGraph(plain, h), checkpoint=False)
    assert swapped.swap_manager.batch_stack == []


# The RFC's classes.


def test_swap_tensors_goes_through_its_states(machine):
    context = make_context()
    base = torch.arange(48, dtype=torch.float32).reshape(6, 8).to("sim")
    tensors = [base[1:3], base.t(), torch.full((4,), 3.0).to("sim")]
    expected = [tensor.cpu() for tensor in tensors]
    group = SwapTensors(tensors, context)
    assert group.stat == "device" and group.tensor_cpus == [None, None, None]
    before = swapline.sim.memory()["allocated_bytes"]
    group.swap_to_host(async_op=True)
    assert group.stat == "d2h"
    group.swap_to_host()  # nothing in another state
    assert group.stat == "d2h"
    group.wait_d2h_and_release_device_tensor()
    assert group.stat == "host"
    assert swapline.sim.memory()["allocated_bytes"] < before
    assert_equal(group.tensor_cpus, expected)
    assert group.tensor_cpus[1].stride() == tensors[1].stride()
    group.swap_to_device(async_op=True)
    assert group.stat == "h2d"
    group.wait_h2d_and_release_cpu_tensor()
    assert group.stat == "device" and group.tensor_cpus == [None, None, None]
    assert_equal([tensor.cpu() for tensor in tensors], expected)
    assert context.host_stats()["requested_bytes"] == 0
    group.swap_to_host()
    group.swap_to_device()
    assert group.stat == "device"
    assert_equal([tensor.cpu() for tensor in tensors], expected)
    assert SwapTensors([]).stat == "device"


def test_which_tensors_are_valid():
    on_device = torch.ones(4, device="sim")
    assert is_valid_for_swap(on_device)
    assert is_valid_for_swap(on_device[1:2])
    assert not is_valid_for_swap(on_device, lambda tensor: False)
    assert not is_valid_for_swap(torch.ones(4))
    parameter = nn.Parameter(torch.ones(4, 4, device="sim"))
    assert not is_valid_for_swap(parameter) and not is_valid_for_swap(parameter[0])
    assert not is_valid_for_swap(torch.empty(0, device="sim"))
    with pytest.raises(ValueError, match="may not be swapped: .*parameter"):
        SwapTensors([on_device, parameter])


def test_a_manager_of_its_own():
    manager = SwapLayerInputManager("attention", prefetch=2)
    assert (manager.module_tag, manager.layer_idx, manager.num_layers) == ("attention", 0, 1)
    assert SwapLayerInputManager(group=manager.group).layer_idx == 1
    with pytest.raises(ValueError, match="prefetch is -1"):
        SwapLayerInputManager(prefetch=-1)
