"""The results as tables: aligned text, a line for each setting, or Markdown, a line a system."""

from collections.abc import Callable, Sequence
from typing import Any

from systems import LAYER_INPUTS, OPTIMIZER

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def races_text(row: Row) -> str:
    """In later steps with the host running ahead, each; otherwise those of the first steps."""
    most = max(row["races"], row["late_races"])
    if most:
        return f"{most:.0f} a step"
    return f"{row['early_races']:.0f} at the start" if row["early_races"] else "0"


FREED_EARLY = "equal; late: freed early"
FREED_EARLY_NOTE = (
    "freed early: with late copies the simulated device also poisons memory that is freed while a "
    "copy out of it is neither done nor waited for by the stream that owns the memory. Allocators "
    "of today tolerate that when the stream waits before it uses the memory again: no race."
)


def bits_text(row: Row) -> str:
    if row["equal"] and row["equal_late"]:
        return "equal"
    if not row["equal"]:
        return "wrong"
    has_races = row["races"] or row["late_races"] or row["early_races"]
    return "equal; late: wrong" if has_races else FREED_EARLY


def copies_text(row: Row) -> str:
    return f"{row['copies_out']:.0f} / {row['copies_in']:.0f}"


COLUMNS: dict[str, tuple[Column, ...]] = {
    LAYER_INPUTS: (
        ("copy / layer", lambda row: f"{row['setting']:.0%}"),
        ("step ms", lambda row: f"{row['step_ms']:.1f}"),
        ("peak MiB", lambda row: f"{row['peak_mib']:.1f}"),
        ("reserved MiB", lambda row: f"{row['reserved_mib']:.1f}"),
        ("out / in MiB", lambda row: f"{row['out_mib']:.1f} / {row['in_mib']:.1f}"),
        ("races", races_text),
        ("bits", bits_text),
    ),
    OPTIMIZER: (
        ("times", lambda row: str(row["setting"])),
        ("step ms", lambda row: f"{row['step_ms']:.2f}"),
        ("unsynced", lambda row: f"{row['unsynced_ms']:.2f}"),
        ("peak MiB", lambda row: f"{row['peak_mib']:.1f}"),
        ("copies out / in", copies_text),
        ("races", races_text),
        ("bits", bits_text),
    ),
}


def lines_of(results: Sequence[dict], columns: Sequence[Column]) -> list[list[str]]:
    lines = [["system", *(name for name, _ in columns)]]
    for result in results:
        name = result["name"]
        for row in result["rows"]:
            lines.append([name, *(text(row) for _, text in columns)])
            name = ""
        if result.get("reason"):
            lines.append([name, result["reason"], *[""] * (len(columns) - 1)])
    return lines


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """A reason may be longer than its column: it does not widen it."""
    in_column = [[line[k] for line in lines if line[-1] or k == 0] for k in range(len(lines[0]))]
    widths = [max(map(len, cells)) for cells in in_column]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def merged(texts: Sequence[str]) -> str:
    """Figures of several settings in one cell; one figure when they are all the same."""
    if len(set(texts)) == 1:
        return texts[0]
    return ("; " if " / " in texts[0] else " / ").join(texts)


def as_markdown(results: Sequence[dict], columns: Sequence[Column]) -> list[str]:
    """A line for each system, the settings side by side in its cells."""
    (setting, setting_text), (step, _), *_ = columns
    most = max((result["rows"] for result in results), key=len)
    settings = merged([setting_text(row) for row in most]) if most else "?"
    names = ["system", f"{step}, {setting} = {settings}", *(name for name, _ in columns[2:])]
    lines = [names, ["---"] * len(names)]
    for result in results:
        texts = [
            merged([text(row) for row in result["rows"]]) if result["rows"] else ""
            for _, text in columns[1:]
        ]
        if result.get("reason"):
            texts[0] = f"{texts[0]} {result['reason']}".strip()
        lines.append([result["name"], *texts])
    return ["| " + " | ".join(line) + " |" for line in lines]


def tables(results: Sequence[dict], *, markdown: bool = False) -> str:
    parts = []
    for workload, columns in COLUMNS.items():
        chosen = [result for result in results if result["workload"] == workload]
        if chosen:
            lines = lines_of(chosen, columns)
            shown = as_markdown(chosen, columns) if markdown else aligned(lines)
            parts.append("\n".join([workload, "", *shown]))
            parts += [f"{r['name']}: {r['note']}" for r in chosen if r["note"] and r["rows"]]
            if any(FREED_EARLY in line for line in lines):
                parts.append(FREED_EARLY_NOTE)
    return "\n\n".join(parts)
