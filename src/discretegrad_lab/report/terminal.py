"""A section of a report in a terminal."""

from collections.abc import Iterator
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import document
from .document import Section

_COLOURS = {True: "green", False: "red", None: "yellow"}


def show(section: Section, console: Console) -> None:
    """Print a section without its figures."""

    def say(text: str, style: str | None = None) -> None:
        console.print(_text(text), style=style, highlight=False)

    say(section.heading, "bold")
    say(section.text)
    for item in section.tables:
        for number, block in enumerate(_blocks(item, console.width)):
            table = Table(
                title=None if number else _text(item.title), box=SIMPLE_HEAD, title_justify="left"
            )
            for column in block:
                # folded, since a number that is cut off is another number
                side: Literal["left", "right"] = "right" if column else "left"
                width = _needed(item, column)
                table.add_column(
                    _text(item.headings[column]), justify=side, overflow="fold", min_width=width
                )
            for row in item.rows:
                table.add_row(*(_text(row[column]) for column in block))
            console.print(table)
        for note in (item.caption, *item.notes):
            say(note, "dim")
    for verdict in section.verdicts:
        console.print(verdict.word, style=_COLOURS[verdict.holds], end=": ")
        say(f"{verdict.text} ({verdict.place})")
        say(verdict.evidence, "dim")


def _text(text: str) -> Text:
    """A text that a terminal only shows, also where it looks like a tag of rich."""
    return Text(document.printable(text))


def _blocks(table: document.TextTable, width: int) -> Iterator[list[int]]:
    """The columns of a table in as many blocks as the width asks for, each with the first one."""
    block, used = [0], _needed(table, 0) + 4
    for column in range(1, len(table.headings)):
        more = _needed(table, column) + 3
        if len(block) > 1 and used + more > width:
            yield block
            block, used = [0], _needed(table, 0) + 4
        block.append(column)
        used += more
    yield block


def _needed(table: document.TextTable, column: int) -> int:
    """The width of a column whose heading may be broken between words."""
    words = table.headings[column].split() or [""]
    cells = (row[column] for row in table.rows)
    return max(len(document.printable(text)) for text in (*words, *cells))
