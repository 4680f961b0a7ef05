"""Many independent estimates of the gradient, a chunk at a time."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .._types import Objective
from ..expectation import expectation
from .entries import Entry
from .moments import Sums
from .problem import Problem

# so many units in the last place of the logits' dtype, relative to the gradient, are rounding
_ROUNDING = 16


def estimate(problem: Problem, entry: Entry, f: Objective, logits: Tensor) -> Tensor:
    """The values of one estimate, attached to the logits."""
    values = expectation(
        logits,
        f,
        entry.estimator,
        num_samples=entry.num_samples,
        family=problem.family,
        generator=problem.generator,
        **entry.options,
    )
    copies = logits.shape[: logits.ndim - problem.logits.ndim]
    _check_values(entry.label, values, copies + problem.batch_shape)
    return values


def collect(
    problem: Problem, entry: Entry, truth: Tensor, draws: int, advance: Callable[[int], None]
) -> Sums:
    """The sums over so many estimates that say everything about them."""
    private = entry.fresh(learn=False)
    rounding = _ROUNDING * torch.finfo(problem.logits.dtype).eps
    sums = Sums(truth, math.prod(problem.batch_shape), rounding, draws)
    chunk_size = problem.draws_at_once(entry.num_samples)
    for first in range(0, draws, chunk_size):
        size = min(chunk_size, draws - first)
        sums.add(_gradients(problem, private, size))
        advance(size)
    return sums


def _gradients(problem: Problem, entry: Entry, draws: int) -> Tensor:
    """Independent estimates of the gradient, (draws, numel): one for each copy of the logits."""
    copies = problem.logits.expand(draws, *problem.logits.shape).clone().requires_grad_()
    values = estimate(problem, entry, problem.f_of_many, copies)
    (gradients,) = torch.autograd.grad(values.sum(), copies)
    return gradients.detach().reshape(draws, -1)


def _check_values(label: str, values: object, shape: Sequence[int]) -> None:
    if not isinstance(values, Tensor) or tuple(values.shape) != tuple(shape):
        came = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{label}: expected the estimator to return one value per batch element, shape "
            f"{tuple(shape)}, got {came}"
        )
    if not values.requires_grad:
        raise ValueError(
            f"{label}: expected a result that depends on the logits through differentiable "
            "operations, got a constant. If f has no gradient, use an estimator that needs its "
            "values only."
        )
