"""DisARM: antithetic pairs of Bernoulli samples.

Dong et al., "DisARM: An Antithetic Gradient Estimator for Binary Latent Variables", NeurIPS 2020.
arXiv:2006.10680. The same estimator: Yin et al. (U2G) 2020.
"""

import torch
from torch import Tensor

from .._checks import check_only_family, check_pairs
from .._draw import draw_uniform
from .._score import (
    Task,
    evaluate,
    finish,
    less_likely,
    open_task,
    signal,
    spread,
    wants_gradient,
)
from .._types import Family, Objective


def disarm(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 2,
    family: Family = "bernoulli",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over antithetic pairs, with the DisARM gradient for the logits.

    One uniform number $u$ per variable gives two samples that differ as often as they can,
    $b = 1[u < p]$ and $\tilde b = 1[1 - u < p]$ with $p = \sigma(l)$, and

    $$\hat\nabla = \tfrac12 \big(f(b) - f(\tilde b)\big)\,(b - \tilde b)\,\sigma(|l|) ,$$

    averaged over the pairs.

    Symbols: $l$ ``logits``; there are ``num_samples / 2`` pairs.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample. For one variable, or where every p is 1/2, its variance is at most that of
    ``leave_one_out`` with two samples; for several uneven bits it is usually less, not always.

    Differs from the paper: nothing.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype.
        f: As for ``discretegrad.reinforce``.
        num_samples: Samples to average over, an even number.
        family: ``"bernoulli"``; for categories see ``discretegrad.disarm_tree``.
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        vectorize: As for ``discretegrad.reinforce``.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: As ``discretegrad.reinforce``.
        ValueError: As ``discretegrad.reinforce``, and if ``num_samples`` is odd.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: b @ torch.tensor([1.0, 2.0, 4.0])
        >>> loss = discretegrad.bernoulli.disarm(logits, f)
        >>> loss.item()  # at p = 1/2 the two samples are opposites
        3.5
        >>> loss.backward()
    """
    name = "disarm"
    check_only_family(name, family, "bernoulli", "disarm_tree, leave_one_out or reinforce")
    task = open_task(name, logits, f, family, mask, vectorize)
    check_pairs(name, num_samples, "arms or leave_one_out")
    shape = (num_samples // 2, *task.fixed.shape)
    return _at(task, draw_uniform(name, shape, task.logits, generator))


def _at(task: Task, uniform: Tensor) -> Tensor:
    first, second = less_likely(task, uniform), less_likely(task, 1 - uniform)
    losses = evaluate(task, torch.cat([first, second]))
    if not wants_gradient(task):
        return losses.mean(0)
    f_first, f_second = signal(task, losses).chunk(2)
    difference = (first - second) * torch.maximum(task.mean, task.rest)
    gradient = (spread((f_first - f_second) / 2, difference) * difference).mean(0)
    return finish(task, losses, gradient)
