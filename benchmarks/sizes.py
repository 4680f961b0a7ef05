"""Tables of the VAE that have all of its sizes in them."""

from collections.abc import Sequence
from statistics import fmean

import pooled
import stored
from pages import markdown, wrapped
from reports import if_stored
from stored import reading

from discretegrad_lab import tasks
from discretegrad_lab.report.entries import DASH, entries
from discretegrad_lab.report.tables import mean_cell, with_half
from discretegrad_lab.stack.lines import line as find_line
from discretegrad_lab.tasks.chosen import NotChosen
from discretegrad_lab.tasks.evidence import final
from discretegrad_lab.tasks.statistics import Summary, compare, summarise
from discretegrad_lab.tasks.vae.published import cells as published_cells
from discretegrad_lab.tasks.vae.recipes import PAPER


def main_tables() -> str:
    """The paper's main table, by train and by test."""
    return f"{main_table('train', 2)}\n\n{main_table('test', 9)}"


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


def all_sizes() -> str:
    """How far all of them together are from the paper."""
    results = [stored.read(name) for name in stored.COLUMNS]
    return pooled.table([(reading(x), x) for x in results], ("train", "test"))


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
    return "\n\n".join(tables) or _not_trained()


def _not_trained() -> str:
    """What it takes to train the settings of our own searches."""
    ready = [name for name in stored.CHOSEN["train"] if _is_chosen(name)]
    if not ready:
        return "Not trained here yet; it takes the searches above."
    *first, last = (name.rpartition("-")[2] for name in ready)
    sizes = " and ".join(filter(None, (", ".join(first), last)))
    others = len(ready) < len(stored.CHOSEN["train"])
    return wrapped(
        f"Not trained here yet; it takes `discretegrad run {ready[0]}` and so on for {sizes}, "
        f"whose settings are chosen{', and the searches above for the other sizes' * others}."
    )


def _is_chosen(name: str) -> bool:
    """Whether the settings of a recipe, which a search finds, are there."""
    try:
        return bool(tasks.recipe(name).runs())
    except NotChosen:
        return False


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
