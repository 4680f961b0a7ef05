"""A report put together from results: curves, tables and verdicts."""

from ..tasks.base import Exhibit
from ..tasks.evidence import Results
from .document import Drawing, Item, Page, Section, TextTable
from .entries import entries
from .figures import figures
from .measures import measured_tables
from .reading import Reading
from .searches import search_tables
from .tables import tables
from .verdicts import RULE, judge


def section(reading: Reading, results: Results) -> Section:
    """All about some results: the state of the runs, then curves, tables and verdicts."""
    items: list[Item] = [
        *figures(reading, results),
        *(
            tables(reading, entries(reading, results))
            if reading.halving is None
            else search_tables(reading, reading.halving, results)
        ),
        *measured_tables(reading, results),
        *(_shown(exhibit) for exhibit in reading.exhibits(results)),
        *(judge(claim, results) for claim in reading.claims),
    ]
    rule = RULE if reading.claims else ""
    return Section(reading.heading, _state(reading, results), tuple(items), rule)


def _shown(exhibit: Exhibit) -> Item:
    """What a task has made, as a part of the report."""
    if exhibit.drawing:
        return Drawing(exhibit.title, exhibit.caption, exhibit.drawing, exhibit.file)
    return TextTable(exhibit.title, exhibit.caption, exhibit.headings, exhibit.rows, exhibit.notes)


def page(section: Section) -> Page:
    """A page of one section."""
    introduction = "Bands and ± are 95 % intervals of the mean by Student's t over runs."
    if section.verdicts:
        introduction = (
            "Published numbers and claims beside ours; the recipes of the lab reproduce Liu et al. "
            f"2023, arXiv:2304.08612. {introduction}"
        )
    return Page("discretegrad: results", introduction, (section,))


def _state(reading: Reading, results: Results) -> str:
    """What became of the runs, on what and with what."""
    if not results.rows:
        count = len(reading.runs())
        return f"No results: none of the {count} runs of {reading.name} is here."
    counts = {state: count for state, count in results.counts().items() if count}
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    texts = [f"{len(results.rows)} runs: {states}"]
    apart = {
        state.capitalize(): [row for row in results.rows if row.state == state]
        for state in counts
        if state != "finished"
    }
    failed = results.failed(reading.metrics[0])
    if failed:
        metric = reading.metrics[0]
        than = "after the first epoch"
        if metric.useless is not None:
            than += f", or than {metric.useless:g}, where a model has learned nothing"
        apart[f"Failed to train, {metric.label} no better at the end than {than}"] = failed
    for what, rows in apart.items():
        keys = [row.config["estimator"] for row in rows]
        names = (f"{reading.look(key).label} {keys.count(key)}" for key in dict.fromkeys(keys))
        texts.append(f"{what}: {', '.join(names)}")
    for name in ("device", "torch", "commit", "source"):
        values = dict.fromkeys(getattr(row, name) for row in results.rows if row.commit)
        if values:
            # in one line, since the text of a section may have paragraphs
            texts.append(f"{name.capitalize()}: {' '.join(', '.join(values).splitlines())}")
    return ". ".join(texts) + "."
