"""Exact expectations and gradients by enumerating every joint outcome: the oracle.

``f`` maps a sample to one loss per batch element. The axes of the logits that f has consumed hold
the latent variables of one joint sample; what is left is the batch.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ._checks import check_count, check_flag, check_objective
from ._math import compute_dtype
from ._modes import transforming
from ._score import evaluate_each, joint_sum, probe, spread
from ._types import Call, Objective
from .families import Family, FamilyLike, get_family

MAX_OUTCOMES = 2**16


def exact_expectation(
    logits: Tensor,
    f: Objective,
    *,
    family: FamilyLike = "categorical",
    mask: Tensor | None = None,
    max_outcomes: int = MAX_OUTCOMES,
    chunk_size: int = 256,
    vectorize: bool = True,
) -> Tensor:
    r"""$E[f(z)]$ for independent variables $z_i \sim \mathrm{softmax}(l_i)$, with exact gradients.

    Differentiable with respect to ``logits`` and to whatever f depends on, any number of times.

    Args:
        logits: (..., L, n) for L categorical variables with n categories, or (..., L) Bernoulli
            logits; any number of latent axes, found from the shape that f returns.
        f: Maps a sample of the shape of ``logits`` to one loss per batch element, that is, to a
            tensor whose shape is a prefix of the shape of ``logits``.
        family: ``"categorical"`` (categories last), ``"bernoulli"`` or ``Subset(k)`` (items last).
        mask: Boolean, broadcasts to ``logits``, True where a category (or the value 1) is allowed.
        max_outcomes: Most joint outcomes to enumerate, n to the power L; raise it if you can wait.
        chunk_size: Outcomes evaluated at once. Memory grows with it and not with the number of
            outcomes: with gradients, f runs again in backward. (Not in ``torch.func`` transforms.)
        vectorize: Evaluate a chunk with ``torch.vmap``. Set it to False for an f that vmap cannot
            trace (``.item()``, data-dependent branches): f then runs once per outcome.

    Returns:
        The expectation, of the batch shape, in the dtype of the logits or, if that is wider, of f.

    Raises:
        TypeError: If an argument has the wrong type or dtype, or f does not return a tensor.
        ValueError: If shapes do not fit or there are more than ``max_outcomes`` outcomes.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3, dtype=torch.float64)  # two variables, three categories
        >>> f = lambda z: (z[..., 0, :] * z[..., 1, :]).sum(-1)  # 1 if they agree
        >>> discretegrad.exact_expectation(logits, f)
        tensor(0.3333, dtype=torch.float64)
    """
    check_flag("exact_expectation", "vectorize", vectorize)
    problem = _pose("exact_expectation", logits, f, family, mask, max_outcomes)
    check_count("exact_expectation", "chunk_size", chunk_size)
    total = problem.logits.new_zeros(problem.batch_shape)
    for first, last in _chunks(problem, chunk_size):
        # torch.func cannot differentiate through a checkpoint
        if torch.is_grad_enabled() and not transforming():
            part = checkpoint(_weighted_sum, problem, first, last, vectorize, use_reentrant=False)
        else:
            part = _weighted_sum(problem, first, last, vectorize)
        total = total + part
    return (problem.level + total).to(problem.result_dtype)


def exact_gradient(
    logits: Tensor,
    f: Objective,
    *,
    family: FamilyLike = "categorical",
    mask: Tensor | None = None,
    max_outcomes: int = MAX_OUTCOMES,
    chunk_size: int = 256,
    vectorize: bool = True,
) -> Tensor:
    r"""The gradient of $E[f(z)]$ with respect to ``logits``, summed over all joint outcomes.

    Computes $\sum_z P(z) (f(z) - f(z^*)) \nabla \log P(z)$ with the likeliest outcome $z^*$, which
    changes nothing but rounding, so f need not be differentiable.

    Args:
        logits: As all arguments: those of ``exact_expectation``, which also has the errors.
        f: Called without gradients.
        family: The kind of variable.
        mask: What is allowed.
        max_outcomes: Most joint outcomes to enumerate.
        chunk_size: Outcomes evaluated at once.
        vectorize: Whether a chunk is evaluated with ``torch.vmap``.

    Returns:
        A constant tensor of the shape of ``logits``: for every batch element the gradient of its
        own expectation.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3)
        >>> discretegrad.exact_gradient(logits, lambda z: z @ torch.tensor([1.0, 2.0, 4.0]))
        tensor([-0.4444, -0.1111,  0.5556])
    """
    check_flag("exact_gradient", "vectorize", vectorize)
    problem = _pose("exact_gradient", logits, f, family, mask, max_outcomes)
    check_count("exact_gradient", "chunk_size", chunk_size)
    with torch.no_grad():
        gradient = torch.zeros_like(problem.logits)
        for first, last in _chunks(problem, chunk_size):
            drawn = _outcomes(problem, first, last)
            score = problem.family.residual(drawn, problem.point)
            weighted = _weighted_values(problem, drawn, vectorize)
            gradient += (spread(weighted, score) * score).sum(0)
    return gradient.to(logits.dtype)


class _Problem(NamedTuple):
    name: str
    """The function, for messages."""
    family: Family
    f: Objective
    logits: Tensor
    """Excluded ones at -inf, float32 or float64, attached to the graph."""
    point: Tensor
    """Where the family takes the mean of these logits."""
    dtype: torch.dtype
    """Of the user's logits, and so of the samples that f gets."""
    result_dtype: torch.dtype
    """Of the logits or of the values of f, whichever is wider."""
    batch_shape: torch.Size
    latent_shape: torch.Size
    """The variables of one joint sample."""
    level: Tensor
    """f at the likeliest outcome, of the batch shape; values of f are taken relative to it.

    The expectation then is this plus a sum over the unlikely outcomes, and nothing cancels.
    """


def _pose(
    name: str,
    logits: Tensor,
    f: Objective,
    family: FamilyLike,
    mask: Tensor | None,
    max_outcomes: int,
) -> _Problem:
    """Check the arguments and find, from one call of f, which axes are latent."""
    family = get_family(name, family)
    check_objective(name, f)
    check_count(name, "max_outcomes", max_outcomes)
    variables = family.prepare(Call(name, logits, mask=mask))
    family.check_values(name, variables)
    logits = variables.logits
    shape, value = family.variables_shape(logits), probe(name, f, family, logits)
    batch, latent = shape[: value.ndim], shape[value.ndim :]
    values, size = family.outcomes(logits), math.prod(latent)
    if values ** min(size, 64) > max_outcomes:
        # Python writes down no number of more than some thousand digits
        came = values if values < 10**18 else f"(about 10 ** {math.log10(values):.0f})"
        raise ValueError(
            f"{name}: expected at most max_outcomes={max_outcomes} joint outcomes, got {came} ** "
            f"{size}. Raise max_outcomes, use fewer variables, or estimate instead."
        )
    wide = logits.to(compute_dtype(logits.dtype))
    level = value.detach().to(torch.promote_types(wide.dtype, value.dtype))
    level = torch.where(level.isfinite(), level, 0)
    dtypes = logits.dtype, torch.promote_types(logits.dtype, value.dtype)
    return _Problem(name, family, f, wide, variables.point, *dtypes, batch, latent, level)


def _chunks(problem: _Problem, chunk_size: int) -> Iterator[tuple[int, int]]:
    """The numbers of all joint outcomes, in pieces."""
    count = problem.family.outcomes(problem.logits) ** math.prod(problem.latent_shape)
    for first in range(0, count, chunk_size):
        yield first, min(first + chunk_size, count)


def _outcomes(problem: _Problem, first: int, last: int) -> Tensor:
    """The draws of joint outcomes by number, with axes of size 1 for the batch."""
    values, device = problem.family.outcomes(problem.logits), problem.logits.device
    place = values ** torch.arange(math.prod(problem.latent_shape), device=device)
    number = torch.arange(first, last, device=device).unsqueeze(-1)
    batch = [1] * len(problem.batch_shape)
    digits = (number // place % values).reshape(last - first, *batch, *problem.latent_shape)
    return problem.family.outcome(problem.logits, digits)


def _weighted_values(problem: _Problem, drawn: Tensor, vectorize: bool) -> Tensor:
    """P(z) (f(z) - level) for each outcome: (chunk, *batch_shape)."""
    samples = problem.family.sample(problem.logits, drawn).to(problem.dtype)
    samples = samples.expand(-1, *problem.logits.shape)
    values = evaluate_each(problem.name, problem.f, samples, problem.family, vectorize)
    log_prob = joint_sum(problem.family.log_prob(problem.logits, samples), values)
    # an impossible outcome counts nothing, even where f is not finite
    possible = log_prob > -math.inf
    log_prob = torch.where(possible, log_prob, 0)
    # rounded after the subtraction: f may be wider than the logits, and differ by little
    relative = (values.to(problem.level.dtype) - problem.level).to(log_prob.dtype)
    return torch.where(possible, log_prob.exp() * relative, 0)


def _weighted_sum(problem: _Problem, first: int, last: int, vectorize: bool) -> Tensor:
    # the outcomes are made in here, so that a checkpoint keeps their numbers and not them
    return _weighted_values(problem, _outcomes(problem, first, last), vectorize).sum(0)
