"""The README's tables of the registry and of `make demo`, and the pictures of stored curves."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import calls
import reproduction
from discretegrad_lab.config import Polynomial
from discretegrad_lab.estimators import ESTIMATORS
from discretegrad_lab.page import Claim, Figure
from discretegrad_lab.readings import NEAR, decimal, describe
from discretegrad_lab.recipes import RECIPES
from measure import ROOT
from pages import PICTURES, markdown, wrapped

from discretegrad_lab import published, results
from discretegrad_lab.report import VERDICTS, Entry, entries, section

DEMO = ROOT / "results" / "polynomial-headline"


def estimators_block() -> str:
    """The samplers of the registry as a table."""
    lines = [
        [f"`{row.name}`", row.label, row.bias, row.temperature, row.reference]
        for row in calls.estimators().values()
        if row.kind == "sampler"
    ]
    return markdown(["function", "in papers", "bias", "temperature", "reference"], lines) + "\n"


def scores_block() -> str:
    """The score-function estimators of the registry as a table."""
    lines = [
        [
            f"`{row.name}`",
            row.label,
            " and ".join(row.families),
            "yes" if row.needs_grad_f else "no",
            row.reference,
        ]
        for row in calls.estimators().values()
        if row.kind == "score"
    ]
    headings = ["estimator", "in papers", "variables", "needs the gradient of f", "reference"]
    return markdown(headings, lines) + "\n"


def demo_block() -> str:
    """What ``make demo`` gives, from the stored results."""
    stored = results.read(DEMO)
    return f"{demo_table(stored)}\n\n{wrapped(demo_caption(stored))}\n"


def demo_table(stored: results.Results) -> str:
    """A line for each estimator, and for each p the loss and the steps."""
    lines: dict[str, list[str]] = {}
    headings = ["estimator"]
    for entry in entries(stored):
        title = ESTIMATORS[entry.estimator].title
        problem = f"{describe(entry.setting)}, best {decimal(entry.optimum, 5)}"
        if problem not in headings:
            headings += [problem, "steps"]
        lines.setdefault(title, [title]).extend((_loss(entry), _steps(entry)))
    taus = _taus(stored)
    if len({tau for each in taus.values() for tau in each}) > 1:
        headings.append("τ")
        for name, each in taus.items():
            lines[ESTIMATORS[name].title].append(" / ".join(f"{tau:g}" for tau in each) or "-")
    return markdown(headings, list(lines.values()))


def _loss(entry: Entry) -> str:
    if not entry.ours.count:
        return "-"
    half = f" ± {decimal(entry.ours.half, 5)}" if entry.ours.count > 1 else ""
    return decimal(entry.ours.mean, 5) + half


def _steps(entry: Entry) -> str:
    """A dash unless every run came near the optimum."""
    arrived = 0 < entry.steps.count == entry.ours.count
    return f"{entry.steps.mean:,.0f}" if arrived else "-"


def _taus(stored: results.Results) -> dict[str, list[float]]:
    """The temperatures of every estimator, one for each p; none where it has no temperature."""
    names = dict.fromkeys(row.config["estimator"] for row in stored.rows)
    powers = [setting["power"] for setting in stored.settings(("power",))]
    return {
        name: [stored.where(estimator=name, power=power)[0].config["tau"] for power in powers]
        if ESTIMATORS[name].has_tau
        else []
        for name in names
    }


def demo_caption(stored: results.Results) -> str:
    """What the table shows, and what it does not."""
    whole = section(stored, figures=False)
    run, paper = stored.rows[0].config, Polynomial(estimator="reinmax")
    seeds = len({row.config["seed"] for row in stored.rows})
    number = "one seed" if seeds == 1 else f"{seeds} seeds, mean ± half the 95 % interval"
    return (
        f"The expected loss, which is exact, after {_training(run)} (Figure 1: "
        f"{_training(paper.document())}); {number}. The loss is the mean of |X - 0.45|^p over "
        f"{run['latents']} binary variables X, with {run['batch']} joint samples a step. Beside "
        f"it are the steps until it is within {100 * NEAR:g} % of the best possible and stays "
        f"there; a dash means: not within these steps. GR-MCK has {run['draws']:,} draws (the "
        f"paper: {paper.draws:,}). {_tuning(stored)} For p = 2, a quadratic loss, ReinMax at τ = 1 "
        "is unbiased.\n\n"
        f"{_claims([item for item in whole.items if isinstance(item, Claim)], stored.recipe)}\n\n"
        f"{whole.text}"
    )


def _training(config: Mapping[str, object]) -> str:
    steps = int(str(config["epochs"])) * int(str(config["steps_per_epoch"]))
    return f"{steps:,} steps of Adam at a learning rate of {config['learning_rate']:g}"


def _tuning(stored: results.Results) -> str:
    """The temperatures of these runs, and how they were chosen."""
    searched = {
        (float(row["power"]), row["target"], row["estimator"], float(row["tau"]))
        for row in published.rows("temperatures.csv")
        if row["chosen"] == "yes" and int(row["runs"])
    }
    tempered = [row.config for row in stored.rows if ESTIMATORS[row.config["estimator"]].has_tau]
    taus = {config["tau"] for config in tempered}
    which = f"τ is {taus.pop():g} everywhere" if len(taus) == 1 else "τ is given for each p"
    if not all((c["power"], c["target"], c["estimator"], c["tau"]) in searched for c in tempered):
        return (
            f"{which} and not tuned; the paper tunes it for each method, so this does not rank "
            "tuned methods."
        )
    search = RECIPES["polynomial-temperatures"].runs()
    seeds = " and ".join(str(seed) for seed in dict.fromkeys(run.seed for run in search))
    return (
        f"{which}: of {len(published.TEMPERATURES)} values the one that ended lowest with "
        f"{_training(search[0].document())}, {search[0].draws:,} draws and the seeds {seeds} "
        "(`polynomial-temperatures`)."
    )


def _claims(claims: Sequence[Claim], recipe: str) -> str:
    others = [
        f" {VERDICTS[claim.holds].capitalize()}: “{claim.text}” ({claim.place})."
        for claim in claims
        if not claim.holds
    ]
    return (
        f"{len(claims) - len(others)} of {len(claims)} claims of the paper about this problem hold "
        f"for these seeds and temperatures ([numbers](results/{recipe}/report.md))."
        f"{''.join(others)}"
    )


def fingerprint(figures: Sequence[Figure]) -> str:
    """The same for the same curves, colours and titles."""
    return hashlib.sha256(repr([astuple(figure) for figure in figures]).encode()).hexdigest()


def pictures() -> dict[Path, list[Figure]]:
    """All pictures of stored curves, and what they show."""
    shown = {DEMO.name: reproduction.figures_of(results.read(DEMO)), **reproduction.figures()}
    return {PICTURES / f"{name}.png": figures for name, figures in shown.items()}


def draw_picture(path: Path) -> None:
    from discretegrad_lab.plots import draw

    figures = pictures()[path]
    # the picture says which curves it shows
    draw(figures, path, metadata={"Source": fingerprint(figures)})


def stale_pictures() -> list[Path]:
    """Those that show other curves than the stored ones."""
    return [path for path, figures in pictures().items() if source(path) != fingerprint(figures)]


def source(path: Path) -> str | None:
    from PIL import Image

    if not path.exists():
        return None
    with Image.open(path) as picture:
        return picture.text.get("Source")
