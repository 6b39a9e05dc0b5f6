"""The picture: lanes above the memory curve, one column a run, one pair of panels a device."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swapline.report.run import Run
from swapline.report.trace import KINDS, ReportError, Span, Window

# What never moves is grey; what Swapline moves has colour.
KIND_COLOURS = {
    "parameters": "#6f7b88",
    "gradients": "#b4bcc6",
    "optimizer_states": "#d1495b",
    "layer_inputs": "#edae49",
    "other": "#e9ecef",
}
COMPUTE, UPDATE, LAUNCH, WAIT = "#33658a", "#86bbd8", "#9aa0a6", "#e3e5e8"
LANE_COLOURS = {"compute": COMPUTE, "H2D": "#2a9d8f", "D2H": "#e76f51", "peer": "#8d6cab"}
MOST_SAMPLES = 1600  # of a memory curve
FINEST = 1 / 10000  # of the window: gaps that no eye tells from none
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


@dataclass(frozen=True)
class Panel:
    """One column of the picture: a run, the stretch of it that is shown, and its devices."""

    run: Run
    window: Window
    devices: list[int]


def load_matplotlib():
    """Throws ReportError that says how to install it."""
    try:
        import matplotlib.figure
    except ImportError:
        raise ReportError(
            'drawing needs matplotlib: pip install matplotlib, or "swapline[report]".'
        ) from None
    return matplotlib


LEGEND = ("compute", "optimizer update", "host launches", "host waits",
          *(kind.replace("_", " ") for kind in KINDS))


def unit_for(most_bytes: float) -> tuple[str, int]:
    """The largest unit of which `most_bytes` are at least two."""
    return next((unit for unit in UNITS if most_bytes >= 2 * unit[1]), UNITS[-1])


def is_update(name: str) -> bool:
    return "adam" in name


def bars(spans: Iterable[Span], finest_ms: float) -> list[tuple[float, float]]:
    """(begin, length) of spans; those that no eye can tell apart become one."""
    merged: list[list[float]] = []
    for span in sorted(spans, key=lambda span: span.begin_ms):
        if merged and span.begin_ms - merged[-1][1] < finest_ms:
            merged[-1][1] = max(merged[-1][1], span.end_ms)
        else:
            merged.append([span.begin_ms, span.end_ms])
    return [(begin, end - begin) for begin, end in merged]


def lane_parts(lane: str) -> list[tuple[str, str, object]]:
    """(label, colour, whether a span belongs to it) for what a lane tells apart."""
    if lane == "host":
        return [
            ("host waits", WAIT, lambda span: span.name == "wait"),
            ("host launches", LAUNCH, lambda span: span.name != "wait"),
        ]
    if lane in LANE_COLOURS and lane != "compute":
        return [(f"copy {lane}", LANE_COLOURS[lane], lambda span: True)]
    return [
        ("compute", COMPUTE, lambda span: not is_update(span.name)),
        ("optimizer update", UPDATE, lambda span: is_update(span.name)),
    ]


def draw_lanes(axes, panel: Panel, device: int, labels: dict[str, object]) -> None:
    traced = panel.run.trace.devices[device]
    lanes = traced.lane_names()[::-1]
    for row, lane in enumerate(lanes):
        spans = traced.spans(lane, panel.window)
        for label, colour, belongs in lane_parts(lane):
            chosen = bars(filter(belongs, spans), panel.window.length_ms * FINEST)
            if chosen:
                drawn = axes.broken_barh(
                    chosen, (row - 0.38, 0.76), color=colour, linewidth=0, snap=False
                )
                if lane in ("compute", "host"):
                    labels.setdefault(label, drawn)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(-0.6, len(lanes) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def draw_memory(axes, panel: Panel, device: int, unit: int, labels: dict[str, object]) -> None:
    times, samples = panel.run.trace.devices[device].memory(panel.window, MOST_SAMPLES)
    if not samples:
        axes.text(0.5, 0.5, "no memory samples", ha="center", transform=axes.transAxes)
        return
    curves = [[sample[kind] / unit for sample in samples] for kind in range(len(KINDS))]
    layers = axes.stackplot(
        times, *curves, colors=list(KIND_COLOURS.values()), step="post", linewidth=0
    )
    for kind, layer in zip(KINDS, layers, strict=True):
        labels.setdefault(kind.replace("_", " "), layer)
    total = [sum(sample) / unit for sample in samples]
    axes.step(times, total, where="post", color="#495057", linewidth=0.6)


def draw_peak(axes, panel: Panel, device: int, unit_name: str, unit: int) -> None:
    """A line at the window's highest point, with its figure."""
    _, samples = panel.run.trace.devices[device].memory(panel.window, MOST_SAMPLES)
    if not samples:
        return
    peak = max(map(sum, samples)) / unit
    axes.axhline(peak, color="#495057", linewidth=0.7, linestyle=(0, (4, 3)))
    axes.annotate(
        f"peak {peak:,.1f} {unit_name}",
        (0, peak), xycoords=("axes fraction", "data"),
        xytext=(4, 3), textcoords="offset points", fontsize=8, color="#343a40",
    )


def draw_other_run(axes, panel: Panel, other: Panel, unit: int, labels: dict[str, object]) -> None:
    """The whole memory of another run's window behind this one's, from the same moment on."""
    device = other.devices[0]
    times, samples = other.run.trace.devices[device].memory(other.window, MOST_SAMPLES)
    total = [sum(sample) / unit for sample in samples]
    (line,) = axes.step(times, total, where="post", color="black", linewidth=0.9)
    labels[f"all, {other.run.name}"] = line
    axes.plot([times[-1]], [total[-1]], "o", color="black", markersize=3)


def highest(panels: Sequence[Panel]) -> int:
    return max(
        (
            sum(sample)
            for panel in panels
            for device in panel.devices
            for sample in panel.run.trace.devices[device].memory(panel.window, MOST_SAMPLES)[1]
        ),
        default=1,
    )


def draw(
    panels: Sequence[Panel],
    *,
    title: str | None = None,
    behind: Panel | None = None,
    width: float = 11.0,
):
    """A matplotlib figure, `width` inches wide.

    Columns are as wide as their windows are long, so that a millimetre is the same time in all,
    and share the scale of memory. `behind`: a run whose memory is a line in the first column.
    Throws ReportError when matplotlib is missing or a device is not in a trace.
    """
    matplotlib = load_matplotlib()
    for panel in panels:
        for device in panel.devices:
            if device not in panel.run.trace.devices:
                known = ", ".join(map(str, panel.run.trace.devices))
                raise ReportError(f"{panel.run.trace.path} has no device {device}: it has {known}.")
    num_rows = max(len(panel.devices) for panel in panels)
    most = highest([*panels, *([behind] if behind else [])])
    unit_name, unit = unit_for(most)
    most_lanes = max(
        len(panel.run.trace.devices[device].lane_names())
        for panel in panels for device in panel.devices
    )
    lanes_height, memory_height = 0.26 * most_lanes, 2.0 if num_rows == 1 else 1.3
    height = num_rows * (lanes_height + memory_height + 0.25) + 1.5
    figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
    grid = figure.add_gridspec(
        2 * num_rows, len(panels),
        height_ratios=[lanes_height, memory_height] * num_rows,
        width_ratios=[panel.window.length_ms for panel in panels],
    )
    labels: dict[str, object] = {}
    for column, panel in enumerate(panels):
        for row, device in enumerate(panel.devices):
            lanes = figure.add_subplot(grid[2 * row, column])
            memory = figure.add_subplot(grid[2 * row + 1, column], sharex=lanes)
            draw_lanes(lanes, panel, device, labels)
            draw_memory(memory, panel, device, unit, labels)
            if behind is not None and column == 0 and row == 0:
                draw_other_run(memory, panel, behind, unit, labels)
            else:
                draw_peak(memory, panel, device, unit_name, unit)
            heading = panel.run.name if len(panels) > 1 else ""
            if num_rows > 1:
                heading = f"{heading}, device {device}" if heading else f"device {device}"
            if heading:
                lanes.set_title(heading, fontsize=10, loc="left", fontweight="bold")
            finish_memory_axes(memory, panel, most / unit, column == 0, unit_name)
            if row == num_rows - 1 or device == panel.devices[-1]:
                memory.set_xlabel(f"{panel.window.name}: virtual time, ms", fontsize=9)
            for axes in (lanes, memory):
                axes.spines[["top", "right"]].set_visible(False)
                axes.tick_params(labelsize=9)
    if title:
        figure.suptitle(title, fontsize=11.5, fontweight="bold")
    names = sorted(labels, key=lambda name: LEGEND.index(name) if name in LEGEND else len(LEGEND))
    figure.legend(
        [labels[name] for name in names], names, loc="outside lower center", ncols=len(names),
        fontsize=8.5, frameon=False, handlelength=1.4, columnspacing=1.4,
    )
    return figure


def finish_memory_axes(axes, panel: Panel, most: float, first: bool, unit_name: str) -> None:
    axes.set_xlim(0, panel.window.length_ms)
    axes.set_ylim(0, most * 1.12)
    axes.margins(x=0)
    axes.set_axisbelow(False)
    axes.grid(axis="y", color="#ced4da", linewidth=0.4)
    if first:
        axes.set_ylabel(f"device memory, {unit_name}", fontsize=9)
    else:
        axes.tick_params(axis="y", labelleft=False)


def image_of(figure, kind: str, dots_per_inch: int = 110) -> bytes:
    """A figure as "png" or "svg": the same bytes for the same figure, whenever it is drawn."""
    import matplotlib

    into = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "swapline"}):
        figure.savefig(into, format=kind, dpi=dots_per_inch, metadata=metadata)
    return into.getvalue()
