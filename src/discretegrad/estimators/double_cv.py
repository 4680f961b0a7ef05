"""Double control variates: leave-one-out, and a linear expansion of f at the other samples.

Titsias and Shi, "Double Control Variates for Gradient Estimation in Discrete Latent Variable
Models", AISTATS 2022. arXiv:2111.05300
"""

import torch
from torch import Tensor

from .._checks import check_coefficient
from .._row import score_row
from .._score import (
    Arguments,
    aligned,
    draw,
    estimate_with_slopes,
    joint_sum,
    learned_tensors,
    others_mean,
    pose,
    score,
    weighted,
)
from .._types import Objective, Vectorize
from ..families import FamilyLike
from ..objects import DoubleCV


def double_cv(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    alpha: float | Tensor = -1.0,
    family: FamilyLike = "bernoulli",
    given: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
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
        f: As for ``reinforce``, and differentiable.
        num_samples: Samples to average over, at least 2; by default 2, or as many as are given.
        alpha: Weight of the linear control variates: a number, or a tensor of numbers for the
            first batch axes. One that requires a gradient learns, see ``DoubleCV``.
        family: ``"bernoulli"``; for categories see ``muprop``.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: b @ torch.tensor([1.0, 2.0, 4.0])
        >>> discretegrad.double_cv(logits, f).backward()
        >>> logits.grad  # exact, because f is linear
        tensor([0.2500, 0.5000, 1.0000])
    """
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    check_coefficient("double_cv", "alpha", alpha, logits.shape)
    drawn, covariance = draw(problem), problem.family.covariance

    def gradient(values: Tensor, slopes: Tensor) -> Tensor:
        weight = check_coefficient("double_cv", "alpha", alpha, values.shape[1:])
        centred = score(problem, drawn)
        linear = joint_sum(others_mean(slopes) * centred, values)
        total = values + aligned(weight, linear[0]) * linear
        of_samples = weighted(total - others_mean(total), centred)
        expected = covariance(problem.point, slopes.mean(0))
        return of_samples - aligned(weight, expected) * expected

    return estimate_with_slopes(problem, drawn, gradient, learned_tensors(alpha))


ROW = score_row(
    name="double_cv",
    label="Double CV",
    function=double_cv,
    families=("bernoulli",),
    options={"alpha": -1.0},
    min_samples=2,
    slopes=1,
    module=DoubleCV,
    reference="Titsias and Shi 2022, arXiv:2111.05300",
    bibtex="""@inproceedings{titsias2022double,
  title     = {Double Control Variates for Gradient Estimation in Discrete Latent Variable Models},
  author    = {Titsias, Michalis K. and Shi, Jiaxin},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year      = {2022},
  eprint    = {2111.05300},
  archivePrefix = {arXiv},
}""",
)
