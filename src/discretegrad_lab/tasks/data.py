"""Data sets: where they are looked for, how they are checked, read and fetched.

A data directory holds one folder for each data set, with the files as their authors publish them.
It is looked for in three places: an option, the environment variable ``DISCRETEGRAD_DATA``, the
user's cache directory. A file counts only if its checksum is right, so it does not matter which of
them it comes from.
"""

import contextlib
import csv
import gzip
import hashlib
import http.client
import math
import os
import queue
import secrets
import struct
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

ENVIRONMENT = "DISCRETEGRAD_DATA"
_AT_ONCE = 1 << 17
_TIMEOUT = 30
"""Seconds that a source may be silent."""
_ANSWER = 60
"""Seconds until a source must have begun to send a file."""
_LONGEST = 900
"""Seconds until it must have sent it."""

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that are there and all its bytes where that is known."""


class DataError(ValueError):
    """A data set cannot be used or fetched; the message says why and what to do."""


class IdxFile(NamedTuple):
    """A gzip file of unsigned bytes in the idx format of MNIST."""

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def most_bytes(self) -> int:
        """It cannot have more: what gzip cannot make smaller it makes hardly larger."""
        plain = 4 + 4 * len(self.shape) + math.prod(self.shape)
        return plain + plain // 100 + 1024


class PlainFile(NamedTuple):
    """A file that a task reads in its own way."""

    name: str
    most_bytes: int
    """Its size."""
    sha256: str
    address: str = ""
    """Where the public has it, maybe under another name; empty if it has not."""


DataFile = IdxFile | PlainFile


@dataclass(frozen=True)
class DataSet:
    """What a folder of the data directory holds, and where the public has it from."""

    name: str
    files: tuple[DataFile, ...]
    sources: tuple[str, ...] = ()
    """Addresses of folders with all files, tried in this order."""

    def addresses(self, file: DataFile) -> list[str]:
        """Where the public has a file."""
        own = [file.address] if isinstance(file, PlainFile) and file.address else []
        return own + [source + file.name for source in self.sources]


class Report(NamedTuple):
    """What became of the search for a file."""

    data_set: str
    file: str
    state: Literal["ok", "missing", "damaged"]
    path: Path | None
    """Where it is; None if it is missing."""
    reason: str = ""
    """Why it is damaged."""


class Images(NamedTuple):
    """Grey pixels from 0 to 255, one image in a row."""

    train: Tensor
    test: Tensor


_SOURCES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
}


def _data_sets() -> Iterator[DataSet]:
    with Path(__file__).with_name("data_sets.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name in dict.fromkeys(row["data_set"] for row in rows):
        files = (_file(row) for row in rows if row["data_set"] == name)
        yield DataSet(name, tuple(files), _SOURCES.get(name, ()))


def _file(row: dict[str, str]) -> DataFile:
    if row["shape"]:
        return IdxFile(row["file"], tuple(map(int, row["shape"].split())), row["sha256"])
    return PlainFile(row["file"], int(row["bytes"]), row["sha256"], row["address"])


DATA_SETS = {data_set.name: data_set for data_set in _data_sets()}


def directories(option: Path | None = None) -> list[Path]:
    """The data directories in the order of the search; they need not exist."""
    places = [] if option is None else [Path(option).expanduser()]
    if named := os.environ.get(ENVIRONMENT):
        places.append(Path(named).expanduser())
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # the standard of these variables says to ignore what is not absolute
    home = cache if cache.is_absolute() else Path("~/.cache").expanduser()
    places.append(home / "discretegrad")
    return list(dict.fromkeys(places))


def check(directory: Path | None = None) -> list[Report]:
    """For every file of every data set whether it is there and whole.

    Args:
        directory: The first place to look at, before the environment variable and the cache.
    """
    return [
        _search(data_set, file, directory)[0]
        for data_set in DATA_SETS.values()
        for file in data_set.files
    ]


def require(names: Sequence[str], directory: Path | None = None) -> None:
    """Raise ``DataError`` unless every file of these data sets is there and whole."""
    for name in names:
        for file in _data_set(name).files:
            _whole(DATA_SETS[name], file, directory)


def load_mnist(directory: Path | None = None) -> Images:
    """The images of MNIST, uint8: train (60000, 784), test (10000, 784).

    Args:
        directory: The first place to look at, before the environment variable and the cache.

    Raises:
        DataError: If a file is in none of the places, or damaged wherever it is.
    """
    data_set = DATA_SETS["mnist"]
    train, test = (_read(data_set, file, directory).flatten(1) for file in _idx_files(data_set, 3))
    return Images(train, test)


def load_mnist_digits(directory: Path | None = None) -> Tensor:
    """The digits of the training images of MNIST, uint8 (60000,); raises as ``load_mnist``."""
    data_set = DATA_SETS["mnist"]
    return _read(data_set, _idx_files(data_set, 1)[0], directory)


def read_file(name: str, file_name: str, directory: Path | None = None) -> tuple[Path, bytes]:
    """Where a file of a data set is, and its content; raises as ``load_mnist``."""
    data_set = _data_set(name)
    return _whole(data_set, next(x for x in data_set.files if x.name == file_name), directory)


def fetch(name: str, directory: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Download a data set from its public source; files that are there and whole are kept.

    A file appears under its name only when it is complete and its checksum is right. Sources that
    are slower than a limit, or send more than the file can have, are given up.

    Args:
        name: A name of ``DATA_SETS``.
        directory: The data directory to put it in; by default the first one of the search.
        progress: Called while a file arrives.

    Returns:
        The files that were downloaded.

    Raises:
        DataError: If a file came from none of its sources, or cannot be written.
    """
    data_set = _data_set(name)
    folder = directories(directory)[0] / name
    _clear(folder)
    fetched = []
    for file in data_set.files:
        path = folder / file.name
        if _state(path, file)[0] != "ok":
            _fetch_file(data_set, file, path, progress)
            fetched.append(path)
    return fetched


def read_idx(content: bytes, shape: tuple[int, ...], name: str) -> Tensor:
    """The bytes of a compressed idx file as a uint8 tensor.

    Args:
        content: All of the compressed file.
        shape: What it should hold.
        name: What error messages call it.
    """
    try:
        plain = gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"expected {name} to be a whole gzip file, got one that cannot be unpacked: {error}"
        ) from error
    # two zeros, 8 for unsigned bytes, the number of axes; then each axis in 4 bytes
    start = 4 + 4 * len(shape)
    if plain[:4] != bytes((0, 0, 8, len(shape))):
        raise DataError(
            f"expected {name} to begin like an idx file of bytes with {len(shape)} axes, "
            f"got {plain[:4].hex(' ')}"
        )
    sizes = struct.unpack(f">{len(shape)}I", plain[4:start].ljust(start - 4, b"\0"))
    if sizes != shape:
        raise DataError(f"expected {name} to hold {_by(shape)} bytes, got {_by(sizes)}")
    if len(plain) != start + math.prod(shape):
        raise DataError(
            f"expected {math.prod(shape)} bytes after the header of {name}, "
            f"got {len(plain) - start}"
        )
    return torch.frombuffer(bytearray(plain), dtype=torch.uint8, offset=start).view(shape)


def _by(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def _idx_files(data_set: DataSet, axes: int) -> list[IdxFile]:
    return [x for x in data_set.files if isinstance(x, IdxFile) and len(x.shape) == axes]


def _state(path: Path, file: DataFile) -> tuple[Literal["ok", "missing", "damaged"], str, bytes]:
    """The state of a file, why it is damaged, and its content."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return "missing", "", b""
    except OSError as error:
        return "damaged", f"cannot be read: {error.strerror}", b""
    got = hashlib.sha256(content).hexdigest()
    if got != file.sha256:
        return "damaged", f"{len(content)} bytes with sha256 {got}, expected {file.sha256}", b""
    return "ok", "", content


def _search(data_set: DataSet, file: DataFile, directory: Path | None) -> tuple[Report, bytes]:
    """The first place with the file whole, else the first one with it damaged; its content."""
    report = Report(data_set.name, file.name, "missing", None)
    for place in directories(directory):
        path = place / data_set.name / file.name
        state, reason, content = _state(path, file)
        if state == "ok" or (state == "damaged" and report.state == "missing"):
            report = Report(data_set.name, file.name, state, path, reason)
        if state == "ok":
            return report, content
    return report, b""


def _data_set(name: str) -> DataSet:
    if name not in DATA_SETS:
        raise ValueError(f"expected a data set of {', '.join(DATA_SETS)}, got {name!r}")
    return DATA_SETS[name]


def _read(data_set: DataSet, file: IdxFile, directory: Path | None) -> Tensor:
    path, content = _whole(data_set, file, directory)
    return read_idx(content, file.shape, str(path))


def _whole(data_set: DataSet, file: DataFile, directory: Path | None) -> tuple[Path, bytes]:
    """Where a file is and what is in it, if it is whole."""
    report, content = _search(data_set, file, directory)
    if report.state == "ok" and report.path is not None:
        return report.path, content
    searched = ", ".join(map(str, directories(directory)))
    state = "none" if report.path is None else f"{report.path}, which is damaged ({report.reason})"
    public = data_set.addresses(file)
    how = f"run `discretegrad data fetch {data_set.name}`, or" if public else "it is not public:"
    raise DataError(
        f"expected {data_set.name}/{file.name} in one of the data directories {searched}, "
        f"got {state}; {how} name the directory that has it in the environment variable "
        f"{ENVIRONMENT}"
    )


class _SourceFailed(Exception):
    """One source does not give the file; another one may."""


def _fetch_file(data_set: DataSet, file: DataFile, path: Path, progress: Progress | None) -> None:
    failures = []
    for address in data_set.addresses(file):
        try:
            with _open(address) as response:
                _receive(response, file, path, progress)
            return
        except _SourceFailed as failure:
            failures.append(f"{address}: {failure}")
        except OSError as error:
            raise DataError(
                f"expected to write {path}, got: {error.strerror or error}; make room and see that "
                f"you may write there, or choose another directory with {ENVIRONMENT}"
            ) from error
    raise DataError(
        f"expected to download {data_set.name}/{file.name}, but no source gave it "
        f"({'; '.join(failures) or 'the public has none'}); "
        f"{'try again with a network, or ' if failures else ''}copy the file to {path}"
    )


def _clear(folder: Path) -> None:
    """Delete parts of files that processes have left which were killed."""
    for part in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            # others may be fetching: theirs has just been written
            if time.time() - part.stat().st_mtime > _LONGEST:
                part.unlink()


def _open(address: str) -> http.client.HTTPResponse:
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
        raise _SourceFailed(f"no answer within {_ANSWER} s") from None
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
        raise _SourceFailed(f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        raise _SourceFailed(reason) from error


def _check_size(file: DataFile, size: int) -> None:
    if size > file.most_bytes:
        raise _SourceFailed(f"{size} bytes or more, expected {file.most_bytes} at most")


def _receive(
    response: http.client.HTTPResponse, file: DataFile, path: Path, progress: Progress | None
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
                    raise _SourceFailed(f"only {done} bytes within {_LONGEST} s")
                target.write(piece)
                digest.update(piece)
                if progress is not None:
                    progress(file.name, done, total)
            target.flush()
            os.fsync(target.fileno())
        if total is not None and done < total:
            raise _SourceFailed(f"the connection ended after {done} of {total} bytes")
        if digest.hexdigest() != file.sha256:
            raise _SourceFailed(
                f"wrong checksum, so what came was deleted (sha256 {digest.hexdigest()}, "
                f"expected {file.sha256})"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
