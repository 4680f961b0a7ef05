"""One front for all estimators: the mean of f over samples, with the gradient of your choice."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._checks import (
    check_category_axis,
    check_differentiable,
    check_estimator,
    check_family,
    check_flag,
    check_has_family,
    check_logits,
    check_mask,
    check_num_samples,
    check_objective,
    check_options,
    check_tau,
)
from ._modes import transforming
from ._registry import ESTIMATORS, Estimator, get
from ._score import evaluate_each
from ._types import Family, Objective

_SAMPLER_OPTIONS = ("tau", "mask", "backend", "vectorize")
_SCORE_OPTIONS = ("mask", "vectorize")


def expectation(
    logits: Tensor,
    f: Objective,
    estimator: str | Estimator | Callable[..., Tensor] = "reinmax",
    *,
    num_samples: int = 1,
    family: Family = "categorical",
    generator: torch.Generator | None = None,
    **options: Any,
) -> Tensor:
    r"""Monte Carlo mean of f, differentiable by any estimator of the library.

    The value is $\frac1K \sum_k f(z_k)$ for samples of ``softmax(logits)`` or ``sigmoid(logits)``.
    In backward the logits get the estimator's gradient of $E[f(z)]$, and everything else that f
    depends on, such as the weights of a decoder, its ordinary gradient. Both come from the same
    evaluations of f.

    Args:
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype.
        f: Maps a sample of the shape of ``logits`` to one loss per batch element, that is, to a
            tensor whose shape is a prefix of the shape of ``logits``; the axes it has consumed
            form one joint sample. It is called once per sample. It may be random. For
            score-function estimators it may return integers and need not be differentiable.
        estimator: A name in ``discretegrad.ESTIMATORS``, a row of that table, or an estimator
            object: a module such as ``Relax``, or any callable with the signature of
            ``reinforce``.
        num_samples: Samples to average over, the K of estimators that compare samples.
        family: ``"categorical"`` or ``"bernoulli"``.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        **options: What the estimator takes besides: ``mask``; ``tau`` for those with a
            temperature; ``vectorize=True`` to evaluate f on all samples in one call under
            ``torch.vmap``; and the options in its row of the table.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: If an argument has the wrong type or dtype, or f does not return a tensor.
        ValueError: If the estimator does not exist, is not defined for the family, needs more
            samples or a differentiable f, or does not have an option; the message names those
            that do. If shapes do not fit, a logit is NaN, or no category is allowed.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(100, 5, 3, requires_grad=True)  # batch, variables, categories
        >>> weight = torch.ones(3, requires_grad=True)
        >>> f = lambda z: (z @ weight - 2).square().sum(-1)  # (100, 5, 3) -> (100,)
        >>> loss = discretegrad.expectation(logits, f, "leave_one_out", num_samples=4)
        >>> loss.shape
        torch.Size([100])
        >>> loss.mean().backward()
        >>> logits.grad.shape, weight.grad.shape
        (torch.Size([100, 5, 3]), torch.Size([3]))
    """
    name = "expectation"
    check_family(name, family)
    check_objective(name, f)
    check_logits(name, logits)
    row = get(estimator) if isinstance(estimator, str) else estimator
    if not isinstance(row, Estimator):
        check_estimator(name, row)
        return row(
            logits, f, num_samples=num_samples, family=family, generator=generator, **options
        )
    check_has_family(name, row.name, family, row.families, _names(family))
    function = row.functions[family]
    if row.kind == "score":
        check_options(row.name, options, (*row.options, *_SCORE_OPTIONS))
        return function(
            logits, f, num_samples=num_samples, family=family, generator=generator, **options
        )
    check_options(row.name, options, (*row.options, *_SAMPLER_OPTIONS))
    return _sampled(row.name, function, logits, f, num_samples, family, generator, **options)


def _sampled(
    name: str,
    sampler: Callable[..., Tensor],
    logits: Tensor,
    f: Objective,
    num_samples: int,
    family: Family,
    generator: torch.Generator | None,
    *,
    vectorize: bool = False,
    **options: Any,
) -> Tensor:
    check_num_samples(name, num_samples, 1, "")
    check_flag(name, "vectorize", vectorize)
    if family == "categorical":
        check_category_axis(name, logits)
    # here, where messages can show the shape that the user knows
    check_mask(name, options.get("mask"), logits)
    check_tau(
        name,
        options.get("tau", 1.0),
        logits,
        -1 if family == "categorical" else None,
        learnable=not options.get("hard", True),
    )
    copies = logits.expand(num_samples, *logits.shape)
    samples = sampler(copies, generator=generator, **options)
    losses = evaluate_each(name, f, samples, family, vectorize)
    if samples.requires_grad and not losses.requires_grad and not transforming():
        check_differentiable(name, None)
    return (losses if losses.is_floating_point() else losses.to(logits.dtype)).mean(0)


def _names(family: Family) -> list[str]:
    return [row.name for row in ESTIMATORS.values() if family in row.families]
