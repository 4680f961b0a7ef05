"""What the paper says of its figures and tables, held against results, by ``RULE``."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

from . import published
from .estimators import ESTIMATORS
from .page import Claim
from .readings import (
    NEAR,
    arrival,
    best_loss,
    describe,
    every_epoch,
    expected_loss,
    final,
    percent,
)
from .results import Results
from .statistics import Summary, compare, summarise

ALPHA = 0.05
RULE = (
    "A claim is made of comparisons. It holds if each of them comes out as claimed with p < "
    f"{ALPHA:g}; it does not hold if one comes out the other way with p below {ALPHA:g} divided by "
    "their number, beyond the chance that any of so many does; otherwise it is undecided. That "
    "something happens in some case holds if it does so in one, beyond the same chance. Numbers "
    "without a spread decide alone."
)
_FIGURE_1 = ("reinmax", "st", "stgs", "gr-mck", "gst-1.0")
_RIVALS = ("reinforce", "rodeo")
_STEPS = f"steps to {100 * NEAR:g} % of the optimum"
_AVERAGE = "averaged over the epochs"


class Vote(NamedTuple):
    """A comparison that belongs to a claim."""

    sign: int
    """1 if it comes out as claimed, -1 if the other way, 0 if it cannot be made."""
    p: float = 0.0
    """The chance of such a difference where there is none."""


# with the numbers in words
Finding: TypeAlias = tuple[Sequence[Vote], str]


def evaluate(name: str, results: Results) -> Claim:
    """A claim of ``published.claims`` with its verdict."""
    votes, evidence = _CLAIMS[name](results) if results.rows else ([], "No results")
    holds: bool | None = None
    if any(vote.sign < 0 and vote.p < ALPHA / len(votes) for vote in votes):
        holds = False
    elif votes and all(vote.sign > 0 and vote.p < ALPHA for vote in votes):
        holds = True
    claim = published.claims()[name]
    return Claim(claim.text, f"Section {claim.section}, {claim.place}", holds, f"{evidence}.")


class _Setting:
    """What the claims ask about the runs of one setting, by estimator."""

    def __init__(self, results: Results, **fields: Any) -> None:
        self.label = describe(fields)
        self.fields = fields
        self._results = results
        self._rows = results.where(**fields)
        self.optimum = best_loss(self._rows[0].config) if self._rows else math.nan

    def lost(self, *estimators: str) -> str:
        """Which of them have no finished runs."""
        return _titles([name for name in estimators if not self.final(name).count])

    def final(self, estimator: str) -> Summary:
        return final(self._of(estimator), "expected_loss")

    def above(self, estimator: str) -> float:
        """The share by which the expected loss ends above the optimum."""
        return self.final(estimator).mean / self.optimum - 1

    def average(self, estimator: str) -> Summary:
        """The expected loss averaged over all epochs, also those that are not kept."""
        curves = [expected_loss(self._results, row) for row in self._of(estimator)]
        return summarise([fmean(every_epoch(curve)) for curve in curves if curve])

    def steps(self, estimator: str) -> Summary:
        """Steps to near the optimum; infinitely many if a run does not come there."""
        rows = [row for row in self._of(estimator) if expected_loss(self._results, row)]
        steps = [arrival(self._results, row) for row in rows]
        known = [step for step in steps if step is not None]
        return summarise(known) if len(known) == len(steps) else Summary(len(steps), math.inf)

    def _of(self, estimator: str) -> list[Any]:
        return [row for row in self._rows if row.config["estimator"] == estimator]


def _in_each_figure(
    judge: Callable[[_Setting], Finding], *needed: str
) -> Callable[[Results], Finding]:
    """A claim about Figure 1: it must hold for each p."""

    def evaluate(results: Results) -> Finding:
        votes: list[Vote] = []
        texts = []
        for fields in results.settings(("power",)):
            setting = _Setting(results, **fields)
            lost = setting.lost(*needed)
            found, text = ([Vote(0)], f"no finished runs of {lost}") if lost else judge(setting)
            votes += found
            texts.append(f"{setting.label}: {text}")
        return votes, "; ".join(texts)

    return evaluate


def _near_optimal(setting: _Setting) -> Finding:
    above = setting.above("reinmax")
    return [_plain(above <= NEAR)], f"ReinMax ends {percent(above)} above the optimum"


def _fastest(setting: _Setting) -> Finding:
    steps = {name: setting.steps(name) for name in _FIGURE_1}
    votes = [_lower(steps["reinmax"], steps[name]) for name in _FIGURE_1[1:]]
    text = ", ".join(f"{ESTIMATORS[name].title} {_count(x)}" for name, x in steps.items())
    if not setting.lost("gst-p"):
        text += f" (GST-p, which the paper does not name there, {_count(setting.steps('gst-p'))})"
    return votes, f"{_STEPS}: {text}"


def _st_and_gst_fail(setting: _Setting) -> Finding:
    above = {name: setting.above(name) for name in ("st", "gst-1.0")}
    text = " and ".join(f"{ESTIMATORS[name].title} ends {percent(x)}" for name, x in above.items())
    return [_plain(x > NEAR) for x in above.values()], f"{text} above the optimum"


def _close_but_slower(setting: _Setting) -> Finding:
    ours = setting.steps("reinmax")
    votes, texts = [], []
    for name in ("stgs", "gr-mck"):
        gap = setting.final(name).mean / setting.final("reinmax").mean - 1
        steps = setting.steps(name)
        votes += [_plain(abs(gap) <= NEAR), _lower(ours, steps)]
        end = f"{percent(abs(gap))} {'above' if gap > 0 else 'below'} ReinMax"
        texts.append(f"{ESTIMATORS[name].title} ends {end} ({_STEPS}: {_count(steps)})")
    return votes, f"{', '.join(texts)}, against {_count(ours)} of ReinMax"


def _gst_p_better(setting: _Setting) -> Finding:
    gapped, fixed = percent(setting.above("gst-p")), percent(setting.above("gst-1.0"))
    vote = _lower(setting.final("gst-p"), setting.final("gst-1.0"))
    return [vote], f"GST-p ends {gapped} and GST-1.0 {fixed} above the optimum"


def _corner(hard: bool) -> Callable[[Results], Finding]:
    """ReinMax and its rivals where it is hardest, or simplest, for each p."""

    def evaluate(results: Results) -> Finding:
        batches, latents = (
            sorted({row.config[name] for row in results.rows}) for name in ("batch", "latents")
        )
        kind = {
            "target": "spread" if hard else "constant",
            "latents": latents[-1 if hard else 0],
            "batch": batches[0 if hard else -1],
        }
        votes: list[Vote] = []
        texts = []
        for fields in results.settings(("power",)):
            setting = _Setting(results, **fields, **kind)
            found, text = _against_rivals(setting, hard)
            votes += found
            texts.append(f"{setting.label}: {text}")
        return votes, f"Polynomial programming only: {'; '.join([*texts, *_wins(results, kind)])}"

    return evaluate


def _against_rivals(setting: _Setting, ahead: bool) -> Finding:
    lost = setting.lost("reinmax", *_RIVALS)
    if lost:
        return [Vote(0)], f"no finished runs of {lost}"
    average = {name: setting.average(name) for name in ("reinmax", *_RIVALS)}
    pairs = [(average["reinmax"], average[rival]) for rival in _RIVALS]
    votes = [_lower(*(pair if ahead else pair[::-1])) for pair in pairs]
    text = ", ".join(
        f"{ESTIMATORS[name].title} {percent(x.mean / setting.optimum - 1)}"
        for name, x in average.items()
    )
    return votes, f"{_AVERAGE} {text} above the optimum"


def _wins(results: Results, kind: Mapping[str, Any]) -> list[str]:
    """How often ReinMax is ahead of its rivals in all settings with one of these values."""
    texts = []
    for name, value in kind.items():
        part = results.part(**{name: value})
        settings = part.settings(("power", "target", "latents", "batch"))
        signs: dict[str, list[int]] = {rival: [] for rival in _RIVALS}
        for fields in settings:
            setting = _Setting(part, **fields)
            for rival in _RIVALS:
                vote = _lower(setting.average("reinmax"), setting.average(rival))
                signs[rival].append(vote.sign if vote.p < ALPHA else 0)
        counts = " and ".join(
            f"{ESTIMATORS[rival].title} in {found.count(1)} (behind in {found.count(-1)})"
            for rival, found in signs.items()
        )
        label = describe({name: value})
        texts.append(f"of {len(settings)} settings with {label}, ReinMax is ahead of {counts}")
    return texts


def _slower_on_simple(results: Results) -> Finding:
    """Whether there is such a setting by one of two measures."""
    measures = {_STEPS: _Setting.steps, _AVERAGE: _Setting.average}
    ahead: dict[str, dict[str, float]] = {name: {} for name in measures}
    cases = 0
    for fields in results.part(target="constant").settings(("power", "latents", "batch")):
        setting = _Setting(results, **fields, target="constant")
        if setting.lost("reinmax", *_RIVALS):
            continue
        cases += len(_RIVALS)
        for name, measure in measures.items():
            for rival in _RIVALS:
                vote = _lower(measure(setting, rival), measure(setting, "reinmax"))
                if vote.sign > 0:
                    ahead[name][f"{ESTIMATORS[rival].title} at {setting.label}"] = vote.p
    if not cases:
        return [Vote(0)], f"No setting with finished runs of {_titles(('reinmax', *_RIVALS))}"
    comparisons = cases * len(measures)
    texts = []
    for name, found in ahead.items():
        sure = {case: p for case, p in found.items() if p < ALPHA / comparisons}
        clearest = sorted(sure, key=lambda case: sure[case])[:3]
        shown = "; ".join(f"{case}, p {sure[case]:.1g}" for case in clearest)
        texts.append(
            f"{name}, REINFORCE or RODEO is ahead of ReinMax in {len(found)} of {cases} cases, "
            f"beyond chance in {len(sure)}" + (f" ({shown})" if sure else "")
        )
    chances = [p for found in ahead.values() for p in found.values()]
    vote = Vote(1, min(chances) * comparisons) if chances else _plain(False)
    return [vote], f"By {'; '.join(texts)}"


def _temperatures(results: Results) -> Finding:
    """By the best of each search; how clearly it is the best is not asked."""
    small, large = ("stgs", "gst-1.0", "gr-mck"), ("st", "reinmax")
    settings = results.settings(("power", "target"))
    votes: list[Vote] = []
    texts = []
    for estimator in (*small, *large):
        chosen = []
        for fields in settings:
            rows = results.where(estimator=estimator, **fields)
            taus = sorted({row.config["tau"] for row in rows if row.metrics})
            scores = {
                tau: final([row for row in rows if row.config["tau"] == tau], "expected_loss").mean
                for tau in taus
            }
            best = min(scores, key=lambda tau: (scores[tau], abs(tau - 1)), default=None)
            if best is None:
                votes.append(Vote(0))
                chosen.append("none")
            elif max(scores.values()) <= (1 + NEAR) * scores[best]:
                # it prefers nothing
                votes.append(Vote(0))
                chosen.append("any")
            else:
                votes.append(_plain(best <= 1 if estimator in small else best >= 1))
                chosen.append(f"{best:g}")
        texts.append(f"{ESTIMATORS[estimator].title} {', '.join(chosen)}")
    order = "; ".join(describe(fields) for fields in settings)
    head = f"The paper says it of MNIST-VAE. Best in polynomial programming ({order})"
    return votes, f"{head}: {'; '.join(texts)}"


def _best(metric: str, table: int, column: str) -> Callable[[Results], Finding]:
    """Whether ReinMax has the lowest mean."""

    def evaluate(results: Results) -> Finding:
        ours = final(results.where(estimator="reinmax"), metric)
        votes, texts = [], []
        for name in dict.fromkeys(row.config["estimator"] for row in results.rows):
            theirs = final(results.where(estimator=name), metric)
            if name == "reinmax":
                continue
            title = ESTIMATORS[name].title
            votes.append(_lower(ours, theirs))
            if theirs.count:
                chances = compare(ours, theirs).chance, _published_chance(table, column, name)
                p, paper = (text or "unknown" for text in chances)
                texts.append(f"{title} {theirs.mean:.2f} (p {p}; in the paper {paper})")
            else:
                texts.append(f"{title}, of which no run is finished")
        mean = f"{ours.mean:.2f}" if ours.count else "without a finished run"
        against = f"ReinMax {mean} against {', '.join(texts) or 'nothing'}"
        return votes or [Vote(0)], f"{column} only: {against}"

    return evaluate


def _published_chance(table: int, column: str, estimator: str) -> str:
    one, other = (published.cells()[table, name, column] for name in ("reinmax", estimator))
    return compare(one.summary, other.summary).chance


def _lower(one: Summary, other: Summary) -> Vote:
    """Whether the first mean is the lower one; an infinite one is the higher one for certain."""
    difference = one.mean - other.mean
    if math.isnan(difference):
        return Vote(0)
    p = compare(one, other).p if math.isfinite(difference) else 0.0
    return Vote((difference < 0) - (difference > 0), 0.0 if math.isnan(p) else p)


def _plain(as_claimed: bool) -> Vote:
    """A comparison of a mean with a bound."""
    return Vote(1 if as_claimed else -1)


def _count(steps: Summary) -> str:
    if not math.isfinite(steps.mean):
        return "never" if math.isinf(steps.mean) else "unknown"
    text = f"{steps.mean:,.0f}"
    return text + f" ± {steps.half:,.0f}" if math.isfinite(steps.half) else text


def _titles(names: Sequence[str]) -> str:
    return ", ".join(ESTIMATORS[name].title for name in names)


_CLAIMS: dict[str, Callable[[Results], Finding]] = {
    "near-optimal": _in_each_figure(_near_optimal, "reinmax"),
    "fastest": _in_each_figure(_fastest, *_FIGURE_1),
    "st-and-gst-fail": _in_each_figure(_st_and_gst_fail, "st", "gst-1.0"),
    "close-but-slower": _in_each_figure(_close_but_slower, "reinmax", "stgs", "gr-mck"),
    "gst-p-better": _in_each_figure(_gst_p_better, "gst-1.0", "gst-p"),
    "reinmax-on-hard": _corner(hard=True),
    "reinforce-on-simple": _corner(hard=False),
    "slower-on-simple": _slower_on_simple,
    "temperatures": _temperatures,
    "best-train": _best("train", 2, "10x30"),
    "best-test": _best("test", 9, "10x30"),
}
