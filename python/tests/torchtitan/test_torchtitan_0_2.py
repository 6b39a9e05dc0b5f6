"""swapline.torchtitan in torchtitan 0.2.2: real runs, with and without, equal to the bit."""

import pathlib

import pytest
from client_compare import assert_clean, assert_same_run, assert_same_tensors
from client_launch import launch, require
from client_text import write_text
from torchtitan_jobs import NUM_STEPS, NUM_STEPS_OF_LONG_RUNS, common_words, words

CLIENTS = ("common", "torchtitan-0.2.2")
require(*CLIENTS)

WORKER = pathlib.Path(__file__).parent / "worker_0_2.py"
PLUG_IN = {"--job.custom_config_module": "swapline.torchtitan"}
SWAP_OPTIMIZER = PLUG_IN | {
    "--optimizer.swap-optimizer": None,
    "--optimizer.swap-optimizer-times": "8",
}
SWAP_INPUTS = PLUG_IN | {"--swap-layer-input.enable": None}
BOTH = SWAP_OPTIMIZER | SWAP_INPUTS
VIRTUAL = PLUG_IN | {"--optimizer.virtual-optimizer": None}
MUON = PLUG_IN | {"--optimizer.name": "Muon", "--optimizer.muon-ns-steps": "3"}
LATE = {"late_copies": True}


class Jobs:
    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        write_text(folder / "assets")
        self.all: list[dict] = []

    def add(
        self,
        name: str,
        options: dict,
        *,
        dump: str | None = None,
        num_steps: int = NUM_STEPS,
        **job,
    ) -> None:
        argv = {
            "--model.name": "llama3",
            "--model.flavor": "tiny",
            "--model.hf_assets_path": str(self._folder / "assets"),
            "--training.dataset": "c4_test",
            "--training.dataset_path": str(self._folder / "assets" / "c4_test"),
            "--job.dump_folder": str(self._folder / (dump or name)),
            "--metrics.enable_tensorboard": None,
            "--activation_checkpoint.mode": "full",
            **common_words(num_steps),
            **options,
        }
        self.all.append({"name": name, "argv": words(argv), **job})

    def add_save_and_resume(self, saver: dict, resumer: dict, name: str, **options) -> None:
        save = {"--checkpoint.enable": None, "--checkpoint.interval": str(NUM_STEPS // 2)} | options
        save |= {"--checkpoint.no-last_save_model_only": None}
        self.add(f"{name}_save", saver | save, dump=name)
        self.add(
            f"{name}_resume",
            resumer | save | {"--checkpoint.load_step": str(NUM_STEPS // 2)},
            dump=name,
        )


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """What the jobs of one process returned."""
    folder = tmp_path_factory.mktemp("torchtitan_0_2")
    jobs = Jobs(folder)
    jobs.add("plain", {})
    jobs.add("long_plain", {}, num_steps=NUM_STEPS_OF_LONG_RUNS)
    jobs.add("long_late", BOTH, num_steps=NUM_STEPS_OF_LONG_RUNS, settings=LATE)
    jobs.add("plug_in_off", PLUG_IN)
    jobs.add("optimizer", SWAP_OPTIMIZER)
    jobs.add("inputs", SWAP_INPUTS)
    jobs.add("selective_plain", {"--activation_checkpoint.mode": "selective"})
    jobs.add("selective_both", BOTH | {"--activation_checkpoint.mode": "selective"})
    jobs.add("virtual", VIRTUAL)
    jobs.add("muon_plain", MUON)
    jobs.add("muon_late", MUON | BOTH, settings=LATE)
    jobs.add("adam_plain", {"--optimizer.name": "Adam"})
    jobs.add("adam", SWAP_OPTIMIZER | {"--optimizer.name": "Adam"})
    jobs.add_save_and_resume(BOTH, {}, "to_plain")
    jobs.add_save_and_resume({}, BOTH, "from_plain")
    refused = {
        "two_modes": SWAP_OPTIMIZER | VIRTUAL,
        "size_alone": PLUG_IN | {"--optimizer.virtual-optimizer-size": "1"},
        "sizes": VIRTUAL | {"--optimizer.virtual-optimizer-size": "1,2"},
        "zero_times": SWAP_OPTIMIZER | {"--optimizer.swap-optimizer-times": "0"},
        "other_kind": SWAP_OPTIMIZER | {"--optimizer.name": "SGD"},
        "in_backward": SWAP_OPTIMIZER | {"--optimizer.early_step_in_backward": None},
        "no_recompute": SWAP_INPUTS | {"--activation_checkpoint.mode": "none"},
        "compiled": SWAP_INPUTS | {"--compile.enable": None},
        "muon_lr": MUON | {"--optimizer.muon-lr": "0.1"},
    }
    for name, options in refused.items():
        jobs.add(name, options, raises=True)
    jobs.add("twice", PLUG_IN, raises=True, wraps_twice=True)
    return launch(WORKER, jobs.all, folder, clients=CLIENTS)[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[dict]:
    """What the jobs of two processes returned, for each rank."""
    folder = tmp_path_factory.mktemp("torchtitan_0_2_pair")
    jobs = Jobs(folder)
    pipeline = {
        "--parallelism.pipeline_parallel_degree": "2",
        "--training.local_batch_size": "4",
        "--parallelism.pipeline_parallel_schedule": "1F1B",
    }
    tensor = {"--parallelism.tensor_parallel_degree": "2"}
    for name, options in {"fsdp": {}, "pipeline": pipeline, "tensor": tensor}.items():
        jobs.add(f"{name}_plain", options)
        jobs.add(f"{name}_late", BOTH | options, settings=LATE)
    sizes = {"--optimizer.virtual-optimizer-size": "all,0"}
    jobs.add("pipeline_sizes", VIRTUAL | sizes | pipeline)
    jobs.add_save_and_resume(BOTH, {}, "to_plain")
    jobs.add_save_and_resume({}, BOTH, "from_plain")
    return launch(WORKER, jobs.all, folder, clients=CLIENTS, world_size=2)


def num_state_bytes(run: dict) -> int:
    return sum(
        tensor.numel() * tensor.element_size()
        for name, tensor in run["states"].items()
        if name.endswith(("exp_avg", "exp_avg_sq"))
    )


@pytest.mark.parametrize(
    "name, reference",
    [
        ("plug_in_off", "plain"),
        ("optimizer", "plain"),
        ("inputs", "plain"),
        ("long_late", "long_plain"),
        ("selective_both", "selective_plain"),
        ("virtual", "plain"),
        ("muon_late", "muon_plain"),
        ("adam", "adam_plain"),
    ],
)
def test_trains_to_the_same_bits(alone, name, reference):
    num_steps = NUM_STEPS_OF_LONG_RUNS if name.startswith("long") else NUM_STEPS
    assert len(alone[name]["loss"]) == num_steps
    assert_same_run(alone[name], alone[reference])


def test_states_are_not_on_the_device(alone):
    states = num_state_bytes(alone["plain"])
    for name in ("optimizer", "long_late", "virtual"):
        assert alone["plain"]["allocated_bytes"] - alone[name]["allocated_bytes"] >= states
    copied = alone["optimizer"]["bytes_in"] - alone["plain"]["bytes_in"]
    assert copied >= NUM_STEPS * states


def test_muon_swaps_its_momentum(alone):
    momenta = {n: t for n, t in alone["muon_plain"]["states"].items() if "momentum_buffer" in n}
    assert len(momenta) == 4 * 7  # the matrices of four layers
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in momenta.values())
    saved = alone["muon_plain"]["allocated_bytes"] - alone["muon_late"]["allocated_bytes"]
    assert saved >= num_bytes


@pytest.mark.parametrize("name", ["to_plain", "from_plain"])
def test_resumes_with_and_without_swap(alone, name):
    assert_same_run(alone[f"{name}_save"], alone["plain"])
    assert_same_run(alone[f"{name}_resume"], alone["plain"], from_step=NUM_STEPS // 2 + 1)


@pytest.mark.parametrize("name", ["fsdp", "pipeline", "tensor"])
def test_two_processes_train_to_the_same_bits(pair, name):
    assert NUM_STEPS in [len(rank[f"{name}_plain"]["loss"]) for rank in pair]
    for rank in pair:
        assert_same_run(rank[f"{name}_late"], rank[f"{name}_plain"])


def test_each_pipeline_rank_has_its_virtual_size(pair):
    shares = []
    for rank in pair:
        assert_same_run(rank["pipeline_sizes"], rank["pipeline_plain"])
        plain, sizes = (
            rank[name]["allocated_bytes"] for name in ("pipeline_plain", "pipeline_sizes")
        )
        shares.append((plain - sizes) / num_state_bytes(rank["pipeline_plain"]))
    # All of the first rank's. None of the second's: only the step counts take less room.
    assert shares[0] >= 1 and shares[1] < 0.1


@pytest.mark.parametrize("name", ["to_plain", "from_plain"])
def test_two_processes_resume_with_and_without_swap(pair, name):
    for rank in pair:
        assert_same_tensors(rank[f"{name}_resume"]["parameters"], rank["fsdp_plain"]["parameters"])
        assert_same_tensors(rank[f"{name}_resume"]["states"], rank["fsdp_plain"]["states"])
        assert_clean(rank[f"{name}_resume"])


@pytest.mark.parametrize(
    "name, says",
    [
        ("two_modes", "turn one off"),
        ("size_alone", "virtual_optimizer is off"),
        ("sizes", "the pipeline has 1 ranks"),
        ("zero_times", "swap_optimizer_times must be at least 1, got 0"),
        ("other_kind", "Adam, AdamW and Muon, not with SGD"),
        ("in_backward", "early_step_in_backward"),
        ("no_recompute", "set it to full or selective"),
        ("compiled", "compile.enable"),
        ("muon_lr", "muon_adjust_lr_fn"),
        ("twice", "has been through with_swap() before"),
    ],
)
def test_refuses(alone, name, says):
    assert says in alone[name]["error"]
