"""The gradient of categorical ``gumbel_rao``: the host's side of its kernels."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .._types import Method
from .bernoulli import DRAWS_BLOCK, DRAWS_WARPS
from .gumbel_rao_kernels import _gradient_kernel, _pair_kernel
from .launch import Plan, launch, power_of_two
from .layout import Drawn, Place, Rows, contiguous, layout, new_like, place

# a row of at most this many categories is one block, which stays on chip
LONGEST = 4096
# longer ones are read in blocks of this many
LONG_BLOCK = 2048


class Tiles(NamedTuple):
    """How the kernel cuts rows and draws into programs."""

    one_block: bool
    rows: int
    """Rows of one program."""
    block: int
    """Categories that a program holds at once."""
    rest: int
    """The same of a second, smaller block, or 0."""
    groups: int
    """Groups of four draws that a program holds at once."""
    warps: int


def tiles(n: int, num_draws: int, longest: int, long_block: int) -> Tiles:
    """Warps of 128 or 256 pairs of a category and a group, with as many rows as that takes."""
    if n > longest:
        return Tiles(False, 1, long_block, 0, 1, 16)
    block, rest = max(2, power_of_two(n)), 0
    # 10 categories are 8 and 2, not 16 of which 6 stay empty
    if 2 < n <= 24 and power_of_two(n - block // 2) <= block // 4:
        block //= 2
        rest = power_of_two(n - block)
    # the threads of a warp along the groups as long as a thread has room for the row; from then on
    # along the row, which is how they load it; 9 to 12 categories would take all registers at 32
    groups = 32 if block + rest <= 8 else 16 if block + rest <= 16 else 8 if block == 16 else 1
    groups = min(groups, power_of_two(-(-num_draws // 4)))
    rows = max(1, 128 // (block * groups))
    return Tiles(True, rows, block, rest, groups, max(1, block // 256))


def gradient(
    method: Method, g: Tensor, rows: Rows, seed: Tensor, drawn: Drawn, in_place: bool = False
) -> Tensor:
    """The gradient for the logits, given the gradient ``g`` at the one-hot of ``drawn``.

    Args:
        method: With the number of noise draws K.
        g: Of the shape of the logits, of any strides and floating dtype.
        rows: The variables.
        seed: int64, one for all rows, or for equally many rows each. The noise of a row is a
            function of its seed and of its number among the rows of that seed.
        drawn: From ``categorical.draw``.
        in_place: Write the result over ``g`` if that is contiguous and of the logits' dtype.
    """
    logits, dim, mask, tau, tau_rows = rows
    # others might be copied to fit the layout
    in_place = in_place and g.is_contiguous() and g.dtype == logits.dtype
    result = g if in_place else new_like(logits)
    plan, in_memory = _plan(
        place(rows),
        (g.stride(), g.dtype, in_place),
        (method.num_draws, seed.numel(), rows.tempered),
    )
    tensors = [
        logits,
        logits if mask is None else mask,
        g,
        logits if tau_rows is None else tau_rows,
        result,
        drawn.categories,
        seed,
    ]
    if logits.shape[dim] != 2:
        running = result
        if in_memory:
            running = torch.empty_like(
                logits, dtype=torch.float32, memory_format=torch.contiguous_format
            )
        tensors[4:] = [running, result, drawn.categories, drawn.statistics, seed]
    launch(plan, tensors, (tau,))
    return result


@lru_cache(maxsize=4096)
def _plan(
    where: Place,
    at_sample: tuple[tuple[int, ...], torch.dtype, bool],
    numbers: tuple[int, int, bool],
) -> tuple[Plan, bool]:
    """The plan, and whether the sum over draws needs memory besides the result."""
    shape, dim, logits, mask, tau, dtype, _ = where
    num_draws, seeds, tempered = numbers
    n, new = shape[dim], contiguous(shape)
    strides = (logits, mask or logits, at_sample[0], tau or logits, new, new)
    rows, _, inner, copied, places = layout(shape, dim, strides[:5] if n == 2 else strides)
    flags = (inner != rows, seeds > 1, mask is not None, tau is not None, tempered)
    before = (*places[0], *places[1], *places[2], *places[3][:2], *places[4])
    if n == 2:
        pairs = (num_draws, rows // seeds, rows, inner, *before, *flags, DRAWS_BLOCK)
        return Plan(_pair_kernel, -(-rows // DRAWS_BLOCK), DRAWS_WARPS, pairs, copied), False
    tile = tiles(n, num_draws, LONGEST, LONG_BLOCK)
    constants = (
        num_draws, rows // seeds, rows, n, inner, *before, *places[5], *flags, tile.one_block,
        tile.warps == 1, tile.rows, tile.block, tile.rest, tile.groups,
    )  # fmt: skip
    plan = Plan(_gradient_kernel, -(-rows // tile.rows), tile.warps, constants, copied)
    return plan, not tile.one_block and (at_sample[2] or dtype != torch.float32)
