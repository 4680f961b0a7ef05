"""The verdict on Table 6: what of the margin is the estimator's, and what the protocol's.

The margin of ReinMax over a baseline in the table is that of two runs that differ in both. With
ours it is split in two, each of them a difference of runs that differ in one thing:

    ReinMax as released - baseline        =   ReinMax as released - ReinMax like all others
    (the published margin)                    (the protocol)
                                            + ReinMax like all others - baseline
                                              (the estimator)
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...stack.lines import line
from ..base import Claim, read_claims
from ..evidence import Judgement, Results, Vote, decimal, describe, final, lower
from ..statistics import Comparison, Summary, compare
from .config import WORDS
from .published import RELEASED, table

_PANELS = ("data", "evaluations")
_PLACES = 2


class Margin(NamedTuple):
    """How far ReinMax is below a baseline in one row of the table; negative where it is better."""

    setting: dict[str, Any]
    baseline: str
    """Its key."""
    published: Comparison
    whole: Comparison
    """The same of our runs, each under its own protocol."""
    protocol: Comparison
    estimator: Comparison
    means: dict[str, Summary]
    """Ours: of the baseline, of ReinMax as released and of ReinMax like all others."""


def margins(results: Results, metric: str = "train") -> Iterator[Margin]:
    """For every row of the table and every baseline in it, as far as runs are finished."""
    for setting in results.settings(_PANELS):
        part = results.part(**setting)
        cells = table(str(setting["data"]), int(setting["evaluations"])).cells
        released, alike = (
            final(part.where(estimator=key), metric) for key in (RELEASED, "reinmax")
        )
        for key in (key for key in cells if key != RELEASED):
            theirs = final(part.where(estimator=key), metric)
            yield Margin(
                setting,
                key,
                compare(cells[RELEASED].summary, cells[key].summary),
                compare(released, theirs),
                compare(released, alike),
                compare(alike, theirs),
                {key: theirs, RELEASED: released, "reinmax": alike},
            )


def _text(comparison: Comparison) -> str:
    text = decimal(comparison.difference, _PLACES, "+")
    half = comparison.half
    return text if half != half else f"{text} ± {decimal(half, _PLACES)}"


def _known(margin: Margin, *keys: str) -> bool:
    return all(margin.means[key].count for key in (margin.baseline, *keys))


def _outperforms(key: str) -> Any:
    """Whether the line of ReinMax with this key has the lower train loss than RODEO everywhere."""

    def judge(results: Results) -> Judgement:
        votes, texts = [], []
        for margin in margins(results):
            if margin.baseline != "rodeo":
                continue
            place = describe(margin.setting, WORDS)
            if not _known(margin, key):
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

    The evidence splits the margin over every baseline.
    """
    votes, texts = [], []
    for margin in margins(results):
        place = f"{describe(margin.setting, WORDS)}, {line(margin.baseline).label}"
        if not _known(margin, RELEASED, "reinmax"):
            votes += [Vote(0)] if margin.baseline == "rodeo" else []
            texts.append(f"{place}: runs are missing")
            continue
        if margin.baseline == "rodeo":
            released, alike = margin.means[RELEASED], margin.means["reinmax"]
            votes += [lower(released, alike), lower(margin.means["rodeo"], alike)]
        texts.append(
            f"{place}: published margin {_text(margin.published)}, ours {_text(margin.whole)}, of "
            f"which the protocol {_text(margin.protocol)} and the estimator "
            f"{_text(margin.estimator)}"
        )
    return Judgement(votes or [Vote(0)], "; ".join(texts) or "No row of the table")


def _reproduced(results: Results) -> Judgement:
    """Whether the baselines end within the joint interval of the published numbers."""
    votes, texts = [], []
    for margin in margins(results):
        published = table(str(margin.setting["data"]), int(margin.setting["evaluations"]))
        ours = margin.means[margin.baseline]
        place = f"{describe(margin.setting, WORDS)}, {line(margin.baseline).label}"
        if published.doubts:
            texts.append(f"{place}: not comparable, {published.doubts[margin.baseline]}")
            continue
        if ours.count < 2:
            votes.append(Vote(0))
            texts.append(f"{place}: fewer than two finished runs")
            continue
        cell = published.cells[margin.baseline]
        versus = compare(ours, cell.summary)
        votes.append(Vote(-1 if versus.sign else 1, versus.p if versus.sign else 0.0))
        text = f"{place}: ours less the published {_text(versus)}"
        # the paper does not say what stands behind its ±
        wider = compare(ours, replace(cell, meaning="error").summary)
        if versus.sign and not wider.sign:
            text += f" (± {decimal(wider.half, _PLACES)} if the published ± is a standard error)"
        texts.append(text)
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
