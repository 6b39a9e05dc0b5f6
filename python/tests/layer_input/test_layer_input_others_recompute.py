"""SwapLayerInputs finds the input wherever a framework's layers call the recompute function."""

import functools

import pytest
import torch
from layer_models import DIM, Layer, assert_equal, batches, make_context, make_model, train
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from swapline.layer_input import SwapLayerInputs


class GradientCheckpointingLayer(nn.Module):
    """As Hugging Face's: the call itself is recomputed, keywords bound beforehand."""

    is_reentrant = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()

    def __call__(self, *args, **kwargs):
        bound = functools.partial(super().__call__, **kwargs)
        return checkpoint(bound, *args, use_reentrant=self.is_reentrant)

    def forward(self, hidden_states, attention_mask=None, position_ids=None):
        out = self.inner(hidden_states)
        return (out * attention_mask if attention_mask is not None else out,)


class ForwardCheckpointingLayer(GradientCheckpointingLayer):
    """As Hugging Face's since transformers 5.24: forward itself calls the recompute function."""

    def __call__(self, *args, **kwargs):
        return nn.Module.__call__(self, *args, **kwargs)

    def forward(self, hidden_states, **kwargs):
        run = functools.partial(super().forward, **kwargs)
        return checkpoint(run, hidden_states, use_reentrant=self.is_reentrant)


@pytest.mark.parametrize("layer_class", [GradientCheckpointingLayer, ForwardCheckpointingLayer])
@pytest.mark.parametrize("is_reentrant", [False, True])
def test_layers_that_recompute_in_their_call(layer_class, is_reentrant):
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layer_class() for _ in range(5))

        def forward(self, x):
            h = x * 1
            mask = torch.ones(DIM, device="sim")
            for layer in self.layers:
                (h,) = layer(h, attention_mask=mask, position_ids=None)
            return h

    def build():
        torch.manual_seed(0)
        model = Decoder().to("sim")
        for layer in model.layers:
            layer.is_reentrant = is_reentrant
        return model

    data = [x.requires_grad_() for x in batches(4)]
    expected, model = build(), build()
    with SwapLayerInputs(model, context=make_context()) as swapped:
        assert_equal(train(model, data), train(expected, data))
        assert swapped.stats()["num_swapped_out"] == 4 * 4


def test_an_input_in_a_closure_stays_and_that_is_said():
    expected, model = make_model(num_layers=3), make_model(num_layers=3)
    for each in (expected, model):
        each.run = lambda layer, h: checkpoint(layer, hidden_states=h, use_reentrant=False)
    said = pytest.warns(UserWarning, match="give hidden_states as a positional argument")
    with said, SwapLayerInputs(model):
        got = train(model, batches(2))
    assert_equal(got, train(expected, batches(2)))


@pytest.mark.parametrize("early_stop", [True, False])
def test_layers_in_checkpoint_wrapper(early_stop):
    def build():
        model = make_model()
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
        model.run = lambda layer, h: layer(h)
        return model

    with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
        expected, model = build(), build()
        with SwapLayerInputs(model, context=make_context()) as swapped:
            assert_equal(train(model, batches(4)), train(expected, batches(4)))
            assert swapped.stats()["num_swapped_out"] == 4 * 4
            assert swapped.stats()["num_prefetch_misses"] == 0
