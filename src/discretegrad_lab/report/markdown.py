"""A section of a report as Markdown and its verdicts as CSV, both without figures."""

from collections.abc import Sequence

from .document import Section
from .results import to_csv


def to_markdown(section: Section) -> str:
    """A section without its figures."""
    parts = [f"# {section.heading}", section.text]
    for table in section.tables:
        parts += [f"## {table.title}", table.caption, _pipes(table.headings, table.rows)]
        parts += ["\n".join(f"- {note}" for note in table.notes)] if table.notes else []
    if section.verdicts:
        headings = ("the paper says", "where", "verdict", "numbers")
        parts += ["## Claims", section.rule, _pipes(headings, _lines(section))]
    return "\n\n".join(parts) + "\n"


def verdicts_csv(section: Section) -> str:
    """The verdicts of a section."""
    return to_csv([("claim", "place", "verdict", "evidence"), *_lines(section)])


def _lines(section: Section) -> list[tuple[str, ...]]:
    return [(v.text, v.place, v.word, v.evidence) for v in section.verdicts]


def _pipes(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in cells] for cells in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)
