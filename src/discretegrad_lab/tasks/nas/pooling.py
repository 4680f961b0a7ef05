"""The average of each pixel and its neighbours, an operation of a cell."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from .slopes import has_kernels


def averages(x: Tensor) -> Tensor:
    """Over windows of three by three pixels, of which those outside of the image do not count.

    Args:
        x: (images, channels, height, width)
    """
    if has_kernels(x):
        apply: Callable[[Tensor], Tensor] = _Averages.apply
        return apply(x)
    # on a CUDA device the gradient of torch's own averages is wrong where channels come last and
    # windows reach over the edge: github.com/pytorch/pytorch/issues/188344
    x = x.contiguous() if x.is_cuda else x
    return avg_pool2d(x, 3, 1, 1, count_include_pad=False)


class _Averages(torch.autograd.Function):
    """The same by kernels, which take float32 only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from . import kernels

        return kernels.averages(x.contiguous(memory_format=torch.channels_last))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        from . import kernels

        g = g.contiguous(memory_format=torch.channels_last)
        return kernels.averages(g, transposed=True)
