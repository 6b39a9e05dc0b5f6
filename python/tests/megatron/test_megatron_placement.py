"""What apply() puts where, on stand-ins for Megatron's and MindSpeed's modules."""

import argparse
import sys
import types

import pytest

import swapline.megatron
from swapline.megatron.layers import FORWARD_BACKWARD_FUNCTIONS, FORWARD_FUNCTIONS

OVERLAP = "mindspeed.core.transformer.moe.moe_feature.fb_overlap"
LAYER = "megatron.core.transformer.transformer_layer"


@pytest.fixture
def modules(monkeypatch) -> dict[str, types.ModuleType]:
    """Modules with the functions, and one that has imported them by name."""

    class TransformerLayer:
        def __init__(self, size):
            self.size = size

        def forward(self, hidden_states):
            return hidden_states

    contents = {
        LAYER: {"TransformerLayer": TransformerLayer},
        f"{OVERLAP}.overlap_funcs.fwd": {name: lambda *_: None for name in FORWARD_FUNCTIONS},
        f"{OVERLAP}.overlap_funcs.fwdbwd": {
            name: lambda *_: None for name in FORWARD_BACKWARD_FUNCTIONS
        },
        f"{OVERLAP}.transformer_layer": {"transformer_layer_backward": lambda *_: None},
    }
    contents["mindspeed.user"] = {
        name: function for names in [*contents.values()][1:] for name, function in names.items()
    }
    made = {}
    for name, attributes in contents.items():
        made[name] = types.ModuleType(name)
        vars(made[name]).update(attributes)
        monkeypatch.setitem(sys.modules, name, made[name])
    return made


def test_wraps_the_layer_and_undoes_it(modules):
    layer = modules[LAYER].TransformerLayer
    former = layer.__init__, layer.forward
    with swapline.megatron.apply(types.SimpleNamespace(swap_layer_input=True)):
        assert layer(4).swap_manager is not None
        with pytest.raises(ValueError, match="wrap it once"):
            swapline.megatron.apply(types.SimpleNamespace(swap_layer_input=True))
    assert (layer.__init__, layer.forward) == former
    assert not hasattr(layer(4), "swap_manager")


def test_wraps_overlap_functions_where_they_are_used(modules):
    args = types.SimpleNamespace(swap_layer_input=True, moe_fb_overlap=True)
    user = modules["mindspeed.user"]
    former = dict(vars(user))
    applied = swapline.megatron.apply(args)
    names = (*FORWARD_FUNCTIONS, *FORWARD_BACKWARD_FUNCTIONS, "transformer_layer_backward")
    assert len(names) == 7
    for name in names:
        assert getattr(user, name).__wrapped__ is former[name]
        homes = [m for n, m in modules.items() if n.startswith(OVERLAP) and hasattr(m, name)]
        assert [getattr(home, name) for home in homes] == [getattr(user, name)]
    applied.undo()
    assert vars(user) == former


def test_puts_everything_back_where_it_fails(modules, monkeypatch):
    layer = modules[LAYER].TransformerLayer
    former = layer.__init__
    monkeypatch.setitem(sys.modules, f"{OVERLAP}.overlap_funcs.fwdbwd", None)
    args = types.SimpleNamespace(swap_layer_input=True, moe_fb_overlap=True)
    with pytest.raises(ImportError, match="--moe-fb-overlap needs mindspeed"):
        swapline.megatron.apply(args)
    assert layer.__init__ is former


def test_warns_where_nothing_will_be_swapped(modules):
    args = types.SimpleNamespace(swap_layer_input=True, recompute_granularity="selective")
    with pytest.warns(UserWarning, match="--recompute-granularity selective"):
        swapline.megatron.apply(args).undo()


def test_nothing_asked_for_changes_nothing(modules):
    former = modules[LAYER].TransformerLayer.forward
    swapline.megatron.apply(types.SimpleNamespace())
    assert modules[LAYER].TransformerLayer.forward is former


def test_options_have_mindspeeds_names_and_defaults():
    parser = swapline.megatron.add_swap_arguments(argparse.ArgumentParser())
    assert vars(parser.parse_args([])) == {
        "swap_layer_input": False,
        "swap_optimizer": False,
        "swap_optimizer_times": 16,
    }
    with pytest.raises(ValueError, match="registered already"):
        swapline.megatron.add_swap_arguments(parser)
