"""The small limits that a compiler does not know: file length, file heads, notes left for later."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_LINES = 450
MOST_COLUMNS = 100
FOLDERS = (
    "swapline",
    "sim",
    "trainer",
    "python",
    "harness",
    "tests",
    "bench",
    "examples",
    "scripts",
)
LEFT_FOR_LATER = re.compile(r"\b(TODO|FIXME|XXX)\b")


def sources() -> list[pathlib.Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".cpp", ".py")
    ]


def faults_of(path: pathlib.Path) -> list[str]:
    name = path.relative_to(ROOT)
    lines = path.read_text().splitlines()
    faults = []
    if len(lines) > MOST_LINES:
        faults.append(f"{name}: {len(lines)} lines, at most {MOST_LINES}: split it")
    if path.suffix == ".h" and not lines[0].startswith("//"):
        faults.append(f"{name}: a header opens with a comment that says what it is")
    if path.suffix == ".h" and "#pragma once" not in lines:
        faults.append(f"{name}: no #pragma once")
    for number, line in enumerate(lines, start=1):
        if len(line) > MOST_COLUMNS:
            faults.append(f"{name}:{number}: {len(line)} columns, at most {MOST_COLUMNS}")
        if LEFT_FOR_LATER.search(line) and path.name != pathlib.Path(__file__).name:
            faults.append(f"{name}:{number}: left for later")
    return faults


def main() -> int:
    paths = sources()
    faults = [fault for path in paths for fault in faults_of(path)]
    print("\n".join(faults) or f"{len(paths)} files: within the limits")
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
