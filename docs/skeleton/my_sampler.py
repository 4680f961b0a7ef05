"""My sampler: one line that says what it is.

First Author et al., "Title", venue and year. arXiv:0000.00000
"""

from functools import partial

import torch
from torch import Tensor

import discretegrad
from discretegrad.families import Family, FamilyLike
from discretegrad.sampling import Draw, Gradient, Request, Rule, sample


def my_sampler(
    logits: Tensor,
    tau: float | Tensor = 1.0,
    *,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""A sample whose gradient is the score times a first-order guess of f.

    With a draw $z$, its mean $\mu = \mu(l)$ and the mean $\mu_\tau$ at the logits $l / \tau$, a
    gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = \big( g \cdot (z - \mu_\tau) \big) (z - \mu) .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` exact for every f that is
    linear in each variable, with more variance than ``straight_through``.

    Differs from the paper: nothing.

    Args:
        tau: Temperature of the guess (not of the draw).

    The other arguments, the result and the errors are those of ``reinmax``.

    Example:
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> z = my_sampler(logits)
        >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        >>> bool(logits.grad.sum().abs() < 1e-6)
        True
    """
    request = Request(
        logits, tau, family, given, dim=dim, mask=mask, generator=generator, backend=backend
    )
    return sample(_RULE, request)


def _formula(draw: Draw) -> Gradient:
    """What backward needs: the formula, and the constants it is called with after the draw."""
    family, variables, _, _ = draw
    return Gradient(partial(_gradient, family), (variables.point, family.tempered(variables)))


def _gradient(family: Family, g: Tensor, drawn: Tensor, point: Tensor, tempered: Tensor) -> Tensor:
    guess = family.dot(family.centre(g, drawn), family.residual(drawn, tempered))
    return guess * family.residual(drawn, point)


_RULE = Rule("my_sampler", _formula)
ROW = discretegrad.Estimator(
    name="my_sampler",
    label="Mine",
    kind="sampler",
    function=my_sampler,
    rule=lambda: _RULE,
    any_family=True,
    exact_for="linear",
    bias="first order: none for linear f at tau 1",
    slopes=1,
    temperature="1",
    reference="Author et al. 2000, arXiv:0000.00000",
    bibtex="""@inproceedings{author2000title,
  title     = {Title},
  author    = {Author, First},
  booktitle = {Venue},
  year      = {2000},
}""",
)
