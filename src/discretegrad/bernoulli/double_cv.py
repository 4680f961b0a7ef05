"""Double control variates: leave-one-out, and a linear expansion of f at the other samples.

Titsias and Shi, "Double Control Variates for Gradient Estimation in Discrete Latent Variable
Models", AISTATS 2022. arXiv:2111.05300
"""

from typing import Any

import torch
from torch import Tensor, nn

from .._checks import check_coefficient, check_num_samples, check_only_family
from .._score import (
    Task,
    covariance_product,
    evaluate,
    evaluate_with_slope,
    finish,
    given_samples,
    joint_sum,
    learned_tensors,
    open_task,
    others_mean,
    score,
    signal,
    spread,
    wants_gradient,
)
from .._types import Family, Objective


def double_cv(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 2,
    family: Family = "bernoulli",
    alpha: float | Tensor = -1.0,
    samples: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over samples, with the gradient of double control variates for the logits.

    With samples $b_k$ of mean $p$, slopes $g_k = \partial f / \partial b$ at $b_k$, bars for means
    over samples and $-k$ for means without sample k, let
    $c_k = \alpha\, \bar g_{-k}^\top (b_k - p)$; then

    $$\hat\nabla = \tfrac1K \sum_k \big(f(b_k) + c_k - (\overline{f + c})_{-k}\big)(b_k - p)
    - \alpha\, \bar g \odot p (1 - p) .$$

    Symbols: $K$ ``num_samples``, $\alpha$ ``alpha``.

    Properties: unbiased for every differentiable f and every alpha. One evaluation of f and of its
    gradient per sample. At ``alpha=0`` it is ``leave_one_out``; at the default of -1 the variance
    is zero for a linear f.

    Differs from the paper: alpha starts at -1, the best value for a linear f, not at 0.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype.
        f: As for ``discretegrad.reinforce``, and differentiable.
        num_samples: Samples to average over, at least 2.
        family: ``"bernoulli"``; for categories see ``discretegrad.muprop``.
        alpha: Weight of the linear control variates; a tensor that requires a gradient learns, see
            ``DoubleCV``.
        samples: As for ``discretegrad.reinforce``.
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        vectorize: As for ``discretegrad.reinforce``.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: As ``discretegrad.reinforce``.
        ValueError: As ``discretegrad.reinforce``, and if there are fewer than two samples or f is
            not differentiable.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: b @ torch.tensor([1.0, 2.0, 4.0])
        >>> discretegrad.bernoulli.double_cv(logits, f).backward()
        >>> logits.grad  # exact, because f is linear
        tensor([0.2500, 0.5000, 1.0000])
    """
    name = "double_cv"
    check_only_family(name, family, "bernoulli", "muprop, leave_one_out or rebar")
    task = open_task(name, logits, f, family, mask, vectorize)
    check_num_samples(name, num_samples, 2, "muprop or rebar")
    check_coefficient(name, "alpha", alpha)
    return _at(task, given_samples(task, samples, num_samples, generator), alpha)


def _at(task: Task, samples: Tensor, alpha: float | Tensor) -> Tensor:
    learned = learned_tensors(alpha)
    if not wants_gradient(task, learned):
        return evaluate(task, samples).mean(0)
    losses, slopes = evaluate_with_slope(task, samples)
    slopes = slopes.to(task.fixed.dtype)
    centred = score(task, samples)
    control = alpha * joint_sum(others_mean(slopes) * centred, losses)
    total = signal(task, losses) + control
    gradient = (spread(total - others_mean(total), samples) * centred).mean(0)
    gradient = gradient - alpha * covariance_product(task, slopes.mean(0))
    return finish(task, losses, gradient, learned)


class DoubleCV(nn.Module):
    """Double control variates with a learned weight: an estimator object.

    ``backward`` of its result gives ``alpha`` the gradient of the mean square of the estimate,
    which is its variance up to a constant; give it to any optimiser.

    Args:
        alpha: Where the weight starts.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.bernoulli.DoubleCV(alpha=0.0)
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=0.01)
        >>> logits = torch.zeros(100, 3, requires_grad=True)
        >>> f = lambda b: b @ torch.tensor([1.0, 2.0, 4.0])
        >>> loss = discretegrad.expectation(
        ...     logits, f, estimator, num_samples=2, family="bernoulli"
        ... )
        >>> loss.mean().backward()
        >>> learning.step()
        >>> bool(estimator.alpha < 0)  # on its way to -1, the best for a linear f
        True
    """

    def __init__(self, alpha: float = -1.0) -> None:
        super().__init__()
        check_coefficient("DoubleCV", "alpha", alpha)
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As ``bernoulli.double_cv``, which describes the arguments."""
        return double_cv(logits, f, alpha=self.alpha, **arguments)
