"""REINFORCE, the score-function estimator, with its baselines.

Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", Machine Learning 1992. Self-critical baseline: Rennie et al. 2017, arXiv:1612.00563
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._checks import check_baseline, check_baseline_value, check_decay, check_num_samples
from .._score import (
    Task,
    call_network,
    evaluate,
    finish,
    finite_logits,
    given_samples,
    learned_tensors,
    likeliest,
    open_task,
    score,
    signal,
    spread,
    wants_gradient,
)
from .._types import Family, Objective

Baseline = Literal["self_critical"] | Callable[[Tensor], Tensor] | None


def reinforce(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 1,
    family: Family = "categorical",
    baseline: Baseline = None,
    samples: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over samples, with the score-function gradient for the logits.

    With samples $z_k$ of mean $p$ and a baseline $B$ that does not depend on them,

    $$\hat\nabla = \tfrac1K \sum_k (f(z_k) - B)\,(z_k - p) .$$

    Symbols: $K$ ``num_samples``, $B$ ``baseline``; $p$ is softmax or sigmoid of ``logits``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample, and one more for the self-critical baseline. Its variance grows with the size of
    $f - B$; with two or more samples ``leave_one_out`` is mostly better.

    Differs from the paper: nothing.

    Args:
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype.
        f: Maps a sample of the shape of ``logits`` to one loss per batch element, that is, to a
            tensor whose shape is a prefix of the shape of ``logits``; the axes it has consumed
            form one joint sample. It may return integers and need not be differentiable.
        num_samples: Samples to average over.
        family: ``"categorical"`` or ``"bernoulli"``.
        baseline: None, ``"self_critical"`` (f at the most likely sample), or a function from the
            logits (a constant, zero where infinite) to one number per batch element, or to one
            for all. The parameters of an ``nn.Module`` learn to reduce the variance; see
            ``Reinforce``, which also has a running mean.
        samples: Independent samples of these logits that were drawn elsewhere, zeros and ones of
            the shape (num_samples, *logits.shape); by default they are drawn here.
        mask: Boolean, broadcasts to ``logits``, True where a category (or the value 1) is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        vectorize: Evaluate f on all samples in one call under ``torch.vmap`` instead of one call
            per sample.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: If an argument has the wrong type or dtype, or f does not return a tensor.
        ValueError: If shapes do not fit, a logit is NaN, or no category is allowed. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> loss = discretegrad.reinforce(logits, lambda z: z.argmax(-1) == 2, num_samples=100)
        >>> loss.backward()
        >>> int(logits.grad.argmax())
        2
    """
    task = open_task("reinforce", logits, f, family, mask, vectorize)
    check_num_samples(task.name, num_samples, 1, "")
    check_baseline(task.name, baseline)
    return _at(task, given_samples(task, samples, num_samples, generator), baseline)


def _at(task: Task, samples: Tensor, baseline: Baseline) -> Tensor:
    losses = evaluate(task, samples)
    learned = learned_tensors(baseline)
    if not wants_gradient(task, learned):
        return losses.mean(0)
    advantage = signal(task, losses) - _baseline(task, baseline, losses.shape[1:])
    gradient = (spread(advantage, samples) * score(task, samples)).mean(0)
    return finish(task, losses, gradient, learned)


def _baseline(task: Task, baseline: Baseline, batch_shape: torch.Size) -> Tensor | float:
    if baseline is None:
        return 0.0
    if callable(baseline):
        value = call_network(baseline, finite_logits(task))
        check_baseline_value(task.name, value, batch_shape)
        return value if isinstance(baseline, nn.Module) else value.detach()
    with torch.no_grad():
        return signal(task, evaluate(task, likeliest(task).unsqueeze(0)))


class Reinforce(nn.Module):
    """REINFORCE with a baseline that is kept between calls: an estimator object.

    The running baseline is the exponential mean of earlier values of f, corrected for its start at
    zero. It is updated after it has been used, in training mode only, and saved in the
    ``state_dict``. A baseline network is trained by the gradient that ``backward`` gives its
    parameters: that of the mean square of the estimate, which is its variance up to a constant.

    Args:
        baseline: ``"running"``, or whatever ``reinforce`` takes.
        decay: Weight of the past in the running mean.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.Reinforce("running")
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> f = lambda z: z @ torch.arange(4.0)
        >>> for _ in range(100):
        ...     loss = discretegrad.expectation(logits, f, estimator)
        >>> bool((estimator.mean - 1.5).abs() < 1)
        True
    """

    mean: Tensor
    """The running mean of f, before the correction."""
    steps: Tensor
    """How many calls it has seen."""

    def __init__(
        self, baseline: Literal["running"] | Baseline = "running", *, decay: float = 0.99
    ) -> None:
        super().__init__()
        if baseline != "running":
            check_baseline("Reinforce", baseline)
        check_decay("Reinforce", decay)
        self.baseline = baseline
        self.decay = decay
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As ``reinforce``, which describes the arguments."""
        if self.baseline != "running":
            return reinforce(logits, f, baseline=self.baseline, **arguments)
        seen = 1 - self.decay ** self.steps.to(self.mean.dtype)
        before = torch.where(self.steps > 0, self.mean / seen.clamp_min(1e-12), 0.0)
        result = reinforce(logits, f, baseline=lambda _: before, **arguments)
        if self.training and result.numel() > 0:
            self._update(result.detach().mean().to(self.mean))
        return result

    def _update(self, value: Tensor) -> None:
        # one loss that is not finite must not spoil the mean for ever
        finite = value.isfinite()
        updated = self.mean.lerp(value, 1 - self.decay)
        self.mean.copy_(torch.where(finite, updated, self.mean))
        self.steps.add_(finite.long())
