"""python -m swapline: the program, reached through the package."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import swapline.__main__ as command_line
from swapline.package import program_path

PROGRAM = program_path()
needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")


def called(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "swapline", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@needs_program
def test_output_passes_through():
    done = called("train", "--help")
    assert done.returncode == 0, done.stderr
    assert "swapline train [OPTIONS]" in done.stdout
    assert "--optimizer.swap-optimizer-times" in done.stdout


@needs_program
def test_exit_code_and_error_pass_through():
    refused = called("train", "--training.stepz", "1")
    command = [PROGRAM, "train", "--training.stepz", "1"]
    itself = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert refused.returncode == itself.returncode != 0
    assert refused.stderr == itself.stderr
    assert "training.stepz" in refused.stderr


@needs_program
def test_interrupt_reaches_the_program(tmp_path):
    # Whoever started the tests may have told them to ignore it: nohup, a shell's background.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "swapline", "train"]
    command += ["--training.steps", "100000", "--job.dump-folder", str(tmp_path)]
    command += ["--device.dry-run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipes) as run:
        deadline = time.monotonic() + 60
        while "step:" not in run.stdout.readline():
            assert time.monotonic() < deadline
        run.send_signal(signal.SIGINT)
        try:
            run.communicate(timeout=60)
        finally:
            run.kill()
        assert run.returncode in (-signal.SIGINT, 128 + signal.SIGINT)


@needs_program
def test_torch_is_found_wherever_it_is(monkeypatch):
    """The folder of this process's torch comes before what was set."""
    called_with = {}
    monkeypatch.setattr(os, "execve", lambda *arguments: called_with.update(all=arguments))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    command_line.run(["devices"])
    program, arguments, environment = called_with["all"]
    assert program == PROGRAM
    assert arguments == ["swapline", "devices"]
    first, second = environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert (pathlib.Path(first) / "libtorch_cpu.so").exists()
    assert second == "/somewhere"


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(SystemExit, match="no program: .*none does not exist.*SWAPLINE_TRAINER"):
        command_line.run(["train"], program=tmp_path / "none")


def test_a_file_that_is_no_program_is_named(tmp_path):
    plain = tmp_path / "swapline"
    plain.write_text("")
    plain.chmod(0o644)
    with pytest.raises(SystemExit, match=f"{plain} may not be executed"):
        command_line.run(["train"], program=plain)
