"""Newer estimators without a row, beside ST and ReinMax: writes data/newer_estimators.csv.

One variable of 8 categories, 200 random problems: a quadratic function, or a random combination of
the tanh of a linear map, whose outputs are multiplied by a steepness. Draws are enumerated; the
mean over the Gumbel noise of ReinMax-Rao and ReinMax-CV is that of 1024 draws of it.

    python docs/scripts/newer_estimators.py
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

import discretegrad

RESULT = Path(__file__).parent.parent / "data" / "newer_estimators.csv"
LOSSES = ("quadratic", "steepness 0.5", "steepness 1.0", "steepness 2.0")
_PROBLEMS, _N, _DRAWS = 200, 8, 1024


class Problem(NamedTuple):
    """Logits, and a function of the one-hot."""

    logits: Tensor
    f: Callable[[Tensor], Tensor]
    noise: Tensor
    """Exponential, (draws, 1, categories)."""

    @property
    def probs(self) -> Tensor:
        """Of the categories."""
        return self.logits.softmax(-1)

    @property
    def slopes(self) -> Tensor:
        """The gradient of f at every category, (categories, categories)."""
        return vmap(grad(self.f))(torch.eye(_N).to(self.logits))

    def true_gradient(self) -> Tensor:
        """Of the mean of f."""
        return jacobian(self.probs) @ vmap(self.f)(torch.eye(_N).to(self.logits))


def problems(loss: str, count: int = _PROBLEMS) -> Iterator[Problem]:
    """Random ones."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    for _ in range(count):
        logits, matrix, shift, mix = normal(_N), normal(_N, _N), normal(_N), normal(_N)
        noise = torch.empty(_DRAWS, 1, _N, dtype=torch.float64).exponential_(generator=generator)
        if loss == "quadratic":
            yield Problem(logits, lambda z, a=matrix, b=shift: z @ a @ z + b @ z, noise)
        else:
            scale = float(loss.split()[1])
            yield Problem(
                logits, lambda z, a=scale * matrix, b=shift, c=mix: (z @ a + b).tanh() @ c, noise
            )


def jacobian(p: Tensor) -> Tensor:
    """Of a softmax whose result is p, (..., n, n)."""
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def of_library(sample: Callable[..., Tensor]) -> Callable[[Problem], Tensor]:
    """A sampler's gradients, one for each draw."""

    def gradients(problem: Problem) -> Tensor:
        copies = problem.logits.expand(_N, -1).clone().requires_grad_()
        z = sample(copies, given=torch.arange(_N))
        return torch.autograd.grad(z, copies, problem.slopes)[0]

    return gradients


def mve(t: float) -> Callable[[Problem], Tensor]:
    """Hooper and Shekhovtsov 2026: a surrogate matrix for each draw, from n linear equations."""

    def gradients(problem: Problem) -> Tensor:
        p = problem.probs
        both = 1 + t * (p[:, None] + p)
        a = -t * p[:, None] * p / both
        a += torch.diag((1 + t * p) * (p / both).sum(1))
        v = torch.linalg.solve(a, ((1 + t * p) / (1 + 2 * t * p))[:, None] * jacobian(p))
        # surrogates[x, i] is row i of the matrix of draw x
        surrogates = (1 + t * p)[:, None] * v - t * p[:, None] * v[:, None]
        surrogates += t * torch.eye(_N).double()[..., None] * jacobian(p)[:, None]
        surrogates /= both[..., None]
        return torch.einsum("xij,xi->xj", surrogates, problem.slopes)

    return gradients


def perturbed(problem: Problem, logits: Tensor) -> Tensor:
    """Logits with Gumbel noise given that category x is the largest in row x, (draws, n, n)."""
    own = torch.eye(_N, dtype=torch.bool)
    others = problem.noise / logits.softmax(-1)
    winner = problem.noise.expand(-1, _N, -1)[:, own].unsqueeze(-1)
    return -torch.where(own, winner, others + winner).log()


def smoothed(values: Tensor, tau: float) -> Tensor:
    """The Jacobian at a tempered softmax, averaged over the noise, (n, n, n)."""
    p = (values / tau).softmax(-1)
    squares = torch.einsum("mxi,mxj->xij", p, p) / len(p)
    return (torch.diag_embed(p.mean(0)) - squares) / tau


def half_way(problem: Problem) -> Tensor:
    """The logits between those and a draw, (n, n), a row for each draw."""
    return ((problem.probs + torch.eye(_N).double()) / 2).log()


def reinmax_rao(tau: float) -> Callable[[Problem], Tensor]:
    """Wang and Bui 2026: ReinMax with a smoothed Jacobian half-way between logits and draw."""

    def gradients(problem: Problem) -> Tensor:
        j = 2 * smoothed(perturbed(problem, half_way(problem)), tau) - jacobian(problem.probs) / 2
        return torch.einsum("xij,xj->xi", j, problem.slopes)

    return gradients


def reinmax_cv(tau: float, weight: float = 0.7) -> Callable[[Problem], Tensor]:
    """The same authors: ReinMax and a difference of two terms that should have the same mean.

    As released the noise of the one is given the draw at the logits, that of the other half-way.
    """
    reinmax = of_library(discretegrad.reinmax)

    def gradients(problem: Problem) -> Tensor:
        moved, logits = half_way(problem), problem.probs.log()
        at_draw = perturbed(problem, logits.expand(_N, -1)) - logits + moved
        difference = smoothed(at_draw, tau) - smoothed(perturbed(problem, moved), tau)
        return reinmax(problem) - weight * torch.einsum("xij,xj->xi", difference, problem.slopes)

    return gradients


ESTIMATORS: dict[str, Callable[[Problem], Tensor]] = {
    "ST": of_library(discretegrad.straight_through),
    "ReinMax": of_library(discretegrad.reinmax),
    "MVE, t = 1": mve(1.0),
    "MVE, t = 1e6": mve(1e6),
    "ReinMax-Rao, τ = 1": reinmax_rao(1.0),
    "ReinMax-Rao, τ = 0.5": reinmax_rao(0.5),
    "ReinMax-CV, τ = 1, without its noise": reinmax_cv(1.0),
}


def errors(problem: Problem) -> dict[str, list[float]]:
    """Bias and deviation of every estimator, relative to the length of the true gradient."""
    true, moments = problem.true_gradient(), {}
    for name, estimator in ESTIMATORS.items():
        gradients = estimator(problem)
        mean = problem.probs @ gradients
        variance = problem.probs @ (gradients - mean).square().sum(-1)
        lengths = (mean - true).norm(), variance.sqrt()
        moments[name] = [float(x / true.norm()) for x in lengths]
    return moments


def rows(losses: Iterable[str] = LOSSES, count: int = _PROBLEMS) -> Iterator[dict[str, str]]:
    """One row for each loss and estimator: medians over the problems."""
    for loss in losses:
        by_problem = [errors(problem) for problem in problems(loss, count)]
        for name in ESTIMATORS:
            values = torch.tensor([moments[name] for moments in by_problem]).quantile(0.5, 0)
            columns = zip(("bias", "deviation"), values.tolist(), strict=True)
            yield {"estimator": name, "f": loss} | {key: f"{x:.4f}" for key, x in columns}


def main() -> None:
    """Write the result."""
    with RESULT.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["estimator", "f", "bias", "deviation"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


if __name__ == "__main__":
    main()
