"""Files that are whole or not there."""

import contextlib
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
