"""A run's folder with known content: two devices, three steps of 10 ms, two micro-batches each."""

import json
import pathlib

STEP_MS = 10.0
NUM_STEPS = 3
PEAK_MIB = 50  # of device 0, for a moment in step 2
MIB = 1 << 20


def span(pid: int, tid: int, name: str, begin_ms: float, end_ms: float) -> dict:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name,
            "ts": begin_ms * 1e3, "dur": (end_ms - begin_ms) * 1e3}


def sample(pid: int, at_ms: float, mib: float) -> dict:
    kinds = {"other": int(mib * MIB), "parameters": 10 * MIB, "gradients": 0,
             "optimizer_states": 0, "layer_inputs": 0}
    return {"ph": "C", "pid": pid, "name": "memory", "ts": at_ms * 1e3, "args": kinds}


def lane(pid: int, tid: int, name: str) -> dict:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def trace_events() -> list[dict]:
    events = [lane(pid, tid, name) for pid in (0, 1)
              for tid, name in ((0, "host"), (10, "compute"), (100, "H2D"), (101, "D2H"))]
    events += [lane(0, 12, "side")]
    for step in range(NUM_STEPS):
        start = 100 + step * STEP_MS
        for half in (0.0, 5.0):
            events.append(span(0, 10, "aten::embedding", start + half, start + half + 1))
            events.append(span(0, 10, "aten::mm", start + half + 1, start + half + 4))
        events.append(span(0, 10, "aten::_fused_adamw_", start + 9, start + 9.5))
        events.append(span(0, 12, "aten::mul", start + 2, start + 3))
        events.append(span(0, 100, "copy in", start + 8, start + 11))  # into the next step
        events.append(span(1, 10, "aten::mm", start + 4, start + 5))
        events.append(span(1, 101, "copy out", start + 5, start + 6))
        events.append(span(0, 0, "wait", start, start + STEP_MS))
        events += [sample(0, start + k * 0.01, 5) for k in range(1000)]
        events.append(sample(1, start, 2))
    events.append(sample(0, 115.00001, PEAK_MIB - 10))
    events.append(sample(0, 115.00002, 5))
    return events


def summary(**changed) -> dict:
    steps = [
        {"step": number, "loss": 4.0 - number / 8, "grad_norm": 1.5, "step_ms": STEP_MS,
         "optimizer_ms": 1.0, "exposed_ms": 0.25, "peak_allocated_bytes": PEAK_MIB * MIB}
        for number in range(1, NUM_STEPS + 1)
    ]
    return {
        "device": {"type": "sim", "preset": "tiny", "count": 2, "capacity_bytes": 256 * MIB},
        "model": {"name": "llama3", "flavor": "<b>&", "num_parameters": 1234567, "num_layers": 6},
        "steps": steps,
        "peak_allocated_bytes": PEAK_MIB * MIB,
        "peak_bytes_by_kind": {"parameters": 10 * MIB},
        "host": {"peak_pinned_bytes": 64 * MIB},
        "layer_input": {"enabled": True, "exposed_ms_per_step": 0.125},
        "optimizer": {"swap": False, "step_ms": 1.0},
        "races": 0,
    } | changed


def write_run(folder: pathlib.Path, *, trace: bool = True, **changed) -> pathlib.Path:
    folder.mkdir()
    if trace:
        (folder / "trace.json").write_text(json.dumps({"traceEvents": trace_events()}))
    (folder / "summary.json").write_text(json.dumps(summary(**changed)))
    return folder
