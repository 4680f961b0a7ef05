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
from torch.nn.functional import logsigmoid, pad

from .._math import row_sum
from .._modes import compiling, transforming

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


def draw(point: Tensor, k: int, uniform: Tensor) -> Tensor:
    """Subsets as booleans (draws, rows, n), from uniform numbers (draws, rows, n - 1)."""
    # the axis of rows first, because blocks are along it
    (drawn,) = _in_blocks(_draw, k, point, uniform.movedim(0, 1))
    return drawn.movedim(0, 1)


def log_chance(point: Tensor, k: int) -> Tensor:
    """The log-probability that k bits with log-odds (..., n) are 1, (...). Differentiable."""
    point, k, _ = _smaller_side(point, k)
    root = _products(_leaves(point.reshape(-1, point.shape[-1])), k)[-1]
    return root[k, 0].log().reshape(point.shape[:-1])


Parts = tuple[Tensor, ...]


def _in_blocks(function: Callable[..., Parts], k: int, *tensors: Tensor) -> Parts:
    """``function(k, *tensors)``, some rows at a time where that is faster."""
    rows = tensors[0].shape[0]
    size = max(1, _BLOCK // max(1, max(x[:1].numel() for x in tensors)))
    if rows <= size or tensors[0].device.type != "cpu" or compiling() or transforming():
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
    """The polynomials of all groups, from single items to all."""
    levels = [leaves]
    while levels[-1].shape[1] > 1:
        x = levels[-1]
        left, right = _halves(x)
        parent = _parent(x, k)
        _add_product(_paired(parent, x), left, right)
        levels.append(parent)
    return levels


def _outside(levels: list[Tensor], k: int) -> list[Tensor]:
    """For every group and every j, the probability that all other items contribute k - j."""
    root = torch.zeros_like(levels[-1])
    root[k] = 1
    outside = [root]
    for x in levels[-2::-1]:
        (left, right), above = _halves(x), outside[-1]
        below = _below(above, x)
        # the views one at a time: autograd refuses to change one that is older than a change
        _add_matches(_halves(below)[0], _paired(above, x), right)
        _add_matches(_halves(below)[1], _paired(above, x), left)
        outside.append(below)
    return outside[::-1]


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The two groups of each pair."""
    half = x.shape[1] // 2
    return x[:, :half], x[:, half : 2 * half]


def _paired(parent: Tensor, child: Tensor) -> Tensor:
    """Those groups of a level that are pairs of the level below."""
    return parent[:, : child.shape[1] // 2]


def _parent(x: Tensor, k: int) -> Tensor:
    """Zeros for the level above, with the odd one out in its place."""
    groups = x.shape[1]
    degree = min(2 * (x.shape[0] - 1), k)
    parent = x.new_zeros(degree + 1, (groups + 1) // 2, *x.shape[2:])
    if groups % 2:
        passed = x[: degree + 1, -1]
        parent[: len(passed), -1] = passed
    return parent


def _below(above: Tensor, x: Tensor) -> Tensor:
    """Zeros for the level of ``x``, with what the odd one out has from above."""
    below = torch.zeros_like(x)
    if x.shape[1] % 2:
        passed = above[: x.shape[0], -1]
        below[: len(passed), -1] = passed
    return below


def _add_product(out: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the products of polynomials, up to the degree of ``out``."""
    if _in_one_step(out, right):
        degree = len(left) - 1
        # right[m + i - degree] for i = degree - j, and 0 where there is no such coefficient
        padded = pad(right, (0, 0) * (right.ndim - 1) + (degree, max(0, len(out) - len(right))))
        windows = padded[: len(out) + degree].unfold(0, degree + 1, 1).movedim(-1, 1)
        out += (windows * left.flip(0)).sum(1)
        return
    for j in range(min(len(left), len(out))):
        end = min(len(out) - j, len(right))
        _accumulate(out[j : j + end], left[j], right[:end])


def _add_matches(out: Tensor, above: Tensor, sibling: Tensor) -> None:
    """Add, for every j, the sum over i of ``sibling[i] * above[i + j]``."""
    if _in_one_step(out, sibling):
        size = len(out) + len(sibling) - 1
        padded = pad(above, (0, 0) * (above.ndim - 1) + (0, max(0, size - len(above))))
        windows = padded[:size].unfold(0, len(sibling), 1).movedim(-1, 1)
        out += (windows * sibling).sum(1)
        return
    for i in range(min(len(sibling), len(above))):
        end = min(len(out), len(above) - i)
        _accumulate(out[:end], sibling[i], above[i : i + end])


def _accumulate(out: Tensor, x: Tensor, y: Tensor) -> None:
    if transforming():  # which has no rule for the faster form
        out += x * y
    else:
        out.addcmul_(x, y)


def _in_one_step(out: Tensor, factor: Tensor) -> bool:
    """Whether to form all products of two coefficients at once, and not one row after the other.

    That takes more memory and fewer operations, of which each takes a while to start, or to
    compile.
    """
    if compiling() or transforming():  # of which the latter has no rule for the backward of unfold
        return not transforming()
    if out.device.type == "cpu":
        return factor.numel() < _SHORT
    return len(out) * factor.numel() < _MANY


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
    g = g - (variance * g).sum(0) / variance.sum(0).clamp_min(tiny)
    swing = leaves[0] * leaves[1] * g
    sums = [torch.stack([-swing, swing])]
    for x in levels[:-2]:  # the sum over all items is not needed
        parent = _parent(sums[-1], k)
        (left, right), (left_sum, right_sum) = _halves(x), _halves(sums[-1])
        _add_product(_paired(parent, x), left, right_sum)
        _add_product(_paired(parent, x), right, left_sum)
        sums.append(parent)
    others = torch.zeros_like(levels[-1])
    groups = zip(levels[-2::-1], sums[::-1], outside[:0:-1], strict=False)  # none of a single item
    for x, s, above in groups:
        (left, right), (left_sum, right_sum) = _halves(x), _halves(s)
        below = _below(others, x)
        to_left, to_right = _halves(below)
        _add_matches(to_left, _paired(others, x), right)
        _add_matches(to_left, _paired(above, x), right_sum)
        _add_matches(to_right, _paired(others, x), left)
        _add_matches(to_right, _paired(above, x), left_sum)
        others = below
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
    for x in levels[-2::-1]:
        left, right = (half.unsqueeze(2) for half in _halves(x))
        half, degree = left.shape[1], len(x) - 1
        pairs = count[:half]
        # left takes j and right the others: the probability of their count times that of j
        ahead = torch.arange(degree, -1, -1, device=x.device).reshape(-1, 1, 1, 1)
        others = pad(right, (0, 0) * 3 + (degree, degree))
        others = others.expand(-1, *pairs.shape).gather(0, pairs + ahead)
        ends = (left * others).cumsum(0, dtype=place.dtype)
        threshold = place[used : used + half] * ends[-1]
        taken = (ends <= threshold).sum(0)
        # only rows that no check has looked at, with NaN or too few items, go beyond these limits
        taken = taken.maximum(pairs - degree).minimum(pairs.clamp(max=degree))
        count = torch.cat([taken, pairs - taken, count[half:]])
        used += half
    drawn = count.movedim(0, -1).movedim(1, 0) > 0
    return (~drawn if flipped else drawn,)
