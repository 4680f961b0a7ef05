"""Further parts of the report on ListOps: spread, trees and their drawings, accuracies by size."""

import math
from collections.abc import Iterator, Sequence

from ...stack.lines import line
from ..base import Exhibit
from ..evidence import Results, Row, decimal, final, with_half
from ..statistics import summarise
from .data import LIMIT, REGENERATED
from .drawings import Parsed, draw_trees
from .measures import (
    BASELINES,
    DEPTH,
    LENGTH,
    SCORES,
    SHOWN,
    Grouping,
    answer_name,
    merge_name,
    tree_name,
)


def exhibits(results: Results) -> Sequence[Exhibit]:
    """The spread once runs are finished, and the others once models are measured."""
    finished = [row for row in results.rows if row.metrics]
    rows = [row for row in finished if row.measured is not None]
    spread = [_spread(finished)] if finished else []
    if not rows:
        return spread
    return [
        *spread,
        _beside_baselines(rows),
        _by_size(rows, LENGTH, "Accuracy by length, in tokens"),
        _by_size(rows, DEPTH, "Accuracy by depth, in levels"),
        *_drawings(rows),
    ]


def _caption(text: str, rows: Sequence[Row]) -> str:
    """With what must be said wherever results appear, if these are on the files."""
    regenerated = any(row.config["data"] == "listops" for row in rows)
    return f"{text} {REGENERATED}" if regenerated else text


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The runs of each estimator, by its key."""
    keys = dict.fromkeys(row.config["estimator"] for row in rows)
    return {key: [row for row in rows if row.config["estimator"] == key] for key in keys}


def _value(row: Row, name: str) -> float | None:
    return row.measured.values.get(name) if row.measured else None


def _cell(rows: Sequence[Row], name: str) -> str:
    """The mean of what was measured of models, with half its interval."""
    values = [value for row in rows if (value := _value(row, name)) is not None]
    summary = summarise(values)
    return with_half(summary.mean, summary.half, 1)


def _lines(rows: Sequence[Row], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A line for each estimator, with a cell for each name."""
    for key, own in _groups(rows).items():
        yield line(key).label, *(_cell(own, name) for name in names), str(len(own))


def _spread(rows: Sequence[Row]) -> Exhibit:
    """How far the seeds of an estimator are from each other, for both checkpoints."""
    lines = []
    for key, own in _groups(rows).items():
        cells: list[str] = []
        for name in ("test_accuracy", "best_test_accuracy"):
            values, deviation = [row.metrics[name] for row in own], final(own, name).deviation
            cells += (decimal(min(values), 2), decimal(max(values), 2))
            cells.append(with_half(deviation, math.nan, 2))
        lines.append((line(key).label, *cells, str(len(own))))
    columns = ("lowest", "highest", "standard deviation")
    return Exhibit(
        "Spread of the test accuracy over seeds",
        _caption(
            f"In percent, of test expressions of fewer than {LIMIT} tokens, by the model of the "
            "last epoch and by that of the best validation.",
            rows,
        ),
        ("", *(f"{when}, {x}" for when in ("last", "best") for x in columns), "runs"),
        tuple(lines),
    )


def _beside_baselines(rows: Sequence[Row]) -> Exhibit:
    """The learned trees and those that know only the number of tokens."""
    baselines = (
        (name, *(_cell(rows[:1], tree_name(field, name)) for field in SCORES), "")
        for name in BASELINES
    )
    return Exhibit(
        "Learned trees beside trees that know only the number of tokens",
        _caption(
            "In percent, mean ± half the 95 % interval over models, of test expressions of fewer "
            f"than {LIMIT} tokens. Left-branching trees join the first two parts again and again, "
            "right-branching ones the last two, random ones neighbours that are chosen uniformly.",
            rows,
        ),
        ("", *SCORES.values(), "models"),
        (*baselines, *_lines(rows, [tree_name(field) for field in SCORES])),
        (
            "Within a list the right tree branches to the left, which is a convention of the "
            "published files: a model can answer without it, and left-branching trees have much "
            "of it.",
        ),
    )


def _by_size(rows: Sequence[Row], grouping: Grouping, title: str) -> Exhibit:
    groups = {
        first: label
        for first, label in grouping.groups.items()
        if any(_value(row, grouping.examples(first)) for row in rows)
    }
    sizes = (f"{_value(rows[0], grouping.examples(first)) or 0:,.0f}" for first in groups)
    return Exhibit(
        title,
        _caption(
            "Percentage of right values on the full test set, mean ± half the 95 % interval over "
            "models, each as it is after the last epoch.",
            rows,
        ),
        ("", *groups.values(), "models"),
        (
            ("expressions", *sizes, ""),
            *_lines(rows, [grouping.accuracy(first) for first in groups]),
        ),
    )


def _drawings(rows: Sequence[Row]) -> Iterator[Exhibit]:
    """A drawing for each estimator: what its model of the lowest seed makes of ``SHOWN``."""
    for key, own in _groups(rows).items():
        row = min(own, key=lambda row: int(row.config["seed"]))
        parses = list(_parses(row))
        if parses:
            yield Exhibit(
                f"Trees of {line(key).label}, seed {row.config['seed']}",
                _caption(
                    "Learned trees of test expressions, after the last epoch, with the right ones "
                    "beside them. Full lines and filled dots are joins that both have; digits "
                    "above a right tree are values of lists.",
                    rows,
                ),
                drawing=draw_trees(*parses),
                file=f"trees-{key}.svg",
            )


def _parses(row: Row) -> Iterator[Parsed]:
    """Of those expressions that are not longer than what the model was trained on."""
    values = row.measured.values if row.measured else {}
    for number, tokens in enumerate(SHOWN):
        # models that were measured before an expression was added do not have it
        if len(tokens) <= row.config["longest"] and answer_name(number) in values:
            merges = [int(values[merge_name(number, n)]) for n in range(len(tokens) - 1)]
            yield Parsed(tokens, merges, int(values[answer_name(number)]))
