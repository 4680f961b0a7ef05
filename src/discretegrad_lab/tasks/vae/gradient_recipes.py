"""Beyond the tables: the exact gradient on 8 ** 4 codes, and the choice of the baseline."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ...stack.lines import Line
from ..base import Build, Recipe, Run
from .config import OWN
from .enumerated import ENCODER
from .gradients import NAMES
from .published import COLUMNS
from .recipes import BEYOND, PAPER, RECIPES, TASK, tuned

(_SMALL,) = (recipe for recipe in RECIPES if recipe.name == "vae-8x4")
_LINES = (*PAPER, *BEYOND)
RELEASED = Line(
    "1/n baseline, order 2, as released",
    "mean_baseline",
    key="mean-2-released",
    colour="#117733",
    dash="6 3",
    order=2,
    as_released=True,
)


def _key(estimator: str | Line) -> str:
    return estimator.key if isinstance(estimator, Line) else estimator


def _along(*lines: str, taus: Sequence[float] = ()) -> Build:
    """Runs whose gradients are compared, along their own training or that of other lines, at the
    temperature of Table 8 or at others."""

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        for tau in taus or (tuned("8x4", estimator, seed).tau,):
            for key in lines:
                if key == OWN:
                    yield tuned("8x4", estimator, seed, along=OWN, tau=tau)
                    continue
                # at the temperature of the estimator, and otherwise as the line that trains
                trains = tuned("8x4", key, seed)
                yield dataclasses.replace(
                    trains, estimator=estimator, tau=tau, along=key, along_tau=trains.tau
                )

    return build


def _both_temperatures(estimator: Any, seed: int) -> Iterator[Run]:
    """At 1, where the second order is exact for quadratic losses, and at what suits ReinMax."""
    for column in COLUMNS:
        best = tuned(column, "reinmax", seed).tau
        for tau in (1.0, best):
            yield tuned(column, estimator, seed, tau=tau)


GRADIENT_RECIPES = (
    Recipe(
        "vae-8x4-exact",
        "Categorical VAE on MNIST, 8 categories x 4 latents, beside the exact gradient",
        TASK,
        _SMALL.build,
        seeds=_SMALL.seeds,
        estimators=(*_LINES, "exact", ENCODER),
        metrics=("train", "test"),
        data=("mnist",),
        against=("exact", ENCODER.key),
        note="The exact gradient is trained with the settings of ReinMax. For the encoder only, "
        "the decoder learns from one sample of each image, as with all estimators.",
    ),
    Recipe(
        "vae-8x4-gradients",
        "Gradients of a categorical VAE on MNIST, 8 categories x 4 latents",
        TASK,
        _along(OWN, "reinmax"),
        seeds=tuple(range(5)),
        estimators=_LINES,
        # whether a run failed is judged by the first
        metrics=("train", *NAMES),
        reproduces="Figure 4",
        data=("mnist",),
        panels=("along",),
        claims=("accurate", "accurate-alike"),
        note="Against the exact gradient at the logits of 100 training images.",
    ),
    Recipe(
        "vae-8x4-gradients-by-temperature",
        "Gradients of ReinMax at several temperatures, 8 categories x 4 latents",
        TASK,
        _along(OWN, "reinmax", taus=(1.0, 1.3, 2.0)),
        seeds=tuple(range(5)),
        estimators=("reinmax",),
        metrics=("train", *NAMES),
        data=("mnist",),
        panels=("along",),
        variants=("tau",),
        note="Against the exact gradient at the logits of 100 training images.",
    ),
    Recipe(
        "vae-baselines",
        "Categorical VAE on MNIST, E[f] and 1/n as the baseline",
        TASK,
        _both_temperatures,
        seeds=tuple(range(5)),
        estimators=("reinmax", *(x for x in BEYOND if _key(x) == "mean-2"), RELEASED),
        metrics=("train", "test"),
        reproduces="Figure 6",
        data=("mnist",),
        panels=("categories", "latents"),
        rows=("tau",),
        claims=("baseline", "baseline-corrected"),
    ),
)
