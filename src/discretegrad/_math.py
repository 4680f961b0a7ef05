"""Elementary functions that give the same bits with any number of threads.

On a CPU, torch splits a tensor among its threads and computes the ends of each part with other
code than the middle. For sums over one long row, and for sigmoid, softplus and logaddexp, the two
differ in the last bit, so the result depends on where the parts end. exp, log, log1p, logsigmoid,
softmax and sums over several rows do not have this flaw.
"""

import torch
from torch import Tensor

from ._types import Temperature

# Up to this many categories the plain formula is faster than torch's softmax on a CPU, whose
# vectors run along the category axis; both are one fused loop under torch.compile.
_FEW_CATEGORIES = 32
# torch splits a sum of this many numbers into one part per thread if it is the only one
_SPLIT_SUM = 2**15
_PART = 2**10


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Low precisions are computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis."""
    if x.shape[-1] > _FEW_CATEGORIES:
        return x.softmax(-1)
    weights = (x - x.amax(-1, keepdim=True)).exp_()
    return weights.div_(weights.sum(-1, keepdim=True))


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``, accurate in both tails."""
    small = (-x.abs()).exp()
    return torch.where(x < 0, small, 1.0) / (1 + small)


def sigmoid_and_rest(x: Tensor) -> tuple[Tensor, Tensor]:
    """``sigmoid(x)`` and ``sigmoid(-x)``, with one exponential for both."""
    if x.device.type != "cpu":
        # the flaw is that of the CPU; elsewhere fewer operations count for more
        return torch.sigmoid(x), torch.sigmoid(-x)
    small = (-x.abs()).exp()
    likely, unlikely = 1 / (1 + small), small / (1 + small)
    # exact for a weight of 0 or 1, and much faster than torch.where
    negative = (x < 0).to(x.dtype)
    return torch.lerp(likely, unlikely, negative), torch.lerp(unlikely, likely, negative)


def divide_finite(x: Tensor, tau: Temperature) -> Tensor:
    """``x / tau``, where an infinite result gives neither x nor tau a gradient (not NaN)."""
    quotient = x.detach() / (tau.detach() if isinstance(tau, Tensor) else tau)
    infinite = quotient.isinf()
    return torch.where(infinite, quotient, x.masked_fill(infinite, 0) / tau)


def row_sum(x: Tensor) -> Tensor:
    """The sum over the last axis, which is kept with size 1."""
    n = x.shape[-1]
    if n < _SPLIT_SUM:
        return x.sum(-1, keepdim=True)
    whole = n // _PART * _PART
    parts = x[..., :whole].unflatten(-1, (-1, _PART)).sum(-1)
    return row_sum(parts) + x[..., whole:].sum(-1, keepdim=True)


def add_rows(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """A table of so many rows: in each the sum of the ``rows`` that ``index`` sends there.

    Sums are taken in float32 at least and rounded once, however many rows meet.
    """
    # a GPU does so by itself, a CPU adds up in the dtype it is given; so does index_add everywhere
    is_gpu = rows.device.type == "cuda"  # torch 2.6 cannot compile rows.is_cuda in a backward
    wide = rows if is_gpu else rows.to(compute_dtype(rows.dtype))
    sums: Tensor = torch.ops.aten.embedding_dense_backward(
        wide.contiguous(), index, count, -1, False
    )
    return sums.to(rows.dtype)
