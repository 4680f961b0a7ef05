"""Data sets: where they are looked for, how they are checked, read and fetched.

A data directory holds one folder for each data set, with the files as their authors publish them.
It is looked for in three places: an option, the environment variable ``DISCRETEGRAD_DATA``, the
user's cache directory. A file counts only if its checksum is right, so it does not matter which of
them it comes from.
"""

import csv
import gzip
import hashlib
import io
import math
import os
import secrets
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .download import Progress, SourceFailed, clear, open_source, receive

ENVIRONMENT = "DISCRETEGRAD_DATA"


class DataError(ValueError):
    """A data set cannot be used or fetched; the message says why and what to do."""


class IdxFile(NamedTuple):
    """A gzip file of unsigned bytes in the idx format of MNIST, or such an array in an npz file."""

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def most_bytes(self) -> int:
        """It cannot have more: what gzip cannot make smaller it makes hardly larger."""
        plain = 4 + 4 * len(self.shape) + math.prod(self.shape)
        return plain + plain // 100 + 1024


class PlainFile(NamedTuple):
    """A file that its readers know."""

    name: str
    sha256: str
    most_bytes: int
    address: str = ""
    """Where the public has it, maybe under another name; empty if a source of its data set has
    it, or nobody."""


File = IdxFile | PlainFile


@dataclass(frozen=True)
class DataSet:
    """What a folder of the data directory holds, and where the public has it from."""

    name: str
    files: tuple[File, ...]
    sources: tuple[str, ...]
    """Addresses of folders, tried in this order."""
    archive: PlainFile | None = None
    """The tar file with all of them, if the sources have them together."""

    def addresses(self, file: File) -> list[str]:
        """Where the public has a file, to be tried in this order."""
        own = [file.address] if isinstance(file, PlainFile) and file.address else []
        return own + [source + file.name for source in self.sources]

    @property
    def public(self) -> bool:
        """Whether all of it can be downloaded."""
        return all(map(self.addresses, self.files))

    def remedy(self, file: File) -> str:
        """What to do if a file is not there."""
        return f"run `discretegrad data fetch {self.name}`" if self.addresses(file) else _COPY


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


class Labels(NamedTuple):
    """The class of each image, uint8 from 0 to 9."""

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
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}
_ARCHIVES = {
    # of which the training images are unpacked, since nothing uses the others
    "cifar10": PlainFile(
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170_052_171,
    ),
}
_COPY = "no public source has it: copy it from a machine that does"


def _data_sets() -> Iterator[DataSet]:
    with Path(__file__).with_name("data_sets.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name in dict.fromkeys(row["data_set"] for row in rows):
        files = tuple(_file(row) for row in rows if row["data_set"] == name)
        yield DataSet(name, files, _SOURCES.get(name, ()), _ARCHIVES.get(name))


def _file(row: dict[str, str]) -> File:
    """A line of the table of files: an idx file has a shape, others have a number of bytes."""
    if row["shape"]:
        return IdxFile(row["file"], tuple(map(int, row["shape"].split())), row["sha256"])
    return PlainFile(row["file"], row["sha256"], int(row["bytes"]), row["address"])


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
    """The images of MNIST, as ``load_images``."""
    return load_images("mnist", directory)


def load_images(name: str, directory: Path | None = None) -> Images:
    """The images of MNIST or Fashion-MNIST, uint8: train (60000, 784), test (10000, 784).

    Args:
        name: Of the data set.
        directory: The first place to look at, before the environment variable and the cache.

    Raises:
        DataError: If a file is in none of the places, or damaged wherever it is.
    """
    train, test = _of_axes(3, name, directory)
    return Images(train.flatten(1), test.flatten(1))


def load_drawings(directory: Path | None = None) -> Tensor:
    """All drawings of Omniglot, uint8 (32460, 784), ink bright; raises as ``load_images``."""
    data_set = _data_set("omniglot")
    file = data_set.files[0]
    assert isinstance(file, IdxFile)
    return _read(data_set, file, directory).flatten(1)


def load_labels(name: str, directory: Path | None = None) -> Labels:
    """What those images show; arguments and errors are those of ``load_images``."""
    train, test = _of_axes(1, name, directory)
    return Labels(train, test)


def _of_axes(axes: int, name: str, directory: Path | None) -> list[Tensor]:
    """The tensors of a data set that have so many axes."""
    data_set = _data_set(name)
    return [
        _read(data_set, file, directory)
        for file in data_set.files
        if isinstance(file, IdxFile) and len(file.shape) == axes
    ]


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
    clear(folder)
    if data_set.archive is not None:
        return _fetch_archive(data_set, data_set.archive, folder, progress)
    fetched = []
    for file in data_set.files:
        path = folder / file.name
        if _state(path, file)[0] != "ok":
            _fetch_file(data_set, file, path, progress)
            fetched.append(path)
    return fetched


def read_file(name: str, file: str, directory: Path | None = None) -> bytes:
    """What is in a file of a data set; raises as ``load_mnist``."""
    data_set = _data_set(name)
    return _whole(data_set, next(x for x in data_set.files if x.name == file), directory)[1]


def read_npz(content: bytes, shape: tuple[int, ...], name: str) -> Tensor:
    """The array ``x`` of an npz file as a uint8 tensor; the arguments are those of ``read_idx``."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            array = arrays["x"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        message = f"expected {name} to be a whole npz file with the array x, got: {error}"
        raise DataError(message) from error
    if array.dtype != np.uint8 or array.shape != shape:
        raise DataError(
            f"expected {name} to hold {_by(shape)} bytes, got {_by(array.shape)} of {array.dtype}"
        )
    return torch.from_numpy(array)


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


def _state(path: Path, file: File) -> tuple[Literal["ok", "missing", "damaged"], str, bytes]:
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


def _search(data_set: DataSet, file: File, directory: Path | None) -> tuple[Report, bytes]:
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
    read = read_npz if path.suffix == ".npz" else read_idx
    return read(content, file.shape, str(path))


def _whole(data_set: DataSet, file: File, directory: Path | None) -> tuple[Path, bytes]:
    """Where a file is and what is in it, if it is whole."""
    report, content = _search(data_set, file, directory)
    if report.state == "ok" and report.path is not None:
        return report.path, content
    searched = ", ".join(map(str, directories(directory)))
    state = "none" if report.path is None else f"{report.path}, which is damaged ({report.reason})"
    raise DataError(
        f"expected {data_set.name}/{file.name} in one of the data directories {searched}, "
        f"got {state}; {data_set.remedy(file)}, or "
        f"name the directory that has it in the environment variable {ENVIRONMENT}"
    )


def _fetch_archive(
    data_set: DataSet, archive: PlainFile, folder: Path, progress: Progress | None
) -> list[Path]:
    """Download files that are published together, unless all of them are there."""
    missing = [file for file in data_set.files if _state(folder / file.name, file)[0] != "ok"]
    if not missing:
        return []
    path = folder / archive.name
    # a user may have put it there, and then it stays
    own = _state(path, archive)[0] != "ok"
    try:
        if own:
            _fetch_file(data_set, archive, path, progress)
        return [_unpacked(path, file) for file in missing]
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise DataError(
            f"expected {archive.name} with {', '.join(file.name for file in missing)}, got: {error}"
        ) from error
    finally:
        if own:
            path.unlink(missing_ok=True)


def _unpacked(archive: Path, file: File) -> Path:
    """A file of an archive, put beside it if its checksum is right."""
    with tarfile.open(archive) as members:
        name = next((x for x in members.getnames() if Path(x).name == file.name), file.name)
        source = members.extractfile(name)
        content = b"" if source is None else source.read(file.most_bytes + 1)
    return put(archive.parent, file, content, archive.name)


def put(folder: Path, file: File, content: bytes, origin: str) -> Path:
    """Write a file of a data set that comes from elsewhere, if its checksum is right."""
    got = hashlib.sha256(content).hexdigest()
    if got != file.sha256:
        raise DataError(
            f"expected {file.name} with sha256 {file.sha256} in {origin}, got {len(content)} "
            f"bytes with {got}; copy the file to {folder}"
        )
    path = folder / file.name
    # like those of downloads, so that what a killed process leaves is deleted some time
    part = folder / f".{file.name}.{secrets.token_hex(4)}.part"
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _fetch_file(data_set: DataSet, file: File, path: Path, progress: Progress | None) -> None:
    addresses = data_set.addresses(file)
    if not addresses:
        raise DataError(f"expected to download {file.name}, but {_COPY} to {path}")
    failures = []
    for address in addresses:
        try:
            with open_source(address) as response:
                receive(response, file, path, progress)
            return
        except SourceFailed as failure:
            failures.append(f"{address}: {failure}")
        except OSError as error:
            raise DataError(
                f"expected to write {path}, got: {error.strerror or error}; make room and see that "
                f"you may write there, or choose another directory with {ENVIRONMENT}"
            ) from error
    raise DataError(
        f"expected to download {data_set.name}/{file.name}, but no source gave it "
        f"({'; '.join(failures)}); try again with a network, or copy the file to {path}"
    )
