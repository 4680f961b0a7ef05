"""The files that a report is made from: they change together, and ``checksums.json`` names them.

They are written as runs are, see ``runs.disk``, but keep their names, so that a version control
system can show what changed. New files are written beside the old ones as ``<name>.<digits>.new``,
where the digits are the first ones of their checksums. Then ``checksums.json`` is replaced, and
from then on the new files are what there is, also for a reader who finds them under those names.
Last they get their own names. So whenever a process or the machine dies, all files are the old ones
or all are the new ones.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..runs.files import (
    TEMPORARY,
    UnusableFile,
    dump,
    is_checksum,
    is_name,
    is_whole,
    locked,
    make_directory,
    read_file,
    sealed,
    sha256,
    sync_directory,
    unsealed,
    write_file,
)
from ..tasks import given_as

CHECKSUMS = "checksums.json"
FORMAT = 1
"""Of ``checksums.json``; raise it when an older discretegrad could misread it."""
_LARGEST = 1 << 28
"""Bytes that a file may have to be read at all."""
_WAIT = 30.0
"""Seconds to wait for another process that writes the same folder."""


def write_sources(folder: Path, contents: Mapping[str, str]) -> None:
    """Replace the files of a folder, by name, so that it is whole whenever this is cut off."""
    make_directory(folder)
    files = {name: content.encode() for name, content in contents.items()}
    records = {name: _record(content) for name, content in files.items()}
    with locked(folder, _WAIT):
        with contextlib.suppress(ValueError):
            # what a process that died has begun, unless that is damaged
            _finish(folder)
        try:
            for name, content in files.items():
                write_file(_new(folder, name, records[name]), content)
            # the names must last before checksums that mention them can
            sync_directory(folder)
            write_file(folder / CHECKSUMS, dump(sealed({"format": FORMAT, "files": records})))
        except OSError:
            _tidy(folder, files)
            raise
        sync_directory(folder)
        _finish(folder)


def _finish(folder: Path) -> None:
    """Give new files their own names; those that they have had go once the others last."""
    seal = _seal(folder)
    if seal is None:
        return
    files = _records(seal)
    for name, record in files.items():
        with contextlib.suppress(UnusableFile):
            content = _read(_new(folder, name, record))
            if _record(content) == record:
                write_file(folder / name, content)
    sync_directory(folder)
    _tidy(folder, (CHECKSUMS, *files))


def write_derived(folder: Path, make: Callable[[], Mapping[str, str]]) -> None:
    """Write files that follow from these, and need no checksums; ``make`` gives them by name."""
    make_directory(folder)
    with locked(folder, _WAIT):
        contents = make()
        for name, text in contents.items():
            write_file(folder / name, text.encode())
        _tidy(folder, contents)
        sync_directory(folder)


def read_sources(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The files of a folder that are among these names, as they were written.

    A folder of an older discretegrad has no checksums; its files are taken as they are.

    Raises:
        ValueError: If one is missing, or is not what was written.
    """
    while True:
        seal = _seal(folder)
        if seal is None:
            return {name: _read(folder / name) for name in names if _exists(folder / name)}
        try:
            files = _records(seal)
            present = [name for name in names if name in files or _exists(folder / name)]
            return {name: _verified(folder, name, files.get(name)) for name in present}
        except ValueError:
            # not if another process has replaced the files meanwhile
            if _seal(folder) == seal:
                raise


def has_file(folder: Path, name: str) -> bool:
    """Whether a folder has something of this name."""
    return _exists(folder / name)


def has_sources(folder: Path, name: str) -> bool:
    """Whether a folder has a file, with or without checksums."""
    return has_file(folder, name) or has_file(folder, CHECKSUMS)


def lack(folder: Path, name: str) -> str | None:
    """That a folder has this file but no checksums, in words; None if it has them."""
    if _exists(folder / CHECKSUMS) or not _exists(folder / name):
        return None
    return (
        f"expected {CHECKSUMS} in {folder}, got none, so damage to these results cannot be seen; "
        f"write it with {writer(folder)}"
    )


def writer(folder: Path) -> str:
    """The command that writes the report in a folder, in words."""
    name, *changes = folder.name.split("@")
    given = given_as(name)
    if given is None:
        return (
            "`discretegrad report` and the Python file, or the options, that it was given when it "
            f"wrote {folder}"
        )
    options = [word for change in changes for word in ("--set", change)]
    return f"`{shlex.join(['discretegrad', 'report', given, *options])}`"


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _read(path: Path) -> bytes:
    return read_file(path, _LARGEST)


def _seal(folder: Path) -> bytes | None:
    try:
        return _read(folder / CHECKSUMS)
    except UnusableFile as error:
        if error.missing:
            return None
        raise


def _record(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": sha256(content)}


def _records(seal: bytes) -> dict[str, dict[str, Any]]:
    """What ``checksums.json`` says of each file."""
    document = unsealed(seal)
    if document is None:
        raise ValueError(f"a {CHECKSUMS} that is not as it was written")
    version, files = document.get("format"), document.get("files")
    if is_whole(version, FORMAT + 1):
        raise ValueError(
            f"a {CHECKSUMS} of version {version}, which is newer than version {FORMAT}"
        )
    if not (
        version == FORMAT
        and isinstance(files, dict)
        and all(is_name(name) and _is_record(record) for name, record in files.items())
    ):
        raise ValueError(f"a {CHECKSUMS} without names, sizes and checksums")
    return files


def _is_record(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "sha256"}
        and is_whole(value["bytes"], 0, _LARGEST)
        and is_checksum(value["sha256"])
    )


def _new(folder: Path, name: str, record: Mapping[str, Any]) -> Path:
    """Where a file is until it gets its name."""
    return folder / f"{name}.{record['sha256'][:8]}.new"


def _verified(folder: Path, name: str, record: Mapping[str, Any] | None) -> bytes:
    if record is None:
        raise ValueError(f"{name}, which {CHECKSUMS} does not name")
    # in this order: what has no longer this name has its own
    for path in (_new(folder, name, record), folder / name):
        try:
            content = _read(path)
        except UnusableFile:
            if path.name == name:
                raise
        else:
            if _record(content) == record:
                return content
    raise ValueError(f"{name} with another checksum than {CHECKSUMS} says")


def _tidy(folder: Path, names: Iterable[str]) -> None:
    """Delete what writers of these files have left behind; while the folder is locked."""
    left = re.compile(
        rf"({'|'.join(map(re.escape, names))})(\.[0-9a-f]{{8}}\.new)?({TEMPORARY})?", re.ASCII
    )
    for name in os.listdir(folder):
        if name.endswith((".new", ".tmp")) and left.fullmatch(name):
            os.unlink(folder / name)
