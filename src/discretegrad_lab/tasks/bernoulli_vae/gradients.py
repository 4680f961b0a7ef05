"""Bias and variance of an estimator's gradients, at a model in training.

All bits of an image are drawn, as in training, so every estimator is the one that trains, with what
it has learned. Of its gradient, the entries at the logits of the first bits are looked at. What
they should be is the mean of a long run of an unbiased estimator, and the error of that mean is
known.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import discretegrad

from ...stack.bits import sample_count
from ...stack.noise import mixed
from ...stack.precision import full_precision
from ..base import Metric
from .config import BernoulliVae

FIRST, IMAGES, DRAWS, REFERENCE_DRAWS = 20, 4, 10_000, 10_000
"""Bits whose logits are looked at, training images, estimates, and draws of the long run."""
STOPS = (1, 10, 30, 100, 300, 1000)
"""Epochs after which gradients are compared; after the last one they always are."""
METRICS = (
    Metric("gradient_deviation", "relative standard deviation", 2),
    Metric("gradient_bias_bound", "relative bias and two standard errors", 3),
    Metric("gradient_bias", "relative bias", 3, minor=True),
    Metric("gradient_reference_error", "relative error of the reference", 3, minor=True),
    Metric("gradient_cosine_of_one", "cosine of one estimate", 3, "up", minor=True),
)
NAMES = tuple(metric.name for metric in METRICS)
_STREAM = 7


class Point(NamedTuple):
    """A model in training, at some images."""

    logits: Tensor
    """(images, latents)."""
    f: Callable[[Tensor], Tensor]
    """From samples, (..., images, latents), to losses, (..., images), in their precision."""
    x: Tensor
    """The images, (images, pixels)."""
    learned: dict[str, Any]
    """Options of the estimator that it has learned."""
    epoch: int


def compare_gradients(run: BernoulliVae, point: Point) -> dict[str, float]:
    """``NAMES`` for the estimator of a run, by ``discretegrad.diagnose``; NaN if undefined.

    Bias and deviation are relative to the norm of the true gradient of all images together. All of
    it is NaN where that cannot be told from zero, and for a run that has diverged.
    """
    unknown = dict.fromkeys(NAMES, torch.nan)
    if not point.logits.isfinite().all():
        return unknown
    generator = torch.Generator(point.logits.device)
    generator.manual_seed(mixed(run.seed, point.epoch, _STREAM))
    with full_precision():
        result = discretegrad.diagnose(
            point.logits,
            point.f,
            {run.line.label: (_at_first_bits(run.line.function), _options(run, point))},
            num_draws=DRAWS,
            num_samples=sample_count(run.line, run.evaluations),
            family="bernoulli",
            generator=generator,
            reference=(flip_estimator, {"num_samples": 1}),
            reference_draws=REFERENCE_DRAWS,
            progress=False,
        )
    row, norm = result.rows[0], result.gradient_norm
    if not row.applicable:
        raise RuntimeError(f"{row.label}: {row.status}")
    if norm <= result.reference_standard_error:
        return unknown
    values = (
        row.relative_deviation,
        None if row.bias_bound is None else row.bias_bound / norm,
        row.relative_bias,
        result.reference_standard_error / norm,
        row.cosine,
    )
    return {
        name: torch.nan if value is None else value
        for name, value in zip(NAMES, values, strict=True)
    }


def _at_first_bits(estimator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The estimator of all bits, whose gradient is zero at all logits but the first."""

    def function(logits: Tensor, f: Callable[[Tensor], Tensor], **options: Any) -> Tensor:
        first, others = logits[..., :FIRST], logits[..., FIRST:].detach()
        seen = torch.cat([first, others], -1)
        return discretegrad.expectation(seen, f, estimator, **options)

    return function


def flip_estimator(
    logits: Tensor, f: Callable[[Tensor], Tensor], *, generator: torch.Generator, **_: Any
) -> Tensor:
    r"""An unbiased estimate of the gradient at the first logits, with little noise.

    At bit i it is p (1 - p) [f(b with bit i = 1) - f(b with bit i = 0)], where b is one draw of all
    bits and p the probability of a 1. All that is random in it is how the other bits change that
    difference. It takes two evaluations of f for each of the first bits.

    Returns:
        Something that has this gradient. Its value says nothing.
    """
    probs = logits.detach().sigmoid()
    drawn = (torch.rand(probs.shape, generator=generator, device=probs.device) < probs).to(probs)
    first = probs[..., :FIRST]
    changes = []
    with torch.no_grad():
        for bit in torch.arange(first.shape[-1], device=probs.device).split(1):
            changes.append(f(drawn.index_fill(-1, bit, 1)) - f(drawn.index_fill(-1, bit, 0)))
    slopes = first * (1 - first) * torch.stack(changes, -1)
    return (slopes * logits[..., :FIRST]).sum(-1)


def _options(run: BernoulliVae, point: Point) -> dict[str, Any]:
    """Those of the line, with what its estimator has learned."""
    options = dict(run.line.options) | point.learned
    options |= {"tau": run.tau} if run.line.has_tau else {}
    options |= {"num_draws": run.draws} if run.line.takes("num_draws") else {}
    if run.line.row == "relax":
        network = point.learned["control"]
        # which sees the image beside the bits before they were made discrete
        options["control"] = lambda z: network(
            torch.cat([point.x.to(z.dtype).expand(*z.shape[:-1], -1), z], -1)
        )
    return options
