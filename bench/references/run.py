"""Swapline beside the originals and torch's own means, on one simulated device.

    python bench/references/run.py --torchtitan-npu PATH --torchtitan PATH --mindspeed PATH

Each path is a checkout (torchtitan-npu e5e82b87, torchtitan at the parent of 632f67f12, MindSpeed
028de58c). Packages are used when they are installed: megatron-core, trl, deepspeed. What cannot
run here is listed with its reason. Times are virtual. See docs/benchmarks.md.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
from types import ModuleType
from typing import Any

import table
import workloads
from systems import FILES, LAYER_INPUTS

ROW = "row: "
PATHS = ("torchtitan_npu", "torchtitan", "mindspeed")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in PATHS:
        parser.add_argument("--" + name.replace("_", "-"), metavar="PATH", help="a checkout")
    parser.add_argument("--only", metavar="NAMES", help="of " + ", ".join(FILES))
    parser.add_argument("--tensors", choices=workloads.OPTIMIZER_SIZES, default="75",
                        help="of the optimizer's workload: a model's 75, 64 of 1024 x 1024, 816 "
                        "of 30,900 elements [75]")
    parser.add_argument("--small", action="store_true", help="tiny workloads, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("--markdown", action="store_true", help="print tables for documents")
    parser.add_argument("--timeout", type=int, default=480, help="seconds for one system [480]")
    parser.add_argument("--in-process", action="store_true",
                        help="no process of its own for each system: for those that patch nothing")
    parser.add_argument("--measure", metavar="NAME", choices=FILES, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def chosen_files(only: str | None) -> list[str]:
    names = list(FILES) if only is None else only.split(",")
    unknown = [name for name in names if name not in FILES]
    if unknown:
        raise SystemExit(f"--only {unknown[0]}: there is {', '.join(FILES)}")
    return names


def system_of(name: str) -> ModuleType:
    return importlib.import_module(f"systems.{name}")


def measure(name: str, options: argparse.Namespace):
    """The rows of one system, one by one."""
    paths, small = paths_of(options), options.small
    system = system_of(name)
    if system.WORKLOAD == LAYER_INPUTS:
        size = workloads.SMALL_LAYERS if small else workloads.LayerSize()
        return workloads.measure_layers(system, system_of("recompute"), paths, size)
    size = workloads.SMALL_OPTIMIZER if small else workloads.OPTIMIZER_SIZES[options.tensors]
    return workloads.measure_optimizer(system, system_of("adamw"), paths, size)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def measure_apart(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own; rows that came before it failed or took too long are kept."""
    command = [sys.executable, __file__, "--measure", name, "--tensors", options.tensors]
    command += [f"--{key.replace('_', '-')}={value}" for key, value in paths_of(options).items()]
    command += ["--small"] if options.small else []
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=options.timeout
        )
        output, reason = done.stdout, None
        if done.returncode != 0:
            reason = "could not be run: " + last_line(done.stderr)
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode()
        reason = f"took more than {options.timeout} s"
    rows = [json.loads(line[len(ROW):]) for line in output.splitlines() if line.startswith(ROW)]
    return {"rows": rows} | ({"reason": reason, "failed": True} if reason else {})


def paths_of(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name) for name in PATHS if getattr(options, name)}


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    paths = paths_of(options)
    if options.measure:
        for row in measure(options.measure, options):
            print(ROW + json.dumps(row), flush=True)
        return 0
    results = []
    for name in chosen_files(options.only):
        system = system_of(name)
        reason = system.missing(paths)
        print(f"{system.NAME}: {reason or 'running'}", file=sys.stderr, flush=True)
        if reason:
            result = {"rows": [], "reason": reason}
        elif options.in_process:
            result = {"rows": list(measure(name, options))}
        else:
            result = measure_apart(name, options)
        results.append(
            {"system": name, "name": system.NAME, "workload": system.WORKLOAD,
             "note": getattr(system, "NOTE", None)} | result
        )
    print(table.tables(results, markdown=options.markdown))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(result.get("failed") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
