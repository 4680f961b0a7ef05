"""The page that has stored runs beside the paper, from the results below results/."""

import re
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import claims
import efficiency
import kernels
import pooled
import several
import stored
from collapses import beginnings_table, collapse_table, weights_table
from pages import DOCS, PICTURES, Page, markdown, plural, wrapped
from pictures import drawn
from reports import claims_table, if_stored, parts_if_stored, tables_and_claims
from stored import (
    all_claims,
    all_training_seconds,
    finished,
    is_drawn,
    reading,
    section,
    training_seconds,
)

from discretegrad_lab import tasks
from discretegrad_lab.report.entries import DASH, Entry, entries
from discretegrad_lab.report.tables import from_optimum, mean_cell, with_half
from discretegrad_lab.report.verdicts import RULE
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.stack.lines import line as find_line
from discretegrad_lab.tasks.evidence import Results, final
from discretegrad_lab.tasks.polynomial import temperature
from discretegrad_lab.tasks.statistics import Summary, compare, summarise
from discretegrad_lab.tasks.vae.published import cells as published_cells
from discretegrad_lab.tasks.vae.recipes import PAPER

# of the pictures of large experiments
BANDS = "Lines are means over seeds, with bands that are 95 % intervals."
WITHOUT_TENTH = (
    "The first tenth of each line is left out, since nothing else could be seen beside it."
)


def blocks() -> dict[str, str]:
    """The generated parts of the page of the documentation."""
    gradients = "Gradients beside the exact one, against the epoch"
    return {
        "in short": in_short(),
        "runs": "\n\n".join(filter(None, (runs_table(), trained_twice()))),
        "rule": wrapped(RULE),
        "main table": f"{main_table('train', 2)}\n\n{main_table('test', 9)}",
        "all sizes": pooled.table(
            [(reading(stored.read(x)), stored.read(x)) for x in stored.COLUMNS], ("train", "test")
        ),
        "precision": precision_table(),
        "collapse": collapse_table(),
        "beginnings": f"{weights_table()}\n\n{beginnings_table()}",
        "vae": tables_and_claims(stored.VAE),
        "other sizes": "\n\n".join(
            tables_and_claims(name, folded=True) for name in stored.OTHER_SIZES
        ),
        "large": parts_if_stored({x: tasks.recipe(x).title for x in stored.LARGE}),
        "exact": if_stored(stored.EXACT),
        "gradients": if_stored(stored.GRADIENTS, gradients),
        "baselines": if_stored(stored.BASELINES),
        "measures": measures_tables(),
        "prior samples": model_pictures("prior-samples", "makes of random codes"),
        "other reconstructions": model_pictures(
            "reconstructions", "makes of test images", stored.OTHER_SIZES
        ),
        "samples": samples_block(),
        "small samples": if_stored(
            stored.SMALL_SAMPLES, "The loss against the epoch, from the tenth on"
        ),
        "by temperature": if_stored(stored.BY_TEMPERATURE, gradients),
        "efficiency": efficiency.table_of_the_paper(kernels.PAGE.read().of(section="efficiency")),
        "heat map": if_stored(
            stored.TEMPERATURES, "Train loss of each estimator at each temperature"
        ),
        "chosen": chosen_tables(),
        "searches": parts_if_stored({x: x[11:] for x in stored.SEARCHES}),
        "temperatures": temperatures_table(),
        "search claims": claims_table(section(stored.read(stored.SEARCH)).verdicts),
        "curves": tables_and_claims(stored.CURVES),
        "settings": tables_and_claims(stored.SETTINGS, folded=True),
        "at one": at_one_table(),
        "listops": if_stored(stored.PARSING, "Accuracy and loss against the epoch"),
        "architectures": architectures_block(),
        "bits": parts_if_stored(
            {x: tasks.recipe(x).title for x in stored.BITS},
            "The loss against the step, and against the GPU time of a run",
            f"{BANDS} {WITHOUT_TENTH}",
        ),
        "bit gradients": parts_if_stored(
            {x: tasks.recipe(x).title for x in stored.BIT_GRADIENTS},
            "Standard deviation of the gradients, and their largest bias, against the step",
            f"{BANDS} The bias has two standard errors added, so it is how large it may be.",
        ),
    }


def in_short() -> str:
    """What was trained, and what it says of the numbers and the claims of the paper."""
    names, judged_claims = stored.shown(), all_claims()
    hours = all_training_seconds() / 3600
    devices = sorted({x.device for name in names for x in stored.read(name).rows if x.device})
    judged: dict[tuple[Any, ...], list[str]] = {}
    for name in names:
        for entry in entries(reading(stored.read(name)), stored.read(name)):
            if entry.verdict in ("within", "above", "below"):
                table = reading(stored.read(name)).published[entry.metric.name]
                # of ListOps two checkpoints are compared with one number
                number = table.number, table.column, entry.estimator, entry.cell
                judged.setdefault(number, []).append(entry.verdict)
    verdicts = [verdict for own in judged.values() for verdict in own]
    untrained = [
        tasks.recipe(name).reproduces for name in stored.IF_TRAINED if not stored.read(name).rows
    ]
    numbers = {int(x) for text in untrained for x in re.findall(r"^Table (\d+)", text)}
    missing = ""
    if numbers:
        tables = ", ".join(map(str, sorted(numbers)))
        missing = f" Tables of the paper that are not trained yet, or not whole: {tables}."
    return "\n\n".join(
        [
            wrapped(
                f"{finished():,} finished runs of {len(names)} recipes, {hours:.1f} hours of "
                f"training on one {' or '.join(devices)}, added up over stacks that partly ran "
                f"side by side.{missing} Of {len(verdicts)} comparisons "
                f"with {len(judged)} published means {verdicts.count('within')} are within the "
                "joint 95 % interval; 1 in 20 is outside by chance. "
                f"{claims.counts(judged_claims)}."
            ),
            claims.lists(judged_claims),
        ]
    )


def runs_table() -> str:
    """What was trained, on what, and how long it took."""
    lines = []
    for name in stored.shown():
        results, recipe = stored.read(name), tasks.recipe(name)
        states = [f"{n:,} {state}" for state, n in results.counts().items() if n]
        failed = len(results.failed(recipe.task.metric(recipe.metrics[0])))
        states += [f"{failed} of them failed to train"] if failed else []
        counts = ", ".join(states)
        trained = [row for row in results.rows if row.commit]
        about = [dict.fromkeys(getattr(row, what) for row in trained) for what in _PROVENANCE]
        inside = name != stored.SETTINGS and _identities(name) <= _identities(stored.SETTINGS)
        seconds = f"in {stored.SETTINGS}" if inside else f"{training_seconds(results):,.0f} s"
        lines.append([name, recipe.reproduces, counts, seconds, *(", ".join(x) for x in about)])
    return markdown(["recipe", "of the paper", "runs", "training", *_PROVENANCE], lines)


_PROVENANCE = ("device", "torch", "commit")


def _identities(recipe: str) -> set[str]:
    return {row.identity for row in stored.read(recipe).rows}


def trained_twice() -> str:
    """What is said of runs that recipes share and that were trained for more than one of them."""
    trainings: dict[str, dict[tuple[str, float], float]] = {}
    recipes: dict[str, set[str]] = {}
    for name in stored.shown():
        metric = tasks.recipe(name).metrics[0]
        for row in stored.read(name).rows:
            if metric in row.metrics:
                ends = trainings.setdefault(row.identity, {})
                ends[row.commit, row.seconds] = row.metrics[metric]
                recipes.setdefault(row.identity, set()).add(name)
    twice = {key: list(ends.values()) for key, ends in trainings.items() if len(ends) > 1}
    if not twice:
        return ""
    having = ", ".join(x for x in stored.shown() if any(x in recipes[key] for key in twice))
    gaps = sorted((max(ends) - min(ends), key) for key, ends in twice.items())
    farthest, key = gaps[-1]
    typical = median(gap for gap, _ in gaps)
    return wrapped(
        f"{plural(len(twice), 'run')} of these recipes were trained more than once, on different "
        f"machines or in different stacks, and each recipe has the numbers of its own: {having}. "
        "Matrix products of different stacks round differently, and training makes more of it: by "
        f"the first metric half of them end at most {typical:.2f} apart, and the farthest, of "
        f"{min(recipes[key], key=stored.shown().index)}, {farthest:.2f}."
    )


def main_table(
    metric: str, number: int, columns: Sequence[str] = stored.COLUMNS, chosen: str = ""
) -> str:
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
        for entry in entries(reading(stored.read(name)), stored.read(name)):
            if entry.metric.name == metric:
                # so that all lines are as long, whatever was trained
                cells = labels.setdefault(entry.estimator, [DASH] * len(columns))
                doubts = reading(stored.read(name)).published[metric].doubts
                mark = "?" if entry.estimator in doubts else ""
                in_doubt |= {entry.estimator} if mark else set()
                published = f"{entry.cell.value:.2f}{mark}" if entry.cell else ""
                cells[place] = mean_cell(entry, published)
        for row in stored.read(name).rows:
            seeds = by_seed.setdefault(row.config["estimator"], {})
            if metric in row.metrics:
                seeds.setdefault(row.config["seed"], []).append(row.metrics[metric])
    for estimator, seeds in by_seed.items():
        # of seeds that are finished in every size
        whole = [values for values in seeds.values() if len(values) == len(columns)]
        mean = summarise([fmean(values) for values in whole])
        cell = published_cells().get((number, estimator, "average"))
        mark = "?" if estimator in in_doubt else ""
        labels[estimator].append(_beside(mean, f"{cell.value:.2f}{mark}" if cell else ""))
    head = ", ".join(filter(None, (f"Table {number}: {metric} \N{MINUS SIGN}ELBO", chosen)))
    heads = [head, *(x.rpartition("-")[2] for x in columns), "mean"]
    return markdown(heads, [[find_line(key).label, *cells] for key, cells in labels.items()])


def _beside(ours: Summary, published: str) -> str:
    text = with_half(ours.mean, ours.half, 2)
    return f"{text} ({published})" if published else text


def measures_tables() -> str:
    """What the finished models of the main table were measured by, a table for each metric."""
    tables = []
    for metric in reading(stored.read(stored.VAE)).measures:
        labels: dict[str, list[str]] = {}
        for place, name in enumerate(stored.COLUMNS):
            for row in stored.read(name).rows:
                # so that all lines are as long
                labels.setdefault(row.config["estimator"], [DASH] * len(stored.COLUMNS))
            for key, cells in labels.items():
                own = (
                    row.measured for row in stored.read(name).where(estimator=key) if row.measured
                )
                values = [x.values[metric.name] for x in own if metric.name in x.values]
                summary = summarise(values)
                cells[place] = with_half(summary.mean, summary.half, metric.digits)
        measured = {key: x for key, x in labels.items() if set(x) != {DASH}}
        if measured:
            lines = [[find_line(key).label, *cells] for key, cells in measured.items()]
            tables.append(markdown([metric.label, *(x[4:] for x in stored.COLUMNS)], lines))
    return (
        "\n\n".join(tables)
        or f"Not measured here yet; it takes `discretegrad measure {stored.VAE}`."
    )


def model_pictures(kind: str, what: str, names: Sequence[str] = stored.COLUMNS[::-1]) -> str:
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
    results = stored.read(stored.SAMPLES)
    if not is_drawn(stored.SAMPLES):
        return if_stored(stored.SAMPLES)
    picture = f"![The loss against the GPU time of a run](assets/{stored.SAMPLES}.png)"
    return "\n\n".join([several.equal_table(reading(results), results), picture])


def chosen_tables() -> str:
    """What the settings of our own searches have, chosen by train and by test."""
    tables = [
        main_table(metric, number, stored.CHOSEN[by], f"chosen by {by}")
        for by, metric, number in (
            *(("train", "train", 2), ("train", "test", 9)),
            *(("test", "test", 10), ("test", "train", 11)),
        )
        if any(stored.read(name).counts()["finished"] for name in stored.CHOSEN[by])
    ]
    tables += [gained_table(by) for by in stored.CHOSEN] if tables else []
    return "\n\n".join(tables) or "Not trained here yet; it takes the searches above."


def gained_table(by: str) -> str:
    """What the settings of our own searches have less what those of the paper have here."""
    lines = []
    for key in PAPER:
        cells = []
        for name, column in zip(stored.CHOSEN[by], stored.COLUMNS, strict=True):
            ours, theirs = (stored.read(x).where(estimator=key) for x in (name, column))
            if ours and {row.identity for row in ours} <= {row.identity for row in theirs}:
                cells.append("the same")
                continue
            ends = [final(rows, by) for rows in (ours, theirs)]
            apart = compare(*ends) if all(x.count for x in ends) else None
            cells.append(with_half(apart.difference, apart.half, 2, "+") if apart else DASH)
        lines.append([find_line(key).label, *cells])
    head = f"{by} \N{MINUS SIGN}ELBO, chosen by {by}, less that of Table 8"
    return markdown([head, *(x[4:] for x in stored.COLUMNS)], lines)


def precision_table() -> str:
    """What TF32 changes, and whether either is where the paper is."""
    results = stored.read(stored.PRECISION)
    if not results.rows:
        return if_stored(stored.PRECISION)
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


def architectures_block() -> str:
    """What the report on the searches says, with its drawings before it."""
    shown = [
        f"![{x.title}](assets/{stored.SEARCHED}-{x.file})\n\n{wrapped(x.caption)}"
        for x in drawn(stored.SEARCHED)
    ]
    shown += [wrapped(f"{BANDS} {WITHOUT_TENTH}")] if is_drawn(stored.SEARCHED) else []
    return "\n\n".join([*shown, if_stored(stored.SEARCHED, "Searches against the epoch")])


def temperatures_table() -> str:
    """The best of the search."""
    settings = stored.read(stored.SEARCH).settings(("power", "target"))
    headings = [reading(stored.read(stored.SEARCH)).describe(setting) for setting in settings]
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
            _entry(stored.read(stored.SEARCH).part(tau=1.0, **where), "reinmax"),
            _entry(stored.read(stored.SETTINGS).part(**where), "reinmax"),
            _entry(stored.read(stored.SETTINGS).part(**where), "rodeo"),
        ]
        cells = [f"{from_optimum(entry)} ({entry.ours.count} runs)" for entry in rows]
        lines.append([reading(stored.read(stored.SEARCH)).describe({"power": power}), *cells])
    return markdown(["% above the optimum", "ReinMax, τ = 1", "ReinMax, tuned", "RODEO"], lines)


def _entry(results: Results, estimator: str) -> Entry:
    (entry,) = (x for x in entries(reading(results), results) if x.estimator == estimator)
    return entry


PAGE = Page(DOCS / "reproduction.md", (), lambda results: blocks())
