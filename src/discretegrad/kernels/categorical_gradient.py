r"""The kernel for the gradient of the categorical samplers, all but ``gumbel_rao``.

With $m = \max_j l_j$, $w_j = e^{l_j - m}$ and $Z = \sum_j w_j$, so that $p = w / Z$, every sampler
turns the gradient g at its draw k, taken relative to the draw as $h = g - g_k$, into

$$\hat\nabla_j = e_j (a_1 h_j + a_0) + p_j (b_1 h_j + b_0) \quad (j \ne k), \qquad
\hat\nabla_k = c$$

with further weights $e$ (of the tempered, gapped or perturbed softmax) and five numbers per row
that depend on sums over the row alone: of $e$, $e h$, $w h$ and, for the mean baseline, h.
``formulas`` says which of the terms a sampler has.

Some samplers need $p (h - p \cdot h)$ where another category than the draw may be nearly certain:
straight-through, the blend and the mean baseline. There $h - p \cdot h$ would be rounding, so their
h is taken relative to the largest logit instead (its mean $t$, if several are equal), and what the
rest of the row adds to $p \cdot h$ is a sum of its own. Likewise $1 - p_k$ is a sum of the others.

Memory traffic: it reads logits and gradient and writes one gradient; if a row is too long to stay
on chip it reads both twice, the second time in reverse, where the cache of the GPU still holds the
end. The softmax is computed again, never stored.
"""

import triton
import triton.language as tl

from .numbers import (
    BLEND,
    GAPPED,
    GAPPED_P,
    GUMBEL_SOFTMAX,
    MEAN_RELEASED,
    MEAN_SECOND,
    REINMAX,
    STRAIGHT_THROUGH,
    TINY,
)
from .philox import NOISE, exponential, interleave, log1p, words
from .rows import DROP, KEEP, NORMAL, exp, load_logits, row_offset

# up to this size a row is short
SHORT = tl.constexpr(128)
# a logit may lie this far below its row's largest before its probability is lost to a product
FAR_BELOW = tl.constexpr(-40.0)


@triton.jit
def _weights(x, w, is_drawn, inverse_tau, lead, own_noise, row, group, seed,
             METHOD: tl.constexpr, TEMPERED: tl.constexpr):  # fmt: skip
    """The weights e of the second softmax.

    x are the logits minus their row's largest and w their exponentials; ``own_noise`` is divided by
    the sum of those.
    """
    if METHOD == GAPPED or METHOD == GAPPED_P:
        return exp(tl.where(is_drawn, 0.0, tl.minimum(x, -lead)) * inverse_tau)
    elif METHOD == GUMBEL_SOFTMAX:
        # groups of four neighbours share one call of the generator
        a, b, c, d = words(tl.load(seed), row, group, NOISE)
        noise = exponential(interleave(a, b, c, d))
        if TEMPERED:
            # far below, log(1 + r / w) is log(r) - x, also where w is no normal number
            far = x < FAR_BELOW
            ratio = noise / (own_noise * tl.where(far, 1.0, w))
            gap = tl.where(far, tl.log(ratio) - x, log1p(ratio))
            return exp(tl.where(is_drawn, 0.0, -gap) * inverse_tau)
        else:
            mine = own_noise * w
            return tl.where(is_drawn, 1.0, mine / (mine + noise))
    else:
        return exp(x * inverse_tau)


@triton.jit
def _load(
    logits, mask, gradient, start, n, in_rows, logits_column, mask_column, gradient_column,
    HAS_MASK: tl.constexpr, BLOCK: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """A block of columns from ``start`` on: logits and gradient at the sample, in float32."""
    column = start + tl.arange(0, BLOCK)[None, :]
    inside = in_rows & (column < n)
    x = load_logits(logits, mask, column, inside, logits_column, mask_column, HAS_MASK, EVICT)
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
    w = exp(shifted)
    e = w
    if USES_E:
        group = (first_column + start) // 4 + tl.arange(0, BLOCK // 4)[None, :]
        e = _weights(
            shifted, w, is_drawn, inverse_tau, lead, own_noise, row, group, seed, METHOD, TEMPERED
        )
    return is_drawn, h, w, e


@triton.jit
def _summands(
    sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h, x, top, h, w, e,
    USES_E: tl.constexpr, MEAN: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """The sums with another block; lanes are added up after the last one.

    With ``APART``, sums of products with h leave out the largest logits: there are ``tops`` of
    them, ``tops_h`` is the sum of their h, and ``below`` that of the weights of all others.
    """
    others = h
    if APART:
        is_top = x == top
        others = tl.where(is_top, 0.0, h)
        tops_h += tl.where(is_top, h, 0.0)
        tops += is_top.to(tl.float32)
        # the mean baseline uses e for a coefficient only
        below += tl.where(is_top, 0.0, w if MEAN else e)
    sum_wh += w * others
    if USES_E:
        sum_e += e
        sum_eh += e * others
    if MEAN:
        allowed = x > -float("inf")
        sum_h += tl.where(allowed, h, 0.0)
        count += allowed.to(tl.float32)
    return sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h


@triton.jit
def _coefficients(
    sum_e, sum_eh, sum_ph, sum_h, count, below, tops, shift, inverse_total, inverse_tau,
    own_x, own_w, own_e, at_draw, option,
    METHOD: tl.constexpr, TEMPERED: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """The five numbers of a row in the formula at the top of this file.

    ``shift`` is t where h is relative to the largest logit, and else 0; sums of products with h are
    then without the largest logits, and h still relative to the draw.
    """
    own_prob = own_w * inverse_total
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
            c = own_e * a0 + own_prob * b0 - half
        else:
            b1 = b1 + 0.5
            c = -sum_ph / 2
    elif METHOD == BLEND:
        # how much of straight-through, and half of how much of ReinMax, whose sums are over all h
        first = 1 - option
        half = option / 2
        tops_h = tops * shift
        if TEMPERED:
            first *= inverse_tau
            mean = (sum_eh + tops_h) / sum_e
            a1 = (first + option) / sum_e
            a0 = (first * (shift * below - sum_eh) / sum_e + option * shift - half * mean) / sum_e
            b1 = b1 - half
            b0 = half * (sum_ph + tops_h * inverse_total - shift)
        else:
            mean = sum_ph + tops_h * inverse_total
            b1 = b1 + first + half
            b0 = first * (shift * below * inverse_total - sum_ph) + half * shift
        c = own_prob * (b0 - b1 * shift) - half * mean
        if TEMPERED:
            c += own_e * (a0 - a1 * shift)
    elif METHOD == STRAIGHT_THROUGH and not TEMPERED:
        b1 = b1 + 1
        b0 = shift * below * inverse_total - sum_ph
    elif METHOD == STRAIGHT_THROUGH:
        a1 = inverse_tau / sum_e
        a0 = (shift * below - sum_eh) / sum_e * a1
    elif not MEAN:
        a1 = inverse_tau / sum_e
        a0 = -sum_eh / sum_e * a1
    else:
        tempered = own_prob
        if TEMPERED:
            tempered = own_e / sum_e
        # the mean of h under p, relative to the shift; and 1 - p at the draw
        correction = sum_ph - shift * below * inverse_total
        is_top = own_x == 0
        own_rest = tl.where(is_top, below + (tops - 1), (below - own_w) + tops) * inverse_total
        mean = sum_h / count
        c = -mean * own_rest / 2
        if METHOD == MEAN_RELEASED:
            weight = 1 / (count * tempered + 1e-12)
            b0 = (mean - (shift + correction + at_draw) * weight) / 2
            c -= own_prob * weight * (shift + correction) / 2
        else:
            weight = 1 / (count * tl.maximum(tempered, TINY))
            b1 = weight
            b0 = -weight * correction
            if METHOD == MEAN_SECOND:
                b1 = b1 / 2
                b0 = (b0 + mean) / 2
                c -= own_prob * weight * (shift + correction) / 2
    return a1, a0, b1, b0, c


@triton.jit
def _lead_of(prob):
    prob = tl.maximum(prob * (1 - 1e-5), TINY)
    return -log1p(-prob) / prob


@triton.jit
def _value(h, w, e, a1, a0, b1, b0, METHOD: tl.constexpr, WRITES_E: tl.constexpr,
           WRITES_P: tl.constexpr):  # fmt: skip
    """The formula but at the draw; b1 and b0 are for w instead of p."""
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
    tau, option, rows, n, first_column, inner,
    logits_outer, logits_inner, logits_column,
    mask_outer, mask_inner, mask_column,
    gradient_outer, gradient_inner, gradient_column,
    tau_outer, tau_inner,
    result_outer, result_inner, result_column,
    SPLIT: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TAU: tl.constexpr, PART: tl.constexpr,
    METHOD: tl.constexpr, TEMPERED: tl.constexpr, USES_E: tl.constexpr, WRITES_E: tl.constexpr,
    WRITES_P: tl.constexpr, WRITES_Z: tl.constexpr, MEAN: tl.constexpr, ONE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient for the logits of every row.

    ``PART`` is 0 for whole rows. For the n columns from ``first_column`` on of longer rows, 1 adds
    to the ``sums`` of the rows, (8, rows), and 2 writes the gradient once those are complete; both
    find the gradient at the draw in ``at_draws``, (rows,), and the logit in the statistics. From
    ``METHOD`` to ``MEAN`` are the ``Terms`` of the formula.
    """
    APART: tl.constexpr = (METHOD == STRAIGHT_THROUGH or METHOD == BLEND) or MEAN
    row = tl.program_id(0).to(tl.int64)
    if PART == 0:
        row = (row * ROWS + tl.arange(0, ROWS))[:, None]
    # else numbers, not tensors of one element: those Triton would spread over the block in a layout
    # of their own, which takes a hundred times as long as all the rest
    in_rows = row < rows
    logits += row_offset(row, inner, logits_outer, logits_inner, SPLIT)
    gradient += row_offset(row, inner, gradient_outer, gradient_inner, SPLIT)
    result += row_offset(row, inner, result_outer, result_inner, SPLIT)
    if HAS_MASK:
        mask += row_offset(row, inner, mask_outer, mask_inner, SPLIT)
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
    own_w = exp(own_x)
    if HAS_TAU:
        offset = row_offset(row, inner, tau_outer, tau_inner, SPLIT)
        row_tau = tl.load(tau_rows + offset, mask=in_rows, other=1.0)
    else:
        row_tau = row_top * 0 + tau
    inverse_tau = 1 / row_tau
    own_e = exp(own_x * inverse_tau)
    lead = row_top * 0 + option
    own_noise = lead
    if METHOD == GAPPED_P:
        lead = _lead_of(own_w * inverse_total)
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
    below = sum_e
    tops = sum_e
    tops_h = sum_e
    if ONE_BLOCK:
        is_drawn, h, w, e = _terms(
            x, g, seed, 0, first_column, row, here, at_draw, row_top, inverse_tau, lead,
            own_noise, METHOD, TEMPERED, USES_E, PART, BLOCK,
        )  # fmt: skip
        sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h = _summands(
            sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h, x, row_top, h, w, e,
            USES_E, MEAN, APART,
        )  # fmt: skip
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
            sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h = _summands(
                sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h, x, row_top, h, w, e,
                USES_E, MEAN, APART,
            )  # fmt: skip
    sum_e = _row_sum(sum_e, sums + row, PART)
    sum_eh = _row_sum(sum_eh, sums + rows + row, PART)
    sum_wh = _row_sum(sum_wh, sums + 2 * rows + row, PART)
    sum_h = _row_sum(sum_h, sums + 3 * rows + row, PART)
    count = _row_sum(count, sums + 4 * rows + row, PART)
    below = _row_sum(below, sums + 5 * rows + row, PART)
    tops = _row_sum(tops, sums + 6 * rows + row, PART)
    tops_h = _row_sum(tops_h, sums + 7 * rows + row, PART)
    if PART == 1:
        tl.store(sums + row, sum_e)
        tl.store(sums + rows + row, sum_eh)
        tl.store(sums + 2 * rows + row, sum_wh)
        tl.store(sums + 3 * rows + row, sum_h)
        tl.store(sums + 4 * rows + row, count)
        tl.store(sums + 5 * rows + row, below)
        tl.store(sums + 6 * rows + row, tops)
        tl.store(sums + 7 * rows + row, tops_h)
    else:
        shift = row_top * 0
        if APART:
            # logits that are made again, part by part, may miss the largest by a rounding
            shift = tl.where(tops > 0, tops_h / tl.maximum(tops, 1.0), 0.0)
        a1, a0, b1, b0, c = _coefficients(
            sum_e, sum_eh, sum_wh * inverse_total, sum_h, count, below, tops, shift, inverse_total,
            inverse_tau, own_x, own_w, own_e, at_draw, option, METHOD, TEMPERED, MEAN,
        )  # fmt: skip
        b1 *= inverse_total
        b0 *= inverse_total
        if ONE_BLOCK:
            if APART:
                h -= shift
            value = _value(h, w, e, a1, a0, b1, b0, METHOD, WRITES_E, WRITES_P)
            if WRITES_Z:
                value = tl.where(is_drawn, c, value)
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
                if APART:
                    h -= shift
                value = _value(h, w, e, a1, a0, b1, b0, METHOD, WRITES_E, WRITES_P)
                column = start + tl.arange(0, BLOCK)[None, :]
                pointer = result + column.to(tl.int64) * result_column
                value = value.to(result.dtype.element_ty)
                tl.store(pointer, value, mask=in_rows & (column < n),
                         eviction_policy=DROP if PART == 0 else NORMAL)  # fmt: skip
            if WRITES_Z:
                # one element, once all threads have written theirs; cheaper than to look for it
                tl.debug_barrier()
                at = drawn - first_column
                value = c.to(result.dtype.element_ty)
                tl.store(result + at * result_column, value, mask=in_rows & (at >= 0) & (at < n))
