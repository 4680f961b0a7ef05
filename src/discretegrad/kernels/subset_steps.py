"""The steps of ``families.counting``, by kernels where these can do them.

The functions have the names and arguments of those there, and leave to them what no kernel does:
float64, what must be differentiable, ``torch.func`` transforms and ``is_grads_batched``.
"""

import torch
from torch import Tensor

from .._modes import batched, compiling, transforming
from ..families import counting
from ..families.counting import Inclusion
from . import ops
from .dispatch import runs_on


def below_last(natural: Tensor, k: int) -> Tensor:
    """See ``counting.below_last``."""
    if not _fit(natural):
        return counting.below_last(natural, k)
    return ops.balance_subsets(_rows(natural), k, False).reshape(natural.shape)


def balanced(natural: Tensor, k: int) -> Tensor:
    """See ``counting.balanced``."""
    if not _fit(natural):
        return counting.balanced(natural, k)
    return ops.balance_subsets(_rows(natural), k, True).reshape(natural.shape)


def inclusion(point: Tensor, k: int) -> Inclusion:
    """See ``counting.inclusion``."""
    if not _fit(point):
        return counting.inclusion(point, k)
    mean, rest, _ = ops.moments_of_subsets(_rows(point), k, None)
    return Inclusion(mean.reshape(point.shape), rest.reshape(point.shape))


def inclusion_and_covariance(point: Tensor, k: int, g: Tensor) -> tuple[Inclusion, Tensor]:
    """See ``counting.inclusion_and_covariance``."""
    if not _fit(point, g):
        return counting.inclusion_and_covariance(point, k, g)
    parts = ops.moments_of_subsets(_rows(point), k, _rows(g))
    mean, rest, product = (x.reshape(point.shape) for x in parts)
    return Inclusion(mean, rest), product


def second_order(point: Tensor, k: int, g: Tensor, drawn: Tensor, weight: float) -> Tensor:
    """See ``counting.second_order``."""
    if not _fit(point, g):
        return counting.second_order(point, k, g, drawn, weight)
    product = ops.second_order_of_subsets(_rows(point), k, _rows(g), _rows(drawn), weight)
    return product.reshape(point.shape)


def draw(point: Tensor, k: int, uniform: Tensor) -> Tensor:
    """See ``counting.draw``."""
    if not _fit(point) or uniform.dtype != torch.float64:
        return counting.draw(point, k, uniform)
    return ops.draw_subsets(_rows(point), k, uniform)


def _fit(*tensors: Tensor) -> bool:
    """Whether the kernels can do a step on these tensors."""
    return not transforming() and all(map(_fits, tensors))


def _fits(x: Tensor) -> bool:
    if x.dtype != torch.float32 or x.numel() == 0 or not runs_on(x.device):
        return False
    if x.requires_grad and torch.is_grad_enabled():
        return False
    return compiling() or not batched(x)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
