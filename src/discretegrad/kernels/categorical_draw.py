"""The kernel that draws a category for each row.

It reads the logits and writes the sample, and keeps for each row the draw, the largest logit and
the sum of exponentials relative to it.

The draw needs no second pass. A program keeps, for each of its lanes, the sum of the weights that
went through it; then it picks a group of lanes, reads again only what went through those, and picks
within. Every pick inverts a short cumulative sum in float64.
"""

import triton
import triton.language as tl

from .numbers import LOWEST
from .philox import DRAW, uniform53, words
from .rows import NORMAL, exp, load_logits, row_offset

# a block may lie this far above the first one of its row before its exponentials are too large
FAR_ABOVE = tl.constexpr(60.0)


@triton.jit
def _lanes(logits, mask, lane, reference, n, in_rows, logits_column, mask_column,
           HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The largest logit of every lane, and the sum of its exponentials relative to a reference."""
    top = reference + tl.zeros_like(lane).to(tl.float32)
    weight = tl.zeros_like(top)
    for start in range(0, n, BLOCK):
        column = start + lane
        inside = in_rows & (column < n)
        x = load_logits(logits, mask, column, inside, logits_column, mask_column, HAS_MASK, NORMAL)
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
def _draw_kernel(
    logits, mask, sample, seed, index, statistics,
    rows, n, first_column, inner,
    logits_outer, logits_inner, logits_column,
    mask_outer, mask_inner, mask_column,
    sample_outer, sample_inner, sample_column,
    SPLIT: tl.constexpr, HAS_MASK: tl.constexpr, GIVEN: tl.constexpr, DENSE: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Draw a category for every row, or take the given one; write one-hot, index and statistics.

    ``BLOCKS`` is the number of blocks of a row, rounded up to a power of two. ``GROUP`` lanes are
    picked together. ``PART`` is 0 for whole rows; 1 takes n columns as the first part of longer
    rows, 2 those from ``first_column`` on as the next one. Parts also keep the drawn logit, as the
    third of the statistics, because the logits are gone afterwards.
    """
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    in_rows = row < rows
    logits += row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    if HAS_MASK:
        mask += row_offset(row, inner, mask_outer, mask_inner, SPLIT)
    if DENSE:
        sample += row_offset(row, inner, sample_outer, sample_inner, SPLIT)
    lane = tl.arange(0, BLOCK)[None, :]
    inside = in_rows & (lane < n)
    if GIVEN:
        drawn = tl.load(index + row, mask=in_rows, other=0)
    x = load_logits(logits, mask, lane, inside, logits_column, mask_column, HAS_MASK, NORMAL)
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
                    logits[:, :, None], mask[:, :, None] if HAS_MASK else mask, members,
                    in_rows[:, :, None] & (members < n), logits_column, mask_column, HAS_MASK,
                    NORMAL,
                )  # fmt: skip
                x -= tl.max(tl.max(x, 2), 1)[:, None, None]
                word_e, word_f, _, _ = words(tl.load(seed), row, first_column + 1, DRAW)
                block = _pick(tl.sum(exp(x), 2), uniform53(word_e, word_f), BLOCKS)
                column += block * BLOCK
            x = load_logits(
                logits,
                mask,
                column,
                in_rows & (column < n),
                logits_column,
                mask_column,
                HAS_MASK,
                NORMAL,
            )
            x -= tl.max(x, 1, keep_dims=True)
            drawn = tl.min(column, 1, keep_dims=True)
            drawn = (drawn + _pick(exp(x), uniform53(word_c, word_d), GROUP)).to(tl.int64)
        drawn = tl.minimum(drawn, n - 1)
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
        if BLOCKS == 1:
            one_hot = tl.where(lane == drawn, 1.0, 0.0).to(sample.dtype.element_ty)
            tl.store(sample + lane.to(tl.int64) * sample_column, one_hot, mask=inside)
        else:
            # the sample was all zeros: a loop that only reads keeps more loads in flight
            one = tl.where(in_rows, 1.0, 0.0).to(sample.dtype.element_ty)
            tl.store(sample + drawn * sample_column, one, mask=in_rows)
    if not GIVEN:
        tl.store(index + row, drawn, mask=in_rows)
    tl.store(statistics + row, top, mask=in_rows)
    tl.store(statistics + rows + row, total, mask=in_rows)
