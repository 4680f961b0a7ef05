r"""Sums over all subsets of k items, by how many items each group of items contributes.

Give every item an independent bit with log-odds $x_i$. Given that k bits are 1, their distribution
is that of the subsets, $P(z) \propto e^{l \cdot z}$, for every shift $x = l + c$ of the logits. The
shift for which about k bits are 1 (``balanced``) makes all numbers below ordinary probabilities,
of which those that matter are not small: nothing overflows, nothing is subtracted, and float32 is
enough for thousands of items.

How many bits of a group are 1 is the product of polynomials, one factor $q_i + p_i t$ per item.
``_products`` multiplies them in pairs, pairs of pairs and so on, a binary tree of groups with a
level per doubling; degrees above k are dropped. ``_outside`` goes back from the root: for every
group, how likely all other items contribute what is missing to k. Both take $O(nk)$ steps, in
$O(\log n)$ levels, and $O(n \log k)$ memory.

Tensors of a level are (degree + 1, groups, ..., rows): the loops over degrees then run over long
contiguous pieces. Groups are paired across the middle of a level; an odd one out is passed on.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._math import row_sum
from .._modes import batched, compiling, transforming

# The shift is good enough if the mean number of ones is so near to k, and is so after a few steps.
# Should ten not do, then the chance of k ones may be smaller, which float32 has much room for.
_NEAR, _STEPS = 1.0, 10
# A gap between the k-th and the next logit beyond which the subset is certain in float32.
_CERTAIN = 80.0
# Numbers that are worked on at once on a CPU, so that they stay in its caches.
_BLOCK = 2**17
# Pieces of work up to this size are done at once: on a CPU, measured, and elsewhere, for memory.
_SHORT, _MANY = 2**13, 2**26


class Inclusion(NamedTuple):
    """The probabilities of each item, (rows, n), each to a rounding of itself."""

    mean: Tensor
    """That it is in the subset."""
    rest: Tensor
    """That it is not."""


def below_last(natural: Tensor, k: int) -> Tensor:
    """Natural parameters (..., n) minus the k-th largest of their row."""
    return natural - natural.detach().topk(k, -1).values[..., -1:]


def balanced(natural: Tensor, k: int) -> Tensor:
    """Natural parameters (..., n) with a constant added, such that k bits are 1 on average."""
    # first relative to the k-th largest, because beside a huge number a shift would be lost
    natural = below_last(natural, k)
    (shift,) = _in_blocks(_shift, k, natural.detach().reshape(-1, natural.shape[-1]))
    return natural + shift.reshape(*natural.shape[:-1], 1)


def inclusion(point: Tensor, k: int) -> Inclusion:
    """The probabilities of items with log-odds (..., n). Differentiable."""
    parts = _in_blocks(_inclusion, k, point.reshape(-1, point.shape[-1]))
    mean, rest = (x.reshape(point.shape) for x in parts)
    return Inclusion(mean, rest)


def inclusion_and_covariance(point: Tensor, k: int, g: Tensor) -> tuple[Inclusion, Tensor]:
    """The same, and the covariance of the bits times ``g``, of the shape of ``point``."""
    n = point.shape[-1]
    mean, rest, product = _in_blocks(_covariance, k, point.reshape(-1, n), g.reshape(-1, n))
    shape = point.shape
    return Inclusion(mean.reshape(shape), rest.reshape(shape)), product.reshape(shape)


def residual(drawn: Tensor, parts: Inclusion) -> Tensor:
    """Subsets minus their mean: the probability to be left out where an item is in, minus that to
    be in where it is not."""
    # exact for a weight of 0 or 1, and much faster than torch.where
    return torch.lerp(-parts.mean, parts.rest, drawn.to(parts.mean.dtype))


def second_order(point: Tensor, k: int, g: Tensor, drawn: Tensor, weight: float) -> Tensor:
    """``weight`` times the covariance times ``g``, plus ``(g . r) r / 2`` with the residual r."""
    # which feels no constant that is added to all g, as rounding does
    g = g - row_sum(g * drawn) / k
    parts, product = inclusion_and_covariance(point, k, g)
    r = residual(drawn, parts)
    return weight * product + row_sum(g * r) / 2 * r


def draw(point: Tensor, k: int, uniform: Tensor) -> Tensor:
    """Subsets as booleans (draws, rows, n), from uniform numbers (draws, rows, n - 1)."""
    # of rows that no check has looked at, with NaN or too few items, any subset will do
    n = point.shape[-1]
    alike = math.log(k / (n - k)) if n > k else 0.0
    point = torch.where(point.isnan().any(-1, keepdim=True), alike, point)
    # the axis of rows first, because blocks are along it
    (drawn,) = _in_blocks(_draw, k, point, uniform.movedim(0, 1))
    return drawn.movedim(0, 1)


def log_chance(point: Tensor, k: int) -> Tensor:
    """The log-probability that k bits with log-odds (..., n) are 1, (...). Differentiable."""
    point, k, _ = _smaller_side(point, k)
    last = _products(_leaves(point.reshape(-1, point.shape[-1])), k)[-1]
    root = last if last.shape[1] == 1 else _product(last[:, :1], last[:, 1:], k)
    return root[k, 0].log().reshape(point.shape[:-1])


Parts = tuple[Tensor, ...]


def _in_blocks(function: Callable[..., Parts], k: int, *tensors: Tensor) -> Parts:
    """``function(k, *tensors)``, some rows at a time where that is faster."""
    rows = tensors[0].shape[0]
    size = max(1, _BLOCK // max(1, max(x[:1].numel() for x in tensors)))
    whole = rows <= size or tensors[0].device.type != "cpu"
    if whole or compiling() or transforming() or any(map(batched, tensors)):
        return function(k, *tensors)
    blocks = zip(*(x.split(size) for x in tensors), strict=True)
    parts = [function(k, *block) for block in blocks]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _shift(k: int, natural: Tensor) -> Parts:
    """The constant for each row, (rows, 1), if the k-th largest number of a row is 0.

    Newton's method, kept between two bounds.
    """
    n = natural.shape[-1]
    largest = natural.topk(min(k + 1, n), -1).values[:, -1:]
    following = largest.clamp(min=-_CERTAIN) if n > k else torch.full_like(largest, -_CERTAIN)
    # at the lower bound the n - k smaller items have half a bit together, and the k-th lacks half
    # of its bit; at the upper one the k largest lack half a bit together, and the next has half
    low = (-following - math.log(2 * max(n - k, 1))).clamp(max=0)
    high = (-following).clamp(min=math.log(2 * k))
    shift = (low + high) / 2
    for _ in range(_STEPS):
        # not torch.sigmoid, see _math
        p = (-shift - natural).exp_().add_(1).reciprocal_()
        total = row_sum(p)
        excess, slope = total - k, total - row_sum(p.mul_(p))
        low, high = torch.where(excess < 0, shift, low), torch.where(excess > 0, shift, high)
        newton = shift - excess / slope
        inside = (newton > low) & (newton < high)
        near = excess.abs() <= _NEAR
        shift = torch.where(near, shift, torch.where(inside, newton, (low + high) / 2))
        if natural.device.type == "cpu" and not (compiling() or transforming()) and near.all():
            break
    return (shift,)


def _smaller_side(point: Tensor, k: int) -> tuple[Tensor, int, bool]:
    """The same for the items that are left out, where these are fewer."""
    n = point.shape[-1]
    return (-point, n - k, True) if 2 * k > n else (point, k, False)


def _leaves(point: Tensor) -> Tensor:
    """The polynomials q + p t of single items, (2, n, rows), from log-odds (rows, n)."""
    x = point.T.contiguous()
    return torch.stack([logsigmoid(-x), logsigmoid(x)]).exp()


def _products(leaves: Tensor, k: int) -> list[Tensor]:
    """The polynomials of all groups, from single items to the two halves of all."""
    levels = [leaves]
    while levels[-1].shape[1] > 2:
        x = levels[-1]
        left, right = _sides(x).unbind(1)
        levels.append(_joined(_product(left, right, _degree_above(x, k)), x))
    return levels


def _outside(levels: list[Tensor], k: int) -> list[Tensor]:
    """For every group and every j, the probability that all other items contribute k - j."""
    root = levels[0].new_zeros(max(k, 1) + 1, 1, *levels[0].shape[2:])
    root[k] = 1
    outside = [root]
    for x in reversed(levels):
        if x.shape[1] > 1:
            outside.append(_spread(_matches(_paired(outside[-1], x), _siblings(x)), outside[-1], x))
    return outside[::-1]


def _sides(x: Tensor) -> Tensor:
    """The two groups of each pair, along a new second axis."""
    half = x.shape[1] // 2
    # not a slice, here and below: one that keeps all has no rule for is_grads_batched
    return x.narrow(1, 0, 2 * half).reshape(len(x), 2, half, *x.shape[2:])


def _siblings(x: Tensor) -> Tensor:
    """The same, for each group the other one of its pair."""
    return _sides(x).flip(1)


def _paired(above: Tensor, x: Tensor) -> Tensor:
    """Those groups of a level that are pairs of ``x``, the level below, for both sides."""
    return above.narrow(1, 0, x.shape[1] // 2).unsqueeze(1)


def _degree_above(x: Tensor, k: int) -> int:
    return min(2 * (len(x) - 1), k)


def _joined(pairs: Tensor, x: Tensor) -> Tensor:
    """The level above ``x``: its pairs, and the odd one out as it is."""
    if x.shape[1] % 2 == 0:
        return pairs
    return torch.cat([pairs, _resized(x[:, -1:], len(pairs))], 1)


def _spread(sides: Tensor, above: Tensor, x: Tensor) -> Tensor:
    """The level of ``x``: both sides of its pairs, and the odd one out as it is above."""
    pairs = sides.reshape(len(sides), 2 * sides.shape[2], *sides.shape[3:])
    if x.shape[1] % 2 == 0:
        return pairs
    return torch.cat([pairs, _resized(above[:, -1:], len(x))], 1)


def _resized(x: Tensor, size: int, before: int = 0) -> Tensor:
    """So many coefficients of polynomials, and zeros before them and where there are none."""
    return _padded(x.narrow(0, 0, min(size, len(x))), before, size - len(x))


def _padded(x: Tensor, before: int, after: int) -> Tensor:
    """Coefficients with zeros for others; not ``pad``, which in torch 2.6 refuses zero rows."""
    sizes = before, max(0, after)
    ends = [x.new_zeros(size, *x.shape[1:]) for size in sizes]
    return torch.cat([ends[0], x, ends[1]]) if any(sizes) else x


def _product(left: Tensor, right: Tensor, degree: int) -> Tensor:
    """The products of polynomials, up to this degree."""
    if _in_one_step(degree, right):
        # right[m + i - last] for i = last - j
        last = len(left) - 1
        windows = _windows(_resized(right, degree + 1, last), len(left))
        return (windows * left.flip(0)).sum(1)
    out = right.new_zeros(degree + 1, *right.shape[1:])
    for j in range(min(len(left), len(out))):
        end = min(len(out) - j, len(right))
        out[j : j + end].addcmul_(left[j], right[:end])
    return out


def _matches(above: Tensor, siblings: Tensor) -> Tensor:
    """For every j, the sum over i of ``siblings[i] * above[i + j]``."""
    if _in_one_step(len(siblings) - 1, siblings):
        windows = _windows(_resized(above, 2 * len(siblings) - 1), len(siblings))
        return (windows * siblings).sum(1)
    out = torch.zeros_like(siblings)
    for i in range(min(len(siblings), len(above))):
        end = min(len(out), len(above) - i)
        out[:end].addcmul_(siblings[i], above[i : i + end])
    return out


def _windows(x: Tensor, size: int) -> Tensor:
    """All runs of so many coefficients, by their first one; those of a run along the next axis."""
    if transforming():  # which has no rule for the backward of unfold
        return torch.stack([x[i : len(x) - size + 1 + i] for i in range(size)], 1)
    return x.unfold(0, size, 1).movedim(-1, 1)


def _in_one_step(degree: int, factor: Tensor) -> bool:
    """Whether to form all products of two coefficients at once, and not one row after the other.

    That takes more memory and fewer operations, of which each takes a while to start, or to
    compile. It changes nothing in place, which a tensor of several gradients would refuse.
    """
    if compiling() or transforming() or batched(factor):
        return True
    if factor.device.type == "cpu":
        return factor.numel() < _SHORT
    return (degree + 1) * factor.numel() < _MANY


def _inclusion(k: int, point: Tensor) -> Parts:
    point, k, flipped = _smaller_side(point, k)
    leaves = _leaves(point)
    mean, rest = _normalised(leaves, _outside(_products(leaves, k), k)[0])
    return (rest.T, mean.T) if flipped else (mean.T, rest.T)


def _normalised(leaves: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """That an item is in, and that it is out, (n, rows)."""
    without, within = leaves * outside
    chance = without + within
    return within / chance, without / chance


def _covariance(k: int, point: Tensor, g: Tensor) -> Parts:
    r"""With the sum $s = g \cdot (z - p)$ over a subset, an entry of $C g$ is

    $$\mu_i (1 - \mu_i) \big(E[s \mid z_i = 1] - E[s \mid z_i = 0]\big) .$$

    Beside each probability of the tree goes the same probability times the mean of s in it, for
    which an item starts with $\pm p q\, g$: nearly certain ones count nearly nothing. Rounding
    feels a constant that is added to all g, which the result does not, so g is centred first.
    """
    point, k, flipped = _smaller_side(point, k)  # the covariance of 1 - z is that of z
    leaves = _leaves(point)
    levels = _products(leaves, k)
    outside = _outside(levels, k)
    mean, rest = _normalised(leaves, outside[0])
    variance, g = mean * rest, g.T
    tiny = torch.finfo(g.dtype).tiny
    # row_sum, because there may be one row of many items
    total, weight = row_sum((variance * g).T), row_sum(variance.T)
    g = g - (total / weight.clamp_min(tiny)).T
    swing = leaves[0] * leaves[1] * g
    sums = [torch.stack([-swing, swing])]
    for x in levels[:-1]:  # the sum over all items is not needed
        both = _product(_sides(x), _siblings(sums[-1]), _degree_above(x, k))
        sums.append(_joined(both.sum(1), sums[-1]))
    others = torch.zeros_like(outside[-1])
    groups = zip(levels[::-1], sums[::-1], outside[:0:-1], strict=False)  # none of a single item
    for x, s, above in groups:
        sides = _matches(_paired(others, x), _siblings(x))
        sides = sides + _matches(_paired(above, x), _siblings(s))
        others = _spread(sides, others, x)
    (without, within), (q, p) = outside[0], leaves
    chance = p * within + q * without
    slope = p / chance * q / chance * (without * others[1] - within * others[0])
    product = (variance * g + slope).T
    return (rest.T, mean.T, product) if flipped else (mean.T, rest.T, product)


def _draw(k: int, point: Tensor, uniform: Tensor) -> Parts:
    """From log-odds (rows, n) and numbers (rows, draws, n - 1) to booleans (rows, draws, n)."""
    point, k, flipped = _smaller_side(point, k)
    levels = _products(_leaves(point), k)
    place = uniform.movedim(-1, 0).movedim(1, -1).contiguous()  # (n - 1, draws, rows)
    count = place.new_full((1, *uniform.shape[1:-1], point.shape[0]), k, dtype=torch.int64)
    used = 0
    for x in reversed(levels):
        left, right = (half.unsqueeze(2) for half in _sides(x).unbind(1))
        half, degree = left.shape[1], len(x) - 1
        pairs = count[:half]
        # left takes j and right the others: the probability of their count times that of j
        ahead = torch.arange(degree, -1, -1, device=x.device).reshape(-1, 1, 1, 1)
        others = _padded(right, degree, degree)
        others = others.expand(-1, *pairs.shape).gather(0, pairs + ahead)
        ends = (left * others).cumsum(0, dtype=place.dtype)
        threshold = place[used : used + half] * ends[-1]
        taken = (ends <= threshold).sum(0)
        # only rows that no check has looked at, with NaN or too few items, go beyond these limits
        taken = taken.clamp(pairs - degree, pairs.clamp(max=degree))
        count = torch.cat([taken, pairs - taken, count[half:]])
        used += half
    drawn = count.movedim(0, -1).movedim(1, 0) > 0
    return (~drawn if flipped else drawn,)
