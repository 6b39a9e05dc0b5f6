"""What the tests of clients compare: two runs of the same training."""

import torch


def assert_same_run(run: dict, reference: dict, from_step: int = 1) -> None:
    """Losses, gradient norms, parameters and optimizer states, to the bit. Of several processes one
    logs losses and norms."""
    for figure in ("loss", "grad_norm"):
        expected = {s: v for s, v in reference[figure].items() if s >= from_step}
        assert run[figure] == expected
    for tensors in ("parameters", "states"):
        assert_same_tensors(run[tensors], reference[tensors])
    assert_clean(run)
    assert_clean(reference)


def assert_same_tensors(tensors: dict, reference: dict) -> None:
    assert tensors.keys() == reference.keys()
    for name, value in reference.items():
        if isinstance(value, torch.Tensor):
            assert tensors[name].dtype == value.dtype, name
            assert torch.equal(tensors[name], value), name
        else:
            assert tensors[name] == value, name


def assert_clean(run: dict) -> None:
    """No race, and nothing left on the device."""
    assert run["num_races"] == 0, run["races"]
    assert run["bytes_left"] == 0
