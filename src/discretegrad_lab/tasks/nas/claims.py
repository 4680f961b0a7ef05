"""What the paper says of its architecture search, held against results."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

from ...stack.lines import line
from ..base import Claim, read_claims
from ..evidence import Judgement, Results, Vote, final, lower
from ..statistics import Summary, compare

RESOLVED = 0.2
"""Points of accuracy: the size of the differences in the paper's table."""
POWER = 0.8
LEVEL = 0.05
METRICS = ("validation", "test")


def seeds_needed(first: Summary, second: Summary, difference: float = RESOLVED) -> int | None:
    """How many runs of each resolve a difference of their means; None if the spread is unknown.

    Those with which a two-sided test at 5 % finds it in four cases of five, by the normal
    approximation.
    """
    variance = first.deviation**2 + second.deviation**2
    if math.isnan(variance):
        return None
    normal = NormalDist()
    reach = normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(POWER)
    return max(2, math.ceil(variance * (reach / difference) ** 2))


def power_words(first: Summary, second: Summary) -> str:
    """The seeds that would resolve the difference that matters, in words."""
    count = seeds_needed(first, second)
    if count is None:
        return "the spread is not known yet"
    return f"{count} seeds each would resolve {RESOLVED} points"


def _better(key: str, than: str) -> Callable[[Results], Judgement]:
    """Whether the cells of one line are the better ones, on validation and on test images."""

    def judge(results: Results) -> Judgement:
        votes, texts = [], []
        for metric in METRICS:
            ours, theirs = (final(results.where(estimator=x), metric) for x in (key, than))
            # cells differ from seed to seed, so that one search of each says nothing
            known = min(ours.count, theirs.count) > 1
            votes.append(lower(theirs, ours) if known else Vote(0))
            difference = compare(ours, theirs)
            texts.append(
                f"{metric} {_mean(ours)} of {line(key).label} against {_mean(theirs)} of "
                f"{line(than).label} (p {difference.chance or 'unknown'}; "
                f"{power_words(ours, theirs)})"
            )
        return Judgement(votes, "; ".join(texts))

    return judge


def _mean(summary: Summary) -> str:
    if not summary.count:
        return "no run"
    half = f" ± {summary.half:.2f}" if math.isfinite(summary.half) else ""
    return f"{summary.mean:.2f}{half}"


CLAIMS: dict[str, Claim] = read_claims(
    Path(__file__).with_name("claims.csv"),
    {
        "improves": _better("reinmax-gdas", "gdas"),
        "improves-alone": _better("reinmax-gdas", "stgs-control"),
    },
)
