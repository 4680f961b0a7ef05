"""Pixels of images: their grey values, and binary copies."""

import torch
from torch import Tensor


def grey(images: Tensor) -> Tensor:
    """Bytes as grey values from 0 to 1."""
    return images.float() / 255


def take(images: Tensor, index: Tensor) -> Tensor:
    """The grey values of some images."""
    return grey(images.index_select(0, index))


def binary_copy(images: Tensor) -> Tensor:
    """Images of pixels that are 0 or 255, each drawn once with its grey value as the probability.

    The same images give the same copy, on every device.
    """
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(images.shape, generator=generator).to(images.device)
    return torch.where(uniform < grey(images), 255, 0).to(images.dtype)
