"""The table of bench/python/device_check at its smallest: every row is there, and promises hold."""

import json
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "bench" / "python" / "device_check"
SMALLEST = (
    *("--shape", "tiny", "--micro-batches", "2", "--warm-steps", "1", "--steps", "2"),
    *("--kernel-elements", "5003", "--host-times", "2"),
)
SWAPS = ("layer inputs swapped", "optimizer states swapped", "both swapped")
NUM_ROWS = {
    "copies": 5,
    "bits of AdamW": 9,
    "host time": 5,
    "step": 5,
    "peak allocated": 5,
    "peak reserved": 5,
    "predicted peak": 3,
    "bits of steps": 4,
}

pytestmark = pytest.mark.any_schedule


@pytest.fixture(scope="module")
def report(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("device_check") / "rows.json"
    command = (sys.executable, PROGRAM, "--device", request.config.device.kind, *SMALLEST)
    done = subprocess.run(
        (*command, "--json", file), check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {"printed": done.stdout, **json.loads(file.read_text())}


def rows_of(report, part) -> dict[str, dict]:
    return {row["name"]: row for row in report["rows"] if row["part"] == part}


def test_every_row_is_there_and_printed(report):
    assert {part: len(rows_of(report, part)) for part in NUM_ROWS} == NUM_ROWS
    assert len(report["rows"]) == sum(NUM_ROWS.values())
    assert all(row["name"] in report["printed"] for row in report["rows"])
    assert all(line in report["printed"] for line in report["heading"])


def test_times_of_no_device_are_called_so(device, report):
    heading = " ".join(report["heading"])
    assert ("simulated device" in heading) == (device.kind == "sim")
    assert ("times mean nothing" in heading) == (device.kind != "sim" and device.has_log)


def test_bits_are_those_without_swap(report):
    steps = rows_of(report, "bits of steps")
    assert {steps[name]["verdict"] for name in SWAPS} == {"equal"}
    kernels = rows_of(report, "bits of AdamW")
    swapped = [row["verdict"] for name, row in kernels.items() if "swapped" in name]
    assert swapped == ["equal"] * 3


def test_swap_needs_less_memory_and_no_more_than_predicted(report):
    peaks, predicted = rows_of(report, "peak allocated"), rows_of(report, "predicted peak")
    for name in SWAPS:
        assert peaks[name]["measured"] < peaks[name]["reference"]
        assert predicted[name]["measured"] <= predicted[name]["reference"] * 1.02
