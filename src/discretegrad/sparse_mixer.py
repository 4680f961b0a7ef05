"""SparseMixer: a router of a mixture of experts that learns though only the drawn experts run."""

import math
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ._attach import attach_sample
from ._checks import (
    check_count,
    check_flag,
    check_generator,
    check_index_type,
    check_noise,
    is_word,
    values_are_checked,
)
from ._math import compute_dtype, softmax
from ._random import uniform
from ._types import Call
from .families import FAMILIES, Variables
from .families.axis import constant

_NAME = "sparse_mixer"
_CATEGORICAL = FAMILIES["categorical"]

Threshold = Literal["phimoe", "shift-invariant"]


class _Version(NamedTuple):
    """How the weight of an expert that is not the likeliest is drawn, and what its gradient is."""

    reduced: float
    """The weight is the probability, or this times the probability."""
    whole: float
    """The chance that it is the whole probability."""
    factor: float
    """The gradient for the probability is this times that of the loss for the weight."""


_VERSIONS = {1: _Version(1 / 2, 1 / 2, 2.0), 2: _Version(1 / 3, 1 / 4, 1.0)}


def sparse_mixer(
    logits: Tensor,
    k: int = 1,
    *,
    version: Literal[1, 2] = 2,
    training: bool = True,
    jitter_eps: float = 0.1,
    threshold: Threshold = "phimoe",
    reduce_best: bool = False,
    given: Tensor | None = None,
    noise: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""SparseMixer: which k experts run, and the weights of their outputs, with a gradient.

    A sparse mixture of experts has the output $\sum_j w_j\, E_{D_j}(x)$ with experts $D_j$ and
    weights $w_j$ from here. In training the first expert is drawn from the probabilities
    $p = \mathrm{softmax}(l)$ of the experts that are not too far behind the best one, a (see
    ``threshold``), and

    $$w = m\, p_D , \qquad \frac{\partial w}{\partial l} := c\, p_D\, (e_D - p) ,$$

    where m is 1 if $D = a$. Otherwise, by chance, it is 1 or less:

    - version 1: m is 1 or 1/2, with 1/2 each, and c = 2;
    - version 2 (GRIN): m is 1 with 1/4 and 1/3 with 3/4, and c = 1.

    The further experts are drawn in the same way, each after those before it were taken out. In
    evaluation each is the best one that is left, and w is its probability, m = c = 1.

    Symbols: $l$ ``logits``, $e_D$ the one-hot of D.

    Properties: with $h_i(w)$ the loss if expert i runs with weight w, and $J_i = \partial p_i /
    \partial l$, the gradient of $\sum_i p_i\, h_i(p_i)$ has two parts: that of *routing*,
    $\sum_i h_i(p_i) J_i$, because other experts are drawn, and that of *gating*,
    $\sum_i p_i h_i'(p_i) J_i$, because their weights change. The expectation of version 1 is

    $$2 p_a h_a'(p_a) J_a + \sum_{i \ne a} p_i \big[h_i'(p_i) + h_i'(p_i / 2)\big] J_i ,$$

    an estimate of both parts (midpoint rule). That of version 2 is

    $$p_a h_a'(p_a) J_a
    + \sum_{i \ne a} p_i \big[\tfrac14 h_i'(p_i) + \tfrac34 h_i'(p_i / 3)\big] J_i ,$$

    an estimate of routing alone (Heun's third-order rule). Both are biased. Most of the bias is
    that of the best expert, whose m is 1 (Euler's rule); with ``reduce_best`` the sums hold for
    all i. That a draw changes what is left for the draws after it has no gradient.

    Differs from the released code: any k, in any number of leading axes; ``mask``,
    ``reduce_best`` and ``threshold="shift-invariant"``; the logits are not changed in place; 1/3 is
    1/3, not 0.3333; the learned scale of version 1 is left to the caller. ``phimoe`` of
    transformers, version 2, always takes two experts.

    Args:
        logits: Scores of the experts, (..., n), floating point. -inf excludes an expert.
        k: How many experts run, at most n.
        version: 1 (Liu, Gao and Chen 2023) or 2 (GRIN, Liu et al. 2024).
        training: True draws, False takes the best.
        jitter_eps: How far behind the best an expert may be to be drawn; ``math.inf`` allows all.
        threshold: What is too far, with M the largest logit that is left: ``"phimoe"`` leaves j out
            if $(M - l_j) / \max(|l_j|, M) > 2\,$ ``jitter_eps``, as all released code does, which
            changes if a number is added to all logits; ``"shift-invariant"`` if
            $M - l_j > 2\,$ ``jitter_eps``.
        reduce_best: Whether m is drawn for the best expert too, as for the others. The bias is then
            much smaller, but the weight of the best expert is mostly smaller in training than in
            evaluation.
        given: Experts that are already drawn, int64 of shape (..., k).
        noise: Uniform numbers in [0, 1) of shape (..., k), which decide m: it is 1 if they are at
            least 1/2 (version 1) or 3/4 (version 2). Drawn if they are not given.
        mask: Boolean, broadcasts to the logits; True where an expert is allowed.
        generator: Source of randomness on the device of the logits; the global one by default.

    Returns:
        The weights, (..., k) in the dtype of the logits, with their gradient, and the experts,
        int64 of the same shape, in the order in which they were drawn.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there are fewer than k experts, in one row also by mask and -inf, or if an
            argument has no such value.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.tensor([[2.0, 1.9, 0.0]], requires_grad=True)
        >>> weights, experts = discretegrad.sparse_mixer(logits, k=2, training=False)
        >>> experts
        tensor([[0, 1]])
        >>> weights, experts = discretegrad.sparse_mixer(
        ...     logits, given=torch.tensor([[1]]), noise=torch.zeros(1, 1)
        ... )
        >>> weights.detach()  # a third of the probability 0.475
        tensor([[0.1583]])
        >>> weights.sum().backward()
        >>> logits.grad
        tensor([[-0.2494,  0.2494,  0.0000]])

    References:
        [Liu, Gao and Chen 2023](https://arxiv.org/abs/2310.00811),
        [Liu et al. 2024](https://arxiv.org/abs/2409.12136).
    """
    call = Call(_NAME, logits, mask=mask, generator=generator)
    _CATEGORICAL.check(call)
    _check_options(call, k, version, jitter_eps, threshold)
    check_flag(_NAME, "training", training)
    check_flag(_NAME, "reduce_best", reduce_best)
    _check_draws(logits, k, training, given, noise)

    left = logits if mask is None else logits.masked_fill(~mask, -math.inf)
    left = constant(left, compute_dtype(logits.dtype))
    drawn, best, points = [], [], []
    for place in range(k):
        natural = without_those_behind(left, jitter_eps, threshold)
        variables = Variables(natural, softmax(natural), 1.0, -1)
        _check_left(variables, place, k)
        best.append(left.argmax(-1, keepdim=True))
        if not training:
            expert = best[-1]
        elif given is None:
            expert = _CATEGORICAL.draw(call, variables)
        else:
            expert = given[..., place : place + 1].long()
            _check_given(natural, expert)
        drawn.append(expert)
        points.append(variables.point)
        is_drawn = torch.arange(left.shape[-1], device=left.device) == expert
        left = left.masked_fill(is_drawn, -math.inf)

    experts, point = torch.cat(drawn, -1), torch.stack(points, -2)
    weights, factor = point.gather(-1, experts.unsqueeze(-1)).squeeze(-1), 1.0
    if training:
        rule = _VERSIONS[version]
        if noise is None:
            noise = uniform(experts.shape, point.dtype, call)
        whole = noise >= 1 - rule.whole
        if not reduce_best:
            whole = whole | (experts == torch.cat(best, -1))
        weights = torch.where(whole, weights, weights * rule.reduced)
        factor = rule.factor
    gradient = partial(_gradient, factor=factor)
    return attach_sample(_in_dtype, gradient, logits, weights, experts, point), experts


def _in_dtype(logits: Tensor, weights: Tensor) -> Tensor:
    return weights.to(logits.dtype, copy=True)


def _gradient(
    g: Tensor, weights: Tensor, experts: Tensor, point: Tensor, *, factor: float
) -> Tensor:
    """The gradient for the logits (..., n), given that for the weights (..., k)."""
    drawn = experts.unsqueeze(-1)
    probability = point.gather(-1, drawn)
    score = _CATEGORICAL.residual(drawn, point)
    return ((factor * g.unsqueeze(-1)) * probability * score).sum(-2)


def without_those_behind(left: Tensor, jitter_eps: float, threshold: Threshold) -> Tensor:
    """The logits, -inf for experts that are too far behind the best of those that are left.

    Whoever draws experts by themselves, to give them to ``sparse_mixer``, draws from these.
    """
    best = left.amax(-1, keepdim=True)
    behind = best - left
    if threshold == "phimoe":
        # 0/0, for the best at 0, and inf/inf, for an excluded one, are not larger than anything
        behind = behind / torch.maximum(left.abs(), best)
    return left.masked_fill(behind > 2 * jitter_eps, -math.inf)


def _check_options(
    call: Call, k: int, version: object, jitter_eps: object, threshold: object
) -> None:
    """What is a number or a word, and the generator."""
    check_count(_NAME, "k", k)
    experts = call.logits.shape[-1]
    if k > experts:
        raise ValueError(
            f"{_NAME}: expected k of at most {experts}, the number of experts on the last axis of "
            f"logits of shape {tuple(call.logits.shape)}, got {k}"
        )
    if isinstance(version, bool) or not isinstance(version, int) or version not in _VERSIONS:
        raise ValueError(f"{_NAME}: expected version 1 or 2, got {version!r}")
    if isinstance(jitter_eps, bool) or not isinstance(jitter_eps, (int, float)):
        raise TypeError(
            f"{_NAME}: expected jitter_eps to be a number, got {type(jitter_eps).__name__}"
        )
    if not jitter_eps >= 0:
        raise ValueError(
            f"{_NAME}: expected jitter_eps of at least 0, got {jitter_eps}. Use math.inf to draw "
            "from all experts."
        )
    if not is_word(threshold, "phimoe", "shift-invariant"):
        raise ValueError(
            f'{_NAME}: expected threshold to be "phimoe" or "shift-invariant", got {threshold!r}'
        )
    check_generator(_NAME, call.generator, call.logits)


def _check_draws(
    logits: Tensor, k: int, training: bool, given: Tensor | None, noise: Tensor | None
) -> None:
    """Types, shapes and ranges of draws that a user has made."""
    if not training and (given is not None or noise is not None):
        raise ValueError(
            f"{_NAME}: expected neither given nor noise with training=False, got one: evaluation "
            "takes the best experts. Pass training=True to repeat a draw."
        )
    shape = (*logits.shape[:-1], k)
    if noise is not None:
        check_noise(_NAME, noise, shape, "uniform")
        if noise.device != logits.device:
            raise ValueError(
                f"{_NAME}: expected noise on the logits' device {logits.device}, got {noise.device}"
            )
        if values_are_checked(noise) and not ((noise >= 0) & (noise < 1)).all():
            raise ValueError(
                f"{_NAME}: expected noise in [0, 1), got something else. Draw it with torch.rand."
            )
    if given is None:
        return
    check_index_type(_NAME, given, "experts")
    if given.shape != shape or given.device != logits.device:
        raise ValueError(
            f"{_NAME}: expected given of shape {shape} (k experts per row of the logits) on "
            f"{logits.device}, got {tuple(given.shape)} on {given.device}"
        )
    if values_are_checked(given) and not ((given >= 0) & (given < logits.shape[-1])).all():
        raise ValueError(
            f"{_NAME}: expected given experts in [0, {logits.shape[-1] - 1}], got values from "
            f"{int(given.min())} to {int(given.max())}"
        )


def _check_left(variables: Variables, place: int, k: int) -> None:
    """Every row has an expert that can be drawn."""
    if place == 0:
        _CATEGORICAL.check_values(_NAME, variables)
    elif values_are_checked(variables.point):
        without = variables.point.select(-1, 0).flatten().isnan().nonzero()
        if len(without) > 0:
            raise ValueError(
                f"{_NAME}: expected at least k = {k} allowed experts in every row, got {place} in "
                f"row {int(without[0])}: the mask and -inf logits exclude the others. Drop such "
                "rows, or allow more experts."
            )


def _check_given(natural: Tensor, expert: Tensor) -> None:
    """The expert of every row could have been drawn."""
    if values_are_checked(expert) and (natural.gather(-1, expert) == -math.inf).any():
        raise ValueError(
            f"{_NAME}: expected given experts that can be drawn, got one that the mask, a -inf "
            "logit, the threshold or an earlier expert of its row excludes"
        )
