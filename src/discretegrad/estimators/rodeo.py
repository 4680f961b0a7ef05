"""RODEO: control variates from a discrete Stein operator.

Shi et al., "Gradient Estimation with Discrete Stein Operators", NeurIPS 2022. arXiv:2202.09497
"""

import torch
from torch import Tensor

from .._checks import check_coefficient, check_control
from .._row import score_row
from .._score import (
    Arguments,
    aligned,
    can_learn,
    draw,
    estimate_with_slopes,
    learned_tensors,
    others_mean,
    pose,
    spread,
)
from .._stein import joint_samples, stein_operator
from .._types import Objective, Vectorize
from ..families import FamilyLike
from ..objects import Rodeo


def rodeo(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    control: Objective | None = None,
    alpha: float | Tensor = 0.0,
    beta: float | Tensor = 0.0,
    family: FamilyLike = "bernoulli",
    given: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over samples, with the RODEO gradient for the logits.

    The Stein operator of Gibbs sampling, for a joint sample of D variables,

    $$(A h)(b) = \tfrac1D \sum_i w_i\, [h(b^{\neg i}) - h(b)], \qquad
    w_i = P(b_i \text{ takes its other value}),$$

    has mean zero under the distribution of $b$ for every h that does not depend on $b$. For
    sample k, h comes from the other samples: $h_k = \frac1{K-1} \sum_{j \ne k}
    H\big(g_j^\top (\cdot - b_j),\, f(b_j)\big)$, where $g_j$ is the slope of f at $b_j$ and H is a
    small network with two outputs $h^1$ and $h^2$. With
    $\tilde f_k = f(b_k) + \alpha\,(A h^1_k)(b_k)$,

    $$\hat\nabla = \tfrac1K \sum_k \big(f(b_k) - \tfrac1{K-1}\textstyle\sum_{j \ne k}
    \tilde f_j\big)(b_k - p) + \beta\, \big(A [h^2_k(\cdot)\,(\cdot - p)]\big)(b_k) .$$

    Symbols: $K$ ``num_samples``, H ``control``, $\alpha$ ``alpha``, $\beta$ ``beta``,
    $p = \sigma$(``logits``).

    Properties: unbiased for every differentiable f and every H. One evaluation of f and of its
    gradient per sample, and D + 1 evaluations of H per pair of samples. At ``alpha=beta=0``, where
    learning starts, it is ``leave_one_out``.

    Differs from the paper: one formula for every number of samples, which for two is the paper's
    and for more averages the outputs of H, as its released code does.

    Args:
        f: As for ``reinforce``, and differentiable.
        num_samples: Samples to average over, at least 2; by default 2, or as many as are given.
        control: H, from (..., 2) to (..., 2). The parameters of an ``nn.Module`` learn; see
            ``Rodeo``, which has the network of the paper. To save memory it is run again in the
            backward pass, unless it has a true attribute ``stores_no_hidden_layer``.
        alpha: Weight of the control variate of f: a number, or a tensor of numbers for the first
            batch axes. One that requires a gradient learns; how much a batch element counts in
            your loss counts for all of them alike.
        beta: Weight of the control variate of the gradient; likewise.
        family: ``"bernoulli"``; for categories see ``relax``.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: (b - 0.45).square().sum(-1)
        >>> estimator = discretegrad.Rodeo()
        >>> discretegrad.rodeo(logits, f, control=estimator.network).backward()
        >>> logits.grad.shape
        torch.Size([3])
    """
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    network = check_control("rodeo", control, "Rodeo()")
    check_coefficient("rodeo", "alpha", alpha, logits.shape)
    check_coefficient("rodeo", "beta", beta, logits.shape)
    drawn, learned = draw(problem), learned_tensors(control, alpha, beta)

    def gradient(values: Tensor, slopes: Tensor) -> Tensor:
        for_f = check_coefficient("rodeo", "alpha", alpha, values.shape[1:])
        for_gradient = check_coefficient("rodeo", "beta", beta, values.shape[1:])
        joint = joint_samples(problem, drawn, values, slopes)
        of_f, of_gradient = stein_operator(problem, joint, network, can_learn(learned))
        adjusted = others_mean(values + aligned(for_f, of_f[0]) * of_f)
        of_samples = spread(values - adjusted, joint.centred) * joint.centred
        of_samples = of_samples + aligned(for_gradient, of_gradient[0]) * of_gradient
        return of_samples.mean(0).reshape(problem.point.shape)

    return estimate_with_slopes(problem, drawn, gradient, learned)


ROW = score_row(
    name="rodeo",
    label="RODEO",
    function=rodeo,
    families=("bernoulli",),
    options={"control": None, "alpha": 0.0, "beta": 0.0},
    min_samples=2,
    slopes=1,
    module=Rodeo,
    reference="Shi et al. 2022, arXiv:2202.09497",
    bibtex="""@inproceedings{shi2022gradient,
  title     = {Gradient Estimation with Discrete {S}tein Operators},
  author    = {Shi, Jiaxin and Zhou, Yuhao and Hwang, Jessica and Titsias, Michalis and
               Mackey, Lester},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2022},
  eprint    = {2202.09497},
  archivePrefix = {arXiv},
}""",
)
