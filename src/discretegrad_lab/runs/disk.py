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

Who commits says which status was there when it last looked. If there is another one by then,
somebody else has committed and the commit is refused, so that no run ever goes back.
"""

import contextlib
import errno
import itertools
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .files import (
    TEMPORARY,
    UnusableFile,
    dump,
    is_checksum,
    is_whole,
    locked,
    make_directory,
    read_file,
    sealed,
    sha256,
    size_of,
    sync_directory,
    unsealed,
    write_file,
)

FORMAT = 1
"""Of the directories; raise it when an older discretegrad could misread them."""

_STATUS = "status.json"
SUFFIXES = {
    "config": ".json",
    "environment": ".json",
    "metrics": ".csv",
    "checkpoint": ".safetensors",
}
_LARGEST = {
    "status": 1 << 20,
    "config": 1 << 20,
    "environment": 1 << 26,
    "metrics": 1 << 30,
    "checkpoint": 1 << 36,
}
"""Bytes that a file may have to be read at all."""
_NAMES = {
    kind: re.compile(rf"{kind}(-\d{{1,16}}){{0,2}}{re.escape(suffix)}", re.ASCII)
    for kind, suffix in SUFFIXES.items()
}
"""The names that commits give to files."""
# what a commit may leave behind; other files in a run directory are a user's
_OURS = re.compile(
    "|".join(
        (
            *(f"{pattern.pattern}({TEMPORARY})?" for pattern in _NAMES.values()),
            re.escape(_STATUS) + TEMPORARY,
        )
    ),
    re.ASCII,
)
_STATES = ("started", "finished", "diverged")
# reasons why a directory cannot be written that say nothing about the others
_OF_ONE_DIRECTORY = (
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
)


class DamagedRun(ValueError):
    """A run directory cannot be used as it is; the message says why and what to do."""

    def __init__(
        self,
        directory: Path,
        expected: str,
        got: str,
        remedy: str = "move this directory away to train the run again, or put back a copy of it",
    ) -> None:
        super().__init__(f"expected {expected} in {directory}, got {got}; {remedy}")
        self.directory = directory


class LostClaim(RuntimeError):
    """Somebody else has saved a run that this process had claimed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"expected {directory} as this process left it, got what another process has saved "
            "since; its lock was deleted, so leave the run to the other one"
        )


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
        raw = status_bytes(directory)
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
            if status_bytes(directory) == raw:
                raise


def status_bytes(directory: Path) -> bytes | None:
    """The present ``status.json``; None if the run was never saved."""
    try:
        os.lstat(directory)
    except FileNotFoundError:
        return None
    except OSError:
        # reading it says what is wrong
        pass
    try:
        return _content(directory, _STATUS, _LARGEST["status"])
    except DamagedRun:
        # it may have been moved away since
        if not os.path.lexists(directory):
            return None
        raise


def _content(directory: Path, name: str, most: int) -> bytes:
    with _of_one_run(directory, name):
        return read_file(directory / name, most)


@contextlib.contextmanager
def _of_one_run(directory: Path, name: str) -> Iterator[None]:
    """Turn what is wrong with a file of a run into damage of that run.

    What is wrong with the directories above it is a matter of the whole store.
    """
    with explained("read a run", directory):
        try:
            yield
        except UnusableFile as error:
            if not error.missing:
                os.lstat(directory)
            got = "none" if error.missing else error.reason
            raise DamagedRun(directory, f"a file {name}", got) from error


def _parse(directory: Path, raw: bytes) -> dict[str, Any]:
    """The status, if it is byte for byte what was written and every field of it makes sense."""
    document = unsealed(raw)
    if document is None:
        got = f"one of {len(raw)} bytes with another checksum" if raw else "an empty one"
        raise DamagedRun(directory, f"a {_STATUS} with its own checksum", got)
    version = document.get("format")
    # the seal is that of every version, so this is no damage
    if is_whole(version, FORMAT + 1):
        raise NewerStore(directory, "run directories", FORMAT, version)
    for name, (is_right, words) in _FIELDS.items():
        if name not in document or not is_right(document[name]):
            got = _short(document[name]) if name in document else "none"
            raise DamagedRun(directory, f"a {_STATUS} whose {name} is {words}", got)
    return document


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _are_files(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == SUFFIXES.keys()
        and all(_is_record(kind, record) for kind, record in value.items())
    )


def _is_record(kind: str, value: object) -> bool:
    """Whether it is what a status says about a file, whose name leads nowhere else."""
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "bytes", "sha256"}
        and isinstance(value["name"], str)
        and _NAMES[kind].fullmatch(value["name"]) is not None
        and is_whole(value["bytes"], 0, _LARGEST[kind])
        and is_checksum(value["sha256"])
    )


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf  # type: ignore[operator]


_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "format": (lambda x: is_whole(x, 1), "a version"),
    "state": (lambda x: isinstance(x, str) and x in _STATES, f"one of {', '.join(_STATES)}"),
    "epoch": (lambda x: is_whole(x, 1), "a positive whole number"),
    "seconds": (_is_time, "a number of seconds"),
    "diverged_step": (lambda x: x is None or is_whole(x, 1), "null or a positive whole number"),
    "files": (_are_files, "a name, a size and a checksum for each file of a run"),
}
"""What a status says, when it makes sense, and that in words."""


def _verified(directory: Path, record: Mapping[str, Any], *, whole: bool) -> bytes | None:
    """A file's content, if it is what was written; if not ``whole``, only its size is checked."""
    name, size, expected = record["name"], record["bytes"], record["sha256"]
    with _of_one_run(directory, name):
        length = size_of(directory / name)
    content = None
    if whole and length == size:
        content = _content(directory, name, size)
        length = len(content)
    if length != size:
        raise DamagedRun(directory, f"{name} of {size} bytes", f"{length} bytes")
    if content is not None and (got := sha256(content)) != expected:
        raise DamagedRun(directory, f"{name} with sha256 {expected[:12]}…", f"{got[:12]}…")
    return content


def commit(
    directory: Path, document: Mapping[str, Any], contents: Mapping[str, bytes], seen: set[bytes]
) -> None:
    """Replace what a run directory has, so that it is whole whenever this is cut off.

    Args:
        directory: Of the run.
        document: Its status, without the files.
        contents: Its files by kind.
        seen: The status that may be replaced; afterwards the new one.

    Raises:
        LostClaim: If there is another status than that.
        DamagedRun: If the status that is there, or the directory, cannot be used.
        OSError: If the file system refuses.
    """
    if status_bytes(directory) is None:
        _commit_first(directory, document, contents, seen)
        return
    try:
        with _alone(directory):
            # again, since nobody else replaces it from now on
            raw = status_bytes(directory) or b""
            present = _parse(directory, raw)["files"]
            if raw not in seen:
                raise LostClaim(directory)
            try:
                files = _write_all(directory, document, contents, present, seen)
            except OSError:
                # leave nothing behind that no status names
                with contextlib.suppress(OSError, DamagedRun):
                    _tidy(directory, _parse(directory, status_bytes(directory) or b"")["files"])
                raise
            _tidy(directory, files)
    except OSError as error:
        if error.errno not in _OF_ONE_DIRECTORY:
            raise
        got = error.strerror or str(error)
        raise DamagedRun(directory, "to write new files", got) from error


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep others from committing; one who commits at the moment has the claim."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(directory))
        except TimeoutError as error:
            raise LostClaim(directory) from error
        yield


def _commit_first(
    directory: Path, document: Mapping[str, Any], contents: Mapping[str, bytes], seen: set[bytes]
) -> None:
    """Prepare a whole directory under another name, then give it its own."""
    make_directory(directory.parent)
    place = directory.with_name(directory.name + ".new")
    _clear(place)
    os.mkdir(place)
    try:
        _write_all(place, document, contents, {}, seen)
        try:
            os.rename(place, directory)
        except OSError as error:
            if not os.path.lexists(directory):
                raise
            # the directory of somebody else, which a rename does not replace
            raise LostClaim(directory) from error
        sync_directory(directory.parent)
    except (OSError, LostClaim):
        shutil.rmtree(place, ignore_errors=True)
        raise


def _clear(place: Path) -> None:
    """Remove what a process that died has left at the name of a new directory, or a link there."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(place).st_mode):
            shutil.rmtree(place)
        else:
            os.unlink(place)


def _write_all(
    place: Path,
    document: Mapping[str, Any],
    contents: Mapping[str, bytes],
    present: Mapping[str, Mapping[str, Any]],
    seen: set[bytes],
) -> dict[str, Mapping[str, Any]]:
    """Write the files that are not among the present ones, then the status; all files."""
    taken = {record["name"] for record in present.values()}
    files: dict[str, Mapping[str, Any]] = {}
    for kind, content in contents.items():
        record = {"bytes": len(content), "sha256": sha256(content)}
        old = present.get(kind)
        if old is not None and {**old, **record} == old:
            files[kind] = old
            continue
        name = _free_name(kind, document["epoch"], taken)
        write_file(place / name, content)
        files[kind] = {"name": name, **record}
    if present:
        # the names must last before a status that mentions them can
        sync_directory(place)
    status = dump(sealed({**document, "files": files}))
    # before it is written: an error may come when it is there already
    seen.add(status)
    write_file(place / _STATUS, status)
    sync_directory(place)
    seen.intersection_update((status,))
    return files


def _tidy(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Delete what commits have left and the status does not name."""
    named = {record["name"] for record in files.values()}
    for name in os.listdir(directory):
        if name not in named and _OURS.fullmatch(name):
            with contextlib.suppress(OSError):
                os.unlink(directory / name)


def _free_name(kind: str, epoch: int, taken: set[str]) -> str:
    """A name that the present status does not use."""
    plain = [kind] if kind == "config" else []
    numbered = (f"{kind}-{epoch}" + f"-{n}" * (n > 0) for n in itertools.count())
    stems = itertools.chain(plain, numbered)
    return next(name for stem in stems if (name := stem + SUFFIXES[kind]) not in taken)


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
