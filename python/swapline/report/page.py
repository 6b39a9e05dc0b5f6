"""The page: one HTML file with the picture and the tables of one run or of two, side by side."""

import base64
import html
from collections.abc import Callable, Sequence

from swapline.report.run import Run

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #212529; max-width: 1180px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
img { width: 100%; } p.note { color: #6c757d; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #e9ecef; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #adb5bd; } tr.part td { font-weight: 600; padding-top: .8rem; }
.steps { max-height: 32rem; overflow: auto; }
"""


def bytes_text(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count:,.0f} B"


def ms_text(milliseconds: float) -> str:
    return f"{milliseconds:,.3f} ms"


def number_text(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"


def yes_text(value: bool) -> str:
    return "yes" if value else "no"


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


# (part, name, path into the summary, how it is written)
Row = tuple[str, str, str, Callable[..., str]]
ROWS: tuple[Row, ...] = (
    ("", "parameters", "model.num_parameters", number_text),
    ("", "layers", "model.num_layers", number_text),
    ("", "device memory", "device.capacity_bytes", bytes_text),
    ("", "peak allocated", "peak_allocated_bytes", bytes_text),
    ("", "peak reserved", "peak_reserved_bytes", bytes_text),
    ("at the peak", "parameters", "peak_bytes_by_kind.parameters", bytes_text),
    ("at the peak", "gradients", "peak_bytes_by_kind.gradients", bytes_text),
    ("at the peak", "optimizer states", "peak_bytes_by_kind.optimizer_states", bytes_text),
    ("at the peak", "layer inputs", "peak_bytes_by_kind.layer_inputs", bytes_text),
    ("at the peak", "other", "peak_bytes_by_kind.other", bytes_text),
    ("layer inputs", "swapped", "layer_input.enabled", yes_text),
    ("layer inputs", "swapped out a step", "layer_input.swapped_bytes_per_step", bytes_text),
    ("layer inputs", "most on the device beyond the running layer's own",
     "layer_input.peak_resident_inputs", number_text),
    ("layer inputs", "exposed a step", "layer_input.exposed_ms_per_step", ms_text),
    ("optimizer", "swapped", "optimizer.swap", yes_text),
    ("optimizer", "states", "optimizer.state_bytes", bytes_text),
    ("optimizer", "states on the device outside the step",
     "optimizer.state_bytes_on_device_outside_step", bytes_text),
    ("optimizer", "arena in the step", "optimizer.arena_bytes", bytes_text),
    ("optimizer", "chunks", "optimizer.num_chunks", number_text),
    ("optimizer", "step", "optimizer.step_ms", ms_text),
    ("optimizer", "swap in, alone", "optimizer.h2d_ms", ms_text),
    ("optimizer", "update, alone", "optimizer.update_ms", ms_text),
    ("optimizer", "swap out, alone", "optimizer.d2h_ms", ms_text),
    ("optimizer", "exposed", "optimizer.exposed_ms", ms_text),
    ("host", "pinned memory", "host.peak_pinned_bytes", bytes_text),
    ("host", "pinned allocations after the first step",
     "host.pinned_allocations_after_first_step", number_text),
    ("host", "races", "races", number_text),
)


def value_at(summary: dict, path: str):
    """None where the summary, of an older or newer version, has no such field."""
    value = summary
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def cells(texts: Sequence[str], tag: str = "td") -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


def written(value, how: Callable[..., str]) -> str:
    return "–" if value is None else how(value)


def change(values: Sequence) -> str:
    """How the first differs from the second, where both are amounts."""
    if len(values) != 2 or not all(isinstance(v, (int, float)) for v in values):
        return ""
    if any(isinstance(value, bool) for value in values):
        return ""
    new, old = values
    if new == old:
        return "equal"
    return "" if old == 0 else f"{(new - old) / old:+.1%}"


def summary_table(runs: Sequence[Run]) -> str:
    compared = len(runs) == 2
    heads = ["", *(run.name for run in runs), *(["difference"] if compared else [])]
    lines = [f"<table><thead><tr>{cells(heads, 'th')}</tr></thead><tbody>"]
    steps = [median([step["step_ms"] for step in run.summary["steps"]] or [0]) for run in runs]
    differences = [change(steps)] if compared else []
    lines.append(f"<tr>{cells(['step, median', *map(ms_text, steps), *differences])}</tr>")
    part = ""
    for of, name, path, how in ROWS:
        if of != part:
            part = of
            empty = [""] * (len(heads) - 1)
            lines.append(f'<tr class="part">{cells([part, *empty])}</tr>')
        values = [value_at(run.summary, path) for run in runs]
        differences = [change(values)] if compared else []
        lines.append(f"<tr>{cells([name, *(written(v, how) for v in values), *differences])}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


STEP_COLUMNS: tuple[tuple[str, str, Callable[..., str]], ...] = (
    ("loss", "loss", lambda loss: f"{loss:.5f}"),
    ("grad norm", "grad_norm", lambda norm: f"{norm:.4f}"),
    ("step", "step_ms", ms_text),
    ("exposed", "exposed_ms", ms_text),
    ("peak", "peak_allocated_bytes", bytes_text),
)


def steps_table(runs: Sequence[Run]) -> str:
    """A row for each step, the columns of both runs next to each other."""
    compared = len(runs) == 2
    heads = ["step"]
    heads += [f"{column}, {run.name}" if compared else column
              for column, _, _ in STEP_COLUMNS for run in runs]
    lines = [f'<div class="steps"><table><thead><tr>{cells(heads, "th")}</tr></thead><tbody>']
    numbers = sorted({step["step"] for run in runs for step in run.summary["steps"]})
    by_number = [{step["step"]: step for step in run.summary["steps"]} for run in runs]
    for number in numbers:
        texts = [str(number)]
        for _, key, how in STEP_COLUMNS:
            texts += [written(steps.get(number, {}).get(key), how) for steps in by_number]
        lines.append(f"<tr>{cells(texts)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def same_numbers(runs: Sequence[Run]) -> str:
    """Whether two runs had the same losses and gradient norms, to the last bit."""
    first, second = ([(step["loss"], step["grad_norm"]) for step in run.summary["steps"]]
                     for run in runs)
    if any(loss is None for loss, _ in first + second):
        return "A dry run has no losses."
    if first == second:
        return f"Losses and gradient norms of all {len(first)} steps are equal, to the last bit."
    common = min(len(first), len(second))
    differing = next((k for k in range(common) if first[k] != second[k]), None)
    if differing is None:
        return f"Equal, to the last bit, in the {common} steps that both runs have."
    return f"Losses or gradient norms differ from step {differing + 1} on."


def heading_of(run: Run) -> str:
    if run.summary is None:
        return f"{run.name}: {run.folder}"
    device, model = run.summary["device"], run.summary["model"]
    count = f"{device['count']} × " if device.get("count", 1) > 1 else ""
    return (
        f"{run.name}: {model['name']} {model['flavor']}, {count}{device['type']} "
        f"{device.get('preset') or ''}".rstrip()
    )


def page_of(runs: Sequence[Run], picture_svg: bytes | None, title: str) -> str:
    """The page's text. One file: the picture is inside it, and it asks for nothing else.

    `picture_svg`: none when no run has a trace. `runs`: one or two.
    """
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(heading_of(run))}</p>" for run in runs),
    ]
    if picture_svg is not None:
        data = base64.b64encode(picture_svg).decode()
        parts.append(f'<img alt="lanes above the memory curve" '
                     f'src="data:image/svg+xml;base64,{data}">')
    else:
        parts.append('<p class="note">No trace.json: train with --profiling.enable-trace.</p>')
    summarised = [run for run in runs if run.summary is not None]
    if summarised:
        parts += ["<h2>Summary</h2>", summary_table(summarised)]
        if any(run.summary["device"]["type"] == "sim" for run in summarised):
            parts.append('<p class="note">Times are virtual: from the cost model of the simulated '
                         "device. Optimizer times are of a step, median.</p>")
        parts.append("<h2>Steps</h2>")
        if len(summarised) == 2:
            parts.append(f"<p>{html.escape(same_numbers(summarised))}</p>")
        parts.append(steps_table(summarised))
    return "\n".join([*parts, "</body></html>\n"])
