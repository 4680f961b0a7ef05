"""How much more samples of each image help, and what they tell about the temperature.

ReinMax at a temperature of 1 stays behind higher temperatures also where sixteen samples have made
its noise small. With 8 ** 4 codes the exact gradient says whether that is its bias.
"""

from collections.abc import Iterator
from typing import Any

from ...stack.lines import Line
from ..base import Build, Recipe, Run
from .enumerated import ENCODER
from .recipes import TASK, tuned

RLOO = Line("RLOO", "leave_one_out", key="leave-one-out", colour="#999933", dash="2 3")
"""Unbiased, with as many samples as its runs say."""


def _build(column: str, temperatures: tuple[float, ...], counts: tuple[int, ...]) -> Build:
    """ReinMax at each temperature, with each number of samples; RLOO needs two at least."""

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        kind = tuned(column, estimator, seed).line.kind
        if kind == "exact":
            yield tuned(column, estimator, seed)
        elif kind == "score":
            for count in counts:
                yield tuned(column, estimator, seed, tau=1.0, samples=max(count, 2))
        else:
            for tau in temperatures:
                for count in counts:
                    yield tuned(column, estimator, seed, tau=tau, samples=count)

    return build


_NOTE = (
    "The optimiser and the learning rate are those that the paper found for ReinMax with one "
    "sample, for all."
)
SAMPLE_RECIPES = (
    Recipe(
        "vae-10x30-samples",
        "More samples of each image, 10 categories x 30 latents",
        TASK,
        _build("10x30", (1.0, 1.1, 1.3), (1, 4, 16)),
        # not those of vae-10x30, so that all are trained in stacks of their own and their times
        # can be compared
        seeds=tuple(range(20, 25)),
        estimators=("reinmax", RLOO),
        metrics=("train", "test"),
        data=("mnist",),
        variants=("samples", "tau"),
        note=_NOTE,
    ),
    Recipe(
        "vae-8x4-samples",
        "More samples of each image beside the exact gradient, 8 categories x 4 latents",
        TASK,
        _build("8x4", (1.0, 1.3), (1, 16)),
        seeds=tuple(range(10)),
        estimators=("reinmax", RLOO, "exact", ENCODER),
        metrics=("train", "test"),
        data=("mnist",),
        variants=("samples", "tau"),
        against=("exact", ENCODER.key),
        note=_NOTE,
    ),
)
