"""Log-odds, moments and draws of subsets with the kernels: the host's side.

Each function is one launch. Tensors are float32, with the items of a row last.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .launch import Plan, launch, power_of_two
from .subset_balance import _balance_kernel
from .subset_kernels import _draw_kernel, _moments_kernel

# numbers of a level that a thread makes at once, and products that it adds up at once
PER_THREAD = 1
TERMS = 4
# items that a thread looks at before the threads of a row compare notes
ITEMS = 4
# what all programs keep of their trees: half a gigabyte, whatever the number of rows
SCRATCH = 2**27
# programs that keep a large GPU busy, if there are so many draws
PROGRAMS = 1024


class Tree(NamedTuple):
    """The shape of the tree of a row, see ``subset_kernels``."""

    k: int
    """Items that are chosen or, if that are fewer, left out."""
    flipped: bool
    """Whether they are left out."""
    steps: int
    """From the root to the items."""
    size: int
    """Numbers of all levels."""
    widest: int
    """Numbers of the largest one."""


@lru_cache(maxsize=4096)
def tree(n: int, k: int) -> Tree:
    """For subsets of k of n items."""
    flipped = 2 * k > n
    k = n - k if flipped else k
    steps = (n - 1).bit_length()
    degree = max(k, 1)
    levels = [(min(2**i, degree) + 1) * -(-n // 2**i) for i in range(max(steps, 1))]
    return Tree(k, flipped, steps, sum(levels), max(*levels, degree + 1))


def _warps(n: int) -> int:
    """More for long rows, whose levels have more numbers to make at once."""
    return min(16, max(1, power_of_two(n) // 128))


def balance(natural: Tensor, k: int, shifted: bool) -> Tensor:
    """Numbers (rows, n) minus the k-th largest of their row; ``shifted`` such that k bits are 1."""
    natural = natural.contiguous()
    point = torch.empty_like(natural)
    plan = _balance_plan(*natural.shape, k, shifted, natural.device)
    launch(plan, [natural, point])
    return point


@lru_cache(maxsize=4096)
def _balance_plan(rows: int, n: int, k: int, shifted: bool, device: torch.device) -> Plan:
    warps = _warps(n)
    block = min(power_of_two(n), 32 * warps * ITEMS)
    return Plan(_balance_kernel, rows, warps, (n, k, shifted, block))


def moments(point: Tensor, k: int, g: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The probabilities that items are in and that they are out, and their covariance times g.

    Args:
        point: Log-odds, (rows, n).
        k: The size of a subset.
        g: The same shape; without it the product is empty.
    """
    point = point.contiguous()
    g = None if g is None else g.contiguous()
    mean, rest = torch.empty_like(point), torch.empty_like(point)
    product = mean.new_empty(0) if g is None else torch.empty_like(point)
    plan, room = _moments_plan(*point.shape, k, 0 if g is None else 1, point.device)
    scratch = torch.empty(room, dtype=torch.float32, device=point.device)
    launch(plan, [point, point if g is None else g, point, mean, rest, product, scratch], (1.0,))
    return mean, rest, product


def second_order(point: Tensor, k: int, g: Tensor, drawn: Tensor, weight: float) -> Tensor:
    """The covariance times g times ``weight``, and half of the term of second order.

    Args:
        point: Log-odds, (rows, n).
        k: The size of a subset.
        g: The same shape.
        drawn: The same shape, booleans.
        weight: Of the first order.
    """
    point, g, drawn = point.contiguous(), g.contiguous(), drawn.contiguous()
    residual, product = torch.empty_like(point), torch.empty_like(point)
    plan, room = _moments_plan(*point.shape, k, 2, point.device)
    scratch = torch.empty(room, dtype=torch.float32, device=point.device)
    launch(plan, [point, g, drawn, residual, residual, product, scratch], (weight,))
    return product


@lru_cache(maxsize=4096)
def _moments_plan(rows: int, n: int, k: int, order: int, device: torch.device) -> tuple[Plan, int]:
    """The plan, and how many numbers its programs keep."""
    shape, warps = tree(n, k), _warps(n)
    room = (shape.size + 2 * shape.widest) * (2 if order > 0 else 1)
    programs = min(rows, max(1, SCRATCH // room))
    constants = (
        *(rows, n, shape.k, shape.steps, shape.size, shape.widest),
        *(order, shape.flipped, TERMS, 32 * warps * PER_THREAD),
    )
    return Plan(_moments_kernel, programs, warps, constants), programs * room


def draw(point: Tensor, k: int, uniform: Tensor) -> Tensor:
    """Subsets as booleans (draws, rows, n), from log-odds (rows, n).

    Args:
        point: Log-odds, (rows, n).
        k: The size of a subset.
        uniform: float64 numbers, (draws, rows, n - 1).
    """
    point, uniform = point.contiguous(), uniform.contiguous()
    rows, n = point.shape
    draws, device = uniform.shape[0], point.device
    drawn = torch.empty(draws, rows, n, dtype=torch.bool, device=device)
    plan, programs = _draw_plan(draws, rows, n, k, device)
    scratch = torch.empty(programs * tree(n, k).size, dtype=torch.float32, device=device)
    counts = torch.empty(programs * 2 * n, dtype=torch.int32, device=device)
    launch(plan, [point, uniform, drawn, scratch, counts])
    return drawn


@lru_cache(maxsize=4096)
def _draw_plan(draws: int, rows: int, n: int, k: int, device: torch.device) -> tuple[Plan, int]:
    """The plan, and the number of its programs."""
    shape, warps = tree(n, k), _warps(n)
    # draws of a row share its tree, unless there are too few rows for all programs
    share = -(-draws // min(draws, max(1, PROGRAMS // rows)))
    jobs = rows * -(-draws // share)
    programs = min(jobs, max(1, SCRATCH // (shape.size + 2 * n)))
    constants = (
        *(rows, n, shape.k, shape.steps, shape.size, draws, share),
        *(shape.flipped, TERMS, 32 * warps * PER_THREAD),
    )
    return Plan(_draw_kernel, programs, warps, constants), programs
