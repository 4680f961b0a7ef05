"""What every sampler does first: check its input and bring it into one form.

Categorical: categories last, excluded ones at -inf, probabilities in float32 or float64.
Bernoulli: logits in float32 or float64, excluded ones at -inf.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import check_bits, check_dim, check_logits, check_mask, check_tau
from ._math import softmax
from ._types import Temperature


class Rows(NamedTuple):
    """Categorical variables, one per row."""

    logits: Tensor
    """(..., n), still attached to the graph, -inf where a category is excluded."""
    probs: Tensor
    """(..., n), softmax of the logits, a constant, float32 or float64."""
    tau: Temperature
    """A number, or a constant tensor of shape (..., 1)."""
    dim: int
    """Where the user's category axis was."""


class Bits(NamedTuple):
    """Bernoulli variables, one per element."""

    logits: Tensor
    """Still attached to the graph, -inf where the value 1 is excluded."""
    fixed: Tensor
    """The same as a constant, in float32 or float64."""
    tau: Temperature
    """A number, or a constant tensor that broadcasts against the logits."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Low precisions are computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def categorical_rows(
    name: str,
    logits: Tensor,
    tau: Temperature,
    dim: int,
    mask: Tensor | None,
    *,
    learnable_tau: bool = False,
) -> Rows:
    """Check the arguments of the categorical sampler ``name`` and normalise them."""
    check_logits(name, logits)
    check_dim(name, logits, dim)
    check_tau(name, tau, logits, dim, learnable=learnable_tau)
    check_mask(name, mask, logits)
    dtype = compute_dtype(logits.dtype)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    if isinstance(tau, Tensor):
        row_shape = list(logits.shape)
        row_shape[dim] = 1
        tau = tau.to(logits.device, dtype).broadcast_to(row_shape).movedim(dim, -1)
    if dim not in (-1, logits.ndim - 1):
        logits = logits.movedim(dim, -1)
    return Rows(logits, softmax(logits.detach().to(dtype).contiguous()), tau, dim)


def bernoulli_bits(
    name: str,
    logits: Tensor,
    tau: Temperature,
    mask: Tensor | None,
    *,
    learnable_tau: bool = False,
) -> Bits:
    """Check the arguments of the Bernoulli sampler ``name`` and normalise them."""
    check_logits(name, logits)
    check_tau(name, tau, logits, None, learnable=learnable_tau)
    check_mask(name, mask, logits)
    dtype = compute_dtype(logits.dtype)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    check_bits(name, logits)
    if isinstance(tau, Tensor):
        tau = tau.to(logits.device, dtype).broadcast_to(logits.shape)
    return Bits(logits, logits.detach().to(dtype), tau)


def shifted_logits(rows: Rows) -> Tensor:
    """Logits minus their row's maximum: in [-inf, 0], so no temperature makes them overflow."""
    fixed = rows.logits.detach().to(rows.probs.dtype).contiguous()
    return fixed - fixed.amax(-1, keepdim=True)


def tempered_probs(rows: Rows) -> Tensor:
    """``softmax(logits / tau)``, for a tau of any size."""
    if isinstance(rows.tau, Tensor):
        return softmax(shifted_logits(rows) / rows.tau)
    return rows.probs if rows.tau == 1 else softmax(shifted_logits(rows).div_(rows.tau))


def restore_dim(x: Tensor, dim: int) -> Tensor:
    """Move the category axis from the end back to ``dim``."""
    return x if dim in (-1, x.ndim - 1) else x.movedim(-1, dim).contiguous()
