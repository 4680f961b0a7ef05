"""What families have in common whose variables lie along an axis of the logits."""

import math

import torch
from torch import Tensor

from .._checks import check_dim, check_logits, check_mask, check_tau
from .._math import compute_dtype, row_sum
from .._types import Call
from .base import Family, Variables


class AlongAxis(Family):
    """A variable has one logit for each of its categories, or items, along the axis ``dim``."""

    def check(self, call: Call, *, learnable_tau: bool = False) -> None:
        """See ``Family``."""
        name, logits, tau, dim, mask, _ = call
        check_logits(name, logits)
        check_dim(name, logits, dim)
        check_tau(name, tau, logits, dim, learnable=learnable_tau)
        check_mask(name, mask, logits)

    def prepare(self, call: Call, *, learnable_tau: bool = False) -> Variables:
        """See ``Family``: the axis last, what is excluded at -inf."""
        self.check(call, learnable_tau=learnable_tau)
        _, logits, tau, dim, mask, _ = call
        dtype = compute_dtype(logits.dtype)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        if isinstance(tau, Tensor):
            row_shape = list(logits.shape)
            row_shape[dim] = 1
            tau = tau.to(logits.device, dtype).broadcast_to(row_shape).movedim(dim, -1)
        if dim not in (-1, logits.ndim - 1):
            logits = logits.movedim(dim, -1)
        return Variables(logits, self.point(constant(logits, dtype)), tau, dim)

    def restore(self, x: Tensor, dim: int) -> Tensor:
        """The axis moved from the end back to ``dim``."""
        return x if dim in (-1, x.ndim - 1) else x.movedim(-1, dim).contiguous()

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum over the axis."""
        return row_sum(x * y)

    def variables_shape(self, logits: Tensor) -> torch.Size:
        """Without the axis."""
        return logits.shape[:-1]


def constant(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Without their graph, contiguous, in the dtype of the computation."""
    fixed = logits.detach()
    # torch takes its time to find that a cast changes nothing
    return (fixed if fixed.dtype == dtype else fixed.to(dtype)).contiguous()
