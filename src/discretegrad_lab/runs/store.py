"""Stored runs: how far each has come, what it has measured, and what it needs to go on.

``disk`` says how their directories look and why they are whole whenever a process dies,
``documents`` what their files may say.
"""

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..stack.config import Run
from .disk import (
    FORMAT,
    SUFFIXES,
    DamagedRun,
    LostClaim,
    NewerStore,
    StoreError,
    commit,
    explained,
    read,
    status_bytes,
)
from .documents import (
    Environment,
    Metrics,
    State,
    Status,
    check_config,
    read_metrics,
    read_starts,
    read_tensors,
    status_of,
    stored_run,
    write_metrics,
)
from .files import dump, is_name, nearest_directory

__all__ = [
    "FORMAT", "DamagedRun", "Environment", "LostClaim", "Metrics", "NewerStore", "Saved", "State",
    "Status", "Store", "StoreError",
]  # fmt: skip

_LOCKS = ".locks"
IDENTITY = re.compile(r"[0-9a-f]{16}")
"""How a run directory is called."""


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
        self._claims: dict[str, _Claim] = {}
        self._done: set[str] = set()

    def directory(self, run: Run) -> Path:
        """Where a run is, or would be."""
        return self.root / run.task / _identity(run)

    def is_done(self, task: str, identity: str) -> bool:
        """Whether a run, known by its name only, is here to its end."""
        if not (is_name(task) and IDENTITY.fullmatch(identity)):
            return False
        try:
            stored = read(self.root / task / identity)
        except DamagedRun:
            return False
        return stored is not None and stored[0]["state"] in ("finished", "diverged")

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
                directory = self.directory(run)
                stored = read(directory)
                return Status("new") if stored is None else status_of(directory, run, stored[0])
            saved = self.look(run)
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

    def look(self, run: Run) -> Saved | None:
        """As ``load``, all at one time, yet without its state; None if it was never saved."""
        return self._load(run, decode=False)

    def metrics(self, run: Run) -> Metrics:
        """Those of a run, without reading its checkpoint; raises as ``load`` does."""
        directory = self.directory(run)
        document, contents = self._read(run, "config", "metrics")
        check_config(directory, run, contents["config"])
        return read_metrics(
            directory, contents["metrics"], status_of(directory, run, document).epoch
        )

    def environment(self, run: Run) -> Environment:
        """What a run was trained with; raises as ``load`` does."""
        _, contents = self._read(run, "environment")
        return read_starts(self.directory(run), contents["environment"])

    def runs(self, damaged: list[DamagedRun] | None = None) -> Iterator[Run]:
        """All stored runs whose configurations mean to this version what they meant when saved.

        Args:
            damaged: Takes the errors of directories that cannot be read; without it they raise.
        """
        errors: list[DamagedRun] = []
        for directory in self._directories(errors):
            try:
                run = stored_run(directory)
            except DamagedRun as error:
                errors.append(error)
            else:
                if run is not None:
                    yield run
            if errors and damaged is None:
                raise errors[0]
        if damaged is not None:
            damaged += errors

    def _directories(self, damaged: list[DamagedRun]) -> Iterator[Path]:
        """All that have the name of a run, whether they are directories or not."""
        with explained("look for runs", self.root):
            tasks = sorted(filter(is_name, _names(self.root)))
        for task in tasks:
            place = self.root / task
            try:
                names = _names(place)
            except OSError as error:
                got = error.strerror or str(error)
                damaged.append(DamagedRun(place, "a directory that can be read", got))
                continue
            for name in sorted(filter(IDENTITY.fullmatch, names)):
                yield place / name

    def claim(self, run: Run) -> bool:
        """Become the one who may save a run; False if somebody else is.

        The kernel gives the claim up when the process dies. Look at the status after claiming: it
        may have changed since you last did.

        Raises:
            DamagedRun: If something else than a lock lies at the name of the lock.
            StoreError: If the file system refuses.
        """
        if _identity(run) in self._claims:
            return False
        path = self._lock(run)
        with explained("claim a run", self.root):
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
            # commits may end, and give the claim up, in another thread
            lock = FileLock(path, thread_local=False)
            with _plain_lock(path):
                try:
                    lock.acquire(blocking=False)
                except Timeout:
                    return False
        seen: set[bytes] = set()
        with contextlib.suppress(DamagedRun):
            status = status_bytes(self.directory(run))
            seen |= set() if status is None else {status}
        self._claims[_identity(run)] = _Claim(lock, seen)
        self._done.discard(_identity(run))
        return True

    def release(self, run: Run) -> None:
        """Give a claim up, if there is one."""
        claim = self._claims.pop(_identity(run), None)
        if claim is None:
            return
        if _identity(run) in self._done:
            # nobody needs it any more; before that, one process could hold the deleted file and
            # another one a new file of this name
            with contextlib.suppress(OSError):
                self._lock(run).unlink()
        claim.lock.release()

    def save(self, run: Run, saved: Saved) -> None:
        """Commit a claimed run: afterwards the store has all of this, before it what it had.

        Raises:
            DamagedRun: If the status that is there cannot be read, or the directory not written.
            LostClaim: If somebody else has saved it since it was claimed.
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
            "metrics": write_metrics(saved.metrics),
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
            commit(directory, document, contents, self._claims[_identity(run)].seen)
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

    def _read(self, run: Run, *kinds: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        stored = read(self.directory(run), *kinds)
        if stored is None:
            raise _never_saved(run)
        return stored

    def _load(self, run: Run, *, decode: bool) -> Saved | None:
        """All files, verified; the checkpoint as tensors only if ``decode``."""
        directory = self.directory(run)
        stored = read(directory, *SUFFIXES)
        if stored is None:
            return None
        document, contents = stored
        check_config(directory, run, contents["config"])
        status = status_of(directory, run, document)
        return Saved(
            status,
            read_metrics(directory, contents["metrics"], status.epoch),
            read_starts(directory, contents["environment"]),
            read_tensors(directory, contents["checkpoint"]) if decode else {},
        )


class _Claim(NamedTuple):
    """What a process has that may save a run."""

    lock: FileLock
    seen: set[bytes]
    """The status that it may replace: the one that it found or the one that it wrote."""


@contextlib.contextmanager
def _plain_lock(path: Path) -> Iterator[None]:
    """Let nothing but a plain file be a lock: a link would be followed."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise _NoLock(path, "something else")
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise _NoLock(path, error.strerror or str(error)) from error


class _NoLock(DamagedRun):
    def __init__(self, path: Path, got: str) -> None:
        super().__init__(path.parent, f"a lock {path.name}", got, "remove it and start again")


def _names(directory: Path) -> list[str]:
    """What is in a directory; nothing if it is none."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


@functools.lru_cache(1 << 16)
def _identity(run: Run) -> str:
    """Every step of a commit asks for it."""
    return run.identity


def _never_saved(run: Run) -> KeyError:
    return KeyError(f"expected a stored run, got {_identity(run)}, which was never saved")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
