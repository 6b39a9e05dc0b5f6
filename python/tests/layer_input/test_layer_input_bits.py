"""Swapped runs have the bits of those that are not: whatever the layers, orders and modes."""

import pytest
import torch
from layer_models import (
    DIM,
    ROWS,
    WAYS,
    Layer,
    Model,
    assert_equal,
    batches,
    gradients,
    make_context,
    make_model,
    swapping,
    torch_way,
    train,
)
from torch import nn

import swapline.sim
from swapline.layer_input import LayerInputs, SwapLayerInputs, recompute


def unswapped(way: str):
    """The same recompute with inputs on the device."""
    return torch_way("reentrant" if way == "recompute" else way)


@pytest.fixture(params=[False, True], ids=["eager", "late"])
def machine(request):
    with swapline.sim.settings("tiny", late_copies=request.param):
        yield


@pytest.mark.parametrize("way", WAYS)
def test_twelve_steps_have_the_same_bits(way, machine):
    expected = make_model()
    expected.run = unswapped(way)
    model = make_model()
    with swapping(way, model) as swapped:
        assert_equal(train(model, batches(12)), train(expected, batches(12)))
        stats = swapped.stats()
    # The last input stays, the one before it may be recalled, the others go and come.
    assert stats["num_swapped_out"] == 12 * 4
    assert stats["num_swapped_in"] + stats["num_recalls"] == 12 * 4
    assert stats["num_prefetch_misses"] == 0
    assert stats["resident_inputs"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_strict_keeps_one_input_beside_the_running_layers(way, machine):
    model = make_model(num_layers=6)
    with swapping(way, model, max_swapping_out=1) as swapped:
        train(model, batches(4))
        assert swapped.stats()["peak_resident_inputs"] <= 1


@pytest.mark.parametrize("way", WAYS)
def test_dropout_and_autocast_are_replayed(way, machine):
    def run(model):
        torch.manual_seed(5)
        losses = []
        for x in batches(3):
            with torch.autocast("sim", dtype=torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            losses.append(loss.detach().cpu())
        return losses + gradients(model)

    expected = make_model(layer=lambda: Layer(dropout=0.3))
    expected.run = unswapped(way)
    model = make_model(layer=lambda: Layer(dropout=0.3))
    with swapping(way, model):
        assert_equal(run(model), run(expected))


@pytest.mark.parametrize("way", WAYS)
def test_grad_scaler_steps(way):
    def run(model):
        scaler = torch.amp.GradScaler("sim", init_scale=2.0**10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches(3):
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [p.detach().cpu() for p in model.parameters()]

    expected = make_model()
    expected.run = unswapped(way)
    model = make_model()
    with swapping(way, model):
        assert_equal(run(model), run(expected))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_backwards_in_any_order(way, order, machine):
    def run(model):
        losses = [model(x).sum() for x in batches(3)]
        for i in order:
            losses[i].backward()
        return gradients(model)

    expected = make_model()
    expected.run = unswapped(way)
    model = make_model()
    with swapping(way, model) as swapped:
        assert_equal(run(model), run(expected))
        assert swapped.stats()["resident_inputs"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_two_backwards_with_retain_graph(way, machine):
    def run(model):
        loss = model(batches(1)[0]).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(model)

    expected = make_model(num_layers=6)
    expected.run = unswapped(way)
    model = make_model(num_layers=6)
    with swapping(way, model, max_swapping_out=1) as swapped:
        assert_equal(run(model), run(expected))
        # Between the two the inputs are on the host again.
        assert swapped.stats()["peak_resident_inputs"] <= 2
        assert swapped.stats()["resident_inputs"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_evaluation_between_swaps_nothing(way, machine):
    expected = make_model()
    expected.run = unswapped(way)
    model = make_model()
    with swapping(way, model) as swapped:
        first = train(model, batches(2))
        before = swapped.stats()["num_swapped_out"]
        model.eval()
        with torch.no_grad():
            model(batches(1)[0])
        with torch.inference_mode():
            model(batches(1)[0])
        model.train()
        assert swapped.stats()["num_swapped_out"] == before
        assert swapped.stats()["resident_inputs"] == 0
        assert_equal(
            first + train(model, batches(2)),
            train(expected, batches(2)) + train(expected, batches(2)),
        )


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_whose_output_nobody_wants(way, machine):
    expected = make_model()
    expected.run = unswapped(way)
    model = make_model()
    with swapping(way, model) as swapped:
        model(batches(1)[0])
        assert swapped.stats()["resident_inputs"] == 0
        assert_equal(train(model, batches(3)), train(expected, batches(3)))


class Views(nn.Module):
    """Gives its layers a slice, a transposed, an expanded and an overlapping view."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.run = None

    def forward(self, x):
        wide = torch.cat([x * 2, x], dim=0)
        h0 = wide[ROWS // 2 : ROWS + ROWS // 2]
        h1 = (x.t() * 1.5).t()
        h2 = (x[:1] * 3).expand(ROWS, DIM)
        h3 = (x * 1.25).flatten().as_strided((ROWS - 1, DIM), (DIM // 2, 1), 3)
        parts = [self.run(layer, h).sum() for layer, h in zip(self.layers, (h0, h1, h2, h3))]
        return torch.stack(parts)


@pytest.mark.parametrize("way", WAYS)
def test_slices_and_views_as_inputs(way, machine):
    def run(model):
        grads = []
        for x in batches(2):
            x.requires_grad_()
            model(x).sum().backward()
            grads.append(x.grad.cpu())
        return grads + gradients(model)

    torch.manual_seed(0)
    expected = Views().to("sim")
    expected.run = unswapped(way)
    torch.manual_seed(0)
    model = Views().to("sim")
    with swapping(way, model, keep_last=0) as swapped:
        assert_equal(run(model), run(expected))
        assert swapped.stats()["num_swapped_out"] == 8


class Skipped(nn.Module):
    def forward(self, hidden_states):
        return hidden_states


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_that_returns_its_input(way, machine):
    def layers():
        made = [Layer(), Skipped(), Skipped(), Layer(), Layer()]
        return iter(made)

    def build():
        torch.manual_seed(0)
        made = layers()
        return Model(5, layer=lambda: next(made)).to("sim")

    expected = build()
    expected.run = unswapped(way)
    model = build()
    with swapping(way, model):
        assert_equal(train(model, batches(4)), train(expected, batches(4)))


class WithExtras(nn.Module):
    """Takes and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()

    def forward(self, hidden_states, scale, *, extras, flag=None):
        assert flag is None
        out = self.inner(hidden_states * scale) + extras["bias"][0]
        return {"out": out, "aux": (out.mean(), None, 7)}


def test_recompute_takes_and_returns_nested_values(machine):
    def run(model_run):
        torch.manual_seed(0)
        layer = WithExtras().to("sim")
        x = batches(1)[0].requires_grad_()
        scale = torch.full((1,), 1.5, device="sim").requires_grad_()
        bias = torch.ones(DIM, device="sim").requires_grad_()
        result = model_run(layer, x * 1, scale, extras={"bias": [bias], "n": 3}, flag=None)
        assert result["aux"][1] is None and result["aux"][2] == 7
        (result["out"].sum() + 2 * result["aux"][0]).backward()
        return [
            result["out"].detach().cpu(),
            x.grad.cpu(),
            scale.grad.cpu(),
            bias.grad.cpu(),
            *gradients(layer),
        ]

    inputs = LayerInputs(make_context())
    got = run(lambda *args, **kwargs: recompute(*args, inputs=inputs, **kwargs))
    assert_equal(got, run(lambda layer, *args, **kwargs: layer(*args, **kwargs)))
    assert inputs.stats()["num_swapped_out"] == 1


@pytest.mark.parametrize("way", WAYS[1:])
def test_repeated_and_nested_layers(way, machine):
    """Two layers in one recomputed block, each recomputed inside it, the blocks run twice."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, h):
            for layer in self.layers:
                h = torch_way(way)(layer, h)
            return h

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block(), Block()])

        def forward(self, x):
            h = x * 1
            for _ in range(2):
                for block in self.layers:
                    h = torch_way(way)(block, h)
            return h

    torch.manual_seed(0)
    expected = Blocks().to("sim")
    torch.manual_seed(0)
    model = Blocks().to("sim")
    data = [x.requires_grad_() for x in batches(4)]
    with SwapLayerInputs(model, context=make_context()) as swapped:
        assert_equal(train(model, data), train(expected, data))
        assert swapped.stats()["num_swapped_out"] > 0
        assert swapped.stats()["resident_inputs"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_frozen_lower_layers(way, machine):
    def freeze(model):
        for module in (model.embed, *model.layers[:3]):
            module.requires_grad_(False)
        return model

    expected = freeze(make_model())
    expected.run = unswapped(way)
    model = freeze(make_model())
    with swapping(way, model) as swapped:
        got = train(model, batches(3))
        assert swapped.stats()["resident_inputs"] == 0
    if way == "reentrant":
        # torch's own reentrant function gives layers 3 and 4 no gradient from an input without one.
        assert swapped.stats()["num_swapped_out"] == 0
    assert_equal(got, train(expected, batches(3)) if way != "recompute" else got)


@pytest.mark.parametrize("way", WAYS)
def test_two_models_by_turns(way, machine):
    def run(first, second):
        for x in batches(3):
            a = first(x).sum()
            b = second(x).sum()
            a.backward()
            b.backward()
        return gradients(first) + gradients(second)

    expected = [make_model(seed) for seed in (0, 1)]
    for each in expected:
        each.run = unswapped(way)
    models = [make_model(seed) for seed in (0, 1)]
    context = make_context()
    with swapping(way, models[0], context=context), swapping(way, models[1], context=context):
        assert_equal(run(*models), run(*expected))


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_after_the_context(way, machine):
    expected = make_model()
    expected.run = unswapped(way)
    expected(batches(1)[0]).sum().backward()
    model = make_model()
    with swapping(way, model):
        loss = model(batches(1)[0]).sum()
    loss.backward()
    assert_equal(gradients(model), gradients(expected))
