r"""What the gradient kernel for categories computes of a block, and of the sums over a row.

The formula is at the top of ``categorical_gradient``.
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
from .rows import exp

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
def block_terms(
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
def add_block(
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
def coefficients(
    sum_e, sum_eh, sum_ph, sum_h, count, below, tops, shift, inverse_total, inverse_tau,
    own_x, own_w, own_e, at_draw, option,
    METHOD: tl.constexpr, TEMPERED: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """The five numbers of a row in the formula.

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
def lead_of(prob):
    """The gap of GST-p: -log(1 - P) / P for the capped probability P of the draw."""
    prob = tl.maximum(prob * (1 - 1e-5), TINY)
    return -log1p(-prob) / prob


@triton.jit
def value_of(h, w, e, a1, a0, b1, b0, METHOD: tl.constexpr, WRITES_E: tl.constexpr,
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
