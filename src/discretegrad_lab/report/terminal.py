"""A section of a report in a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .document import Section

_COLOURS = {True: "green", False: "red", None: "yellow"}


def show(section: Section, console: Console) -> None:
    """Print a section without its figures."""

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False)

    say(section.heading, "bold")
    say(section.text)
    for item in section.tables:
        table = Table(title=item.title, box=SIMPLE_HEAD, title_justify="left")
        for number, heading in enumerate(item.headings):
            # folded, since a number that is cut off is another number
            table.add_column(heading, justify="right" if number else "left", overflow="fold")
        for row in item.rows:
            table.add_row(*row)
        console.print(table)
        for note in (item.caption, *item.notes):
            say(note, "dim")
    for verdict in section.verdicts:
        console.print(verdict.word, style=_COLOURS[verdict.holds], end=": ")
        say(f"{verdict.text} ({verdict.place})")
        say(verdict.evidence, "dim")
