"""A further part of the report on a row of Table 6: what of the margin has which cause."""

from collections.abc import Sequence

from ...stack.lines import line
from ..base import Exhibit
from ..evidence import DASH, Results
from ..statistics import Comparison
from .claims import Margin, in_words, margins
from .published import OTHER_PIXELS

_HEADINGS = (
    "ReinMax as released less",
    "published",
    "ours",
    "of that the protocol",
    "the exact divergence alone",
    "of that the estimator",
    "baseline, ours less published, if ± is a standard deviation",
    "the same if ± is a standard error",
)


def exhibits(results: Results) -> Sequence[Exhibit]:
    """A table for each row of Table 6 of which a run is finished."""
    rows: dict[str, list[Margin]] = {}
    for margin in margins(results):
        rows.setdefault(margin.place, []).append(margin)
    return [
        _split(place, own)
        for place, own in rows.items()
        if any(summary.count for margin in own for summary in margin.means.values())
    ]


def _split(place: str, margins: Sequence[Margin]) -> Exhibit:
    return Exhibit(
        f"The margin of ReinMax, {place}",
        "Differences of the train \N{MINUS SIGN}ELBO, with half the joint 95 % interval; negative "
        "where ReinMax is better. Ours is the sum of two: the protocol's part is ReinMax as "
        "released less ReinMax like all others, the estimator's is ReinMax like all others less "
        "the baseline. The exact divergence is a part of the protocol: what it changes alone, with "
        "all else like all others. A baseline of ours agrees with the published one if the "
        "interval of their difference holds 0. The paper does not say what stands behind its ±; in "
        "the column of published margins it is taken to be a standard deviation.",
        _HEADINGS,
        tuple(
            (
                line(margin.baseline).label,
                in_words(margin.published),
                in_words(margin.whole),
                in_words(margin.protocol),
                in_words(margin.divergence),
                in_words(margin.estimator),
                *map(_agrees, margin.agreement or (None, None)),
            )
            for margin in margins
        ),
        (f"The published number is not comparable: {OTHER_PIXELS}.",)
        if any(margin.agreement is None for margin in margins)
        else (),
    )


def _agrees(apart: Comparison | None) -> str:
    """The difference and what it says; one run says nothing."""
    if apart is None or apart.difference != apart.difference:
        return DASH
    if apart.half != apart.half:
        return in_words(apart)
    return f"{in_words(apart)}, {'apart' if apart.sign else 'agrees'}"
