"""REINFORCE, the score-function estimator, with its baselines.

Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", Machine Learning 1992. Self-critical baseline: Rennie et al. 2017, arXiv:1612.00563
"""

import torch
from torch import Tensor, nn

from .._checks import check_baseline, check_baseline_value
from .._row import score_row
from .._score import (
    Arguments,
    Problem,
    call_network,
    draw,
    estimate,
    learned_tensors,
    likeliest_value,
    pose,
    weighted_score,
)
from .._types import Baseline, Objective, Vectorize
from ..families import FamilyLike
from ..objects import Reinforce


def reinforce(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    baseline: Baseline = None,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over samples, with the score-function gradient for the logits.

    With samples $z_k$ of mean $\mu$ and a baseline $B$ that does not depend on them,

    $$\hat\nabla = \tfrac1K \sum_k (f(z_k) - B)\,(z_k - \mu) .$$

    Symbols: $K$ ``num_samples``, $B$ ``baseline``; $\mu$ is softmax or sigmoid of ``logits``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample, and one more for the self-critical baseline. Its variance grows with the size of
    $f - B$; with two or more samples ``leave_one_out`` is mostly better.

    Differs from the paper: nothing.

    Args:
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype. -inf excludes a category, or the value 1.
        f: Maps a sample of the shape of ``logits`` to one loss per batch element, that is, to a
            tensor whose shape is a prefix of the shape of ``logits``; the axes it has consumed
            form one joint sample. It may return integers and need not be differentiable.
        num_samples: Samples to average over. By default as many as are given, or the least number
            that the estimator needs, here 1.
        baseline: None, ``"self_critical"`` (f at the most likely sample), or a function from the
            logits (a constant, zero where infinite) to a number per batch element or one for all.
            The parameters of an ``nn.Module`` learn; see ``Reinforce``, also for a running mean.
        family: The kind of variable: ``"categorical"``, ``"bernoulli"`` or ``Subset(k)``.
        given: Draws that were made elsewhere, with samples in a leading axis: categories as an
            int64 index (num_samples, ...), bits as 0 and 1. By default they are drawn here.
        mask: Boolean, broadcasts to ``logits``; False excludes a category, or the value 1.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        vectorize: Evaluate f on all samples in one call: with True under ``torch.vmap``; with
            ``"stacked"`` f itself takes them stacked in a first axis and returns as many losses.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: If an argument has the wrong type or dtype, or f does not return a tensor.
        ValueError: If shapes do not fit, there are too few samples, f has no gradient where one is
            needed, a logit is NaN, or no category is allowed. See ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> f = lambda z: z.argmax(-1) == 2
        >>> discretegrad.reinforce(logits, f, num_samples=100).backward()
        >>> int(logits.grad.argmax())
        2
    """
    check_baseline("reinforce", baseline)
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    drawn = draw(problem)

    def gradient(values: Tensor) -> Tensor:
        advantage = values - _baseline(problem, baseline, values.shape[1:])
        return weighted_score(problem, drawn, advantage)

    return estimate(problem, drawn, gradient, learned_tensors(baseline))


def _baseline(problem: Problem, baseline: Baseline, batch_shape: torch.Size) -> Tensor | float:
    if baseline is None:
        return 0.0
    if not callable(baseline):
        return likeliest_value(problem)
    logits = problem.logits.detach()
    value = call_network(baseline, logits.masked_fill(logits.isinf(), 0))
    check_baseline_value(problem.name, value, batch_shape)
    return value if isinstance(baseline, nn.Module) else value.detach()


ROW = score_row(
    name="reinforce",
    label="REINFORCE",
    function=reinforce,
    any_family=True,
    options={"baseline": None},
    module=Reinforce,
    reference="Williams 1992",
    bibtex="""@article{williams1992simple,
  title   = {Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
             Learning},
  author  = {Williams, Ronald J.},
  journal = {Machine Learning},
  volume  = {8},
  pages   = {229--256},
  year    = {1992},
}""",
)
