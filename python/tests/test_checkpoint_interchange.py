"""Checkpoints between the program and plain torch: what one writes, the other reads."""

import json
import pathlib
import shutil
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "release" / "swapline"
STATE = "optimizer.state."

pytestmark = [
    pytest.mark.skipif(not PROGRAM.exists(), reason="build/release/swapline is not built"),
    pytest.mark.filterwarnings("ignore:torch.distributed is"),  # one process is what is meant
]


def train(folder: pathlib.Path, *options: str) -> None:
    """A run of the program whose checkpoints are in folder/checkpoint."""
    folder.mkdir(exist_ok=True)
    command = [PROGRAM, "train", "--training.seq-len", "16", "--training.local-batch-size", "1"]
    command += ["--model.num-layers", "1", "--lr-scheduler.total-steps", "4"]
    command += ["--checkpoint.enable", "--checkpoint.no-last-save-model-only"]
    command += ["--checkpoint.interval", "2", "--job.dump-folder", folder, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def tensors_in(checkpoint: pathlib.Path) -> dict[str, torch.Tensor]:
    """By safetensors' own reader."""
    tensors = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def read_by_dcp(checkpoint: pathlib.Path) -> dict[str, torch.Tensor]:
    tensors = {
        name: torch.full_like(tensor, 7) for name, tensor in tensors_in(checkpoint).items()
    }
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint)), no_dist=True)
    return tensors


def write_by_dcp(tensors: dict[str, torch.Tensor], checkpoint: pathlib.Path) -> None:
    dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(str(checkpoint)), no_dist=True)


def assert_equal(tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == others[name].dtype, name
        assert torch.equal(tensor, others[name]), name


def plain_adamw(tensors: dict[str, torch.Tensor], checkpoint: pathlib.Path) -> torch.optim.AdamW:
    """torch.optim.AdamW over the parameters of a checkpoint, with its states and settings."""
    parameters = {
        name: torch.nn.Parameter(tensor.clone())
        for name, tensor in tensors.items()
        if not name.startswith("optimizer.")
    }
    optimizer = torch.optim.AdamW(parameters.values())
    saved = optimizer.state_dict()
    settings = json.loads((checkpoint / "optimizer.json").read_text())
    first = next(iter(parameters))
    for key in ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"):
        saved["param_groups"][0][key] = settings[f"optimizer.param_groups.{first}.{key}"]
    saved["state"] = {
        index: {
            state: tensors[f"{STATE}{name}.{state}"].clone()
            for state in ("exp_avg", "exp_avg_sq", "step")
        }
        for index, name in enumerate(parameters)
    }
    optimizer.load_state_dict(saved)
    return optimizer


def content_of(optimizer: torch.optim.AdamW, names: list[str]) -> dict[str, torch.Tensor]:
    """What a torch program would save of it, under flat names."""
    tensors = {}
    for name, parameter in zip(names, optimizer.param_groups[0]["params"], strict=True):
        tensors[name] = parameter.detach()
        for state, tensor in optimizer.state[parameter].items():
            tensors[f"{STATE}{name}.{state}"] = tensor
    return tensors


def parameter_names(tensors: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in tensors if not name.startswith("optimizer.")]


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory) -> pathlib.Path:
    """Checkpoints step-2 and step-4 of one run."""
    folder = tmp_path_factory.mktemp("four_steps")
    train(folder, "--training.steps", "4", "--optimizer.swap-optimizer")
    return folder / "checkpoint"


def test_dcp_reads_every_tensor(four_steps):
    tensors = tensors_in(four_steps / "step-2")
    assert len(tensors) == 4 * len(parameter_names(tensors))
    assert_equal(read_by_dcp(four_steps / "step-2"), tensors)


@pytest.mark.parametrize("save_distributed", [False, True])
def test_the_program_reads_many_files(four_steps, tmp_path, save_distributed):
    """With an index, and as ranks write them: without one."""
    tensors = tensors_in(four_steps / "step-2")
    files = {name: 1 + index % 3 for index, name in enumerate(tensors)}
    writer = HuggingFaceStorageWriter(
        str(tmp_path / "foreign"), fqn_to_index_mapping=files, save_distributed=save_distributed
    )
    dcp.save(tensors, storage_writer=writer, no_dist=True)
    assert len(list((tmp_path / "foreign").glob("*.safetensors"))) == 3
    assert len(list((tmp_path / "foreign").glob("*.json"))) == (0 if save_distributed else 1)
    train(
        tmp_path / "run",
        *("--training.steps", "1", "--checkpoint.interval", "1", "--optimizer.lr", "0"),
        *("--checkpoint.initial-load-path", str(tmp_path / "foreign")),
        *("--checkpoint.exclude-from-loading", "optimizer,train_state,lr_scheduler,dataloader"),
        "--checkpoint.no-initial-load-model-only",
    )
    loaded = tensors_in(tmp_path / "run/checkpoint/step-1")
    for name in parameter_names(tensors):
        assert torch.equal(loaded[name], tensors[name]), name


def test_plain_adamw_goes_on_from_it(four_steps):
    tensors = read_by_dcp(four_steps / "step-2")
    optimizer = plain_adamw(tensors, four_steps / "step-2")
    parameters = optimizer.param_groups[0]["params"]
    assert all(optimizer.state[parameter]["step"] == 2 for parameter in parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(optimizer.state[parameter]["step"] == 3 for parameter in parameters)
    assert not any(map(torch.equal, before, parameters))


@pytest.mark.parametrize("placement", ["swap-optimizer", "no-swap-optimizer"])
def test_the_program_goes_on_from_what_torch_wrote(four_steps, tmp_path, placement):
    """Read by torch, held by torch.optim.AdamW, written by torch: as if it never left."""
    optimizer = plain_adamw(read_by_dcp(four_steps / "step-2"), four_steps / "step-2")
    names = parameter_names(tensors_in(four_steps / "step-2"))
    foreign = tmp_path / "foreign"
    write_by_dcp(content_of(optimizer, names), foreign)
    shutil.copy(four_steps / "step-2/train_state.json", foreign)
    train(
        tmp_path / "run",
        *("--training.steps", "4", "--optimizer." + placement),
        *("--checkpoint.initial-load-path", str(foreign)),
        "--checkpoint.no-initial-load-model-only",
    )
    assert_equal(
        tensors_in(tmp_path / "run/checkpoint/step-4"), tensors_in(four_steps / "step-4")
    )


def test_the_program_takes_over_a_torch_optimizer(four_steps, tmp_path):
    """States that plain torch has made: with a learning rate of 0 the weights stay its own."""
    made = tensors_in(four_steps / "step-2")
    names = parameter_names(made)
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(0.02 * torch.randn_like(made[name])) for name in names]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for _ in range(5):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    tensors = content_of(optimizer, names)
    write_by_dcp(tensors, tmp_path / "foreign")
    train(
        tmp_path / "run",
        *("--training.steps", "1", "--checkpoint.interval", "1", "--optimizer.lr", "0"),
        *("--checkpoint.initial-load-path", str(tmp_path / "foreign")),
        *("--checkpoint.exclude-from-loading", "train_state,lr_scheduler,dataloader"),
        *("--checkpoint.no-initial-load-model-only", "--optimizer.swap-optimizer"),
    )
    loaded = tensors_in(tmp_path / "run/checkpoint/step-1")
    assert loaded.keys() == tensors.keys()
    for name in names:
        assert torch.equal(loaded[name], tensors[name]), name
        assert loaded[f"{STATE}{name}.step"] == 6, name
