"""CIFAR-10 for a search: one half of its training images for the weights, one for the cell."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..data import DataError, read_file

SPLIT = "cifar-split.txt"
HALF = 25_000
"""Images in each half."""
_SIDE, _PIXELS = 32, 3 * 32 * 32
_PADDING = 4
BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
# of the pixels from 0 to 255, for red, green and blue
_MEANS, _DEVIATIONS = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
RANDOM = 3
"""Random numbers that an image takes: flip, and where to crop it in both directions."""


class Labelled(NamedTuple):
    """Images with what they show."""

    pixels: Tensor
    """uint8, (images, 3, height, width)."""
    labels: Tensor
    """int64, (images,)."""


class Halves(NamedTuple):
    """What a search trains with."""

    weights: Labelled
    architecture: Labelled


def load_halves(directory: Path | None = None) -> Halves:
    """The two halves of the training images of CIFAR-10, as NATS-Bench splits them.

    Raises:
        DataError: If a file is in none of the data directories, or is damaged.
    """
    whole = parse(b"".join(read_file("cifar10", name, directory) for name in BATCHES))
    halves = parse_split(read_file("nats-bench", SPLIT, directory), len(whole.labels))
    return Halves(*(Labelled(whole.pixels[half], whole.labels[half]) for half in halves))


def parse(content: bytes) -> Labelled:
    """The images of files in the binary form of CIFAR-10: a byte for the label, then the pixels."""
    if len(content) % (1 + _PIXELS):
        raise DataError(f"expected images of {1 + _PIXELS} bytes each, got {len(content)} bytes")
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, 1 + _PIXELS)
    if rows.numel() and int(rows[:, 0].max()) > 9:
        raise DataError(f"expected labels from 0 to 9, got {int(rows[:, 0].max())}")
    return Labelled(rows[:, 1:].reshape(-1, 3, _SIDE, _SIDE), rows[:, 0].long())


def parse_split(content: bytes, images: int) -> tuple[Tensor, Tensor]:
    """The numbers of the images of both halves, which share none."""
    try:
        document = json.loads(content)
        halves = [torch.tensor([int(x) for x in document[name][1]]) for name in ("train", "valid")]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"expected {SPLIT} with the lists train and valid, got one that cannot be read: {error}"
        ) from error
    together = torch.cat(halves)
    if len(together.unique()) != len(together) or not bool(
        ((together >= 0) & (together < images)).all()
    ):
        raise DataError(f"expected different numbers below {images} in {SPLIT}, got others")
    return halves[0], halves[1]


class Places(NamedTuple):
    """Pixels of images in their frames, to be indexed with."""

    images: Tensor
    """(images, 1, 1)"""
    rows: Tensor
    """(images, side, 1)"""
    columns: Tensor
    """(images, 1, side)"""

    def split(self, count: int) -> "list[Places]":
        """So many images each; the last ones may be fewer."""
        return [Places(*parts) for parts in zip(*(x.split(count) for x in self), strict=True)]


class Crops:
    """Images on a device, from which batches are flipped, cropped and normalised there.

    An image is flipped or not, a border of four black pixels is put around it, and a part of its
    own size is cut out somewhere.
    """

    def __init__(self, images: Labelled, device: torch.device) -> None:
        self.count, self._side = len(images.labels), images.pixels.shape[-1]
        self._pixels = pad(images.pixels, [_PADDING] * 4).to(device)
        self._labels = images.labels.to(device)
        self._line = torch.arange(self._side, device=device)
        self._mean, self._scale = (
            torch.tensor(values, device=device).view(3, 1, 1)
            for values in (_MEANS, [1 / x for x in _DEVIATIONS])
        )

    def places(self, index: Tensor, uniform: Tensor) -> Places:
        """Which pixels of which images, for any number of them.

        Args:
            index: Which images, (count,).
            uniform: Random numbers in [0, 1), (count, 3).
        """
        flip, down, right = uniform.unsqueeze(-1).unbind(1)
        places = 2 * _PADDING + 1
        rows = (down * places).long() + self._line
        columns = torch.where(flip < 0.5, self._line, self._line.flip(0))
        columns = columns + (right * places).long()
        return Places(index[:, None, None], rows[:, :, None], columns[:, None, :])

    def batch(self, places: Places) -> tuple[Tensor, Tensor]:
        """Images, with the colour last in memory, and labels."""
        images, rows, columns = places
        # with the colour last, where such an index puts it
        pixels = self._pixels[images, :, rows, columns]
        x = (pixels.permute(0, 3, 1, 2).float() - self._mean) * self._scale
        return x, self._labels[images[:, 0, 0]]


def first(images: Halves, count: int) -> Halves:
    """So many of each half."""
    halves: Sequence[Labelled] = [Labelled(x.pixels[:count], x.labels[:count]) for x in images]
    for half in halves:
        if len(half.labels) < count:
            raise ValueError(f"expected {count} images in each half, got {len(half.labels)}")
    return Halves(*halves)
