"""Metrics as TensorBoard event files, one directory for each run."""

import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..runs.listener import Listener
from ..stack.config import Run

_EVERY = 10.0
"""Seconds between two rounds of writing."""


class EventFiles(Listener):
    """Writes what happens to ``<directory>/<estimator>-<hyper-parameters>-<identity>``.

    The horizontal axis is the step. Where a run goes on from a checkpoint, TensorBoard drops what
    it has of later steps.

    Args:
        directory: Where to put them; TensorBoard is to be started with it.

    Raises:
        ValueError: If the package tensorboard is missing, or the directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise ValueError(
                "expected the package tensorboard for event files, got none; install it with "
                '`pip install "discretegrad[tensorboard]"`, or leave out --tensorboard'
            ) from error
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # asks the file system, which knows more than the permissions say
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise ValueError(
                f"expected to write TensorBoard files in {directory}, got: "
                f"{error.strerror or error}; choose another directory with --tensorboard, or "
                "leave it out"
            ) from error
        self._events, self._summaries, self._writer = event_pb2, summary_pb2, RecordWriter
        self._directory = directory
        self._suffix = f"{time.time():.6f}".replace(".", "")
        self._begun: set[Run] = set()
        self._waiting: dict[Run, list[bytes]] = defaultdict(list)
        self._runs: tuple[Run, ...] = ()
        self._steps_per_epoch = 0
        self._written = time.monotonic()
        """When the files were last written."""

    def path(self, run: Run) -> Path:
        """The event file of a run."""
        name = f"{run.estimator}-tau{run.tau:g}-lr{run.learning_rate:g}-seed{run.seed}"
        # TensorBoard reads what has this in its name
        file = f"events.out.tfevents.{self._suffix}"
        return self._directory / run.task / f"{name}-{run.identity[:8]}" / file

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """Begin the files of runs that are new here."""
        self.stack_again(runs, epoch, epochs, steps_per_epoch)
        for run in runs:
            if run not in self._begun:
                self._begun.add(run)
                self._add(run, file_version="brain.Event:2")
            # drops what an earlier start wrote after its last checkpoint
            log = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(run, step=epoch * steps_per_epoch + 1, session_log=log)

    def stack_again(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """The next events are about this stack, one of several that are trained side by side."""
        self._runs, self._steps_per_epoch = runs, steps_per_epoch

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Note an epoch's metrics; those that are not known are left out."""
        step = epoch * self._steps_per_epoch
        for number, run in enumerate(self._runs):
            values = [
                self._summaries.Summary.Value(tag=name, simple_value=numbers[number])
                for name, numbers in metrics.items()
                if not math.isnan(numbers[number])
            ]
            if values:
                self._add(run, step=step, summary=self._summaries.Summary(value=values))
        if time.monotonic() - self._written > _EVERY:
            self.write()

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """Write what is left."""
        self.write()

    def write(self) -> None:
        """Append what is waiting to the files.

        Raises:
            OSError: If that is refused, with the directory in its message.
        """
        waiting = dict(self._waiting)
        self._waiting.clear()
        self._written = time.monotonic()
        try:
            for run, events in waiting.items():
                path = self.path(run)
                path.parent.mkdir(parents=True, exist_ok=True)
                # opened anew each time: a stack may have more members than open files are allowed
                with path.open("ab") as file:
                    writer = self._writer(file)
                    for event in events:
                        writer.write(event)
        except OSError as error:
            raise OSError(
                f"expected to write TensorBoard files in {self._directory}, got: "
                f"{error.strerror or error}"
            ) from error

    def _add(self, run: Run, **fields: object) -> None:
        event = self._events.Event(wall_time=time.time(), **fields)
        self._waiting[run].append(event.SerializeToString())
