"""Straight-through with the plain mean over categories as the baseline.

Section 4.1 of the ReinMax paper compares with both orders. First: Gregor et al., "Deep
AutoRegressive Networks", ICML 2014, arXiv:1310.8499. Second: Liu et al., arXiv:2304.08612.
"""

from functools import partial

import torch
from torch import Tensor

from .._checks import check_flag, check_hard
from .._math import row_sum
from .._row import sampler_row
from .._types import Backend, Method, Temperature
from ..families import Family, FamilyLike
from ..sampling import Draw, Gradient, Request, Rule, sample


def mean_baseline(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    order: int = 2,
    as_released: bool = False,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""A sample whose gradient uses the mean of f over the categories as its baseline.

    With a draw k of sample $z$ and mean $p$, covariance $C$, n allowed categories, the mean
    $\bar g$ of $g = \partial f / \partial z$ over them, and the weight
    $w = 1 / (n\, \mathrm{softmax}(l/\tau)_k)$,

    $$\hat\nabla_1 = w\, C(l)\, g, \qquad
    \hat\nabla_2 = \tfrac12 \big[ (g_k - \bar g)(z - p) + w\, C(l)\, g \big] .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``; the index of the two is ``order``. A bit counts as two
    categories with the logits $(l, 0)$ and the gradient $(g, 0)$.

    Properties: at ``tau=1`` order 1 is exact for linear and order 2 for quadratic f of each
    variable. The weight is large when an unlikely category is drawn: the variance is like that of
    ``reinmax`` for flat distributions and many times higher for peaked ones, where training tends
    to end. A tau above 1 tames the weight, at the price of bias.

    Differs from the paper: ``as_released=True`` is the form of the released code, behind the figure
    on the choice of baseline. It multiplies the first term of $C(l)\, g$ by $z$ and so is biased
    even for linear f: that figure cannot tell the effect of the baseline from that of the error.

    Args:
        tau: Temperature of the weight, as for ``reinmax``.
        order: 1 or 2.
        as_released: Use the form of the released code (order 2 only).

    The other arguments, the result and the errors are those of ``reinmax``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> (discretegrad.mean_baseline(logits, order=1) @ torch.tensor([1.0, 2.0, 4.0])).backward()
        >>> logits.grad
        tensor([-0.4444, -0.1111,  0.5556])
    """
    check_hard("mean_baseline", hard)
    request = Request(logits, tau, family, given, None, None, dim, mask, generator, backend)
    return sample(_rule(order, as_released), request)


def _rule(order: int = 2, as_released: bool = False) -> Rule:
    check_flag("mean_baseline", "as_released", as_released)
    if type(order) is not int or order not in (1, 2) or (as_released and order != 2):
        raise ValueError(
            f"mean_baseline: expected order 1 or 2, and 2 with as_released=True, got {order!r}"
        )
    form = "released" if as_released else ("first", "second")[order - 1]
    return Rule("mean_baseline", partial(_formula, form=form), Method(f"mean_{form}"))


def _formula(draw: Draw, form: str) -> Gradient:
    family, variables, drawn, _ = draw
    prob = family.probability(drawn, family.tempered(variables))
    allowed = (variables.logits.detach() > -torch.inf,) if family.name == "categorical" else ()
    return Gradient(partial(_gradient, family, form), (variables.point, prob, *allowed))


def _gradient(family: Family, form: str, g: Tensor, drawn: Tensor, *saved: Tensor) -> Tensor:
    point, prob, *allowed = saved
    n = allowed[0].sum(-1, keepdim=True) if allowed else 2  # a bit has two values in any case
    if form != "released":
        least = torch.finfo(prob.dtype).tiny
        first_order = family.covariance(point, g).div_(n * prob.clamp_min(least))
    if form == "first":
        return first_order
    residual = family.residual(drawn, point)
    if form == "released":
        mean, z = family.mean(point), family.sample(point, drawn)
        slope = family.dot(family.centre(g, drawn), residual)  # g - p.g at the draw
        first_order = torch.where(z > 0, slope, -family.dot(mean, g)) * mean / (n * prob + 1e-12)
    if allowed:
        advantage = g.gather(-1, drawn) - row_sum(torch.where(allowed[0], g, 0)) / n
    else:
        advantage = torch.where(drawn, g, -g) / 2
    return first_order.addcmul_(advantage, residual).div_(2)


ROW = sampler_row(
    name="mean_baseline",
    label="1/n baseline",
    function=mean_baseline,
    rule=_rule,
    exact_for="quadratic",
    bias="second order: none for quadratic f at tau 1; high variance when peaked",
    temperature="1",
    reference="Liu et al. 2023, arXiv:2304.08612, section 4.1; Gregor et al. 2014",
    options={"order": 2, "as_released": False},
    bibtex="""@inproceedings{gregor2014deep,
  title     = {Deep AutoRegressive Networks},
  author    = {Gregor, Karol and Danihelka, Ivo and Mnih, Andriy and Blundell, Charles and
               Wierstra, Daan},
  booktitle = {International Conference on Machine Learning},
  year      = {2014},
  eprint    = {1310.8499},
  archivePrefix = {arXiv},
}""",
)
