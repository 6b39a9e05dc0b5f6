"""Every Python example runs as a user would run it, with nothing but what it imports."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "python"
CLIENTS = ROOT / "build" / "clients"  # what scripts/install_clients.sh installs
TRANSFORMERS = CLIENTS / "transformers"
PROGRAM = ROOT / "build" / "release" / "swapline"


def run(folder: pathlib.Path, *command: str | pathlib.Path, path: str = "") -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, path])
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_readme_prints_the_same_losses_with_and_without_swap(tmp_path):
    lines = run(tmp_path, sys.executable, EXAMPLES / "readme.py").splitlines()
    assert len(lines) == 10
    assert lines[:5] == lines[5:]
    assert len(set(lines)) == 5


def test_own_loop(tmp_path):
    assert "step 9  loss" in run(tmp_path, sys.executable, EXAMPLES / "own_loop.py")


def test_layer_input(tmp_path):
    output = run(tmp_path, sys.executable, EXAMPLES / "layer_input.py")
    assert output.splitlines() == [
        "recompute: 3 inputs swapped",
        "model: 6 inputs swapped",
        "decorators: 3 inputs swapped",
        "races: 0",
    ]


def test_fsdp2(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    printed = run(tmp_path, *launcher, "--nproc-per-node", "2", EXAMPLES / "fsdp2.py")
    assert printed.count("races 0") == 2


@pytest.mark.skipif(
    not TRANSFORMERS.is_dir() and importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: scripts/install_clients.sh",
)
def test_hugging_face(tmp_path):
    path = os.pathsep.join([str(TRANSFORMERS), str(CLIENTS / "common")])
    printed = run(tmp_path, sys.executable, EXAMPLES / "hugging_face.py", path=path)
    assert "step 3  loss" in printed


@pytest.mark.skipif(not PROGRAM.exists(), reason="build/release/swapline is not built")
def test_read_checkpoint(tmp_path):
    options = "--training.steps 1 --training.seq-len 16 --training.local-batch-size 1"
    options += " --model.num-layers 1 --checkpoint.enable"
    run(tmp_path, PROGRAM, "train", *options.split(), "--job.dump-folder", tmp_path)
    example = EXAMPLES / "read_checkpoint.py"
    run(tmp_path, sys.executable, example, tmp_path / "checkpoint" / "step-1", tmp_path / "new")
    assert list((tmp_path / "new").glob("*.safetensors"))
