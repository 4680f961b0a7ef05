"""Checkpoints: how often to save, and writing them while training goes on."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import NamedTuple

from torch import Tensor

from ..stack.trainer import Stack

_COST = 0.02
"""Of the training time that checkpoints may take."""
_SELDOM = 30.0
"""Seconds between two checkpoints, however cheap they are."""
_SOON = 3.0
"""Seconds until the first checkpoint of a stack: less than this and one epoch is never lost, also
if the process is killed again and again."""
_COPY_COST = 0.005
"""Of the training time that copies in memory may take."""
_MARGIN = 1.2
"""How much longer than the longest epoch so far the next one may take, for the budget."""
# fsync mostly waits, and the journal takes what comes at once together
WRITERS = 8


class Copy(NamedTuple):
    """All members of a stack at the end of an epoch, in the memory of the CPU."""

    epoch: int
    states: list[dict[str, Tensor]]
    diverged: list[int | None]
    """The step at which each member diverged."""
    seconds: list[float]
    """How long each member has been trained."""


class Pace:
    """How long epochs and checkpoints of a stack take."""

    def __init__(self, members: int, size: int, seconds: float) -> None:
        """From the bytes of a member's state and how long it took to have it."""
        self._epochs: list[float] = []
        self._blocked = members * seconds
        """How long training waits for a checkpoint to be on its way."""
        # guesses for a slow disk, until there are measurements
        self._cost = self._blocked + members * (size / 5e8 + 0.002)
        self._wall = members * (size / 1e8 + 0.01)
        self._begun = False
        self.copy_seconds = members * seconds
        """How long it takes to have the states of all members."""

    def epoch(self, seconds: float) -> None:
        """An epoch took so long."""
        self._epochs.append(seconds)

    def copied(self, stack: Stack, seconds: list[float]) -> Copy:
        """A copy of a stack, whose members have been trained for so long."""
        began = time.perf_counter()
        steps = [None if step < 0 else step for step in stack.diverged.tolist()]
        copy = Copy(stack.epoch, stack.states(), steps, seconds)
        self.copy_seconds = time.perf_counter() - began
        return copy

    def waited(self, seconds: float) -> None:
        """Training waited so long for a checkpoint to be on its way."""
        self._blocked = seconds
        self._begun = True

    def written(self, wall: float, processor: float) -> None:
        """That checkpoint was written in the background."""
        self._wall = wall
        # what the other processors could not do meanwhile
        self._cost = self._blocked + processor / (os.cpu_count() or 1)

    def next_epoch(self) -> float:
        """Seconds that the next epoch and a checkpoint may take."""
        # the first one compiles
        known = self._epochs[1:] or self._epochs
        return _MARGIN * max(known, default=0.0) + self._blocked + 1.5 * self._wall

    def copy_interval(self) -> float:
        """Seconds between copies in memory that keep their cost low."""
        return self.copy_seconds / _COPY_COST

    def interval(self) -> float:
        """Seconds until the next checkpoint: soon for the first one, then what keeps them cheap."""
        return max(_SELDOM, self._cost / _COST) if self._begun else _SOON


class Writer:
    """Writes a round of checkpoints in the background, while training goes on."""

    def __enter__(self) -> "Writer":
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="checkpoint")
        self._round: list[Future[tuple[float, float]]] = []
        self._began = 0.0
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown()

    def start(self, jobs: Sequence[Callable[[], None]], pace: Pace) -> None:
        """Begin a round; the one before must be over."""
        assert not self._round
        self._began, self._pace = time.perf_counter(), pace
        self._round = [self._pool.submit(_timed, job) for job in jobs]

    def check(self) -> None:
        """Note the end of the present round, and raise its error as soon as there is one."""
        if all(job.done() for job in self._round) or any(
            job.done() and job.exception() for job in self._round
        ):
            self.wait()

    def settle(self) -> None:
        """Wait for the present round and keep its error for later."""
        wait_for(self._round)

    def wait(self) -> None:
        """Wait for the present round, if there is one."""
        wait_for(self._round)
        jobs, self._round = self._round, []
        times = [job.result() for job in jobs]
        if times:
            wall = max(end for end, _ in times) - self._began
            self._pace.written(wall, sum(used for _, used in times))


def _timed(job: Callable[[], None]) -> tuple[float, float]:
    began = time.thread_time()
    job()
    return time.perf_counter(), time.thread_time() - began
