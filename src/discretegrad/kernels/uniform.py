"""Uniform numbers for several independent seeds at once, at a step that is kept on the device."""

import triton
import triton.language as tl
from torch import Tensor

from .launch import Plan, launch
from .philox import interleave, words

_BLOCK = 1024


@triton.jit
def _uniform_kernel(numbers, seeds, step, count, purpose, BLOCK: tl.constexpr):
    member = tl.program_id(0).to(tl.int64) // tl.cdiv(count, BLOCK)
    first = (tl.program_id(0) % tl.cdiv(count, BLOCK)).to(tl.int64) * BLOCK
    group = first // 4 + tl.arange(0, BLOCK // 4)
    a, b, c, d = words(tl.load(seeds + member), group, tl.load(step), purpose)
    # 24 bits, as many as float32 holds
    uniform = (interleave(a, b, c, d) >> 8).to(tl.float32) * (1.0 / 16777216.0)
    position = first + tl.arange(0, BLOCK)
    tl.store(numbers + member * count + position, uniform, mask=position < count)


def fill(numbers: Tensor, seeds: Tensor, step: Tensor, purpose: int) -> None:
    """Fill with uniform numbers in [0, 1); the same arguments give the same numbers.

    Args:
        numbers: float32, (members, count), contiguous; row m depends on seed m alone.
        seeds: int64, (members,).
        step: int64, (1,), from 0 to 2**32 - 1.
        purpose: Tells calls of one step apart.
    """
    members, count = numbers.shape
    blocks = -(-count // _BLOCK)
    plan = Plan(_uniform_kernel, members * blocks, 4, (count, purpose, _BLOCK))
    launch(plan, [numbers, seeds, step])
