"""The rows that every part makes, and the table that they end up in."""

from __future__ import annotations

import dataclasses
import json
import pathlib


@dataclasses.dataclass(frozen=True)
class Row:
    """`measured` beside `reference`, both in `unit`; `verdict`: in place of figures.
    `is_met`: of what is promised; None: told only."""

    part: str
    name: str
    measured: float | None = None
    reference: float | None = None
    unit: str = ""
    reference_name: str = ""
    verdict: str = ""
    is_met: bool | None = None

    @property
    def ratio(self) -> float | None:
        if self.measured is None or not self.reference:
            return None
        return self.measured / self.reference

    def cells(self) -> list[str]:
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        remark = "FAILED" if self.is_met is False else ""
        measured = self.verdict or _figure(self.measured, self.unit)
        beside = f"{_figure(self.reference, self.unit)}  {self.reference_name}".strip()
        return [self.part, self.name, measured, ratio, beside, remark]


HEAD = ["part", "what", "measured", "ratio", "beside", ""]
RIGHT_ALIGNED = (2, 3)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f} {unit}"


def lines_of(rows: list[Row]) -> list[str]:
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    lines, former = [], None
    for row in cells:
        shown = [row[0] if row[0] != former else "", *row[1:]]
        former = row[0]
        placed = [
            cell.rjust(width) if i in RIGHT_ALIGNED else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(shown, widths))
        ]
        lines.append("  ".join(placed).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def write_json(rows: list[Row], heading: list[str], path: pathlib.Path) -> None:
    made = [{**dataclasses.asdict(row), "ratio": row.ratio} for row in rows]
    path.write_text(json.dumps({"heading": heading, "rows": made}, indent=1) + "\n")
