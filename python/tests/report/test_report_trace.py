"""Reading traces: steps, spans and memory of a window; files that are none."""

import json

import pytest
import swapline.sim
import torch
from swapline.report import ReportError, Window, read_run, read_trace
from synthetic_run import MIB, PEAK_MIB, trace_events, write_run


@pytest.fixture
def run(tmp_path):
    return read_run(write_run(tmp_path / "run"))


def test_steps_go_from_first_micro_batch_to_first_micro_batch(run):
    steps = run.trace.steps(3)
    assert [(step.begin_ms, step.end_ms) for step in steps] == [(100, 110), (110, 120), (120, 131)]
    assert run.window() == steps[1]  # at the end of the last one all is freed
    assert run.window(3) == steps[2]


def test_steps_that_cannot_be_told_apart(run):
    assert run.trace.steps(4) == []
    assert run.trace.steps(0) == []
    run.summary["steps"].append(dict(run.summary["steps"][0], step=4))
    assert run.window() == run.trace.whole() == Window(100, 131, "whole run")
    with pytest.raises(ReportError, match="--step 2: .*cannot be told apart.*--window"):
        run.window(2)


def test_a_step_that_is_not_there(run):
    with pytest.raises(ReportError, match="--step 4: .*has steps 1 to 3"):
        run.window(4)


def test_spans_are_cut_to_the_window(run):
    device = run.trace.devices[0]
    window = run.window(2)
    assert [(s.begin_ms, s.end_ms) for s in device.spans("H2D", window)] == [(0, 1), (8, 10)]
    assert device.spans("peer", window) == []


def test_lanes_stand_in_order(run):
    assert run.trace.devices[0].lane_names() == ["compute", "side", "H2D", "host"]
    assert run.trace.devices[1].lane_names() == ["compute", "D2H"]


def test_fewer_samples_keep_the_peak(run):
    device = run.trace.devices[0]
    times, samples = device.memory(run.window(2), most=20)
    assert len(times) == len(samples) <= 22
    assert times == sorted(times)
    assert times[-1] == 10
    assert max(map(sum, samples)) == PEAK_MIB * MIB
    _, without = device.memory(run.window(1), most=20)
    assert max(map(sum, without)) == 15 * MIB


def test_what_held_before_the_window_counts(run):
    times, samples = run.trace.devices[1].memory(Window(103, 104, "between samples"), most=10)
    assert times == [0, 1]
    assert samples == [(10 * MIB, 0, 0, 0, 2 * MIB)] * 2


def test_a_trace_of_the_simulated_device(tmp_path):
    with swapline.sim.settings(trace=True):
        on_device = torch.ones(1000).to("sim")
        product = (on_device * 3).cpu()
        swapline.sim.trace(tmp_path / "trace.json")
        expected = swapline.sim.memory()["peak_allocated_bytes"]
        assert product.sum() == 3000
        del on_device
    run = read_run(tmp_path)
    assert run.summary is None
    device = run.trace.devices[0]
    assert device.lane_names() == ["compute", "H2D", "D2H", "host"]
    assert [span.name for span in device.lanes["compute"]] == ["aten::mul"]
    assert max(map(sum, device.bytes_by_kind)) == expected


FAULTS = {
    "cut off": (json.dumps({"traceEvents": trace_events()})[:-40], "is cut off or no JSON"),
    "empty": ("", "is cut off or no JSON"),
    "a list": ("[]", "holds a list, no object"),
    "no events": ('{"events": []}', "has no list 'traceEvents'"),
    "no spans": ('{"traceEvents": []}', "holds no spans: tracing was off"),
    "unnamed lanes": (json.dumps({"traceEvents": trace_events()[9:]}), "trace of something else"),
    "of a profiler": (
        '{"traceEvents": [{"ph": "X", "pid": "cpu", "tid": 3, "ts": 1, "name": "aten::mm"}]}',
        "trace of something else",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_no_trace(tmp_path, fault):
    text, message = FAULTS[fault]
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=f"{path} .*{message}.*--profiling.enable-trace"):
        read_trace(path)


def test_a_binary_file_is_no_trace(tmp_path):
    (tmp_path / "trace.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ReportError, match="is no text"):
        read_trace(tmp_path / "trace.json")
