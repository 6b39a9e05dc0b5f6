"""swapline.megatron on megatron-core 0.16.1: real GPTModels, with and without, equal to the bit."""

import pathlib

import pytest
import torch
from client_launch import launch, require

CLIENT = "megatron-core-0.16.1"
require(CLIENT)

WORKER = pathlib.Path(__file__).parent / "worker_megatron.py"
UNIFORM = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
RECOMPUTE = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "uniform": UNIFORM,
    "uniform_2": UNIFORM | {"recompute_num_layers": 2},
    "block": UNIFORM | {"recompute_method": "block", "recompute_num_layers": 2},
}
INPUTS = {"swap_layer_input": True}
OPTIMIZER = {"swap_optimizer": True, "swap_optimizer_times": 8}
LATE = {"late_copies": True}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("megatron")
    jobs = []
    for name, config in RECOMPUTE.items():
        jobs.append({"name": name, "config": config})
        swap = {"args": INPUTS | OPTIMIZER, "settings": LATE}
        jobs.append({"name": f"{name}_swap", "config": config, **swap})
    jobs.append({"name": "inputs", "config": UNIFORM, "args": INPUTS})
    words = ["--swap-layer-input", "--swap-optimizer", "--swap-optimizer-times", "4"]
    jobs.append({"name": "example", "config": UNIFORM, "words": words})
    many = {"config": UNIFORM, "num_steps": 20, "num_microbatches": 2}
    jobs += [{"name": "many", **many}, {"name": "many_swap", "args": INPUTS | OPTIMIZER, **many}]
    for name, options in {
        "bf16": {"config": UNIFORM | {"bf16": True}},
        "distributed": {"config": UNIFORM | {"bf16": True}, "distributed": True},
    }.items():
        jobs.append({"name": name, **options})
        jobs.append({"name": f"{name}_swap", "args": INPUTS | OPTIMIZER, **options})
    for name, saver, loader in (("to_plain", OPTIMIZER, {}), ("from_plain", {}, OPTIMIZER)):
        path, still = str(folder / f"{name}.pt"), {"dropout": 0.0}
        save = {"save": path, "save_step": 2}
        jobs.append({"name": f"{name}_save", "args": saver, **save, **still})
        jobs.append({"name": f"{name}_load", "args": loader, "load": path, **still})
    refused = {
        "sgd": OPTIMIZER | {"optimizer": "sgd"},
        "times": OPTIMIZER | {"swap_optimizer_times": 0},
        "two_places": OPTIMIZER | {"optimizer_cpu_offload": True},
        "parts": INPUTS | {"distribute_saved_activations": True},
        "overlap": INPUTS | {"moe_fb_overlap": True},
    }
    for name, args in refused.items():
        jobs.append({"name": name, "args": args, "raises": True})
    # The job's own apply(), then the example's.
    twice = {"args": INPUTS | OPTIMIZER, "raises": True}
    jobs.append({"name": "twice_inputs", "words": ["--swap-layer-input"], **twice})
    jobs.append({"name": "twice_optimizer", "words": ["--swap-optimizer"], **twice})
    jobs.append({"name": "views", "args": OPTIMIZER, "distributed": True, "raises": True})
    return launch(WORKER, jobs, folder, clients=(CLIENT,))[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[dict]:
    jobs = []
    for name, config in (("uniform", UNIFORM), ("block", RECOMPUTE["block"])):
        options = {"config": config, "num_microbatches": 4}
        swap = {"args": INPUTS | OPTIMIZER, "settings": LATE}
        jobs += [{"name": name, **options}, {"name": f"{name}_swap", **swap, **options}]
    folder = tmp_path_factory.mktemp("megatron_pair")
    return launch(WORKER, jobs, folder, clients=(CLIENT,), world_size=2)


def assert_same(run: dict, reference: dict, first_step: int = 0) -> None:
    assert len(run["gradients"]) == len(reference["gradients"]) - first_step > 0
    assert run["losses"] == reference["losses"][first_step:]
    assert run["norms"] == reference["norms"][first_step:]
    pairs = [*zip(run["gradients"], reference["gradients"][first_step:])]
    for tensors, expected in [*pairs, (run["parameters"], reference["parameters"])]:
        assert tensors.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(tensors[name], value), name
    for each in (run, reference):
        assert each["num_races"] == 0, each["races"]
        assert each["bytes_left"] == 0


@pytest.mark.parametrize("name", [*RECOMPUTE, "many", "bf16", "distributed"])
def test_trains_to_the_same_bits(alone, name):
    assert_same(alone[f"{name}_swap"], alone[name])


def test_the_example_swaps(alone):
    assert_same(alone["example"], alone["uniform"])
    inputs = alone["example"]["inputs"], alone["inputs"]["inputs"]
    assert inputs[0]["num_swapped_out"] == inputs[1]["num_swapped_out"]
    assert alone["example"]["allocated_bytes"] < alone["uniform"]["allocated_bytes"]


def test_recompute_modes_agree(alone):
    for name in RECOMPUTE:
        assert_same(alone[name], alone["none"])


def test_inputs_leave_the_device(alone):
    # Four layers, four steps. The last layer's input is needed at once.
    inputs = alone["inputs"]["inputs"]
    assert inputs["num_swapped_out"] >= 3 * 4
    assert inputs["peak_resident_inputs"] <= 1
    for name in ("none", "selective"):  # nothing is recomputed, so no context was ever made
        assert alone[f"{name}_swap"]["inputs"] == {}


def test_states_leave_the_device(alone):
    for name in ("none", "uniform", "many"):
        saved = alone[name]["allocated_bytes"] - alone[f"{name}_swap"]["allocated_bytes"]
        # Two states of fp32 for each parameter; in the first half of a step some come in ahead.
        assert saved >= 2 * alone[name]["num_bytes"] * 0.9


@pytest.mark.parametrize("name", ["to_plain", "from_plain"])
def test_resumes_with_and_without_swap(alone, name):
    assert_same(alone[f"{name}_load"], alone[f"{name}_save"], first_step=2)


@pytest.mark.parametrize("name", ["uniform", "block"])
def test_two_pipeline_stages_train_to_the_same_bits(pair, name):
    for rank in pair:
        assert_same(rank[f"{name}_swap"], rank[name])
        assert rank[f"{name}_swap"]["inputs"]["num_swapped_out"] > 0


@pytest.mark.parametrize(
    "name, says",
    [
        ("sgd", "--optimizer adam, not with sgd"),
        ("times", "at least 1, got 0"),
        ("two_places", "--optimizer-cpu-offload"),
        ("parts", "--distribute-saved-activations"),
        ("overlap", "mindspeed"),
        ("views", "train in bf16"),
        ("twice_inputs", "wrap it once"),
        ("twice_optimizer", "call apply() once"),
    ],
)
def test_refuses(alone, name, says):
    assert says in alone[name]["error"]
