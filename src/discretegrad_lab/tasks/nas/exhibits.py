"""Further parts of the report on a search: reference lines, every cell, transfers, power."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...stack.lines import line
from ..base import Exhibit, read_rows
from ..evidence import DASH, Results, Row, final, with_half
from ..statistics import Summary, compare, summarise
from .benchmark import Benchmark
from .cells import CONV_3, EDGES, NONE, SKIP, from_number, from_text, to_text
from .claims import METRICS, POWER, RESOLVED, alike, mean_of, seeds_needed
from .drawings import draw_cells, draw_probabilities
from .model import GRADIENT

_TRANSFERRED = {
    "validation_cifar100": "CIFAR-100 validation",
    "test_cifar100": "CIFAR-100 test",
    "validation_imagenet16": "ImageNet16-120 validation",
    "test_imagenet16": "ImageNet16-120 test",
}
_PAIRS = (
    ("reinmax-gdas", "gdas"),
    ("reinmax-gdas", "stgs-control"),
    ("reinmax-gdas", "st-gdas"),
    ("reinmax-full", "reinmax-gdas"),
    ("stgs-control", "gdas"),
)
"""Keys of lines that are compared, the first one with the second."""
_RESNET = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|"
_TRIES = 8
_OPTIMUM, _ALL_CONV = "the best cell by validation", "all edges conv 3x3"
_RANDOM = f"random search, the best of {_TRIES} by validation"


class Reference(NamedTuple):
    """A line that searches are held against, in percent."""

    name: str
    validation: str
    test: str


def references(table: Benchmark) -> list[Reference]:
    """Those of a table, which ``references.csv`` has for readers without one."""
    best = table.best("validation").cell
    cells = {
        _OPTIMUM: best,
        "ResNet's cell": from_text(_RESNET),
        _ALL_CONV: (CONV_3,) * len(EDGES),
    }
    lines = [
        Reference(name, *(f"{table[cell].accuracies[metric]:.2f}" for metric in METRICS))
        for name, cell in cells.items()
    ]
    found = [table.random_search(metric, tries=_TRIES) for metric in METRICS]
    lines.append(
        Reference(
            _RANDOM,
            *(f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in found),
        )
    )
    medians = (f"{table.median(metric):.2f}" for metric in METRICS)
    return [*lines, Reference("a random cell, median", *medians)]


REFERENCES = [Reference(**row) for row in read_rows(Path(__file__).with_name("references.csv"))]


def drawn_references(metric: str) -> tuple[tuple[str, float], ...]:
    """Those that figures of a metric show as lines."""
    texts = {reference.name: getattr(reference, metric) for reference in REFERENCES}
    short = {"optimum": _OPTIMUM, _ALL_CONV: _ALL_CONV, f"random, best of {_TRIES}": _RANDOM}
    # a mean may have its deviation behind it
    return tuple((name, float(texts[whole].split()[0])) for name, whole in short.items())


def exhibits(results: Results) -> Sequence[Exhibit]:
    """All of them, once a run is finished."""
    rows = [row for row in results.rows if row.state == "finished" and "cell_number" in row.metrics]
    if not rows:
        return []
    return [
        _references(results),
        _power(results),
        _gradients(results),
        _transferred(results),
        _cells(rows),
        draw_cells(rows),
        draw_probabilities(results, rows),
    ]


def _references(results: Results) -> Exhibit:
    """Where the means of the arms stand among cells that need no search."""
    lines = [tuple(reference) for reference in REFERENCES]
    for key in results.estimators():
        summaries = [final(results.where(estimator=key), metric) for metric in METRICS]
        if summaries[0].count:
            lines.append((line(key).label, *map(_mean, summaries)))
    return Exhibit(
        "Beside cells that need no search",
        "Accuracies on CIFAR-10 in the table of NATS-Bench, in percent. Searches: mean ± half the "
        "95 % interval; random search: mean ± standard deviation, both exact.",
        ("", *METRICS),
        tuple(lines),
        ("The paper's 93.44 on test images is below what all edges conv 3x3 have.",),
    )


def _power(results: Results) -> Exhibit:
    lines = []
    for first, second in _PAIRS:
        for metric in METRICS:
            ours, theirs = (final(results.where(estimator=x), metric) for x in (first, second))
            needed, versus = seeds_needed(ours, theirs), compare(ours, theirs)
            lines.append(
                (
                    f"{line(first).label} less {line(second).label}",
                    metric,
                    with_half(versus.difference, versus.half if needed else math.nan, 2, "+"),
                    versus.chance if needed else DASH,
                    _counts(ours, theirs),
                    str(needed or DASH),
                )
            )
    notes = []
    for key in results.estimators():
        own = {metric: final(results.where(estimator=key), metric) for metric in METRICS}
        if equal := [metric for metric, summary in own.items() if alike(summary)]:
            notes.append(
                f"All runs of {line(key).label} have the same {' and '.join(equal)} accuracy. "
                "Other searches may end elsewhere, so their spread is not known, and what is "
                "compared with them is not decided."
            )
    return Exhibit(
        "What the number of seeds can tell",
        f"Differences with half the joint 95 % interval; p by Welch's t-test. The last column is "
        f"the number of seeds with which a test at 5 % finds a difference of {RESOLVED} points in "
        f"{100 * POWER:g} % of all cases, by the spread of these runs; in brackets by both ends of "
        "the 95 % interval of the variance, which a few runs tell roughly only.",
        ("", "metric", "difference", "p", "seeds", f"seeds for {RESOLVED} points"),
        tuple(lines),
        tuple(notes),
    )


def _counts(first: Summary, second: Summary) -> str:
    """How many runs both have, or each of them."""
    counts = dict.fromkeys((first.count, second.count))
    return " and ".join(map(str, counts))


def _gradients(results: Results) -> Exhibit:
    """How large the gradients of the arms are, on which it depends how strong their decay is."""
    lines = []
    for key in results.estimators():
        rows = [row for row in results.where(estimator=key) if GRADIENT in row.metrics]
        if rows:
            decays = {f"{row.config['decay']:g}": None for row in rows}
            firsts = [results.first(row, GRADIENT) for row in rows]
            first = summarise([x for x in firsts if x is not None])
            ends = (first, final(rows, GRADIENT))
            sizes = (f"{x.mean:.2g}" if x.count else DASH for x in ends)
            lines.append((line(key).label, ", ".join(decays), *sizes))
    return Exhibit(
        "The gradient of the architecture",
        "Root mean square over the logits and the steps of an epoch, before the decay is added; "
        "mean over runs. Adam divides by the size of both together, so the same decay pulls the "
        "logits towards zero the more strongly the smaller this is: a decay of 0.09 adds 0.009 to "
        "the gradient of a logit of 0.1.",
        ("", "decay", "first epoch", "last epoch"),
        tuple(lines),
    )


def _transferred(results: Results) -> Exhibit:
    lines = []
    for key in results.estimators():
        summaries = [final(results.where(estimator=key), metric) for metric in _TRANSFERRED]
        lines.append((line(key).label, *map(_mean, summaries)))
    return Exhibit(
        "Transferred from CIFAR-10",
        "The same cells, found on CIFAR-10, as the table has them on other data sets: mean ± half "
        "the 95 % interval. The columns of these names in the paper are searches on each data set, "
        "so they are not comparable and do not stand here.",
        ("", *_TRANSFERRED.values()),
        tuple(lines),
    )


def _cells(rows: Sequence[Row]) -> Exhibit:
    lines, notes = [], []
    for key in dict.fromkeys(row.config["estimator"] for row in rows):
        own = [row for row in rows if row.config["estimator"] == key]
        chosen = [from_number(int(row.metrics["cell_number"])) for row in own]
        edges = len(EDGES) * len(chosen)
        counts = {
            name: sum(cell.count(operation) for cell in chosen)
            for name, operation in (("none", NONE), ("skip", SKIP))
        }
        words = " and ".join(f"{name} wins on {count}" for name, count in counts.items())
        notes.append(f"{line(key).label}: of {edges} edges {words}.")
        for row, cell in zip(own, chosen, strict=True):
            accuracies = (f"{row.metrics[metric]:.2f}" for metric in METRICS)
            lines.append(
                (
                    f"{line(key).label}, seed {row.config['seed']}",
                    *accuracies,
                    f"{row.metrics['entropy']:.4f}",
                    f"`{to_text(cell)}`",
                )
            )
    return Exhibit(
        "Every cell that was found",
        "The most probable operation on each edge after the last epoch, with its accuracies on "
        f"CIFAR-10 and the mean entropy of an edge, of at most {math.log(5):.4f} nats.",
        ("", *METRICS, "entropy", "cell"),
        tuple(lines),
        tuple(notes),
    )


def _mean(summary: Summary) -> str:
    return mean_of(summary, DASH)
