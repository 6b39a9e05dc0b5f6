"""Runs worker programs that train with a client installed below build/clients.

A worker is given a list of jobs as JSON and runs them one after the other, so that many checks
share one start. A job is a dict with a "name"; "settings" are swapline.sim.configure's.
"""

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest
import torch

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
CLIENTS = ROOT / "build" / "clients"
EXAMPLES = ROOT / "examples" / "python"


def require(*clients: str) -> None:
    """Skips the test, or the whole file, where a client is not installed."""
    for client in clients:
        if not (CLIENTS / client / ".installed").exists():
            pytest.skip(
                f"{client} is not installed: run scripts/install_clients.sh",
                allow_module_level=True,
            )


def launch(
    worker: pathlib.Path,
    jobs: list[dict],
    folder: pathlib.Path,
    *,
    clients: tuple[str, ...],
    world_size: int = 1,
    timeout_s: float = 240,
) -> list[dict]:
    """What each job returned, by its name, for each rank. Files go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        job["port"] = _free_port()
    (folder / "jobs.json").write_text(json.dumps(jobs))
    package = pathlib.Path(importlib.util.find_spec("swapline").origin).parents[1]
    path = [package, FOLDER, EXAMPLES, *(CLIENTS / client for client in clients)]
    processes = []
    for rank in range(world_size):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        log = (folder / f"rank{rank}.log").open("w")
        processes.append(
            subprocess.Popen(
                [sys.executable, str(worker), str(folder)],
                env=environment,
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        )
    try:
        for rank, process in enumerate(processes):
            process.wait(timeout_s)
            tail = (folder / f"rank{rank}.log").read_text()[-6000:]
            assert process.returncode == 0, f"rank {rank} failed:\n{tail}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(world_size)]


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
