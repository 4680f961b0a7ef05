"""The leave-one-out estimator (RLOO): every sample's baseline is the mean of the others.

Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", DeepRLStructPred 2019.
Salimans and Knowles 2014, arXiv:1401.1022; Mnih and Rezende (VIMCO) 2016, arXiv:1602.06725
"""

import torch
from torch import Tensor

from .._row import score_row
from .._score import Arguments, draw, estimate, others_mean, pose, weighted_score
from .._types import Objective, Vectorize
from ..families import FamilyLike


def leave_one_out(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over samples, with the leave-one-out gradient for the logits.

    With samples $z_k$ of mean $\mu$,

    $$\hat\nabla = \tfrac1K \sum_k \Big(f(z_k) - \tfrac1{K-1}\sum_{j \ne k} f(z_j)\Big)
    (z_k - \mu) .$$

    Symbols: $K$ ``num_samples``; $\mu$ is softmax or sigmoid of ``logits``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample; nothing to tune and nothing to learn.

    Differs from the paper: nothing.

    Args:
        num_samples: Samples to average over, at least 2; by default 2, or as many as are given.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> loss = discretegrad.leave_one_out(logits, lambda z: z.argmax(-1) == 2, num_samples=100)
        >>> loss.backward()
        >>> int(logits.grad.argmax())
        2
    """
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    drawn = draw(problem)

    def gradient(values: Tensor) -> Tensor:
        return weighted_score(problem, drawn, values - others_mean(values))

    return estimate(problem, drawn, gradient)


ROW = score_row(
    name="leave_one_out",
    label="RLOO",
    function=leave_one_out,
    any_family=True,
    min_samples=2,
    reference="Kool et al. 2019",
    bibtex="""@inproceedings{kool2019buy,
  title     = {Buy 4 {REINFORCE} Samples, Get a Baseline for Free!},
  author    = {Kool, Wouter and van Hoof, Herke and Welling, Max},
  booktitle = {ICLR Workshop on Deep Reinforcement Learning Meets Structured Prediction},
  year      = {2019},
}""",
)
