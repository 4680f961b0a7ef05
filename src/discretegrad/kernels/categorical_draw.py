"""The kernels that draw a category for each row.

They read the logits and write the sample, and keep for each row the draw, the largest logit and
the sum of exponentials relative to it.

The draw needs no second pass. A program keeps, for each of its lanes, the sum of the weights that
went through it; then it picks a group of lanes, reads again only what went through those, and picks
within. Every pick inverts a short cumulative sum in float64.

A few long rows are cut into pieces first, one for a program, so that the whole GPU reads them. Then
the draw picks one of the pieces by their sums, and a category within that piece alone.
"""

import triton
import triton.language as tl

from .numbers import LOWEST
from .philox import DRAW, uniform53, words
from .rows import DROP, NORMAL, exp, load_logits, row_offset

# a block may lie this far above the first one of its row before its exponentials are too large
FAR_ABOVE = tl.constexpr(60.0)


@triton.jit
def _lanes(logits, mask, lane, reference, n, in_rows, logits_column, mask_column,
           HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The largest logit of every lane, and the sum of its exponentials relative to a reference."""
    top = reference + tl.zeros_like(lane).to(tl.float32)
    weight = tl.zeros_like(top)
    for start in range(0, n, BLOCK):
        x = load_logits(
            logits, mask, start + lane, n, in_rows, logits_column, mask_column, HAS_MASK, 0, NORMAL
        )
        top = tl.maximum(top, x)
        weight += exp(x - reference)
    return top, weight


@triton.jit
def _pick(weight, uniform, AXIS_SIZE: tl.constexpr):
    """A position along the last axis of (ROWS, AXIS_SIZE), with probability as its weight."""
    position = tl.arange(0, AXIS_SIZE)[None, :]
    cumulative = tl.cumsum(weight.to(tl.float64), 1)
    threshold = uniform * tl.max(cumulative, 1, keep_dims=True)
    # a parallel sum is monotone only up to rounding: never take a position of weight zero
    possible = weight > 0
    past = (cumulative > threshold) & possible
    first = tl.min(tl.where(past, position, AXIS_SIZE), 1, keep_dims=True)
    last = tl.max(tl.where(possible, position, 0), 1, keep_dims=True)
    return tl.minimum(first, last)


@triton.jit
def _pieces_kernel(
    logits, mask, sample, statistics,
    rows, n, inner,
    logits_outer, logits_inner, logits_column,
    mask_outer, mask_inner, mask_column,
    sample_outer, sample_inner, sample_column,
    SPLIT: tl.constexpr, HAS_MASK: tl.constexpr, DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest logit and the sum of exponentials of every piece of ``BLOCK`` categories.

    They lie behind the statistics of the rows: (2, rows, pieces). The sample becomes all zeros.
    """
    pieces = tl.cdiv(n, BLOCK)
    row = tl.program_id(0).to(tl.int64) // pieces
    piece = tl.program_id(0) % pieces
    column = piece * BLOCK + tl.arange(0, BLOCK)
    logits += row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    if HAS_MASK:
        mask += row_offset(row, inner, mask_outer, mask_inner, SPLIT)
    x = load_logits(
        logits, mask, column, n, row < rows, logits_column, mask_column, HAS_MASK, 0, NORMAL
    )
    if DENSE:
        sample += row_offset(row, inner, sample_outer, sample_inner, SPLIT)
        zero = tl.zeros((BLOCK,), sample.dtype.element_ty)
        pointer = sample + column.to(tl.int64) * sample_column
        tl.store(pointer, zero, mask=column < n, eviction_policy=DROP)
    top = tl.maximum(tl.max(x, 0), LOWEST)
    at = 2 * rows + row * pieces + piece
    tl.store(statistics + at, top)
    tl.store(statistics + rows * pieces + at, tl.sum(exp(x - top), 0))


@triton.jit
def _draw_kernel(
    logits, mask, sample, seed, index, statistics,
    rows, n, first_column, inner,
    logits_outer, logits_inner, logits_column,
    mask_outer, mask_inner, mask_column,
    sample_outer, sample_inner, sample_column,
    SPLIT: tl.constexpr, HAS_MASK: tl.constexpr, GIVEN: tl.constexpr, DENSE: tl.constexpr,
    PART: tl.constexpr, PER_THREAD: tl.constexpr, PIECES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Draw a category for every row, or take the given one; write one-hot, index and statistics.

    ``BLOCKS`` is the number of blocks of a row, rounded up to a power of two. ``GROUP`` lanes are
    picked together. ``PART`` is 0 for whole rows; 1 takes n columns as the first part of longer
    rows, 2 those from ``first_column`` on as the next one. Parts also keep the drawn logit, as the
    third of the statistics, because the logits are gone afterwards.

    ``PER_THREAD`` is n where a thread has rows to itself, else 0. ``PIECES`` is the number of
    pieces that ``_pieces_kernel`` was here for, rounded up to a power of two, or 0; then a block is
    a piece.
    """
    if PER_THREAD:
        n = PER_THREAD
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    in_rows = row < rows
    logits += row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    if HAS_MASK:
        mask += row_offset(row, inner, mask_outer, mask_inner, SPLIT)
    if DENSE:
        sample += row_offset(row, inner, sample_outer, sample_inner, SPLIT)
    lane = tl.arange(0, BLOCK)[None, :]
    if GIVEN:
        drawn = tl.load(index + row, mask=in_rows, other=0)
    if PIECES:
        pieces = tl.cdiv(n, BLOCK)
        number = tl.arange(0, PIECES)[None, :]
        at = statistics + 2 * rows + row * pieces + number
        known = in_rows & (number < pieces)
        piece_top = tl.load(at, mask=known, other=LOWEST)
        row_top = tl.max(piece_top, 1, keep_dims=True)
        weight = tl.load(at + rows * pieces, mask=known, other=0.0) * exp(piece_top - row_top)
        row_total = tl.sum(weight, 1, keep_dims=True)
        if not GIVEN:
            word_e, word_f, _, _ = words(tl.load(seed), row, first_column + 1, DRAW)
            # go on with this piece as if it were the row
            begin = _pick(weight, uniform53(word_e, word_f), PIECES) * BLOCK
            n = n - begin
            logits += begin.to(tl.int64) * logits_column
            if HAS_MASK:
                mask += begin.to(tl.int64) * mask_column
    x = load_logits(
        logits, mask, lane, n, in_rows, logits_column, mask_column, HAS_MASK, PER_THREAD, NORMAL
    )
    if BLOCKS == 1:
        top = tl.maximum(tl.max(x, 1, keep_dims=True), LOWEST)
        weight = exp(x - top)
    else:
        # exponentials relative to the first block, which mostly has logits like the others
        reference = tl.maximum(tl.max(x, 1, keep_dims=True), LOWEST)
        lane_top, weight = _lanes(
            logits, mask, lane, reference, n, in_rows, logits_column, mask_column, HAS_MASK, BLOCK
        )
        top = tl.maximum(tl.max(lane_top, 1, keep_dims=True), LOWEST)
        if tl.max(top - reference) > FAR_ABOVE:
            _, weight = _lanes(
                logits, mask, lane, top, n, in_rows, logits_column, mask_column, HAS_MASK, BLOCK
            )
        else:
            weight *= exp(reference - top)
    total = tl.sum(weight, 1, keep_dims=True)
    if not GIVEN:
        word_a, word_b, word_c, word_d = words(tl.load(seed), row, first_column, DRAW)
        if GROUP == 1:
            drawn = _pick(weight, uniform53(word_a, word_b), BLOCK).to(tl.int64)
        else:
            grouped = tl.reshape(weight, (ROWS, BLOCK // GROUP, GROUP))
            group = _pick(tl.sum(grouped, 2), uniform53(word_a, word_b), BLOCK // GROUP)
            column = group * GROUP + tl.arange(0, GROUP)[None, :]
            if BLOCKS > 1:
                # which block: its elements in the group of lanes, relative to the row's largest
                block = tl.arange(0, BLOCKS)[None, :, None] * BLOCK
                members = column[:, None, :] + block
                x = load_logits(
                    logits[:, :, None], mask[:, :, None] if HAS_MASK else mask, members, n,
                    in_rows[:, :, None], logits_column, mask_column, HAS_MASK, 0, NORMAL,
                )  # fmt: skip
                x -= tl.max(tl.max(x, 2), 1)[:, None, None]
                word_e, word_f, _, _ = words(tl.load(seed), row, first_column + 1, DRAW)
                block = _pick(tl.sum(exp(x), 2), uniform53(word_e, word_f), BLOCKS)
                column += block * BLOCK
            x = load_logits(
                logits, mask, column, n, in_rows, logits_column, mask_column, HAS_MASK, 0, NORMAL
            )
            x -= tl.max(x, 1, keep_dims=True)
            drawn = tl.min(column, 1, keep_dims=True)
            drawn = (drawn + _pick(exp(x), uniform53(word_c, word_d), GROUP)).to(tl.int64)
        drawn = tl.minimum(drawn, n - 1)
    if PIECES:
        top = row_top
        total = row_total
        if not GIVEN:
            drawn += begin
    if PART > 0:
        own = tl.load(logits + drawn * logits_column, mask=in_rows, other=0.0).to(tl.float32)
    if PART > 1:
        # the part wins with the probability of its share of all weights so far
        _, _, word_g, word_h = words(tl.load(seed), row, first_column + 1, DRAW)
        top_before = tl.load(statistics + row, mask=in_rows, other=0.0)
        total_before = tl.load(statistics + rows + row, mask=in_rows, other=0.0)
        both = tl.maximum(top, top_before)
        total = total * exp(top - both)
        total_before = total_before * exp(top_before - both)
        sum_of_both = total.to(tl.float64) + total_before.to(tl.float64)
        wins = uniform53(word_g, word_h) * sum_of_both < total.to(tl.float64)
        own = tl.where(wins, own, tl.load(statistics + 2 * rows + row, mask=in_rows, other=0.0))
        before = tl.load(index + row, mask=in_rows, other=0)
        drawn = tl.where(wins, first_column + drawn, before)
        top = both
        total += total_before
    if PART > 0:
        tl.store(statistics + 2 * rows + row, own, mask=in_rows)
    if DENSE:
        if BLOCKS == 1 and not PIECES:
            one_hot = tl.where(lane == drawn, 1.0, 0.0).to(sample.dtype.element_ty)
            tl.store(sample + lane.to(tl.int64) * sample_column, one_hot, mask=in_rows & (lane < n))
        else:
            # the sample was all zeros: a loop that only reads keeps more loads in flight
            one = tl.where(in_rows, 1.0, 0.0).to(sample.dtype.element_ty)
            # nobody may have looked whether the row has the category that is given
            inside = in_rows & (drawn >= 0) & (drawn < n) if GIVEN else in_rows
            tl.store(sample + drawn * sample_column, one, mask=inside)
    if not GIVEN:
        tl.store(index + row, drawn, mask=in_rows)
    tl.store(statistics + row, top, mask=in_rows)
    tl.store(statistics + rows + row, total, mask=in_rows)
