"""Noise as a function: the same seed and counter always give the same number.

Estimators that average over many noise draws need them in backward only. Instead of storing the
draws they store one seed per row and make the noise again, a chunk at a time. Written in plain
integer tensor operations, it gives the same noise on every device (up to the last bit of a
logarithm), in eager mode, under ``torch.compile`` and ``vmap``, and with any number of threads.
"""

import math

import torch
from torch import Tensor

from ._checks import check_dense, values_are_checked

_MASK = 0xFFFFFFFF
# noise is made and used in pieces of at most this many numbers, whatever the number of draws
_CHUNK_NUMBERS = 2**20
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


def chunks(num_draws: int, numbers_per_draw: int) -> list[tuple[int, int]]:
    """(first, count) of pieces of the draws that together stay below the limit on numbers."""
    size = max(1, min(num_draws, _CHUNK_NUMBERS // max(1, numbers_per_draw)))
    return [(first, min(size, num_draws - first)) for first in range(0, num_draws, size)]


def accept_seed(name: str, seed: object, drawn: Tensor, noise: Tensor | None) -> Tensor:
    """A user's seeds, one for each element of the first axes of ``drawn``, as one for each draw."""
    if noise is not None:
        raise ValueError(f"{name}: expected noise or seed, got both. Leave one of them out.")
    check_seed(name, seed, drawn)
    assert isinstance(seed, Tensor)
    return row_seeds(seed, drawn)


def check_seed(name: str, seed: object, drawn: Tensor) -> None:
    """``seed`` is int64, not negative, of a shape that begins as that of the draw does."""
    if not isinstance(seed, Tensor) or seed.dtype != torch.int64:
        came = seed.dtype if isinstance(seed, Tensor) else type(seed).__name__
        raise TypeError(
            f"{name}: expected seed to be an int64 tensor, got {came}. Make one with "
            "torch.randint(2**63 - 1, shape)."
        )
    check_dense(name, "seed", seed)
    if seed.shape != drawn.shape[: seed.ndim] or seed.device != drawn.device:
        raise ValueError(
            f"{name}: expected a seed for each element of the first axes of {tuple(drawn.shape)} "
            f"on {drawn.device}, got shape {tuple(seed.shape)} on {seed.device}"
        )
    if values_are_checked(seed) and bool((seed < 0).any()):
        raise ValueError(f"{name}: expected seeds of at least 0, got a negative one")


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
