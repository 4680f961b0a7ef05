"""The documents of a run, read from bytes: every field has its type and its range, or is damage."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from ..stack.config import VERSION, Run
from ..tasks import UnknownTask, load_run
from ..tasks.evidence import PROVENANCE
from .disk import DamagedRun, NewerStore, read
from .files import dump, is_name, is_whole, parse

Metrics = list[dict[str, float]]
"""A row for each epoch, which is the entry ``epoch``."""
Environment = list[dict[str, Any]]
"""An entry for each start of a run, see ``discretegrad_lab.environment``."""


State = Literal["new", "started", "finished", "diverged", "damaged"]


@dataclass(frozen=True)
class Status:
    """How far a run has come."""

    state: State
    """Finished and diverged runs are done: nothing changes them any more."""
    epoch: int = 0
    seconds: float = 0.0
    """Of training so far, all members of its stacks together."""
    diverged_step: int | None = None
    """The first step, counted from 1, whose loss was not finite."""
    reason: str = ""
    """Why it is damaged."""

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        return self.state in ("finished", "diverged")


def status_of(directory: Path, run: Run, document: Mapping[str, Any]) -> Status:
    """The status that a document says, if a run like this can have it."""
    status = Status(
        document["state"], document["epoch"], document["seconds"], document["diverged_step"]
    )
    step, steps = status.diverged_step, run.epochs * run.steps_per_epoch
    if status.epoch > run.epochs or status.done != (status.epoch == run.epochs):
        expected = f"a run of {run.epochs} epochs that is {status.state}"
        raise DamagedRun(directory, expected, f"one with {status.epoch} epochs")
    if (status.done and (step is None) != (status.state == "finished")) or (step or 0) > steps:
        expected = f"a step of {steps} at which a run that is {status.state} diverged"
        raise DamagedRun(directory, expected, str(step))
    return status


def stored_run(directory: Path) -> Run | None:
    """The run of a directory; None if its configuration is of an older version, or its task is one
    that this process has not been told of."""
    stored = read(directory, "config")
    if stored is None:
        return None
    content = stored[1]["config"]
    document = _document(directory, "config.json", content)
    version: Any = document.get("version") if isinstance(document, dict) else None
    if not is_whole(version, 1) or not is_name(document.get("task")):
        raise DamagedRun(directory, "a configuration with a task and a version", "another")
    if version > VERSION:
        raise NewerStore(directory, "a configuration", VERSION, version)
    if version < VERSION:
        return None
    try:
        run = load_run(document)
        check_config(directory, run, content)
    except UnknownTask:
        return None
    except DamagedRun:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        # whatever a field is that no run has
        raise DamagedRun(directory, "a configuration", str(error)) from error
    return run


def check_config(directory: Path, run: Run, content: bytes) -> None:
    """Refuse a directory that has another name, or another configuration, than its run."""
    # as bytes, since 1, 1.0 and true are equal
    if run.identity != directory.name or content != dump(run.document()):
        raise DamagedRun(directory, "the configuration that its name is the hash of", "another")


def _document(directory: Path, name: str, content: bytes) -> Any:
    try:
        return parse(content)
    except ValueError as error:
        raise DamagedRun(directory, f"a document {name}", str(error)) from error


def read_starts(directory: Path, content: bytes) -> Environment:
    """What a run was trained with."""
    starts = _document(directory, "environment.json", content)
    if not (isinstance(starts, list) and starts and all(map(_is_start, starts))):
        raise DamagedRun(directory, "an environment of at least one start", "another")
    return starts


def _is_start(start: object) -> bool:
    """Whether it has numbers and texts only, and texts where those are shown."""
    return (
        isinstance(start, dict)
        and all(value is None or isinstance(value, str | int | float) for value in start.values())
        and all(isinstance(start.get(name) or "", str) for name in PROVENANCE)
        and all(is_whole(start.get(name, 1), 0) for name in ("members", "from_epoch"))
    )


def read_tensors(directory: Path, content: bytes) -> dict[str, Tensor]:
    """The state of a run."""
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DamagedRun(directory, "a checkpoint of tensors", str(error)) from error


def write_metrics(metrics: Sequence[Mapping[str, float]]) -> bytes:
    """Metrics as the bytes of a file, which ``read_metrics`` reads."""
    names = list(metrics[0]) if metrics else ["epoch"]
    for row in metrics:
        if row.keys() != metrics[0].keys():
            raise ValueError(f"expected a row of the metrics {names}, got {list(row)}")
    file = io.StringIO()
    # repr, which csv uses for floats, gives every bit back; a DictWriter takes twice as long
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[row[name] for name in names] for row in metrics])
    return file.getvalue().encode()


def read_metrics(directory: Path, content: bytes, epochs: int) -> Metrics:
    """The metrics of a run that has done so many epochs."""
    try:
        names, *lines = csv.reader(io.StringIO(content.decode()), strict=True)
        if names[0] != "epoch" or len(set(names)) < len(names):
            raise ValueError(f"the columns {names}")
        rows = [dict(zip(names[1:], map(float, line[1:]), strict=True)) for line in lines]
        if [line[0] for line in lines] != [str(number) for number in range(1, epochs + 1)]:
            raise ValueError(f"{len(lines)} lines for other epochs")
    except (ValueError, IndexError, csv.Error) as error:
        raise DamagedRun(directory, f"metrics of {epochs} epochs", str(error)) from error
    return [{"epoch": number, **row} for number, row in enumerate(rows, 1)]
