"""Philox 4x32-10 on int64 tensors, and the numbers that the kernels make of its words.

Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Written from the paper, so
that it can disagree with the kernels; runs on every device.
"""

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF

# what a word is for: the last number of the counter
DRAW, NOISE, DRAWS = 0, 1, 2

# counter, key and words of the known answers that the authors publish
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((LOW,) * 4, (LOW,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter, key) -> Tensor:
    """Four blocks of 32-bit words, of shape (4, ...).

    Args:
        counter: Four integers or int64 tensors from 0 to 2**32 - 1, which broadcast.
        key: Two of them.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*map(torch.as_tensor, counter))
    k0, k1 = key
    for _ in range(ROUNDS):
        # a product runs over the sign, but it keeps its 64 bits
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> 32 & LOW) ^ c1 ^ k0,
            second & LOW,
            (first >> 32 & LOW) ^ c3 ^ k1,
            first & LOW,
        )
        k0, k1 = k0 + KEY_STEPS[0] & LOW, k1 + KEY_STEPS[1] & LOW
    return torch.stack([c0, c1, c2, c3])


def words(seed: Tensor, item: Tensor, position, purpose) -> Tensor:
    """The words of the kernels' ``philox.words``, of shape (4, ...); the seed is one int64."""
    counter = (item & LOW, item >> 32, position, purpose)
    return philox([torch.as_tensor(c, device=item.device) for c in counter], key_of(seed))


def key_of(seed: Tensor) -> tuple[Tensor, Tensor]:
    return seed & LOW, seed >> 32 & LOW


def neighbour_words(seed: Tensor, n: int, purpose: int, first: int = 0) -> Tensor:
    """One word for each of the elements ``first`` to ``first + n``, four of which share a call."""
    element = torch.arange(first, first + n, device=seed.device)
    return _own(words(seed, element // 4, 0, purpose), element)


def element_words(seed: Tensor, n: int, num_draws: int) -> Tensor:
    """The words of the noise draws of a Bernoulli ``gumbel_rao``, of shape (num_draws, n)."""
    element = torch.arange(n, device=seed.device)
    calls = [words(seed, element, 0, DRAWS + m) for m in range(-(-num_draws // 4))]
    return torch.cat(calls)[:num_draws]


def row_words(seed: Tensor, rows: int, n: int) -> Tensor:
    """The words of the noise of ``gumbel_softmax``, (rows, n): four columns share a call."""
    row, column = _grid(seed, rows, n)
    return _own(words(seed, row, column // 4, NOISE), column.expand(rows, n))


def row_draws_words(seed: Tensor, rows: int, n: int, num_draws: int) -> Tensor:
    """The words of the noise draws of ``gumbel_rao``, of shape (num_draws, rows, n)."""
    row, column = _grid(seed, rows, n)
    calls = [words(seed, row, column, DRAWS + m) for m in range(-(-num_draws // 4))]
    return torch.cat(calls)[:num_draws]


def uniform(word: Tensor) -> Tensor:
    """A float64 inside (0, 1)."""
    return (word.double() + 0.5) * 2.0**-32


def uniform53(high: Tensor, low: Tensor) -> Tensor:
    """A float64 in [0, 1) with 53 random bits."""
    return ((high >> 5) * 2**26 + (low >> 6)).double() * 2.0**-53


def exponential(word: Tensor) -> Tensor:
    """Standard exponential noise in float64."""
    # the distance to 1 is exact, the number itself need not be
    return torch.where(word < 2**31, -uniform(word).log(), -(-uniform(word ^ LOW)).log1p())


def logistic(word: Tensor) -> Tensor:
    """Standard logistic noise in float64."""
    return exponential(word ^ LOW) - exponential(word)


def _grid(seed: Tensor, rows: int, n: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows, device=seed.device)[:, None], torch.arange(n, device=seed.device)


def _own(four: Tensor, element: Tensor) -> Tensor:
    """The word of each element among those of its group of four."""
    return four.gather(0, (element % 4)[None])[0]
