"""Which gradient a router gets, by enumeration: writes data/router_gradients.csv.

One of 8 experts runs. Its output, 8 random numbers, is multiplied by its probability, a shift is
added, and the loss is a random combination of the tanh of it; steepness multiplies the outputs.
200 random problems. The true gradient has two parts, of routing and of gating. Nothing is drawn
but the problems: bias and deviation are sums over all draws and all multipliers.

    python docs/scripts/router_gradients.py
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

import discretegrad

RESULT = Path(__file__).parent.parent / "data" / "router_gradients.csv"
STEEPNESS = (0.5, 1.0, 2.0, 4.0)
_PROBLEMS, _EXPERTS, _WIDTH = 200, 8, 8
# the chance that the weight is the whole probability
_WHOLE = {1: 1 / 2, 2: 1 / 4}


class Problem(NamedTuple):
    """Logits, the outputs of the experts, and what makes a loss of an output."""

    logits: Tensor
    outputs: Tensor
    shift: Tensor
    mix: Tensor

    def loss(self, weights: Tensor) -> Tensor:
        """The loss if every expert has its weight (..., experts), of which most are 0."""
        return (weights @ self.outputs + self.shift).tanh() @ self.mix


def problems(steepness: float) -> Iterator[Problem]:
    """Random problems."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(_PROBLEMS):
        sizes = ((_EXPERTS,), (_EXPERTS, _WIDTH), (_WIDTH,), (_WIDTH,))
        logits, outputs, *rest = (
            torch.randn(size, dtype=torch.float64, generator=generator) for size in sizes
        )
        yield Problem(logits, steepness * outputs, *rest)


def targets(problem: Problem) -> dict[str, Tensor]:
    """The gradients of the expected loss: by the choice of experts, by their weights, by both."""
    probs, experts = problem.logits.softmax(-1), torch.eye(_EXPERTS).double()

    def loss(weight: Tensor, expert: Tensor) -> Tensor:
        return problem.loss(weight * expert)

    jacobian = torch.diag(probs) - torch.outer(probs, probs)
    routing = vmap(loss)(probs, experts) @ jacobian
    gating = (probs * vmap(grad(loss))(probs, experts)) @ jacobian
    return {"routing": routing, "gating": gating, "both": routing + gating}


def sparse_mixer(
    problem: Problem, version: int, *, reduce_best: bool = False
) -> tuple[Tensor, Tensor]:
    """The chance and the gradient of every draw: of an expert, and of its multiplier."""
    expert = torch.arange(_EXPERTS).repeat(2).unsqueeze(-1)
    whole = torch.tensor([0.0, 1.0]).double().repeat_interleave(_EXPERTS)
    copies = problem.logits.expand(2 * _EXPERTS, -1).clone().requires_grad_()
    weights, _ = discretegrad.sparse_mixer(
        copies,
        version=version,
        reduce_best=reduce_best,
        given=expert,
        noise=0.99 * whole.unsqueeze(-1),
        jitter_eps=math.inf,
    )
    loss = problem.loss(torch.zeros_like(copies).scatter(-1, expert, weights))
    (gradients,) = torch.autograd.grad(loss.sum(), copies)
    chance = whole * _WHOLE[version] + (1 - whole) * (1 - _WHOLE[version])
    return problem.logits.softmax(-1).repeat(2) * chance, gradients


def drawn(problem: Problem, choose: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The same if the weight is the probability, and ``choose`` makes the one-hot of an expert."""
    copies = problem.logits.expand(_EXPERTS, -1).clone().requires_grad_()
    loss = problem.loss(choose(copies, torch.arange(_EXPERTS)) * copies.softmax(-1))
    return problem.logits.softmax(-1), torch.autograd.grad(loss.sum(), copies)[0]


def _constant(logits: Tensor, expert: Tensor) -> Tensor:
    return torch.eye(_EXPERTS).to(logits)[expert]


ROUTERS: dict[str, Callable[[Problem], tuple[Tensor, Tensor]]] = {
    "version 1": lambda problem: sparse_mixer(problem, 1),
    "version 2": lambda problem: sparse_mixer(problem, 2),
    "version 1, reduce_best": lambda problem: sparse_mixer(problem, 1, reduce_best=True),
    "version 2, reduce_best": lambda problem: sparse_mixer(problem, 2, reduce_best=True),
    "backpropagation alone": lambda problem: drawn(problem, _constant),
    "ReinMax, all experts": lambda problem: drawn(
        problem, lambda logits, expert: discretegrad.reinmax(logits, given=expert)
    ),
    "ST, all experts": lambda problem: drawn(
        problem, lambda logits, expert: discretegrad.straight_through(logits, given=expert)
    ),
}


def errors(problem: Problem) -> dict[str, list[float]]:
    """For every router its bias for each target, and its deviation, relative to that of both."""
    true = targets(problem)
    moments = {}
    for name, router in ROUTERS.items():
        chance, gradients = router(problem)
        mean = chance @ gradients
        biases = [float((mean - x).norm() / x.norm()) for x in true.values()]
        variance = chance @ (gradients - mean).square().sum(-1)
        moments[name] = [*biases, float(variance.sqrt() / true["both"].norm())]
    return moments


def rows(steepness: Iterable[float] = STEEPNESS) -> Iterator[dict[str, str]]:
    """One row for each steepness and router: medians over the problems."""
    for s in steepness:
        by_problem = [errors(problem) for problem in problems(s)]
        for name in ROUTERS:
            values = torch.tensor([moments[name] for moments in by_problem]).quantile(0.5, 0)
            columns = zip(("routing", "gating", "both", "deviation"), values.tolist(), strict=True)
            yield {"router": name, "steepness": str(s)} | {key: f"{x:.4f}" for key, x in columns}


def main() -> None:
    """Write the result."""
    with RESULT.open("w", newline="") as file:
        columns = ["router", "steepness", "routing", "gating", "both", "deviation"]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


if __name__ == "__main__":
    main()
