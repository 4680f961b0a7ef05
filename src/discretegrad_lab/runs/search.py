"""Train the runs of a search from rung to rung; what is stored decides who goes on.

Where the store is gone, results that were written from it can: they say who was dropped.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..stack.config import Run
from ..tasks.base import Recipe
from ..tasks.chosen import NotChosen
from ..tasks.evidence import DROPPED, Row
from ..tasks.halving import Ended, Goal, goals
from .listener import Outcome
from .store import DamagedRun, Metrics, Store

Parts = Sequence[tuple[Recipe, Sequence[Run]]]
"""Recipes, each with those of its runs that are asked for."""
Results = Mapping[str, Sequence[Row]]
"""Results that decide rungs which a store cannot, by the name of their recipe."""
Train = Callable[[Sequence[Run], int | None], Outcome]
"""Trains runs until an epoch, or to their end."""
_LASTING = ("finished", "diverged", "elsewhere")
"""Groups of an outcome in which a run stays."""


class NotMeasured(ValueError):
    """A rung is at an epoch after which the metric of its search is not measured."""


def goals_of(
    recipe: Recipe, runs: Iterable[Run], store: Store, results: Sequence[Row] = ()
) -> dict[Run, Goal]:
    """How far each run of a recipe is to be trained, by what a store has of all of them.

    Rungs that it has not all numbers of are decided as results say, if they say who was dropped.

    Raises:
        NotMeasured: If a rung has been reached where the metric of the search is not measured.
        OtherSearch: If this search cannot have dropped the runs that the results say.
    """
    if recipe.halving is None:
        return {run: Goal(run.epochs) for run in runs}
    runs, metric = list(runs), recipe.task.metric(recipe.halving.metric)
    sign = 1 if metric.direction == "down" else -1
    recorded = {run: _recorded(run, store) for run in runs}
    there: Counter[int] = Counter()
    measured: set[int] = set()

    def score(run: Run, epoch: int) -> float | None:
        rows, diverged_step = recorded[run]
        if len(rows) < epoch:
            return None
        if diverged_step is not None and diverged_step <= epoch * run.steps_per_epoch:
            return math.inf
        there[epoch] += 1
        value = rows[epoch - 1].get(metric.name, math.nan)
        if not math.isfinite(value):
            return math.inf
        measured.add(epoch)
        return sign * value

    decided = goals(recipe.halving, runs, score, _ended(runs, results, metric.name))
    for epoch, count in there.items():
        # only if nobody is waited for, and the rung was decided by what is here
        by_store = Goal(epoch) not in decided.values() and Goal(epoch, True) in decided.values()
        if epoch not in measured and by_store:
            raise NotMeasured(
                f"expected {metric.name} after epoch {epoch}, where {recipe.name} compares its "
                f"candidates, got none from the {count} runs that came so far; put the rungs of "
                "the search where its task measures that"
            )
    return decided


def complete(recipe: Recipe, store: Store) -> bool:
    """Whether all runs of a recipe are trained as far as they are to be."""
    try:
        runs = recipe.runs()
    except NotChosen:
        return False
    if recipe.halving is None:
        return all(store.status(run, quick=True).done for run in runs)
    # one that was never begun is soon seen
    if not all(store.status(run, quick=True).epoch for run in runs):
        return False
    targets = goals_of(recipe, runs, store).items()
    return all(goal.dropped or store.status(run, quick=True).done for run, goal in targets)


def _recorded(run: Run, store: Store) -> tuple[Metrics, int | None]:
    """The metrics of a run, and the step at which it diverged; none if it cannot be read."""
    status = store.status(run, quick=True)
    if status.epoch == 0:
        return [], None
    try:
        return store.metrics(run), status.diverged_step
    except (DamagedRun, KeyError):
        return [], None


def _ended(runs: Sequence[Run], results: Sequence[Row], metric: str) -> dict[Run, Ended]:
    """Where runs ended before their last epoch, as results say."""
    rows = {row.identity: row for row in results}
    ended: dict[Run, Ended] = {}
    for run in runs if rows else ():
        row = rows.get(run.identity)
        if row is None:
            continue
        dropped, diverged = row.state == DROPPED, row.diverged_step
        if diverged is not None:
            diverged = math.ceil(diverged / run.steps_per_epoch)
        if dropped or diverged is not None:
            epoch = row.epoch if dropped else diverged or 0
            finite = dropped and metric in row.reached and (diverged is None or diverged > epoch)
            ended[run] = Ended(epoch, dropped, finite)
    return ended


def search(parts: Parts, store: Store, train: Train, results: Results | None = None) -> Outcome:
    """Train the runs of recipes, each as far as its goal, until no goal moves any more.

    Those that are furthest from their end are trained first, so that a rung is decided as soon as
    it can be. A rung that cannot be decided, since another process has a run or a file is damaged,
    holds back those that compete there, and nobody else.

    Args:
        parts: Recipes with their runs; those that are no search are trained to their end.
        store: Where the runs are.
        train: Is called for each rung, and for the runs that train to their end.
        results: Decide rungs that the store cannot, see ``goals_of``. Runs that they call dropped
            there are not trained, the others from their beginning.

    Raises:
        OtherSearch: If those results are not of these searches; nothing was trained then.
    """
    tried: set[tuple[Run, int | None]] = set()
    outcomes: list[Outcome] = []
    while True:
        targets = _targets(parts, store, results)
        runs, until = _next(targets, store, tried)
        if outcomes and (not runs or outcomes[-1].stopped_by is not None):
            return _together(targets, outcomes, store)
        tried |= {(run, until) for run in runs}
        outcomes.append(train(runs, until))


class Next(NamedTuple):
    """What a search does next, and what it has done."""

    runs: list[Run]
    """Those that are trained first."""
    until: int | None
    """Until which epoch; None is their end."""
    done: tuple[Run, ...]
    """Trained to their end."""
    dropped: tuple[Run, ...]
    """Ended at a rung."""


def next_runs(parts: Parts, store: Store, results: Results | None = None) -> Next:
    """What ``search`` would train first."""
    targets = _targets(parts, store, results)
    statuses = {run: store.status(run, quick=True) for run in targets}
    return Next(
        *_next(targets, store, set()),
        tuple(run for run, status in statuses.items() if status.done),
        tuple(
            run
            for run, status in statuses.items()
            if targets[run].dropped and not status.done and status.epoch >= targets[run].epoch
        ),
    )


def _next(
    targets: dict[Run, Goal], store: Store, tried: set[tuple[Run, int | None]]
) -> tuple[list[Run], int | None]:
    untils = {run: x.epoch if x.epoch < run.epochs else None for run, x in targets.items()}
    behind = [
        run
        for run, goal in targets.items()
        if (run, untils[run]) not in tried and store.status(run, quick=True).epoch < goal.epoch
    ]
    until = min((x for run in behind if (x := untils[run]) is not None), default=None)
    return [run for run in behind if untils[run] == until], until


def _targets(parts: Parts, store: Store, results: Results | None) -> dict[Run, Goal]:
    """The goal of each run; the furthest, if several recipes have it."""
    targets: dict[Run, Goal] = {}
    for recipe, part in parts:
        rows = (results or {}).get(recipe.name, ())
        for run, goal in goals_of(recipe, part, store, rows).items():
            targets[run] = max(goal, targets.get(run, goal), key=lambda x: (x.epoch, not x.dropped))
    return targets


def _together(targets: dict[Run, Goal], outcomes: Sequence[Outcome], store: Store) -> Outcome:
    """What became of all runs in the end."""
    runs = list(targets)
    damaged = {run: why for outcome in outcomes for run, why in outcome.damaged.items()}
    fate: dict[Run, str] = {}
    for outcome in outcomes:
        for name in _LASTING:
            fate |= dict.fromkeys(getattr(outcome, name), name)
    for run in runs:
        if run in fate and fate[run] != "elsewhere":
            continue
        status = store.status(run, quick=True)
        if status.done:
            fate[run] = "already"
        elif targets[run].dropped and status.epoch >= targets[run].epoch:
            fate[run] = "dropped"
        else:
            fate.setdefault(run, "stopped")
    groups = (*_LASTING, "already", "dropped", "stopped")
    failed = {run for outcome in outcomes for run in outcome.failed}
    return Outcome(
        **{
            name: tuple(run for run in runs if run not in damaged and fate[run] == name)
            for name in groups
        },
        failed=tuple(run for run in runs if run in failed),
        damaged=damaged,
        unrelated=tuple(dict.fromkeys(x for outcome in outcomes for x in outcome.unrelated)),
        stopped_by=outcomes[-1].stopped_by,
        abandoned=any(outcome.abandoned for outcome in outcomes),
    )
