"""Progress as JSON, one object in a line."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from ..runs.listener import Listener
from ..stack.config import Run


class JsonLines(Listener):
    """One JSON object for each event.

    Args:
        file: Where to write them.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._numbers: dict[tuple[Run, ...], int] = {}
        self._stack = self._steps = 0

    def event(self, kind: str, **fields: Any) -> None:
        """Write one."""
        print(to_json({"event": kind, **fields}), file=self._file, flush=True)

    def planned(self, done: Sequence[Run], to_do: Mapping[Run, int]) -> None:
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
        self.event(
            "stack_started",
            stack=self._stack,
            members=[{"run": run.identity, **run.document()} for run in runs],
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


def to_json(document: Any, indent: int | None = None) -> str:
    """Any plain data as JSON; what is not finite is null."""
    return json.dumps(_plain(document), allow_nan=False, indent=indent)


def _names(runs: Iterable[Run]) -> list[str]:
    return [run.identity for run in runs]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
