"""Exact expectations and gradients by enumerating every joint outcome: the oracle.

``f`` maps a sample to one loss per batch element. The axes of the logits that f has consumed hold
the latent variables of one joint sample; what is left is the batch.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from ._checks import (
    check_bits,
    check_count,
    check_dim,
    check_family,
    check_logits,
    check_loss,
    check_mask,
    check_rows,
)
from ._modes import transforming
from ._rows import compute_dtype
from ._types import Family, Objective

MAX_OUTCOMES = 2**16


def exact_expectation(
    logits: Tensor,
    f: Objective,
    *,
    family: Family = "categorical",
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
        family: ``"categorical"`` (categories last) or ``"bernoulli"``.
        mask: Boolean, broadcasts to ``logits``, True where a category (or the value 1) is allowed.
        max_outcomes: Most joint outcomes to enumerate, n to the power L; raise it if you can wait.
        chunk_size: Outcomes evaluated at once. Memory grows with it and not with the number of
            outcomes: with gradients, f runs again in backward. (Not in ``torch.func`` transforms.)
        vectorize: Evaluate a chunk with ``torch.vmap``. Set it to False for an f that vmap cannot
            trace (``.item()``, data-dependent branches): f then runs once per outcome.

    Returns:
        The expectation, of the batch shape.

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
    problem = _problem("exact_expectation", logits, f, family, mask, max_outcomes, chunk_size)
    total = problem.logits.new_zeros(problem.batch_shape)
    for first, last in _chunks(problem, chunk_size):
        # torch.func cannot differentiate through a checkpoint
        if torch.is_grad_enabled() and not transforming():
            part = checkpoint(
                _weighted_sum, problem, first, last, f, vectorize, use_reentrant=False
            )
        else:
            part = _weighted_sum(problem, first, last, f, vectorize)
        total = total + part
    return total.to(logits.dtype)


def exact_gradient(
    logits: Tensor,
    f: Objective,
    *,
    family: Family = "categorical",
    mask: Tensor | None = None,
    max_outcomes: int = MAX_OUTCOMES,
    chunk_size: int = 256,
    vectorize: bool = True,
) -> Tensor:
    r"""The gradient of $E[f(z)]$ with respect to ``logits``, summed over all joint outcomes.

    Computes $\sum_z P(z) f(z) \nabla \log P(z)$, so f need not be differentiable. f is called
    without gradients.

    Args:
        logits: As for ``exact_expectation``.
        f: As for ``exact_expectation``.
        family: As for ``exact_expectation``.
        mask: As for ``exact_expectation``.
        max_outcomes: As for ``exact_expectation``.
        chunk_size: As for ``exact_expectation``.
        vectorize: As for ``exact_expectation``.

    Returns:
        A constant tensor of the shape of ``logits``: for every batch element the gradient of its
        own expectation.

    Raises:
        TypeError: As ``exact_expectation``.
        ValueError: As ``exact_expectation``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3)
        >>> discretegrad.exact_gradient(logits, lambda z: z @ torch.tensor([1.0, 2.0, 4.0]))
        tensor([-0.4444, -0.1111,  0.5556])
    """
    problem = _problem("exact_gradient", logits, f, family, mask, max_outcomes, chunk_size)
    with torch.no_grad():
        if family == "categorical":
            mean = problem.logits.softmax(-1)
        else:
            mean = torch.sigmoid(problem.logits)
        gradient = torch.zeros_like(problem.logits)
        for first, last in _chunks(problem, chunk_size):
            outcomes = _outcomes(problem, first, last)
            weighted = _weighted_values(problem, outcomes, f, vectorize)
            lead = weighted.shape + (1,) * (problem.logits.ndim - weighted.ndim + 1)
            samples = outcomes.reshape(_sample_shape(problem, outcomes))
            gradient += (weighted.reshape(lead) * (samples - mean)).sum(0)
    return gradient.to(logits.dtype)


class _Problem(NamedTuple):
    logits: Tensor
    """Excluded ones at -inf, float32 or float64, attached to the graph."""
    family: Family
    dtype: torch.dtype
    """Of the user's logits, and so of the samples that f gets."""
    states: int
    """Categories of a variable; 2 for a bit."""
    batch_shape: torch.Size
    latent_shape: torch.Size


def _problem(
    name: str,
    logits: Tensor,
    f: Objective,
    family: Family,
    mask: Tensor | None,
    max_outcomes: int,
    chunk_size: int,
) -> _Problem:
    """Check the arguments and find, from one call of f, which axes are latent."""
    check_family(name, family)
    check_logits(name, logits)
    if family == "categorical":
        check_dim(name, logits, -1)
    check_mask(name, mask, logits)
    check_count(name, "max_outcomes", max_outcomes)
    check_count(name, "chunk_size", chunk_size)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    if family == "categorical":
        check_rows(name, logits, logits.detach().to(compute_dtype(logits.dtype)).softmax(-1))
    else:
        check_bits(name, logits)
    with torch.no_grad():
        likeliest = (
            torch.arange(logits.shape[-1], device=logits.device) == logits.argmax(-1, keepdim=True)
            if family == "categorical"
            else logits > 0
        )
        value = f(likeliest.to(logits.dtype))
    variables = logits.shape[:-1] if family == "categorical" else logits.shape
    check_loss(name, value, variables)
    latent = variables[value.ndim :]
    states = logits.shape[-1] if family == "categorical" else 2
    if states ** min(math.prod(latent), 64) > max_outcomes:
        raise ValueError(
            f"{name}: expected at most max_outcomes={max_outcomes} joint outcomes, got {states} ** "
            f"{math.prod(latent)}. Raise max_outcomes, use fewer variables, or estimate instead."
        )
    wide = logits.to(compute_dtype(logits.dtype))
    return _Problem(wide, family, logits.dtype, states, value.shape, latent)


def _chunks(problem: _Problem, chunk_size: int) -> Iterator[tuple[int, int]]:
    """The numbers of all joint outcomes, in pieces."""
    count = problem.states ** math.prod(problem.latent_shape)
    for first in range(0, count, chunk_size):
        yield first, min(first + chunk_size, count)


def _outcomes(problem: _Problem, first: int, last: int) -> Tensor:
    """Joint outcomes by number: (chunk, *latent_shape, n) one-hot, or (chunk, *latent_shape)."""
    states, device = problem.states, problem.logits.device
    place = states ** torch.arange(math.prod(problem.latent_shape), device=device)
    number = torch.arange(first, last, device=device).unsqueeze(-1)
    digits = (number // place % states).reshape(last - first, *problem.latent_shape)
    if problem.family == "categorical":
        digits = torch.nn.functional.one_hot(digits, states)
    return digits.to(problem.dtype)


def _sample_shape(problem: _Problem, outcomes: Tensor) -> tuple[int, ...]:
    """The outcomes' shape with axes of size 1 for the batch."""
    return (outcomes.shape[0], *[1] * len(problem.batch_shape), *outcomes.shape[1:])


def _weighted_values(problem: _Problem, outcomes: Tensor, f: Objective, vectorize: bool) -> Tensor:
    """P(z) f(z) for each outcome: (chunk, *batch_shape)."""
    samples = outcomes.reshape(_sample_shape(problem, outcomes))
    samples = samples.expand(-1, *problem.logits.shape)
    if vectorize:
        values = torch.vmap(f, randomness="different")(samples)
    else:
        values = torch.stack([f(sample) for sample in samples])
    log_prob = _log_prob(problem, samples)
    # an impossible outcome counts nothing, even where f is not finite
    possible = log_prob > -math.inf
    log_prob = torch.where(possible, log_prob, 0)
    values = torch.where(possible, values.to(log_prob.dtype), 0)
    return torch.where(possible, log_prob.exp() * values, 0)


def _weighted_sum(
    problem: _Problem, first: int, last: int, f: Objective, vectorize: bool
) -> Tensor:
    # the outcomes are made in here, so that a checkpoint keeps their numbers and not them
    outcomes = _outcomes(problem, first, last)
    return _weighted_values(problem, outcomes, f, vectorize).sum(0)


def _log_prob(problem: _Problem, samples: Tensor) -> Tensor:
    if problem.family == "categorical":
        log_probs = problem.logits.log_softmax(-1)
        terms = torch.where(samples > 0, log_probs, 0).sum(-1)
    else:
        terms = logsigmoid(torch.where(samples > 0, problem.logits, -problem.logits))
    axes = tuple(range(-len(problem.latent_shape), 0))
    return terms.sum(axes) if axes else terms
