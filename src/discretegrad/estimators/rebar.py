"""REBAR: f at a relaxed sample as control variate.

Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent variable
models", NeurIPS 2017. arXiv:1703.07370
"""

from typing import Any

import torch
from torch import Tensor, nn

from .._checks import check_coefficient, check_flag, check_num_samples, check_tau
from .._relax import draw_noise, estimate
from .._score import draw_samples, open_task
from .._types import Family, Objective, Temperature


def rebar(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 1,
    family: Family = "categorical",
    tau: Temperature = 0.5,
    scale: float | Tensor = 1.0,
    tied: bool = True,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over samples, with the REBAR gradient for the logits.

    A sample b is the discrete part of a continuous $z$, logits plus logistic or Gumbel noise. With
    $\tilde z$ distributed as z given b, and $c(z) = \eta\, f(\mathrm{softmax}(z / \tau))$ (sigmoid
    for bits),

    $$\hat\nabla = \big(f(b) - c(\tilde z)\big)\, \nabla \log P(b)
    + \nabla c(z) - \nabla c(\tilde z) ,$$

    averaged over samples; both gradients of c run through the noise as the logits move it.

    Symbols: $\eta$ ``scale``, $\tau$ ``tau``.

    Properties: unbiased for every f, tau and scale, but f must be differentiable on the relaxed
    samples between the discrete ones. Per sample two evaluations of f and one gradient if
    ``tied``, else three and two. Small tau: c follows f closely, but its gradients are noisy.

    Differs from the paper: the relaxation is $z / \tau$, without the paper's factor on the logits.
    ``tied`` noise, where $\tilde z = z$, is that of its released code.

    Args:
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype.
        f: As for ``reinforce``, and defined and differentiable between the discrete samples.
        num_samples: Samples to average over.
        family: ``"categorical"`` or ``"bernoulli"``.
        tau: Temperature of the relaxed sample: a number, or a tensor with one value for all or per
            variable. A tensor that requires a gradient learns, see ``Rebar``.
        scale: Weight of the control variate; a tensor that requires a gradient learns.
        tied: Use the same noise for $z$ and $\tilde z$.
        mask: As for ``reinforce``.
        generator: As for ``reinforce``.
        vectorize: As for ``reinforce``.

    Returns:
        The mean of f over the discrete samples, of the batch shape.

    Raises:
        TypeError: As ``reinforce``.
        ValueError: As ``reinforce``, and if tau is not positive or f is not differentiable.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: (z @ torch.tensor([1.0, 2.0, 4.0])).square()
        >>> discretegrad.rebar(logits, f, num_samples=1000).backward()
        >>> int(logits.grad.argmax())
        2
    """
    task = open_task("rebar", logits, f, family, mask, vectorize)
    check_num_samples(task.name, num_samples, 1, "")
    check_tau(task.name, tau, logits, -1 if family == "categorical" else None, learnable=True)
    check_coefficient(task.name, "scale", scale)
    check_flag(task.name, "tied", tied)
    samples = draw_samples(task, num_samples, generator)
    noise = draw_noise(task, num_samples, generator)
    free_noise = None if tied else draw_noise(task, num_samples, generator)
    return estimate(task, samples, noise, free_noise, None, scale, tau)


class Rebar(nn.Module):
    """REBAR with learned temperature and weight: an estimator object.

    ``backward`` of its result gives both the gradient of the mean square of the estimate, which is
    its variance up to a constant; give them to any optimiser. Learning the temperature takes
    second derivatives of f.

    Args:
        tau: Where the temperature starts.
        scale: Where the weight of the control variate starts.
        tied: As for ``rebar``.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.Rebar()
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=1e-2)
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: (z @ torch.tensor([1.0, 2.0, 4.0])).square()
        >>> discretegrad.expectation(logits, f, estimator, num_samples=4).backward()
        >>> learning.step()
    """

    def __init__(self, tau: float = 0.5, scale: float = 1.0, *, tied: bool = True) -> None:
        super().__init__()
        check_tau("Rebar", tau, torch.zeros(()), None)
        check_coefficient("Rebar", "scale", scale)
        check_flag("Rebar", "tied", tied)
        # learned as a logarithm, so that it stays positive
        self.log_tau = nn.Parameter(torch.tensor(float(tau)).log())
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.tied = tied

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As ``rebar``, which describes the arguments."""
        tau = self.log_tau.exp()
        return rebar(logits, f, tau=tau, scale=self.scale, tied=self.tied, **arguments)
