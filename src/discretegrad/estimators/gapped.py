"""Gapped straight-through: a gradient at logits where the drawn category leads.

Fan et al., "Training Discrete Deep Generative Models via Gapped Straight-Through Estimator",
ICML 2022. arXiv:2206.07235
"""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from .._checks import check_hard, is_word
from .._row import sampler_row
from .._types import Backend, Method, Temperature
from ..families import FamilyLike
from ..sampling import Draw, Gradient, Request, Rule, jacobian_at, sample


def gapped(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    gap: float | Literal["p"] = 1.0,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""A sample with the gradient of its mean at logits where what was drawn leads by a gap.

    With the drawn category k, $\tilde l_k = \max_j l_j$ and, for the others,
    $\tilde l_j = \min(l_j, \tilde l_k - \gamma)$, a gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = \tfrac1\tau\, C(\tilde l/\tau)\, g ,$$

    where $C = \partial\mu/\partial l$ is the Jacobian of the mean. For a bit with the logit
    $s = \pm l$ of its drawn value it is taken at $\max(s, \gamma)$, as for two categories.

    Symbols: $l$ ``logits``, $\tau$ ``tau``, $\gamma$ ``gap``.

    Properties: one evaluation of f and of its gradient; biased; no noise beyond the draw itself.
    ``gap=1.0`` is GST-1.0. ``gap="p"`` is GST-p, $\gamma = -\log(1 - p_k)/p_k$, the expected lead
    of the largest Gumbel-perturbed logit, which runs from 1 for a rare category to infinity.

    Differs from the paper: nothing. As in its released code, $p_k$ is shrunk by a factor of
    $1 - 10^{-5}$, which caps the gap of GST-p at 11.5. Excluded categories take no part in the
    maximum (in the released masked variant they do).

    Args:
        tau: Temperature of the gradient (not of the draw), as for ``reinmax``.
        gap: The lead of what was drawn, a number of at least 0, or ``"p"``.

    The other arguments are those of ``reinmax``.

    Returns:
        A sample of the shape and dtype of ``logits``: exactly one-hot along ``dim``, or 0 and 1.

    Raises:
        TypeError: As ``reinmax``.
        ValueError: As ``reinmax``, and if the gap is negative.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.gapped(torch.zeros(2, 4), tau=0.5, gap="p").sum(-1)
        tensor([1., 1.])
    """
    check_hard("gapped", hard)
    request = Request(logits, tau, family, given, None, None, dim, mask, generator, backend)
    return sample(_rule(gap), request)


def _rule(gap: float | Literal["p"] = 1.0) -> Rule:
    if not is_word(gap, "p"):
        if isinstance(gap, bool) or not isinstance(gap, (int, float)):
            raise TypeError(f'gapped: expected gap to be a number or "p", got {gap!r}')
        if not 0 <= gap < math.inf:
            raise ValueError(f"gapped: expected a finite gap of at least 0, got {gap}")
    method = Method("gapped_p") if gap == "p" else Method("gapped", float(gap))
    return Rule("gapped", partial(_formula, gap=gap), method)


def _formula(draw: Draw, gap: float | Literal["p"]) -> Gradient:
    family, variables, drawn, _ = draw
    if gap == "p":
        point = variables.point
        # 1 - P from what is not drawn; as a function of it alone the gap forgives its rounding
        rest = family.other_probability(drawn, point) + 1e-5 * family.probability(drawn, point)
        rest = rest.clamp_max(1 - torch.finfo(rest.dtype).eps)
        lead: Tensor | float = -torch.log(rest) / (1 - rest)
    else:
        lead = gap
    moved = family.natural(variables)
    if family.name == "bernoulli":
        # the drawn value and the other are two categories with logits (+-l, 0)
        moved = torch.where(drawn, moved, -moved).clamp(min=lead)
        return jacobian_at(draw, torch.where(drawn, moved, -moved))
    moved = moved.clamp(max=-lead)
    moved = moved.scatter(-1, drawn, 0.0)  # under the same name, so that memory is freed
    return jacobian_at(draw, moved)


ROW = sampler_row(
    name="gapped",
    label="GST",
    function=gapped,
    rule=_rule,
    bias="depends on the gap; no noise beyond the draw",
    temperature="0.1 to 1, tuned",
    reference="Fan et al. 2022, arXiv:2206.07235",
    options={"gap": 1.0},
    bibtex="""@inproceedings{fan2022training,
  title     = {Training Discrete Deep Generative Models via Gapped Straight-Through Estimator},
  author    = {Fan, Ting-Han and Chi, Ta-Chung and Rudnicky, Alexander I. and Ramadge, Peter J.},
  booktitle = {International Conference on Machine Learning},
  year      = {2022},
  eprint    = {2206.07235},
  archivePrefix = {arXiv},
}""",
)
