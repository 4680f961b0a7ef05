"""The tables of the README: from the registry of estimators, stored runs and a benchmark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import claims
import run
import stored
from files import ROOT
from pages import filled, markdown, plural, wrapped
from stored import all_claims, finished, reading, section, training_seconds

import discretegrad
from discretegrad_lab.report.entries import Entry, entries
from discretegrad_lab.report.tables import with_half
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.tasks.evidence import NEAR, Results, decimal
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.vae.recipes import PAPER

README = ROOT / "README.md"


def text() -> str:
    """The README with its tables as they should be."""
    blocks = {
        "estimators": samplers_block(),
        "scores": scores_block(),
        "demo": demo_block(),
        "reproduction": column_block(),
        "benchmark": run.readme_block(run.PAGE.read().rows),
    }
    return filled(README.read_text(encoding="utf-8"), blocks, README.name)


def samplers_block() -> str:
    """The samplers of the registry."""
    columns = {"bias": lambda row: row.bias, "temperature": lambda row: row.temperature}
    return _registry("sampler", "function", columns)


def scores_block() -> str:
    """The score functions of the registry."""
    columns = {
        "variables": lambda row: (
            "any, also subsets" if row.any_family else " and ".join(row.families)
        ),
        "needs the gradient of f": lambda row: "yes" if row.needs_grad_f else "no",
    }
    return _registry("score", "estimator", columns)


def _registry(kind: str, first: str, columns: Mapping[str, Callable[[Any], str]]) -> str:
    rows = [row for row in discretegrad.ESTIMATORS.values() if row.kind == kind]
    lines = [
        [f"`{row.name}`", row.label, *(cell(row) for cell in columns.values()), row.reference]
        for row in rows
    ]
    return markdown([first, "in papers", *columns, "reference"], lines) + "\n"


def by_estimator(results: Results, cells: Callable[[Entry], Sequence[str]]) -> list[list[str]]:
    """A line for each estimator with the cells of all its entries."""
    lines: dict[str, list[str]] = {}
    for entry in entries(reading(results), results):
        label = LINES[entry.estimator].label
        lines.setdefault(label, [label]).extend(cells(entry))
    return list(lines.values())


def demo_block() -> str:
    """What ``make demo`` gives."""
    results = stored.read(stored.DEMO)
    return f"{demo_table(results)}\n\n{wrapped(demo_caption(results))}\n"


def demo_table(results: Results) -> str:
    """For each p the loss, the steps until it is near the optimum, and the temperature."""

    def cells(entry: Entry) -> tuple[str, str, str]:
        loss = with_half(entry.ours.mean, entry.ours.half, 5) if entry.ours.count else "-"
        arrived = 0 < entry.steps.count == entry.ours.count
        return loss, f"{entry.steps.mean:,.0f}" if arrived else "-", entry.tuned["tau"]

    headings = ["estimator"]
    for entry in entries(reading(results), results):
        problem = f"{reading(results).describe(entry.setting)}, best {decimal(entry.optimum, 5)}"
        headings += [] if problem in headings else [problem, "steps", "τ"]
    return markdown(headings, by_estimator(results, cells))


def demo_caption(results: Results) -> str:
    """What the table shows, and what it does not."""
    report, paper = section(results), Polynomial(estimator="reinmax")
    run = results.rows[0].config
    seeds = len({row.config["seed"] for row in results.rows})
    failed = [
        f" {claim.word.capitalize()}: “{claim.text}” ({claim.place})."
        for claim in report.verdicts
        if not claim.holds
    ]
    count = len(report.verdicts)
    return (
        f"The expected loss, which is exact, after {_training(run)} (Figure 1: "
        f"{_training(paper.document())}); {plural(seeds, 'seed')}. The loss is the mean of "
        f"|X - 0.45|^p over {run['latents']} binary variables X, with {run['batch']} joint samples "
        f"a step. Beside it are the steps until it is within {100 * NEAR:g} % of the best possible "
        "and stays there; a dash means: not within these steps. GR-MCK has "
        f"{run['draws']:,} draws (the paper: {paper.draws:,}). τ is what the search "
        f"`{stored.SEARCH}` found best for each p. For p = 2, a quadratic loss, ReinMax at τ = 1 "
        "is unbiased.\n\n"
        f"{count - len(failed)} of {count} claims of the paper about this problem hold for these "
        f"seeds and temperatures ([numbers](results/{results.recipe}/report.md)).{''.join(failed)}"
        f"\n\n{report.text}"
    )


def _training(config: Mapping[str, Any]) -> str:
    steps = config["epochs"] * config["steps_per_epoch"]
    return f"{steps:,} steps of Adam at a learning rate of {config['learning_rate']:g}"


def column_block() -> str:
    """The column of the paper's main table, and what became of all claims."""

    def cells(entry: Entry) -> tuple[str, str, str]:
        assert entry.cell is not None
        pairs = ((entry.cell.value, entry.cell.summary.half), (entry.ours.mean, entry.ours.half))
        published, ours = (with_half(mean, half, 2) for mean, half in pairs)
        return published, ours, entry.verdict

    headings = ["MNIST-VAE, 10 x 30"]
    for metric in ("train", "test"):
        headings += [f"{metric} \N{MINUS SIGN}ELBO, published", "ours", "difference"]
    results = of_paper(stored.read(stored.VAE))
    lines = by_estimator(results, cells)
    return f"{markdown(headings, lines)}\n\n{wrapped(_caption(results))}\n"


def of_paper(results: Results) -> Results:
    """Without the lines that the paper's tables do not have."""
    return replace(
        results, rows=tuple(row for row in results.rows if row.config["estimator"] in PAPER)
    )


def _caption(results: Results) -> str:
    cells = entries(reading(results), results)
    published = {entry.cell.runs for entry in cells if entry.cell}
    ours = {entry.ours.count for entry in cells}
    doubts = [x for table in section(results).tables for x in table.notes if "in doubt" in x]
    seconds = f"{training_seconds(results):.0f} s"
    about = results.rows[0]
    return (
        f"Mean ± half the 95 % interval, published over {_numbers(published)} runs and ours over "
        f"{_numbers(ours)}; *within* means that the difference lies inside its own 95 % interval. "
        f"These {len(results.rows)} runs trained at once in {seconds} on one {about.device} "
        f"(commit {about.commit}, TF32). {' '.join(doubts)}\n\n"
        f"{finished():,} finished runs are stored. {claims.counts(all_claims())} in them: "
        "[the paper, trained again](docs/reproduction/index.md)."
    )


def _numbers(counts: set[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
