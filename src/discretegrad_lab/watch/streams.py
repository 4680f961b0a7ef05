"""Standard streams that never fail: a log that cannot be written must not end training.

Below ``sys.stdout`` and ``sys.stderr`` is a file that takes whatever it is given. After the first
error, be it a full disk, a closed descriptor, a terminal that is gone or a reader that went away,
it drops the rest and says so once.
"""

import io
import os
import select
import sys
from typing import Any, TextIO

_PART = 4096
"""Bytes that are written at once; a pipe that can take any can take these without waiting."""


class Stream(io.FileIO):
    """A descriptor that can always be written.

    Args:
        descriptor: Its number; it is not closed.
        label: What messages call it.
    """

    def __init__(self, descriptor: int, label: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.label = label
        self.problem = ""
        """Why nothing more is written, as soon as that is so."""
        self.reader_left = False
        """Whether that is because its reader went away, which is often meant, as with ``head``."""
        self.patience: float | None = None
        """Seconds to wait for a reader that does not read; None for ever."""

    def write(self, data: Any) -> int:
        """Write some of the data, or drop all of it."""
        view = memoryview(data).cast("B")
        if not self.problem:
            try:
                return self._part(view[:_PART])
            except OSError as error:
                self.reader_left = isinstance(error, BrokenPipeError)
                self.problem = (
                    f"expected to write to {self.label}, got: {error.strerror or error}; nothing "
                    "more is written there"
                )
                _say(self)
        return len(view)

    def _part(self, view: memoryview) -> int:
        while self.patience is None or ready(self.fileno(), self.patience):
            count = super().write(view)
            # None is a pipe that refuses to wait, which somebody has to do
            if count is not None or not ready(self.fileno(), self.patience):
                return count or 0
        raise TimeoutError(f"nobody has read it for {self.patience:g} s")


_streams: dict[str, Stream] = {}
_training = False


def guard() -> None:
    """Put a ``Stream`` below stdout and stderr; a descriptor that is closed is taken.

    Else the next file that is opened would have its number, and be written what was meant for it.
    """
    global _training
    _training = False
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # to be read only: whoever writes is refused, as before
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
    for descriptor, label in ((1, "stdout"), (2, "stderr")):
        old: TextIO | None = getattr(sys, label)
        buffer = getattr(old, "buffer", None)
        # what is no file, such as a console of Windows, stays as it is
        if old is None or isinstance(getattr(buffer, "raw", buffer), io.FileIO):
            _streams[label] = Stream(descriptor, label)
            setattr(sys, label, _text(_streams[label], old))


def _text(stream: Stream, old: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(stream),
        encoding=old.encoding if old else "utf-8",
        # a question mark is better than no table where a terminal knows only ASCII
        errors="replace",
        line_buffering=not old or old.line_buffering or old.write_through,
    )


def begin_training(patience: float) -> None:
    """Go on without a reader that does not read for so many seconds, and say if one goes away."""
    global _training
    _training = True
    for stream in _streams.values():
        stream.patience = patience


def problems() -> list[str]:
    """Why streams are silent, for those that are."""
    return [stream.problem for stream in _streams.values() if stream.problem]


def end(code: int) -> int:
    """Write what is left; the exit code, which is 1 if a result was lost on stdout.

    The result of training is in its files, and a reader who went away has had enough.
    """
    for label in _streams:
        getattr(sys, label).flush()
    out = _streams.get("stdout")
    lost = out is not None and bool(out.problem) and not (out.reader_left or _training)
    return code or int(lost)


def ready(descriptor: int, seconds: float | None) -> bool:
    """Whether a descriptor can be written, or has an error to tell, within so many seconds."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))


def _say(lost: Stream) -> None:
    """Tell on stderr that stdout is silent; stdout may be for programs, so not the other way."""
    other = _streams.get("stderr")
    if other is not None and lost is not other and (_training or not lost.reader_left):
        other.write(f"discretegrad: {lost.problem}\n".encode())
