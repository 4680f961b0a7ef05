"""The overview of the pages on the paper: what was trained, and what became of its claims."""

import re
from statistics import median
from typing import Any

import claims
import stored
from pages import markdown, plural, wrapped
from stored import all_claims, all_training_seconds, finished, reading, training_seconds

from discretegrad_lab import tasks
from discretegrad_lab.report.entries import entries


def in_short() -> str:
    """What was trained, and what it says of the numbers and the claims of the paper."""
    names, judged_claims = stored.shown(), all_claims()
    # a search that was stopped may have none
    recipes = sum(any(x.state == "finished" for x in stored.read(name).rows) for name in names)
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
                f"{finished():,} finished runs of {recipes} recipes, {hours:.1f} hours of "
                f"training on one {' or '.join(devices)}, added up over stacks that partly ran "
                f"side by side.{missing} Of {len(verdicts)} comparisons "
                f"with {len(judged)} published means {verdicts.count('within')} are within the "
                "joint 95 % interval; 1 in 20 is outside by chance. "
                f"{claims.counts(judged_claims)}."
            ),
            claims.lists(judged_claims),
        ]
    )


def runs() -> str:
    """What was trained, and what of it more than once."""
    return "\n\n".join(filter(None, (runs_table(), trained_twice())))


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
