"""What is told while runs are trained, and what became of them in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..stack.config import Run

REASONS = ("budget", "failures")
"""Why training stops before its end, other than for a signal."""


class Listener:
    """What happens while runs are trained; this one does nothing.

    All calls come from the thread that trains, so they should not take long.
    """

    def planned(self, done: Sequence[Run], to_do: Sequence[Run]) -> None:
        """The stored runs have been looked at."""

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


@dataclass(frozen=True)
class Outcome:
    """What became of the runs: each is in one of the lists, which keep the order of the runs."""

    finished: tuple[Run, ...] = ()
    """Trained to their end by this call, with finite losses."""
    diverged: tuple[Run, ...] = ()
    """Trained by this call until a loss was not finite; they count as done."""
    already: tuple[Run, ...] = ()
    """Done before, or meanwhile by another process."""
    stopped: tuple[Run, ...] = ()
    """Not done because of the budget or a signal; the next start goes on with them."""
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
