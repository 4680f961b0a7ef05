"""Download a file from one of its public sources: whole and with the right checksum, or not."""

import contextlib
import hashlib
import http.client
import os
import queue
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

_AT_ONCE = 1 << 17
_TIMEOUT = 30
"""Seconds that a source may be silent."""
_ANSWER = 60
"""Seconds until a source must have begun to send a file."""
_LONGEST = 900
"""Seconds until it must have sent it."""

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that are there and all its bytes where that is known."""


class Expected(Protocol):
    """What is known of a file before it comes."""

    @property
    def name(self) -> str:
        """Without a folder."""

    @property
    def sha256(self) -> str:
        """Its checksum."""

    @property
    def most_bytes(self) -> int:
        """It cannot have more."""


class SourceFailed(Exception):
    """One source does not give the file; another one may."""


def clear(folder: Path) -> None:
    """Delete parts of files that processes have left which were killed."""
    for part in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            # others may be fetching: theirs has just been written
            if time.time() - part.stat().st_mtime > _LONGEST:
                part.unlink()


def open_source(address: str) -> http.client.HTTPResponse:
    """What a source answers.

    It is asked in another thread, which can be left alone: looking a name up has no time limit, and
    that of a socket begins anew with every byte of the headers.
    """
    answers: queue.SimpleQueue[http.client.HTTPResponse | Exception] = queue.SimpleQueue()
    given_up = threading.Event()

    def ask() -> None:
        try:
            response = urllib.request.urlopen(address, timeout=_TIMEOUT)
        except Exception as error:
            answers.put(error)
        else:
            answers.put(response)
            if given_up.is_set():
                response.close()

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=_ANSWER)
    except queue.Empty:
        given_up.set()
        raise SourceFailed(f"no answer within {_ANSWER} s") from None
    with _of_source():
        if isinstance(answer, Exception):
            raise answer
    return answer


@contextlib.contextmanager
def _of_source() -> Iterator[None]:
    """Errors of the network are those of a source."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise SourceFailed(f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        raise SourceFailed(reason) from error


def _check_size(file: Expected, size: int) -> None:
    if size > file.most_bytes:
        raise SourceFailed(f"{size} bytes or more, expected {file.most_bytes} at most")


def receive(
    response: http.client.HTTPResponse, file: Expected, path: Path, progress: Progress | None
) -> None:
    """Put what comes at the path if it is what it should be; otherwise leave nothing."""
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdecimal() and len(length) < 20 else None
    digest, done, deadline = hashlib.sha256(), 0, time.monotonic() + _LONGEST
    if total is not None:
        _check_size(file, total)
    path.parent.mkdir(parents=True, exist_ok=True)
    # a name of its own, so that two processes can fetch at once
    part = path.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as target:
            while True:
                with _of_source():
                    # of what is there, so that the limits are looked at before all has come
                    piece = response.read1(_AT_ONCE)
                if not piece:
                    break
                done += len(piece)
                _check_size(file, done)
                if time.monotonic() > deadline:
                    raise SourceFailed(f"only {done} bytes within {_LONGEST} s")
                target.write(piece)
                digest.update(piece)
                if progress is not None:
                    progress(file.name, done, total)
            target.flush()
            os.fsync(target.fileno())
        if total is not None and done < total:
            raise SourceFailed(f"the connection ended after {done} of {total} bytes")
        if digest.hexdigest() != file.sha256:
            raise SourceFailed(
                f"wrong checksum, so what came was deleted (sha256 {digest.hexdigest()}, "
                f"expected {file.sha256})"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
