"""Every random number of the library comes from here.

A draw takes one float64 uniform per variable. With 53 bits the probability of a category is met
to the precision of the logits, also where it is one in a million, and whatever their dtype.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._checks import check_generator, check_index, check_rows, check_value, values_are_checked
from ._math import sigmoid
from ._modes import transforming
from ._rows import Bits, Rows

# Above this many categories the draw first picks a block of neighbours, then one of the block:
# it then reads the probabilities once and writes nothing of their size.
_ONE_LEVEL = 64
_BELOW_ONE = 1 - 2**-53


def draw_index(name: str, rows: Rows, generator: torch.Generator | None) -> Tensor:
    """One category per row, as an index of shape (..., 1), never one of probability zero."""
    check_generator(name, generator, rows.logits)
    device = rows.probs.device
    uniform = _uniform((*rows.probs.shape[:-1], 1), _widest(device), device, generator)
    if rows.probs.shape[-1] > _ONE_LEVEL:
        return _invert_in_blocks(name, rows, uniform)
    wide = rows.probs.to(uniform.dtype, copy=True)
    # in place, because two float64 copies would be the peak of memory; vmap has no rule for it
    index = _invert(wide.cumsum(-1) if transforming() else wide.cumsum_(-1), uniform)
    return _no_nan(name, rows, index, rows.probs.shape[-1])


def given_index(name: str, rows: Rows, index: Tensor) -> Tensor:
    """A user's draw in the form of ``draw_index``."""
    check_rows(name, rows.logits, rows.probs)
    check_index(name, index, rows.logits)
    return index.long().unsqueeze(-1)


def draw_value(name: str, bits: Bits, generator: torch.Generator | None) -> Tensor:
    """One boolean per logit, True with probability ``sigmoid(logit)``."""
    check_generator(name, generator, bits.logits)
    # the less likely value has the probability that floating point resolves finely
    unlikely = sigmoid(-bits.fixed.abs())
    device = bits.fixed.device
    flipped = _uniform(bits.fixed.shape, _widest(device), device, generator) < unlikely
    return flipped ^ (bits.fixed > 0)


def given_value(name: str, bits: Bits, value: Tensor) -> Tensor:
    """A user's draw in the form of ``draw_value``."""
    check_value(name, value, bits.logits)
    return value != 0


def draw_uniform(
    name: str, shape: Sequence[int], logits: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Uniform numbers in [0, 1), for the device of the logits."""
    check_generator(name, generator, logits)
    return _uniform(shape, _widest(logits.device), logits.device, generator)


def draw_exponential(rows: Rows, generator: torch.Generator | None) -> Tensor:
    """Standard exponential noise of the shape of the probabilities, positive and finite."""
    # not Tensor.exponential_: in place it cannot run under vmap, and it may return 0
    uniform = _uniform(rows.probs.shape, rows.probs.dtype, rows.probs.device, generator)
    return (-torch.log1p(-uniform)).clamp_min(2**-25)


def draw_logistic(bits: Bits, generator: torch.Generator | None) -> Tensor:
    """Standard logistic noise of the shape of the logits, finite."""
    uniform = _uniform(bits.fixed.shape, bits.fixed.dtype, bits.fixed.device, generator)
    return torch.logit(uniform, eps=2**-24)


def draw_seed(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """One non-negative int64 seed per element of ``like``, for ``_noise``."""
    return _seeds(like.shape, like.device, generator)


def draw_one_seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """One non-negative int64 seed for a kernel, (1,), drawn on its device without a wait."""
    return _seeds((1,), device, generator)


def _seeds(shape: Sequence[int], device: torch.device, generator: torch.Generator | None) -> Tensor:
    high = 2**63 - 1
    if generator is None:
        # with an argument for the generator, torch cannot trace dynamic shapes
        return torch.randint(high, shape, device=device)
    return torch.randint(high, shape, device=device, generator=generator)


def _uniform(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    if generator is None:  # see _seeds
        return torch.rand(shape, dtype=dtype, device=device)
    return torch.rand(shape, dtype=dtype, device=device, generator=generator)


def _widest(device: torch.device) -> torch.dtype:
    # Apple GPUs have no float64
    return torch.float32 if device.type == "mps" else torch.float64


def _invert(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """The first position whose cumulative weight exceeds ``uniform`` of the total.

    ``uniform < 1`` keeps the threshold strictly below the total (also after rounding), so the
    position exists, and its own weight is positive. Only NaN runs past the end.
    """
    threshold = uniform * cumulative.narrow(-1, cumulative.shape[-1] - 1, 1)
    if transforming():
        # the same index; vmap hands searchsorted tensors that it warns about
        return (cumulative <= threshold).sum(-1, keepdim=True)
    return torch.searchsorted(cumulative, threshold.contiguous(), right=True)


def _no_nan(name: str, rows: Rows, index: Tensor, end: int) -> Tensor:
    """An index past the end betrays a row of NaN: say so, or where nobody looks, stay in range."""
    if not values_are_checked(index):
        return index.clamp(max=end - 1)
    if index.numel() > 0 and int(index.max()) >= end:
        check_rows(name, rows.logits, rows.probs)
    return index


def _invert_in_blocks(name: str, rows: Rows, uniform: Tensor) -> Tensor:
    """The same draw in two steps over blocks of about the square root of n categories."""
    probs, n = rows.probs, rows.probs.shape[-1]
    size = 1 << ((n - 1).bit_length() + 1) // 2
    whole = n // size * size
    sums = probs[..., :whole].unflatten(-1, (-1, size)).sum(-1)
    if whole < n:
        sums = torch.cat([sums, probs[..., whole:].sum(-1, keepdim=True)], -1)
    ends = sums.cumsum(-1, dtype=uniform.dtype)
    block = _no_nan(name, rows, _invert(ends, uniform), ends.shape[-1])

    # where in its block the threshold falls, as a uniform number again
    end = ends.gather(-1, block)
    begin = torch.where(block > 0, ends.gather(-1, (block - 1).clamp(min=0)), 0)
    within = (uniform * ends[..., -1:] - begin) / (end - begin)

    position = block * size + torch.arange(size, device=probs.device)
    inside = probs.gather(-1, position.clamp(max=n - 1))
    inside = torch.where(position < n, inside, 0).cumsum(-1, dtype=uniform.dtype)
    index = block * size + _invert(inside, within.clamp(0, _BELOW_ONE))
    return index.clamp(max=n - 1)
