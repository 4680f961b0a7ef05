"""Counter-based random numbers inside kernels: the same seed and counter give the same number.

Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) turns a
64-bit seed and a 128-bit counter into four 32-bit words. The seed is one int64 that torch's own
generator drew on the GPU, so that generator is advanced as by any other call, also when a CUDA
graph is replayed. The counter says what a word is for, so no two uses meet:

    c0, c1   row (categorical), group of four neighbours or, for the draws of ``gumbel_rao``,
             element (Bernoulli): low and high half
    c2       step of the draw, group of four columns, column, or nothing
    c3       purpose: DRAW, NOISE, or DRAWS + m for the draws 4m to 4m + 3 of ``gumbel_rao``
"""

import os

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .numbers import LOG2_E

# neither Triton's interpreter nor its compiler for AMD has the logarithm of the hardware
_HAS_FAST_LOG2 = tl.constexpr(
    os.environ.get("TRITON_INTERPRET") != "1" and torch.version.hip is None
)

DRAW = tl.constexpr(0)
NOISE = tl.constexpr(1)
DRAWS = tl.constexpr(2)


@triton.jit
def words(seed, item, position, purpose):
    """Four blocks of 32-bit words; ``item`` is an int64 tensor, and shapes broadcast."""
    low = (item & 0xFFFFFFFF).to(tl.uint32)
    high = (item >> 32).to(tl.uint32)
    zero = low * 0
    return tl.philox(
        seed, low, high, (zero + position).to(tl.uint32), (zero + purpose).to(tl.uint32)
    )


@triton.jit
def interleave(a, b, c, d):
    """Four blocks as one, whose last axis is four times as long: a0 b0 c0 d0 a1 b1 ..."""
    joined = tl.join(tl.join(a, c), tl.join(b, d))
    if len(a.shape) == 1:
        return tl.reshape(joined, (a.shape[0] * 4,))
    else:
        return tl.reshape(joined, (a.shape[0], a.shape[1] * 4))


@triton.jit
def uniform53(high, low):
    """A float64 in [0, 1) from two words, with all of its 53 bits random."""
    return ((high >> 5).to(tl.float64) * 67108864.0 + (low >> 6).to(tl.float64)) * (
        1.0 / 9007199254740992.0
    )


@triton.jit
def log1p(x):
    """``log(1 + x)`` for x > -1, accurate for small x."""
    y = 1.0 + x
    # for a small x the logarithm lacks just what rounding took from it
    return tl.log(y) + tl.where(x < 1.0, x - (y - 1.0), 0.0)


@triton.jit
def fast_log2(x):
    """``log2(x)`` for normal x > 0 in one instruction, where ``tl.log2`` takes twenty.

    Off by at most 2e-7 from 1/2 to 2, and by that relative to the result elsewhere.
    """
    if _HAS_FAST_LOG2:
        return libdevice.fast_log2f(x)
    else:
        return tl.log2(x)


@triton.jit
def folded(word):
    """Whether the uniform number of a word lies above 1/2, and its distance to the nearer end.

    The distance has the full relative precision of float32, so both tails of what is made from it
    are fine-grained; it is never 0.
    """
    above = word >= 0x80000000
    near = tl.where(above, word ^ 0xFFFFFFFF, word)
    # (near + 1/2) / 2**32, in one instruction
    return above, near.to(tl.float32) * (1.0 / 4294967296.0) + (0.5 / 4294967296.0)


@triton.jit
def exponential(word):
    """Standard exponential noise from 1e-10 to 23, relatively accurate to 5e-7.

    It is ``-log(u)``. Where u is near 1 the noise is small, and a polynomial of 1 - u has the
    precision that the logarithm of the hardware lacks there.
    """
    above, distance = folded(word)
    uniform = tl.where(above, 1.0 - distance, distance)
    far = fast_log2(uniform) * (-1.0 / LOG2_E)
    # -log(1 - x) / x from 0 to 1/4, interpolated in the nodes of Chebyshev
    slope = 0.3386436402797699 * distance + 0.14463114738464355
    slope = slope * distance + 0.2576442062854767
    slope = slope * distance + 0.33287033438682556
    slope = slope * distance + 0.500010073184967
    slope = slope * distance + 0.9999999403953552
    return tl.where(above & (distance < 0.25), distance * slope, far)
