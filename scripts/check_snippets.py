"""Code shown in README.md and docs/ is code that runs: each block is a part of an example.

A C++ or Python block is marked by a line "<!-- examples/FILE: PART -->" before it; the part lies
between "[PART" and "PART]" in comments of that file. With --write the blocks are filled in.
Python blocks of a guide are at most 40 lines.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"<!-- (examples/\S+\.(?:cpp|py)): (.+?) -->\n```(cpp|python)\n(.*?)```\n", re.DOTALL
)
FENCE = re.compile(r"^```(?:cpp|python)$", re.M)
MOST_PYTHON_LINES = 40


def part_of(file: str, name: str) -> str:
    text = (ROOT / file).read_text()
    mark = re.escape(name)
    found = re.search(rf"^ *(?://|#) \[{mark}\n(.*?)^ *(?://|#) {mark}\]$", text, re.S | re.M)
    if found is None:
        raise SystemExit(f"{file} has no part [{name}")
    return textwrap.dedent(found[1])


def filled(block: re.Match) -> str:
    file, name, language, _ = block.groups()
    return f"<!-- {file}: {name} -->\n```{language}\n{part_of(file, name)}```\n"


def faults_of(page: pathlib.Path, text: str) -> list[str]:
    blocks = BLOCK.findall(text)
    faults = []
    unmarked = len(FENCE.findall(text)) - len(blocks)
    if unmarked:
        faults.append(f"{page.name}: {unmarked} block(s) of code without an example")
    for file, name, language, code in blocks:
        if language == "python" and code.count("\n") > MOST_PYTHON_LINES:
            faults.append(f"{page.name}: {file}, {name}: over {MOST_PYTHON_LINES} lines")
    return faults


def main() -> int:
    num_blocks = 0
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        num_blocks += len(BLOCK.findall(text))
        wrong += faults_of(page, text)
        new_text = BLOCK.sub(filled, text)
        if new_text != text:
            if "--write" in sys.argv:
                page.write_text(new_text)
            else:
                wrong.append(f"{page.name}: a block differs from its example; run with --write")
    print("\n".join(wrong) or f"{num_blocks} snippets are parts of examples that run")
    return 1 if wrong or num_blocks == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
