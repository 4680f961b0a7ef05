"""DisARM: antithetic pairs of Bernoulli samples.

Dong et al., "DisARM: An Antithetic Gradient Estimator for Binary Latent Variables", NeurIPS 2020.
arXiv:2006.10680. The same estimator: Yin et al. (U2G) 2020.
"""

import torch
from torch import Tensor

from .._math import sigmoid
from .._random import uniform, widest
from .._row import score_row
from .._score import Arguments, Problem, check_antithetic, check_pairs, estimate, pose, weighted
from .._types import Objective, Vectorize
from ..families import FamilyLike
from ..families.bernoulli import take_less_likely


def disarm(
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
    r"""Mean of f over antithetic pairs, with the DisARM gradient for the logits.

    One uniform number $u$ per variable gives two samples that differ as often as they can,
    $b = 1[u < p]$ and $\tilde b = 1[1 - u < p]$ with $p = \sigma(l)$, and

    $$\hat\nabla = \tfrac12 \big(f(b) - f(\tilde b)\big)\,(b - \tilde b)\,\sigma(|l|) ,$$

    averaged over the pairs.

    Symbols: $l$ ``logits``; there are ``num_samples / 2`` pairs.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample. For one variable, or where every p is 1/2, its variance is at most that of
    ``leave_one_out`` with two samples; for several uneven bits it is usually less, not always.

    Differs from the paper: nothing.

    Args:
        num_samples: Samples to average over, an even number; by default 2.
        family: ``"bernoulli"``; for categories see ``disarm_tree``.
        given: As for ``reinforce``: first one sample of each pair, then the partners in the same
            order. Independent samples are no pairs.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: b @ torch.tensor([1.0, 2.0, 4.0])
        >>> loss = discretegrad.disarm(logits, f)
        >>> loss.item()  # at p = 1/2 the two samples are opposites
        3.5
        >>> loss.backward()
    """
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    check_pairs(problem, "arms or leave_one_out")
    drawn = _draw_pairs(problem)

    def gradient(values: Tensor) -> Tensor:
        first, second = drawn.to(problem.point.dtype).chunk(2)
        f_first, f_second = values.chunk(2)
        difference = (first - second) * sigmoid(problem.point.abs())
        return weighted((f_first - f_second) / 2, difference)

    return estimate(problem, drawn, gradient)


def _draw_pairs(problem: Problem) -> Tensor:
    point = problem.point
    if problem.given is not None:
        first, second = problem.given.chunk(2)
        check_antithetic(problem, (first == second) & (first != (point > 0)))
        return problem.given
    shape = (problem.num_samples // 2, *point.shape)
    return make_pairs(point, uniform(shape, widest(point.device), problem.call))


def make_pairs(point: Tensor, u: Tensor) -> Tensor:
    """Bits from uniform numbers, (pairs, ...): first one of each pair, then the partners."""
    return torch.cat([take_less_likely(point, u), take_less_likely(point, 1 - u)])


ROW = score_row(
    name="disarm",
    label="DisARM",
    function=disarm,
    families=("bernoulli",),
    min_samples=2,
    reference="Dong et al. 2020, arXiv:2006.10680",
    bibtex="""@inproceedings{dong2020disarm,
  title     = {{DisARM}: An Antithetic Gradient Estimator for Binary Latent Variables},
  author    = {Dong, Zhe and Mnih, Andriy and Tucker, George},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020},
  eprint    = {2006.10680},
  archivePrefix = {arXiv},
}""",
)
