"""swapline.torchtitan in torchtitan 0.3.0: real runs, with and without, equal to the bit."""

import json
import pathlib

import pytest
from client_compare import assert_clean, assert_same_run, assert_same_tensors
from client_launch import launch, require
from client_text import write_text
from torchtitan_jobs import NUM_STEPS, NUM_STEPS_OF_LONG_RUNS, common_words, words

CLIENTS = ("common", "torchtitan-0.3.0")
require(*CLIENTS)

WORKER = pathlib.Path(__file__).parent / "worker_0_3.py"
LATE = {"late_copies": True}
FULL = ["activation-checkpoint:full"]
SELECTIVE = ["activation-checkpoint:selective"]


def override(name: str, **fields) -> str:
    target = f"swapline.torchtitan.overrides.{name}"
    return f"{target}={json.dumps(fields)}" if fields else target


SWAP_OPTIMIZER = [override("swap_optimizer", swap_optimizer_times=8)]
SWAP_INPUTS = [override("swap_layer_input")]
BOTH = SWAP_OPTIMIZER + SWAP_INPUTS
VIRTUAL = [override("swap_optimizer", virtual_optimizer=True)]


class Jobs:
    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        write_text(folder / "assets")
        self.all: list[dict] = []

    def add(
        self,
        name: str,
        overrides: list[str] = (),
        *,
        dump: str | None = None,
        options: dict | None = None,
        recompute: list[str] = FULL,
        config: str = "llama3_debugmodel_varlen_attn",
        module: str = "llama3",
        num_steps: int = NUM_STEPS,
        **job,
    ) -> None:
        argv = {
            "--module": module,
            "--config": config,
            "--hf_assets_path": str(self._folder / "assets"),
            "--dataloader.dataset": "c4_test",
            "--dataloader.dataset_path": str(self._folder / "assets" / "c4_test"),
            "--dump_folder": str(self._folder / (dump or name)),
            "--metrics.enable_tensorboard": None,
            "--parallelism.spmd_backend": "partial_dtensor",
            **common_words(num_steps),
            **(options or {}),
        }
        imports = ["--override.imports", "dense_attention.dense_attention", *overrides]
        self.all.append({"name": name, "argv": words(argv) + imports + recompute, **job})

    def add_save_and_resume(self, saver: list[str], resumer: list[str], name: str) -> None:
        save = {"--checkpoint.enable": None, "--checkpoint.interval": str(NUM_STEPS // 2)}
        self.add(f"{name}_save", saver, options=save, dump=name)
        resume = save | {"--checkpoint.load_step": str(NUM_STEPS // 2)}
        self.add(f"{name}_resume", resumer, options=resume, dump=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """What the jobs of one process returned."""
    folder = tmp_path_factory.mktemp("torchtitan_0_3")
    jobs = Jobs(folder)
    jobs.add("plain")
    jobs.add("long_plain", num_steps=NUM_STEPS_OF_LONG_RUNS)
    jobs.add("long_late", BOTH, num_steps=NUM_STEPS_OF_LONG_RUNS, settings=LATE)
    jobs.add("optimizer", SWAP_OPTIMIZER)
    jobs.add("inputs", SWAP_INPUTS)
    jobs.add("selective_plain", recompute=SELECTIVE)
    jobs.add("selective_both", BOTH, recompute=SELECTIVE)
    jobs.add("virtual", VIRTUAL)
    example = {"module": "torchtitan_config", "recompute": []}
    jobs.add("example", config="llama3_swap", **example)
    jobs.add("muon", config="llama3_muon", **example)
    off = {"--optimizer.no-swap-optimizer": None}
    jobs.add("muon_plain", config="llama3_muon", options=off, **example)
    jobs.add_save_and_resume(BOTH, [], "to_plain")
    jobs.add_save_and_resume([], BOTH, "from_plain")
    refused = {
        "unknown_field": [override("swap_optimizer", swap_times=8)],
        "two_modes": [override("swap_optimizer", swap_optimizer=True, virtual_optimizer=True)],
        "zero_times": [override("swap_optimizer", swap_optimizer_times=0)],
        "twice": SWAP_OPTIMIZER + [override("swap_optimizer")],
        "keep_last": [override("swap_layer_input", keep_last=-2)],
    }
    for name, overrides in refused.items():
        jobs.add(name, overrides, raises=True)
    return launch(WORKER, jobs.all, folder, clients=CLIENTS)[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[dict]:
    """What the jobs of two processes returned, for each rank."""
    folder = tmp_path_factory.mktemp("torchtitan_0_3_pair")
    jobs = Jobs(folder)
    jobs.add("plain")
    jobs.add("both_late", BOTH, settings=LATE)
    jobs.add_save_and_resume(BOTH, [], "to_plain")
    return launch(WORKER, jobs.all, folder, clients=CLIENTS, world_size=2)


@pytest.mark.parametrize(
    "name, reference",
    [
        ("optimizer", "plain"),
        ("inputs", "plain"),
        ("long_late", "long_plain"),
        ("selective_both", "selective_plain"),
        ("virtual", "plain"),
        ("example", "plain"),
        ("muon", "muon_plain"),
    ],
)
def test_trains_to_the_same_bits(alone, name, reference):
    num_steps = NUM_STEPS_OF_LONG_RUNS if name.startswith("long") else NUM_STEPS
    assert len(alone[name]["loss"]) == num_steps
    assert_same_run(alone[name], alone[reference])


def test_states_are_not_on_the_device(alone):
    states = sum(
        tensor.numel() * tensor.element_size()
        for name, tensor in alone["plain"]["states"].items()
        if name.endswith(("exp_avg", "exp_avg_sq"))
    )
    for name in ("optimizer", "long_late", "virtual"):
        assert alone["plain"]["allocated_bytes"] - alone[name]["allocated_bytes"] >= states


def test_inputs_leave_the_device(alone):
    inputs = alone["inputs"]["inputs"]
    assert inputs["num_swapped_out"] >= 3 * NUM_STEPS  # the last layer's is needed at once
    assert inputs["num_swapped_in"] + inputs["num_recalls"] == inputs["num_swapped_out"]
    assert inputs["peak_resident_inputs"] <= 1


@pytest.mark.parametrize("name", ["to_plain", "from_plain"])
def test_resumes_with_and_without_swap(alone, name):
    assert_same_run(alone[f"{name}_save"], alone["plain"])
    assert_same_run(alone[f"{name}_resume"], alone["plain"], from_step=NUM_STEPS // 2 + 1)


def test_two_processes_train_to_the_same_bits(pair):
    assert NUM_STEPS in [len(rank["plain"]["loss"]) for rank in pair]
    for rank in pair:
        assert_same_run(rank["both_late"], rank["plain"])


def test_two_processes_resume_without_swap(pair):
    for rank in pair:
        assert_same_tensors(rank["to_plain_resume"]["parameters"], rank["plain"]["parameters"])
        assert_same_tensors(rank["to_plain_resume"]["states"], rank["plain"]["states"])
        assert_clean(rank["to_plain_resume"])


@pytest.mark.parametrize(
    "name, says",
    [
        ("unknown_field", "swap_times"),
        ("two_modes", "turn one off"),
        ("zero_times", "swap_optimizer_times must be at least 1, got 0"),
        ("twice", "List it once"),
        ("keep_last", "keep_last is -2"),
    ],
)
def test_refuses(alone, name, says):
    assert says in alone[name]["error"]
