r"""Fused kernel for categorical ``gumbel_rao``: noise draws are made, used and forgotten on chip.

With standard exponential noise $E^m_j$ for the draws $m = 1 \dots K$, k the category drawn,
$p = \mathrm{softmax}(l)$ and the gradient g relative to the draw, $h = g - g_k$,

$$r^m_j = \frac{E^m_j}{E^m_k\, p_j}, \quad r^m_k = 0, \qquad e^m_j = (1 + r^m_j)^{-1/\tau}, \qquad
y^m = \frac{e^m}{\sum_i e^m_i}, \qquad
\hat\nabla_j = \frac1{K\tau} \sum_m y^m_j \Big(h_j - \sum_i y^m_i h_i\Big).$$

Arithmetic takes the time: ten rounds of Philox make four words, one for each draw of a group of
four, and every word goes through a logarithm. The weights e need none at $\tau = 1$.

A tile has three axes: rows, categories and groups of draws. Where rows are short, the threads of a
warp lie along the groups: sums over a row then stay within a thread, and even a few rows keep many
threads busy. A block has a power of two of categories; where that would leave much of it empty, a
short row lies in two blocks.

Two categories need one noise draw, not two: the logarithm of the ratio of two exponentials is
logistic, and the formulas are those of the Bernoulli kernel.

Memory traffic: reads logits and gradient, writes one gradient; nothing of size K is in memory. A
row too long to stay on chip is read twice for each group of draws: for the sums, and, with the
noise made again, to add to a gradient in memory. That is a float32 tensor other than g, which the
next group still reads: the result itself if it can be, and otherwise (another dtype, or in place)
one float32 tensor of the size of the logits, from which the last group makes the result.
"""

import triton
import triton.language as tl

from .bernoulli import mean_slope, sigmoids
from .numbers import LOG2_E
from .philox import DRAWS, exponential, fast_log2, words
from .rows import row_offset


@triton.jit
def _source(seed, row, in_rows, rows_per_seed, SEVERAL: tl.constexpr):
    """The key of the generator and the number of a row among those of its seed."""
    if SEVERAL:
        key = tl.load(seed + row // rows_per_seed, mask=in_rows, other=0)
        item = row % rows_per_seed
    else:
        key = tl.load(seed)
        item = row
    return key, item


@triton.jit
def _reciprocal(x):
    """``1 / x`` for x > 0 to 21 bits, in two instructions where a division takes eight."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def _weights(noise, own_noise, inverse_prob, rate, offset, TEMPERED: tl.constexpr):
    """The weights e, from what ``_terms`` gives."""
    ratio = noise * _reciprocal(own_noise) * inverse_prob
    if TEMPERED:
        return tl.exp2(fast_log2(1.0 + ratio) * (rate / LOG2_E) + offset)
    else:
        return _reciprocal(1.0 + ratio)


@triton.jit
def _group_weights(
    key, row, column, group, own_a, own_b, own_c, own_d, inverse_prob, rate, offset,
    TEMPERED: tl.constexpr,
):  # fmt: skip
    """The weights of the four draws of a group, given their noise at the draw."""
    a, b, c, d = words(key, row, column, DRAWS + group)
    a = _weights(exponential(a), own_a, inverse_prob, rate, offset, TEMPERED)
    b = _weights(exponential(b), own_b, inverse_prob, rate, offset, TEMPERED)
    c = _weights(exponential(c), own_c, inverse_prob, rate, offset, TEMPERED)
    d = _weights(exponential(d), own_d, inverse_prob, rate, offset, TEMPERED)
    return a, b, c, d


@triton.jit
def _part(e, h, sum_e, sum_eh, draw, num_draws):
    """What a draw adds to the gradient; nothing if it is beyond the last one."""
    share = tl.where(draw < num_draws, _reciprocal(sum_e), 0.0)
    return e * share * (h - sum_eh * share)


@triton.jit
def _row_part(
    word, own_word, is_drawn, inverse_prob, h, rate, offset, draw, num_draws,
    TEMPERED: tl.constexpr, SUMS_OWN: tl.constexpr,
):  # fmt: skip
    """The same from the word of the draw, where whole rows are at hand."""
    noise = exponential(word)
    if SUMS_OWN:
        own_noise = tl.sum(tl.where(is_drawn, noise, 0.0), 1, keep_dims=True)
    else:
        own_noise = exponential(own_word)
    e = _weights(noise, own_noise, inverse_prob, rate, offset, TEMPERED)
    sum_e = tl.sum(e, 1, keep_dims=True)
    sum_eh = tl.sum(e * h, 1, keep_dims=True)
    return _part(e, h, sum_e, sum_eh, draw, num_draws)


@triton.jit
def _row_parts(
    word, is_drawn, inverse_prob, h, offset,
    rest_word, rest_is_drawn, rest_inverse_prob, rest_h, rest_offset,
    rate, draw, num_draws, TEMPERED: tl.constexpr,
):  # fmt: skip
    """The same where a row lies in two blocks."""
    noise = exponential(word)
    rest_noise = exponential(rest_word)
    own_noise = tl.sum(tl.where(is_drawn, noise, 0.0), 1, keep_dims=True)
    own_noise += tl.sum(tl.where(rest_is_drawn, rest_noise, 0.0), 1, keep_dims=True)
    e = _weights(noise, own_noise, inverse_prob, rate, offset, TEMPERED)
    rest = _weights(rest_noise, own_noise, rest_inverse_prob, rate, rest_offset, TEMPERED)
    sum_e = tl.sum(e, 1, keep_dims=True) + tl.sum(rest, 1, keep_dims=True)
    sum_eh = tl.sum(e * h, 1, keep_dims=True) + tl.sum(rest * rest_h, 1, keep_dims=True)
    return (
        _part(e, h, sum_e, sum_eh, draw, num_draws),
        _part(rest, rest_h, sum_e, sum_eh, draw, num_draws),
    )


@triton.jit
def _terms(
    logits, mask, gradient, column, n, in_rows, drawn, at_draw, top, total, rate,
    logits_column, mask_column, gradient_column, HAS_MASK: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """1 / p, an offset to the exponent of the weights, and h of a block, (ROWS, BLOCK, 1).

    At the draw 1 / p is taken as 0, which makes its weight 1. A large temperature lifts weights
    from far below the range of float32: what 1 / p has beyond the 40th power of e is in the offset.
    """
    inside = in_rows & (column < n)
    x = tl.load(logits + column.to(tl.int64) * logits_column, mask=inside, other=-float("inf"))
    x = x.to(tl.float32)
    excluded = x == -float("inf")
    if HAS_MASK:
        excluded |= tl.load(mask + column.to(tl.int64) * mask_column, mask=inside, other=0) == 0
    g = tl.load(gradient + column.to(tl.int64) * gradient_column, mask=inside, other=0.0)
    is_drawn = column == drawn
    depth = tl.where(excluded, float("inf"), top - x)
    near = depth
    offset = depth
    if TEMPERED:
        near = tl.minimum(depth, 40.0)
        offset = tl.where(is_drawn, 0.0, (depth - near) * rate)
    inverse_prob = tl.where(excluded, float("inf"), tl.exp(near) * total)
    inverse_prob = tl.where(is_drawn, 0.0, inverse_prob)
    # relative to the draw, where it is exactly 0: no sampler feels a shift, but rounding does
    h = tl.where(is_drawn | excluded, 0.0, g.to(tl.float32) - at_draw)
    return inside, is_drawn, inverse_prob, offset, h


@triton.jit
def _gradient_kernel(
    logits, mask, gradient, tau_rows, running, result, index, statistics, seed,
    tau, num_draws, rows_per_seed, rows, n, inner,
    logits_outer, logits_inner, logits_column,
    mask_outer, mask_inner, mask_column,
    gradient_outer, gradient_inner, gradient_column,
    tau_outer, tau_inner,
    running_outer, running_inner, running_column,
    result_outer, result_inner, result_column,
    SPLIT: tl.constexpr, SEVERAL: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_TAU: tl.constexpr, TEMPERED: tl.constexpr,
    ONE_BLOCK: tl.constexpr, SUMS_OWN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The gradient for the logits of every row.

    ``SUMS_OWN`` finds the noise at the draw by a sum over the row instead of making it twice.
    ``REST`` is the size of a second block for what of a row the first one does not hold, or 0.
    """
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None, None]
    in_rows = row < rows
    logits += row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    gradient += row_offset(row, inner, gradient_outer, gradient_inner, SPLIT)
    result += row_offset(row, inner, result_outer, result_inner, SPLIT)
    if HAS_MASK:
        mask += row_offset(row, inner, mask_outer, mask_inner, SPLIT)
    drawn = tl.load(index + row, mask=in_rows, other=0)
    row_top = tl.load(statistics + row, mask=in_rows, other=0.0)
    row_total = tl.load(statistics + rows + row, mask=in_rows, other=1.0)
    # nobody may have looked whether the row has the category, if it was given
    known = in_rows & (drawn >= 0) & (drawn < n)
    at_draw = tl.load(gradient + drawn * gradient_column, mask=known, other=0.0).to(tl.float32)
    if HAS_TAU:
        offset = row_offset(row, inner, tau_outer, tau_inner, SPLIT)
        row_tau = tl.load(tau_rows + offset, mask=in_rows, other=1.0)
    else:
        row_tau = tl.zeros((ROWS, 1, 1), tl.float32) + tau
    scale = 1.0 / (row_tau * num_draws)
    # e is a power of 2, with the logarithm of 1 + r times this as its exponent
    rate = -LOG2_E / row_tau
    key, item = _source(seed, row, in_rows, rows_per_seed, SEVERAL)
    num_groups = tl.cdiv(num_draws, 4)
    if ONE_BLOCK:
        column = tl.arange(0, BLOCK)[None, :, None]
        inside, is_drawn, inverse_prob, offset, h = _terms(
            logits, mask, gradient, column, n, in_rows, drawn, at_draw, row_top, row_total, rate,
            logits_column, mask_column, gradient_column, HAS_MASK, TEMPERED,
        )  # fmt: skip
        gradients = tl.zeros((ROWS, BLOCK, GROUPS), tl.float32)
        if REST:
            rest_column = BLOCK + tl.arange(0, REST)[None, :, None]
            rest_inside, rest_is_drawn, rest_inverse_prob, rest_offset, rest_h = _terms(
                logits, mask, gradient, rest_column, n, in_rows, drawn, at_draw, row_top, row_total,
                rate, logits_column, mask_column, gradient_column, HAS_MASK, TEMPERED,
            )  # fmt: skip
            rest_gradients = tl.zeros((ROWS, REST, GROUPS), tl.float32)
        for first in range(0, num_groups, GROUPS):
            group = (first + tl.arange(0, GROUPS))[None, None, :]
            draw = group * 4
            a, b, c, d = words(key, item, column, DRAWS + group)
            if REST:
                rest_a, rest_b, rest_c, rest_d = words(key, item, rest_column, DRAWS + group)
                part_a, rest_part_a = _row_parts(
                    a, is_drawn, inverse_prob, h, offset,
                    rest_a, rest_is_drawn, rest_inverse_prob, rest_h, rest_offset,
                    rate, draw, num_draws, TEMPERED,
                )  # fmt: skip
                part_b, rest_part_b = _row_parts(
                    b, is_drawn, inverse_prob, h, offset,
                    rest_b, rest_is_drawn, rest_inverse_prob, rest_h, rest_offset,
                    rate, draw + 1, num_draws, TEMPERED,
                )  # fmt: skip
                part_c, rest_part_c = _row_parts(
                    c, is_drawn, inverse_prob, h, offset,
                    rest_c, rest_is_drawn, rest_inverse_prob, rest_h, rest_offset,
                    rate, draw + 2, num_draws, TEMPERED,
                )  # fmt: skip
                part_d, rest_part_d = _row_parts(
                    d, is_drawn, inverse_prob, h, offset,
                    rest_d, rest_is_drawn, rest_inverse_prob, rest_h, rest_offset,
                    rate, draw + 3, num_draws, TEMPERED,
                )  # fmt: skip
                gradients += part_a + part_b + part_c + part_d
                rest_gradients += rest_part_a + rest_part_b + rest_part_c + rest_part_d
            else:
                own_a, own_b, own_c, own_d = a, b, c, d
                if not SUMS_OWN:
                    own_a, own_b, own_c, own_d = words(key, item, drawn, DRAWS + group)
                part = _row_part(a, own_a, is_drawn, inverse_prob, h, rate, offset, draw,
                                 num_draws, TEMPERED, SUMS_OWN)  # fmt: skip
                part += _row_part(b, own_b, is_drawn, inverse_prob, h, rate, offset, draw + 1,
                                  num_draws, TEMPERED, SUMS_OWN)  # fmt: skip
                part += _row_part(c, own_c, is_drawn, inverse_prob, h, rate, offset, draw + 2,
                                  num_draws, TEMPERED, SUMS_OWN)  # fmt: skip
                part += _row_part(d, own_d, is_drawn, inverse_prob, h, rate, offset, draw + 3,
                                  num_draws, TEMPERED, SUMS_OWN)  # fmt: skip
                gradients += part
        value = tl.sum(gradients, 2, keep_dims=True) * scale
        pointer = result + column.to(tl.int64) * result_column
        tl.store(pointer, value.to(result.dtype.element_ty), mask=inside)
        if REST:
            value = tl.sum(rest_gradients, 2, keep_dims=True) * scale
            pointer = result + rest_column.to(tl.int64) * result_column
            tl.store(pointer, value.to(result.dtype.element_ty), mask=rest_inside)
    else:
        running += row_offset(row, inner, running_outer, running_inner, SPLIT)
        last = (tl.cdiv(n, BLOCK) - 1) * BLOCK
        for group in range(0, num_groups):
            draw = group * 4
            own_a, own_b, own_c, own_d = words(key, item, drawn, DRAWS + group)
            own_a = exponential(own_a)
            own_b = exponential(own_b)
            own_c = exponential(own_c)
            own_d = exponential(own_d)
            sum_a = tl.zeros((ROWS, BLOCK, 1), tl.float32)
            sum_b = sum_a
            sum_c = sum_a
            sum_d = sum_a
            sum_ah = sum_a
            sum_bh = sum_a
            sum_ch = sum_a
            sum_dh = sum_a
            for start in range(0, n, BLOCK):
                column = start + tl.arange(0, BLOCK)[None, :, None]
                inside, is_drawn, inverse_prob, offset, h = _terms(
                    logits, mask, gradient, column, n, in_rows, drawn, at_draw, row_top,
                    row_total, rate, logits_column, mask_column, gradient_column, HAS_MASK,
                    TEMPERED,
                )  # fmt: skip
                a, b, c, d = _group_weights(
                    key, item, column, group, own_a, own_b, own_c, own_d, inverse_prob, rate,
                    offset, TEMPERED,
                )  # fmt: skip
                sum_a += a
                sum_b += b
                sum_c += c
                sum_d += d
                sum_ah += a * h
                sum_bh += b * h
                sum_ch += c * h
                sum_dh += d * h
            total_a = tl.sum(sum_a, 1, keep_dims=True)
            total_b = tl.sum(sum_b, 1, keep_dims=True)
            total_c = tl.sum(sum_c, 1, keep_dims=True)
            total_d = tl.sum(sum_d, 1, keep_dims=True)
            total_ah = tl.sum(sum_ah, 1, keep_dims=True)
            total_bh = tl.sum(sum_bh, 1, keep_dims=True)
            total_ch = tl.sum(sum_ch, 1, keep_dims=True)
            total_dh = tl.sum(sum_dh, 1, keep_dims=True)
            for back in range(0, n, BLOCK):
                # in reverse: the end of the row is what the cache still holds
                column = last - back + tl.arange(0, BLOCK)[None, :, None]
                inside, is_drawn, inverse_prob, offset, h = _terms(
                    logits, mask, gradient, column, n, in_rows, drawn, at_draw, row_top,
                    row_total, rate, logits_column, mask_column, gradient_column, HAS_MASK,
                    TEMPERED,
                )  # fmt: skip
                a, b, c, d = _group_weights(
                    key, item, column, group, own_a, own_b, own_c, own_d, inverse_prob, rate,
                    offset, TEMPERED,
                )  # fmt: skip
                part = _part(a, h, total_a, total_ah, draw, num_draws)
                part += _part(b, h, total_b, total_bh, draw + 1, num_draws)
                part += _part(c, h, total_c, total_ch, draw + 2, num_draws)
                part += _part(d, h, total_d, total_dh, draw + 3, num_draws)
                pointer = running + column.to(tl.int64) * running_column
                value = tl.load(pointer, mask=inside & (group > 0), other=0.0) + part * scale
                tl.store(pointer, value, mask=inside & (group < num_groups - 1))
                pointer = result + column.to(tl.int64) * result_column
                value = value.to(result.dtype.element_ty)
                tl.store(pointer, value, mask=inside & (group == num_groups - 1))


@triton.jit
def _pair_kernel(
    logits, mask, gradient, tau_rows, result, index, seed,
    tau, num_draws, rows_per_seed, rows, inner,
    logits_outer, logits_inner, logits_column,
    mask_outer, mask_inner, mask_column,
    gradient_outer, gradient_inner, gradient_column,
    tau_outer, tau_inner,
    result_outer, result_inner, result_column,
    SPLIT: tl.constexpr, SEVERAL: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_TAU: tl.constexpr, TEMPERED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of rows of two categories."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    logits += row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    gradient += row_offset(row, inner, gradient_outer, gradient_inner, SPLIT)
    result += row_offset(row, inner, result_outer, result_inner, SPLIT)
    own = tl.load(index + row, mask=inside, other=0)
    # nobody may have looked whether the row has the category, if it was given
    own = tl.minimum(tl.maximum(own, 0), 1)
    other = 1 - own
    own_x = tl.load(logits + own * logits_column, mask=inside, other=0.0).to(tl.float32)
    other_x = tl.load(logits + other * logits_column, mask=inside, other=0.0).to(tl.float32)
    if HAS_MASK:
        mask += row_offset(row, inner, mask_outer, mask_inner, SPLIT)
        allowed = tl.load(mask + other * mask_column, mask=inside, other=0)
        other_x = tl.where(allowed != 0, other_x, -float("inf"))
    own_g = tl.load(gradient + own * gradient_column, mask=inside, other=0.0).to(tl.float32)
    other_g = tl.load(gradient + other * gradient_column, mask=inside, other=0.0).to(tl.float32)
    if HAS_TAU:
        offset = row_offset(row, inner, tau_outer, tau_inner, SPLIT)
        row_tau = tl.load(tau_rows + offset, mask=inside, other=1.0)
    else:
        row_tau = tl.zeros((ROWS,), tl.float32) + tau
    drawn = own_x - other_x
    _, other_prob = sigmoids(drawn)
    key, item = _source(seed, row, inside, rows_per_seed, SEVERAL)
    slope = mean_slope(drawn, other_prob, row_tau, key, item, num_draws, TEMPERED)
    # an excluded category gets none, whatever the gradient there
    value = tl.where(other_x == -float("inf"), 0.0, slope * (other_g - own_g))
    tl.store(result + own * result_column, (-value).to(result.dtype.element_ty), mask=inside)
    tl.store(result + other * result_column, value.to(result.dtype.element_ty), mask=inside)
