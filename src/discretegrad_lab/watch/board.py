"""Progress as a live board at the bottom of a terminal, or as plain lines."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..stack.config import Run
from ..stack.lines import line
from .tally import Means, Tally
from .words import duration, many

_REFRESH = 2
"""Times a second that the board is drawn; more would take time from training."""
_EVERY = 15.0
"""Seconds between two plain lines."""


class _Speaker(Tally):
    """A tally that tells in words what it meets."""

    def say(self, text: str) -> None:
        """Show a line."""
        raise NotImplementedError

    def run_damaged(self, run: Run, reason: str) -> None:
        """Say why it is left alone."""
        super().run_damaged(run, reason)
        self.say(f"left alone: {reason}")


class Board(_Speaker):
    """A live board; a context manager.

    Args:
        console: The terminal.
        budget: Seconds until training stops by itself.
    """

    def __init__(self, console: Console, budget: float | None = None) -> None:
        super().__init__()
        self._console = console
        self._end = None if budget is None else time.monotonic() + budget
        self._live = Live(
            console=console,
            get_renderable=self.picture,
            refresh_per_second=_REFRESH,
            transient=True,
        )

    def __enter__(self) -> "Board":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Write a line above the board."""
        self._console.print(Text(text))

    def picture(self) -> RenderableType:
        """The board as it is now."""
        if not self.stack:
            return Text("looking at the stored runs and building the first stack")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=self.share, width=30), Text(self.progress()))
        parts: list[RenderableType] = [bar]
        means = self.means
        if means.values:
            parts.append(_table(means))
        if self._end is not None:
            rest = max(self._end - time.monotonic(), 0.0)
            parts.append(Text(f"the budget ends in {duration(rest)}", style="dim"))
        return Group(*parts)


def _table(means: Means) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    metrics = dict.fromkeys(name for values in means.values.values() for name in values)
    table.add_column("")
    for name in metrics:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("")
    for estimator, lost in means.diverged.items():
        values = means.values.get(estimator, {})
        table.add_row(
            Text(line(estimator).label, style=line(estimator).colour),
            *(f"{values[name]:.5g}" if name in values else "" for name in metrics),
            Text(f"{lost} diverged" if lost else "", style="red"),
        )
    return table


class Log(_Speaker):
    """A plain line now and then, for log files and pipes.

    Args:
        file: Where to write them.
    """

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        self._said = -math.inf
        """When the latest line about epochs was written."""

    def say(self, text: str) -> None:
        """Write it to the file."""
        print(text, file=self._file, flush=True)

    def planned(self, done: Sequence[Run], to_do: Mapping[Run, int]) -> None:
        """Say how many runs there are."""
        super().planned(done, to_do)
        self.say(f"{many(len(to_do), 'run')} to train, {len(done)} done before")

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
        if time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            self.say(f"{self.progress()}; {self.summary()}")

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Say where it ended."""
        super().stack_finished(runs, epoch)
        ended = "finished" if epoch == self.epochs else f"stopped at epoch {epoch} of {self.epochs}"
        self.say(f"{many(len(runs), 'member')} {ended}: {self.summary()}")
