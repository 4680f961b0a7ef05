r"""The kernel that makes log-odds of logits, such that about k bits of a row are 1.

It computes what ``families.counting.balanced`` computes, one program for a row. The k-th largest
number of the row is found bit by bit: float32 numbers are ordered as their bits are, read as
integers (the bits after the sign turned around if it is negative), so 32 times the program counts
how many keys are not below a guess, and keeps the next bit of the guess if these are k or more.
With the numbers 3, 1, 2 and k = 2 the last guess that two of them reach is the key of 2. Then
Newton's method finds the shift, each step with a pass over the row.
"""

import triton
import triton.language as tl

# as in ``families.counting``
_NEAR = tl.constexpr(1.0)
_NEWTON_STEPS = tl.constexpr(10)
_CERTAIN = tl.constexpr(80.0)

_LOWEST_KEY = tl.constexpr(-(2**31))
_HIGHEST_KEY = tl.constexpr(2**31 - 1)


@triton.jit
def _ordered(x):
    """Integers that are ordered as float32 numbers are. A row with NaN is bad wherever it is."""
    key = x.to(tl.int32, bitcast=True)
    return key ^ ((key >> 31) & _HIGHEST_KEY)


@triton.jit
def _keys(x, start, n, BLOCK: tl.constexpr):
    """The keys of a block of a row, the lowest one past its end."""
    item = start + tl.arange(0, BLOCK)
    key = _ordered(tl.load(x + item, mask=item < n, other=0.0))
    return tl.where(item < n, key, _LOWEST_KEY)


@triton.jit
def _count(x, least, n, BLOCK: tl.constexpr):
    """How many keys of a row are not below ``least``."""
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        found += (_keys(x, start, n, BLOCK) >= least).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def _kth_largest(x, n, k, BLOCK: tl.constexpr):
    """The k-th largest number of a row, bit by bit, and its key."""
    key = tl.where(_count(x, 0, n, BLOCK) >= k, 0, _LOWEST_KEY)
    for bit in range(31):
        higher = key + (1 << (30 - bit))
        key = tl.where(_count(x, higher, n, BLOCK) >= k, higher, key)
    return (key ^ ((key >> 31) & _HIGHEST_KEY)).to(tl.float32, bitcast=True), key


@triton.jit
def _following(x, kth, key, n, k, BLOCK: tl.constexpr):
    """The next one after the k-th largest, relative to that; at least -80."""
    largest = tl.full((BLOCK,), -_CERTAIN, tl.float32)
    for start in range(0, n, BLOCK):
        item = start + tl.arange(0, BLOCK)
        below = (item < n) & (_keys(x, start, n, BLOCK) < key)
        value = tl.load(x + item, mask=below, other=-float("inf"))
        largest = tl.maximum(largest, tl.where(below, value - kth, -_CERTAIN))
    # one that is equal to the k-th follows it
    return tl.where(_count(x, key, n, BLOCK) > k, 0.0, tl.max(largest, 0))


@triton.jit
def _expected(x, kth, shift, n, BLOCK: tl.constexpr):
    """The mean number of ones of bits with the shifted log-odds, and its derivative."""
    ones = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        item = start + tl.arange(0, BLOCK)
        natural = tl.load(x + item, mask=item < n, other=-float("inf")) - kth
        p = tl.where(item < n, 1.0 / (1.0 + tl.exp(-shift - natural)), 0.0)
        ones += p
        squares += p * p
    total = tl.sum(ones, 0)
    return total, total - tl.sum(squares, 0)


@triton.jit
def _shift(x, kth, key, n, k, BLOCK: tl.constexpr):
    """``families.counting._shift`` of a row: Newton's method, kept between two bounds."""
    following = _following(x, kth, key, n, k, BLOCK)
    left_out = tl.maximum(n - k, 1).to(tl.float32)
    low = tl.minimum(-following - tl.log(2.0 * left_out), 0.0)
    high = tl.maximum(-following, tl.log(2.0 * k.to(tl.float32)))
    shift = (low + high) / 2
    for _ in range(_NEWTON_STEPS):
        total, slope = _expected(x, kth, shift, n, BLOCK)
        excess = total - k
        low = tl.where(excess < 0, shift, low)
        high = tl.where(excess > 0, shift, high)
        newton = shift - excess / slope
        inside = (newton > low) & (newton < high)
        better = tl.where(inside, newton, (low + high) / 2)
        shift = tl.where(tl.abs(excess) <= _NEAR, shift, better)
    return shift


@triton.jit(do_not_specialize=["n", "k"])
def _balance_kernel(
    natural, point, n, k, SHIFTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Natural parameters (rows, n) minus the k-th largest of their row, and ``SHIFTED``."""
    row = tl.program_id(0) * n.to(tl.int64)
    natural += row
    point += row
    kth, key = _kth_largest(natural, n, k, BLOCK)
    shift = 0.0
    if SHIFTED:
        shift = _shift(natural, kth, key, n, k, BLOCK)
    for start in range(0, n, BLOCK):
        item = start + tl.arange(0, BLOCK)
        x = tl.load(natural + item, mask=item < n)
        tl.store(point + item, x - kth + shift, mask=item < n)
