"""docs/backends.md says what was run: its tables are read here."""

import importlib
import importlib.metadata
import pathlib

import pytest
import torch

pytestmark = pytest.mark.any_schedule
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "backends.md"


def table(heading: str) -> list[dict[str, str]]:
    """The rows of the first table below a heading, by the names of its columns."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_the_versions_are_those_that_run(device):
    row = next(row for row in table("Versions that were run") if row["backend"] == device.kind)
    assert row["torch"] == torch.__version__
    if device.kind == "npu":
        version = importlib.metadata.version("torch-npu")
        assert f"torch_npu {version}" in row["beside it"]


@pytest.mark.parametrize("row", table("What works where"), ids=lambda row: row["what"])
def test_what_works_is_tested_where_it_works(device, row):
    file, name = row["test"].strip("`").removesuffix("`").split("::")
    test = getattr(importlib.import_module(file.removesuffix(".py")), name)
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "devices"]
    runs_here = all(device.kind in mark.args for mark in marks)
    assert row[device.kind] == ("yes" if runs_here else "no")
