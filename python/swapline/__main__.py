"""python -m swapline train|plan|devices ...: calls the program that comes with the package."""

import os
import pathlib
import sys
from typing import NoReturn

import torch

from swapline.package import program_path


def run(arguments: list[str], program: pathlib.Path | None = None) -> NoReturn:
    """Becomes the program: its exit code, its signals and its terminal are this process's own.

    `program`: another than the package's. SystemExit with a message when there is none to run.
    """
    program = program or program_path()
    if not program.is_file():
        raise SystemExit(
            f"swapline: the package has no program: {program} does not exist. "
            "It was built without it (-DSWAPLINE_TRAINER=OFF): build again with it on."
        )
    if not os.access(program, os.X_OK):
        raise SystemExit(f"swapline: {program} may not be executed: chmod +x it.")
    # The package does not know at build time where torch will be.
    libraries = [os.path.join(os.path.dirname(torch.__file__), "lib")]
    libraries += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        program,
        ["swapline", *arguments],
        {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)},
    )


if __name__ == "__main__":
    run(sys.argv[1:])
