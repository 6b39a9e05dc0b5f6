"""A run's folder: its trace and its summary, either of which may be missing."""

import pathlib
from dataclasses import dataclass
from typing import Any

from swapline.report.trace import ReportError, Trace, Window, read_json, read_trace

WRITTEN_BY = "It is written by `swapline train` at its end, into --job.dump-folder."
NEEDED = ("device", "model", "steps", "peak_allocated_bytes", "host", "layer_input", "optimizer")
NEEDED_OF_STEP = ("step", "loss", "grad_norm", "step_ms", "exposed_ms", "peak_allocated_bytes")


@dataclass
class Run:
    folder: pathlib.Path
    name: str
    summary: dict[str, Any] | None
    trace: Trace | None

    def num_steps(self) -> int:
        return len(self.summary["steps"]) if self.summary else 0

    def window(self, step: int | None = None) -> Window:
        """The step's stretch of the trace. Without one: that of the last step that another one
        follows, as at the end of a run all memory is freed; the whole trace when steps cannot be
        told apart. Throws ReportError for a step that is not there."""
        steps = self.trace.steps(self.num_steps())
        if step is None:
            return steps[-2:][0] if steps else self.trace.whole()
        if not steps:
            raise ReportError(
                f"--step {step}: the steps of {self.trace.path} cannot be told apart (no "
                "summary.json beside it, or validation between steps). Use --window."
            )
        if not 1 <= step <= len(steps):
            raise ReportError(f"--step {step}: {self.folder} has steps 1 to {len(steps)}.")
        return steps[step - 1]


def read_summary(path: pathlib.Path) -> dict[str, Any]:
    """Throws ReportError for what is missing, cut off or no summary of a run."""
    summary = read_json(path, WRITTEN_BY)
    missing = [key for key in NEEDED if key not in summary]
    if not missing:
        missing = [
            f"steps[{index}].{key}"
            for index, step in enumerate(summary["steps"])
            for key in NEEDED_OF_STEP
            if key not in step
        ]
    if missing:
        raise ReportError(f"{path} is no summary of a run: it has no {missing[0]}. {WRITTEN_BY}")
    return summary


def read_run(folder: pathlib.Path, name: str | None = None) -> Run:
    """Reads what is there. Throws ReportError when nothing is, or when a file is not a run's."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ReportError(f"{folder} {what}: give a run's folder (--job.dump-folder).")
    summary, trace = folder / "summary.json", folder / "trace.json"
    if not summary.exists() and not trace.exists():
        raise ReportError(f"{folder} has neither summary.json nor trace.json: no run ended there.")
    return Run(
        folder,
        name or folder.resolve().name,
        read_summary(summary) if summary.exists() else None,
        read_trace(trace) if trace.exists() else None,
    )
