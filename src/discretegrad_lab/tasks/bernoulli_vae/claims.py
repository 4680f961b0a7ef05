"""The verdict on Table 6: what of the margin is the estimator's, and what the protocol's.

The margin of ReinMax over a baseline in the table is that of two runs that differ in both. With
ours it is split in two, each of them a difference of runs that differ in one thing:

    ReinMax as released - baseline        =   ReinMax as released - ReinMax like all others
    (the published margin)                    (the protocol)
                                            + ReinMax like all others - baseline
                                              (the estimator)

Of the protocol a part is known by itself: ReinMax with the divergence exactly, as it was released,
less ReinMax with that of the sample within the loss, all else like all others.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...stack.lines import line
from ..base import Claim, read_claims
from ..evidence import Judgement, Results, Vote, describe, final, lower, with_half
from ..statistics import Comparison, Summary, compare
from .config import WORDS
from .published import RELEASED, table

EXACT_DIVERGENCE = "reinmax-exact-divergence"
"""The key of the line that differs from ReinMax like all others in the divergence alone."""
_PANELS = ("data", "evaluations")
_PLACES = 2


class Agreement(NamedTuple):
    """Our runs of a baseline less its published number, in both readings of the published ±."""

    narrow: Comparison
    """If that is a standard deviation."""
    wide: Comparison
    """If it is a standard error: the difference is the same, the interval is wider."""


class Margin(NamedTuple):
    """How far ReinMax is below a baseline in one row of the table; negative where it is better."""

    setting: dict[str, Any]
    baseline: str
    """Its key."""
    published: Comparison
    whole: Comparison
    """The same of our runs, each under its own protocol."""
    protocol: Comparison
    divergence: Comparison
    """The part of the protocol that the exact divergence is by itself."""
    estimator: Comparison
    means: dict[str, Summary]
    """Ours: of the baseline, of ReinMax as released and of ReinMax like all others."""
    agreement: Agreement | None
    """None where the published number is in doubt."""

    @property
    def place(self) -> str:
        """The row of the table."""
        return describe(self.setting, WORDS)

    def known(self, *keys: str) -> bool:
        """Whether runs of all these lines are finished, and of the baseline."""
        return all(self.means[key].count for key in (self.baseline, *keys))


def margins(results: Results) -> Iterator[Margin]:
    """In train loss, for every row and every baseline in it, as far as runs are finished."""
    for setting in results.settings(_PANELS):
        part = results.part(**setting)
        published = table(str(setting["data"]), int(setting["evaluations"]))
        cells = published.cells
        released, exact, alike = (
            final(part.where(estimator=key), "train")
            for key in (RELEASED, EXACT_DIVERGENCE, "reinmax")
        )
        for key in (key for key in cells if key != RELEASED):
            theirs, cell = final(part.where(estimator=key), "train"), cells[key]
            readings = (cell, replace(cell, meaning="error"))
            agreement = Agreement(*(compare(theirs, x.summary) for x in readings))
            yield Margin(
                setting,
                key,
                compare(cells[RELEASED].summary, cell.summary),
                compare(released, theirs),
                compare(released, alike),
                compare(exact, alike),
                compare(alike, theirs),
                {key: theirs, RELEASED: released, "reinmax": alike},
                None if key in published.doubts else agreement,
            )


def in_words(comparison: Comparison) -> str:
    """A difference with half its 95 % interval."""
    return with_half(comparison.difference, comparison.half, _PLACES, "+")


def _outperforms(key: str) -> Any:
    """Whether the line of ReinMax with this key has the lower train loss than RODEO everywhere."""

    def judge(results: Results) -> Judgement:
        votes, texts = [], []
        for margin in margins(results):
            if margin.baseline != "rodeo":
                continue
            place = margin.place
            if not margin.known(key):
                votes.append(Vote(0))
                texts.append(f"{place}: runs are missing")
                continue
            ours, theirs = margin.means[key], margin.means["rodeo"]
            votes.append(lower(ours, theirs))
            texts.append(f"{place}: {ours.mean:.2f} against RODEO {theirs.mean:.2f}")
        return Judgement(votes or [Vote(0)], "; ".join(texts) or "No row of the table")

    return judge


def _protocol(results: Results) -> Judgement:
    """Whether under one protocol ReinMax keeps no lead over RODEO, and the protocol is worth one.

    The report's table of margins splits that over every baseline.
    """
    votes, texts = [], []
    for margin in (margin for margin in margins(results) if margin.baseline == "rodeo"):
        if not margin.known(RELEASED, "reinmax"):
            votes.append(Vote(0))
            texts.append(f"{margin.place}: runs are missing")
            continue
        released, alike = margin.means[RELEASED], margin.means["reinmax"]
        votes += [lower(released, alike), lower(margin.means["rodeo"], alike)]
        texts.append(
            f"{margin.place}: ReinMax as released less RODEO {in_words(margin.whole)}, of which "
            f"the protocol {in_words(margin.protocol)} (its exact divergence alone "
            f"{in_words(margin.divergence)}) and the estimator {in_words(margin.estimator)}"
        )
    return Judgement(votes or [Vote(0)], "; ".join(texts) or "No row of the table")


def _reproduced(results: Results) -> Judgement:
    """Whether the baselines end within the joint interval of the published numbers."""
    votes, texts = [], []
    for margin in margins(results):
        place = f"{margin.place}, {line(margin.baseline).label}"
        if margin.agreement is None:
            texts.append(f"{place}: not comparable")
            continue
        if margin.means[margin.baseline].count < 2:
            votes.append(Vote(0))
            texts.append(f"{place}: fewer than two finished runs")
            continue
        narrow, wide = margin.agreement
        votes.append(Vote(-1 if narrow.sign else 1, narrow.p if narrow.sign else 0.0))
        word = "apart" if narrow.sign else "agrees"
        # the paper does not say what stands behind its ±
        if narrow.sign and not wide.sign:
            word += ", but agrees if the published ± is a standard error"
        texts.append(f"{place}: {word}")
    return Judgement(votes or [Vote(0)], "; ".join(texts) or "No row of the table")


CLAIMS: dict[str, Claim] = read_claims(
    Path(__file__).with_name("claims.csv"),
    {
        "best-bernoulli": _outperforms(RELEASED),
        "best-alike": _outperforms("reinmax"),
        "margin-protocol": _protocol,
        "baselines-reproduced": _reproduced,
    },
)
