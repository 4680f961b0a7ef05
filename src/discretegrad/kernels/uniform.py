"""Uniform numbers, and categories that they choose, for several independent seeds at once.

The step that the numbers belong to is kept on the device, where a CUDA graph can advance it.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Plan, launch, power_of_two
from .philox import interleave, words

LONGEST = 4096
"""Rows of at most this many categories, which ``choose`` holds on chip."""

_BLOCK = 1024


@triton.jit
def _uniform(seeds, step, member, first, purpose, BLOCK: tl.constexpr):
    """The numbers of a member from ``first`` on, which is a multiple of 4."""
    group = first // 4 + tl.arange(0, BLOCK // 4)
    a, b, c, d = words(tl.load(seeds + member), group, tl.load(step), purpose)
    # 24 bits, as many as float32 holds
    return (interleave(a, b, c, d) >> 8).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _uniform_kernel(numbers, seeds, step, count, purpose, BLOCK: tl.constexpr):
    member = tl.program_id(0).to(tl.int64) // tl.cdiv(count, BLOCK)
    first = (tl.program_id(0) % tl.cdiv(count, BLOCK)).to(tl.int64) * BLOCK
    position = first + tl.arange(0, BLOCK)
    uniform = _uniform(seeds, step, member, first, purpose, BLOCK)
    tl.store(numbers + member * count + position, uniform, mask=position < count)


@triton.jit
def _category_kernel(
    index, logits, seeds, step, count, rows, n, purpose, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    member = tl.program_id(0).to(tl.int64) // tl.cdiv(count, ROWS)
    first = (tl.program_id(0) % tl.cdiv(count, ROWS)).to(tl.int64) * ROWS
    position = first + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    row = (member * rows + position % rows)[:, None]
    x = tl.load(logits + row * n + column, mask=column < n, other=-float("inf"))
    cumulative = tl.cumsum(tl.exp(x - tl.max(x, 1, keep_dims=True)), 1)
    threshold = _uniform(seeds, step, member, first, purpose, ROWS) * tl.max(cumulative, 1)
    passed = (cumulative <= threshold[:, None]) & (column < n - 1)
    chosen = tl.sum(passed.to(tl.int64), 1)
    tl.store(index + member * count + position, chosen, mask=position < count)


def fill(numbers: Tensor, seeds: Tensor, step: Tensor, purpose: int) -> None:
    """Fill with uniform numbers in [0, 1); the same arguments give the same numbers.

    Args:
        numbers: float32, (members, count), contiguous; row m depends on seed m alone.
        seeds: int64, (members,).
        step: int64, (1,), from 0 to 2**32 - 1.
        purpose: Tells calls of one step apart.
    """
    launch(_uniform_plan(*numbers.shape, purpose, numbers.device), [numbers, seeds, step])


@lru_cache(maxsize=4096)
def _uniform_plan(members: int, count: int, purpose: int, device: torch.device) -> Plan:
    blocks = -(-count // _BLOCK)
    return Plan(_uniform_kernel, members * blocks, 4, (count, purpose, _BLOCK))


def choose(index: Tensor, logits: Tensor, seeds: Tensor, step: Tensor, purpose: int) -> None:
    """Fill with categories: the running sum of probabilities passes what ``fill`` gives there.

    Args:
        index: int64, (members, count), contiguous; row m depends on seed m and its logits alone.
        logits: float32, (members, rows, n), contiguous, with n at most ``LONGEST``; number i of
            ``index`` is a category of row i modulo ``rows``.
        seeds, step, purpose: As in ``fill``.
    """
    plan = _category_plan(index.shape[1], logits.shape, purpose, logits.device)
    launch(plan, [index, logits, seeds, step])


@lru_cache(maxsize=4096)
def _category_plan(
    count: int, shape: tuple[int, int, int], purpose: int, device: torch.device
) -> Plan:
    members, rows, n = shape
    block = power_of_two(n)
    at_once = max(4, _BLOCK // block)
    constants = (count, rows, n, purpose, at_once, block)
    return Plan(_category_kernel, members * -(-count // at_once), 4, constants)
