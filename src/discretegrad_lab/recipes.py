"""The experiments: each recipe is the full list of runs behind a table or a figure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean

from . import published
from .config import Polynomial, Run, Vae
from .estimators import ESTIMATORS
from .files import write_whole
from .results import Results

POWERS = (1.5, 2.0, 3.0)
TARGETS = ("constant", "spread")
# the paper's grids are figures whose axes its text does not give: these are our choice
BATCHES = (16, 64, 256)
LATENTS = (8, 32, 128)
# never the seeds of a reported number
SEARCH_SEEDS = (1000, 1001)

_OF_FIGURE_1 = ("reinmax", "st", "stgs", "gr-mck", "gst-1.0")
_CURVES = (*_OF_FIGURE_1, "gst-p", "exact")
_TEMPERATURES = "temperatures.csv"


@dataclass(frozen=True)
class Recipe:
    """An experiment: its runs, and how its results are to be read."""

    name: str
    title: str
    reproduces: str
    cost: str
    build: Callable[[str, int], Iterator[Run]]
    """The runs of an estimator and a seed."""
    seeds: tuple[int, ...]
    estimators: tuple[str, ...]
    choices: tuple[str, ...] = tuple(ESTIMATORS)
    """Estimators that can be asked for."""
    data: tuple[str, ...] = ()
    """Names of data sets, see ``discretegrad_lab.data``."""
    metrics: tuple[str, ...] = ("expected_loss",)
    """What the report is about."""
    panels: tuple[str, ...] = ("power",)
    """Fields of a run: there is a table for each combination of their values."""
    rows: tuple[str, ...] = ()
    """Fields whose values are the rows of a table, with a column for each estimator; without them
    the estimators are the rows. There is a figure for each row, but one for all values of tau."""
    curves: bool = True
    """Whether curves are kept among the results."""
    claims: tuple[str, ...] = ()
    """Names of ``published.claims``."""
    published: Mapping[str, int] = field(default_factory=dict)
    """The paper's table for a metric."""
    column: str = ""
    """Of that table."""

    def runs(
        self, seeds: Sequence[int] | None = None, estimators: Sequence[str] | None = None
    ) -> list[Run]:
        """All runs, or those of some seeds and estimators."""
        wanted = tuple(self.estimators if estimators is None else dict.fromkeys(estimators))
        for name in wanted:
            if name not in self.choices:
                raise ValueError(
                    f"expected estimators of {', '.join(self.choices)} for {self.name}, "
                    f"got {name!r}"
                )
        numbers = tuple(self.seeds if seeds is None else dict.fromkeys(seeds))
        if not wanted or not numbers:
            raise ValueError(
                f"expected at least one estimator and one seed for {self.name}, got none; "
                "leave the option out for all of them"
            )
        return [run for name in wanted for seed in numbers for run in self.build(name, seed)]


def _curves(estimator: str, seed: int) -> Iterator[Run]:
    for power in POWERS:
        yield _polynomial(estimator, seed, power, "constant")


def _grids(estimator: str, seed: int) -> Iterator[Run]:
    for power in POWERS:
        yield from _grid(estimator, seed, power, "constant")


def _settings(estimator: str, seed: int) -> Iterator[Run]:
    for power in POWERS:
        for target in TARGETS:
            yield from _grid(estimator, seed, power, target)


def _grid(estimator: str, seed: int, power: float, target: str) -> Iterator[Run]:
    for latents in LATENTS:
        for batch in BATCHES:
            yield _polynomial(estimator, seed, power, target, latents=latents, batch=batch)


def _polynomial(
    estimator: str, seed: int, power: float, target: str, *, latents: int = 128, batch: int = 256
) -> Run:
    # Adam at 1e-3 and 8,000 steps are the defaults, and the paper's
    return Polynomial(
        estimator=estimator,
        seed=seed,
        power=power,
        target="spread" if target == "spread" else "constant",
        tau=temperature(power, target, estimator),
        latents=latents,
        batch=batch,
    )


def _search(estimator: str, seed: int) -> Iterator[Run]:
    for power in POWERS:
        for target in TARGETS:
            for tau in published.TEMPERATURES:
                yield Polynomial(
                    estimator=estimator,
                    seed=seed,
                    power=power,
                    target="spread" if target == "spread" else "constant",
                    tau=tau,
                    # the bias of gr-mck, which tau is about, does not depend on their number
                    draws=100,
                )


def _headline(estimator: str, seed: int) -> Iterator[Run]:
    # ten times the learning rate, so that a tenth of the steps go as far; and 4 draws, because
    # 1,000 take seconds a step on two cores
    for power in POWERS:
        yield Polynomial(
            estimator=estimator,
            seed=seed,
            power=power,
            tau=temperature(power, "constant", estimator),
            learning_rate=1e-2,
            steps_per_epoch=20,
            draws=4,
        )


def _vae(estimator: str, seed: int) -> Iterator[Run]:
    found = published.settings("10x30")[estimator]
    yield Vae(
        estimator=estimator,
        seed=seed,
        categories=10,
        latents=30,
        tau=found.tau,
        optimiser=found.optimiser,
        learning_rate=found.learning_rate,
        tf32=True,
    )


_FIGURE_1_CLAIMS = (
    "near-optimal",
    "fastest",
    "st-and-gst-fail",
    "close-but-slower",
    "gst-p-better",
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="polynomial-headline",
            title="Polynomial programming for a CPU: a tenth of the steps at ten times the rate",
            reproduces="Figure 1, one seed",
            cost="21 runs of 800 steps, together 98 seconds of one CPU core",
            build=_headline,
            seeds=(0,),
            estimators=_CURVES,
            claims=_FIGURE_1_CLAIMS,
        ),
        Recipe(
            name="polynomial-curves",
            title="Polynomial programming, 128 latents, batch 256",
            reproduces="Figure 1",
            cost="105 runs of 8,000 steps, all of them runs of polynomial-grids",
            build=_curves,
            seeds=tuple(range(5)),
            estimators=_CURVES,
            claims=_FIGURE_1_CLAIMS,
        ),
        Recipe(
            name="polynomial-grids",
            title="Polynomial programming over batch sizes and numbers of latents",
            reproduces="Figures 8 to 10",
            cost="945 runs of 8,000 steps, all of them runs of polynomial-settings",
            build=_grids,
            seeds=tuple(range(5)),
            estimators=_CURVES,
            rows=("latents", "batch"),
        ),
        Recipe(
            name="polynomial-settings",
            title="Polynomial programming, settings A and B, with REINFORCE and RODEO",
            reproduces="Figure 7",
            cost="2,430 runs of 8,000 steps, together 3 minutes of an H200",
            build=_settings,
            seeds=tuple(range(5)),
            estimators=tuple(ESTIMATORS),
            panels=("power", "target"),
            rows=("latents", "batch"),
            claims=("reinmax-on-hard", "reinforce-on-simple", "slower-on-simple"),
        ),
        Recipe(
            name="polynomial-temperatures",
            title="Polynomial programming: the search for temperatures",
            reproduces="the search of Section F.2",
            cost="720 runs of 8,000 steps, together 40 seconds of an H200",
            build=_search,
            seeds=SEARCH_SEEDS,
            estimators=tuple(name for name, one in ESTIMATORS.items() if one.has_tau),
            choices=tuple(name for name, one in ESTIMATORS.items() if one.has_tau),
            panels=("power", "target"),
            rows=("tau",),
            curves=False,
            claims=("temperatures",),
        ),
        Recipe(
            name="vae-10x30",
            title="Categorical VAE on MNIST, 10 categories x 30 latents",
            reproduces="Tables 2 and 9, column 10x30",
            cost="50 runs of 96,000 steps, together 4 minutes of an H200",
            build=_vae,
            seeds=tuple(range(10)),
            estimators=("stgs", "gr-mck", "gst-1.0", "st", "reinmax"),
            choices=tuple(published.settings("10x30")),
            data=("mnist",),
            metrics=("train", "test"),
            panels=(),
            published={"train": 2, "test": 9},
            column="10x30",
            claims=("best-train", "best-test"),
        ),
    )
}


def get(name: str) -> Recipe:
    """The recipe of a name."""
    if name not in RECIPES:
        raise ValueError(f"expected a recipe of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]


def temperature(power: float, target: str, estimator: str) -> float:
    """What ``tables/temperatures.csv`` says is best; 1 for estimators that have none."""
    if not ESTIMATORS[estimator].has_tau:
        return 1.0
    return _chosen()[power, target, estimator]


@cache
def _chosen() -> dict[tuple[float, str, str], float]:
    return {
        (float(row["power"]), row["target"], row["estimator"]): float(row["tau"])
        for row in published.rows(_TEMPERATURES)
        if row["chosen"] == "yes"
    }


def choose_temperatures(results: Results, path: Path) -> None:
    """Write the table of temperatures from the results of ``polynomial-temperatures``.

    The score is the expected loss at the end, averaged over the seeds of the search; a temperature
    at which a run diverged is never chosen, and of equals the one nearest to 1 is.

    Args:
        results: Of the whole search.
        path: ``tables/temperatures.csv`` of a checkout.
    """
    found = {row.identity: row for row in results.rows if row.state in ("finished", "diverged")}
    search = RECIPES["polynomial-temperatures"].runs()
    missing = sum(run.identity not in found for run in search)
    if missing:
        raise ValueError(
            f"expected the whole search, got results without {missing} of its {len(search)} runs; "
            "run polynomial-temperatures to its end"
        )
    groups: dict[tuple[float, str, str], dict[float, list[float]]] = {}
    for row in found.values():
        key = row.config["power"], row.config["target"], row.config["estimator"]
        score = row.metrics.get("expected_loss", math.inf)
        groups.setdefault(key, {}).setdefault(row.config["tau"], []).append(score)
    commits = " and ".join(sorted({row.commit for row in found.values()}))
    lines = ["task,power,target,estimator,tau,score,runs,chosen,source"]
    for (power, target, estimator), candidates in groups.items():
        scores = {tau: fmean(values) for tau, values in sorted(candidates.items())}
        best = min(scores, key=lambda tau: (scores[tau], abs(tau - 1)))
        for tau, score in scores.items():
            text = format(score, ".6g") if math.isfinite(score) else "diverged"
            chosen = "yes" if tau == best else "no"
            lines.append(
                f"polynomial,{power},{target},{estimator},{tau},{text},{len(candidates[tau])},"
                f"{chosen},commit {commits}"
            )
    write_whole(path, "\n".join(lines) + "\n")
