"""How the lab reads and writes whatever it stores: plain files that are whole or not there.

Reading opens nothing but a plain file, so a link, a device or a pipe that lies at its name neither
leads elsewhere nor blocks. Writing makes a new file of a name that nobody else has, lets it last
and only then gives it its name, so whoever looks sees the old file or the new one. A document that
is sealed has a checksum of itself.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..tasks.checks import is_plain_name

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

# a system without a flag has nothing that the flag is against
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Reasons why a file cannot be read that have nothing to do with that file."""
_AT_ONCE = 1 << 28
"""Bytes that are asked for at a time, since there is memory for all that are asked for."""
_LONGEST_NAME = 200
"""Bytes of a name that leave room for the ending of a temporary one."""
TEMPORARY = r"\.[0-9a-f]{8}\.tmp"
"""What the name of a file that is being written ends with, as a regular expression."""


class UnusableFile(ValueError):
    """A file cannot be read, or is no plain file; the message names it and says why."""

    def __init__(self, path: Path, reason: str, *, missing: bool = False) -> None:
        super().__init__(f"{path.name}: {reason}")
        self.path, self.reason, self.missing = path, reason, missing


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """Turn what the system says about a file into an ``UnusableFile``."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_THE_PROCESS:
            raise
        missing = error.errno == errno.ENOENT
        reason = "no such file" if missing else error.strerror or str(error)
        if error.errno == errno.ELOOP and path.is_symlink():
            reason = "a link"
        raise UnusableFile(path, reason, missing=missing) from error


def _plain_size(path: Path, status: os.stat_result) -> int:
    if stat.S_ISDIR(status.st_mode):
        raise UnusableFile(path, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile(path, "a link" if stat.S_ISLNK(status.st_mode) else "no plain file")
    return status.st_size


def size_of(path: Path) -> int:
    """The bytes of a plain file.

    Raises:
        UnusableFile: If there is none.
    """
    with _about(path):
        return _plain_size(path, os.lstat(path))


def read_file(path: Path, most: int) -> bytes:
    """The content of a plain file.

    Args:
        path: The file.
        most: How many bytes it may have.

    Raises:
        UnusableFile: If there is none, or it is larger or cannot be read.
    """
    with _about(path):
        descriptor = os.open(path, os.O_RDONLY | _NO_LINKS | _NO_WAITING)
        try:
            size = _plain_size(path, os.fstat(descriptor))
            if size > most:
                raise UnusableFile(path, f"{size:,} bytes, which is more than {most:,}")
            parts = []
            # not further than it was long, though it may grow meanwhile
            while size > 0 and (part := os.read(descriptor, min(size, _AT_ONCE))):
                parts.append(part)
                size -= len(part)
            return b"".join(parts)
        except MemoryError as error:
            raise UnusableFile(path, f"no memory for its {size:,} bytes") from error
        finally:
            os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a file that lasts; its name lasts after ``sync_directory``.

    A process that is cut off leaves the old file as it was.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that lasts with its name, and make its directory if there is none."""
    make_directory(path.parent)
    write_file(path, content.encode() if isinstance(content, str) else content)
    sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Make a directory that lasts, and those above it, unless it is there."""
    if directory.is_dir():
        return
    if directory.parent != directory:
        make_directory(directory.parent)
    try:
        os.mkdir(directory)
    except FileExistsError:
        # another process may have made it meanwhile
        if not directory.is_dir():
            raise
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Let the names in a directory last; not every system can, or needs it."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(directory: Path, seconds: float = 0.0) -> Iterator[None]:
    """Let one writer at a time into a directory.

    The lock is on the directory itself, so there is no file whose deletion would let two in. Where
    the file system has no locks, everybody is let in.

    Args:
        directory: The directory, which must be there.
        seconds: How long to wait for another writer.

    Raises:
        TimeoutError: If another writer has it for longer than that.
    """
    if fcntl is None:
        yield
        return
    until = time.monotonic() + seconds
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise TimeoutError(
                        errno.ETIMEDOUT, "another process is writing there", str(directory)
                    ) from error
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)


def is_name(text: object) -> bool:
    """Whether it is a plain name that is not too long."""
    return is_plain_name(text) and len(str(text).encode()) <= _LONGEST_NAME


def dump(document: object) -> bytes:
    """A document as the bytes of a file."""
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def parse(content: bytes) -> Any:
    """The document of a JSON file.

    Raises:
        ValueError: If it is none: no UTF-8, names that occur twice, numbers that are none, texts
            that cannot be written, or too deep.
    """
    try:
        document = json.loads(
            content.decode(), object_pairs_hook=_different, parse_constant=_refuse
        )
        # half of a pair of surrogates is no text
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return document


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name that occurs twice")
    return document


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant}, which is no number of JSON")


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """A document with the checksum of itself."""
    return {**document, "sha256": sha256(dump(document))}


def unsealed(content: bytes) -> dict[str, Any] | None:
    """The document of a sealed file, without its checksum; None if it is not as it was written."""
    try:
        document = json.loads(content)
        if not isinstance(document, dict):
            return None
        document.pop("sha256", None)
        return document if dump(sealed(document)) == content else None
    except (ValueError, RecursionError):
        return None


def sha256(content: bytes) -> str:
    """The checksum of a content."""
    return hashlib.sha256(content).hexdigest()


def is_checksum(value: object) -> bool:
    """Whether a value can be one of ``sha256``."""
    return isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef")


def is_whole(value: object, least: int, most: int = 2**53) -> bool:
    """Whether a value is a whole number of a range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def nearest_directory(path: Path) -> Path:
    """A directory itself, or that which it would be made in.

    Raises:
        OSError: If a file is in the way, or it cannot be told.
    """
    place = path.absolute()
    while True:
        try:
            # unlike `exists`, says why it cannot tell
            kind = place.stat().st_mode
        except FileNotFoundError:
            place = place.parent
        else:
            if not stat.S_ISDIR(kind):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return place
