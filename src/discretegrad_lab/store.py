"""Run directories: what a run is, how far it has come and what it has measured.

A run has the directory ``<root>/<task>/<identity>`` with

- ``config.json``: the configuration;
- ``environment-<epoch>.json``: what it was trained with, an entry for each start;
- ``metrics-<epoch>.csv``: a row for each epoch;
- ``checkpoint-<epoch>.safetensors``: all that is needed to go on;
- ``status.json``: how far it is, and the size and checksum of the files that belong to that.

A commit writes new files beside the old ones, replaces ``status.json`` and only then deletes the
old ones; the first one prepares the whole directory under another name. So whenever the process or
the machine dies, the status names files that are whole, and a directory without one is damaged.
"""

import contextlib
import csv
import errno
import functools
import hashlib
import io
import itertools
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

from .config import VERSION, Run, load_run
from .files import nearest_directory

FORMAT = 1
"""Of the directories; raise it when an older discretegrad could misread them."""

Metrics = list[dict[str, float]]
"""A row for each epoch, which is the entry ``epoch``."""
Environment = list[dict[str, Any]]
"""An entry for each start of a run, see ``discretegrad_lab.environment``."""

_STATUS = "status.json"
_LOCKS = ".locks"
_SUFFIXES = {
    "config": ".json",
    "environment": ".json",
    "metrics": ".csv",
    "checkpoint": ".safetensors",
}
# what a commit may leave behind; other files in a run directory are none of its business
_OURS = re.compile(rf"(({'|'.join(_SUFFIXES)})(-\d+)*\.\w+(\.tmp)?|status\.json\.tmp)")
_IDENTITY = re.compile(r"[0-9a-f]{16}")
# reasons why a file cannot be read that say nothing about the others
_OF_ONE_FILE = (errno.ENOENT, errno.EIO, errno.EISDIR)


class DamagedRun(ValueError):
    """A run directory cannot be used as it is; the message says why and what to do."""

    def __init__(self, directory: Path, expected: str, got: str) -> None:
        super().__init__(
            f"expected {expected} in {directory}, got {got}; move this directory away to train "
            "the run again, or put back a copy of it"
        )
        self.directory = directory


class NewerStore(ValueError):
    """Results of a newer version of discretegrad."""

    def __init__(self, directory: Path, what: str, known: int, got: object) -> None:
        super().__init__(
            f"expected {what} of version {known} at most, got version {got} in {directory}; "
            "install the discretegrad that wrote it, or choose another results directory"
        )


class StoreError(OSError):
    """The file system refuses something; the message says what and what to do."""


@dataclass(frozen=True)
class Status:
    """How far a run has come."""

    state: Literal["new", "started", "finished", "diverged", "damaged"]
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
    state: dict[str, Tensor]

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self.status.epoch

    @property
    def seconds(self) -> float:
        """Of training so far."""
        return self.status.seconds

    @property
    def diverged_step(self) -> int | None:
        """The first step whose loss was not finite."""
        return self.status.diverged_step


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
            found = _read(self.root / task / identity)
        except DamagedRun:
            return False
        return found is not None and _status(found[0]).done

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
                found = _read(self.directory(run))
                return Status("new") if found is None else _status(found[0])
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
            raise KeyError(f"expected a stored run, got {_identity(run)}, which was never saved")
        return saved

    def metrics(self, run: Run) -> Metrics:
        """Those of a run, without reading its checkpoint; raises as ``load`` does."""
        found = _read(self.directory(run), "config", "metrics")
        if found is None:
            raise KeyError(f"expected a stored run, got {_identity(run)}, which was never saved")
        _check_config(self.directory(run), run, found[1]["config"])
        return _rows(found[1]["metrics"])

    def environment(self, run: Run) -> Environment:
        """What a run was trained with; raises as ``load`` does."""
        found = _read(self.directory(run), "environment")
        if found is None:
            raise KeyError(f"expected a stored run, got {_identity(run)}, which was never saved")
        environment: Environment = json.loads(found[1]["environment"])
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
        with _explained("claim a run", self.root):
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

    def save(
        self,
        run: Run,
        epoch: int,
        metrics: Metrics,
        state: Mapping[str, Tensor],
        environment: Environment,
        seconds: float,
        *,
        finished: bool = False,
        diverged_step: int | None = None,
    ) -> None:
        """Commit a claimed run: afterwards the store has all of this, before it what it had.

        Args:
            run: The configuration.
            epoch: How many epochs are done.
            metrics: A row for each of them.
            state: What is needed to go on.
            environment: What the run was trained with.
            seconds: Of training so far.
            finished: Whether nothing is left to train.
            diverged_step: The first step whose loss was not finite, if there was one.

        Raises:
            DamagedRun: If the status that is there cannot be read.
            StoreError: If the file system refuses; what was saved before is whole.
        """
        if _identity(run) not in self._claims:
            raise RuntimeError(
                f"expected a claimed run, got {_identity(run)}; call claim before save"
            )
        tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
        contents = {
            "config": _dump(run.document()),
            "environment": _dump(environment),
            "metrics": _table(metrics),
            "checkpoint": safetensors.torch.save(tensors, {"run": _identity(run)}),
        }
        end = "finished" if diverged_step is None else "diverged"
        document = {
            "format": FORMAT,
            "state": end if finished else "started",
            "epoch": epoch,
            "seconds": round(seconds, 3),
            "diverged_step": diverged_step,
        }
        directory = self.directory(run)
        with _explained("save a run", directory):
            _commit(directory, document, contents)
        if finished:
            self._done.add(_identity(run))

    def check_room(self, needed: int) -> None:
        """Raise ``StoreError`` if so many bytes cannot be written."""
        with _explained("look for free space", self.root):
            free = shutil.disk_usage(nearest_directory(self.root)).free
        if free < needed:
            raise StoreError(
                f"expected {_size(needed)} of free space for checkpoints in {self.root}, got "
                f"{_size(free)}; free some space or choose another results directory"
            )

    def _lock(self, run: Run) -> Path:
        return self.root / _LOCKS / f"{_identity(run)}.lock"

    def _load(self, run: Run, *, decode: bool) -> Saved | None:
        """All files, verified; the checkpoint as tensors only if ``decode``."""
        directory = self.directory(run)
        found = _read(directory, *_SUFFIXES)
        if found is None:
            return None
        document, contents = found
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


def _status(document: Mapping[str, Any]) -> Status:
    return Status(
        document["state"], document["epoch"], document["seconds"], document["diverged_step"]
    )


def _stored(directory: Path) -> Run | None:
    """The run of a directory; None if its configuration is of an older version."""
    found = _read(directory, "config")
    if found is None:
        return None
    document = json.loads(found[1]["config"])
    if document["version"] > VERSION:
        raise NewerStore(directory, "a configuration", VERSION, document["version"])
    if document["version"] < VERSION:
        return None
    try:
        run = load_run(document)
    except ValueError as error:
        raise DamagedRun(directory, "a configuration", str(error)) from error
    _check_config(directory, run, found[1]["config"])
    return run


def _check_config(directory: Path, run: Run, content: bytes) -> None:
    if run.identity != directory.name or json.loads(content) != run.document():
        raise DamagedRun(directory, "the configuration that its name is the hash of", "another")


def _read(directory: Path, *kinds: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """The status and files of some kinds, verified; None if the run was never saved.

    The other files must at least be there and have their sizes.
    """
    while True:
        raw = _status_bytes(directory)
        if raw is None:
            return None
        try:
            document = _parse(directory, raw)
            contents = {}
            for kind, record in document["files"].items():
                content = _verified(directory, record, whole=kind in kinds)
                if content is not None:
                    contents[kind] = content
            return document, contents
        except DamagedRun:
            # not if a commit has replaced the files meanwhile
            if _status_bytes(directory) == raw:
                raise


def _status_bytes(directory: Path) -> bytes | None:
    try:
        return _content(directory, _STATUS)
    except DamagedRun:
        if not directory.exists():
            return None
        # not if the first commit has just come between the two
        return _content(directory, _STATUS)


def _content(directory: Path, name: str) -> bytes:
    with _explained("read a run", directory):
        try:
            return (directory / name).read_bytes()
        except OSError as error:
            if error.errno not in _OF_ONE_FILE:
                raise
            got = "none" if error.errno == errno.ENOENT else f"{error.strerror}"
            raise DamagedRun(directory, f"a file {name}", got) from error


def _parse(directory: Path, raw: bytes) -> dict[str, Any]:
    """The status, if it is byte for byte what was written."""
    try:
        document = json.loads(raw)
        content = {name: value for name, value in document.items() if name != "sha256"}
        whole = _dump(_sealed(content)) == raw
    except (ValueError, AttributeError):
        whole = False
    if not whole:
        got = f"one of {len(raw)} bytes with another checksum" if raw else "an empty one"
        raise DamagedRun(directory, f"a {_STATUS} with its own checksum", got)
    # the seal is that of every version, so this is no damage
    if document["format"] > FORMAT:
        raise NewerStore(directory, "run directories", FORMAT, document["format"])
    return content


def _verified(directory: Path, record: Mapping[str, Any], *, whole: bool) -> bytes | None:
    """A file's content, if it is what was written; if not ``whole``, only its size is checked."""
    name, size, expected = record["name"], record["bytes"], record["sha256"]
    content = None
    if whole:
        content = _content(directory, name)
        found = len(content)
    else:
        path = directory / name
        found = path.stat().st_size if path.is_file() else -1
    if found < 0:
        raise DamagedRun(directory, f"a file {name}", "none")
    if found != size:
        raise DamagedRun(directory, f"{name} of {size} bytes", f"{found} bytes")
    if content is not None and (got := _sha256(content)) != expected:
        raise DamagedRun(directory, f"{name} with sha256 {expected[:12]}…", f"{got[:12]}…")
    return content


def _commit(directory: Path, document: Mapping[str, Any], contents: Mapping[str, bytes]) -> None:
    raw = _status_bytes(directory)
    place, kept = directory, {}
    if raw is not None:
        kept = _parse(directory, raw)["files"]
    else:
        place = directory.with_name(directory.name + ".new")
    taken = {record["name"] for record in kept.values()}
    files: dict[str, dict[str, Any]] = {}
    try:
        if place != directory:
            _make(place)
        for kind, content in contents.items():
            record = {"bytes": len(content), "sha256": _sha256(content)}
            old = kept.get(kind)
            if old is not None and {**old, **record} == old:
                files[kind] = old
                continue
            name = _free_name(kind, document["epoch"], taken)
            _write(place / name, content)
            files[kind] = {"name": name, **record}
        if place == directory:
            # the names must last before a status that mentions them can
            _sync(place)
        _write(place / _STATUS, _dump(_sealed({**document, "files": files})))
        _sync(place)
        if place != directory:
            os.rename(place, directory)
            _sync(directory.parent)
    except OSError:
        # leave nothing behind that no status names
        if place != directory:
            shutil.rmtree(place, ignore_errors=True)
        else:
            with contextlib.suppress(OSError, DamagedRun):
                now = _parse(directory, (directory / _STATUS).read_bytes())
                _tidy(directory, now["files"])
        raise
    _tidy(directory, files)


def _tidy(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Delete what commits have left and the status does not name."""
    named = {record["name"] for record in files.values()}
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name not in named and _OURS.fullmatch(name):
                os.unlink(directory / name)


def _free_name(kind: str, epoch: int, taken: set[str]) -> str:
    """A name that the present status does not use."""
    plain = [kind] if kind == "config" else []
    numbered = (f"{kind}-{epoch}" + f"-{n}" * (n > 0) for n in itertools.count())
    stems = itertools.chain(plain, numbered)
    return next(name for stem in stems if (name := stem + _SUFFIXES[kind]) not in taken)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _make(directory: Path) -> None:
    """Make a directory, and those above it, that last."""
    if not directory.parent.is_dir():
        _make(directory.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory)
        _sync(directory.parent)


def _sync(directory: Path) -> None:
    """Let the names in a directory last; not every system can, or needs it."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _dump(document: object) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _sealed(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "sha256": _sha256(_dump(document))}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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


_REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EROFS: "choose a results directory that can be written",
    errno.EACCES: "choose a results directory that you may write",
    errno.EPERM: "choose a results directory that you may write",
    errno.ENOTDIR: "choose a results directory that is not a file",
    errno.EEXIST: "choose a results directory that is not a file",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.EIO: "check the disk",
}


@contextlib.contextmanager
def _explained(what: str, place: Path) -> Iterator[None]:
    """Turn an error of the file system into a paragraph with a remedy."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check that directory")
        raise StoreError(
            f"expected to {what} in {place}, got: {error.strerror or error}; {remedy} and start "
            "again: what was saved before is whole, and work goes on from there"
        ) from error


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
