"""Noise as a function: the same seed and counter always give the same number.

Estimators that average over many noise draws need them in backward only. Instead of storing the
draws they store one seed per row and make the noise again, a chunk at a time. Written in plain
integer tensor operations, it gives the same noise on every device (up to the last bit of a
logarithm), in eager mode, under ``torch.compile`` and ``vmap``, and with any number of threads.
"""

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
# odd and below 2**31: times a 32-bit word they stay below 2**63, so nothing ever overflows
_MULTIPLIERS = (0x7FEB352D, 0x5BD1E995, 0x31848BAB, 0x21F0AAAD)


def seeded_exponential(seed: Tensor, first: int, count: int, like: Tensor) -> Tensor:
    """Standard exponential noise: draws ``first`` to ``first + count`` for every row of ``like``.

    Args:
        seed: One int64 per row, (..., 1).
        first: Number of the first draw.
        count: How many draws.
        like: Gives the number of categories, (..., n), and the dtype.

    Returns:
        (count, ..., n), positive and finite.
    """
    n = like.shape[-1]
    counter = torch.arange(first * n, (first + count) * n, device=like.device)
    return -_uniform(seed, counter.reshape([count] + [1] * (like.ndim - 1) + [n]), like.dtype).log()


def seeded_logistic(seed: Tensor, first: int, count: int, like: Tensor) -> Tensor:
    """Standard logistic noise: draws ``first`` to ``first + count`` for every element of ``like``.

    Returns:
        (count, ...), finite. ``seed`` has the shape of ``like``.
    """
    counter = torch.arange(first, first + count, device=like.device)
    return _uniform(seed, counter.reshape([count] + [1] * like.ndim), like.dtype).logit()


def row_seeds(seed: Tensor, like: Tensor) -> Tensor:
    """A seed for every element of ``like`` from one for each element of its first axes."""
    row = torch.arange(math.prod(like.shape[seed.ndim :]), device=like.device)
    low, high = (seed & _MASK).reshape(-1, 1), (seed >> 32).reshape(-1, 1)
    # two rounds of a Feistel network, so that no two seeds give the same pair of words
    low = low ^ _scramble(high)
    high = high ^ _scramble(low)
    one = _scramble((row + _scramble(low)) & _MASK)
    two = _scramble((row & _MASK) ^ _scramble(high))
    # 63 bits, so that it is not negative
    return ((one >> 1) << 32 | two).reshape(like.shape)


def _scramble(word: Tensor) -> Tensor:
    word = _mix(_mix(word, 16, _MULTIPLIERS[0]), 15, _MULTIPLIERS[1])
    return word ^ (word >> 16)


def _uniform(seed: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform numbers strictly inside (0, 1), one for each pair of a seed and a counter."""
    low, high = seed & _MASK, seed >> 32
    word = (counter ^ low) & _MASK
    word = _mix(word, 16, _MULTIPLIERS[0]) ^ ((high + (counter >> 32)) & _MASK)
    word = _mix(word, 15, _MULTIPLIERS[1])
    word = _mix(word, 17, _MULTIPLIERS[2])
    word = _mix(word, 14, _MULTIPLIERS[3])
    word = word ^ (word >> 16)
    # as many leading bits as the dtype can hold together with the half that keeps off 0 and 1
    bits = 32 if dtype == torch.float64 else 23
    return ((word >> (32 - bits)).to(dtype) + 0.5) * 2.0**-bits


def _mix(word: Tensor, shift: int, multiplier: int) -> Tensor:
    return ((word ^ (word >> shift)) * multiplier) & _MASK
