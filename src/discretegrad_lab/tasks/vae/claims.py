"""What the paper says of its tables of the VAE, held against results."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ...stack.lines import line
from ..base import Claim, read_claims
from ..evidence import Judgement, Results, Vote, best, final, lower
from ..statistics import compare
from .config import OWN
from .gradient_claims import accurate, baseline
from .published import cells


def _best(metric: str, table: int, *columns: str) -> Callable[[Results], Judgement]:
    """Whether ReinMax has the lowest mean; the p of the paper's own numbers stands beside ours.

    Those are of the same column, or of ``columns``.
    """

    def judge(results: Results) -> Judgement:
        column = _column(results)
        published = {
            key[1]: cell.summary
            for key, cell in cells().items()
            if key[0] == table and key[2] in (columns or (column,))
        }
        # further lines are no part of the claim
        baselines = [x for x in results.estimators() if x in published and x != "reinmax"]
        votes, text = best(results, metric, "reinmax", baselines, published)
        return Judgement(votes, f"{column} only: {text}")

    return judge


def _inferior(results: Results) -> Judgement:
    """Whether GST-p ends above GST-1.0."""
    losses = [final(results.where(estimator=key), "train") for key in ("gst-1.0", "gst-p")]
    text = " against ".join(
        f"{line(key).label} {loss.mean:.2f}" if loss.count else f"{line(key).label} without a run"
        for key, loss in zip(("gst-1.0", "gst-p"), losses, strict=True)
    )
    p = compare(*losses).chance or "unknown"
    return Judgement([lower(*losses)], f"{_column(results)} only: {text} (p {p})")


def _column(results: Results) -> str:
    config = results.rows[0].config
    return f"{config['categories']}x{config['latents']}"


def _prefers(keys: Sequence[str], side: Callable[[float], bool]) -> Callable[[Results], Judgement]:
    """Whether each line has its lowest loss, in each size, at a temperature on that side of 1."""

    def judge(results: Results) -> Judgement:
        votes, texts = [], []
        for size in results.settings(("categories", "latents")):
            bests = []
            for key in keys:
                part = results.part(estimator=key, **size)
                taus = [setting["tau"] for setting in part.settings(("tau",))]
                losses = {tau: final(part.where(tau=tau), "train") for tau in taus}
                # the best temperature comes first
                taus = sorted((x for x in taus if losses[x].count), key=lambda x: losses[x].mean)
                inside = [tau for tau in taus if side(tau)]
                outside = [tau for tau in taus if not side(tau)]
                if inside and outside:
                    votes.append(lower(losses[inside[0]], losses[outside[0]]))
                    bests.append(f"{line(key).label} at {taus[0]:g}")
            column = f"{size['categories']}x{size['latents']}"
            texts.append(f"{column}: best {', '.join(bests) or 'unknown'}")
        return Judgement(votes or [Vote(0)], "; ".join(texts))

    return judge


CLAIMS: dict[str, Claim] = read_claims(
    Path(__file__).with_name("claims.csv"),
    {
        "best-train": _best("train", 2),
        "best-test": _best("test", 9),
        "gst-p": _inferior,
        "best-large": _best("train", 5, "32x64", "64x32"),
        "small-tau": _prefers(("stgs", "gst-1.0", "gr-mck"), lambda tau: tau <= 1),
        "large-tau": _prefers(("st", "reinmax"), lambda tau: tau >= 1),
        "accurate": accurate(OWN),
        "accurate-alike": accurate("reinmax"),
        "baseline": baseline("mean-2-released"),
        "baseline-corrected": baseline("mean-2"),
    },
)
