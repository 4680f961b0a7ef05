"""What the paper says of its figures of polynomial programming, held against results."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...stack.lines import line
from ..base import Claim, Metric, read_claims
from ..evidence import (
    ALPHA,
    NEAR,
    Judgement,
    Results,
    Row,
    Vote,
    arrival,
    average,
    describe,
    final,
    lower,
    percent,
    plain,
)
from ..statistics import Summary, summarise
from .config import WORDS, best_loss

LOSS = Metric("expected_loss", "expected loss", 5, optimum=best_loss)
_FIGURE_1 = ("reinmax", "st", "stgs", "gr-mck", "gst-1.0")
_RIVALS = ("reinforce", "rodeo")
_STEPS = f"steps to {100 * NEAR:g} % of the optimum"
_AVERAGE = "averaged over the epochs"


class _Setting:
    """What the claims ask about the runs of one setting, by estimator."""

    def __init__(self, results: Results, **fields: Any) -> None:
        self.label = describe(fields, WORDS)
        self.fields = fields
        self._results = results
        self._rows = results.where(**fields)
        self.optimum = best_loss(self._rows[0].config) if self._rows else math.nan

    def lost(self, *estimators: str) -> str:
        """Which of them have no finished runs."""
        return _labels([name for name in estimators if not self.final(name).count])

    def final(self, estimator: str) -> Summary:
        return final(self._of(estimator), LOSS.name)

    def above(self, estimator: str) -> float:
        """The share by which the expected loss ends above the optimum."""
        return self.final(estimator).mean / self.optimum - 1

    def average(self, estimator: str) -> Summary:
        """The expected loss averaged over all epochs, also those that are not stored."""
        return average(self._results, self._of(estimator), LOSS.name)

    def steps(self, estimator: str) -> Summary:
        """Steps to near the optimum; infinitely many if a run does not come there."""
        rows = [row for row in self._of(estimator) if self._results.curve(row, LOSS.name)]
        steps = [_steps(self._results, row) for row in rows]
        return Summary(len(steps), math.inf) if math.inf in steps else summarise(steps)

    def _of(self, estimator: str) -> list[Row]:
        return [row for row in self._rows if row.config["estimator"] == estimator]


def _steps(results: Results, row: Row) -> float:
    epochs = arrival(results, row, LOSS)
    return math.inf if epochs is None else epochs * float(row.config["steps_per_epoch"])


def _in_each_figure(
    judge: Callable[[_Setting], Judgement], *needed: str
) -> Callable[[Results], Judgement]:
    """A claim about Figure 1: it must hold for each p."""

    return lambda results: _for_each_power(results, {}, judge, needed)


def _for_each_power(
    results: Results,
    kind: Mapping[str, Any],
    judge: Callable[[_Setting], Judgement],
    needed: Sequence[str],
) -> Judgement:
    """The parts of a claim for each p, of settings of a kind that have runs of what is needed."""
    votes: list[Vote] = []
    texts = []
    for fields in results.settings(("power",)):
        setting = _Setting(results, **fields, **kind)
        lost = setting.lost(*needed)
        no_runs = Judgement([Vote(0)], f"no finished runs of {lost}")
        part = no_runs if lost else judge(setting)
        votes += part.votes
        texts.append(f"{setting.label}: {part.evidence}")
    return Judgement(votes, "; ".join(texts))


def _near_optimal(setting: _Setting) -> Judgement:
    above = setting.above("reinmax")
    return Judgement([plain(above <= NEAR)], f"ReinMax ends {percent(above)} above the optimum")


def _fastest(setting: _Setting) -> Judgement:
    steps = {name: setting.steps(name) for name in _FIGURE_1}
    votes = [lower(steps["reinmax"], steps[name]) for name in _FIGURE_1[1:]]
    text = ", ".join(f"{line(name).label} {_count(x)}" for name, x in steps.items())
    if not setting.lost("gst-p"):
        text += f" (GST-p, which the paper does not name there, {_count(setting.steps('gst-p'))})"
    return Judgement(votes, f"{_STEPS}: {text}")


def _st_and_gst_fail(setting: _Setting) -> Judgement:
    above = {name: setting.above(name) for name in ("st", "gst-1.0")}
    text = " and ".join(f"{line(name).label} ends {percent(x)}" for name, x in above.items())
    return Judgement([plain(x > NEAR) for x in above.values()], f"{text} above the optimum")


def _close_but_slower(setting: _Setting) -> Judgement:
    ours = setting.steps("reinmax")
    votes, texts = [], []
    for name in ("stgs", "gr-mck"):
        gap = setting.final(name).mean / setting.final("reinmax").mean - 1
        steps = setting.steps(name)
        votes += [plain(abs(gap) <= NEAR), lower(ours, steps)]
        end = f"{percent(abs(gap))} {'above' if gap > 0 else 'below'} ReinMax"
        texts.append(f"{line(name).label} ends {end} ({_STEPS}: {_count(steps)})")
    return Judgement(votes, f"{', '.join(texts)}, against {_count(ours)} of ReinMax")


def _gst_p_better(setting: _Setting) -> Judgement:
    gapped, fixed = percent(setting.above("gst-p")), percent(setting.above("gst-1.0"))
    vote = lower(setting.final("gst-p"), setting.final("gst-1.0"))
    return Judgement([vote], f"GST-p ends {gapped} and GST-1.0 {fixed} above the optimum")


def _corner(hard: bool) -> Callable[[Results], Judgement]:
    """ReinMax and its rivals where it is hardest, or simplest, for each p."""

    def evaluate(results: Results) -> Judgement:
        batches, latents = (
            sorted({row.config[name] for row in results.rows}) for name in ("batch", "latents")
        )
        kind = {
            "target": "spread" if hard else "constant",
            "latents": latents[-1 if hard else 0],
            "batch": batches[0 if hard else -1],
        }
        against = partial(_against_rivals, ahead=hard)
        votes, text = _for_each_power(results, kind, against, ("reinmax", *_RIVALS))
        wins = "; ".join(_wins(results, kind))
        return Judgement(votes, f"Polynomial programming only: {text}; {wins}")

    return evaluate


def _against_rivals(setting: _Setting, ahead: bool) -> Judgement:
    average = {name: setting.average(name) for name in ("reinmax", *_RIVALS)}
    pairs = [(average["reinmax"], average[rival]) for rival in _RIVALS]
    votes = [lower(*(pair if ahead else pair[::-1])) for pair in pairs]
    text = ", ".join(
        f"{line(name).label} {percent(x.mean / setting.optimum - 1)}" for name, x in average.items()
    )
    return Judgement(votes, f"{_AVERAGE} {text} above the optimum")


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
                vote = lower(setting.average("reinmax"), setting.average(rival))
                signs[rival].append(vote.sign if vote.p < ALPHA else 0)
        counts = " and ".join(
            f"{line(rival).label} in {votes.count(1)} (behind in {votes.count(-1)})"
            for rival, votes in signs.items()
        )
        label = describe({name: value}, WORDS)
        texts.append(f"of {len(settings)} settings with {label}, ReinMax is ahead of {counts}")
    return texts


def _slower_on_simple(results: Results) -> Judgement:
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
                vote = lower(measure(setting, rival), measure(setting, "reinmax"))
                if vote.sign > 0:
                    ahead[name][f"{line(rival).label} at {setting.label}"] = vote.p
    if not cases:
        return Judgement(
            [Vote(0)], f"No setting with finished runs of {_labels(('reinmax', *_RIVALS))}"
        )
    comparisons = cases * len(measures)
    texts = []
    for name, chances in ahead.items():
        sure = {case: p for case, p in chances.items() if p < ALPHA / comparisons}
        clearest = sorted(sure, key=lambda case: sure[case])[:3]
        shown = "; ".join(f"{case}, p {sure[case]:.1g}" for case in clearest)
        texts.append(
            f"{name}, REINFORCE or RODEO is ahead of ReinMax in {len(chances)} of {cases} cases, "
            f"beyond chance in {len(sure)}" + (f" ({shown})" if sure else "")
        )
    smallest = min((p for chances in ahead.values() for p in chances.values()), default=None)
    vote = plain(False) if smallest is None else Vote(1, smallest * comparisons)
    return Judgement([vote], f"By {'; '.join(texts)}")


def _temperatures(results: Results) -> Judgement:
    """By the best of each search; how clearly it is the best is not asked."""
    settings = results.settings(("power", "target"))
    votes: list[Vote] = []
    texts = []
    for estimator in ("st", "stgs"):
        chosen = []
        for fields in settings:
            rows = results.where(estimator=estimator, **fields)
            taus = sorted({row.config["tau"] for row in rows if row.metrics})
            scores = {
                tau: final([row for row in rows if row.config["tau"] == tau], LOSS.name).mean
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
                votes.append(plain(best >= 1 if estimator == "st" else best <= 1))
                chosen.append(f"{best:g}")
        texts.append(f"{line(estimator).label} {', '.join(chosen)}")
    order = "; ".join(describe(fields, WORDS) for fields in settings)
    head = f"Best in polynomial programming ({order})"
    return Judgement(votes, f"{head}: {'; '.join(texts)}")


def _count(steps: Summary) -> str:
    if not math.isfinite(steps.mean):
        return "never" if math.isinf(steps.mean) else "unknown"
    text = f"{steps.mean:,.0f}"
    return text + f" ± {steps.half:,.0f}" if math.isfinite(steps.half) else text


def _labels(names: Sequence[str]) -> str:
    return ", ".join(line(name).label for name in names)


CLAIMS: dict[str, Claim] = read_claims(
    Path(__file__).with_name("claims.csv"),
    {
        "near-optimal": _in_each_figure(_near_optimal, "reinmax"),
        "fastest": _in_each_figure(_fastest, *_FIGURE_1),
        "st-and-gst-fail": _in_each_figure(_st_and_gst_fail, "st", "gst-1.0"),
        "close-but-slower": _in_each_figure(_close_but_slower, "reinmax", "stgs", "gr-mck"),
        "gst-p-better": _in_each_figure(_gst_p_better, "gst-1.0", "gst-p"),
        "reinmax-on-hard": _corner(hard=True),
        "reinforce-on-simple": _corner(hard=False),
        "slower-on-simple": _slower_on_simple,
        "temperatures": _temperatures,
    },
)
