"""Progress as plain lines."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from ..stack.config import Run
from .pipe import Pipe
from .tally import Tally
from .words import many

_EVERY = 15.0
"""Seconds between two lines."""


class Log(Tally):
    """A plain line now and then, for log files and pipes.

    Args:
        file: Where to write them.
        every: Seconds between two lines.
    """

    def __init__(self, file: TextIO, every: float | None = None) -> None:
        super().__init__()
        self._file, self._every = Pipe(file), _EVERY if every is None else every
        self._said = -math.inf
        """When the latest line about epochs was written."""

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def say(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._file, flush=True)

    def planned(self, done: Sequence[Run], to_do: Sequence[Run]) -> None:
        """Say how many runs there are."""
        super().planned(done, to_do)
        self.say(f"{many(len(to_do), 'run')} to train, {len(done)} done before")

    def run_damaged(self, run: Run, reason: str) -> None:
        """Say why it is left alone."""
        super().run_damaged(run, reason)
        self.say(f"left alone: {reason}")

    def run_elsewhere(self, run: Run) -> None:
        """Say so."""
        super().run_elsewhere(run)
        self.say(f"another process has {run.identity}")

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """Say what is trained now."""
        super().stack_started(runs, epoch, epochs, steps_per_epoch)
        going_on = f", going on after epoch {epoch}" if epoch else ""
        self.say(
            f"training {many(len(runs), 'member')} of {runs[0].task} for {epochs - epoch} epochs "
            f"of {steps_per_epoch} steps{going_on}"
        )
        self._said = time.monotonic()

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Say how it goes, if nothing has been said for a while."""
        super().epoch_done(epoch, metrics, seconds)
        if time.monotonic() - self._said >= self._every:
            self._said = time.monotonic()
            self.say(f"{self.progress()}; {self.summary()}")

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Say where it ended."""
        super().stack_finished(runs, epoch)
        ended = "finished" if epoch == self.epochs else f"stopped at epoch {epoch} of {self.epochs}"
        self.say(f"{many(len(runs), 'member')} {ended}: {self.summary()}")
