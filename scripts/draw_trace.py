"""Draws a trace of the simulated device: its lanes above the memory curve.

    python scripts/draw_trace.py outputs/trace.json docs/step.png --compare other/trace.json

Needs matplotlib. Shows the last steps of the run; with --compare the memory of a second run is
drawn behind it, from the same moment on.
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LANES = ["compute", "H2D", "D2H"]
COLOURS = {"compute": "#4c72b0", "H2D": "#55a868", "D2H": "#c44e52"}
KINDS = ["parameters", "gradients", "optimizer_states", "layer_inputs", "other"]
KIND_COLOURS = ["#8c8c8c", "#ccb974", "#c44e52", "#55a868", "#d9d9e8"]
MEBIBYTE = 1 << 20


class Trace:
    """One device's spans by lane and its memory samples, in ms from the start of the window."""

    def __init__(self, path: pathlib.Path, num_steps: int):
        events = json.loads(path.read_text())["traceEvents"]
        names = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == 0
        }
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
        marks = [span["ts"] for span in spans if span["name"] == "aten::embedding"]
        begin = marks[-num_steps]
        end = max(span["ts"] + span["dur"] for span in spans)
        self.length = (end - begin) / 1e3
        self.lanes = {lane: [] for lane in LANES}
        for span in spans:
            lane = names.get(span["tid"])
            if lane in self.lanes and span["ts"] >= begin:
                self.lanes[lane].append(((span["ts"] - begin) / 1e3, span["dur"] / 1e3))
        # After the last span the program only frees.
        samples = [e for e in events if e["ph"] == "C" and e["pid"] == 0 and begin <= e["ts"] < end]
        samples.sort(key=lambda event: event["ts"])
        self.times = [(event["ts"] - begin) / 1e3 for event in samples]
        self.bytes = {kind: [e["args"][kind] / MEBIBYTE for e in samples] for kind in KINDS}

    def total(self) -> list[float]:
        return [sum(values) for values in zip(*self.bytes.values())]


def draw(trace: Trace, compared: Trace | None, out: pathlib.Path) -> None:
    figure, (lanes, memory) = plt.subplots(
        2, 1, figsize=(10, 4.6), sharex=True, gridspec_kw={"height_ratios": [1, 1.7]}
    )
    for row, lane in enumerate(reversed(LANES)):
        lanes.broken_barh(trace.lanes[lane], (row - 0.4, 0.8), color=COLOURS[lane], linewidth=0)
    lanes.set_yticks(range(len(LANES)), list(reversed(LANES)))
    lanes.set_title("Copies run under compute; optimizer states and layer inputs leave the device",
                    fontsize=10)
    memory.stackplot(trace.times, *trace.bytes.values(), colors=KIND_COLOURS,
                     labels=[kind.replace("_", " ") for kind in KINDS], step="post", linewidth=0)
    if compared is not None:
        memory.step(compared.times, compared.total(), where="post", color="black", linewidth=0.8,
                    label="all, without swap")
    memory.set_ylabel("device memory, MiB")
    memory.set_xlabel("virtual time, ms")
    memory.set_xlim(0, trace.length)
    memory.set_ylim(bottom=0)
    memory.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8, ncol=6, frameon=False)
    for axes in (lanes, memory):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    compared = Trace(arguments.compare, arguments.steps) if arguments.compare else None
    draw(Trace(arguments.trace, arguments.steps), compared, arguments.out)


if __name__ == "__main__":
    main()
