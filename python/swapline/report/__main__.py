"""python -m swapline.report FOLDER [FOLDER]: report.png, report.svg and report.html."""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from swapline.report.page import page_of
from swapline.report.picture import Panel, draw, image_of
from swapline.report.run import Run, read_run
from swapline.report.trace import ReportError, Window

DESCRIPTION = """Draws a run: the lanes of each device (compute, copies both ways, between devices,
host) above its memory by kind. Two folders: two runs side by side, in the same scales.
A run's folder holds what `swapline train --profiling.enable-trace` or swapline.sim.trace() wrote:
trace.json, and of the first summary.json too."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m swapline.report", description=DESCRIPTION)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="FOLDER",
                        help="of a run (--job.dump-folder); at most two")
    parser.add_argument("--out", type=pathlib.Path, help="where to write [the first folder]")
    parser.add_argument("--names", help="what to call the runs, comma-separated [the folders']")
    parser.add_argument("--title", help="above the picture")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--step", type=int, metavar="N",
                       help="show step N, from 1 [the last but one]")
    shown.add_argument("--window", metavar="BEGIN:END", help="show these ms of the trace")
    parser.add_argument("--devices", metavar="0,1", help="show these only [all]")
    parser.add_argument("--overlay", action="store_true",
                        help="two folders: the second one's memory as a line behind the first's")
    chosen = parser.parse_args(arguments)
    if len(chosen.folders) > 2:
        parser.error(f"{len(chosen.folders)} folders: at most two can stand side by side")
    if chosen.overlay and len(chosen.folders) != 2:
        parser.error("--overlay needs two folders")
    return chosen


def names_of(chosen: argparse.Namespace) -> list[str | None]:
    if chosen.names is None:
        return [None] * len(chosen.folders)
    names = chosen.names.split(",")
    if len(names) != len(chosen.folders):
        raise ReportError(f"--names has {len(names)} names for {len(chosen.folders)} folders.")
    return names


def window_of(run: Run, chosen: argparse.Namespace) -> Window:
    if chosen.window is None:
        return run.window(chosen.step)
    try:
        begin, end = map(float, chosen.window.split(":"))
    except ValueError:
        raise ReportError(f"--window {chosen.window}: give two numbers, as 10.5:20") from None
    whole = run.trace.whole()
    if not whole.begin_ms <= begin < end <= whole.end_ms:
        raise ReportError(
            f"--window {chosen.window}: {run.trace.path} goes from {whole.begin_ms:.3f} to "
            f"{whole.end_ms:.3f} ms."
        )
    return Window(begin, end, f"from {begin:g} ms on")


def devices_of(run: Run, chosen: argparse.Namespace) -> list[int]:
    if chosen.devices is None:
        return [index for index, device in run.trace.devices.items() if device.lanes]
    try:
        return [int(index) for index in chosen.devices.split(",")]
    except ValueError:
        raise ReportError(f"--devices {chosen.devices}: give indices, as 0,1") from None


def write_report(chosen: argparse.Namespace) -> list[pathlib.Path]:
    """Reads and draws everything before it writes the first file."""
    runs = [read_run(*pair) for pair in zip(chosen.folders, names_of(chosen), strict=True)]
    panels = [
        Panel(run, window_of(run, chosen), devices_of(run, chosen)) for run in runs if run.trace
    ]
    content: dict[str, bytes] = {}
    if panels:
        behind = panels.pop() if chosen.overlay and len(panels) == 2 else None
        figure = draw(panels, title=chosen.title, behind=behind)
        content = {f"report.{kind}": image_of(figure, kind) for kind in ("png", "svg")}
    title = chosen.title or " and ".join(run.name for run in runs)
    content["report.html"] = page_of(runs, content.get("report.svg"), title).encode()
    out = chosen.out or chosen.folders[0]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            (out / name).write_bytes(data)
    except OSError as error:
        raise ReportError(f"--out {out} cannot be written: {error.strerror}.") from None
    return [out / name for name in content]


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        written = write_report(parsed(arguments))
    except ReportError as error:
        print(f"swapline.report: {error}", file=sys.stderr)
        return 1
    print("wrote " + ", ".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
