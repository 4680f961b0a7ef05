"""The experiments of polynomial programming, and the temperatures they are trained with."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ...stack.lines import LINES, Line
from ..base import Build, Cost, Metric, Recipe, Run, Task
from ..chosen import Choice
from ..halving import SEARCH_SEEDS
from .claims import CLAIMS, LOSS
from .config import WORDS, Polynomial
from .model import PolynomialModel, memory

POWERS = (1.5, 2.0, 3.0)
TARGETS: tuple[Literal["constant", "spread"], ...] = ("constant", "spread")
# the paper's grids are figures whose axes its text does not give: these are our choice
BATCHES = (16, 64, 256)
LATENTS = (8, 32, 128)
# the candidates of the paper's Table 7
CANDIDATES = (0.1, 0.3, 0.5, 0.7, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
SEARCH = "polynomial-temperatures"
CHOICE = Choice(
    Polynomial,
    Path(__file__).with_name("temperatures.csv"),
    where=("power", "target"),
    fields=("tau",),
    by=(LOSS.name,),
)
"""Found by the search."""

_CURVES = ("reinmax", "st", "stgs", "gr-mck", "gst-1.0", "gst-p", "exact")
_WITH_TAU = tuple(key for key, line in LINES.items() if line.has_tau)

TASK = Task(
    config=Polynomial,
    model=PolynomialModel,
    metrics=(LOSS, Metric("loss", "loss of the samples", 5)),
    memory=memory,
    words=WORDS,
    claims=CLAIMS,
)


def temperature(power: float, target: str, estimator: str | Line) -> float:
    """What the search found to be best; 1 for estimators that have none, or are not the paper's."""
    if isinstance(estimator, Line) or not LINES[estimator].has_tau:
        return 1.0
    chosen = CHOICE.required(SEARCH, estimator, LOSS.name, power, target)
    return float(chosen["tau"])


def _builder(
    targets: tuple[Literal["constant", "spread"], ...] = ("constant",),
    latents: tuple[int, ...] = (128,),
    batches: tuple[int, ...] = (256,),
    **fields: Any,
) -> Build:
    """Runs of all combinations; Adam at 1e-3 and 8,000 steps are the defaults, and the paper's."""

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        for power, target, size, batch in product(POWERS, targets, latents, batches):
            yield Polynomial(
                estimator=estimator,
                seed=seed,
                power=power,
                target=target,
                tau=temperature(power, target, estimator),
                latents=size,
                batch=batch,
                **fields,
            )

    return build


def _search(estimator: Any, seed: int) -> Iterator[Run]:
    for power, target, tau in product(POWERS, TARGETS, CANDIDATES):
        # the bias of gr-mck, which tau is about, does not depend on the number of draws
        yield Polynomial(
            estimator=estimator, seed=seed, power=power, target=target, tau=tau, draws=100
        )


def _recipe(name: str, title: str, build: Build, **fields: Any) -> Recipe:
    defaults = {"seeds": tuple(range(5)), "estimators": _CURVES, "panels": ("power",)}
    return Recipe(
        f"polynomial-{name}",
        f"Polynomial programming{title}",
        TASK,
        build,
        metrics=(LOSS.name,),
        note="The paper shows curves and no numbers.",
        **defaults | fields,
    )


_FIGURE_1 = ("near-optimal", "fastest", "st-and-gst-fail", "close-but-slower", "gst-p-better")
_ALL_SECONDS = 180.0

RECIPES = (
    _recipe(
        "headline",
        " for a CPU: a tenth of the steps at ten times the rate",
        # so that a tenth of the steps go as far; and 4 draws, because 1,000 take seconds a step
        # on two cores
        _builder(learning_rate=1e-2, steps_per_epoch=20, draws=4),
        reproduces="Figure 1, one seed",
        cost=Cost(98.0, "cpu", "one CPU core"),
        seeds=(0,),
        claims=_FIGURE_1,
    ),
    _recipe(
        "curves",
        ", 128 latents, batch 256",
        _builder(),
        reproduces="Figure 1",
        cost=Cost(_ALL_SECONDS, "cuda", "an H200", of="polynomial-grids"),
        claims=_FIGURE_1,
    ),
    _recipe(
        "grids",
        " over batch sizes and numbers of latents",
        _builder(latents=LATENTS, batches=BATCHES),
        reproduces="Figures 8 to 10",
        cost=Cost(_ALL_SECONDS, "cuda", "an H200", of="polynomial-settings"),
        rows=("latents", "batch"),
    ),
    _recipe(
        "settings",
        ", settings A and B, with REINFORCE and RODEO",
        _builder(TARGETS, LATENTS, BATCHES),
        reproduces="Figure 7",
        cost=Cost(_ALL_SECONDS, "cuda", "an H200"),
        estimators=tuple(LINES),
        panels=("power", "target"),
        rows=("latents", "batch"),
        claims=("reinmax-on-hard", "reinforce-on-simple", "slower-on-simple"),
    ),
    _recipe(
        "temperatures",
        ": the search for temperatures",
        _search,
        reproduces="the search of Section F.2",
        cost=Cost(40.0, "cuda", "an H200"),
        seeds=SEARCH_SEEDS,
        estimators=_WITH_TAU,
        choices=_WITH_TAU,
        panels=("power", "target"),
        rows=("tau",),
        curves=False,
        claims=("temperatures",),
        choice=CHOICE,
    ),
)
