"""Reads every #include of the project and fails when one goes against the arrows.

The arrows are the table below: a folder may include itself and what is listed for it. Nothing in
swapline/ may include the simulator: it is a device like any other.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

SWAP_CORE = ["swapline/memory", "swapline/copy", "swapline/swap"]
LIBRARY = SWAP_CORE + [
    "swapline/device",
    "swapline/layer_input",
    "swapline/optimizer",
    "swapline/checkpoint",
]
MAY_INCLUDE = {
    "swapline/device": [],
    "swapline/memory": [],
    "swapline/copy": ["swapline/memory"],
    "swapline/swap": ["swapline/copy", "swapline/memory"],
    "swapline/layer_input": SWAP_CORE,
    "swapline/optimizer": SWAP_CORE,
    "swapline/checkpoint": SWAP_CORE,
    "sim/core": [],
    "sim/torch": ["sim/core"],
    "trainer": LIBRARY + ["sim/core", "sim/torch"],
    "python": LIBRARY + ["sim/core", "sim/torch"],
    "bench": LIBRARY + ["sim/core", "sim/torch"],
    "examples": LIBRARY + ["sim/core", "sim/torch"],
    "harness/machine": ["sim/core"],
    "harness/fake_cuda": ["harness/machine", "sim/core"],
    "harness/fake_cann": ["harness/machine", "sim/core"],
    "harness/kernels": ["harness/machine"],
}
ANYONE_MAY_INCLUDE = {"swapline/export.h", "sim/export.h"}
TORCH_FREE = ["sim/core", "harness/machine", "harness/fake_cuda", "harness/fake_cann"]
NEVER = ("torch/extension.h", "torch/torch.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def folder_of(path: str) -> str | None:
    """The entry of the table that a path of the project belongs to; None: it has none."""
    return next((name for name in MAY_INCLUDE if path.startswith(name + "/")), None)


def faults_of(source: pathlib.Path) -> list[str]:
    path = source.relative_to(ROOT).as_posix()
    own = folder_of(path)
    faults = []
    for included in INCLUDE.findall(source.read_text()):
        if included in NEVER:
            faults.append(f"{path} includes {included}: compile time")
        if own in TORCH_FREE and included.startswith(("torch/", "ATen/", "c10/")):
            faults.append(f"{path} includes {included}: {own} knows nothing of torch")
        target = folder_of(included)
        if own is None or included in ANYONE_MAY_INCLUDE or target in (None, own):
            continue
        if target not in MAY_INCLUDE[own]:
            faults.append(f"{path} includes {included}: {own} may not know {target}")
    return faults


def main() -> int:
    sources = [
        source
        for folder in ("swapline", "sim", "trainer", "python", "bench", "examples", "harness")
        for source in sorted((ROOT / folder).rglob("*"))
        if source.suffix in (".h", ".cpp")
    ]
    faults = [fault for source in sources for fault in faults_of(source)]
    print("\n".join(faults) or f"{len(sources)} files: every include follows the arrows")
    return 1 if faults or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
