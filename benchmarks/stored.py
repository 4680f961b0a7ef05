"""The recipes that the pages on the paper have numbers of, and what is stored of their runs."""

from functools import cache

import claims
from files import ROOT

from discretegrad_lab import tasks
from discretegrad_lab.report import section as sections
from discretegrad_lab.report.document import Section
from discretegrad_lab.report.reading import Reading, of_recipe
from discretegrad_lab.report.results import read as read_folder
from discretegrad_lab.tasks.evidence import DROPPED, Results

RESULTS = ROOT / "results"
VAE, DEMO = "vae-10x30", "polynomial-headline"
CURVES, SETTINGS, SEARCH = (f"polynomial-{name}" for name in ("curves", "settings", "temperatures"))
COLUMNS = ("vae-8x4", "vae-4x24", "vae-8x16", "vae-16x12", "vae-64x8", VAE)
OTHER_SIZES = COLUMNS[:-1]
COLLAPSE = "vae-8x4-collapse"
WEIGHTS = "vae-8x4-beginning-weights"
FIRST_TEMPERATURES = "vae-8x4-beginning-temperatures"
# what the paper does not show, or as figures only
EXACT, GRADIENTS, BASELINES = "vae-8x4-exact", "vae-8x4-gradients", "vae-baselines"
BY_TEMPERATURE = "vae-8x4-gradients-by-temperature"
LARGE = ("vae-32x64", "vae-64x32")
SAMPLES, SMALL_SAMPLES = "vae-10x30-samples", "vae-8x4-samples"
SEARCHES = tuple(name.replace("vae-", "vae-search-") for name in COLUMNS)
CHOSEN = {
    by: tuple(name.replace("vae-", f"vae-chosen-by-{by}-") for name in COLUMNS)
    for by in ("train", "test")
}
TEMPERATURES, PRECISION = "vae-temperatures", "vae-8x16-precision"
PARSING, SEARCHED = "listops", "nas-cifar10"
BITS = tuple(
    f"bernoulli-vae-{x}-k{k}" for k in (2, 3) for x in ("mnist", "fashion-mnist", "omniglot")
)
BIT_GRADIENTS = tuple(f"bernoulli-vae-gradients-k{k}" for k in (2, 3))
# drawings of reports that pages show, by their files
DRAWINGS = {PARSING: ("trees-reinmax.svg",), SEARCHED: ("cells.svg", "probabilities.svg")}
ALWAYS = (VAE, CURVES, "polynomial-grids", SETTINGS, SEARCH)
IF_TRAINED = (
    *(WEIGHTS, FIRST_TEMPERATURES, *LARGE, EXACT, GRADIENTS, BASELINES),
    *(SAMPLES, SMALL_SAMPLES, TEMPERATURES),
    *(*SEARCHES, *CHOSEN["train"], *CHOSEN["test"], PARSING, SEARCHED, *BITS, *BIT_GRADIENTS),
    *(PRECISION, BY_TEMPERATURE),
)
# the recipes of the pages; those in IF_TRAINED are left out until they have been trained
ALL = (*OTHER_SIZES, COLLAPSE, *ALWAYS, *IF_TRAINED)
# headings of the pages, and whose runs speak there for the claims of the paper
HEADINGS = {
    "A categorical VAE on MNIST": COLUMNS,
    "The large VAE": LARGE,
    "Gradients along training": (GRADIENTS,),
    "The choice of the baseline": (BASELINES,),
    "The temperature of each estimator": (TEMPERATURES,),
    "Temperatures in polynomial programming": (SEARCH,),
    "Training curves in polynomial programming": (CURVES,),
    "Settings A and B in polynomial programming": (SETTINGS,),
    "ListOps beside the paper": (PARSING,),
    "Table 4: architecture search": (SEARCHED,),
    "Table 6: the Bernoulli VAE": BITS,
}


@cache
def read(recipe: str) -> Results:
    """What is stored of a recipe."""
    return read_folder(RESULTS / recipe)


def reading(results: Results) -> Reading:
    """How the results of a recipe are to be read."""
    return of_recipe(tasks.recipe(results.recipe))


def section(results: Results) -> Section:
    """The report on them."""
    return sections.section(reading(results), results)


def shown() -> list[str]:
    """The recipes that the pages have numbers of."""
    return [name for name in ALL if name not in IF_TRAINED or read(name).rows]


def is_drawn(recipe: str) -> bool:
    """Whether there are curves for a picture."""
    return read(recipe).counts()["finished"] > 0


def finished() -> int:
    """How many different runs of the pages are finished."""
    rows = (row for name in shown() for row in read(name).rows)
    return len({row.identity for row in rows if row.state == "finished"})


def all_claims() -> list[claims.Claim]:
    """What became of the claims of the paper."""
    return claims.collect(
        {
            part: {name: section(read(name)).verdicts for name in names if read(name).rows}
            for part, names in HEADINGS.items()
        }
    )


def all_training_seconds() -> float:
    """Of all recipes together; a stack whose runs several of them have counts once."""
    searches = [name for name in shown() if tasks.recipe(name).halving]
    rows = [row for name in shown() if name not in searches for row in read(name).rows]
    parts = (Results("", tuple(rows)), *map(read, searches))
    return sum(map(training_seconds, parts))


def training_seconds(results: Results) -> float:
    """Runs of a stack have the same time, and differ in none of these."""
    if any(row.state == DROPPED for row in results.rows):
        # a run that went on has the time in it that its stack had taken at the rung, with those
        # that were dropped there; estimators that were searched together have the same times
        by_estimator = (results.where(estimator=key) for key in results.estimators())
        searches = {frozenset((row.commit, row.seconds) for row in rows) for rows in by_estimator}
        return sum(max(seconds for _, seconds in search) for search in searches)
    same = ("latents", "batch", "along", "samples")
    stacks = {(*map(row.config.get, same), row.commit, row.seconds) for row in results.rows}
    return sum(seconds for *_, seconds in stacks)
