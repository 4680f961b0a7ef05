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

import triton
import triton.language as tl

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
def folded(word):
    """Whether the uniform number of a word lies above 1/2, and its distance to the nearer end.

    The distance has the full relative precision of float32, so both tails of what is made from it
    are fine-grained; it is never 0.
    """
    above = word >= 0x80000000
    near = tl.where(above, word ^ 0xFFFFFFFF, word)
    return above, (near.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)


@triton.jit
def exponential(word):
    """Standard exponential noise from 1e-10 to 23."""
    above, distance = folded(word)
    uniform = tl.where(above, 1.0 - distance, distance)
    # as in log1p
    lost = tl.where(above, distance - (1.0 - uniform), 0.0)
    return lost - tl.log(uniform)
