"""What is measured: the shapes, the samplers side by side, and the targets they must meet."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import reinmax as pypi
import torch
from measure import reinmax_formula
from torch import Tensor
from torch.nn.functional import gumbel_softmax

import discretegrad

DTYPE = torch.float32
# float32 against float64, relative to the largest entry of the gradient
GATE_TOLERANCE = 1e-5

TORCH = "torch gumbel_softmax(hard=True)"
PYPI = "PyPI reinmax"
REINMAX = "reinmax"


@dataclass(frozen=True)
class Provider:
    """One sampler as a user would call it."""

    name: str
    sample: Callable[[Tensor], Tensor]
    ours: bool
    reinmax_tau: float | None = None
    """The temperature of the ReinMax formula that its gradient must match, if it must."""


@dataclass(frozen=True)
class Case:
    """One shape, and how many calls make a block and how many blocks a median."""

    shape: tuple[int, int]
    calls: int
    warmups: int
    rounds: int

    @property
    def name(self) -> str:
        """The shape as it appears in the results."""
        return "x".join(map(str, self.shape))


@dataclass(frozen=True)
class Target:
    """A promise about ``reinmax`` tau 1 at one shape."""

    shape: str
    quantity: str
    """A column of the results: how many times as fast as a baseline, or a share of its memory."""
    baseline: str
    limit: float

    @property
    def is_speed(self) -> bool:
        """Whether more is better."""
        return self.quantity.startswith("speedup")


class Inputs(NamedTuple):
    """What every call gets: leaf logits and the gradient at the sample."""

    logits: Tensor
    cotangent: Tensor


CASES = (
    Case((4096, 1024), calls=5, warmups=1, rounds=11),
    Case((64, 131072), calls=5, warmups=1, rounds=11),
    Case((3000, 10), calls=30, warmups=3, rounds=41),
    Case((400, 8), calls=30, warmups=3, rounds=81),
)

# the default of 100 draws would take minutes a call at the largest shape
_OPTIONS = {"gumbel_rao": {"num_draws": 10}}

PROVIDERS = (
    Provider(TORCH, partial(gumbel_softmax, hard=True), ours=False),
    Provider(PYPI, lambda logits: pypi.reinmax(logits, 1.0)[0], ours=False, reinmax_tau=1.0),
    Provider(REINMAX, discretegrad.reinmax, ours=True, reinmax_tau=1.0),
    Provider("reinmax tau=1.3", partial(discretegrad.reinmax, tau=1.3), True, reinmax_tau=1.3),
    *(
        Provider(
            " ".join([name, *(f"{key}={value}" for key, value in _OPTIONS.get(name, {}).items())]),
            partial(row.functions["categorical"], **_OPTIONS.get(name, {})),
            ours=True,
        )
        for name, row in discretegrad.ESTIMATORS.items()
        if row.kind == "sampler" and name != REINMAX
    ),
)

_SPEED = {
    "4096x1024": (5.0, 6.0),
    "64x131072": (5.0, 6.0),
    "3000x10": (1.8, 1.8),
    "400x8": (1.0, 1.0),
}
TARGETS = (
    *(Target(shape, "speedup_torch", TORCH, limit) for shape, (limit, _) in _SPEED.items()),
    *(Target(shape, "speedup_pypi", PYPI, limit) for shape, (_, limit) in _SPEED.items()),
    *(Target(shape, "memory_share_pypi", PYPI, 0.5) for shape in _SPEED),
)


def make_inputs(shape: tuple[int, int]) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator, dtype=DTYPE).requires_grad_()
    return Inputs(logits, torch.randn(shape, generator=generator, dtype=DTYPE))


def forward_backward(provider: Provider, inputs: Inputs) -> tuple[Tensor, Tensor]:
    sample = provider.sample(inputs.logits)
    (gradient,) = torch.autograd.grad(sample, inputs.logits, inputs.cotangent)
    return sample, gradient


def gate(provider: Provider, inputs: Inputs) -> list[str]:
    """What is wrong with the numbers this sampler computes; empty if nothing is."""
    sample, gradient = forward_backward(provider, inputs)
    sample, gradient = sample.detach(), gradient.double()
    faults = []
    index = sample.argmax(-1, keepdim=True)
    one_hot = torch.zeros_like(sample).scatter_(-1, index, 1.0)
    if provider.ours and not torch.equal(sample, one_hot):
        faults.append("its sample is not exactly one-hot")
    if not gradient.isfinite().all():
        return [*faults, "its gradient is not finite"]
    scale = max(gradient.abs().max().item(), 1.0)
    # torch's own rows miss zero by more than this at 131072 categories
    if provider.ours and gradient.sum(-1).abs().max().item() > GATE_TOLERANCE * scale:
        faults.append("the rows of its gradient do not sum to zero")
    if provider.reinmax_tau is not None:
        logits, g = inputs.logits.detach().double(), inputs.cotangent.double()
        expected = reinmax_formula(logits, g, one_hot.double(), provider.reinmax_tau)
        error = (gradient - expected).abs().max().item() / expected.abs().max().item()
        if not error < GATE_TOLERANCE:
            faults.append(f"its gradient is off the float64 formula by {error:.1e} of its size")
    return faults
