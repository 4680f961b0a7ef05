"""Stored runs: how far each has come, what it has measured, and what it needs to go on.

``disk`` says how their directories look and why they are whole whenever a process dies.
"""

import contextlib
import csv
import functools
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..stack.config import VERSION, Run
from ..tasks import UnknownTask, load_run
from .disk import (
    FORMAT,
    SUFFIXES,
    DamagedRun,
    NewerStore,
    StoreError,
    commit,
    dump,
    explained,
    read,
)
from .files import nearest_directory

__all__ = [
    "FORMAT", "DamagedRun", "Environment", "Metrics", "NewerStore", "Saved", "State", "Status",
    "Store", "StoreError",
]  # fmt: skip

Metrics = list[dict[str, float]]
"""A row for each epoch, which is the entry ``epoch``."""
Environment = list[dict[str, Any]]
"""An entry for each start of a run, see ``discretegrad_lab.environment``."""

_LOCKS = ".locks"
_IDENTITY = re.compile(r"[0-9a-f]{16}")


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


@dataclass(frozen=True)
class Saved:
    """A run as it was saved."""

    status: Status
    metrics: Metrics
    environment: Environment
    state: Mapping[str, Tensor]
    """What is needed to go on."""


class Store:
    """All runs below a directory, which is made when the first one is saved.

    Any number of processes may read. To write, a process claims the run first. Threads may save
    different runs at once.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._claims: dict[str, FileLock] = {}
        self._done: set[str] = set()

    def directory(self, run: Run) -> Path:
        """Where a run is, or would be."""
        return self.root / run.task / _identity(run)

    def is_done(self, task: str, identity: str) -> bool:
        """Whether a run, known by its name only, is here to its end."""
        try:
            stored = read(self.root / task / identity)
        except DamagedRun:
            return False
        return stored is not None and _status(stored[0]).done

    def identities(self, task: str) -> set[str] | None:
        """What is in the folder of a task, by one look at it; None if it cannot be listed.

        A run whose identity is not among them was never saved.
        """
        try:
            return set(os.listdir(self.root / task))
        except FileNotFoundError:
            return set()
        except OSError:
            return None

    def status(self, run: Run, *, quick: bool = False) -> Status:
        """How far a run has come, and whether its files are whole.

        Args:
            run: The configuration.
            quick: Compare the sizes of the files only, not what is in them.

        Raises:
            NewerStore: If a newer version wrote it.
            StoreError: If it cannot be read.
        """
        try:
            if quick:
                stored = read(self.directory(run))
                return Status("new") if stored is None else _status(stored[0])
            saved = self._load(run, decode=False)
            return Status("new") if saved is None else saved.status
        except DamagedRun as error:
            return Status("damaged", reason=str(error))

    def load(self, run: Run) -> Saved:
        """A run as it was last saved, all of it verified.

        Raises:
            DamagedRun: If a file is missing or not what was written.
            NewerStore: If a newer version wrote it.
            KeyError: If it was never saved.
        """
        saved = self._load(run, decode=True)
        if saved is None:
            raise _never_saved(run)
        return saved

    def metrics(self, run: Run) -> Metrics:
        """Those of a run, without reading its checkpoint; raises as ``load`` does."""
        contents = self._read(run, "config", "metrics")
        _check_config(self.directory(run), run, contents["config"])
        return _rows(contents["metrics"])

    def environment(self, run: Run) -> Environment:
        """What a run was trained with; raises as ``load`` does."""
        environment: Environment = json.loads(self._read(run, "environment")["environment"])
        return environment

    def runs(self, damaged: list[DamagedRun] | None = None) -> Iterator[Run]:
        """All stored runs whose configurations mean to this version what they meant when saved.

        Args:
            damaged: Takes the errors of directories that cannot be read; without it they raise.
        """
        for directory in sorted(self.root.glob("*/*")):
            if not (_IDENTITY.fullmatch(directory.name) and directory.is_dir()):
                continue
            try:
                run = _stored(directory)
            except DamagedRun as error:
                if damaged is None:
                    raise
                damaged.append(error)
            else:
                if run is not None:
                    yield run

    def claim(self, run: Run) -> bool:
        """Become the one who may save a run; False if somebody else is.

        The kernel gives the claim up when the process dies. Look at the status after claiming: it
        may have changed since you last did.
        """
        if _identity(run) in self._claims:
            return False
        path = self._lock(run)
        with explained("claim a run", self.root):
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
            # commits may end, and give the claim up, in another thread
            lock = FileLock(path, thread_local=False)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                return False
        self._claims[_identity(run)] = lock
        self._done.discard(_identity(run))
        return True

    def release(self, run: Run) -> None:
        """Give a claim up, if there is one."""
        lock = self._claims.pop(_identity(run), None)
        if lock is None:
            return
        if _identity(run) in self._done:
            # nobody needs it any more; before that, one process could hold the deleted file and
            # another one a new file of this name
            with contextlib.suppress(OSError):
                self._lock(run).unlink()
        lock.release()

    def save(self, run: Run, saved: Saved) -> None:
        """Commit a claimed run: afterwards the store has all of this, before it what it had.

        Raises:
            DamagedRun: If the status that is there cannot be read.
            StoreError: If the file system refuses; what was saved before is whole.
        """
        if _identity(run) not in self._claims:
            raise RuntimeError(
                f"expected a claimed run, got {_identity(run)}; call claim before save"
            )
        tensors = {name: tensor.detach().contiguous() for name, tensor in saved.state.items()}
        contents = {
            "config": dump(run.document()),
            "environment": dump(saved.environment),
            "metrics": _table(saved.metrics),
            "checkpoint": safetensors.torch.save(tensors, {"run": _identity(run)}),
        }
        document = {
            "format": FORMAT,
            "state": saved.status.state,
            "epoch": saved.status.epoch,
            "seconds": round(saved.status.seconds, 3),
            "diverged_step": saved.status.diverged_step,
        }
        directory = self.directory(run)
        with explained("save a run", directory):
            commit(directory, document, contents)
        if saved.status.done:
            self._done.add(_identity(run))

    def check_room(self, needed: int) -> None:
        """Raise ``StoreError`` if so many bytes cannot be written."""
        with explained("look for free space", self.root):
            free = shutil.disk_usage(nearest_directory(self.root)).free
        if free < needed:
            raise StoreError(
                f"expected {_size(needed)} of free space for checkpoints in {self.root}, got "
                f"{_size(free)}; free some space or choose another results directory"
            )

    def _lock(self, run: Run) -> Path:
        return self.root / _LOCKS / f"{_identity(run)}.lock"

    def _read(self, run: Run, *kinds: str) -> dict[str, bytes]:
        stored = read(self.directory(run), *kinds)
        if stored is None:
            raise _never_saved(run)
        return stored[1]

    def _load(self, run: Run, *, decode: bool) -> Saved | None:
        """All files, verified; the checkpoint as tensors only if ``decode``."""
        directory = self.directory(run)
        stored = read(directory, *SUFFIXES)
        if stored is None:
            return None
        document, contents = stored
        _check_config(directory, run, contents["config"])
        return Saved(
            _status(document),
            _rows(contents["metrics"]),
            json.loads(contents["environment"]),
            safetensors.torch.load(contents["checkpoint"]) if decode else {},
        )


@functools.lru_cache(1 << 16)
def _identity(run: Run) -> str:
    """Every step of a commit asks for it."""
    return run.identity


def _never_saved(run: Run) -> KeyError:
    return KeyError(f"expected a stored run, got {_identity(run)}, which was never saved")


def _status(document: Mapping[str, Any]) -> Status:
    return Status(
        document["state"], document["epoch"], document["seconds"], document["diverged_step"]
    )


def _stored(directory: Path) -> Run | None:
    """The run of a directory; None if its configuration is of an older version, or its task is one
    that this process has not been told of."""
    stored = read(directory, "config")
    if stored is None:
        return None
    document = json.loads(stored[1]["config"])
    if document["version"] > VERSION:
        raise NewerStore(directory, "a configuration", VERSION, document["version"])
    if document["version"] < VERSION:
        return None
    try:
        run = load_run(document)
    except UnknownTask:
        return None
    except ValueError as error:
        raise DamagedRun(directory, "a configuration", str(error)) from error
    _check_config(directory, run, stored[1]["config"])
    return run


def _check_config(directory: Path, run: Run, content: bytes) -> None:
    if run.identity != directory.name or json.loads(content) != run.document():
        raise DamagedRun(directory, "the configuration that its name is the hash of", "another")


def _table(metrics: Sequence[Mapping[str, float]]) -> bytes:
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


def _rows(content: bytes) -> Metrics:
    return [
        {name: int(value) if name == "epoch" else float(value) for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(content.decode()))
    ]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
