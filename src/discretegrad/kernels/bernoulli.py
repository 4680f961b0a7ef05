r"""Fused kernels for Bernoulli variables: draw zeros and ones; the gradient of all samplers.

Every sampler turns the gradient g at its value b into $g\, s(l, b)$, element by element, with a
slope s that depends on the logit, the value and at most some noise. For the relaxed samplers let q
be the probability of the value that was not drawn and u the uniform number behind the noise; the
relaxed sample then lies on the side of that value with the weight

$$t = \frac{a}{1 + a}, \qquad a = \Big(1 + \frac{u}{q (1 - u)}\Big)^{-1/\tau}
\quad\overset{\tau = 1}{=}\quad \frac{q (1 - u)}{q (1 - u) + u},$$

at most one half, and $s = t (1 - t) / \tau$: two divisions, a logarithm and a power for every noise
draw, and at $\tau = 1$ a single division.

Memory traffic: forward reads the logits and writes the sample, and keeps nothing. Backward reads
logits and gradient, makes the draw again from its seed, and writes one gradient. The noise draws of
``gumbel_rao`` never leave the registers.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._types import Method
from .formulas import FORMULAS
from .launch import Plan, launch
from .layout import Bits
from .numbers import (
    BLEND,
    GAPPED,
    GAPPED_P,
    GUMBEL_RAO,
    GUMBEL_SOFTMAX,
    LOG2_E,
    MEAN_FIRST,
    MEAN_RELEASED,
    MEAN_SECOND,
    REINMAX,
    STRAIGHT_THROUGH,
    TINY,
)
from .philox import DRAW, DRAWS, NOISE, folded, interleave, words

# elements and warps of one program; fewer for many noise draws, where computing takes the time and
# has to spread over the whole GPU
BLOCK, WARPS = 1024, 4
DRAWS_BLOCK, DRAWS_WARPS = 64, 2


@triton.jit
def _load_logits(logits, mask, element, inside, HAS_MASK: tl.constexpr):
    """Logits in float32, -inf where the value 1 is excluded."""
    x = tl.load(logits + element, mask=inside, other=0.0).to(tl.float32)
    if HAS_MASK:
        allowed = tl.load(mask + element, mask=inside, other=0)
        x = tl.where(allowed != 0, x, -float("inf"))
    return x


@triton.jit
def sigmoids(x):
    """``sigmoid(x)`` and ``sigmoid(-x)``, accurate in both tails."""
    small = tl.exp(-tl.abs(x))
    likely = 1 / (1 + small)
    unlikely = small * likely
    return tl.where(x < 0, unlikely, likely), tl.where(x < 0, likely, unlikely)


@triton.jit
def _word_each(seed, first, purpose, BLOCK: tl.constexpr):
    """A word for each element of a block: groups of four neighbours share one call."""
    group = first // 4 + tl.arange(0, BLOCK // 4)
    a, b, c, d = words(seed, group, 0, purpose)
    return interleave(a, b, c, d)


@triton.jit
def _is_flipped(unlikely, seed, first, BLOCK: tl.constexpr):
    """The draw: whether the less likely value comes, whose probability float32 resolves finely."""
    # the words as integers, because float32 cannot hold them all
    threshold = (unlikely * 4294967296.0 + 0.5).to(tl.uint32)
    return _word_each(seed, first, DRAW, BLOCK) < threshold


@triton.jit
def _lead_of(prob, other_prob):
    """The gap of GST-p: -log(1 - P) / P for the capped probability P of the value."""
    # 1 - P without cancellation; as a function of it alone the gap forgives its rounding
    rest = other_prob + 1e-5 * prob
    certain = rest == 1
    return tl.where(certain, 1.0, -tl.log(rest) / tl.where(certain, 1.0, 1 - rest))


@triton.jit
def _relaxed_slope(word, other_prob, log2_scale, sharpness, TEMPERED: tl.constexpr):
    """t (1 - t) for the noise of a word: the formula at the top of this file."""
    above, distance = folded(word)
    uniform = tl.where(above, 1 - distance, distance)
    share = other_prob * tl.where(above, distance, 1 - distance)
    if TEMPERED:
        ratio = uniform / share
        base = 1 + ratio
        # what rounding took from a small ratio counts where tau is small
        lost = tl.where(ratio < 1, ratio - (base - 1), 0.0)
        a = tl.exp2((log2_scale - (tl.log2(base) + lost * LOG2_E)) * sharpness)
        t = a / (1 + a)
    else:
        t = share / (2 * share + uniform)
    return t - t * t


@triton.jit
def _relaxed_terms(drawn, other_prob, tau, TEMPERED: tl.constexpr):
    """What ``_relaxed_slope`` needs besides a word, for the logit of the value that was drawn."""
    log2_scale = tl.zeros_like(drawn)
    sharpness = log2_scale + 1
    if TEMPERED:
        # a large tau raises also a probability that float32 cannot hold: below 2**-60 its
        # logarithm is the logit, and what is missing to 2**-60 goes into the exponent
        log2_scale = tl.minimum(60 - drawn * LOG2_E, 0.0)
        other_prob = tl.where(log2_scale < 0, 8.673617379884035e-19, other_prob)
        sharpness = sharpness / tau
    return log2_scale, other_prob, sharpness


@triton.jit
def mean_slope(drawn, other_prob, tau, seed, element, num_draws, TEMPERED: tl.constexpr):
    """The slope of ``gumbel_rao``: a mean over noise draws, four from a call of the generator."""
    log2_scale, other_prob, sharpness = _relaxed_terms(drawn, other_prob, tau, TEMPERED)
    slope = tl.zeros_like(other_prob)
    for m in range(0, tl.cdiv(num_draws, 4)):
        a, b, c, d = words(seed, element, 0, DRAWS + m)
        a = _relaxed_slope(a, other_prob, log2_scale, sharpness, TEMPERED)
        b = _relaxed_slope(b, other_prob, log2_scale, sharpness, TEMPERED)
        c = _relaxed_slope(c, other_prob, log2_scale, sharpness, TEMPERED)
        d = _relaxed_slope(d, other_prob, log2_scale, sharpness, TEMPERED)
        left = num_draws - 4 * m
        slope += a + tl.where(left > 1, b, 0.0)
        slope += tl.where(left > 2, c, 0.0) + tl.where(left > 3, d, 0.0)
    return slope / num_draws * sharpness


@triton.jit
def _slope(
    x, is_flipped, likely, unlikely, seed, first, tau, option, num_draws,
    METHOD: tl.constexpr, TEMPERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What each sampler multiplies the gradient with."""
    # logit and probability of the value that was drawn, and of the other one
    drawn = tl.where(is_flipped, -tl.abs(x), tl.abs(x))
    prob = tl.where(is_flipped, unlikely, likely)
    other_prob = tl.where(is_flipped, likely, unlikely)
    if METHOD == REINMAX or METHOD == BLEND:
        straight_through = prob * other_prob
        if TEMPERED:
            tempered, other_tempered = sigmoids(drawn / tau)
            slope = (other_tempered * (1 + tempered) - straight_through) / 2
            straight_through = tempered * other_tempered / tau
        else:
            slope = other_prob / 2
        if METHOD == BLEND:
            slope = option * slope + (1 - option) * straight_through
    elif (METHOD == MEAN_FIRST or METHOD == MEAN_SECOND) or METHOD == MEAN_RELEASED:
        tempered = prob
        if TEMPERED:
            tempered, _ = sigmoids(drawn / tau)
        if METHOD == MEAN_RELEASED:
            is_one = is_flipped ^ (x > 0)
            signed = tl.where(is_one, prob, -other_prob)
            first_order = signed * other_prob / (2 * tempered + 1e-12)
        else:
            first_order = prob / (2 * tl.maximum(tempered, TINY)) * other_prob
        if METHOD == MEAN_FIRST:
            slope = first_order
        else:
            slope = (other_prob / 2 + first_order) / 2
    elif METHOD == GUMBEL_SOFTMAX:
        log2_scale, other_prob, sharpness = _relaxed_terms(drawn, other_prob, tau, TEMPERED)
        word = _word_each(seed, first, NOISE, BLOCK)
        slope = _relaxed_slope(word, other_prob, log2_scale, sharpness, TEMPERED) * sharpness
    elif METHOD == GUMBEL_RAO:
        element = first + tl.arange(0, BLOCK)
        slope = mean_slope(drawn, other_prob, tau, seed, element, num_draws, TEMPERED)
    else:
        lead = drawn
        if METHOD == GAPPED:
            lead = tl.where(drawn < option, option, drawn)
        elif METHOD == GAPPED_P:
            least = _lead_of(prob, other_prob)
            lead = tl.where(drawn < least, least, drawn)
        if TEMPERED:
            tempered, other_tempered = sigmoids(lead / tau)
            slope = tempered * other_tempered / tau
        elif METHOD == STRAIGHT_THROUGH:
            slope = prob * other_prob
        else:
            tempered, other_tempered = sigmoids(lead)
            slope = tempered * other_tempered
    return slope


@triton.jit
def _draw_kernel(logits, mask, seed, sample, n, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):
    """Draw a value for every element."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    element = first + tl.arange(0, BLOCK)
    inside = element < n
    x = _load_logits(logits, mask, element, inside, HAS_MASK)
    _, unlikely = sigmoids(tl.abs(x))
    is_one = _is_flipped(unlikely, tl.load(seed), first, BLOCK) ^ (x > 0)
    value = tl.where(is_one, 1.0, 0.0).to(sample.dtype.element_ty)
    tl.store(sample + element, value, mask=inside)


@triton.jit
def _gradient_kernel(
    logits, mask, gradient, values, taus, seed, result, tau, option, num_draws, n,
    HAS_MASK: tl.constexpr, GIVEN: tl.constexpr, HAS_TAU: tl.constexpr, TAU_STRIDE: tl.constexpr,
    METHOD: tl.constexpr, TEMPERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient for the logits, at the given values or at those that the seed gives again."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    element = first + tl.arange(0, BLOCK)
    inside = element < n
    x = _load_logits(logits, mask, element, inside, HAS_MASK)
    g = tl.load(gradient + element, mask=inside, other=0.0).to(tl.float32)
    if HAS_TAU:
        tau = tl.load(taus + element * TAU_STRIDE, mask=inside, other=1.0)
    likely, unlikely = sigmoids(tl.abs(x))
    if METHOD == STRAIGHT_THROUGH:
        # both values have the same slope
        is_flipped = x > 0
    elif GIVEN:
        is_one = tl.load(values + element, mask=inside, other=0) != 0
        is_flipped = is_one ^ (x > 0)
    else:
        is_flipped = _is_flipped(unlikely, tl.load(seed), first, BLOCK)
    slope = _slope(
        x, is_flipped, likely, unlikely, tl.load(seed), first, tau, option, num_draws,
        METHOD, TEMPERED, BLOCK,
    )  # fmt: skip
    product = g * slope
    if HAS_MASK:
        # whatever the gradient there
        product = tl.where(x == -float("inf"), 0.0, product)
    tl.store(result + element, product.to(result.dtype.element_ty), mask=inside)


def draw(bits: Bits, seed: Tensor) -> Tensor:
    """Zeros and ones of the shape and dtype of the logits, contiguous.

    Args:
        bits: The variables; their temperature does not matter.
        seed: One int64.
    """
    logits, mask = bits.logits.contiguous(), bits.mask
    sample = torch.empty_like(logits)
    plan = _draw_plan(logits.numel(), mask is not None, logits.dtype, logits.device)
    launch(plan, [logits, logits if mask is None else mask.contiguous(), seed, sample])
    return sample


@lru_cache(maxsize=4096)
def _draw_plan(n: int, has_mask: bool, dtype: torch.dtype, device: torch.device) -> Plan:
    return Plan(_draw_kernel, -(-n // BLOCK), WARPS, (n, has_mask, BLOCK))


def gradient(
    method: Method, g: Tensor, bits: Bits, seed: Tensor | None, value: Tensor | None
) -> Tensor:
    """The gradient for the logits, given the gradient ``g`` at the sample, contiguous.

    Args:
        method: Any of the formulas.
        g: Of the shape of the logits, of any strides and floating dtype.
        bits: The variables.
        seed: That of ``draw``, which the noise of a sampler comes from, too; None if there is none.
        value: The values drawn, boolean, of the shape of the logits; without them the draw is made
            again from the seed.
    """
    logits, mask, taus = bits.logits.contiguous(), bits.mask, bits.tau_bits
    result = torch.empty_like(logits)
    tau_stride = 0
    if taus is not None:
        strides = zip(taus.shape, taus.stride(), strict=True)
        # a single temperature need not be copied for every element
        tau_stride = int(any(stride for size, stride in strides if size > 1))
        taus = taus.contiguous() if tau_stride else taus
    tempered = taus is not None or bits.tau != 1
    flags = (mask is not None, value is not None, taus is not None, tau_stride)
    kind = (logits.dtype, g.dtype, logits.device)
    plan = _gradient_plan(method.name, method.num_draws, logits.numel(), (*flags, tempered), kind)
    tensors = [
        logits,
        logits if mask is None else mask.contiguous(),
        g.contiguous(),
        logits if value is None else value.contiguous(),
        logits if taus is None else taus,
        logits if seed is None else seed,
        result,
    ]
    launch(plan, tensors, (bits.tau, method.option))
    return result


@lru_cache(maxsize=4096)
def _gradient_plan(
    name: str,
    num_draws: int,
    n: int,
    flags: tuple[bool, bool, bool, int, bool],
    kind: tuple[torch.dtype, torch.dtype, torch.device],
) -> Plan:
    *given, tempered = flags
    block, warps = (DRAWS_BLOCK, DRAWS_WARPS) if FORMULAS[name].many_draws else (BLOCK, WARPS)
    constants = (num_draws, n, *given, FORMULAS[name].number, tempered, block)
    return Plan(_gradient_kernel, -(-n // block), warps, constants)
