"""Stored runs beside the paper: a page of the documentation, and the tables of the README.

``python benchmarks/table.py`` writes both from the results that are stored below results/ and from
the registry of estimators.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any

import claims
import efficiency
import kernels
import pooled
import several
from files import ROOT
from pages import DOCS, PICTURES, Page, markdown, plural, wrapped

import discretegrad
from discretegrad_lab import tasks
from discretegrad_lab.report import section as sections
from discretegrad_lab.report.document import Curve, Drawing, Figure, Section, Verdict
from discretegrad_lab.report.entries import DASH, Entry, entries
from discretegrad_lab.report.reading import Reading, of_recipe
from discretegrad_lab.report.results import read as read_folder
from discretegrad_lab.report.tables import from_optimum, mean_cell, with_half
from discretegrad_lab.report.verdicts import RULE
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.stack.lines import line as find_line
from discretegrad_lab.tasks.evidence import DROPPED, NEAR, Results, Row, decimal, final
from discretegrad_lab.tasks.polynomial import temperature
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.statistics import Summary, compare, summarise
from discretegrad_lab.tasks.vae.published import cells as published_cells
from discretegrad_lab.tasks.vae.recipes import PAPER

RESULTS = ROOT / "results"

VAE, DEMO = "vae-10x30", "polynomial-headline"
CURVES, SETTINGS, SEARCH = (f"polynomial-{name}" for name in ("curves", "settings", "temperatures"))
COLUMNS = ("vae-8x4", "vae-4x24", "vae-8x16", "vae-16x12", "vae-64x8", VAE)
OTHER_SIZES = COLUMNS[:-1]
COLLAPSE = "vae-8x4-collapse"
BEGINNINGS = WEIGHTS, FIRST_TEMPERATURES = (
    "vae-8x4-beginning-weights",
    "vae-8x4-beginning-temperatures",
)
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
STORED = (VAE, CURVES, "polynomial-grids", SETTINGS, SEARCH)
NAMED = (*BEGINNINGS, *LARGE, EXACT, GRADIENTS, BASELINES, SAMPLES, SMALL_SAMPLES, TEMPERATURES)
NAMED += (*SEARCHES, *CHOSEN["train"], *CHOSEN["test"], PARSING, SEARCHED, *BITS)
NAMED += (*BIT_GRADIENTS, PRECISION, BY_TEMPERATURE)
# the recipes of the page; those in NAMED are left out until they have been trained
ALL = (*OTHER_SIZES, COLLAPSE, *STORED, *NAMED)
# headings of the page, and whose runs speak there for the claims of the paper
PARTS = {
    "A categorical VAE on MNIST": COLUMNS,
    "The large VAE": LARGE,
    "Gradients along training": (GRADIENTS,),
    "The choice of the baseline": (BASELINES,),
    "The temperature": (TEMPERATURES,),
    "Polynomial programming": (SEARCH,),
    "Training curves": (CURVES,),
    "Settings A and B": (SETTINGS,),
    "ListOps": (PARSING,),
    "Architecture search": (SEARCHED,),
    "The Bernoulli VAE": BITS,
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


def blocks() -> dict[str, str]:
    """The generated parts of the page of the documentation."""
    return {
        "in short": in_short(),
        "runs": "\n\n".join(filter(None, (runs_table(), trained_twice()))),
        "rule": wrapped(RULE),
        "main table": f"{main_table('train', 2)}\n\n{main_table('test', 9)}",
        "all sizes": pooled.table(
            [(reading(read(x)), read(x)) for x in COLUMNS], ("train", "test")
        ),
        "precision": precision_table(),
        "collapse": collapse_table(),
        "beginnings": f"{weights_table()}\n\n{beginnings_table()}",
        "vae": tables_and_claims(VAE),
        "other sizes": "\n\n".join(tables_and_claims(name, folded=True) for name in OTHER_SIZES),
        "large": parts_if_stored({x: tasks.recipe(x).title for x in LARGE}),
        "exact": if_stored(EXACT),
        "gradients": if_stored(GRADIENTS, "Gradients beside the exact one, against the epoch"),
        "baselines": if_stored(BASELINES),
        "measures": measures_tables(),
        "prior samples": model_pictures("prior-samples", "makes of random codes"),
        "other reconstructions": model_pictures(
            "reconstructions", "makes of test images", OTHER_SIZES
        ),
        "samples": samples_block(),
        "small samples": if_stored(SMALL_SAMPLES),
        "by temperature": if_stored(BY_TEMPERATURE),
        "efficiency": efficiency.table_of_the_paper(kernels.PAGE.read().of(section="efficiency")),
        "heat map": if_stored(TEMPERATURES, "Train loss of each estimator at each temperature"),
        "chosen": chosen_tables(),
        "searches": parts_if_stored({x: x[11:] for x in SEARCHES}),
        "temperatures": temperatures_table(),
        "search claims": claims_table(section(read(SEARCH)).verdicts),
        "curves": tables_and_claims(CURVES),
        "settings": tables_and_claims(SETTINGS, folded=True),
        "at one": at_one_table(),
        "listops": if_stored(PARSING, "Accuracy and loss against the epoch"),
        "architectures": architectures_block(),
        "bits": parts_if_stored(
            {x: tasks.recipe(x).title for x in BITS},
            "The loss against the step, and against the GPU time of a run",
            f"{BANDS} {WITHOUT_TENTH}",
        ),
        "bit gradients": parts_if_stored(
            {x: tasks.recipe(x).title for x in BIT_GRADIENTS},
            "Standard deviation of the gradients, and their largest bias, against the step",
            f"{BANDS} The bias has two standard errors added, so it is how large it may be.",
        ),
    }


def shown() -> list[str]:
    """The recipes that the page has numbers of."""
    return [name for name in ALL if name not in NAMED or read(name).rows]


def all_claims() -> list[claims.Claim]:
    """What became of the claims of the paper."""
    return claims.collect(
        {
            part: {name: section(read(name)).verdicts for name in names if read(name).rows}
            for part, names in PARTS.items()
        }
    )


def finished() -> int:
    """How many different runs of the page are finished."""
    rows = (row for name in shown() for row in read(name).rows)
    return len({row.identity for row in rows if row.state == "finished"})


def in_short() -> str:
    """What was trained, and what it says of the numbers and the claims of the paper."""
    names, found = shown(), all_claims()
    # runs that several recipes share count once
    rows = {row.identity: row for name in names for row in read(name).rows}
    hours = training_seconds(Results("", tuple(rows.values()))) / 3600
    devices = sorted({row.device for row in rows.values() if row.device})
    judged: dict[tuple[Any, ...], list[str]] = {}
    for name in names:
        for entry in entries(reading(read(name)), read(name)):
            if entry.verdict in ("within", "above", "below"):
                table = reading(read(name)).published[entry.metric.name]
                # of ListOps two checkpoints are compared with one number
                number = table.number, table.column, entry.estimator, entry.cell
                judged.setdefault(number, []).append(entry.verdict)
    verdicts = [verdict for own in judged.values() for verdict in own]
    untrained = [tasks.recipe(name).reproduces for name in NAMED if not read(name).rows]
    numbers = {int(x) for text in untrained for x in re.findall(r"^Table (\d+)", text)}
    tables = ", ".join(map(str, sorted(numbers)))
    missing = f" Tables of the paper that are not trained yet, or not whole: {tables}." * bool(
        tables
    )
    return "\n\n".join(
        [
            wrapped(
                f"{finished():,} finished runs of {len(names)} recipes, {hours:.1f} hours of "
                f"training on one {' or '.join(devices)}, added up over stacks that partly ran "
                f"side by side.{missing} Of {len(verdicts)} comparisons "
                f"with {len(judged)} published means {verdicts.count('within')} are within the "
                "joint 95 % interval; 1 in 20 is outside by chance. "
                f"{claims.counts(found)}."
            ),
            claims.lists(found),
        ]
    )


def runs_table() -> str:
    """What was trained, on what, and how long it took."""
    lines = []
    for name in shown():
        results, recipe = read(name), tasks.recipe(name)
        states = [f"{n:,} {state}" for state, n in results.counts().items() if n]
        failed = len(results.failed(recipe.task.metric(recipe.metrics[0])))
        states += [f"{failed} of them failed to train"] if failed else []
        counts = ", ".join(states)
        trained = [row for row in results.rows if row.commit]
        about = [dict.fromkeys(getattr(row, what) for row in trained) for what in _PROVENANCE]
        inside = name != SETTINGS and _identities(name) <= _identities(SETTINGS)
        seconds = f"in {SETTINGS}" if inside else f"{training_seconds(results):,.0f} s"
        lines.append([name, recipe.reproduces, counts, seconds, *(", ".join(x) for x in about)])
    return markdown(["recipe", "of the paper", "runs", "training", *_PROVENANCE], lines)


_PROVENANCE = ("device", "torch", "commit")


def _identities(recipe: str) -> set[str]:
    return {row.identity for row in read(recipe).rows}


def trained_twice() -> str:
    """What is said of runs that recipes share and that were trained for more than one of them."""
    trainings: dict[str, dict[tuple[str, float], float]] = {}
    recipes: dict[str, set[str]] = {}
    for name in shown():
        metric = tasks.recipe(name).metrics[0]
        for row in read(name).rows:
            if metric in row.metrics:
                ends = trainings.setdefault(row.identity, {})
                ends[row.commit, row.seconds] = row.metrics[metric]
                recipes.setdefault(row.identity, set()).add(name)
    twice = {key: list(ends.values()) for key, ends in trainings.items() if len(ends) > 1}
    if not twice:
        return ""
    having = ", ".join(x for x in shown() if any(x in recipes[key] for key in twice))
    # the deviation of a difference, from the variance of each run's own values
    apart = math.sqrt(2 * fmean(variance(values) for values in twice.values()))
    return wrapped(
        f"{plural(len(twice), 'run')} of these recipes were trained more than once, on different "
        f"machines or in different stacks, and each recipe has the numbers of its own: {having}. "
        "Matrix products of different stacks round differently, and training makes more of it: two "
        f"trainings of one run end {apart:.2f} apart (root mean square, by the first metric)."
    )


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


def of_paper(results: Results) -> Results:
    """Without the lines that the paper's tables do not have."""
    return replace(
        results, rows=tuple(row for row in results.rows if row.config["estimator"] in PAPER)
    )


def main_table(metric: str, number: int, columns: Sequence[str] = COLUMNS, chosen: str = "") -> str:
    """Every line in every size, and the mean over the sizes, beside the paper's table.

    Args:
        metric: Its name.
        number: Of the paper's table.
        columns: The recipes, one for each size.
        chosen: What is said of the settings.
    """
    labels: dict[str, list[str]] = {}
    in_doubt: set[str] = set()
    by_seed: dict[str, dict[int, list[float]]] = {}
    for place, name in enumerate(columns):
        for entry in entries(reading(read(name)), read(name)):
            if entry.metric.name == metric:
                # so that all lines are as long, whatever was trained
                cells = labels.setdefault(entry.estimator, [DASH] * len(columns))
                doubts = reading(read(name)).published[metric].doubts
                mark = "?" * (entry.estimator in doubts)
                in_doubt |= {entry.estimator} if mark else set()
                published = f"{entry.cell.value:.2f}{mark}" if entry.cell else ""
                cells[place] = mean_cell(entry, published)
        for row in read(name).rows:
            seeds = by_seed.setdefault(row.config["estimator"], {})
            if metric in row.metrics:
                seeds.setdefault(row.config["seed"], []).append(row.metrics[metric])
    for estimator, seeds in by_seed.items():
        # of seeds that are finished in every size
        whole = [values for values in seeds.values() if len(values) == len(columns)]
        mean = summarise([fmean(values) for values in whole])
        cell = published_cells().get((number, estimator, "average"))
        mark = "?" * (estimator in in_doubt)
        labels[estimator].append(_beside(mean, f"{cell.value:.2f}{mark}" if cell else ""))
    head = ", ".join(filter(None, (f"Table {number}: {metric} \N{MINUS SIGN}ELBO", chosen)))
    heads = [head, *(x.rpartition("-")[2] for x in columns), "mean"]
    return markdown(heads, [[find_line(key).label, *cells] for key, cells in labels.items()])


def measures_tables() -> str:
    """What the finished models of the main table were measured by, a table for each metric."""
    tables = []
    for metric in reading(read(VAE)).measures:
        labels: dict[str, list[str]] = {}
        for place, name in enumerate(COLUMNS):
            for row in read(name).rows:
                # so that all lines are as long
                labels.setdefault(row.config["estimator"], [DASH] * len(COLUMNS))
            for key, cells in labels.items():
                own = (row.measured for row in read(name).where(estimator=key) if row.measured)
                values = [x.values[metric.name] for x in own if metric.name in x.values]
                summary = summarise(values)
                cells[place] = with_half(summary.mean, summary.half, metric.digits)
        measured = {key: x for key, x in labels.items() if set(x) != {DASH}}
        if measured:
            lines = [[find_line(key).label, *cells] for key, cells in measured.items()]
            tables.append(markdown([metric.label, *(x[4:] for x in COLUMNS)], lines))
    return "\n\n".join(tables) or f"Not measured here yet; it takes `discretegrad measure {VAE}`."


def model_pictures(kind: str, what: str, names: Sequence[str] = COLUMNS[::-1]) -> str:
    """The pictures of one kind that were drawn."""
    drawn = [name for name in names if (PICTURES / f"{name}-{kind}.png").exists()]
    if not drawn:
        command = f"discretegrad plot {names[0]}"
        return f"Not drawn here yet; it takes `{command}` where its runs are stored."
    return "\n\n".join(
        f"![Digits that each estimator's model {what}, {name[4:]}](assets/{name}-{kind}.png)"
        for name in drawn
    )


def samples_block() -> str:
    """More samples of each image, at equal steps and in equal time."""
    results = read(SAMPLES)
    if not is_drawn(SAMPLES):
        return if_stored(SAMPLES)
    picture = f"![The loss against the GPU time of a run](assets/{SAMPLES}.png)"
    return "\n\n".join([several.equal_table(reading(results), results), picture])


def chosen_tables() -> str:
    """What the settings of our own searches have, chosen by train and by test."""
    tables = [
        main_table(metric, number, CHOSEN[by], f"chosen by {by}")
        for by, metric, number in (
            *(("train", "train", 2), ("train", "test", 9)),
            *(("test", "test", 10), ("test", "train", 11)),
        )
        if any(read(name).counts()["finished"] for name in CHOSEN[by])
    ]
    tables += [gained_table(by) for by in CHOSEN] if tables else []
    return "\n\n".join(tables) or "Not trained here yet; it takes the searches above."


def gained_table(by: str) -> str:
    """What the settings of our own searches have less what those of the paper have here."""
    lines = []
    for key in PAPER:
        cells = []
        for name, column in zip(CHOSEN[by], COLUMNS, strict=True):
            ours, theirs = (read(x).where(estimator=key) for x in (name, column))
            if ours and {row.identity for row in ours} <= {row.identity for row in theirs}:
                cells.append("the same")
                continue
            ends = [final(rows, by) for rows in (ours, theirs)]
            apart = compare(*ends) if all(x.count for x in ends) else None
            cells.append(with_half(apart.difference, apart.half, 2, "+") if apart else DASH)
        lines.append([find_line(key).label, *cells])
    head = f"{by} \N{MINUS SIGN}ELBO, chosen by {by}, less that of Table 8"
    return markdown([head, *(x[4:] for x in COLUMNS)], lines)


def collapse_table() -> str:
    """How many runs of the small VAE were useless for a time, and how many at the end."""
    results = read(COLLAPSE)
    lines = []
    for entry in (x for x in entries(reading(results), results) if x.metric.name == "train"):
        fallen = collapses(results, results.where(estimator=entry.estimator))
        collapsed = [row.config["seed"] for row, _ in fallen]
        back = [epoch for _, epoch in fallen if epoch is not None]
        stuck = [row.config["seed"] for row, epoch in fallen if epoch is None]
        low, high = rate_interval(len(stuck), entry.ours.count)
        lines.append(
            [
                find_line(entry.estimator).label,
                with_half(entry.ours.mean, entry.ours.half, 2),
                f"{entry.median:.2f}",
                f"{entry.ours.count}",
                f"{len(collapsed)}" + f" (seeds {_listed(collapsed)})" * bool(collapsed),
                f"{len(back)}" + f" (by epoch {_listed(back)})" * bool(back),
                f"{len(stuck)}" + f" (seeds {_listed(stuck)})" * bool(stuck),
                f"{100 * low:.1f} to {100 * high:.1f} %",
            ]
        )
    heads = ["train \N{MINUS SIGN}ELBO", "mean", "median", "runs", "collapsed after 4 epochs"]
    return markdown([*heads, "came back", "collapsed at the end", "95 % interval"], lines)


def collapses(results: Results, rows: Sequence[Row]) -> list[tuple[Row, int | None]]:
    """Runs that were useless at or after the fourth epoch, with the epoch by which they came back,
    or None.

    The loss of the first epochs is a mean over their steps, so every run begins high.
    """
    (level,) = (x.useless for x in reading(results).metrics if x.useless is not None)
    found: list[tuple[Row, int | None]] = []
    for row in rows:
        curve = [(epoch, loss) for epoch, loss in results.curve(row, "train") if epoch >= 4]
        above = [epoch for epoch, loss in curve if loss >= level]
        if above:
            found.append((row, next((epoch for epoch, _ in curve if epoch > above[-1]), None)))
    return found


def weights_table() -> str:
    """How many runs collapsed for each initial weights, and for each seed of all else."""
    results = read(WEIGHTS)
    if not results.counts()["finished"]:
        return if_stored(WEIGHTS)
    ended = [row for row in results.rows if row.state == "finished"]
    fallen, lines = collapses(results, ended), []
    chance = random.Random(0)
    for words, field in (("initial weights", "weights_seed"), ("batches and samples", "seed")):
        seeds = [row.config[field] for row in ended]
        each = _counts([row.config[field] for row, _ in fallen], seeds)
        others = [
            variance(_counts(chance.sample(seeds, len(fallen)), seeds)) for _ in range(_CHOICES)
        ]
        p = (1 + sum(x >= variance(each) for x in others)) / (1 + _CHOICES)
        collapsed = ", ".join(f"{n} ({each.count(n)} of them)" for n in dict.fromkeys(each))
        lines.append(
            [words, collapsed, f"{variance(each):.2f}", f"{fmean(others):.2f}", f"{p:.2g}"]
        )
    heads = [f"{len(fallen)} of {len(ended)} runs collapsed", "runs that collapsed with the same"]
    return markdown([*heads, "variance of that", "by chance alone", "p"], lines)


def _counts(chosen: Sequence[int], seeds: Sequence[int]) -> list[int]:
    """How many of the chosen have each seed, the most first."""
    counts = Counter(chosen)
    return sorted((counts[seed] for seed in set(seeds)), reverse=True)


_CHOICES = 2_000
"""So often as many runs are chosen at random in place of those that collapsed. The p is the share
of these choices that are as uneven."""


def beginnings_table() -> str:
    """How many runs collapsed at each temperature, and how many of them came back."""
    results = read(FIRST_TEMPERATURES)
    if not results.rows:
        return if_stored(FIRST_TEMPERATURES)
    lines = []
    for setting in results.settings(("estimator", "tau")):
        rows = [row for row in results.where(**setting) if row.state == "finished"]
        if not rows:
            continue
        fallen = collapses(results, rows)
        low, high = rate_interval(len(fallen), len(rows))
        lines.append(
            [
                find_line(setting["estimator"]).label,
                f"{setting['tau']:g}",
                f"{len(rows)}",
                f"{len(fallen)}",
                f"{100 * low:.1f} to {100 * high:.1f} %",
                f"{sum(epoch is not None for _, epoch in fallen)}",
                f"{median(row.metrics['train'] for row in rows):.2f}",
            ]
        )
    heads = ["", "τ", "runs", "collapsed after 4 epochs", "95 % interval", "came back by epoch 20"]
    return markdown([*heads, "median of train \N{MINUS SIGN}ELBO"], lines)


def precision_table() -> str:
    """What TF32 changes, and whether either is where the paper is."""
    results = read(PRECISION)
    if not results.rows:
        return if_stored(PRECISION)
    lines = []
    for metric, number in (("train", 2), ("test", 9)):
        for key in results.estimators():
            published = published_cells()[number, key, "8x16"].summary
            means = [
                final(results.where(estimator=key, tf32=tf32), metric) for tf32 in (True, False)
            ]
            apart = [compare(*means), *(compare(mean, published) for mean in means)]
            lines.append(
                [
                    f"{find_line(key).label}, {metric}",
                    *(
                        f"{with_half(mean.mean, mean.half, 2)} ({mean.count} runs)"
                        for mean in means
                    ),
                    *(with_half(x.difference, x.half, 2, "+") for x in apart),
                ]
            )
    heads = ["", "TF32", "float32", "TF32 less float32", "TF32 less published"]
    return markdown([*heads, "float32 less published"], lines)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def rate_interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a probability, from so many events in so many trials."""
    z = 1.959964
    middle = (count + z * z / 2) / (total + z * z)
    half = z * math.sqrt(count * (total - count) / total + z * z / 4) / (total + z * z)
    return max(0.0, middle - half), min(1.0, middle + half)


def _beside(ours: Summary, published: str) -> str:
    text = with_half(ours.mean, ours.half, 2)
    return f"{text} ({published})" if published else text


def tables_and_claims(recipe: str, *, folded: bool = False) -> str:
    """What the report says; with ``folded`` a reader opens the tables one by one."""
    whole = section(read(recipe))
    parts = []
    for table in whole.tables:
        text = [wrapped(table.caption), markdown(table.headings, [list(row) for row in table.rows])]
        text += [wrapped(note) for note in table.notes]
        if folded:
            lines = "\n\n".join(text).splitlines()
            body = "\n".join(f"    {line}".rstrip() for line in lines)
            parts.append(f'??? note "{table.title}"\n\n{body}')
        else:
            parts += [f"**{table.title}**", *text]
    if whole.verdicts:
        parts.append(claims_table(whole.verdicts))
    return "\n\n".join(parts)


def if_stored(recipe: str, picture: str = "") -> str:
    """What the report says, with a picture if it has words; or that there is nothing to report."""
    if not read(recipe).rows:
        return f"Not trained here yet; it takes `discretegrad run {recipe}`."
    shown = [f"![{picture}](assets/{recipe}.png)"] if picture and is_drawn(recipe) else []
    return "\n\n".join([*shown, tables_and_claims(recipe, folded=True)])


def is_drawn(recipe: str) -> bool:
    """Whether there are curves for a picture."""
    return read(recipe).counts()["finished"] > 0


def parts_if_stored(titles: Mapping[str, str], picture: str = "", about: str = "") -> str:
    """What the report of each recipe says, under its title; one sentence if none was trained.

    Args:
        titles: By recipe.
        picture: The words of their pictures, if they have one each.
        about: What is said of all pictures, before them.
    """
    if not any(read(recipe).rows for recipe in titles):
        names = ", ".join(f"`{recipe}`" for recipe in titles)
        return wrapped(f"Not trained here yet; it takes `discretegrad run` of {names}.")
    parts = [f"**{title}**\n\n{if_stored(recipe, picture)}" for recipe, title in titles.items()]
    shown = [wrapped(about)] if about and any(map(is_drawn, titles)) else []
    return "\n\n".join([*shown, *parts])


def architectures_block() -> str:
    """What the report on the searches says, with its drawings before it."""
    shown = [
        f"![{x.title}](assets/{SEARCHED}-{x.file})\n\n{wrapped(x.caption)}" for x in drawn(SEARCHED)
    ]
    shown += [wrapped(f"{BANDS} {WITHOUT_TENTH}")] if is_drawn(SEARCHED) else []
    return "\n\n".join([*shown, if_stored(SEARCHED, "Searches against the epoch")])


def claims_table(verdicts: Sequence[Verdict]) -> str:
    """The paper's claims with what the runs say."""
    return markdown(
        ["the paper says", "where", "here", "numbers"],
        [[v.text, v.place, f"**{v.word}**", v.evidence] for v in verdicts],
    )


def temperatures_table() -> str:
    """The best of the search."""
    settings = read(SEARCH).settings(("power", "target"))
    headings = [reading(read(SEARCH)).describe(setting) for setting in settings]
    lines = [
        [line.label, *(f"{temperature(x['power'], x['target'], key):g}" for x in settings)]
        for key, line in LINES.items()
        if line.has_tau
    ]
    return markdown(["", *headings], lines)


def at_one_table() -> str:
    """ReinMax in the search at 1, at its best, and RODEO."""
    lines = []
    for power in (1.5, 2.0, 3.0):
        where = {"power": power, "target": "constant", "latents": 128, "batch": 256}
        rows = [
            _entry(read(SEARCH).part(tau=1.0, **where), "reinmax"),
            _entry(read(SETTINGS).part(**where), "reinmax"),
            _entry(read(SETTINGS).part(**where), "rodeo"),
        ]
        cells = [f"{from_optimum(entry)} ({entry.ours.count} runs)" for entry in rows]
        lines.append([reading(read(SEARCH)).describe({"power": power}), *cells])
    return markdown(["% above the optimum", "ReinMax, τ = 1", "ReinMax, tuned", "RODEO"], lines)


def _entry(results: Results, estimator: str) -> Entry:
    (entry,) = (x for x in entries(reading(results), results) if x.estimator == estimator)
    return entry


PAGE = Page(DOCS / "reproduction.md", (), lambda results: blocks())


# the pictures


def pictures() -> dict[Path, list[Figure]]:
    """What each picture of stored curves shows."""
    corners = (
        {"target": "constant", "latents": 8, "batch": 256},
        {"target": "spread", "latents": 128, "batch": 16},
    )
    settings = [section(read(SETTINGS).part(**corner)).figures for corner in corners]
    shown = {name: section(read(name)).figures for name in (DEMO, CURVES, SEARCH)}
    shown |= {
        VAE: [from_epoch(10, figure) for figure in section(read(VAE)).figures],
        SETTINGS: [figure for figures in settings for figure in figures],
    }
    for name, metrics in _DRAWN.items():
        if not is_drawn(name):
            continue
        # estimators differ by more than a factor of ten in the first epochs
        shown[name] = [
            replace(figure, log_y=figure.better == "down")
            for figure in chosen_figures(name, *metrics)
        ]
    for name in filter(is_drawn, (SEARCHED, *BITS)):
        shown[name] = [from_share(0.1, figure) for figure in section(read(name)).figures]
    if is_drawn(SAMPLES):
        how, results = reading(read(SAMPLES)), read(SAMPLES)
        shown[SAMPLES] = several.over_time(how, results, section(results).figures)
    if is_drawn(PARSING):
        shown[PARSING] = [from_epoch(2, x) for x in chosen_figures(PARSING, *_PARSED)]
    return {PICTURES / f"{name}.png": figures for name, figures in shown.items()}


# of the pictures of large experiments
BANDS = "Lines are means over seeds, with bands that are 95 % intervals."
WITHOUT_TENTH = (
    "The first tenth of each line is left out, since nothing else could be seen beside it."
)
_DRAWN = {
    GRADIENTS: ("gradient_cosine", "gradient_bias"),
    # what the draws leave room for: the bias itself is zero for many, which has no logarithm
    **dict.fromkeys(BIT_GRADIENTS, ("gradient_deviation", "gradient_bias_bound")),
}
_PARSED = ("valid_accuracy", "test_accuracy", "valid_loss")


def maps() -> dict[Path, list[Figure]]:
    """What each picture of a search shows, a panel for each size: the loss in training alone."""
    if not read(TEMPERATURES).rows:
        return {}
    return {PICTURES / f"{TEMPERATURES}.png": chosen_figures(TEMPERATURES, "train")}


def drawings() -> dict[Path, str]:
    """Drawings of reports that a page shows as they are."""
    return {
        PICTURES / f"{recipe}-{drawing.file}": drawing.svg
        for recipe in DRAWINGS
        for drawing in drawn(recipe)
    }


def drawn(recipe: str) -> list[Drawing]:
    """Those of a recipe."""
    return [x for x in section(read(recipe)).drawings if x.file in DRAWINGS[recipe]]


def chosen_figures(recipe: str, *metrics: str) -> list[Figure]:
    """The figures of a report that show some of its metrics."""
    results = read(recipe)
    labels = {metric.label for metric in reading(results).metrics if metric.name in metrics}
    return [figure for figure in section(results).figures if figure.y_label in labels]


def from_epoch(first: int, figure: Figure) -> Figure:
    """Without the beginning, beside which nothing else could be seen."""
    return replace(figure, curves=tuple(_later(curve, first) for curve in figure.curves))


def from_share(share: float, figure: Figure) -> Figure:
    """The same, where curves end at different places: each without so much of its own."""
    # a point that is there but for its rounding stays
    share *= 1 - 1e-6
    curves = tuple(_later(curve, share * curve.x[-1]) for curve in figure.curves)
    return replace(figure, curves=curves)


def _later(curve: Curve, first: float) -> Curve:
    start = next(number for number, x in enumerate(curve.x) if x >= first)
    parts = (curve.x, curve.y, curve.low, curve.high)
    x, y, low, high = (None if part is None else part[start:] for part in parts)
    return replace(curve, x=x, y=y, low=low, high=high)


# the tables of the README


def samplers_block() -> str:
    """The samplers of the registry."""
    columns = {"bias": lambda row: row.bias, "temperature": lambda row: row.temperature}
    return _registry("sampler", "function", columns)


def scores_block() -> str:
    """The score functions of the registry."""
    columns = {
        "variables": lambda row: (
            "any, also subsets" if row.any_family else " and ".join(row.families)
        ),
        "needs the gradient of f": lambda row: "yes" if row.needs_grad_f else "no",
    }
    return _registry("score", "estimator", columns)


def _registry(kind: str, first: str, columns: Mapping[str, Callable[[Any], str]]) -> str:
    rows = [row for row in discretegrad.ESTIMATORS.values() if row.kind == kind]
    lines = [
        [f"`{row.name}`", row.label, *(cell(row) for cell in columns.values()), row.reference]
        for row in rows
    ]
    return markdown([first, "in papers", *columns, "reference"], lines) + "\n"


def by_estimator(results: Results, cells: Callable[[Entry], Sequence[str]]) -> list[list[str]]:
    """A line for each estimator with the cells of all its entries."""
    lines: dict[str, list[str]] = {}
    for entry in entries(reading(results), results):
        label = LINES[entry.estimator].label
        lines.setdefault(label, [label]).extend(cells(entry))
    return list(lines.values())


def demo_block() -> str:
    """What ``make demo`` gives."""
    results = read(DEMO)
    return f"{demo_table(results)}\n\n{wrapped(demo_caption(results))}\n"


def demo_table(results: Results) -> str:
    """For each p the loss, the steps until it is near the optimum, and the temperature."""

    def cells(entry: Entry) -> tuple[str, str, str]:
        loss = with_half(entry.ours.mean, entry.ours.half, 5) if entry.ours.count else "-"
        arrived = 0 < entry.steps.count == entry.ours.count
        return loss, f"{entry.steps.mean:,.0f}" if arrived else "-", entry.tuned["tau"]

    headings = ["estimator"]
    for entry in entries(reading(results), results):
        problem = f"{reading(results).describe(entry.setting)}, best {decimal(entry.optimum, 5)}"
        headings += [] if problem in headings else [problem, "steps", "τ"]
    return markdown(headings, by_estimator(results, cells))


def demo_caption(results: Results) -> str:
    """What the table shows, and what it does not."""
    report, paper = section(results), Polynomial(estimator="reinmax")
    run = results.rows[0].config
    seeds = len({row.config["seed"] for row in results.rows})
    failed = [
        f" {claim.word.capitalize()}: “{claim.text}” ({claim.place})."
        for claim in report.verdicts
        if not claim.holds
    ]
    count = len(report.verdicts)
    return (
        f"The expected loss, which is exact, after {_training(run)} (Figure 1: "
        f"{_training(paper.document())}); {plural(seeds, 'seed')}. The loss is the mean of "
        f"|X - 0.45|^p over {run['latents']} binary variables X, with {run['batch']} joint samples "
        f"a step. Beside it are the steps until it is within {100 * NEAR:g} % of the best possible "
        "and stays there; a dash means: not within these steps. GR-MCK has "
        f"{run['draws']:,} draws (the paper: {paper.draws:,}). τ is what the search "
        f"`{SEARCH}` found best for each p. For p = 2, a quadratic loss, ReinMax at τ = 1 is "
        "unbiased.\n\n"
        f"{count - len(failed)} of {count} claims of the paper about this problem hold for these "
        f"seeds and temperatures ([numbers](results/{results.recipe}/report.md)).{''.join(failed)}"
        f"\n\n{report.text}"
    )


def _training(config: Mapping[str, Any]) -> str:
    steps = config["epochs"] * config["steps_per_epoch"]
    return f"{steps:,} steps of Adam at a learning rate of {config['learning_rate']:g}"


def column_block() -> str:
    """The column of the paper's main table, and what became of all claims."""

    def cells(entry: Entry) -> tuple[str, str, str]:
        assert entry.cell is not None
        pairs = ((entry.cell.value, entry.cell.summary.half), (entry.ours.mean, entry.ours.half))
        published, ours = (with_half(mean, half, 2) for mean, half in pairs)
        return published, ours, entry.verdict

    headings = ["MNIST-VAE, 10 x 30"]
    for metric in ("train", "test"):
        headings += [f"{metric} \N{MINUS SIGN}ELBO, published", "ours", "difference"]
    results = of_paper(read(VAE))
    lines = by_estimator(results, cells)
    return f"{markdown(headings, lines)}\n\n{wrapped(_caption(results))}\n"


def _caption(results: Results) -> str:
    cells = entries(reading(results), results)
    published = {entry.cell.runs for entry in cells if entry.cell}
    ours = {entry.ours.count for entry in cells}
    doubts = [x for table in section(results).tables for x in table.notes if "in doubt" in x]
    seconds = f"{training_seconds(results):.0f} s"
    about = results.rows[0]
    return (
        f"Mean ± half the 95 % interval, published over {_numbers(published)} runs and ours over "
        f"{_numbers(ours)}; *within* means that the difference lies inside its own 95 % interval. "
        f"These {len(results.rows)} runs trained at once in {seconds} on one {about.device} "
        f"(commit {about.commit}, TF32). {' '.join(doubts)}\n\n"
        f"{finished():,} finished runs are stored. {claims.counts(all_claims())} in them: "
        "[the paper, trained again](docs/reproduction.md)."
    )


def _numbers(counts: set[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
