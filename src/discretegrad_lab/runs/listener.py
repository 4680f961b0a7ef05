"""What is told while runs are trained, and what became of them in the end."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..stack.config import Run

_log = logging.getLogger(__name__)
REASONS = ("budget", "failures")
"""Why training stops before its end, other than for a signal."""


class Listener:
    """What happens while runs are trained; this one does nothing.

    All calls come from the thread that trains, so they should not take long.
    """

    def planned(self, done: Sequence[Run], to_do: Mapping[Run, int]) -> None:
        """The stored runs have been looked at; each that is to do has so many epochs left, those of
        a search to the next rung."""

    def run_damaged(self, run: Run, reason: str) -> None:
        """A run is left alone."""

    def run_elsewhere(self, run: Run) -> None:
        """Another process has a run at the moment."""

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """A stack is about to train; ``epoch`` of its ``epochs`` are done."""

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """So many epochs are done; a metric has a number for each run of the stack."""

    def checkpointed(self, epoch: int, seconds: float) -> None:
        """Training waited so long until a checkpoint of this epoch was on its way."""

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """A stack has stopped, at its end or before."""


def _each(name: str) -> Callable[..., None]:
    """A method that calls the method of this name of every listener."""

    def tell(self: "Together", *arguments: Any) -> None:
        for listener in self.listeners:
            self.tell(listener, getattr(listener, name), arguments)

    return tell


class Together(Listener):
    """Tells several listeners; one that raises an error is told nothing more, and the others are.

    Args:
        listeners: Who is told.
        say: Is told once why a listener is left out; a warning in the log by default.
    """

    def __init__(self, *listeners: Listener, say: Callable[[str], object] = _log.warning) -> None:
        self.listeners = listeners
        self.problems: list[str] = []
        """Why listeners were left out."""
        self._say = say

    planned = _each("planned")
    run_damaged = _each("run_damaged")
    run_elsewhere = _each("run_elsewhere")
    stack_started = _each("stack_started")
    epoch_done = _each("epoch_done")
    checkpointed = _each("checkpointed")
    stack_finished = _each("stack_finished")

    def stack_again(self, *arguments: Any) -> None:
        """Tell who can tell stacks side by side apart; for others a stack has started."""
        for listener in self.listeners:
            again = getattr(listener, "stack_again", listener.stack_started)
            self.tell(listener, again, arguments)

    def tell(
        self, listener: Listener, method: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        """Call a method of a listener, and leave the listener out if that fails."""
        try:
            method(*arguments)
        # some libraries end the process when a terminal is gone
        except (Exception, SystemExit) as error:
            self.listeners = tuple(x for x in self.listeners if x is not listener)
            problem = (
                f"training goes on without {type(listener).__name__}, "
                f"got {type(error).__name__}: {error}"
            )
            self.problems.append(problem)
            with contextlib.suppress(Exception):
                self._say(problem)


@dataclass(frozen=True)
class Outcome:
    """What became of the runs, in their order: each is in one list, beside that of the failed."""

    finished: tuple[Run, ...] = ()
    """Trained to their end by this call, with finite losses."""
    failed: tuple[Run, ...] = ()
    """Those of ``finished`` that failed to train: they are no better than after their first epoch,
    see ``Metric.failed``."""
    diverged: tuple[Run, ...] = ()
    """Trained by this call until a loss was not finite; they count as done."""
    reached: tuple[Run, ...] = ()
    """Trained by this call until the epoch at which they were to be left."""
    dropped: tuple[Run, ...] = ()
    """Ended at a rung of a search, now or before, since others were better."""
    already: tuple[Run, ...] = ()
    """Done before, or meanwhile by another process."""
    stopped: tuple[Run, ...] = ()
    """Not done because of the budget or a signal, or since a search waits for other runs; the next
    start goes on with them."""
    elsewhere: tuple[Run, ...] = ()
    """Another process is training them."""
    damaged: Mapping[Run, str] = field(default_factory=dict)
    """Left alone, and why."""
    unrelated: tuple[str, ...] = ()
    """Why stored runs that were not asked for cannot be read."""
    stopped_by: str | None = None
    """``budget``, ``failures`` or the name of a signal."""
    abandoned: bool = False
    """An epoch was given up since the budget was over before it was done."""

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return not (self.stopped or self.elsewhere or self.damaged)
