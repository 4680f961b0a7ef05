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

from .categorical_formula import add_block, block_terms, coefficients, lead_of, value_of
from .numbers import BLEND, GAPPED_P, GUMBEL_SOFTMAX, STRAIGHT_THROUGH
from .philox import NOISE, exponential, words
from .rows import DROP, KEEP, NORMAL, exp, load, load_logits, row_offset

# up to this size a row is short
SHORT = tl.constexpr(128)


@triton.jit
def _load(
    logits, mask, gradient, start, n, in_rows, logits_column, mask_column, gradient_column,
    HAS_MASK: tl.constexpr, PER_THREAD: tl.constexpr, BLOCK: tl.constexpr, EVICT: tl.constexpr,
    EVICT_GRADIENT: tl.constexpr,
):  # fmt: skip
    """A block of columns from ``start`` on: logits and gradient at the sample, in float32."""
    column = start + tl.arange(0, BLOCK)[None, :]
    x = load_logits(
        logits, mask, column, n, in_rows, logits_column, mask_column, HAS_MASK, PER_THREAD, EVICT
    )
    g = load(gradient, column, n, in_rows, gradient_column, 0.0, PER_THREAD, EVICT_GRADIENT)
    return x, g.to(tl.float32)


@triton.jit
def _store(result, value, start, n, in_rows, column_stride, BLOCK: tl.constexpr,
           EVICT: tl.constexpr):  # fmt: skip
    """Write a block of columns from ``start`` on."""
    column = start + tl.arange(0, BLOCK)[None, :]
    pointer = result + column.to(tl.int64) * column_stride
    value = value.to(result.dtype.element_ty)
    tl.store(pointer, value, mask=in_rows & (column < n), eviction_policy=EVICT)


@triton.jit
def _row_sum(lanes, sums, pieces, PART: tl.constexpr, PIECES: tl.constexpr):
    """The sum over a row, of which a program may have a part or a piece; see the kernel."""
    if PART == 0:
        return tl.sum(lanes, 1, keep_dims=True)
    elif PART == 1:
        total = tl.sum(lanes)
        if not PIECES:
            total += tl.load(sums)
        tl.store(sums, total)
        return total
    elif PIECES:
        number = tl.arange(0, PIECES)
        return tl.sum(tl.load(sums + number, mask=number < pieces, other=0.0))
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
    WRITES_P: tl.constexpr, WRITES_Z: tl.constexpr, MEAN: tl.constexpr, STORES_E: tl.constexpr,
    ONE_BLOCK: tl.constexpr, PER_THREAD: tl.constexpr, PIECES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient for the logits of every row.

    ``PART`` is 0 for whole rows. For the n columns from ``first_column`` on of longer rows, 1 adds
    to the ``sums`` of the rows, (8, rows), and 2 writes the gradient once those are complete; both
    find the gradient at the draw in ``at_draws``, (rows,), and the logit in the statistics. From
    ``METHOD`` to ``MEAN`` are the ``Terms`` of the formula.

    Rows in ``PIECES``, rounded up to a power of two, or 0, are parts whose programs run together:
    each has a block of its row and a place of its own in the sums, (8, rows, pieces), and 1 also
    writes ``at_draws``. ``STORES_E`` keeps e in the result between the two passes over a row, where
    that costs less than to make it again. ``PER_THREAD`` is n where a thread has rows to itself.
    """
    APART: tl.constexpr = (METHOD == STRAIGHT_THROUGH or METHOD == BLEND) or MEAN
    if PER_THREAD:
        n = PER_THREAD
    row = tl.program_id(0).to(tl.int64)
    pieces = 1
    begin = 0
    if PART == 0:
        row = (row * ROWS + tl.arange(0, ROWS))[:, None]
    elif PIECES:
        pieces = tl.cdiv(n, BLOCK)
        if PART == 1:
            # in reverse: the last piece is what the cache still holds, of the forward pass and then
            # of this one
            row = tl.num_programs(0) - 1 - row
        begin = (row % pieces).to(tl.int32) * BLOCK
        row //= pieces
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
    if (ONE_BLOCK and PART == 2) and STORES_E:
        e, g = _load(result, mask, gradient, begin, n, in_rows, result_column, mask_column,
                     gradient_column, False, 0, BLOCK, DROP, DROP)  # fmt: skip
    elif ONE_BLOCK:
        x, g = _load(logits, mask, gradient, begin, n, in_rows, logits_column, mask_column,
                     gradient_column, HAS_MASK, PER_THREAD, BLOCK, DROP if PART == 2 else NORMAL,
                     DROP if PART == 2 else NORMAL)  # fmt: skip
    if (ONE_BLOCK and BLOCK <= SHORT) and not PIECES:
        # a sum over a short row is faster than a load that has to wait for the index
        at = tl.arange(0, BLOCK)[None, :] == drawn
        at_draw = tl.sum(tl.where(at, g, 0.0), 1, keep_dims=True)
        own_x = tl.sum(tl.where(at, x, 0.0), 1, keep_dims=True)
    elif PART == 0 or PIECES:
        # nobody may have looked whether the row has the category, if it was given
        known = in_rows & (drawn >= 0) & (drawn < n)
        own_x = tl.load(logits + drawn * logits_column, mask=known, other=0.0).to(tl.float32)
        if PART < 2:
            at_draw = tl.load(gradient + drawn * gradient_column, mask=known, other=0.0)
            at_draw = at_draw.to(tl.float32)
        else:
            # another program may have written over the gradient
            at_draw = tl.load(at_draws + row)
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
        lead = lead_of(own_w * inverse_total)
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
        if PART == 2 and STORES_E:
            h = g - at_draw
            w = e
        else:
            is_drawn, h, w, e = block_terms(
                x, g, seed, begin, first_column, row, here, at_draw, row_top, inverse_tau, lead,
                own_noise, METHOD, TEMPERED, USES_E, PART, BLOCK,
            )  # fmt: skip
            sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h = add_block(
                sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h, x, row_top, h, w, e,
                USES_E, MEAN, APART,
            )  # fmt: skip
            if STORES_E:
                _store(result, e, begin, n, in_rows, result_column, BLOCK, NORMAL)
    elif PART < 2:
        for start in range(0, n, BLOCK):
            # what the second pass reads is worth keeping, but a part is not read again so soon:
            # lines that were kept would be in the way of others
            x, g = _load(logits, mask, gradient, start, n, in_rows, logits_column, mask_column,
                         gradient_column, HAS_MASK, 0, BLOCK,
                         NORMAL if PART else DROP if STORES_E else KEEP,
                         NORMAL if PART else KEEP)  # fmt: skip
            is_drawn, h, w, e = block_terms(
                x, g, seed, start, first_column, row, here, at_draw, row_top, inverse_tau, lead,
                own_noise, METHOD, TEMPERED, USES_E, PART, BLOCK,
            )  # fmt: skip
            sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h = add_block(
                sum_wh, sum_e, sum_eh, sum_h, count, below, tops, tops_h, x, row_top, h, w, e,
                USES_E, MEAN, APART,
            )  # fmt: skip
            if STORES_E:
                _store(result, e, start, n, in_rows, result_column, BLOCK, KEEP)
        if STORES_E:
            # other threads may read it than wrote it
            tl.debug_barrier()
    each = rows * pieces
    sums += row * pieces
    if PART == 1 and PIECES:
        sums += begin // BLOCK
        tl.store(at_draws + row, at_draw, mask=begin == 0)
    sum_wh = _row_sum(sum_wh, sums, pieces, PART, PIECES)
    if USES_E:
        sum_e = _row_sum(sum_e, sums + each, pieces, PART, PIECES)
        sum_eh = _row_sum(sum_eh, sums + 2 * each, pieces, PART, PIECES)
    if MEAN:
        sum_h = _row_sum(sum_h, sums + 3 * each, pieces, PART, PIECES)
        count = _row_sum(count, sums + 4 * each, pieces, PART, PIECES)
    if APART:
        below = _row_sum(below, sums + 5 * each, pieces, PART, PIECES)
        tops = _row_sum(tops, sums + 6 * each, pieces, PART, PIECES)
        tops_h = _row_sum(tops_h, sums + 7 * each, pieces, PART, PIECES)
    if PART != 1:
        shift = row_top * 0
        if APART:
            # logits that are made again, part by part, may miss the largest by a rounding
            shift = tl.where(tops > 0, tops_h / tl.maximum(tops, 1.0), 0.0)
        a1, a0, b1, b0, c = coefficients(
            sum_e, sum_eh, sum_wh * inverse_total, sum_h, count, below, tops, shift, inverse_total,
            inverse_tau, own_x, own_w, own_e, at_draw, option, METHOD, TEMPERED, MEAN,
        )  # fmt: skip
        b1 *= inverse_total
        b0 *= inverse_total
        if ONE_BLOCK:
            if APART:
                h -= shift
            value = value_of(h, w, e, a1, a0, b1, b0, METHOD, WRITES_E, WRITES_P)
            if WRITES_Z:
                value = tl.where(is_drawn, c, value)
            _store(result, value, begin, n, in_rows, result_column, BLOCK, DROP)
        else:
            last = (tl.cdiv(n, BLOCK) - 1) * BLOCK
            for back in range(0, n, BLOCK):
                # in reverse: the end of the row is what the cache still holds
                start = last - back
                if STORES_E:
                    e, g = _load(result, mask, gradient, start, n, in_rows, result_column,
                                 mask_column, gradient_column, False, 0, BLOCK, DROP,
                                 DROP)  # fmt: skip
                    h = g - at_draw
                    w = e
                else:
                    x, g = _load(logits, mask, gradient, start, n, in_rows, logits_column,
                                 mask_column, gradient_column, HAS_MASK, 0, BLOCK, DROP,
                                 DROP)  # fmt: skip
                    is_drawn, h, w, e = block_terms(
                        x, g, seed, start, first_column, row, here, at_draw, row_top, inverse_tau,
                        lead, own_noise, METHOD, TEMPERED, USES_E, PART, BLOCK,
                    )  # fmt: skip
                if APART:
                    h -= shift
                value = value_of(h, w, e, a1, a0, b1, b0, METHOD, WRITES_E, WRITES_P)
                _store(result, value, start, n, in_rows, result_column, BLOCK,
                       DROP if PART == 0 else NORMAL)  # fmt: skip
            if WRITES_Z:
                # one element, once all threads have written theirs; cheaper than to look for it
                tl.debug_barrier()
                at = drawn - first_column
                value = c.to(result.dtype.element_ty)
                tl.store(result + at * result_column, value, mask=in_rows & (at >= 0) & (at < n))
