"""The images of the Bernoulli VAE: the splits of the papers."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import load_drawings, load_images


class Split(NamedTuple):
    """Grey pixels from 0 to 255, one image in a row."""

    train: Tensor
    valid: Tensor
    test: Tensor


# of the papers: 24,345 images of which the last 1,345 are for validation, and 8,070 for the test
_DRAWINGS = (23_000, 1_345, 8_070)
# of MNIST and Fashion-MNIST: the first for training, the rest for validation
_TRAIN = 50_000


def load_split(name: str, directory: Path | None = None) -> Split:
    """The images of a data set, in parts of the sizes that the papers have.

    Those of MNIST and Fashion-MNIST are in the order of the files; that of the papers' source of
    images is believed to be another.
    The Omniglot of the papers is a file that is not to be had: here it is all drawings in another
    resize, of which as many are taken as there, at random but always the same.

    Raises:
        DataError: If a file is missing or damaged.
    """
    if name == "omniglot":
        drawings = load_drawings(directory)
        order = torch.randperm(len(drawings), generator=torch.Generator().manual_seed(0))
        train, valid, test = drawings[order[: sum(_DRAWINGS)]].split(_DRAWINGS)
        return Split(train, valid, test)
    images = load_images(name, directory)
    return Split(images.train[:_TRAIN], images.train[_TRAIN:], images.test)
