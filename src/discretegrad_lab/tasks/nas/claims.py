"""What the paper says of its architecture search, held against results."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from ...stack.lines import line
from ..base import Claim, read_claims
from ..evidence import Judgement, Results, Vote, final, lower, with_half
from ..statistics import LEVEL, Summary, chi_square, compare

RESOLVED = 0.2
"""Points of accuracy: the size of the differences in the paper's table."""
POWER = 0.8
METRICS = ("validation", "test")


class Seeds(NamedTuple):
    """How many runs of each of two arms resolve a difference."""

    likely: int
    """By the spread that was seen."""
    least: int
    """By the lower end of the 95 % interval of the variance."""
    most: int

    def __str__(self) -> str:
        return f"{self.likely} ({self.least} to {self.most})"


def seeds_needed(first: Summary, second: Summary, difference: float = RESOLVED) -> Seeds | None:
    """How many runs of each resolve a difference of their means; None if a spread is not known.

    Those with which a two-sided test at 5 % finds it in four cases of five, by the normal
    approximation. A spread is not known from one run, nor from runs that are all alike: searches
    end at few cells, and a few of them may well end at one.
    """
    parts = [(summary.deviation**2, summary.count - 1) for summary in (first, second)]
    if not all(variance > 0 for variance, _ in parts):
        return None
    variance = sum(variance for variance, _ in parts)
    # Satterthwaite
    freedom = variance**2 / sum(part**2 / runs for part, runs in parts)
    normal = NormalDist()
    reach = normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(POWER)
    ends = [freedom / chi_square(freedom, share) for share in ((1 + LEVEL) / 2, (1 - LEVEL) / 2)]
    counts = (math.ceil(x * variance * (reach / difference) ** 2) for x in (1.0, *ends))
    return Seeds(*(max(2, count) for count in counts))


def alike(summary: Summary) -> bool:
    """Whether several runs have the same number, from which no spread is known."""
    return summary.count > 1 and summary.deviation == 0


def _comparison(ours: Summary, theirs: Summary, labels: tuple[str, str]) -> str:
    """What two arms tell about their difference, in words."""
    pairs = zip(labels, (ours, theirs), strict=True)
    equal = [label for label, summary in pairs if alike(summary)]
    if equal:
        return (
            f"not compared: all runs of {' and of '.join(equal)} have the same accuracy, so that "
            "their spread is not known"
        )
    needed = seeds_needed(ours, theirs)
    if needed is None:
        return "p unknown; the spread is not known yet"
    return (
        f"p {compare(ours, theirs).chance}; {needed.likely} seeds each would resolve "
        f"{RESOLVED} points, where so few runs leave {needed.least} to {needed.most} open"
    )


def _better(key: str, than: str) -> Callable[[Results], Judgement]:
    """Whether the cells of one line are the better ones, on validation and on test images."""

    def judge(results: Results) -> Judgement:
        votes, texts = [], []
        for metric in METRICS:
            ours, theirs = (final(results.where(estimator=x), metric) for x in (key, than))
            # cells differ from seed to seed: without a spread the means decide nothing
            known = seeds_needed(ours, theirs) is not None
            votes.append(lower(theirs, ours) if known else Vote(0))
            first, second = line(key).label, line(than).label
            texts.append(
                f"{metric} {mean_of(ours)} of {first} against {mean_of(theirs)} of {second} "
                f"({_comparison(ours, theirs, (first, second))})"
            )
        return Judgement(votes, "; ".join(texts))

    return judge


def mean_of(summary: Summary, none: str = "no run") -> str:
    """A mean with half its interval; without one where the spread is not known."""
    if not summary.count:
        return none
    return with_half(summary.mean, math.nan if alike(summary) else summary.half, 2)


CLAIMS: dict[str, Claim] = read_claims(
    Path(__file__).with_name("claims.csv"),
    {
        "improves": _better("reinmax-gdas", "gdas"),
        "improves-alone": _better("reinmax-gdas", "stgs-control"),
    },
)
