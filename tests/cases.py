"""The cases that the rules for every sampler run over, derived from the registry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from discretegrad import ESTIMATORS, Estimator

SAMPLERS = {name: row for name, row in ESTIMATORS.items() if row.kind == "sampler"}

# the options under which a row is tested; a row that is not listed has none
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gumbel_softmax": ({}, {"hard": False}),
    "gumbel_rao": ({"num_draws": 3},),
    "gapped": ({}, {"gap": "p"}),
    "mean_baseline": ({}, {"order": 1}, {"as_released": True}),
}

# for one formula computed along two paths: sums in another order, or another closed form
TOLERANCES = {
    torch.float64: {"rtol": 1e-11, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
}


@dataclass(frozen=True)
class Case:
    """A sampler with its options."""

    estimator: Estimator
    family: str
    options: Mapping[str, Any]

    def __post_init__(self):
        # looked up here, because compiled code of torch 2.6 cannot read a read-only mapping
        object.__setattr__(self, "function", self.estimator.functions[self.family])
        object.__setattr__(self, "function_at", self.estimator.functions_at[self.family])

    def __str__(self):
        options = [f"{name}={value}" for name, value in self.options.items()]
        return "-".join([self.family, self.estimator.name, *options])

    @property
    def categorical(self) -> bool:
        return self.family == "categorical"

    @property
    def hard(self) -> bool:
        """Whether the sample is discrete: it is, unless ``hard=False`` asks for the relaxed one."""
        return self.options.get("hard", True)

    def sample(self, logits, tau=1.0, **arguments) -> Tensor:
        return self.function(logits, tau, **self.options, **arguments)

    def sample_at(self, logits, draw, noise, tau=1.0, **arguments) -> Tensor:
        """The deterministic half; ``noise`` is None where the estimator takes none."""
        given = (draw,) if noise is None else (draw, noise)
        options = {name: value for name, value in self.options.items() if name != "num_draws"}
        return self.function_at(logits, *given, tau, **options, **arguments)

    def draw(self, logits, dim=-1, seed=1) -> Tensor:
        """A draw for these logits in the form that ``sample_at`` takes."""
        fixed = logits.detach().double()
        if not self.categorical:
            return fixed.sigmoid().bernoulli(generator=seeded(seed))
        probs = fixed.movedim(dim, -1).softmax(-1)
        index = probs.flatten(0, -2).multinomial(1, generator=seeded(seed))
        return index.reshape(probs.shape[:-1])

    def noise(self, logits, seed=2) -> Tensor | None:
        """Noise for these logits in the form that ``sample_at`` takes."""
        if not self.estimator.noise:
            return None
        draws = (self.options["num_draws"],) if "num_draws" in self.options else ()
        uniform = torch.rand(*draws, *logits.shape, generator=seeded(seed), dtype=torch.float64)
        uniform = uniform.clamp(1e-6, 1 - 1e-6)
        return (-uniform.log() if self.categorical else uniform.logit()).to(logits.dtype)


CASES = [
    Case(estimator, family, options)
    for estimator in SAMPLERS.values()
    for options in VARIANTS.get(estimator.name, ({},))
    for family in estimator.families
]


def each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Run a test for each of these cases."""
    return pytest.mark.parametrize("case", cases, ids=str)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Seeded normal numbers, the same for every dtype up to rounding."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def weights_like(x: Tensor) -> Tensor:
    """The gradient that tests send into a sample: seeded, and different everywhere."""
    return normal(*x.shape, seed=11, dtype=x.dtype)


def gradient(sample: Tensor, logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """What the logits get for the loss ``(sample * weights).sum()``."""
    weights = weights_like(sample) if weights is None else weights
    return torch.autograd.grad((sample * weights).sum(), logits)[0]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCES[expected.dtype])


def assert_discrete(sample: Tensor, family: str, dim: int = -1) -> None:
    """Ones and zeros to the last bit (no -0.0), and one one per row for the categorical family."""
    assert ((sample == 0) | (sample == 1)).all()
    assert not sample.signbit().any()
    if family == "categorical":
        assert ((sample == 1).sum(dim) == 1).all()
