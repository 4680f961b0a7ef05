"""Counts of what has been trained and what is left, which boards and lines show."""

import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from ..runs.listener import Listener
from ..stack.config import Run
from ..stack.lines import line
from ..tasks import tasks
from .words import duration, many

_RECENT = 20
"""Epochs that the speed is measured over."""


class Means(NamedTuple):
    """What a stack has come to, by estimator."""

    values: Mapping[str, Mapping[str, float]] = {}
    """For each metric its latest mean over the members that have a number."""
    diverged: Mapping[str, int] = {}
    """How many members have no number any more."""


class _Epoch(NamedTuple):
    """An epoch of a stack."""

    stack: int
    """The number of the stack."""
    time: float
    """When the tally was told of it."""
    steps: int
    """Of all members together."""
    seconds: float
    """How long it took."""


class Tally(Listener):
    """Counts runs, epochs of all runs together, speed, and the means of the present stack.

    Stacks are told of one after the other; those that are trained side by side, on a cluster, take
    turns, see ``stack_again``. A board reads from another thread: what it goes through is never
    changed, but replaced.
    """

    def __init__(self) -> None:
        self.finished = 0
        """Runs that came as far as they were to, since the latest plan."""
        self.done = 0
        """Epochs trained in this session, of all runs together."""
        self.stack: tuple[Run, ...] = ()
        """The stack that the latest event was about."""
        self.epoch = self.epochs = 0
        """How many epochs that stack has done, and how many it will have."""
        self._left: dict[Run, int] = {}
        """Epochs that each run has to do."""
        self._steps_per_epoch = 0
        self._unshown: frozenset[str] = frozenset()
        # the hash of a large stack takes milliseconds, so stacks are looked up only when told of
        self._numbers: dict[tuple[Run, ...], int] = {}
        self._number = 0
        """The number of the present stack."""
        self._means: dict[int, Means] = {}
        self._began = 0.0
        self._recent: tuple[_Epoch, ...] = ()

    @property
    def runs(self) -> int:
        """Done and to do."""
        return self.finished + len(self._left)

    @property
    def left(self) -> int:
        """Epochs to do, of all runs together."""
        return sum(self._left.values())

    @property
    def share(self) -> float:
        """Of the epochs, how many are done."""
        return self.done / (self.done + self.left) if self.done else 0.0

    @property
    def means(self) -> Means:
        """What the present stack has come to, as of now."""
        return self._means.get(self._number, Means())

    @property
    def run_steps_per_second(self) -> float:
        """Steps times members a second, of all stacks together, over the latest epochs."""
        recent = self._recent
        if not recent:
            return 0.0
        first, last = recent[0], recent[-1]
        # epochs of a stack cannot overlap, though they may be told of at once
        busy: dict[int, float] = {}
        for epoch in recent:
            busy[epoch.stack] = busy.get(epoch.stack, 0.0) + epoch.seconds
        seconds = max(last.time - first.time + first.seconds, *busy.values())
        return sum(epoch.steps for epoch in recent) / seconds if seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes if all epochs take as long as those so far."""
        if not self.done:
            return None
        return (time.monotonic() - self._began) / self.done * self.left

    def planned(self, done: Sequence[Run], to_do: Mapping[Run, int]) -> None:
        """Count what there is to do."""
        self.finished = 0
        self._left = dict(to_do)

    def run_damaged(self, run: Run, reason: str) -> None:
        """One run less, if it was counted."""
        self._left.pop(run, None)

    def run_elsewhere(self, run: Run) -> None:
        """One run less, for the present."""
        self._left.pop(run, None)

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """Take in how far the runs are."""
        self._began = self._began or time.monotonic()
        self._recent = ()
        self.stack_again(runs, epoch, epochs, steps_per_epoch)
        self._means[self._number] = Means()

    def stack_again(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """The next events are about this stack, one of several that are trained side by side."""
        self.stack, self.epoch, self.epochs = runs, epoch, epochs
        self._number = self._numbers.setdefault(runs, len(self._numbers) + 1)
        self._steps_per_epoch = steps_per_epoch
        known = tasks().get(runs[0].task)
        self._unshown = known.unshown if known else frozenset()
        self._left |= dict.fromkeys(runs, epochs - epoch)

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Take in an epoch of the present stack."""
        self.epoch = epoch
        self._left |= dict.fromkeys(self.stack, self.epochs - epoch)
        self.done += len(self.stack)
        steps = len(self.stack) * self._steps_per_epoch
        done = _Epoch(self._number, time.monotonic(), steps, seconds)
        self._recent = (*self._recent, done)[-_RECENT:]
        places: dict[str, list[int]] = {}
        for number, run in enumerate(self.stack):
            places.setdefault(run.estimator, []).append(number)
        means = {estimator: dict(old) for estimator, old in self.means.values.items()}
        diverged = {}
        for estimator, numbers in places.items():
            for name, values in metrics.items():
                if name in self._unshown:
                    continue
                finite = [values[n] for n in numbers if math.isfinite(values[n])]
                if finite:
                    means.setdefault(estimator, {})[name] = fmean(finite)
            diverged[estimator] = sum(
                all(math.isnan(values[n]) for values in metrics.values()) for n in numbers
            )
        self._means[self._number] = Means(means, diverged)

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Count the runs that are done."""
        if epoch == self.epochs:
            self.finished += len(runs)
            for run in runs:
                self._left.pop(run, None)

    def progress(self) -> str:
        """How far it is, how fast and how long it will take, in a line."""
        parts = [
            f"{self.share:.0%}",
            f"{self.finished} of {many(self.runs, 'run')} done",
            f"{many(len(self.stack), 'member')} at epoch {self.epoch} of {self.epochs}",
        ]
        if speed := self.run_steps_per_second:
            parts.append(f"{speed:,.0f} run-steps/s")
        if (left := self.seconds_left) is not None:
            parts.append(f"{duration(left)} left")
        return ", ".join(parts)

    def summary(self) -> str:
        """The latest means by estimator, in a line."""
        parts = []
        means = self.means
        for estimator, lost in means.diverged.items():
            values = means.values.get(estimator, {})
            texts = [line(estimator).label, *(f"{name} {x:.5g}" for name, x in values.items())]
            parts.append(" ".join([*texts, f"{lost} diverged"] if lost else texts))
        return "; ".join(parts) or "no numbers yet"
