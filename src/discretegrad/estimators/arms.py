"""ARMS: any number of mutually antithetic Bernoulli samples, from a Dirichlet copula.

Dimitriev and Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables",
ICML 2021. arXiv:2105.14141
"""

import torch
from torch import Tensor

from .._math import sigmoid
from .._random import uniform, widest
from .._row import score_row
from .._score import Arguments, Problem, estimate, others_mean, pose, weighted_score
from .._types import Objective, Vectorize
from ..families import FamilyLike


def arms(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    family: FamilyLike = "bernoulli",
    given: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over mutually antithetic samples, with the ARMS gradient for the logits.

    For each variable let $a = \sigma(-|l|)$ be the probability of its less likely value, and
    $d \in R^K$ uniform on the simplex. Sample k takes the less likely value where
    $(1 - d_k)^{K-1} < a$. Any two samples take it together with probability
    $a_2 = \max(2 a^{1/(K-1)} - 1, 0)^{K-1}$, less than the $a^2$ of independent ones, and

    $$\hat\nabla = \frac{a (1 - a)}{a - a_2}\; \tfrac1K \sum_k
    \Big(f(b_k) - \tfrac1{K-1}\sum_{j \ne k} f(b_j)\Big)(b_k - p) .$$

    Symbols: $l$ ``logits``, $p = \sigma(l)$, $K$ ``num_samples``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample. With two samples it is ``disarm``.

    Differs from the paper: the weight is exact; the released code adds 1e-6 to its denominator.

    Args:
        num_samples: Samples to average over, at least 2; by default 2, or as many as are given.
        family: ``"bernoulli"``; for categories see ``leave_one_out``.
        given: As for ``reinforce``: all samples of one such joint draw.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: b.sum(-1) == 2
        >>> discretegrad.arms(logits, f, num_samples=3).backward()
        >>> logits.grad.shape
        torch.Size([3])
    """
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    unlikely = sigmoid(-problem.point.abs())
    root = _root(unlikely, problem.num_samples)
    drawn = _draw_together(problem, root)

    def gradient(values: Tensor) -> Tensor:
        of_pair = weighted_score(problem, drawn, values - others_mean(values))
        return _weight(unlikely, root, problem.num_samples) * of_pair

    return estimate(problem, drawn, gradient)


def _draw_together(problem: Problem, root: Tensor) -> Tensor:
    if problem.given is not None:
        return problem.given
    shape = (problem.num_samples, *root.shape)
    return _together(problem.point, root, uniform(shape, root.dtype, problem.call))


def make_together(point: Tensor, u: Tensor) -> Tensor:
    """Bits from uniform numbers, (K, ...)."""
    return _together(point, _root(sigmoid(-point.abs()), len(u)), u)


def _together(point: Tensor, root: Tensor, u: Tensor) -> Tensor:
    # minus standard exponential noise, of which d_k is the share of sample k
    noise = torch.log1p(-u)
    # (1 - d_k)^(K-1) < a, solved for the noise, so that roots are taken of the smaller tensor
    return (noise < (1 - root) * noise.sum(0)) ^ (point > 0)


def _root(unlikely: Tensor, count: int) -> Tensor:
    """``a`` to the power of ``1 / (K - 1)``."""
    return unlikely.to(widest(unlikely.device)) ** (1 / (count - 1))


def _weight(unlikely: Tensor, root: Tensor, count: int) -> Tensor:
    """``a (1 - a) / (a - a_2)``; divided by a above and below, so that a may be zero."""
    share_of_both = (2 - 1 / root).clamp_min(0) ** (count - 1)
    return (1 - unlikely) / (1 - share_of_both).to(unlikely.dtype)


ROW = score_row(
    name="arms",
    label="ARMS",
    function=arms,
    families=("bernoulli",),
    min_samples=2,
    reference="Dimitriev and Zhou 2021, arXiv:2105.14141",
    bibtex="""@inproceedings{dimitriev2021arms,
  title     = {{ARMS}: Antithetic-{REINFORCE}-Multi-Sample Gradient for Binary Variables},
  author    = {Dimitriev, Aleksandar and Zhou, Mingyuan},
  booktitle = {International Conference on Machine Learning},
  year      = {2021},
  eprint    = {2105.14141},
  archivePrefix = {arXiv},
}""",
)
