"""A section of a report as Markdown and its verdicts as CSV, both without figures.

Some of its texts come from stored runs, such as the name of a device: none of them is a tag, a
link or a heading, whatever they say.
"""

import re
from collections.abc import Sequence

from .document import Section, printable
from .results import to_csv


def to_markdown(section: Section) -> str:
    """A section without its figures."""
    parts = [f"# {_line(section.heading)}", section.text]
    for table in section.tables:
        parts += [f"## {_line(table.title)}", _line(table.caption)]
        parts += [_pipes(table.headings, table.rows)]
        parts += ["\n".join(f"- {_line(note)}" for note in table.notes)] if table.notes else []
    for drawing in section.drawings:
        parts += [f"## {_line(drawing.title)}", _line(drawing.caption)]
        parts += [f"Drawn in `{drawing.file}`."]
    if section.verdicts:
        headings = ("the paper says", "where", "verdict", "numbers")
        parts += ["## Claims", section.rule, _pipes(headings, _lines(section))]
    # what begins a tag, and what links
    return re.sub(r"<(?=[A-Za-z/!?])|(?<=\])\(", r"\\\g<0>", printable("\n\n".join(parts))) + "\n"


def verdicts_csv(section: Section) -> str:
    """The verdicts of a section."""
    return printable(to_csv([("claim", "place", "verdict", "evidence"), *_lines(section)]))


def _lines(section: Section) -> list[tuple[str, ...]]:
    return [(v.text, v.place, v.word, v.evidence) for v in section.verdicts]


def _line(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.splitlines())


def _pipes(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    escaped = ([_line(cell).replace("|", r"\|") for cell in cells] for cells in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)
