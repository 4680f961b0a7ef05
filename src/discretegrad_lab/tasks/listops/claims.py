"""What the paper says of ListOps, held against results."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

from ...stack.lines import line
from ..base import Claim, read_claims
from ..evidence import ALPHA, Judgement, Results, Vote, best, final, lower, plain
from ..statistics import compare
from .published import table

_BASELINES = ("stgs", "gr-mck", "gst-1.0", "st")


def _best(metric: str) -> Callable[[Results], Judgement]:
    """Whether ReinMax has the highest mean; the p of the paper's own numbers stands beside ours."""

    def judge(results: Results) -> Judgement:
        published = {key: cell.summary for key, cell in table(metric).cells.items()}
        return best(results, metric, "reinmax", _BASELINES, published, lowest=False)

    return judge


def _alike(results: Results) -> Judgement:
    """Whether no two baselines differ by more than chance, given how many pairs there are."""
    metric = "test_accuracy"
    means = {key: final(results.where(estimator=key), metric) for key in _BASELINES}
    missing = [line(key).label for key, mean in means.items() if mean.count < 2]
    if missing:
        return Judgement([Vote(0)], f"fewer than two finished runs of {', '.join(missing)}")
    pairs = list(combinations(_BASELINES, 2))
    chances = [compare(means[first], means[second]).p for first, second in pairs]
    votes = [plain(p >= ALPHA / len(pairs)) for p in chances]
    first, second = pairs[chances.index(min(chances))]
    text = ", ".join(f"{line(key).label} {mean.mean:.2f}" for key, mean in means.items())
    least = compare(means[first], means[second]).chance
    names = f"{line(first).label} and {line(second).label}"
    return Judgement(
        votes,
        f"{text}; of {len(pairs)} pairs {names} differ most surely, with p {least}, which is no "
        f"accident below {ALPHA / len(pairs):.4f}",
    )


def _inferior(results: Results) -> Judgement:
    """Whether GST-p ends below GST-1.0, on the test set."""
    means = {
        key: final(results.where(estimator=key), "test_accuracy") for key in ("gst-1.0", "gst-p")
    }
    if missing := [line(key).label for key, mean in means.items() if mean.count < 2]:
        return Judgement([Vote(0)], f"fewer than two finished runs of {', '.join(missing)}")
    text = " against ".join(f"{line(key).label} {mean.mean:.2f}" for key, mean in means.items())
    versus = compare(means["gst-1.0"], means["gst-p"])
    return Judgement([lower(means["gst-p"], means["gst-1.0"])], f"{text} (p {versus.chance})")


_JUDGES = {
    "best-test": _best("test_accuracy"),
    "best-valid": _best("valid_accuracy"),
    "gst-p": _inferior,
    "alike": _alike,
}
CLAIMS: dict[str, Claim] = read_claims(Path(__file__).with_name("claims.csv"), _JUDGES)
