"""A stream whose reader may go away."""

import contextlib
import os
from typing import Any, TextIO


class Pipe:
    """A stream that goes silent when its reader goes away: training must not end with `head`."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._open = file, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write, if somebody reads."""
        self._unless_broken(lambda: self._file.write(text))
        return len(text)

    def flush(self) -> None:
        """Pass on what was written, if somebody reads."""
        self._unless_broken(self._file.flush)

    def _unless_broken(self, action: Any) -> None:
        if self._open:
            try:
                action()
            except BrokenPipeError:
                self._silence()

    def _silence(self) -> None:
        self._open = False
        # what is left in buffers has to go somewhere, or Python fails when it flushes them at exit;
        # streams in memory have no descriptor
        with contextlib.suppress(OSError):
            closed = os.fstat(self._file.fileno())
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # stdout and stderr are the same pipe after 2>&1
            for descriptor in {self._file.fileno(), 1, 2}:
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(descriptor), closed):
                        os.dup2(nowhere, descriptor)
            os.close(nowhere)
