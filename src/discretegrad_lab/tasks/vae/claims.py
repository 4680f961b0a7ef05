"""What the paper says of its tables of the VAE, held against results."""

from collections.abc import Callable
from pathlib import Path

from ...stack.lines import line
from ..base import Claim, read_claims
from ..evidence import Judgement, Results, Vote, final, lower
from ..statistics import compare
from .published import cells


def _best(metric: str, table: int) -> Callable[[Results], Judgement]:
    """Whether ReinMax has the lowest mean; the p of the paper's own numbers stands beside ours."""

    def judge(results: Results) -> Judgement:
        config = results.rows[0].config
        column = f"{config['categories']}x{config['latents']}"
        published = {
            key[1]: cell.summary
            for key, cell in cells().items()
            if (key[0], key[2]) == (table, column)
        }
        ours = final(results.where(estimator="reinmax"), metric)
        votes, texts = [], []
        # further lines are no part of the claim
        for key in (key for key in results.estimators() if key in published and key != "reinmax"):
            theirs = final(results.where(estimator=key), metric)
            votes.append(lower(ours, theirs))
            if theirs.count:
                p = compare(ours, theirs).chance or "unknown"
                paper = compare(published["reinmax"], published[key]).chance or "unknown"
                texts.append(f"{line(key).label} {theirs.mean:.2f} (p {p}; in the paper {paper})")
            else:
                texts.append(f"{line(key).label}, of which no run is finished")
        mean = f"{ours.mean:.2f}" if ours.count else "without a finished run"
        against = f"ReinMax {mean} against {', '.join(texts) or 'nothing'}"
        return Judgement(votes or [Vote(0)], f"{column} only: {against}")

    return judge


CLAIMS: dict[str, Claim] = read_claims(
    Path(__file__).with_name("claims.csv"),
    {"best-train": _best("train", 2), "best-test": _best("test", 9)},
)
