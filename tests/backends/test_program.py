"""The program and the C++ example on this device: the cpu's losses, and what is refused."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import torch

pytestmark = pytest.mark.any_schedule
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
SMALL = (
    "--training.steps=3",
    "--training.seq-len=64",
    "--training.local-batch-size=2",
    "--model.num-layers=4",
)
BOTH_SWAPS = (
    "--optimizer.swap-optimizer",
    "--optimizer.swap-optimizer-times=4",
    "--swap-layer-input.enable",
)
LOSS = re.compile(r"^step: +(\d+)  loss: +(\S+)  grad_norm: +(\S+)", re.MULTILINE)


def environment(kind: str, **more: str) -> dict[str, str]:
    """Where the program finds the torch that has the device, and the vendor's runtime."""
    torch_lib = str(pathlib.Path(torch.__file__).parent / "lib")
    folders = {
        "cuda": [torch_lib],
        "npu": [os.environ.get("HARNESS_RUNTIME", "") + "/lib", torch_lib],
    }.get(kind, [])
    path = {"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", **path, **more}


def run(
    program: str, *arguments: str | pathlib.Path, env: dict[str, str]
) -> subprocess.CompletedProcess:
    if not (BUILD / program).exists():
        pytest.skip(f"no {program} in {BUILD}: it is not built")
    command = [BUILD / program, *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600, env=env
    )


def train(kind: str, folder: pathlib.Path, *options: str, **more: str) -> tuple[list, list]:
    """Losses and norms of each step: as printed, and to the last bit."""
    where = (f"--device.type={kind}", f"--job.dump-folder={folder}")
    done = run("swapline", "train", *where, *SMALL, *options, env=environment(kind, **more))
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    steps = [(step["loss"], step["grad_norm"]) for step in summary["steps"]]
    return LOSS.findall(done.stdout), steps


def test_both_swaps_print_the_losses_of_the_cpu(device, tmp_path):
    printed, steps = train(device.kind, tmp_path, *BOTH_SWAPS)
    assert len(printed) == 3
    assert printed == train("cpu", tmp_path)[0]
    # On the device itself, with and without swap, nothing differs at all.
    assert steps == train(device.kind, tmp_path)[1]


@pytest.mark.parametrize("mode", ["late", "late-copies", "late-compute", "random:1"])
def test_no_wait_is_missing_whenever_work_runs(device, tmp_path, mode):
    if device.kind == "sim":
        pytest.skip("the simulator has a race checker of its own, and tests of it in tests/trainer")
    log = tmp_path / "log"
    printed, _ = train(device.kind, tmp_path, *BOTH_SWAPS, HARNESS_MODE=mode, HARNESS_LOG=str(log))
    assert printed == train("cpu", tmp_path)[0]
    lines = log.read_text().splitlines()
    assert any(line.startswith("copy") for line in lines)
    assert not [line for line in lines if line.startswith("RACE")]


def test_several_real_devices_are_refused_before_any_is_made(device):
    if device.kind == "sim":
        pytest.skip("several simulated devices are allowed")
    several = ("--parallelism.pipeline-parallel-degree=2", "--training.local-batch-size=2")
    kind = f"--device.type={device.kind}"
    done = run("swapline", "train", kind, *several, env=environment(device.kind))
    assert done.returncode == 2 and done.stdout == ""
    assert f"= 2 devices with {kind.replace('=', ' ')}, allowed is 1 in a process" in done.stderr


@pytest.mark.parametrize("kind", ["cuda", "xpu", "npu"])
def test_a_torch_without_the_device_is_named_with_its_folder(kind):
    # The torch that was built with: the one for the cpu.
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = run("swapline", "train", f"--device.type={kind}", env=env)
    if done.returncode == 0 or "no such device on this machine" in done.stderr:
        pytest.skip(f"the torch that was built with has {kind}")
    assert done.returncode == 1
    assert re.search(rf"found {kind}, and no libtorch_{kind}\.so in /.*: .*install", done.stderr)
    assert "use --device.type sim or cpu" in done.stderr


def test_the_example_trains_on_the_named_device(device):
    done = run("example_any_device", device.kind, env=environment(device.kind))
    assert done.returncode == 0, done.stdout + done.stderr
    losses = re.findall(r"^step \d  loss (\S+)$", done.stdout, re.MULTILINE)
    assert len(losses) == 5 and losses == sorted(losses, reverse=True)
    assert f"on {device.kind}:0" in done.stdout and "on the device now 0 of" in done.stdout
    simulated = run("example_any_device", "sim", env=environment("sim"))
    assert simulated.stdout.splitlines()[:5] == [
        f"step {i + 1}  loss {losses[i]}" for i in range(5)
    ]
