"""bench/references on its small workloads: what needs no checkout runs, all else says why not."""

import json
import pathlib
import re
import sys

import pytest
import swapline.sim

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench" / "references"
ROW = {"setting": 4, "step_ms": 1.0, "unsynced_ms": 1.0, "peak_mib": 2.0, "reserved_mib": 3.0,
       "copies_out": 5.0, "copies_in": 6.0, "out_mib": 7.0, "in_mib": 8.0, "races": 0.0,
       "early_races": 0, "late_races": 0.0, "equal": True, "equal_late": True}


@pytest.fixture
def bench(monkeypatch):
    """The bench's modules, gone again afterwards: their names are short."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    import run

    with swapline.sim.settings():
        yield run
    for name in set(sys.modules) - before:
        if str(BENCH) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def results_of(bench, tmp_path, *options: str, code: int = 0) -> dict[str, dict]:
    path = tmp_path / "results.json"
    assert bench.main([*options, "--json", str(path)]) == code
    return {result["system"]: result for result in json.loads(path.read_text())}


def test_ours_and_torchs_own_run(bench, tmp_path, capsys):
    names = "recompute,save_on_cpu,swapline_wrap,swapline_recompute,adamw,swapline_adamw"
    results = results_of(bench, tmp_path, "--small", "--in-process", "--only", names)
    assert list(results) == names.split(",")
    for result in results.values():
        assert "reason" not in result
        (row,) = result["rows"]
        assert row["equal"] and row["equal_late"]
        assert row["races"] == row["early_races"] == row["late_races"] == 0
    plain, on_cpu, wrap, ours, adamw, our_adamw = (r["rows"][0] for r in results.values())
    assert plain["copies_out"] == plain["copies_in"] == adamw["copies_out"] == 0
    assert on_cpu["copies_out"] == on_cpu["copies_in"] == 4  # layers
    assert on_cpu["step_ms"] > 1.5 * plain["step_ms"]
    for row in (wrap, ours):
        assert row["copies_out"] > 0
        assert row["step_ms"] <= 1.01 * plain["step_ms"]
        assert row["peak_mib"] < plain["peak_mib"]
    states = 2 * 4 * (2 * 256 * 64 + 64 * 64 + 64)
    assert our_adamw["out_mib"] * 2**20 >= states
    steps = 512  # one tensor that holds every parameter's `step`
    assert 0 < our_adamw["peak_mib"] * 2**20 <= states / 4 + steps  # times 4
    printed = capsys.readouterr().out
    assert "layer inputs" in printed and "optimizer" in printed and "equal" in printed


def test_a_system_runs_in_a_process_of_its_own(bench, tmp_path):
    result = results_of(bench, tmp_path, "--small", "--only", "fsdp2_cpu_offload")
    (row,) = result["fsdp2_cpu_offload"]["rows"]
    assert row["equal"] and row["equal_late"] and row["races"] == 0
    assert row["copies_in"] == row["copies_out"] == 4  # parameters, gradients


def test_what_is_not_given_is_skipped_with_a_reason(bench, tmp_path):
    (tmp_path / "empty").mkdir()
    results = results_of(bench, tmp_path, "--small", "--only", "mindspeed,torchtitan_npu",
                         "--torchtitan-npu", str(tmp_path / "empty"))
    assert results["mindspeed"]["reason"] == "--mindspeed not given"
    assert results["torchtitan_npu"]["reason"].startswith("--torchtitan-npu: no torchtitan_npu/")
    assert all(result["rows"] == [] for result in results.values())


def test_what_fails_says_why(bench, tmp_path):
    folder = tmp_path / "checkout/mindspeed/core/memory/swap_layer_input"
    folder.mkdir(parents=True)
    for name in ("swap_layer_input_manager", "swap_layer_input"):
        (folder / f"{name}.py").write_text("raise ImportError('not of this version')\n")
    results = results_of(bench, tmp_path, "--small", "--only", "mindspeed",
                         "--mindspeed", str(tmp_path / "checkout"), code=1)
    assert results["mindspeed"]["rows"] == []
    assert "could not be run: ImportError: not of this version" in results["mindspeed"]["reason"]


def test_an_unknown_system_is_named(bench):
    with pytest.raises(SystemExit, match="--only unknown: there is recompute, save_on_cpu"):
        bench.main(["--only", "unknown"])


@pytest.mark.parametrize(
    ("changed", "races", "bits"),
    [
        ({}, "0", "equal"),
        ({"equal_late": False, "races": 14.0}, "14 a step", "equal; late: wrong"),
        ({"equal_late": False, "late_races": 3.0}, "3 a step", "equal; late: wrong"),
        ({"equal_late": False, "early_races": 2}, "2 at the start", "equal; late: wrong"),
        ({"equal_late": False}, "0", "equal; late: freed early"),
        ({"equal": False, "equal_late": False}, "0", "wrong"),
    ],
)
def test_table(bench, changed, races, bits):
    result = {"system": "x", "name": "X", "workload": "optimizer", "note": "a note",
              "rows": [ROW | changed]}
    text = bench.table.tables([result])
    assert re.search(rf"^X +4 +1.00 +1.00 +2.0 +5 / 6 +{races} +{bits}$", text, re.MULTILINE)
    assert "X: a note" in text
    assert ("freed early:" in text) == (bits == "equal; late: freed early")


def test_a_reason_does_not_widen_the_columns(bench):
    results = [
        {"system": "x", "name": "X", "workload": "layer inputs", "note": None, "rows": [ROW]},
        {"system": "y", "name": "Y", "workload": "layer inputs", "note": None, "rows": [],
         "reason": "a long reason that says much more than a column holds"},
    ]
    lines = bench.table.tables(results).splitlines()
    assert lines[-1] == "Y       a long reason that says much more than a column holds"
    assert len(lines[-2]) < 100


def test_markdown_has_a_line_for_each_system(bench):
    rows = [ROW | {"setting": n, "step_ms": float(n), "copies_out": float(n)} for n in (1, 4)]
    none = {"workload": "optimizer", "note": None}
    results = [
        {"system": "x", "name": "X", "rows": rows} | none,
        {"system": "y", "name": "Y", "rows": rows[:1], "reason": "took more than 1 s"} | none,
        {"system": "z", "name": "Z", "rows": [], "reason": "--z not given"} | none,
    ]
    head, *lines = bench.table.tables(results, markdown=True).splitlines()[2:]
    assert head.startswith("| system | step ms, times = 1 / 4 | unsynced | peak MiB | copies")
    assert lines == [
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| X | 1.00 / 4.00 | 1.00 | 2.0 | 1 / 6; 4 / 6 | 0 | equal |",
        "| Y | 1.00 took more than 1 s | 1.00 | 2.0 | 1 / 6 | 0 | equal |",
        "| Z | --z not given |  |  |  |  |  |",
    ]
