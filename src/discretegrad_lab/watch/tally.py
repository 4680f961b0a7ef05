"""What a user sees of training: a live board, plain lines where there is no terminal, or JSON."""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import TracebackType
from typing import Any, NamedTuple, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .config import Run
from .estimators import ESTIMATORS
from .execute import Listener

_LINES_EVERY = 15.0
"""Seconds between two plain lines."""
_REFRESH = 2
"""Times a second that the board is drawn; more would take time from training."""
_RECENT = 20
"""Epochs that the speed is measured over."""


class _Seen(NamedTuple):
    """What a stack has come to."""

    losses: Mapping[str, Mapping[str, float]] = {}
    diverged: Mapping[str, int] = {}


class _Epoch(NamedTuple):
    stack: int
    """Its number."""
    time: float
    """When it was told of."""
    steps: int
    seconds: float


class Tally(Listener):
    """Counts: runs, epochs of all runs together, speed, and the losses of the present stack.

    Stacks are told of one after the other; those that are trained side by side, on a cluster, take
    turns, see ``stack_again``. A board reads from another thread: what it goes through is never
    changed, but replaced.
    """

    def __init__(self) -> None:
        self.finished = 0
        """Runs done now."""
        self.done = 0
        """Epochs, of all runs together."""
        self.stack: tuple[Run, ...] = ()
        """The one that the last event was about."""
        self.epoch = self.epochs = 0
        """Of that stack."""
        self._left: dict[Run, int] = {}
        """Epochs to do."""
        self._steps_per_epoch = 0
        # the hash of a large stack takes milliseconds, so stacks are looked up only when told of
        self._numbers: dict[tuple[Run, ...], int] = {}
        self._number = 0
        """Of the present stack."""
        self._seen: dict[int, _Seen] = {}
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
    def seen(self) -> _Seen:
        """What the present stack has come to, as of now."""
        return self._seen.get(self._number, _Seen())

    @property
    def losses(self) -> Mapping[str, Mapping[str, float]]:
        """By estimator and metric: the last mean over the members that have a number."""
        return self.seen.losses

    @property
    def diverged(self) -> Mapping[str, int]:
        """Members of the stack by estimator."""
        return self.seen.diverged

    @property
    def run_steps_per_second(self) -> float:
        """Steps, times members, a second; lately, of all stacks that are trained side by side."""
        recent = self._recent
        if not recent:
            return 0.0
        first, last = recent[0], recent[-1]
        # epochs of a stack cannot overlap, though they may be told of at once
        busy: dict[int, float] = {}
        for one in recent:
            busy[one.stack] = busy.get(one.stack, 0.0) + one.seconds
        seconds = max(last.time - first.time + first.seconds, *busy.values())
        return sum(one.steps for one in recent) / seconds if seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """If all epochs take as long as those so far."""
        if not self.done:
            return None
        return (time.monotonic() - self._began) / self.done * self.left

    def planned(self, done: Sequence[Run], to_do: Sequence[Run]) -> None:
        """Count what there is to do."""
        self._left = {run: run.epochs for run in to_do}

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
        self._seen[self._number] = _Seen()

    def stack_again(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """What follows is about this stack, one of several that are trained side by side."""
        self.stack, self.epoch, self.epochs = runs, epoch, epochs
        self._number = self._numbers.setdefault(runs, len(self._numbers) + 1)
        self._steps_per_epoch = steps_per_epoch
        self._left |= dict.fromkeys(runs, epochs - epoch)

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Take in an epoch of the present stack."""
        members = len(self.stack)
        self.epoch = epoch
        self._left |= dict.fromkeys(self.stack, self.epochs - epoch)
        self.done += members
        steps = members * self._steps_per_epoch
        one = _Epoch(self._number, time.monotonic(), steps, seconds)
        self._recent = (*self._recent, one)[-_RECENT:]
        places: dict[str, list[int]] = {}
        for number, run in enumerate(self.stack):
            places.setdefault(run.estimator, []).append(number)
        found = {estimator: dict(means) for estimator, means in self.losses.items()}
        diverged = {}
        for estimator, numbers in places.items():
            for name, values in metrics.items():
                finite = [values[n] for n in numbers if math.isfinite(values[n])]
                if finite:
                    found.setdefault(estimator, {})[name] = fmean(finite)
            diverged[estimator] = sum(
                all(math.isnan(values[n]) for values in metrics.values()) for n in numbers
            )
        self._seen[self._number] = _Seen(found, diverged)

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Count the runs that are done."""
        if epoch == self.epochs:
            self.finished += len(runs)
            for run in runs:
                self._left.pop(run, None)


class _Pipe:
    """A stream that goes silent when its reader goes away: training must not end with `head`."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._open = file, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write, if somebody reads."""
        if self._open:
            try:
                self._file.write(text)
            except BrokenPipeError:
                self._silence()
        return len(text)

    def flush(self) -> None:
        """Pass on what was written, if somebody reads."""
        if self._open:
            try:
                self._file.flush()
            except BrokenPipeError:
                self._silence()

    def _silence(self) -> None:
        self._open = False
        # what is left in buffers has to go somewhere, or Python fails when it flushes them at exit;
        # streams in memory have no descriptor
        with contextlib.suppress(OSError):
            closed = os.fstat(self._file.fileno())
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # stdout and stderr are the same pipe after 2>&1
            for one in {self._file.fileno(), 1, 2}:
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(one), closed):
                        os.dup2(nowhere, one)
            os.close(nowhere)


class Lines(Tally):
    """A plain line now and then, for log files and pipes.

    Args:
        file: Where to write them.
        every: Seconds between two lines.
    """

    def __init__(self, file: TextIO, every: float = _LINES_EVERY) -> None:
        super().__init__()
        self._file, self._every = _Pipe(file), every
        self._last = -math.inf

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def say(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._file, flush=True)

    def planned(self, done: Sequence[Run], to_do: Sequence[Run]) -> None:
        """Say how many runs there are."""
        super().planned(done, to_do)
        self.say(f"{_count(len(to_do), 'run')} to train, {len(done)} done before")

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
            f"training {_count(len(runs), 'member')} of {runs[0].task} for {epochs - epoch} epochs "
            f"of {steps_per_epoch} steps{going_on}"
        )
        self._last = time.monotonic()

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Say how it goes, if nothing has been said for a while."""
        super().epoch_done(epoch, metrics, seconds)
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            self.say(f"{progress(self)}; {losses(self)}")

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Say where it ended."""
        super().stack_finished(runs, epoch)
        ended = "finished" if epoch == self.epochs else f"stopped at epoch {epoch} of {self.epochs}"
        self.say(f"{_count(len(runs), 'member')} {ended}: {losses(self)}")


class Board(Tally):
    """A live board at the bottom of a terminal; a context manager.

    Args:
        console: The terminal.
        budget: Seconds until training stops by itself.
    """

    def __init__(self, console: Console, budget: float | None = None) -> None:
        super().__init__()
        self._console = console
        # rich would end the process
        console.file = cast(TextIO, _Pipe(cast(TextIO, console.file)))
        self._end = None if budget is None else time.monotonic() + budget
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=_REFRESH,
            transient=True,
        )

    def __enter__(self) -> "Board":
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Write a line above the board."""
        self._console.print(Text(text))

    def run_damaged(self, run: Run, reason: str) -> None:
        """Say why it is left alone."""
        super().run_damaged(run, reason)
        self.say(f"left alone: {reason}")

    def render(self) -> RenderableType:
        """The board as it is now."""
        if not self.stack:
            return Text("looking at the stored runs and building the first stack")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=1.0, completed=self.share, width=30),
            Text(progress(self)),
        )
        rows: list[RenderableType] = [bar]
        seen = self.seen
        if seen.losses:
            rows.append(_losses_table(seen))
        if self._end is not None:
            rest = max(self._end - time.monotonic(), 0.0)
            rows.append(Text(f"the budget ends in {duration(rest)}", style="dim"))
        return Group(*rows)


class Json(Listener):
    """One JSON object for each event, one in a line.

    Args:
        file: Where to write them.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = _Pipe(file)
        self._numbers: dict[tuple[Run, ...], int] = {}
        self._stack = self._steps = 0

    def __enter__(self) -> "Json":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def say(self, text: str) -> None:
        """A sentence is an event too."""
        self.event("message", text=text)

    def event(self, kind: str, **fields: Any) -> None:
        """Write one; what is not finite is null."""
        text = json.dumps({"event": kind, **_plain(fields)}, allow_nan=False)
        print(text, file=self._file, flush=True)

    def planned(self, done: Sequence[Run], to_do: Sequence[Run]) -> None:
        """Which runs."""
        self.event("planned", done=_names(done), to_do=_names(to_do))

    def run_damaged(self, run: Run, reason: str) -> None:
        """Which run and why."""
        self.event("run_damaged", run=run.identity, reason=reason)

    def run_elsewhere(self, run: Run) -> None:
        """Which run."""
        self.event("run_elsewhere", run=run.identity)

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """The whole configuration of every member, in the order of later metrics."""
        self.stack_again(runs, epoch, epochs, steps_per_epoch)
        members = [{"run": run.identity, **run.document()} for run in runs]
        self.event(
            "stack_started",
            stack=self._stack,
            members=members,
            epoch=epoch,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
        )

    def stack_again(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """Later events carry the number of this stack."""
        self._stack = self._numbers.setdefault(runs, len(self._numbers) + 1)
        self._steps = len(runs) * steps_per_epoch

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Metrics with a number for each member."""
        self.event(
            "epoch_done",
            stack=self._stack,
            epoch=epoch,
            seconds=seconds,
            run_steps_per_second=self._steps / seconds if seconds else 0.0,
            metrics=metrics,
        )

    def checkpointed(self, epoch: int, seconds: float) -> None:
        """When, and how long training waited."""
        self.event("checkpointed", stack=self._stack, epoch=epoch, seconds=seconds)

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Which runs, and how far they are."""
        self.event("stack_finished", stack=self._stack, runs=_names(runs), epoch=epoch)


class Together(Listener):
    """Tells several listeners."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def planned(self, done: Sequence[Run], to_do: Sequence[Run]) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.planned(done, to_do)

    def run_damaged(self, run: Run, reason: str) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.run_damaged(run, reason)

    def run_elsewhere(self, run: Run) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.run_elsewhere(run)

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.stack_started(runs, epoch, epochs, steps_per_epoch)

    def stack_again(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """Pass it on; for those that do not know it, a stack has started."""
        for one in self._listeners:
            again = getattr(one, "stack_again", one.stack_started)
            again(runs, epoch, epochs, steps_per_epoch)

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.epoch_done(epoch, metrics, seconds)

    def checkpointed(self, epoch: int, seconds: float) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.checkpointed(epoch, seconds)

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.stack_finished(runs, epoch)


def progress(tally: Tally) -> str:
    """How far it is, how fast and how long it will take, in a line."""
    parts = [
        f"{tally.share:.0%}",
        f"{tally.finished} of {_count(tally.runs, 'run')} done",
        f"{_count(len(tally.stack), 'member')} at epoch {tally.epoch} of {tally.epochs}",
    ]
    if speed := tally.run_steps_per_second:
        parts.append(f"{speed:,.0f} run-steps/s")
    if (left := tally.seconds_left) is not None:
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def losses(tally: Tally) -> str:
    """The last losses by estimator, in a line."""
    parts = []
    seen = tally.seen
    for estimator in _estimators(seen):
        found = seen.losses.get(estimator, {})
        values = " ".join(f"{name} {value:.5g}" for name, value in found.items())
        lost = seen.diverged[estimator]
        diverged = f"{lost} diverged" if lost else ""
        parts.append(" ".join(filter(None, (ESTIMATORS[estimator].title, values, diverged))))
    return "; ".join(parts) or "no losses yet"


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("bytes", "kB", "MB"):
        # from here on three digits are 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def _losses_table(seen: _Seen) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    metrics = dict.fromkeys(name for found in seen.losses.values() for name in found)
    table.add_column("")
    for name in metrics:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("")
    for estimator in _estimators(seen):
        found = seen.losses.get(estimator, {})
        lost = seen.diverged[estimator]
        one = ESTIMATORS[estimator]
        table.add_row(
            Text(one.title, style=one.colour),
            *(f"{found[name]:.5g}" if name in found else "" for name in metrics),
            Text(f"{lost} diverged" if lost else "", style="red"),
        )
    return table


def _estimators(seen: _Seen) -> list[str]:
    return [name for name in ESTIMATORS if name in seen.diverged]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _names(runs: Sequence[Run]) -> list[str]:
    return [run.identity for run in runs]


def _plain(value: Any) -> Any:
    """Numbers that are not finite as None, which JSON has a word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
