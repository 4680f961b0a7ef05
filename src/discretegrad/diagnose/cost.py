"""What one estimate costs: evaluations of f, of its gradient, and seconds."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._graph import graph_leaves
from .._modes import transforming
from .._types import Objective
from .draws import estimate
from .entries import Entry
from .problem import Problem

_WARM_UPS = 2
_TIMED_CALLS = 7


class _Counter:
    """f, with a count of the samples it was called with and of those whose gradient was taken."""

    def __init__(self, f: Objective) -> None:
        self.f = f
        self.calls = 0
        self.slopes: set[int] = set()
        self.hidden = False
        """Whether it was called inside a transform, where one call stands for many."""

    def __call__(self, sample: Tensor) -> Tensor:
        if transforming():
            self.hidden = True
            return self.f(sample)
        self.calls += 1
        # a copy, because f may write into it
        return self.f(_Watched.apply(sample, partial(self.slopes.add, self.calls)).clone())


class _Watched(torch.autograd.Function):
    """The identity; tells when a gradient passes."""

    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, x: Tensor, tell: Callable[[], None]) -> Tensor:
        ctx.tell = tell
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.tell()
        return g, None


def count_evaluations(problem: Problem, entry: Entry) -> tuple[int | None, int | None]:
    """Evaluations of f and of its gradient for one estimate: counted, or as its row says."""
    counter = _Counter(problem.f)
    logits = problem.logits.clone().requires_grad_()
    loss = estimate(problem, entry.fresh(learn=False), counter, logits).sum()
    torch.autograd.grad(loss, logits)
    if not counter.hidden:
        return counter.calls, len(counter.slopes)
    if entry.row is None:
        return None, None
    return entry.row.cost(entry.num_samples) or (problem.outcomes, 0)


def measure_seconds(problem: Problem, entry: Entry) -> float:
    """Median time of one estimate, forward and backward, as in a step of training."""
    private = entry.fresh(learn=True)
    times = []
    for _ in range(_WARM_UPS + _TIMED_CALLS):
        logits = problem.logits.clone().requires_grad_()
        _synchronise(logits.device)
        began = time.perf_counter()
        loss = estimate(problem, private, problem.f, logits).sum()
        # backward without .grad: everything that learns gets its gradient, and it is dropped
        torch.autograd.grad(loss, list(graph_leaves(loss)), allow_unused=True)
        _synchronise(logits.device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[_WARM_UPS:])


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
