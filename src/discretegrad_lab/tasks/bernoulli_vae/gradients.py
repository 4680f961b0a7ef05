"""Bias and variance of an estimator's gradients, at a model in training.

Of an image, the first bits are variables and the others stay at one draw of them. So all outcomes
can be enumerated, and the gradient at the logits of those bits is known exactly.
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

FREE, IMAGES, DRAWS = 20, 4, 1000
"""Bits that are variables, training images, and estimates of each of their gradients."""
STOPS = (1, 10, 30, 100, 300, 1000)
"""Epochs after which gradients are compared; after the last one they always are."""
METRICS = (
    Metric("gradient_deviation", "relative standard deviation", 2),
    Metric("gradient_bias", "relative bias", 3),
    Metric("gradient_bias_bound", "relative bias and two standard errors", 3),
    Metric("gradient_cosine_of_one", "cosine of one estimate", 3, "up"),
)
NAMES = tuple(metric.name for metric in METRICS)
# outcomes that are evaluated at once
_AT_ONCE = 4096
# what rounding leaves of a gradient that is zero, at losses of some hundreds
_ZERO = 1e-10
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

    Bias and deviation are relative to the norm of the exact gradient of all images together. All
    of it is NaN where that gradient is zero, and for a run that has diverged.
    """
    if not point.logits.isfinite().all():
        return dict.fromkeys(NAMES, torch.nan)
    generator = torch.Generator(point.logits.device)
    generator.manual_seed(mixed(run.seed, point.epoch, _STREAM))
    logits, rest = point.logits.detach()[:, :FREE], point.logits.detach()[:, FREE:]
    noise = torch.rand(rest.shape, generator=generator, device=rest.device)
    # the draw of the other bits with what makes it: positive where the bit is 1
    perturbed = rest + noise.logit(eps=1e-7)

    def f(z: Tensor) -> Tensor:
        return point.f(_with(z, (perturbed > 0).to(z.dtype)))

    with full_precision():
        # in double precision, since it is a sum of large numbers that nearly cancel
        exact = discretegrad.exact_gradient(
            logits.double(), f, family="bernoulli", max_outcomes=2**FREE, chunk_size=_AT_ONCE
        )
        if exact.norm() < _ZERO:
            return dict.fromkeys(NAMES, torch.nan)
        row = discretegrad.diagnose(
            logits,
            f,
            {run.line.label: (run.line.function, _options(run, point, perturbed))},
            num_draws=DRAWS,
            num_samples=sample_count(run.line, run.evaluations),
            family="bernoulli",
            generator=generator,
            reference=exact,
            progress=False,
        ).rows[0]
    if not row.applicable:
        raise RuntimeError(f"{row.label}: {row.status}")
    bound = None if row.bias_bound is None else row.bias_bound / exact.norm().item()
    values = (row.relative_deviation, row.relative_bias, bound, row.cosine)
    return {
        name: torch.nan if value is None else value
        for name, value in zip(NAMES, values, strict=True)
    }


def _options(run: BernoulliVae, point: Point, perturbed: Tensor) -> dict[str, Any]:
    """Those of the line, with what its estimator has learned."""
    options = dict(run.line.options) | point.learned
    options |= {"tau": run.tau} if run.line.has_tau else {}
    options |= {"num_draws": run.draws} if run.line.takes("num_draws") else {}
    if run.line.row == "relax":
        network = point.learned["control"]
        # which sees the image, and all bits before they were made discrete
        options["control"] = lambda z: network(_with(point.x, _with(z, perturbed)))
    return options


def _with(first: Tensor, second: Tensor) -> Tensor:
    """Both beside each other in the last axis."""
    shape = torch.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    dtype = torch.promote_types(first.dtype, second.dtype)
    return torch.cat([x.to(dtype).expand(*shape, -1) for x in (first, second)], -1)
