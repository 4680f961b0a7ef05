"""MuProp: a linear expansion of f at the mean of the sample as control variate.

Gu et al., "MuProp: Unbiased Backpropagation for Stochastic Neural Networks", ICLR 2016.
arXiv:1511.05176
"""

from typing import Any

import torch
from torch import Tensor, nn

from .._checks import check_coefficient, check_num_samples
from .._score import (
    Task,
    covariance_product,
    evaluate,
    finish,
    given_samples,
    joint_sum,
    learned_tensors,
    open_task,
    score,
    signal,
    spread,
    value_and_slope,
    wants_gradient,
)
from .._types import Family, Objective


def muprop(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 1,
    family: Family = "categorical",
    offset: float | Tensor = 1.0,
    slope: float | Tensor = 1.0,
    samples: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over samples, with the MuProp gradient for the logits.

    With samples $z_k$ of mean $p$ and covariance $C$ (which is the Jacobian of $p$), and
    $g = \partial f / \partial z$ at $z = p$,

    $$\hat\nabla = \tfrac1K \sum_k \big(f(z_k) - s_0 f(p) - s_1\, g^\top (z_k - p)\big)(z_k - p)
    + s_1\, C g .$$

    Unbiased because $E[g^\top (z - p)\,(z - p)] = C g$.

    Symbols: $K$ ``num_samples``, $s_0$ ``offset``, $s_1$ ``slope``.

    Properties: unbiased for every f, but f must accept the mean, which is not discrete, and have a
    gradient there. One evaluation of f per sample, one more at the mean, and one gradient there.
    For a linear f and $s_0 = s_1 = 1$ the variance is zero.

    Differs from the paper: the coefficients, which the paper fixes to 1, may be learned, as in the
    comparison of Tucker et al. 2017. The mean is that of all variables together; a network with
    several stochastic layers calls this once per layer.

    Args:
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype.
        f: As for ``reinforce``, and defined and differentiable at the mean of the sample.
        num_samples: Samples to average over.
        family: ``"categorical"`` or ``"bernoulli"``.
        offset: Weight of f at the mean; a tensor that requires a gradient learns, see ``MuProp``.
        slope: Weight of the linear term; likewise.
        samples: As for ``reinforce``.
        mask: As for ``reinforce``.
        generator: As for ``reinforce``.
        vectorize: As for ``reinforce``.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: As ``reinforce``.
        ValueError: As ``reinforce``, and if f is not differentiable.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> discretegrad.muprop(logits, lambda z: z @ torch.tensor([1.0, 2.0, 4.0])).backward()
        >>> logits.grad  # exact, because f is linear
        tensor([-0.4444, -0.1111,  0.5556])
    """
    task = open_task("muprop", logits, f, family, mask, vectorize)
    check_num_samples(task.name, num_samples, 1, "")
    check_coefficient(task.name, "offset", offset)
    check_coefficient(task.name, "slope", slope)
    return _at(task, given_samples(task, samples, num_samples, generator), offset, slope)


def _at(task: Task, samples: Tensor, offset: float | Tensor, slope: float | Tensor) -> Tensor:
    losses = evaluate(task, samples)
    learned = learned_tensors(offset, slope)
    if not wants_gradient(task, learned):
        return losses.mean(0)

    def at_mean(points: Tensor) -> Tensor:
        return evaluate(task, points.to(task.logits.dtype))

    value, g = value_and_slope(task, at_mean, task.mean.unsqueeze(0), learn=False)
    centred = score(task, samples)
    linear = joint_sum(g * centred, losses)
    advantage = signal(task, losses) - offset * signal(task, value) - slope * linear
    gradient = (spread(advantage, samples) * centred).mean(0)
    gradient = gradient + slope * covariance_product(task, g.squeeze(0))
    return finish(task, losses, gradient, learned)


class MuProp(nn.Module):
    """MuProp with learned coefficients: an estimator object.

    ``backward`` of its result gives the coefficients the gradient of the mean square of the
    estimate, which is its variance up to a constant; give them to any optimiser.

    Args:
        offset: Where the weight of f at the mean starts.
        slope: Where the weight of the linear term starts.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.MuProp()
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: z @ torch.tensor([1.0, 2.0, 4.0])
        >>> discretegrad.expectation(logits, f, estimator).backward()
        >>> logits.grad
        tensor([-0.4444, -0.1111,  0.5556])
    """

    def __init__(self, offset: float = 1.0, slope: float = 1.0) -> None:
        super().__init__()
        check_coefficient("MuProp", "offset", offset)
        check_coefficient("MuProp", "slope", slope)
        self.offset = nn.Parameter(torch.tensor(float(offset)))
        self.slope = nn.Parameter(torch.tensor(float(slope)))

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As ``muprop``, which describes the arguments."""
        return muprop(logits, f, offset=self.offset, slope=self.slope, **arguments)
