"""How the gradients of an estimator compare with the exact ones, at a model in training.

The loss of an image whose gradient needs an estimator is the expected reconstruction; its gradient
at the logits is known by enumerating all joint codes. The first images of the training set are
taken as one problem, as in the released code: the cosine is that of the gradients of all of them
together, and so are bias and deviation.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import discretegrad

from ...stack.layers import of_member
from ...stack.noise import mixed
from ...stack.precision import full_precision
from ..base import Metric
from .config import Vae

IMAGES, DRAWS = 100, 1024
STOPS = (1, 2, 4, 10, 20, 40, 80, 160)
"""Epochs after which gradients are compared; after the last one they always are."""
METRICS = (
    Metric("gradient_cosine", "cosine of the mean gradient", 3, "up"),
    Metric("gradient_cosine_of_one", "cosine of one estimate", 3, "up"),
    Metric("gradient_bias", "relative bias", 3),
    Metric("gradient_deviation", "relative standard deviation", 2),
)
NAMES = tuple(metric.name for metric in METRICS)
_AT_ONCE = 256
# what rounding leaves of a gradient that is zero, at losses of some hundreds
_ZERO = 1e-10
_STREAM = 4


class Point(NamedTuple):
    """A model in training, at some images."""

    logits: Tensor
    """(images, latents, categories)."""
    f: Callable[[Tensor], Tensor]
    """From a sample of the shape of the logits to the loss of each image."""
    epoch: int


def reconstruction(decoder: nn.Module, member: int, images: Tensor) -> Callable[[Tensor], Tensor]:
    """The cross entropy of each image, as a function of samples of the latent variables.

    In the precision of the samples.
    """
    decode = of_member(decoder, member)

    def f(z: Tensor) -> Tensor:
        pixels = decode(z.flatten(-2))
        return (softplus(pixels) - images.to(z.dtype) * pixels).sum(-1)

    return f


def compare_gradients(run: Vae, point: Point) -> dict[str, float]:
    """``NAMES`` for the estimator of a run, by ``discretegrad.diagnose``; NaN if undefined.

    Bias and deviation are relative to the norm of the exact gradient. All of it is NaN where that
    gradient is zero.
    """
    logits, f = point.logits.detach(), point.f
    options = dict(run.line.options)
    options |= {"tau": run.tau} if run.line.takes("tau") else {}
    options |= {"num_draws": run.draws} if run.line.takes("num_draws") else {}
    generator = torch.Generator(logits.device)
    generator.manual_seed(mixed(run.seed, point.epoch, _STREAM))
    with full_precision():
        # in double precision, since it is a sum of large numbers that nearly cancel
        exact = discretegrad.exact_gradient(logits.double(), f, chunk_size=_AT_ONCE)
        if exact.norm() < _ZERO:
            return dict.fromkeys(NAMES, torch.nan)
        row = discretegrad.diagnose(
            logits,
            # one problem, not one for each image
            lambda z: f(z).sum(),
            {run.line.label: (run.line.function, options)},
            num_draws=DRAWS,
            generator=generator,
            reference=exact,
            chunk_size=_AT_ONCE,
            progress=False,
        ).rows[0]
    if not row.applicable:
        raise RuntimeError(f"{row.label}: {row.status}")
    values = (row.cosine_of_mean, row.cosine, row.relative_bias, row.relative_deviation)
    return {
        name: torch.nan if value is None else value
        for name, value in zip(NAMES, values, strict=True)
    }
