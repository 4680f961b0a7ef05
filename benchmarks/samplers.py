"""Samplers as providers: how they are called, and the gate that their numbers must pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import calls
import plain
import torch
from machine import Unavailable
from measure import Work
from torch import Tensor
from torch.nn.functional import gumbel_softmax

WHOLE = 2**23  # larger tensors are compared with float64 ...
GATE_ROWS = 32  # ... in so many rows at either end
# of the largest entry; others than this library may compute in bfloat16 all along
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-3}
SLACK_OF_OTHERS = 10
REINMAX, PYPI = "reinmax", "PyPI reinmax"


@dataclass(frozen=True)
class Sampler:
    """A sampler as a user would call it."""

    name: str
    sample: calls.Sample
    ours: bool = True
    reinmax_tau: float | None = None
    """The temperature of the ReinMax formula that its gradient must match, if it must."""
    bits: bool = False
    """Whether it is for Bernoulli variables."""
    compiled: bool = False


def torch_gumbel_softmax(name: str) -> Sampler:
    return Sampler(name, partial(gumbel_softmax, hard=True), ours=False)


def pypi_reinmax(logits: Tensor) -> Tensor:
    try:
        return calls.pypi_reinmax(logits)
    except ImportError as error:
        raise Unavailable("not installed") from error


PYPI_REINMAX = Sampler(PYPI, pypi_reinmax, ours=False, reinmax_tau=1.0)


def sampler_work(sampler: Sampler, logits: Tensor, cotangent: Tensor, **rest: Any) -> Work:
    """Forward and backward with a fixed gradient at the sample."""
    sample = sampler.sample
    if sampler.compiled:
        sample = torch.compile(sample, fullgraph=True, dynamic=False)

    def backward(output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, logits, cotangent)

    def gate() -> list[str]:
        output = sample(logits)
        return sampler_faults(sampler, logits, cotangent, output, *backward(output))

    return Work(sampler.name, lambda: sample(logits), backward, gate, ours=sampler.ours, **rest)


@torch.no_grad()
def sampler_faults(
    sampler: Sampler, logits: Tensor, cotangent: Tensor, sample: Tensor, gradient: Tensor
) -> list[str]:
    """What is wrong with a sample and a gradient; of large tensors the rows at both ends."""
    faults = []
    if sampler.ours and not _is_exact(sample, sampler.bits):
        faults.append("its sample is not exactly one-hot")
    if not gradient.isfinite().all():
        return [*faults, "its gradient is not finite"]
    tolerance = tolerance_of(cotangent, sampler.ours)
    logits, g, sample, gradient = map(_ends, (logits.detach(), cotangent, sample, gradient))
    scale = max(gradient.abs().max().item(), 1.0)
    if sampler.ours and not sampler.bits and gradient.sum(-1).abs().max() > tolerance * scale:
        faults.append("the rows of its gradient do not sum to zero")
    if sampler.reinmax_tau is not None:
        if sampler.bits:
            expected = g * torch.sigmoid(torch.where(sample > 0, -logits, logits)) / 2
        else:
            z = (sample > 0.5).double()  # that of another library may be one-hot up to rounding
            expected = plain.reinmax_formula(logits, g, z, sampler.reinmax_tau)
        faults += off_formula([gradient], [expected], tolerance)
    return faults


def tolerance_of(like: Tensor, ours: bool) -> float:
    return TOLERANCE[str(like.dtype).removeprefix("torch.")] * (1 if ours else SLACK_OF_OTHERS)


def _ends(x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return (x if x.numel() <= WHOLE else torch.cat([rows[:GATE_ROWS], rows[-GATE_ROWS:]])).double()


def _is_exact(sample: Tensor, bits: bool) -> bool:
    if bits:
        return bool(((sample == 0) | (sample == 1)).all())
    one_each = ((sample != 0).sum(-1) == 1).all() and (sample.amax(-1) == 1).all()
    return bool(one_each)


def off_formula(
    gradients: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float
) -> list[str]:
    """Whether the largest difference is too large, relative to the largest entry expected."""
    pairs = zip(gradients, expected, strict=True)
    errors = [((x.double() - y).abs().max() / y.abs().max()).item() for x, y in pairs]
    if all(error < tolerance for error in errors):
        return []
    shown = ", ".join(f"{error:.1e}" for error in errors)
    return [f"its gradient is off the float64 formula by {shown} of its size"]
