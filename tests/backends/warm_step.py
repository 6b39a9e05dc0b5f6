"""Runs a training loop without swap and with it; compares bits and what was waited for."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator

import torch
from device import SLOW_WORDS, Device

# run(is_swapped): a generator that does one training step for each next() and yields tensors.
Run = Callable[[bool], Iterator[list[torch.Tensor]]]


@dataclasses.dataclass
class Row:
    tests: set[str] = dataclasses.field(default_factory=set)
    schedules: set[str] = dataclasses.field(default_factory=set)
    with_swap: dict[str, int] = dataclasses.field(default_factory=dict)
    without: dict[str, int] = dataclasses.field(default_factory=dict)


class WarmSteps:
    """`rows`: what was measured, by test file."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.rows: dict[str, Row] = {}
        self._plain: dict[str, tuple] = {}  # results of plain runs, by test and parameters

    def run(self, run: Run, is_swapped: bool, num_steps: int = 4):
        """What the steps yielded, on the host, and the slow calls of the last step: nobody waits
        between it and those before, and its results are read behind it."""
        results, slow_calls = [], dict.fromkeys(SLOW_WORDS, 0)
        steps = run(is_swapped)
        for step in range(num_steps):
            if step == num_steps - 1 and self._device.has_log:
                self._device.clear()
            results += next(steps)
            if step == num_steps - 1 and self._device.has_log:
                slow_calls = self._device.slow_calls()
        steps.close()
        self._device.synchronize()  # they may have been made on any stream
        return [each.cpu() for each in results], slow_calls

    def compare(
        self,
        run: Run,
        *,
        test,
        num_steps: int = 4,
        plain_waits: bool = False,
        may_wait: bool = False,
    ) -> None:
        """Same bits; no host wait, no blocking and no staged copy more than the plain step has, and
        that has none unless told so by `plain_waits`. `may_wait`: what is run waits by its nature,
        and is not counted."""
        case = test.originalname + str(sorted(_case(test).items()))
        if case not in self._plain:  # the same in each schedule
            self._plain[case] = self.run(run, False, num_steps)
        expected, without = self._plain[case]
        got, with_swap = self.run(run, True, num_steps)
        row = self.rows.setdefault(pathlib.Path(test.path).stem, Row())
        row.tests.add(case)
        row.schedules.add(test.callspec.params["schedule"])
        for word in () if may_wait else SLOW_WORDS:
            row.with_swap[word] = row.with_swap.get(word, 0) + with_swap[word]
            row.without[word] = row.without.get(word, 0) + without[word]
        assert len(got) == len(expected) > 0
        for i, (one, other) in enumerate(zip(got, expected)):
            assert torch.equal(one, other), f"tensor {i} of {len(got)} differs from the plain run's"
        if may_wait:
            return
        assert with_swap == without, f"with swap {with_swap}, without {without}"
        if not plain_waits:
            assert not any(without.values()), f"the plain step itself has {without}"

    def table(self) -> list[str]:
        """One line a file: sums over its tests and schedules of the slow calls in one warm step."""
        lines = [
            "Of one warm step with swap (without it), summed over cases and schedules:",
            f"{'':26}{'cases':>6}{'schedules':>11}{'host waits':>13}{'blocking':>11}{'staged':>9}",
        ]
        for name, row in sorted(self.rows.items()):
            figures = [
                f"{row.with_swap.get(word, 0)} ({row.without.get(word, 0)})" for word in SLOW_WORDS
            ]
            if not self._device.has_log:
                figures = ["not told"] * 3
            lines.append(
                f"{name.removeprefix('test_'):26}{len(row.tests):6}{len(row.schedules):11}"
                f"{figures[0]:>13}{figures[1]:>11}{figures[2]:>9}"
            )
        return lines


def _case(test) -> dict:
    params = {k: str(v) for k, v in test.callspec.params.items()}
    params.pop("schedule", None)
    return params
