"""Routers of a mixture of experts, side by side."""

import math
from collections.abc import Iterator
from typing import Any

from ...stack.lines import LINES, Line
from ..base import Build, Metric, Recipe, Run, Task
from .config import DATA, WORDS, Experts
from .model import ExpertsModel, memory
from .network import CLASSES

TASK = Task(
    config=Experts,
    model=ExpertsModel,
    metrics=(
        Metric("train", "Train loss", useless=math.log(CLASSES)),
        Metric("test", "Test loss"),
        Metric("accuracy", "Test accuracy in %", 2, "up"),
        Metric("usage", "Experts in use", 2, "up"),
    ),
    memory=memory,
    words=WORDS,
    unshown=frozenset({"objective"}),
)

# a router without an estimator has a row of the library that has no part in it
_ANY = "straight_through"
_SPARSE_1 = Line("SparseMixer v1", _ANY, key="sparse-mixer-1", colour="#882255")
_SPARSE_2 = Line("SparseMixer v2", _ANY, key="sparse-mixer-2", colour="#117733")
GATE = Line("Top-1 gate", _ANY, key="top-1-gate", colour="#000000")
_SOFT = Line("All experts, soft", _ANY, key="soft-mixture", colour="#888888", dash="2 3")
_BEST = Line("Top-1 ST", "straight_through", key="top-1-st", colour="#D55E00")
_RLOO = Line("RLOO", "leave_one_out", num_samples=2, colour="#999933", dash="2 3")
_BEST_GATED = Line(
    "Top-1 ST, gated", "straight_through", key="top-1-st-gated", colour="#D55E00", dash="6 3"
)
_REINMAX_GATED = Line(
    "ReinMax, gated", "reinmax", key="reinmax-gated", colour="#0072B2", dash="6 3"
)
_RLOO_GATED = Line(
    "RLOO, gated", "leave_one_out", key="rloo-gated", num_samples=2, colour="#999933", dash="6 3"
)
ROUTED: dict[Line, dict[str, Any]] = {
    _SPARSE_1: {"router": "sparse-mixer-1"},
    _SPARSE_2: {"router": "sparse-mixer-2"},
    GATE: {"router": "gate"},
    _REINMAX_GATED: {"gated": True},
    _BEST_GATED: {"router": "best", "gated": True},
    _RLOO_GATED: {"gated": True},
    LINES["reinmax"]: {},
    _BEST: {"router": "best"},
    _RLOO: {},
    _SOFT: {"router": "soft"},
}
"""What the runs of each line have besides."""
BALANCES = (0.0, 0.01, 0.1)
"""None, that of the Switch Transformer, and ten times as much."""
RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def _run(estimator: Any, seed: int, **fields: Any) -> Experts:
    line: Any = estimator if isinstance(estimator, Line) else LINES[estimator]
    return Experts(estimator=line, seed=seed, tf32=True, **ROUTED[line], **fields)


def _build(data: str) -> Build:
    def build(estimator: Any, seed: int) -> Iterator[Run]:
        for balance in BALANCES:
            yield _run(estimator, seed, data=data, balance=balance)

    return build


def _rates(estimator: Any, seed: int) -> Iterator[Run]:
    for rate in RATES:
        yield _run(estimator, seed, learning_rate=rate)


_NOTE = (
    "In the test the expert of the highest score runs, but the soft mixture runs all. Gated lines, "
    "SparseMixer and the gate multiply its output by its probability. Experts in use are the "
    "exponential of the entropy of their shares of the test images. In training RLOO runs two "
    "experts for each image, and ReinMax and ST look at all of them."
)
RECIPES = (
    *(
        Recipe(
            f"experts-{short}",
            f"Routers of a mixture of 8 experts on {DATA[data]}",
            TASK,
            _build(data),
            seeds=tuple(range(10)),
            estimators=tuple(ROUTED),
            choices=tuple(ROUTED),
            metrics=("test", "accuracy", "usage", "train"),
            data=(data,),
            panels=("balance",),
            overview=True,
            against=(GATE.key,),
            note=_NOTE,
        )
        for short, data in (("mnist", "mnist"), ("fashion", "fashion-mnist"))
    ),
    Recipe(
        "experts-rates",
        "Learning rates of a mixture of 8 experts on MNIST, by its router",
        TASK,
        _rates,
        seeds=(100, 101),
        estimators=tuple(ROUTED),
        choices=tuple(ROUTED),
        metrics=("test", "accuracy", "usage", "train"),
        rows=("learning_rate",),
        curves=False,
        data=("mnist",),
        note=_NOTE,
    ),
)
