"""When second order helps on subsets, by enumeration: writes data/subset_orders.csv.

For subsets of k of 16 items, 32 random networks with one hidden layer of tanh. The weights are
scaled by 1 / sqrt(k), so that a hidden unit sees the same spread for every k; steepness multiplies
that. Nothing is drawn but the problems: bias and deviation are sums over all subsets.

    python docs/scripts/subset_orders.py
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import discretegrad

RESULT = Path(__file__).parent.parent / "data" / "subset_orders.csv"
SIZES = (1, 2, 4, 8)
STEEPNESS = (0.25, 0.5, 1.0, 2.0)
_PROBLEMS, _ITEMS, _HIDDEN = 32, 16, 8
VARIANTS: dict[str, tuple[str, dict[str, float]]] = {
    "ST": ("straight_through", {}),
    "ReinMax": ("reinmax", {}),
    "Blend 0.5": ("blend", {"weight": 0.5}),
}


def problems() -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Logits, and the weights, shifts and output weights of a network."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(_PROBLEMS):
        sizes = ((_ITEMS,), (_ITEMS, _HIDDEN), (_HIDDEN,), (_HIDDEN,))
        yield tuple(torch.randn(size, dtype=torch.float64, generator=generator) for size in sizes)


def network(
    weight: Tensor, shift: Tensor, output: Tensor, scale: float
) -> Callable[[Tensor], Tensor]:
    """A function of subsets."""
    return lambda z: (scale * (z @ weight) + shift).tanh() @ output


def errors(k: int, steepness: float, problem: tuple[Tensor, ...]) -> dict[str, tuple[float, float]]:
    """Bias and deviation of every variant, relative to the length of the true gradient."""
    logits, *weights = problem
    family = discretegrad.Subset(k)
    subsets = family.outcome(logits, torch.arange(family.outcomes(logits))).double()
    f = network(*weights, steepness / k**0.5)
    probs = (subsets @ logits).softmax(0)
    scores = subsets - probs @ subsets
    true = (probs * f(subsets)) @ scores
    moments = {}
    for label, (name, options) in VARIANTS.items():
        copies = logits.expand(subsets.shape).clone().requires_grad_()
        sample = discretegrad.get(name).function(copies, family=family, given=subsets, **options)
        (gradients,) = torch.autograd.grad(f(sample).sum(), copies)
        mean = probs @ gradients
        variance = probs @ (gradients - mean).square().sum(-1)
        moments[label] = (
            float((mean - true).norm() / true.norm()),
            float(variance.sqrt() / true.norm()),
        )
    return moments


def rows(
    sizes: Iterable[int] = SIZES, steepness: Iterable[float] = STEEPNESS, count: int = _PROBLEMS
) -> Iterator[dict[str, str]]:
    """One row for each size, steepness and variant: the median over the problems."""
    steepness, chosen = tuple(steepness), list(problems())[:count]
    for k in sizes:
        for s in steepness:
            by_problem = [errors(k, s, problem) for problem in chosen]
            for label in VARIANTS:
                values = torch.tensor([moments[label] for moments in by_problem])
                bias, deviation = values.quantile(0.5, 0).tolist()
                yield {
                    "estimator": label,
                    "k": str(k),
                    "steepness": str(s),
                    "bias": f"{bias:.4f}",
                    "deviation": f"{deviation:.4f}",
                }


def main() -> None:
    """Write the result."""
    with RESULT.open("w", newline="") as file:
        columns = ["estimator", "k", "steepness", "bias", "deviation"]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


if __name__ == "__main__":
    main()
