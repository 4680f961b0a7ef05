"""Straight-through: a first-order approximation of the gradient.

Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
Computation", 2013. arXiv:1308.3432
"""

import torch
from torch import Tensor

from .._checks import check_hard
from .._row import sampler_row
from .._types import Backend, Method, Temperature
from ..families import FamilyLike
from ..sampling import Request, Rule, jacobian_at, sample


def straight_through(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""A sample with the gradient of its mean at the tempered logits.

    With the mean $\mu$ of a sample and $C = \partial\mu/\partial l$, a gradient
    $g = \partial f / \partial z$ at the draw $z$ becomes

    $$\hat\nabla = \tfrac1\tau\, C(l/\tau)\, g .$$

    For categories $C(l) = \mathrm{diag}(p) - p p^\top$ with $p = \mathrm{softmax}(l)$, for a bit
    $C(l) = \sigma(l)\, \sigma(-l)$.

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` its expectation is the
    forward-Euler (first-order) approximation of the true gradient, exact for every f that is
    linear in each variable. Another tau is biased even there. Its variance is mostly low: no noise
    enters but through the gradient of f.

    Differs from the paper: this is the form of Liu et al., with the Jacobian of the mean and a
    temperature.

    Args:
        tau: Temperature of the gradient (not of the draw), as for ``reinmax``.

    The other arguments, the result and the errors are those of ``reinmax``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> z = discretegrad.straight_through(logits)
        >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        >>> logits.grad
        tensor([-0.3333,  0.0000,  0.3333])

    References:
        Equation 4 and Algorithm 1 of Liu et al., arXiv:2304.08612; Theorem 3.1 for the order.
    """
    check_hard("straight_through", hard)
    request = Request(logits, tau, family, given, None, None, dim, mask, generator, backend)
    return sample(_RULE, request)


_RULE = Rule("straight_through", jacobian_at, Method("straight_through"), least_tau=0.5)
ROW = sampler_row(
    name="straight_through",
    label="ST",
    function=straight_through,
    rule=lambda: _RULE,
    any_family=True,
    exact_for="linear",
    bias="first order: none for linear f at tau 1",
    temperature="1 to 2",
    reference="Bengio et al. 2013, arXiv:1308.3432",
    bibtex="""@article{bengio2013estimating,
  title   = {Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
             Computation},
  author  = {Bengio, Yoshua and L{\\'e}onard, Nicholas and Courville, Aaron},
  journal = {arXiv preprint arXiv:1308.3432},
  year    = {2013},
}""",
)
