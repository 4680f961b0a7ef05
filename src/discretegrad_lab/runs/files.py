"""Files that are whole or not there, and where directories would be made."""

import contextlib
import errno
import os
import stat
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a process that is cut off leaves the old one as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(path.name + ".partial")
    try:
        partly.write_bytes(content.encode() if isinstance(content, str) else content)
        partly.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partly.unlink()
        raise


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
