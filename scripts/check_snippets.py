"""C++ shown in README.md and docs/ is code that runs: each block is a part of an example.

A block is marked by a line "<!-- examples/FILE.cpp: PART -->" before it; the part lies between
"// [PART" and "// PART]" in that file. With --write the blocks are filled in from the examples.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- (examples/\S+\.cpp): (.+?) -->\n```cpp\n(.*?)```\n", re.DOTALL)


def part_of(file: str, name: str) -> str:
    text = (ROOT / file).read_text()
    mark = re.escape(name)
    found = re.search(rf"^ *// \[{mark}\n(.*?)^ *// {mark}\]$", text, re.S | re.M)
    if found is None:
        raise SystemExit(f"{file} has no part [{name}")
    return textwrap.dedent(found[1])


def main() -> int:
    num_blocks = 0
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        filled = BLOCK.sub(
            lambda m: f"<!-- {m[1]}: {m[2]} -->\n```cpp\n{part_of(m[1], m[2])}```\n", text
        )
        num_blocks += len(BLOCK.findall(text))
        unmarked = len(re.findall(r"^```cpp$", text, re.M)) - len(BLOCK.findall(text))
        if unmarked:
            wrong.append(f"{page.name}: {unmarked} C++ block(s) without an example")
        if filled != text:
            if "--write" in sys.argv:
                page.write_text(filled)
            else:
                wrong.append(f"{page.name}: a block differs from its example; run with --write")
    print("\n".join(wrong) or f"{num_blocks} snippets are parts of examples that run")
    return 1 if wrong or num_blocks == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
