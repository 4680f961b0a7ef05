"""A blend of straight-through and ReinMax: more of the second order, or less of its noise.

Both ends are in Liu et al., "Bridging Discrete and Backpropagation: Straight-Through and Beyond",
NeurIPS 2023, arXiv:2304.08612; the blend is not.
"""

from functools import partial

import torch
from torch import Tensor

from .._attach import Vjp
from .._checks import check_hard
from .._row import sampler_row
from .._types import Backend, Method, Temperature
from ..families import FamilyLike
from ..sampling import Draw, Gradient, Request, Rule, jacobian_at, sample
from . import reinmax


def blend(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    weight: float = 0.5,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""A sample whose gradient lies between those of ``straight_through`` and ``reinmax``.

    With the gradients of the two for the same draw and the same ``tau``,

    $$\hat\nabla = (1 - \lambda)\, \hat\nabla_{\mathrm{ST}}
    + \lambda\, \hat\nabla_{\mathrm{ReinMax}} ,$$

    which at ``tau=1``, with the draw $z$, its mean $\mu$ and covariance $C$, is
    $(1 - \tfrac\lambda2)\, C g + \tfrac\lambda2 \big(g^\top (z - \mu)\big) (z - \mu)$.

    Symbols: $\lambda$ ``weight``, $g$ the gradient of f at the sample.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` exact for every f that is
    linear in each variable, whatever the weight, and for quadratic f at a weight of 1 only. The
    noise of the second-order term is multiplied by the weight.

    Differs from the paper: the paper does not have it.

    Args:
        tau: Temperature of the gradient (not of the draw), as for ``reinmax``.
        weight: The share of ReinMax, from 0 to 1.

    The other arguments, the result and the errors are those of ``reinmax``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, requires_grad=True)
        >>> z = discretegrad.blend(logits, weight=0.5, given=torch.tensor(0))
        >>> (z * torch.tensor([1.0, 3.0])).sum().backward()
        >>> logits.grad
        tensor([-0.5000,  0.5000])
    """
    check_hard("blend", hard)
    request = Request(logits, tau, family, given, None, None, dim, mask, generator, backend)
    return sample(_rule(weight), request)


def _rule(weight: float = 0.5) -> Rule:
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise TypeError(f"blend: expected weight to be a number, got {weight!r}")
    if not 0 <= weight <= 1:
        raise ValueError(f"blend: expected a weight from 0 to 1, got {weight}")
    method = Method("blend", float(weight))
    return Rule("blend", partial(_formula, weight=weight), method, least_tau=0.5)


def _formula(draw: Draw, weight: float) -> Gradient:
    straight_through, second_order = jacobian_at(draw), reinmax.RULE.formula(draw)
    point, *_ = second_order.saved
    # at a temperature of 1 the two have the same constant
    tempered = straight_through.saved if len(second_order.saved) > 1 else ()
    ends = straight_through.vjp, second_order.vjp
    return Gradient(partial(_gradient, *ends, weight), (point, *tempered))


def _gradient(
    first: Vjp, second: Vjp, weight: float, g: Tensor, drawn: Tensor, point: Tensor, *more: Tensor
) -> Tensor:
    """``more``: the mean at another temperature than 1, and that temperature if it is a tensor."""
    straight_through = first(g, drawn, *(more or (point,)))
    return straight_through.lerp(second(g, drawn, point, *more[:1]), weight)


ROW = sampler_row(
    name="blend",
    label="Blend",
    function=blend,
    rule=_rule,
    any_family=True,
    exact_for="linear",
    bias="between first and second order: none for linear f at tau 1",
    temperature="1 to 1.5",
    reference="Bengio et al. 2013 and Liu et al. 2023, arXiv:2304.08612, for its two ends",
    options={"weight": 0.5},
    bibtex=reinmax.ROW.bibtex,
)
