"""Draw categories, and the gradient of the samplers, with the kernels: the host's side.

Memory traffic: forward reads the logits and writes the sample, and keeps three numbers for each
row. Backward reads logits and gradient and writes one gradient.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .._types import Method
from .categorical_draw import _draw_kernel, _pieces_kernel
from .categorical_gradient import _gradient_kernel
from .formulas import FORMULAS, terms
from .launch import Plan, launch, power_of_two
from .layout import Drawn, Place, Rows, contiguous, layout, new_like, place

# a row of at most this many categories is one block, which stays on chip
LONGEST_DRAW = 2048
LONGEST_GRADIENT = 8192
# longer ones are read in blocks of this many
LONG_DRAW = 1024
LONG_GRADIENT = 8192
# lanes that a draw picks together
GROUP = 32
# at most this many of those, of at most so many pieces, are cut into pieces of these sizes
FEW_ROWS = 512
MOST_PIECES = 1024
PIECE_DRAW = 2048
PIECE_GRADIENT = 4096
# from this many rows of at most this many categories on, each thread has rows to itself, and a
# program has so many
MANY_ROWS = 2**14
SHORTEST = 16
THREAD_ROWS = 128


class Tiles(NamedTuple):
    """How a kernel cuts rows into programs."""

    one_block: bool
    rows: int
    """Rows of one program."""
    block: int
    """Categories that a program holds at once."""
    warps: int
    registers: int | None = None
    """The most of a thread."""
    per_thread: int = 0
    """The categories of a row, if a thread has rows to itself."""
    pieces: int = 0
    """Programs that share a row of several blocks, one block each."""

    @property
    def constants(self) -> tuple[int, ...]:
        """What a kernel is compiled for."""
        pieces = power_of_two(self.pieces) if self.pieces else 0
        return self.per_thread, pieces, self.rows, self.block

    def programs(self, rows: int) -> int:
        """How many there are."""
        return -(-rows // self.rows) * max(1, self.pieces)


def whole_tiles(rows: int, n: int, usual: Tiles, piece: int) -> Tiles:
    """Those of many short rows, of a few long rows, and else the usual ones."""
    if n <= SHORTEST and rows >= MANY_ROWS:
        warps = max(1, THREAD_ROWS // 32)
        return Tiles(True, THREAD_ROWS, usual.block, warps, per_thread=n)
    if not usual.one_block and rows <= FEW_ROWS and n <= MOST_PIECES * piece:
        return Tiles(True, 1, piece, max(1, piece // 512), pieces=-(-n // piece))
    return usual


# programs of this many numbers, or of fewer where there would be too few programs
_NUMBERS = 512
_FEW_NUMBERS = 128
_MANY = 2**19


def _rows(rows: int, block: int) -> int:
    """Short rows for one program."""
    return max(1, (_NUMBERS if rows * block >= _MANY else _FEW_NUMBERS) // block)


def draw_tiles(rows: int, n: int, longest: int, long_block: int) -> Tiles:
    """One warp for a row: a draw has many steps at which several warps would wait for each other.

    A long row has two, with few enough registers that many rows are under way.
    """
    if n > longest:
        return Tiles(False, 1, long_block, 2, 64)
    block = max(4, power_of_two(n))
    return Tiles(True, _rows(rows, block), block, 1)


def gradient_tiles(rows: int, n: int, longest: int, long_block: int) -> Tiles:
    """Warps of 256 numbers.

    A long row has as many warps as there can be: fewer rows at a time, which the cache can hold.
    """
    block = max(4, power_of_two(n))
    if n > longest:
        block = min(block, long_block)
        return Tiles(False, 1, block, max(1, block // 256))
    together = _rows(rows, block)
    return Tiles(True, together, block, min(16, max(1, block * together // 256)))


def draw(rows: Rows, source: Tensor, given: bool, dense: bool) -> tuple[Tensor | None, Drawn]:
    """A category for every row, and its one-hot of the shape of the logits if ``dense``.

    Args:
        rows: The variables; their temperature does not matter.
        source: The seed, one int64; or if ``given`` the categories, contiguous int64, (rows,).
        given: Whether ``source`` has the categories.
        dense: Whether to write the one-hot.
    """
    logits, mask = rows.logits, rows.mask
    plan = draw_plan(place(rows), given, dense)
    device = logits.device
    sample = new_like(logits) if dense else None
    if plan.zeroed and sample is not None:
        sample.zero_()
    index = source if given else torch.empty(plan.rows, dtype=torch.int64, device=device)
    statistics = torch.empty(plan.kept, plan.rows, dtype=torch.float32, device=device)
    tensors = [logits, logits if mask is None else mask, logits if sample is None else sample]
    if plan.pieces is not None:
        launch(plan.pieces, [*tensors, statistics])
    launch(plan.draw, [*tensors, source, index, statistics])
    return sample, Drawn(index, statistics if plan.pieces is None else statistics[:2])


class DrawPlan(NamedTuple):
    """How to draw."""

    draw: Plan
    rows: int
    zeroed: bool
    """Whether the one-hot must be all zeros before."""
    pieces: Plan | None = None
    """What comes before, if rows are cut into pieces."""
    kept: int = 2
    """Numbers of a row, of which the first two are its statistics."""


@lru_cache(maxsize=4096)
def draw_plan(where: Place, given: bool, dense: bool) -> DrawPlan:
    """The plan for a draw."""
    shape, dim, logits, mask, *_ = where
    strides = (logits, mask or logits, contiguous(shape) if dense else logits)
    n = shape[dim]
    rows = math.prod(shape) // n
    usual = draw_tiles(rows, n, LONGEST_DRAW, LONG_DRAW)
    tile = whole_tiles(rows, n, usual, PIECE_DRAW)
    flags = (mask is not None, given, dense, 0)
    draw = _plan_draw(shape, dim, strides, flags, 0, tile)
    if not tile.pieces:
        return DrawPlan(draw, rows, not tile.one_block)
    rows, n, inner, copied, places = layout(shape, dim, strides)
    constants = (
        rows, n, inner, *places[0], *places[1], *places[2], inner != rows, mask is not None, dense,
        tile.block,
    )  # fmt: skip
    pieces = Plan(_pieces_kernel, tile.programs(rows), tile.warps, constants, copied)
    return DrawPlan(draw, rows, False, pieces, 2 + 2 * tile.pieces)


def draw_part(logits: Tensor, first_column: int, seed: Tensor, drawn: Drawn) -> None:
    """Go on with the draw of long rows by the categories from ``first_column`` on.

    Args:
        logits: (rows, categories of this part), contiguous.
        first_column: The number of the first of them; 0 begins.
        seed: One int64.
        drawn: What is known so far, with the drawn logit as the third of the statistics; it is
            changed in place.
    """
    plan = _draw_part_plan(logits.shape, first_column, logits.dtype, logits.device)
    launch(plan, [logits, logits, logits, seed, drawn.categories, drawn.statistics])


@lru_cache(maxsize=4096)
def _draw_part_plan(
    shape: tuple[int, int], first_column: int, dtype: torch.dtype, device: torch.device
) -> Plan:
    flags = (False, False, False, 2 if first_column > 0 else 1)
    tile = draw_tiles(*shape, LONGEST_DRAW, LONG_DRAW)
    return _plan_draw(shape, 1, (contiguous(shape),) * 3, flags, first_column, tile)


def _plan_draw(
    shape: tuple[int, ...],
    dim: int,
    strides: tuple[tuple[int, ...], ...],
    flags: tuple[int, ...],
    first_column: int,
    tile: Tiles,
) -> Plan:
    rows, n, inner, copied, places = layout(shape, dim, strides)
    blocks = 1 if tile.pieces else power_of_two(-(-n // tile.block))
    grouped = GROUP if tile.block > 2 * GROUP or blocks > 1 else 1
    constants = (
        rows, n, first_column, inner, *places[0], *places[1], *places[2], inner != rows, *flags,
        *tile.constants, blocks, grouped,
    )  # fmt: skip
    return Plan(_draw_kernel, -(-rows // tile.rows), tile.warps, constants, copied, tile.registers)


def gradient(
    method: Method, g: Tensor, rows: Rows, seed: Tensor | None, drawn: Drawn, in_place: bool = False
) -> Tensor:
    """The gradient for the logits, given the gradient ``g`` at the one-hot of ``drawn``.

    Args:
        method: Any but ``gumbel_rao``, which has a kernel of its own.
        g: Of the shape of the logits, of any strides and floating dtype.
        rows: The variables.
        seed: One int64, for ``"gumbel_softmax"``.
        drawn: From ``draw``.
        in_place: Write the result over ``g`` if that is contiguous and of the logits' dtype.
    """
    logits, _, mask, tau, tau_rows = rows
    # others might be copied to fit the layout
    in_place = in_place and g.is_contiguous() and g.dtype == logits.dtype
    result = g if in_place else new_like(logits)
    at_sample = (g.stride(), g.dtype, in_place)
    plan = gradient_plan(place(rows), at_sample, method.name, rows.tempered)
    index, statistics = drawn
    at_draws = sums = statistics
    if plan.sums is not None:
        memory = torch.empty(plan.scratch, dtype=torch.float32, device=logits.device)
        sums, at_draws = memory, memory[-index.numel() :]
    tensors = [
        logits,
        logits if mask is None else mask,
        g,
        logits if tau_rows is None else tau_rows,
        result,
        at_draws,
        index,
        statistics,
        index if seed is None else seed,
        sums,
    ]
    if plan.sums is not None:
        launch(plan.sums, tensors, (tau, method.option))
    launch(plan.write, tensors, (tau, method.option))
    return result


class GradientPlan(NamedTuple):
    """How to compute a gradient."""

    write: Plan
    sums: Plan | None = None
    """What comes before, if rows are cut into pieces."""
    scratch: int = 0
    """Numbers that both need: eight sums of each piece, then the gradient at each draw."""


@lru_cache(maxsize=4096)
def gradient_plan(
    where: Place, at_sample: tuple[tuple[int, ...], torch.dtype, bool], name: str, tempered: bool
) -> GradientPlan:
    """The plan for a gradient at the sample of these strides and this dtype, perhaps in place."""
    shape, dim, logits, mask, tau, dtype, _ = where
    strides = (logits, mask or logits, at_sample[0], tau or logits, contiguous(shape))
    n = shape[dim]
    rows = math.prod(shape) // n
    usual = gradient_tiles(rows, n, LONGEST_GRADIENT, LONG_GRADIENT)
    tile = whole_tiles(rows, n, usual, PIECE_GRADIENT)
    # noise costs more to make twice than to write and to read
    passes = 2 if tile.pieces or not tile.one_block else 1
    stores = FORMULAS[name].noise and passes == 2 and dtype == torch.float32 and not at_sample[2]

    def plan(part: int) -> Plan:
        flags = (mask is not None, tau is not None, part, *terms(name, tempered), stores)
        return _plan_gradient(shape, dim, strides, flags, 0, tile)

    if not tile.pieces:
        return GradientPlan(plan(0))
    return GradientPlan(plan(2), plan(1), (8 * tile.pieces + 1) * rows)


class LongRows(NamedTuple):
    """What the gradient of rows whose categories come in parts has to know of all their parts."""

    method: Method
    tau: float
    seed: Tensor
    """One int64."""
    drawn: Drawn
    """From ``draw_part``."""
    at_draw: Tensor
    """float32, (rows,): the gradient at the draw."""
    sums: Tensor
    """float32, (8, rows): zero before the first part."""


def sums_part(known: LongRows, g: Tensor, logits: Tensor, first_column: int) -> None:
    """Add to the sums what the gradient needs of the categories from ``first_column`` on.

    Args:
        known: Its sums are changed in place.
        g: (rows, categories of this part), contiguous.
        logits: The same.
        first_column: The number of the first of these categories.
    """
    _part(1, known, g, logits, first_column)


def gradient_part(known: LongRows, g: Tensor, logits: Tensor, first_column: int) -> Tensor:
    """The gradient for the logits of a part, written over ``g``, once the sums are complete."""
    _part(2, known, g, logits, first_column)
    return g


def _part(part: int, known: LongRows, g: Tensor, logits: Tensor, first_column: int) -> None:
    method, tau, seed, drawn, at_draw, sums = known
    key = (method.name, tau != 1, part, first_column)
    plan = _gradient_part_plan(logits.shape, key, logits.dtype, logits.device)
    tensors = [
        logits, logits, g, logits, g, at_draw, drawn.categories, drawn.statistics, seed, sums
    ]  # fmt: skip
    launch(plan, tensors, (tau, method.option))


@lru_cache(maxsize=4096)
def _gradient_part_plan(
    shape: tuple[int, int],
    key: tuple[str, bool, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    name, tempered, part, first_column = key
    flags = (False, False, part, *terms(name, tempered), False)
    # what a part needs is in memory between its two passes: it is never one block
    tile = gradient_tiles(*shape, 0, LONG_GRADIENT)
    return _plan_gradient(shape, 1, (contiguous(shape),) * 5, flags, first_column, tile)


def _plan_gradient(
    shape: tuple[int, ...],
    dim: int,
    strides: tuple[tuple[int, ...], ...],
    flags: tuple[int, ...],
    first_column: int,
    tile: Tiles,
) -> Plan:
    rows, n, inner, copied, places = layout(shape, dim, strides)
    constants = (
        rows, n, first_column, inner, *places[0], *places[1], *places[2], *places[3][:2],
        *places[4], inner != rows, *flags, tile.one_block, *tile.constants,
    )  # fmt: skip
    return Plan(
        _gradient_kernel, tile.programs(rows), tile.warps, constants, copied, tile.registers
    )
