"""Bias and variance of every estimator, by enumeration: writes data/bias_and_variance.csv.

The problems are small enough to sum over all outcomes: two variables with four categories each,
32 random problems for every kind of function f. Draws are enumerated. Only the noise of the Gumbel
family, which has no finite set of outcomes, is drawn, from a fixed seed.

    python docs/scripts/bias_and_variance.py
"""

import csv
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import discretegrad

RESULT = Path(__file__).parent.parent / "data" / "bias_and_variance.csv"
NUM_NOISE = 2**14
_CHUNK = 2**10
_PROBLEMS, _VARIABLES, _CATEGORIES, _TERMS = 32, 2, 4, 8
_LOW = (0.1, 0.3, 0.5, 0.7)
_HIGH = (1.0, 1.1, 1.3, 1.5, 2.0)
_SHARP = (2.0, 4.0)
# far below every temperature in use, to watch gumbel_rao on its way to reinmax
_COLD = (0.001, 0.01)


class Variant(NamedTuple):
    """An estimator with its options, as papers write it."""

    label: str
    name: str
    options: dict[str, object]
    taus: tuple[float, ...]


VARIANTS = (
    Variant("ReinMax", "reinmax", {}, _LOW + _HIGH),
    Variant("ST", "straight_through", {}, _LOW + _HIGH),
    Variant("STGS", "gumbel_softmax", {}, _LOW + _HIGH),
    Variant("GR-MCK", "gumbel_rao", {}, _COLD + _LOW + _HIGH),
    Variant("GST-1.0", "gapped", {"gap": 1.0}, _LOW + _HIGH),
    Variant("GST-p", "gapped", {"gap": "p"}, _LOW + _HIGH),
    # below 1 their weights explode
    Variant("1/n, order 1", "mean_baseline", {"order": 1}, _HIGH),
    Variant("1/n, order 2", "mean_baseline", {"order": 2}, _HIGH),
    Variant("1/n, as released", "mean_baseline", {"order": 2, "as_released": True}, _HIGH),
    Variant("Blend 0.5", "blend", {"weight": 0.5}, _LOW + _HIGH),
)


class Moments(NamedTuple):
    """Averages over the problems, relative to the length of the true gradient."""

    bias: float
    """Length of the mean error."""
    deviation: float
    """Square root of the summed variances of one estimate."""
    cosine: float
    """Between the mean estimate and the true gradient."""


class Problems(NamedTuple):
    """Logits (problems, 2, 4), and functions of samples (..., problems, 2, 4)."""

    logits: Tensor
    functions: dict[str, Callable[[Tensor], Tensor]]


class Outcomes(NamedTuple):
    """Every joint outcome of every problem."""

    drawn: Tensor
    """Categories, (outcomes, problems, 2)."""
    prob: Tensor
    """Probability, (outcomes, problems)."""
    g: Tensor
    """Gradient of f at the outcome, (outcomes, problems, 2, 4)."""
    true: Tensor
    """The gradient to be estimated, (problems, 2, 4)."""


class Surrogates(NamedTuple):
    """An estimate is linear in the gradient of f: S g. Moments of the matrix S given the draw."""

    mean: Tensor
    """E[S], (problems, 2, drawn category, 4, 4)."""
    square: Tensor
    """E[S^T S], of the same shape."""


def problems() -> Problems:
    """Sums of first, second and third powers, and networks from gentle to steep."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(_PROBLEMS, *shape, dtype=torch.float64, generator=generator)

    logits = normal(_VARIABLES, _CATEGORIES)
    weight = normal(_VARIABLES * _CATEGORIES, _TERMS)
    shift, output = normal(_TERMS), normal(_TERMS)

    def terms(z: Tensor) -> Tensor:
        return torch.einsum("...pi,pij->...pj", z.flatten(-2), weight)

    def network(steepness: float) -> Callable[[Tensor], Tensor]:
        return lambda z: ((steepness * terms(z) + shift).tanh() * output).sum(-1)

    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "linear": lambda z: (terms(z) + shift).sum(-1),
        "quadratic": lambda z: (terms(z) + shift).square().sum(-1),
        "cubic": lambda z: (terms(z) + shift).pow(3).sum(-1),
    }
    functions |= {f"network, steepness {s}": network(s) for s in (0.25, 0.5, 1.0, 2.0)}
    return Problems(logits, functions)


def surrogates(logits: Tensor, variant: Variant, tau: float, num_noise: int) -> Surrogates:
    """The moments of S for every category that can be drawn, over the noise if there is any."""
    row = discretegrad.get(variant.name)
    num_draws = row.options.get("num_draws")
    # an average over many draws needs fewer repetitions
    noisy = "noise" in row.takes
    repeats = 1 if not noisy else num_noise if num_draws is None else num_noise // num_draws
    chunk = repeats if num_draws else min(repeats, _CHUNK)
    generator = torch.Generator().manual_seed(1)
    mean = square = torch.zeros(())
    for _ in range(repeats // chunk):
        copies = logits.unsqueeze(-2).expand(chunk, *logits.shape[:-1], _CATEGORIES, -1)
        copies = copies.clone().requires_grad_()
        draw = {"given": torch.arange(_CATEGORIES).expand(copies.shape[:-1])}
        if noisy:
            shape = copies.shape if num_draws is None else (num_draws, *copies.shape)
            uniform = torch.rand(shape, dtype=logits.dtype, generator=generator)
            draw["noise"] = -torch.log1p(-uniform.clamp_min(1e-12))
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "(reinmax|straight_through|blend): tau="
            )  # unusual on purpose
            sample = row.function(copies, tau, **draw, **variant.options)
        columns = [
            torch.autograd.grad(sample[..., j].sum(), copies, retain_graph=True)[0]
            for j in range(_CATEGORIES)
        ]
        s = torch.stack(columns, -1)
        mean = mean + s.sum(0) / repeats
        square = square + torch.einsum("m...ij,m...ik->...jk", s, s) / repeats
    return Surrogates(mean, square)


def outcomes(logits: Tensor, f: Callable[[Tensor], Tensor]) -> Outcomes:
    """All joint outcomes."""
    every = torch.tensor(list(itertools.product(range(_CATEGORIES), repeat=_VARIABLES)))
    index = every[:, None, :, None].expand(-1, _PROBLEMS, -1, 1)
    shape = (len(every), *logits.shape)
    z = torch.zeros(shape, dtype=logits.dtype).scatter_(-1, index, 1.0).requires_grad_()
    (g,) = torch.autograd.grad(f(z).sum(), z)
    prob = logits.log_softmax(-1).expand(shape).gather(-1, index).sum((-2, -1)).exp()
    return Outcomes(index.squeeze(-1), prob, g, discretegrad.exact_gradient(logits, f))


def moments(outcomes: Outcomes, s: Surrogates) -> Moments:
    """Bias and spread of the estimate over all joint outcomes."""
    drawn, prob, g, true = outcomes
    problem, variable = torch.meshgrid(
        torch.arange(_PROBLEMS), torch.arange(_VARIABLES), indexing="ij"
    )
    given_draw = (s.mean[problem, variable, drawn] @ g.unsqueeze(-1)).squeeze(-1)
    square = torch.einsum("...i,...ij,...j->...", g, s.square[problem, variable, drawn], g).sum(-1)
    mean = (prob[..., None, None] * given_draw).sum(0)
    variance = (prob * square).sum(0) - mean.square().sum((-2, -1))
    length = true.norm()
    return Moments(
        bias=float((mean - true).norm() / length),
        deviation=float(variance.clamp_min(0).sum().sqrt() / length),
        cosine=float(torch.cosine_similarity(mean.flatten(1), true.flatten(1)).mean()),
    )


class Setting(NamedTuple):
    """What is varied besides f."""

    variant: Variant
    tau: float
    logit_scale: float


def settings() -> Iterator[Setting]:
    """Every temperature on the given logits, and temperature 1 on sharper distributions."""
    for variant in VARIANTS:
        yield from (Setting(variant, tau, 1.0) for tau in variant.taus)
        yield from (Setting(variant, 1.0, scale) for scale in _SHARP)


def rows(chosen: Iterable[Setting], num_noise: int = NUM_NOISE) -> Iterator[dict[str, str]]:
    """One row for each setting and function."""
    logits, functions = problems()
    enumerated = {
        (scale, kind): outcomes(scale * logits, f)
        for scale in (1.0, *_SHARP)
        for kind, f in functions.items()
    }
    for variant, tau, scale in chosen:
        s = surrogates(scale * logits, variant, tau, num_noise)
        for kind in functions:
            result = moments(enumerated[scale, kind], s)._asdict()
            yield {
                "estimator": variant.label,
                "tau": str(tau),
                "logit_scale": str(scale),
                "f": kind,
                **{name: f"{value:.4f}" for name, value in result.items()},
            }


def main() -> None:
    """Write the result."""
    with RESULT.open("w", newline="") as file:
        columns = ["estimator", "tau", "logit_scale", "f", *Moments._fields]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(settings()))


if __name__ == "__main__":
    main()
