r"""Fused kernels for categorical variables: the one-hot of a draw, the gradient of all samplers.

With $m = \max_j l_j$, $w_j = e^{l_j - m}$ and $Z = \sum_j w_j$, so that $p = w / Z$, every sampler
turns the gradient g at its draw k, taken relative to the draw as $h = g - g_k$, into

$$\hat\nabla_j = e_j (a_1 h_j + a_0) + p_j (b_1 h_j + b_0) + c\, z_j$$

with further weights $e$ (of the tempered, gapped or perturbed softmax) and five numbers per row
that depend on sums over the row alone: of $e$, $e h$, $w h$ and, for the mean baseline, h.

Memory traffic: forward reads the logits and writes the sample, and keeps m, Z and k for each row.
Backward reads logits and gradient and writes one gradient; if a row is too long to stay on chip it
reads both twice, the second time in reverse, where the cache of the GPU still holds the end. The
softmax is computed again, never stored.

The draw needs no second pass. A program keeps, for each of its lanes, the sum of the weights that
went through it; then it picks a group of lanes, reads again only what went through those, and picks
within. Every pick inverts a short cumulative sum in float64.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Plan, launch, power_of_two
from .layout import layout
from .methods import (
    GAPPED,
    GAPPED_P,
    GUMBEL_SOFTMAX,
    MEAN_RELEASED,
    MEAN_SECOND,
    METHODS,
    REINMAX,
    STRAIGHT_THROUGH,
    TINY,
)
from .philox import DRAW, NOISE, exponential, interleave, log1p, uniform53, words

# a row of at most this many categories is one block, which stays on chip
LONGEST_DRAW = 2048
LONGEST_GRADIENT = 8192
# longer ones are read in blocks of this many
LONG_DRAW = 1024
LONG_GRADIENT = 8192
# lanes that a draw picks together
GROUP = 32

# up to this size a row is short
SHORT = tl.constexpr(128)
# the lowest finite float32
LOWEST = tl.constexpr(-3.4028234663852886e38)
LOG2_E = tl.constexpr(1.4426950408889634)
# a block may lie this far above the first one of its row before its exponentials are too large
FAR_ABOVE = tl.constexpr(60.0)
# and a logit this far below its row's largest before its probability is lost to a product
FAR_BELOW = tl.constexpr(-40.0)
# what the cache does with a line: as ever, keep it for the second pass, or let it go
NORMAL = tl.constexpr("")
KEEP = tl.constexpr("evict_last")
DROP = tl.constexpr("evict_first")


@dataclass(frozen=True)
class Drawn:
    """What forward keeps for backward."""

    index: Tensor
    """int64, (rows,): the category."""
    statistics: Tensor
    """float32, (2, rows): the largest logit, and the sum of exp(logit - largest). For rows in parts
    (3, rows), with the drawn logit."""


@triton.jit
def _exp(x):
    """``exp(x)``, and 0 below the normal numbers, which takes half the instructions."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def _row_offset(row, inner, outer_stride, inner_stride, SPLIT: tl.constexpr):
    if SPLIT:
        return (row // inner) * outer_stride + (row % inner) * inner_stride
    else:
        return row * inner_stride


@triton.jit
def _load_logits(logits, mask, column, inside, logits_column, mask_column, HAS_MASK: tl.constexpr,
                 EVICT: tl.constexpr):  # fmt: skip
    """Logits in float32, -inf where a category is excluded or past the end."""
    x = tl.load(logits + column.to(tl.int64) * logits_column, mask=inside, other=-float("inf"),
                eviction_policy=EVICT)  # fmt: skip
    x = x.to(tl.float32)
    if HAS_MASK:
        allowed = tl.load(mask + column.to(tl.int64) * mask_column, mask=inside, other=0)
        x = tl.where(allowed != 0, x, -float("inf"))
    return x


@triton.jit
def _lanes(logits, mask, lane, reference, n, in_rows, logits_column, mask_column,
           HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The largest logit of every lane, and the sum of its exponentials relative to a reference."""
    top = reference + tl.zeros_like(lane).to(tl.float32)
    weight = tl.zeros_like(top)
    for start in range(0, n, BLOCK):
        column = start + lane
        inside = in_rows & (column < n)
        x = _load_logits(logits, mask, column, inside, logits_column, mask_column, HAS_MASK, NORMAL)
        top = tl.maximum(top, x)
        weight += _exp(x - reference)
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
    logits += _row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    if HAS_MASK:
        mask += _row_offset(row, inner, mask_outer, mask_inner, SPLIT)
    if DENSE:
        sample += _row_offset(row, inner, sample_outer, sample_inner, SPLIT)
    lane = tl.arange(0, BLOCK)[None, :]
    inside = in_rows & (lane < n)
    if GIVEN:
        drawn = tl.load(index + row, mask=in_rows, other=0)
    x = _load_logits(logits, mask, lane, inside, logits_column, mask_column, HAS_MASK, NORMAL)
    if BLOCKS == 1:
        top = tl.maximum(tl.max(x, 1, keep_dims=True), LOWEST)
        weight = _exp(x - top)
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
            weight *= _exp(reference - top)
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
                x = _load_logits(
                    logits[:, :, None], mask[:, :, None] if HAS_MASK else mask, members,
                    in_rows[:, :, None] & (members < n), logits_column, mask_column, HAS_MASK,
                    NORMAL,
                )  # fmt: skip
                x -= tl.max(tl.max(x, 2), 1)[:, None, None]
                word_e, word_f, _, _ = words(tl.load(seed), row, first_column + 1, DRAW)
                block = _pick(tl.sum(_exp(x), 2), uniform53(word_e, word_f), BLOCKS)
                column += block * BLOCK
            x = _load_logits(
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
            drawn = (drawn + _pick(_exp(x), uniform53(word_c, word_d), GROUP)).to(tl.int64)
        drawn = tl.minimum(drawn, n - 1)
    if PART > 0:
        own = tl.load(logits + drawn * logits_column, mask=in_rows, other=0.0).to(tl.float32)
    if PART > 1:
        # the part wins with the probability of its share of all weights so far
        _, _, word_g, word_h = words(tl.load(seed), row, first_column + 1, DRAW)
        top_before = tl.load(statistics + row, mask=in_rows, other=0.0)
        total_before = tl.load(statistics + rows + row, mask=in_rows, other=0.0)
        both = tl.maximum(top, top_before)
        total = total * _exp(top - both)
        total_before = total_before * _exp(top_before - both)
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


@triton.jit
def _weights(x, w, is_drawn, inverse_tau, lead, own_noise, row, group, seed,
             METHOD: tl.constexpr, TEMPERED: tl.constexpr):  # fmt: skip
    """The weights e of the second softmax.

    x are the logits minus their row's largest and w their exponentials; ``own_noise`` is divided by
    the sum of those.
    """
    if METHOD == GAPPED or METHOD == GAPPED_P:
        return _exp(tl.where(is_drawn, 0.0, tl.minimum(x, -lead)) * inverse_tau)
    elif METHOD == GUMBEL_SOFTMAX:
        # groups of four neighbours share one call of the generator
        a, b, c, d = words(tl.load(seed), row, group, NOISE)
        noise = exponential(interleave(a, b, c, d))
        if TEMPERED:
            # far below, log(1 + r / w) is log(r) - x, also where w is no normal number
            far = x < FAR_BELOW
            ratio = noise / (own_noise * tl.where(far, 1.0, w))
            gap = tl.where(far, tl.log(ratio) - x, log1p(ratio))
            return _exp(tl.where(is_drawn, 0.0, -gap) * inverse_tau)
        else:
            mine = own_noise * w
            return tl.where(is_drawn, 1.0, mine / (mine + noise))
    else:
        return _exp(x * inverse_tau)


@triton.jit
def _load(
    logits, mask, gradient, start, n, in_rows, logits_column, mask_column, gradient_column,
    HAS_MASK: tl.constexpr, BLOCK: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """A block of columns from ``start`` on: logits and gradient at the sample, in float32."""
    column = start + tl.arange(0, BLOCK)[None, :]
    inside = in_rows & (column < n)
    x = _load_logits(logits, mask, column, inside, logits_column, mask_column, HAS_MASK, EVICT)
    pointer = gradient + column.to(tl.int64) * gradient_column
    g = tl.load(pointer, mask=inside, other=0.0, eviction_policy=EVICT)
    return x, g.to(tl.float32)


@triton.jit
def _terms(
    x, g, seed, start, first_column, row, drawn, at_draw, top, inverse_tau, lead, own_noise,
    METHOD: tl.constexpr, TEMPERED: tl.constexpr, USES_E: tl.constexpr, PART: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """What the formula needs of a block of columns: everything about its rows is (ROWS, 1).

    Past the end of a row x is -inf, so w and e are 0 there.
    """
    is_drawn = start + first_column + tl.arange(0, BLOCK)[None, :] == drawn
    shifted = x - top
    # relative to the draw, where it is exactly 0: no sampler feels a shift, but rounding does
    h = g - at_draw
    if PART > 0:
        # there ``at_draw`` was computed apart
        h = tl.where(is_drawn, 0.0, h)
    w = _exp(shifted)
    e = w
    if USES_E:
        group = (first_column + start) // 4 + tl.arange(0, BLOCK // 4)[None, :]
        e = _weights(
            shifted, w, is_drawn, inverse_tau, lead, own_noise, row, group, seed, METHOD, TEMPERED
        )
    return is_drawn, h, w, e


@triton.jit
def _summands(sum_wh, sum_e, sum_eh, sum_h, count, x, h, w, e,
              USES_E: tl.constexpr, COUNTS: tl.constexpr):  # fmt: skip
    """The sums with another block; lanes are added up after the last one."""
    sum_wh += w * h
    if USES_E:
        sum_e += e
        sum_eh += e * h
    if COUNTS:
        allowed = x > -float("inf")
        sum_h += tl.where(allowed, h, 0.0)
        count += allowed.to(tl.float32)
    return sum_wh, sum_e, sum_eh, sum_h, count


@triton.jit
def _coefficients(
    sum_e, sum_eh, sum_ph, sum_h, count, inverse_tau, own_prob, own_e, at_draw,
    METHOD: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """The five numbers of a row in the formula at the top of this file."""
    a1 = sum_ph * 0
    a0 = a1
    b1 = a1
    b0 = a1
    c = a1
    if METHOD == REINMAX:
        if TEMPERED:
            a1 = 1 / sum_e
            half = sum_eh * a1 / 2
            a0 = -half * a1
            b1 = b1 - 0.5
            b0 = sum_ph / 2
            c = -half
        else:
            b1 = b1 + 0.5
            c = -sum_ph / 2
    elif METHOD == STRAIGHT_THROUGH and not TEMPERED:
        b1 = b1 + 1
        b0 = -sum_ph
    elif METHOD <= GUMBEL_SOFTMAX:
        a1 = inverse_tau / sum_e
        a0 = -sum_eh / sum_e * a1
    else:
        tempered = own_prob
        if TEMPERED:
            tempered = own_e / sum_e
        mean = sum_h / count
        if METHOD == MEAN_RELEASED:
            weight = 1 / (count * tempered + 1e-12)
            b0 = (mean - (sum_ph + at_draw) * weight) / 2
            c = (at_draw * own_prob * weight - mean) / 2
        else:
            weight = 1 / (count * tl.maximum(tempered, TINY))
            b1 = weight
            b0 = -weight * sum_ph
            if METHOD == MEAN_SECOND:
                b1 = b1 / 2
                b0 = (b0 + mean) / 2
                c = -mean / 2
    return a1, a0, b1, b0, c


@triton.jit
def _lead_of(prob):
    prob = tl.maximum(prob * (1 - 1e-5), TINY)
    return -log1p(-prob) / prob


@triton.jit
def _value(h, w, e, a1, a0, b1, b0, METHOD: tl.constexpr, WRITES_E: tl.constexpr,
           WRITES_P: tl.constexpr):  # fmt: skip
    """The formula without its last term; b1 and b0 are for w instead of p."""
    if WRITES_P and WRITES_E:
        return w * (b1 * h + b0) + e * (a1 * h + a0)
    elif WRITES_E:
        return e * (a1 * h + a0)
    elif METHOD == REINMAX:
        return w * (b1 * h)
    else:
        return w * (b1 * h + b0)


@triton.jit
def _row_sum(lanes, sums, PART: tl.constexpr):
    """The sum over a row; of a row in parts, whose one program has no others, with ``sums``."""
    if PART == 0:
        return tl.sum(lanes, 1, keep_dims=True)
    elif PART == 1:
        return tl.load(sums) + tl.sum(lanes)
    else:
        return tl.load(sums)


@triton.jit
def _gradient_kernel(
    logits, mask, gradient, tau_rows, result, at_draws, index, statistics, seed, sums,
    tau, gap, rows, n, first_column, inner,
    logits_outer, logits_inner, logits_column,
    mask_outer, mask_inner, mask_column,
    gradient_outer, gradient_inner, gradient_column,
    tau_outer, tau_inner,
    result_outer, result_inner, result_column,
    SPLIT: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TAU: tl.constexpr, METHOD: tl.constexpr,
    TEMPERED: tl.constexpr, PART: tl.constexpr, ONE_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient for the logits of every row.

    ``PART`` is 0 for whole rows. For the n columns from ``first_column`` on of longer rows, 1 adds
    to the ``sums`` of the rows, (5, rows), and 2 writes the gradient once those are complete; both
    find the gradient at the draw in ``at_draws``, (rows,), and the logit in the statistics.
    """
    USES_E: tl.constexpr = (METHOD > REINMAX and METHOD <= GUMBEL_SOFTMAX) or TEMPERED
    WRITES_E: tl.constexpr = USES_E and METHOD <= GUMBEL_SOFTMAX
    WRITES_P: tl.constexpr = METHOD == REINMAX or not WRITES_E
    WRITES_Z: tl.constexpr = METHOD == REINMAX or METHOD >= MEAN_SECOND
    COUNTS: tl.constexpr = METHOD > GUMBEL_SOFTMAX
    row = tl.program_id(0).to(tl.int64)
    if PART == 0:
        row = (row * ROWS + tl.arange(0, ROWS))[:, None]
    # else numbers, not tensors of one element: those Triton would spread over the block in a layout
    # of their own, which takes a hundred times as long as all the rest
    in_rows = row < rows
    logits += _row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    gradient += _row_offset(row, inner, gradient_outer, gradient_inner, SPLIT)
    result += _row_offset(row, inner, result_outer, result_inner, SPLIT)
    if HAS_MASK:
        mask += _row_offset(row, inner, mask_outer, mask_inner, SPLIT)
    drawn = tl.load(index + row, mask=in_rows, other=0)
    here = drawn
    if PART > 0:
        # past the end of a part come the categories of the next one
        here = tl.where(drawn < first_column + n, drawn, -1)
    row_top = tl.load(statistics + row, mask=in_rows, other=0.0)
    inverse_total = 1 / tl.load(statistics + rows + row, mask=in_rows, other=1.0)
    if ONE_BLOCK:
        x, g = _load(logits, mask, gradient, 0, n, in_rows, logits_column, mask_column,
                     gradient_column, HAS_MASK, BLOCK, NORMAL)  # fmt: skip
    if ONE_BLOCK and BLOCK <= SHORT:
        # a sum over a short row is faster than a load that has to wait for the index
        at = tl.arange(0, BLOCK)[None, :] == drawn
        at_draw = tl.sum(tl.where(at, g, 0.0), 1, keep_dims=True)
        own_x = tl.sum(tl.where(at, x, 0.0), 1, keep_dims=True)
    elif PART == 0:
        at_draw = tl.load(gradient + drawn * gradient_column, mask=in_rows, other=0.0)
        at_draw = at_draw.to(tl.float32)
        own_x = tl.load(logits + drawn * logits_column, mask=in_rows, other=0.0).to(tl.float32)
    else:
        at_draw = tl.load(at_draws + row, mask=in_rows, other=0.0)
        own_x = tl.load(statistics + 2 * rows + row, mask=in_rows, other=0.0)
    own_x -= row_top
    own_w = _exp(own_x)
    own_prob = own_w * inverse_total
    if HAS_TAU:
        offset = _row_offset(row, inner, tau_outer, tau_inner, SPLIT)
        row_tau = tl.load(tau_rows + offset, mask=in_rows, other=1.0)
    else:
        row_tau = row_top * 0 + tau
    inverse_tau = 1 / row_tau
    own_e = _exp(own_x * inverse_tau)
    lead = row_top * 0 + gap
    own_noise = lead
    if METHOD == GAPPED_P:
        lead = _lead_of(own_prob)
    if METHOD == GUMBEL_SOFTMAX:
        word_a, word_b, word_c, word_d = words(tl.load(seed), row, drawn // 4, NOISE)
        lane = drawn % 4
        word = tl.where(lane < 2, tl.where(lane == 0, word_a, word_b),
                        tl.where(lane == 2, word_c, word_d))  # fmt: skip
        own_noise = exponential(word) * inverse_total

    sum_e = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_eh = sum_e
    sum_wh = sum_e
    sum_h = sum_e
    count = sum_e
    if ONE_BLOCK:
        is_drawn, h, w, e = _terms(
            x, g, seed, 0, first_column, row, here, at_draw, row_top, inverse_tau, lead,
            own_noise, METHOD, TEMPERED, USES_E, PART, BLOCK,
        )  # fmt: skip
        sum_wh, sum_e, sum_eh, sum_h, count = _summands(
            sum_wh, sum_e, sum_eh, sum_h, count, x, h, w, e, USES_E, COUNTS
        )
    elif PART < 2:
        for start in range(0, n, BLOCK):
            # a part is not read again so soon: lines that were kept would be in the way of others
            x, g = _load(logits, mask, gradient, start, n, in_rows, logits_column, mask_column,
                         gradient_column, HAS_MASK, BLOCK,
                         KEEP if PART == 0 else NORMAL)  # fmt: skip
            is_drawn, h, w, e = _terms(
                x, g, seed, start, first_column, row, here, at_draw, row_top, inverse_tau, lead,
                own_noise, METHOD, TEMPERED, USES_E, PART, BLOCK,
            )  # fmt: skip
            sum_wh, sum_e, sum_eh, sum_h, count = _summands(
                sum_wh, sum_e, sum_eh, sum_h, count, x, h, w, e, USES_E, COUNTS
            )
    sum_e = _row_sum(sum_e, sums + row, PART)
    sum_eh = _row_sum(sum_eh, sums + rows + row, PART)
    sum_wh = _row_sum(sum_wh, sums + 2 * rows + row, PART)
    sum_h = _row_sum(sum_h, sums + 3 * rows + row, PART)
    count = _row_sum(count, sums + 4 * rows + row, PART)
    if PART == 1:
        tl.store(sums + row, sum_e)
        tl.store(sums + rows + row, sum_eh)
        tl.store(sums + 2 * rows + row, sum_wh)
        tl.store(sums + 3 * rows + row, sum_h)
        tl.store(sums + 4 * rows + row, count)
    else:
        a1, a0, b1, b0, c = _coefficients(
            sum_e, sum_eh, sum_wh * inverse_total, sum_h, count, inverse_tau, own_prob, own_e,
            at_draw, METHOD, TEMPERED,
        )  # fmt: skip
        b1 *= inverse_total
        b0 *= inverse_total
        if ONE_BLOCK:
            value = _value(h, w, e, a1, a0, b1, b0, METHOD, WRITES_E, WRITES_P)
            if WRITES_Z:
                value += tl.where(is_drawn, c, 0.0)
            column = tl.arange(0, BLOCK)[None, :]
            pointer = result + column.to(tl.int64) * result_column
            value = value.to(result.dtype.element_ty)
            tl.store(pointer, value, mask=in_rows & (column < n), eviction_policy=DROP)
        else:
            last = (tl.cdiv(n, BLOCK) - 1) * BLOCK
            for back in range(0, n, BLOCK):
                # in reverse: the end of the row is what the cache still holds
                start = last - back
                x, g = _load(logits, mask, gradient, start, n, in_rows, logits_column,
                             mask_column, gradient_column, HAS_MASK, BLOCK, DROP)  # fmt: skip
                is_drawn, h, w, e = _terms(
                    x, g, seed, start, first_column, row, here, at_draw, row_top, inverse_tau,
                    lead, own_noise, METHOD, TEMPERED, USES_E, PART, BLOCK,
                )  # fmt: skip
                value = _value(h, w, e, a1, a0, b1, b0, METHOD, WRITES_E, WRITES_P)
                column = start + tl.arange(0, BLOCK)[None, :]
                pointer = result + column.to(tl.int64) * result_column
                value = value.to(result.dtype.element_ty)
                tl.store(pointer, value, mask=in_rows & (column < n),
                         eviction_policy=DROP if PART == 0 else NORMAL)  # fmt: skip
            if WRITES_Z:
                # one element, once all threads have written theirs; cheaper than to look for it
                tl.debug_barrier()
                value = _value(0.0, own_w, own_e, a1, a0, b1, b0, METHOD, WRITES_E, WRITES_P) + c
                at = drawn - first_column
                value = value.to(result.dtype.element_ty)
                tl.store(result + at * result_column, value, mask=in_rows & (at >= 0) & (at < n))


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


# programs of this many numbers, or of fewer where there would be too few programs
_NUMBERS = 512
_FEW_NUMBERS = 128
_MANY = 2**19


def _rows(rows: int, block: int) -> int:
    """Short rows for one program."""
    return max(1, (_NUMBERS if rows * block >= _MANY else _FEW_NUMBERS) // block)


@lru_cache(maxsize=4096)
def draw_tiles(rows: int, n: int, longest: int, long_block: int) -> Tiles:
    """One warp for a row: a draw has many steps at which several warps would wait for each other.

    A long row has two, with few enough registers that many rows are under way.
    """
    if n > longest:
        return Tiles(False, 1, long_block, 2, 64)
    block = max(4, power_of_two(n))
    return Tiles(True, _rows(rows, block), block, 1)


@lru_cache(maxsize=4096)
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


def draw(
    logits: Tensor, dim: int, mask: Tensor | None, source: Tensor, *, given: bool, dense: bool
) -> tuple[Tensor, Drawn]:
    """A category for every row, and its one-hot of the shape of the logits if ``dense``.

    Args:
        logits: Of any strides, with categories along ``dim``.
        dim: The category axis.
        mask: Boolean of the shape of the logits (it may be expanded), True where allowed.
        source: The seed, one int64; or if ``given`` the categories, contiguous int64, (rows,).
        given: Whether ``source`` has the categories.
        dense: Whether to write the one-hot; if not, the first result is empty.
    """
    shape = logits.shape
    n = shape[dim]
    sample = logits
    if dense:
        make = torch.empty_like if n <= LONGEST_DRAW else torch.zeros_like
        sample = make(logits, memory_format=torch.contiguous_format)
    masks = logits if mask is None else mask
    rows = logits.numel() // n
    device = logits.device
    index = source if given else torch.empty(rows, dtype=torch.int64, device=device)
    statistics = torch.empty(2, rows, dtype=torch.float32, device=device)
    strides = (logits.stride(), masks.stride(), sample.stride())
    tile = draw_tiles(rows, n, LONGEST_DRAW, LONG_DRAW)
    plan = _draw_plan(shape, dim, strides, (mask is not None, given, dense, 0), 0, tile, GROUP)
    launch(plan, [logits, masks, sample, source, index, statistics])
    return sample if dense else logits.new_empty(0), Drawn(index, statistics)


def draw_part(logits: Tensor, first_column: int, seed: Tensor, drawn: Drawn) -> None:
    """Go on with the draw of long rows by the categories from ``first_column`` on.

    Args:
        logits: (rows, categories of this part), contiguous.
        first_column: The number of the first of them; 0 begins.
        seed: One int64.
        drawn: What is known so far, with the drawn logit as the third of the statistics; it is
            changed in place.
    """
    flags = (False, False, False, 2 if first_column > 0 else 1)
    tile = draw_tiles(*logits.shape, LONGEST_DRAW, LONG_DRAW)
    strides = (logits.stride(),) * 3
    plan = _draw_plan(logits.shape, 1, strides, flags, first_column, tile, GROUP)
    launch(plan, [logits, logits, logits, seed, drawn.index, drawn.statistics])


@lru_cache(maxsize=4096)
def _draw_plan(
    shape: tuple[int, ...],
    dim: int,
    strides: tuple[tuple[int, ...], ...],
    flags: tuple[int, ...],
    first_column: int,
    tile: Tiles,
    group: int,
) -> Plan:
    rows, n, inner, copied, places = layout(shape, dim, strides)
    blocks = power_of_two(-(-n // tile.block))
    grouped = group if tile.block > 2 * group or blocks > 1 else 1
    constants = (
        rows, n, first_column, inner, *places[0], *places[1], *places[2], inner != rows, *flags,
        tile.rows, tile.block, blocks, grouped,
    )  # fmt: skip
    return Plan(_draw_kernel, -(-rows // tile.rows), tile.warps, constants, copied, tile.registers)


def gradient(
    method: str,
    g: Tensor,
    logits: Tensor,
    dim: int,
    mask: Tensor | None,
    tau: float | Tensor,
    gap: float,
    seed: Tensor | None,
    drawn: Drawn,
    *,
    in_place: bool = False,
) -> Tensor:
    """The gradient for the logits, given the gradient ``g`` at the one-hot of ``drawn``.

    Args:
        method: One of ``METHODS``.
        g: Of the shape of the logits, of any strides and floating dtype.
        logits: As for ``draw``.
        dim: As for ``draw``.
        mask: As for ``draw``.
        tau: A number, or float32 of the shape of the logits, expanded along ``dim``.
        gap: For ``"gapped"``.
        seed: One int64, for ``"gumbel_softmax"``.
        drawn: From ``draw``.
        in_place: Write the result over ``g`` if that is contiguous and of the logits' dtype.
    """
    # others might be copied to fit the layout
    in_place = in_place and g.is_contiguous() and g.dtype == logits.dtype
    result = g if in_place else torch.empty_like(logits, memory_format=torch.contiguous_format)
    masks = logits if mask is None else mask
    if isinstance(tau, Tensor):
        number, taus, flags = 1.0, tau, (mask is not None, True, METHODS[method], True, 0)
    else:
        number, taus, flags = tau, logits, (mask is not None, False, METHODS[method], tau != 1, 0)
    strides = (logits.stride(), masks.stride(), g.stride(), taus.stride(), result.stride())
    n = logits.shape[dim]
    tile = gradient_tiles(logits.numel() // n, n, LONGEST_GRADIENT, LONG_GRADIENT)
    plan = _gradient_plan(logits.shape, dim, strides, flags, 0, tile)
    index, statistics = drawn.index, drawn.statistics
    tensors = [
        logits, masks, g, taus, result, statistics, index, statistics,
        index if seed is None else seed, statistics,
    ]  # fmt: skip
    launch(plan, tensors, (number, gap))
    return result


def sums_part(
    method: str,
    g: Tensor,
    logits: Tensor,
    first_column: int,
    tau: float,
    gap: float,
    seed: Tensor,
    drawn: Drawn,
    at_draw: Tensor,
    sums: Tensor,
) -> None:
    """Add what the gradient of long rows needs of the categories from ``first_column`` on.

    Args:
        method: As for ``gradient``.
        g: (rows, categories of this part), contiguous.
        logits: The same.
        first_column: The number of the first of these categories.
        tau: A number.
        gap: As for ``gradient``.
        seed: As for ``gradient``.
        drawn: From ``draw_part``.
        at_draw: float32, (rows,): the gradient at the draw.
        sums: float32, (5, rows), zero before the first part; it is changed in place.
    """
    _part(1, method, g, logits, first_column, tau, gap, seed, drawn, at_draw, sums)


def gradient_part(
    method: str,
    g: Tensor,
    logits: Tensor,
    first_column: int,
    tau: float,
    gap: float,
    seed: Tensor,
    drawn: Drawn,
    at_draw: Tensor,
    sums: Tensor,
) -> Tensor:
    """The gradient for the logits of a part, written over ``g``, once the sums are complete."""
    _part(2, method, g, logits, first_column, tau, gap, seed, drawn, at_draw, sums)
    return g


def _part(
    part: int,
    method: str,
    g: Tensor,
    logits: Tensor,
    first_column: int,
    tau: float,
    gap: float,
    seed: Tensor,
    drawn: Drawn,
    at_draw: Tensor,
    sums: Tensor,
) -> None:
    flags = (False, False, METHODS[method], tau != 1, part)
    strides = (logits.stride(),) * 5
    # what a part needs is in memory between its two passes: it is never one block
    tile = gradient_tiles(*logits.shape, 0, LONG_GRADIENT)
    plan = _gradient_plan(logits.shape, 1, strides, flags, first_column, tile)
    tensors = [
        logits, logits, g, logits, g, at_draw, drawn.index, drawn.statistics, seed, sums
    ]  # fmt: skip
    launch(plan, tensors, (tau, gap))


@lru_cache(maxsize=4096)
def _gradient_plan(
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
        *places[4], inner != rows, *flags, tile.one_block, tile.rows, tile.block,
    )  # fmt: skip
    return Plan(
        _gradient_kernel, -(-rows // tile.rows), tile.warps, constants, copied, tile.registers
    )
