"""Time subsets of k of n items beside torch.topk and a Gumbel top-k, and measure their memory.

Forward plus backward in float32. torch.topk draws nothing and has no gradient: it is the least that
a choice of k items costs. The Gumbel top-k draws without replacement, another distribution, and
takes the gradient of a softmax. Before it is timed, a sampler must give k ones in every row and the
gradient of float64. On a GPU each sampler runs with its kernels and, in the same rounds, in plain
torch operations.

examples:
  python benchmarks/subsets.py                  the full run, about a minute on two cores
  python benchmarks/subsets.py --quick          does it run? seconds; writes under output/
  python benchmarks/subsets.py --device cuda    the same on a GPU
"""

from collections.abc import Iterator
from functools import partial
from operator import itemgetter

import pages
import torch
from files import MADE, File, Row, with_spread
from machine import Setup
from measure import Case, Work, measured
from plain import replaced
from samplers import off_formula
from script import Benchmark
from timing import CPU_PACE, REHEARSAL
from torch import Tensor

import discretegrad

TOPK, GUMBEL = "torch topk", "Gumbel top-k"
OURS = ("straight_through", "reinmax")
IN_TORCH = '{} backend="torch"'
# rows x items, k
SHAPES = {
    "400x32, k=4": (400, 32, 4),
    "1024x256, k=8": (1024, 256, 8),
    "256x1024, k=64": (256, 1024, 64),
    "16x5000, k=100": (16, 5000, 100),
}
TOLERANCE = 1e-4

FILE = File(
    "subsets.csv",
    (
        *("provider", "mode", "shape", "rounds", "status"),
        *with_spread("seconds", "time_ratio"),
        *("peak_extra_tensors", "device", "machine", "cpu", "cores", "threads", "dtype"),
        *("python", "torch", *MADE),
    ),
    part="device",
)


def k_hot(x: Tensor, k: int) -> Tensor:
    return torch.zeros_like(x).scatter_(-1, x.topk(k, -1).indices, 1.0)


def gumbel_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest of logits with Gumbel noise, with the gradient of a softmax."""
    noise = -torch.empty_like(logits).exponential_().log()
    return replaced(k_hot((logits + noise).detach(), k), k * logits.softmax(-1))


def works(logits: Tensor, cotangent: Tensor, k: int) -> Iterator[Work]:
    """The providers, all on the same logits and gradient at the sample."""
    family = discretegrad.Subset(k)

    def backward(sample: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sample, logits, cotangent)

    def gate(name: str, backend: str) -> list[str]:
        function = partial(discretegrad.get(name).function, family=family)
        sample = function(logits, backend=backend)
        if not ((sample == 1).sum(-1) == k).all() or not ((sample == 0) | (sample == 1)).all():
            return [f"its sample has not {k} ones in every row"]
        wide = logits.detach().double().requires_grad_()
        expected = function(wide, given=sample.detach())
        (expected,) = torch.autograd.grad(expected, wide, cotangent.double())
        return off_formula(backward(sample), [expected], TOLERANCE)

    against = {"time_ratio": TOPK}
    yield Work(TOPK, lambda: k_hot(logits.detach(), k), ours=False, against=against)
    yield Work(GUMBEL, lambda: gumbel_top_k(logits, k), backward, ours=False, against=against)
    # on a CPU there is one backend
    for backend in ("auto", "torch") if logits.is_cuda else ("auto",):
        for name in OURS:
            function = discretegrad.get(name).function
            sample = partial(function, logits, family=family, backend=backend)
            provider = name if backend == "auto" else IN_TORCH.format(name)
            yield Work(provider, sample, backward, partial(gate, name, backend), against=against)


def cases(setup: Setup) -> Iterator[Case]:
    """One for each shape."""
    for shape, (rows, items, k) in SHAPES.items():
        if setup.quick:
            rows, items, k = min(rows, 8), min(items, 64), min(k, 8)
        logits = setup.random(rows, items).requires_grad_()
        yield Case(
            {"shape": shape, "mode": "forward+backward"},
            list(works(logits, setup.random(rows, items), k)),
            REHEARSAL if setup.quick else CPU_PACE,
            tensor_bytes=logits.nbytes,
        )


def rows_of(setup: Setup) -> Iterator[Row]:
    return measured(cases(setup), setup)


BENCHMARK = Benchmark(
    "benchmarks/subsets.py",
    __doc__,
    {"cpu": rows_of, "cuda": rows_of},
    FILE,
    devices=("cpu", "cuda"),
    threads=2,
)


# the page


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page: the same for each device."""
    return pages.of_devices(results, device_blocks)


def device_blocks(results: pages.Results) -> dict[str, str]:
    by_shape = partial(
        pages.crossed, results.rows, first="", line=pages.label, column=itemgetter("shape")
    )
    return {
        "seconds": by_shape(cell=pages.seconds),
        "ratio": by_shape(cell=lambda row: pages.ratio(row, "time_ratio")),
        "memory": by_shape(cell=lambda row: f"{float(row['peak_extra_tensors']):.1f}"),
    }


PAGE = pages.Page(pages.DOCS / "subset-benchmarks.md", (FILE.name,), blocks)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
