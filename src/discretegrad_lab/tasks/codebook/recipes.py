"""Drawn codes beside the nearest ones with a copied gradient."""

from collections.abc import Iterator
from typing import Any

from ...stack.lines import Line
from ..base import Metric, Recipe, Run, Task
from .config import WORDS, Codebook
from .model import CodebookModel, memory

TASK = Task(
    config=Codebook,
    model=CodebookModel,
    metrics=(
        Metric("train", "Train loss", 2),
        Metric("test", "Test reconstruction", 2),
        Metric("usage", "Codes in use", 1, direction="up"),
    ),
    memory=memory,
    words=WORDS,
)
COPIED = Line("Nearest, copied", "straight_through", key="copied", colour="#000000", dash="2 3")
"""The nearest code with the gradient at it copied to the encoder; its row has no part in it."""
_SCALE = Codebook.scale
SCALES = (0.003, 0.006, 0.01, 0.015, 0.02, 0.03)


def _run(estimator: Any, seed: int, scale: float) -> Codebook:
    copied = estimator == COPIED
    return Codebook(
        estimator=estimator,
        seed=seed,
        copied=copied,
        # the nearest code is the same for every scale
        scale=_SCALE if copied else scale,
        tf32=True,
    )


def _build(estimator: Any, seed: int) -> Iterator[Run]:
    yield _run(estimator, seed, _SCALE)


def _scales(estimator: Any, seed: int) -> Iterator[Run]:
    yield from dict.fromkeys(_run(estimator, seed, scale) for scale in SCALES)


_LINES = (COPIED, "reinmax", "st", "stgs")
_NOTE = (
    "Codes are moving averages with restarts for all lines. In the test all of them take the "
    "nearest code. Codes in use are the exponential of the entropy of their frequencies there."
)
RECIPES = (
    Recipe(
        "codebook-mnist",
        "Vector-quantised autoencoder on MNIST, 256 codes, 16 vectors of an image",
        TASK,
        _build,
        seeds=tuple(range(5)),
        estimators=_LINES,
        choices=_LINES,
        metrics=("test", "usage", "train"),
        data=("mnist",),
        against=(COPIED.key,),
        note=_NOTE,
    ),
    Recipe(
        "codebook-scales",
        "How random the codes of a vector-quantised autoencoder are drawn",
        TASK,
        _scales,
        seeds=(100, 101),
        estimators=_LINES,
        choices=_LINES,
        metrics=("test", "usage", "train"),
        rows=("scale",),
        curves=False,
        data=("mnist",),
        note=_NOTE,
    ),
)
