"""The leave-one-out estimator (RLOO): every sample's baseline is the mean of the others.

Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", DeepRLStructPred 2019.
Salimans and Knowles 2014, arXiv:1401.1022; Mnih and Rezende (VIMCO) 2016, arXiv:1602.06725
"""

import torch
from torch import Tensor

from .._checks import check_num_samples
from .._score import (
    Task,
    evaluate,
    finish,
    given_samples,
    open_task,
    others_mean,
    score,
    signal,
    spread,
    wants_gradient,
)
from .._types import Family, Objective


def leave_one_out(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 2,
    family: Family = "categorical",
    samples: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over samples, with the leave-one-out gradient for the logits.

    With samples $z_k$ of mean $p$,

    $$\hat\nabla = \tfrac1K \sum_k \Big(f(z_k) - \tfrac1{K-1}\sum_{j \ne k} f(z_j)\Big)
    (z_k - p) .$$

    Symbols: $K$ ``num_samples``; $p$ is softmax or sigmoid of ``logits``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample; nothing to tune and nothing to learn.

    Differs from the paper: nothing.

    Args:
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype.
        f: As for ``reinforce``.
        num_samples: Samples to average over, at least 2.
        family: ``"categorical"`` or ``"bernoulli"``.
        samples: As for ``reinforce``.
        mask: As for ``reinforce``.
        generator: As for ``reinforce``.
        vectorize: As for ``reinforce``.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: As ``reinforce``.
        ValueError: As ``reinforce``, and if there are fewer than two samples.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> loss = discretegrad.leave_one_out(logits, lambda z: z.argmax(-1) == 2, num_samples=100)
        >>> loss.backward()
        >>> int(logits.grad.argmax())
        2
    """
    task = open_task("leave_one_out", logits, f, family, mask, vectorize)
    check_num_samples(task.name, num_samples, 2, "reinforce, or a sampler such as reinmax")
    return _at(task, given_samples(task, samples, num_samples, generator))


def _at(task: Task, samples: Tensor) -> Tensor:
    losses = evaluate(task, samples)
    if not wants_gradient(task):
        return losses.mean(0)
    values = signal(task, losses)
    advantage = values - others_mean(values)
    gradient = (spread(advantage, samples) * score(task, samples)).mean(0)
    return finish(task, losses, gradient)
