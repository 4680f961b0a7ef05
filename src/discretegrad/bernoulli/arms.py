"""ARMS: any number of mutually antithetic Bernoulli samples, from a Dirichlet copula.

Dimitriev and Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables",
ICML 2021. arXiv:2105.14141
"""

import torch
from torch import Tensor

from .._checks import check_num_samples, check_only_family
from .._draw import draw_uniform
from .._score import (
    Task,
    evaluate,
    finish,
    open_task,
    others_mean,
    score,
    signal,
    spread,
    wants_gradient,
)
from .._types import Family, Objective


def arms(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 2,
    family: Family = "bernoulli",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over mutually antithetic samples, with the ARMS gradient for the logits.

    For each variable let $a = \sigma(-|l|)$ be the probability of its less likely value, and
    $d \in R^K$ uniform on the simplex. Sample k takes the less likely value where
    $(1 - d_k)^{K-1} < a$. Any two samples take it together with probability
    $a_2 = \max(2 a^{1/(K-1)} - 1, 0)^{K-1}$, less than the $a^2$ of independent ones, and

    $$\hat\nabla = \frac{a (1 - a)}{a - a_2}\; \tfrac1K \sum_k
    \Big(f(b_k) - \tfrac1{K-1}\sum_{j \ne k} f(b_j)\Big)(b_k - p) .$$

    Symbols: $l$ ``logits``, $p = \sigma(l)$, $K$ ``num_samples``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample. With two samples it is ``disarm``.

    Differs from the paper: the weight is exact; the released code adds 1e-6 to its denominator.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype.
        f: As for ``discretegrad.reinforce``.
        num_samples: Samples to average over, at least 2.
        family: ``"bernoulli"``; for categories see ``discretegrad.leave_one_out``.
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        vectorize: As for ``discretegrad.reinforce``.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: As ``discretegrad.reinforce``.
        ValueError: As ``discretegrad.reinforce``, and if there are fewer than two samples.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: b.sum(-1) == 2
        >>> discretegrad.bernoulli.arms(logits, f, num_samples=3).backward()
        >>> logits.grad.shape
        torch.Size([3])
    """
    name = "arms"
    check_only_family(name, family, "bernoulli", "disarm_tree, leave_one_out or reinforce")
    task = open_task(name, logits, f, family, mask, vectorize)
    check_num_samples(name, num_samples, 2, "reinforce, or a sampler such as bernoulli.reinmax")
    shape = (num_samples, *task.fixed.shape)
    return _at(task, draw_uniform(name, shape, task.logits, generator))


def _at(task: Task, uniform: Tensor) -> Tensor:
    count = uniform.shape[0]
    unlikely = torch.minimum(task.mean, task.rest)
    # minus standard exponential noise, of which d_k is the share of sample k
    noise = torch.log1p(-uniform)
    # (1 - d_k)^(K-1) < a, solved for the noise, so that roots are taken of the smaller tensor
    root = unlikely.to(noise.dtype) ** (1 / (count - 1))
    flipped = noise < (1 - root) * noise.sum(0)
    samples = (flipped ^ (task.fixed > 0)).to(task.logits.dtype)
    losses = evaluate(task, samples)
    if not wants_gradient(task):
        return losses.mean(0)
    f_values = signal(task, losses)
    advantage = spread(f_values - others_mean(f_values), samples)
    gradient = _weight(unlikely, root, count) * (advantage * score(task, samples)).mean(0)
    return finish(task, losses, gradient)


def _weight(unlikely: Tensor, root: Tensor, count: int) -> Tensor:
    """``a (1 - a) / (a - a_2)``; divided by a above and below, so that a may be zero."""
    share_of_both = (2 - 1 / root).clamp_min(0) ** (count - 1)
    return (1 - unlikely) / (1 - share_of_both).to(unlikely.dtype)
