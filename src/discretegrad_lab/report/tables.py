"""Published numbers beside ours, with intervals and verdicts, from committed results alone."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from . import published
from .claims import RULE, evaluate
from .estimators import ESTIMATORS
from .files import write_whole
from .page import Claim, Curve, Figure, Item, Page, Section, Table
from .readings import arrival, best_loss, decimal, describe, final
from .recipes import Recipe, get
from .results import RUNS, STATES, Results, read, significant
from .statistics import Comparison, Summary, compare, summarise

REPORT, TABLE, CLAIMS = "report.md", "table.csv", "claims.csv"
VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}

_DASH = "\N{EN DASH}"
_NAMES = {"train": "Train \N{MINUS SIGN}ELBO", "test": "Test \N{MINUS SIGN}ELBO"}


@dataclass(frozen=True)
class Entry:
    """One estimator in one setting."""

    metric: str
    setting: Mapping[str, Any]
    estimator: str
    states: Mapping[str, int]
    """How many runs are in each state."""
    ours: Summary
    cell: published.Cell | None
    optimum: float
    """NaN where it is not known."""
    steps: Summary
    """Until the expected loss is near the optimum, over the runs that come there."""

    @property
    def planned(self) -> int:
        """How many runs there should be."""
        return sum(self.states.values())

    @property
    def comparison(self) -> Comparison:
        """Ours less the published one."""
        return compare(self.ours, self.cell.summary if self.cell else Summary(0))

    @property
    def verdict(self) -> str:
        """Whether the difference lies within its 95 % interval around 0."""
        if self.cell is None:
            return ""
        if self.ours.count < 2:
            return "too few runs" if self.ours.count else "no runs"
        return {0: "within", 1: "above", -1: "below"}[self.comparison.sign]


def section(results: Results, *, figures: bool = True) -> Section:
    """All about the results of a recipe: the state of its runs, tables, claims, figures."""
    recipe = get(results.recipe)
    items: list[Item] = [*_tables(recipe, entries(results))]
    items += [evaluate(name, results) for name in recipe.claims]
    items += _figures(recipe, results) if figures else ()
    return Section(f"{recipe.title} ({recipe.reproduces})", _state(recipe, results), tuple(items))


def page(all_results: Sequence[Results], title: str = "discretegrad: results") -> Page:
    """A page with the sections of several recipes."""
    introduction = (
        "The numbers and claims of the paper (Liu et al. 2023, arXiv:2304.08612) beside ours. "
        f"Intervals are 95 % intervals of the mean by Student's t over runs. {RULE}"
    )
    return Page(title, introduction, tuple(section(results) for results in all_results))


def render(results: Results) -> dict[str, str]:
    """The files of a report, by name."""
    whole = section(results, figures=False)
    return {
        REPORT: markdown(whole),
        TABLE: _table_csv(entries(results)),
        CLAIMS: _claims_csv(whole),
    }


def write(folder: Path) -> None:
    """Write the report on the results in a folder beside them: Markdown and CSV."""
    for name, text in render(read(folder)).items():
        write_whole(folder / name, text)


def check(root: Path) -> str | None:
    """The first report below ``root`` that does not follow from the results beside it.

    Returns:
        What differs and where, or None.
    """
    for folder in sorted(path.parent for path in root.glob(f"*/{RUNS}")):
        for name, text in render(read(folder)).items():
            place = f"{folder.name}/{name}"
            remedy = f"write the report on {folder.name} again"
            if not (folder / name).exists():
                return f"expected {place}, got no such file; {remedy}"
            found = (folder / name).read_bytes().decode(errors="replace")
            lines = zip_longest(found.splitlines(), text.splitlines(), fillvalue="end of file")
            for number, (old, new) in enumerate(lines, 1):
                if old != new:
                    return f"expected {new!r} in line {number} of {place}, got {old!r}; {remedy}"
    return None


def entries(results: Results) -> list[Entry]:
    """All cells of the tables of a recipe."""
    recipe = get(results.recipe)
    estimators = dict.fromkeys(row.config["estimator"] for row in results.rows)
    found = []
    for metric in recipe.metrics:
        for setting in results.settings((*recipe.panels, *recipe.rows)):
            part = results.part(**setting)
            found += [_entry(recipe, part, metric, setting, name) for name in estimators]
    return found


def _entry(
    recipe: Recipe, results: Results, metric: str, setting: Mapping[str, Any], estimator: str
) -> Entry:
    rows = results.where(estimator=estimator)
    cell = None
    if metric in recipe.published:
        cell = published.cells().get((recipe.published[metric], estimator, recipe.column))
    optimum, steps = math.nan, Summary(0)
    if rows and rows[0].config["task"] == "polynomial":
        optimum = best_loss(rows[0].config)
        steps = summarise([s for row in rows if (s := arrival(results, row)) is not None])
    states = Results(recipe.name, tuple(rows)).counts()
    return Entry(metric, setting, estimator, states, final(rows, metric), cell, optimum, steps)


def _state(recipe: Recipe, results: Results) -> str:
    """What became of the runs, on what and with what."""
    if not results.rows:
        return f"No results: none of the {len(recipe.runs())} runs of {recipe.name} is here."
    counts = {state: count for state, count in results.counts().items() if count}
    parts = [f"{len(results.rows)} runs", *(f"{count} {state}" for state, count in counts.items())]
    texts = [f"{parts[0]}: {', '.join(parts[1:])}"]
    for state in counts:
        if state != "finished":
            of = [row.config["estimator"] for row in results.rows if row.state == state]
            names = (f"{ESTIMATORS[name].title} {of.count(name)}" for name in dict.fromkeys(of))
            texts.append(f"{state.capitalize()}: {', '.join(names)}")
    for name in ("device", "torch", "commit", "source"):
        values = dict.fromkeys(getattr(row, name) for row in results.rows if row.commit)
        if values:
            texts.append(f"{name.capitalize()}: {', '.join(values)}")
    return ". ".join(texts) + "."


def _tables(recipe: Recipe, cells: Sequence[Entry]) -> Iterator[Table]:
    """A table for each metric and combination of panels."""
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for one in cells:
        panel = tuple(one.setting[name] for name in recipe.panels)
        groups.setdefault((one.metric, *panel), []).append(one)
    for (metric, *values), inside in groups.items():
        title = describe(dict(zip(recipe.panels, values, strict=True)))
        if metric in recipe.published:
            yield _published_table(recipe, metric, inside)
        elif recipe.rows:
            yield _wide_table(recipe, title, inside)
        else:
            yield _tall_table(title, inside)


def _published_table(recipe: Recipe, metric: str, cells: Sequence[Entry]) -> Table:
    number = recipe.published[metric]
    rows = []
    for one in cells:
        versus = one.comparison
        rows.append(
            (
                ESTIMATORS[one.estimator].title,
                f"{one.cell.value:.2f} ± {one.cell.spread:.2f}" if one.cell else _DASH,
                _with_half(one.ours.mean, one.ours.half, 2),
                f"{one.ours.count} of {one.planned}",
                _with_half(versus.difference, versus.half, 2, "+"),
                versus.chance or _DASH,
                one.verdict or _DASH,
            )
        )
    judged = [one.verdict for one in cells if one.verdict in ("within", "above", "below")]
    notes = [
        f"{judged.count('within')} of {len(judged)} within the joint 95 % interval; 1 in 20 lies "
        "outside by chance.",
        *_lost(cells),
    ]
    for doubt in published.doubts():
        if (doubt.table, doubt.column) == (number, recipe.column):
            title = ESTIMATORS[doubt.estimator].title
            notes.append(f"The published number of {title} is in doubt: {doubt.text}.")
    source = next(c for c in published.cells().values() if c.table == number)
    caption = (
        f"Published: Table {number} (Section {source.section}), column {recipe.column}, mean ± "
        f"standard deviation over {source.runs} runs. Ours: mean ± half the 95 % interval. "
        "Difference: ± half the joint 95 % interval; p by Welch's t-test."
    )
    headings = ("", "published", "ours", "runs", "difference", "p", "verdict")
    return Table(f"{_NAMES[metric]}, {recipe.column}", caption, headings, tuple(rows), tuple(notes))


def _tall_table(title: str, cells: Sequence[Entry]) -> Table:
    rows = []
    for one in cells:
        arrived = f"{one.steps.mean:,.0f}" if one.steps.count else _DASH
        if 0 < one.steps.count < one.ours.count:
            arrived += f" ({one.steps.count} of {one.ours.count} runs)"
        rows.append(
            (
                ESTIMATORS[one.estimator].title,
                _with_half(one.ours.mean, one.ours.half, 5),
                above(one),
                arrived,
                f"{one.ours.count} of {one.planned}",
            )
        )
    caption = (
        f"The expected loss at the end, mean ± half the 95 % interval; the optimum is "
        f"{cells[0].optimum:.5f}. Steps until it is within 1 % of the optimum and stays "
        "there, along straight lines between epochs. The paper shows curves and no numbers."
    )
    headings = ("", "expected loss", "% above optimum", "steps to 1 %", "runs")
    return Table(title, caption, headings, tuple(rows), tuple(_lost(cells)))


def _wide_table(recipe: Recipe, title: str, cells: Sequence[Entry]) -> Table:
    rows: dict[str, list[str]] = {}
    for one in cells:
        name = describe({field: one.setting[field] for field in recipe.rows})
        rows.setdefault(name, [name]).append(above(one))
    counts = sorted({one.ours.count for one in cells})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    caption = (
        "How far the expected loss ends above the optimum, in percent of the optimum: mean ± half "
        f"the 95 % interval over {number} runs."
    )
    titles = dict.fromkeys(ESTIMATORS[one.estimator].title for one in cells)
    return Table(
        title, caption, ("", *titles), tuple(map(tuple, rows.values())), tuple(_lost(cells))
    )


def above(one: Entry) -> str:
    """How far the expected loss ends above the optimum, in percent of it."""
    share = 100 / one.optimum
    return _with_half(share * one.ours.mean - 100, share * one.ours.half, 2)


def _with_half(value: float, half: float, places: int, sign: str = "") -> str:
    if not math.isfinite(value):
        return _DASH
    text = decimal(value, places, sign)
    return f"{text} ± {decimal(half, places)}" if math.isfinite(half) else text


def _lost(cells: Sequence[Entry]) -> list[str]:
    """A sentence on each cell some of whose runs are not finished."""
    found = []
    for one in cells:
        if one.states["finished"] < one.planned:
            name = ", ".join(filter(None, (ESTIMATORS[one.estimator].title, describe(one.setting))))
            counts = ", ".join(f"{count} {state}" for state, count in one.states.items() if count)
            found.append(f"{name}: {counts}.")
    return found


def _table_csv(cells: Sequence[Entry]) -> str:
    lines = []
    for one in cells:
        cell, versus = one.cell, one.comparison
        lines.append(
            {
                "metric": one.metric,
                **{name: str(value) for name, value in one.setting.items()},
                "estimator": one.estimator,
                "published": significant(cell.value if cell else None),
                "published_deviation": significant(cell.spread if cell else None),
                "published_runs": str(cell.runs) if cell else "",
                "ours": significant(one.ours.mean),
                "half_interval": _short(one.ours.half),
                "deviation": _short(one.ours.deviation),
                "runs": str(one.ours.count),
                "difference": _short(versus.difference),
                "joint_half_interval": _short(versus.half),
                "p": versus.chance,
                "verdict": one.verdict,
                "optimum": significant(one.optimum),
                "steps_to_near": _short(one.steps.mean, 4),
                "runs_near": str(one.steps.count),
                **{state: str(one.states[state]) for state in STATES},
            }
        )
    heading = list(lines[0]) if lines else ["metric", "estimator"]
    return _csv([heading, *(list(line.values()) for line in lines)])


def _claims_csv(whole: Section) -> str:
    lines = [["claim", "place", "verdict", "evidence"]]
    for one in whole.items:
        if isinstance(one, Claim):
            lines.append([one.text, one.place, VERDICTS[one.holds], one.evidence])
    return _csv(lines)


def _short(value: float, digits: int = 3) -> str:
    return format(value, f".{digits}g") if math.isfinite(value) else ""


def _csv(lines: Sequence[Sequence[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()


def _figures(recipe: Recipe, results: Results) -> Iterator[Figure]:
    over_tau = recipe.rows == ("tau",)
    for metric in recipe.metrics:
        for setting in results.settings(recipe.panels + (() if over_tau else recipe.rows)):
            yield _figure(results.part(**setting), metric, setting, over_tau)


def _figure(results: Results, metric: str, setting: Mapping[str, Any], over_tau: bool) -> Figure:
    config = results.rows[0].config
    label = _NAMES.get(metric, metric.replace("_", " "))
    points = _over_tau if over_tau else _over_time
    curves = []
    for name in dict.fromkeys(row.config["estimator"] for row in results.rows):
        one = ESTIMATORS[name]
        found = points(results.part(estimator=name), metric)
        if found:
            curves.append(_curve(one.title, one.colour, one.dash, found))
    x_label = "τ" if over_tau else "step" if "steps_per_epoch" in config else "epoch"
    return Figure(
        title=describe(setting) or label,
        caption="",
        x_label=x_label,
        y_label=label,
        curves=tuple(curves),
        reference=best_loss(config) if config["task"] == "polynomial" else None,
        reference_name="optimum",
    )


def _over_time(results: Results, metric: str) -> dict[float, Summary]:
    rows = [row for row in results.rows if row.state == "finished"]
    curves = [results.curves.get((row.identity, metric), {}) for row in rows]
    scale = results.rows[0].config.get("steps_per_epoch", 1)
    return {
        scale * epoch: summarise([curve[epoch] for curve in curves if epoch in curve])
        for epoch in sorted({epoch for curve in curves for epoch in curve})
    }


def _over_tau(results: Results, metric: str) -> dict[float, Summary]:
    found = {}
    for fields in results.settings(("tau",)):
        one = final(results.where(**fields), metric)
        if one.count:
            found[fields["tau"]] = one
    return found


def _curve(name: str, colour: str, dash: str, points: Mapping[float, Summary]) -> Curve:
    middle = tuple(point.mean for point in points.values())
    halves = [point.half for point in points.values()]
    low = high = None
    if any(map(math.isfinite, halves)):
        low = tuple(mean - half for mean, half in zip(middle, halves, strict=True))
        high = tuple(mean + half for mean, half in zip(middle, halves, strict=True))
    return Curve(name, colour, tuple(points), middle, low, high, dash)


def markdown(whole: Section) -> str:
    """A section without its figures."""
    parts = [f"# {whole.heading}", whole.text]
    for item in whole.items:
        if isinstance(item, Table):
            parts += [f"## {item.title}", item.caption, _pipes(item.headings, item.rows)]
            parts += ["\n".join(f"- {note}" for note in item.notes)] if item.notes else []
    claims = [item for item in whole.items if isinstance(item, Claim)]
    if claims:
        rows = [(one.text, one.place, VERDICTS[one.holds], one.evidence) for one in claims]
        parts += [
            "## Claims",
            RULE,
            _pipes(("the paper says", "where", "verdict", "numbers"), rows),
        ]
    return "\n\n".join(parts) + "\n"


def _pipes(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def show(whole: Section, console: Console) -> None:
    """A section in the terminal, without its figures."""
    console.print(whole.heading, style="bold", markup=False, highlight=False)
    console.print(whole.text, markup=False, highlight=False)
    for item in whole.items:
        if isinstance(item, Table):
            table = RichTable(title=item.title, box=SIMPLE_HEAD, title_justify="left")
            for number, heading in enumerate(item.headings):
                # folded, since a number that is cut off is another number
                table.add_column(heading, justify="right" if number else "left", overflow="fold")
            for row in item.rows:
                table.add_row(*row, style="bold" if row[0] == "ReinMax" else None)
            console.print(table)
            for note in item.notes:
                console.print(note, style="dim", markup=False, highlight=False)
    for item in whole.items:
        if isinstance(item, Claim):
            colour = {True: "green", False: "red", None: "yellow"}[item.holds]
            console.print(VERDICTS[item.holds], style=colour, end=": ")
            console.print(f"{item.text} ({item.place})", markup=False, highlight=False)
            console.print(item.evidence, style="dim", markup=False, highlight=False)
