"""What the paper says of its figures of gradients and baselines, held against results."""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from ...stack.lines import line
from ..evidence import (
    Judgement,
    Results,
    Row,
    Vote,
    average,
    describe,
    final,
    lower,
    lower_in_pairs,
)
from ..statistics import Summary, summarise
from .config import OWN, WORDS

_RIVALS = ("st", "stgs", "gr-mck", "gst-1.0")


def accurate(along: str) -> Callable[[Results], Judgement]:
    """Whether ReinMax has the highest cosine after every epoch that has one, and learns fastest.

    Along the training with one estimator all have the same weights, so that they are compared seed
    by seed, and no speed of their own.
    """

    def judge(results: Results) -> Judgement:
        part = results.part(along=along)
        rows = {key: part.where(estimator=key) for key in ("reinmax", *_RIVALS)}
        lost = [
            line(key).label for key, own in rows.items() if not final(own, "gradient_cosine").count
        ]
        if lost:
            return Judgement([Vote(0)], f"No finished runs of {', '.join(lost)}")
        cosines = {key: _by_epoch(part, own) for key, own in rows.items()}
        ours = cosines.pop("reinmax")
        votes, texts = [], []
        for key, theirs in cosines.items():
            # higher is better
            pairs = [(theirs.get(epoch, {}), ours[epoch]) for epoch in ours]
            every = [_lower(*pair) if along == OWN else lower_in_pairs(*pair) for pair in pairs]
            votes += every
            ahead = sum(vote.sign > 0 for vote in every)
            texts.append(f"{line(key).label} in {ahead}")
        last = max(ours)
        head = (
            f"Of {len(ours)} epochs the cosine of ReinMax is higher than that of "
            f"{', '.join(texts)}; after the last one ReinMax {fmean(ours[last].values()):.3f}, "
            + ", ".join(
                f"{line(key).label} {fmean(x[max(x)].values()):.3f}" for key, x in cosines.items()
            )
        )
        if along != OWN:
            return Judgement(votes, head)
        speed = {key: average(part, own, "train") for key, own in rows.items()}
        votes += [lower(speed["reinmax"], speed[key]) for key in _RIVALS]
        means = ", ".join(f"{line(key).label} {x.mean:.2f}" for key, x in speed.items())
        return Judgement(votes, f"{head}. The training loss averaged over all epochs: {means}")

    return judge


def _by_epoch(results: Results, rows: list[Row]) -> dict[int, dict[int, float]]:
    """Of each epoch the cosines, by seed."""
    curves = {row.config["seed"]: dict(results.curve(row, "gradient_cosine")) for row in rows}
    epochs = sorted({epoch for curve in curves.values() for epoch in curve})
    return {n: {seed: x[n] for seed, x in curves.items() if n in x} for n in epochs}


def _lower(first: Mapping[int, float], second: Mapping[int, float]) -> Vote:
    return lower(summarise(list(first.values())), summarise(list(second.values())))


def baseline(key: str) -> Callable[[Results], Judgement]:
    """Whether ReinMax trains better than a line with the baseline 1/n, in every column.

    Each has the better one of its temperatures.
    """

    def judge(results: Results) -> Judgement:
        votes, texts = [], []
        for column in results.settings(("categories", "latents")):
            ours, theirs = (_best(results.part(**column), name) for name in ("reinmax", key))
            votes.append(lower(ours[1], theirs[1]))
            text = " against ".join(
                f"{line(name).label} {loss.mean:.2f} (τ = {tau:g})"
                if loss.count
                else f"{line(name).label}, of which no run is finished"
                for name, (tau, loss) in (("reinmax", ours), (key, theirs))
            )
            texts.append(f"{describe(column, WORDS)}: {text}")
        return Judgement(votes, "; ".join(texts))

    return judge


def _best(results: Results, estimator: str) -> tuple[float, Summary]:
    """The temperature with the lowest training loss, and that loss."""
    losses: Mapping[float, Any] = {
        setting["tau"]: final(results.where(estimator=estimator, **setting), "train")
        for setting in results.settings(("tau",))
    }
    finished = {tau: loss for tau, loss in losses.items() if loss.count}
    tau = min(finished, key=lambda tau: finished[tau].mean, default=1.0)
    return tau, finished.get(tau, Summary(0))
