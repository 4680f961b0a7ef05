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
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
"""Of the directories; raise it when an older discretegrad could misread them."""

_STATUS = "status.json"
SUFFIXES = {
    "config": ".json",
    "environment": ".json",
    "metrics": ".csv",
    "checkpoint": ".safetensors",
}
# what a commit may leave behind; other files in a run directory are none of its business
_OURS = re.compile(rf"(({'|'.join(SUFFIXES)})(-\d+)*\.\w+(\.tmp)?|status\.json\.tmp)")
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


def read(directory: Path, *kinds: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
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
    with explained("read a run", directory):
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
        whole = dump(_sealed(content)) == raw
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
        length = len(content)
    else:
        path = directory / name
        length = path.stat().st_size if path.is_file() else -1
    if length < 0:
        raise DamagedRun(directory, f"a file {name}", "none")
    if length != size:
        raise DamagedRun(directory, f"{name} of {size} bytes", f"{length} bytes")
    if content is not None and (got := _sha256(content)) != expected:
        raise DamagedRun(directory, f"{name} with sha256 {expected[:12]}…", f"{got[:12]}…")
    return content


def commit(directory: Path, document: Mapping[str, Any], contents: Mapping[str, bytes]) -> None:
    """Replace what a run directory has, so that it is whole whenever this is cut off."""
    raw = _status_bytes(directory)
    place, present = directory, {}
    if raw is not None:
        present = _parse(directory, raw)["files"]
    else:
        place = directory.with_name(directory.name + ".new")
    taken = {record["name"] for record in present.values()}
    files: dict[str, dict[str, Any]] = {}
    try:
        if place != directory:
            _make(place)
        for kind, content in contents.items():
            record = {"bytes": len(content), "sha256": _sha256(content)}
            old = present.get(kind)
            if old is not None and {**old, **record} == old:
                files[kind] = old
                continue
            name = _free_name(kind, document["epoch"], taken)
            _write(place / name, content)
            files[kind] = {"name": name, **record}
        if place == directory:
            # the names must last before a status that mentions them can
            _sync(place)
        _write(place / _STATUS, dump(_sealed({**document, "files": files})))
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
    return next(name for stem in stems if (name := stem + SUFFIXES[kind]) not in taken)


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


def dump(document: object) -> bytes:
    """A document as the bytes of a file."""
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _sealed(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "sha256": _sha256(dump(document))}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
def explained(what: str, place: Path) -> Iterator[None]:
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
