"""MuProp: a linear expansion of f at the mean of the sample as control variate.

Gu et al., "MuProp: Unbiased Backpropagation for Stochastic Neural Networks", ICLR 2016.
arXiv:1511.05176
"""

import torch
from torch import Tensor

from .._checks import check_coefficient
from .._row import score_row
from .._score import (
    Arguments,
    draw,
    estimate,
    evaluate,
    joint_sum,
    learned_tensors,
    pose,
    score,
    signal,
    value_and_slope,
    weighted,
)
from .._types import Objective, Vectorize
from ..families import FamilyLike
from ..objects import MuProp


def muprop(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    offset: float | Tensor = 1.0,
    slope: float | Tensor = 1.0,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over samples, with the MuProp gradient for the logits.

    With samples $z_k$ of mean $\mu$ and covariance $C$ (which is the Jacobian of $\mu$), and
    $g = \partial f / \partial z$ at $z = \mu$,

    $$\hat\nabla = \tfrac1K \sum_k \big(f(z_k) - s_0 f(\mu) - s_1\, g^\top (z_k - \mu)\big)
    (z_k - \mu) + s_1\, C g .$$

    Unbiased because $E[g^\top (z - \mu)\,(z - \mu)] = C g$.

    Symbols: $K$ ``num_samples``, $s_0$ ``offset``, $s_1$ ``slope``.

    Properties: unbiased for every f, but f must accept the mean, which is not discrete, and have a
    gradient there. One evaluation of f per sample, one more at the mean, and one gradient there.
    For a linear f and $s_0 = s_1 = 1$ the variance is zero.

    Differs from the paper: the coefficients, which the paper fixes to 1, may be learned, as in the
    comparison of Tucker et al. 2017. The mean is that of all variables together; a network with
    several stochastic layers calls this once per layer.

    Args:
        f: As for ``reinforce``, and defined and differentiable at the mean of the sample.
        offset: Weight of f at the mean; a tensor that requires a gradient learns, see ``MuProp``.
        slope: Weight of the linear term; likewise.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> discretegrad.muprop(logits, lambda z: z @ torch.tensor([1.0, 2.0, 4.0])).backward()
        >>> logits.grad  # exact, because f is linear
        tensor([-0.4444, -0.1111,  0.5556])
    """
    offset = check_coefficient("muprop", "offset", offset)
    slope = check_coefficient("muprop", "slope", slope)
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    drawn, point, covariance = draw(problem), problem.point, problem.family.covariance

    def f_of(points: Tensor) -> Tensor:
        return evaluate(problem, points.to(problem.logits.dtype))

    def gradient(values: Tensor) -> Tensor:
        mean = problem.family.mean(point).unsqueeze(0)
        at_mean, g = value_and_slope(problem, f_of, mean, learn=False)
        centred = score(problem, drawn)
        linear = joint_sum(g * centred, values)
        rest = values - offset * signal(problem, at_mean) - slope * linear
        return weighted(rest, centred) + slope * covariance(point, g.squeeze(0))

    return estimate(problem, drawn, gradient, learned_tensors(offset, slope))


ROW = score_row(
    name="muprop",
    label="MuProp",
    function=muprop,
    any_family=True,
    options={"offset": 1.0, "slope": 1.0},
    extra_evaluations=1,
    extra_slopes=1,
    module=MuProp,
    reference="Gu et al. 2016, arXiv:1511.05176",
    bibtex="""@inproceedings{gu2016muprop,
  title     = {{MuProp}: Unbiased Backpropagation for Stochastic Neural Networks},
  author    = {Gu, Shixiang and Levine, Sergey and Sutskever, Ilya and Mnih, Andriy},
  booktitle = {International Conference on Learning Representations},
  year      = {2016},
  eprint    = {1511.05176},
  archivePrefix = {arXiv},
}""",
)
