"""A trace of the simulated device: spans by lane and memory by kind, of a window of time.

Times are ms of virtual time, memory is bytes.
"""

import bisect
import json
import pathlib
from dataclasses import dataclass, field

KINDS = ("parameters", "gradients", "optimizer_states", "layer_inputs", "other")
LANES = ("compute", "H2D", "D2H", "peer", "host")  # from the top
STEP_MARK = "aten::embedding"  # once for each micro-batch


class ReportError(ValueError):
    """What was found cannot be reported on; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Window:
    """A stretch of a trace, and what to call it."""

    begin_ms: float
    end_ms: float
    name: str

    @property
    def length_ms(self) -> float:
        return self.end_ms - self.begin_ms


@dataclass(frozen=True)
class Span:
    begin_ms: float
    end_ms: float
    name: str


@dataclass
class Device:
    """Spans of each lane, and memory samples, in the order of time."""

    lanes: dict[str, list[Span]] = field(default_factory=dict)
    times_ms: list[float] = field(default_factory=list)
    bytes_by_kind: list[tuple[int, ...]] = field(default_factory=list)  # as KINDS

    def lane_names(self) -> list[str]:
        """Those with spans: LANES first, each further stream after compute."""
        streams = sorted(name for name in self.lanes if name not in LANES)
        order = [LANES[0], *streams, *LANES[1:]]
        return [name for name in order if self.lanes.get(name)]

    def spans(self, lane: str, window: Window) -> list[Span]:
        """Those that reach into the window, cut to it, from its beginning on."""
        return [
            Span(
                max(span.begin_ms - window.begin_ms, 0.0),
                min(span.end_ms - window.begin_ms, window.length_ms),
                span.name,
            )
            for span in self.lanes.get(lane, [])
            if span.end_ms > window.begin_ms and span.begin_ms < window.end_ms
        ]

    def memory(self, window: Window, most: int) -> tuple[list[float], list[tuple[int, ...]]]:
        """At most `most` + 2 samples (times, bytes as KINDS). Of those that fall together the
        highest stays, so that no peak is lost."""
        first = max(bisect.bisect_right(self.times_ms, window.begin_ms) - 1, 0)
        last = bisect.bisect_left(self.times_ms, window.end_ms)
        highest: dict[int, int] = {}
        for index in range(first, last):
            at = max(self.times_ms[index] - window.begin_ms, 0.0)
            place = int(at / window.length_ms * most)
            known = highest.get(place)
            if known is None or sum(self.bytes_by_kind[index]) >= sum(self.bytes_by_kind[known]):
                highest[place] = index
        kept = [highest[place] for place in sorted(highest)]
        times = [max(self.times_ms[index] - window.begin_ms, 0.0) for index in kept]
        bytes_by_kind = [self.bytes_by_kind[index] for index in kept]
        if kept:  # what holds at the window's end
            times.append(window.length_ms)
            bytes_by_kind.append(self.bytes_by_kind[last - 1])
        return times, bytes_by_kind


@dataclass
class Trace:
    """What a trace file holds, by device index."""

    path: pathlib.Path
    devices: dict[int, Device]

    def whole(self) -> Window:
        spans = [span for device in self.devices.values() for lane in device.lanes.values()
                 for span in lane]
        return Window(
            min(span.begin_ms for span in spans), max(span.end_ms for span in spans), "whole run"
        )

    def steps(self, num_steps: int) -> list[Window]:
        """One for each step of the run, from its first embedding to the next one's; empty when
        the marks do not divide evenly (validation in between, a model without embedding)."""
        marks: list[float] = []
        for _, device in sorted(self.devices.items()):
            marks = [s.begin_ms for s in device.lanes.get("compute", []) if s.name == STEP_MARK]
            if marks:
                break
        if num_steps <= 0 or not marks or len(marks) % num_steps != 0:
            return []
        begins = marks[:: len(marks) // num_steps]
        ends = [*begins[1:], self.whole().end_ms]
        return [
            Window(begin, end, f"step {number}")
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True), start=1)
        ]


def read_json(path: pathlib.Path, written_by: str) -> dict:
    """A JSON object from a file. Throws ReportError naming the file, what is wrong with it, and
    what writes it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}. {written_by}") from None
    except UnicodeDecodeError:
        raise ReportError(f"{path} is no text. {written_by}") from None
    except json.JSONDecodeError as error:
        raise ReportError(
            f"{path} is cut off or no JSON: {error.msg} in line {error.lineno}. {written_by}"
        ) from None
    if not isinstance(content, dict):
        raise ReportError(f"{path} holds a {type(content).__name__}, no object. {written_by}")
    return content


WRITTEN_BY = (
    "It is written by `swapline train --profiling.enable-trace` and by swapline.sim.trace()."
)


def read_trace(path: pathlib.Path) -> Trace:
    """Throws ReportError for what is missing, cut off or no trace of the simulated device."""
    events = read_json(path, WRITTEN_BY).get("traceEvents")
    if not isinstance(events, list):
        raise ReportError(f"{path} has no list 'traceEvents'. {WRITTEN_BY}")
    devices: dict[int, Device] = {}
    try:
        names = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        for event in events:
            if event["ph"] == "X":
                begin = event["ts"] / 1e3
                device = devices.setdefault(event["pid"], Device())
                lane = device.lanes.setdefault(names[event["pid"], event["tid"]], [])
                lane.append(Span(begin, begin + event["dur"] / 1e3, event["name"]))
        samples = [event for event in events if event["ph"] == "C" and event["name"] == "memory"]
        for event in sorted(samples, key=lambda event: event["ts"]):
            device = devices.setdefault(event["pid"], Device())
            device.times_ms.append(event["ts"] / 1e3)
            device.bytes_by_kind.append(tuple(event["args"][kind] for kind in KINDS))
    except (KeyError, TypeError) as error:
        raise ReportError(
            f"{path} is a trace of something else: no {error} where the simulated device writes "
            f"one. {WRITTEN_BY}"
        ) from None
    if not any(device.lanes for device in devices.values()):
        raise ReportError(f"{path} holds no spans: tracing was off. {WRITTEN_BY}")
    for device in devices.values():
        for spans in device.lanes.values():
            spans.sort(key=lambda span: span.begin_ms)
    return Trace(path, dict(sorted(devices.items())))
