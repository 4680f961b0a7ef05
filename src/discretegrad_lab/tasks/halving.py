"""Successive halving: which candidates of a search train on, by what they had at its rungs.

The choice follows from recorded numbers alone, so every process makes the same one on any day.
Where those are gone, it can be read off results that say who was dropped.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from ..stack.config import Run
from .checks import check_several

SEARCH_SEEDS = (1000, 1001)
"""Of all searches, and never of a reported number."""


class Rung(NamedTuple):
    """Where candidates are compared."""

    epoch: int
    """After this epoch."""
    share: float = 0.5
    """Of the candidates that came so far, how many go on, rounded up."""


@dataclass(frozen=True)
class Halving:
    """How the runs of a recipe are a search: most of them end at a rung.

    Runs that differ in ``fields`` and the seed only compete with each other.
    """

    metric: str
    """What candidates are compared by: its mean over the seeds."""
    fields: tuple[str, ...]
    """Of a run: their values make a candidate."""
    rungs: tuple[Rung, ...]
    """A run of no more epochs than that of a rung does not stop there."""
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The values of ``fields`` that a paper found to be best, by the key of an estimator."""

    def __post_init__(self) -> None:
        check_several("fields of a search", self.fields)
        epochs = [rung.epoch for rung in self.rungs]
        if not epochs or epochs[0] < 1 or epochs != sorted(set(epochs)):
            raise ValueError(f"expected rungs at rising epochs from 1 on, got {epochs}")
        if not all(0 < rung.share < 1 for rung in self.rungs):
            raise ValueError(
                "expected a share between 0 and 1 at each rung, got "
                f"{', '.join(str(rung.share) for rung in self.rungs)}"
            )


class Goal(NamedTuple):
    """How far a run is to be trained, as far as that is known."""

    epoch: int
    dropped: bool = False
    """Whether it ends there because others were better; if not, and this is a rung, it waits there
    until all that it competes with have come so far."""


Score = Callable[[Run, int], float | None]
"""What a run had after an epoch, the lower the better: infinite if it had diverged by then, None if
it is not known."""


class Ended(NamedTuple):
    """Where a run ended before, as results say."""

    epoch: int
    dropped: bool
    """Whether a rung ended it; if not, it diverged in this epoch."""
    finite: bool
    """Whether it had a finite score there."""


class OtherSearch(ValueError):
    """Results that rungs are to be taken from are not those of this search."""


def goals(
    halving: Halving, runs: Iterable[Run], score: Score, ended: Mapping[Run, Ended] | None = None
) -> dict[Run, Goal]:
    """How far each run is to be trained, in the order of the runs.

    At a rung the candidates with the lowest means go on; of equals those that come first in
    ``runs``. Those with a run that diverged never do.

    A rung where a score is not known is decided as it was before, if ``ended`` says that. Runs that
    were dropped then are not to be trained at all: their goal is epoch 0.

    Raises:
        OtherSearch: If this search cannot have dropped the runs that ``ended`` says.
    """
    each = dict.fromkeys(runs)
    problems: dict[str, dict[str, list[Run]]] = {}
    for run in each:
        document = run.document()
        del document["seed"]
        candidate = json.dumps([document.pop(name, None) for name in halving.fields])
        problem = json.dumps(document, sort_keys=True)
        problems.setdefault(problem, {}).setdefault(candidate, []).append(run)
    decided: dict[Run, Goal] = {}
    for candidates in problems.values():
        decided |= _goals(halving, list(candidates.values()), score, ended or {})
    return {run: decided[run] for run in each}


def _goals(
    halving: Halving, candidates: Sequence[list[Run]], score: Score, ended: Mapping[Run, Ended]
) -> dict[Run, Goal]:
    """Of candidates that compete with each other, each with a run for every seed."""
    decided: dict[Run, Goal] = {}
    for epoch, share in halving.rungs:
        if not candidates or epoch >= candidates[0][0].epochs:
            break
        # what a product of floats is above a whole number does not count
        count = math.ceil(round(share * len(candidates), 9))
        means = _means(candidates, epoch, score)
        if means is not None:
            order = sorted(range(len(means)), key=means.__getitem__)
            on = {place for place in order[:count] if math.isfinite(means[place])}
        elif (went_on := _went_on(candidates, epoch, count, ended)) is not None:
            on = went_on
        else:
            return decided | {run: Goal(epoch) for runs in candidates for run in runs}
        dropped = Goal(0 if means is None else epoch, dropped=True)
        for place, runs in enumerate(candidates):
            if place not in on:
                decided |= dict.fromkeys(runs, dropped)
        candidates = [candidates[place] for place in sorted(on)]
    return decided | {run: Goal(run.epochs) for runs in candidates for run in runs}


def _means(candidates: Sequence[list[Run]], epoch: int, score: Score) -> list[float] | None:
    """Of the scores of each candidate; None unless all are known."""
    means = []
    for runs in candidates:
        scores = [score(run, epoch) for run in runs]
        known = [x for x in scores if x is not None]
        if len(known) < len(scores):
            return None
        means.append(fmean(known))
    return means


def _went_on(
    candidates: Sequence[list[Run]], epoch: int, count: int, ended: Mapping[Run, Ended]
) -> set[int] | None:
    """The places of those that were not dropped at a rung before; None if it was not decided.

    A rung drops all that it drops at once: if there was a drop, all others went on.
    """
    ends = [[ended[run] for run in runs if run in ended] for runs in candidates]
    if not any(end.dropped and end.epoch >= epoch for own in ends for end in own):
        return None
    gone = [[end for end in own if end.epoch <= epoch] for own in ends]
    on = {place for place, own in enumerate(gone) if not own}
    failed = {place for place, own in enumerate(gone) if not all(end.finite for end in own)}
    dropped = {
        place
        for place, own in enumerate(gone)
        if len(own) == len(candidates[place]) and all(end.epoch == epoch for end in own)
    }
    expected = min(count, len(candidates) - len(failed))
    if len(on) != expected or len(on | failed | dropped) < len(candidates):
        raise OtherSearch(
            f"expected results in which {expected} of {len(candidates)} candidates of "
            f"{candidates[0][0].estimator} go on after epoch {epoch} and the others are dropped "
            f"there with all their seeds, got {len(on)} that go on; take results of the same "
            "recipe with the same seeds, or search without them"
        )
    return on
