"""The command ``discretegrad report``."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..tasks import EXAMPLE
from ..watch.words import many, size
from .app import (
    FAILED,
    AsJson,
    Changes,
    Estimators,
    Recipes,
    Refused,
    ResultsDirectory,
    RunsDirectory,
    Seeds,
    app,
    checking_input,
    command,
    explaining,
    files_in,
    tell,
)
from .selection import Selection

if TYPE_CHECKING:
    from ..report.document import Section
    from ..report.reading import Reading
    from ..runs.store import Store
    from ..stack.config import Run
    from ..tasks.evidence import Results

_WIDE = 200
"""Columns of a table that is not shown on a terminal."""
_STORED = "stored"
"""The folder of a report on stored runs that are looked at without a recipe."""


@command(
    app,
    "report",
    "discretegrad report",
    f"discretegrad report {EXAMPLE} --seeds 10",
    "discretegrad report my_sweep.py",
    "discretegrad report --runs runs --set tau=0.5,1 --estimators reinmax,st",
    "discretegrad report --check",
)
def report(
    recipes: Recipes = None,
    seeds: Seeds = None,
    estimators: Estimators = None,
    changes: Changes = None,
    runs: RunsDirectory = Path("runs"),
    results: ResultsDirectory = Path("results"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Only prove that the tables follow from the results there."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No tables here.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write what came out: curves, tables beside the paper's numbers, verdicts on its claims.

    Goes from the stored runs to CSV, Markdown and an HTML page in a folder for each recipe. Without
    a recipe it takes those that have a folder already and those whose runs are all done; if there
    are none, or runs are selected with --seeds, --estimators or --set, it takes all stored runs
    that fit, whatever recipe they belong to, in folders that begin with "stored". Results in a
    folder are kept where a run is not stored here, or is not done, also of runs that were not asked
    for.
    """
    with explaining():
        if check:
            _check(recipes, results)
            return
        from ..report import folder
        from ..report.results import write
        from ..runs.files import write_whole
        from ..runs.store import Store
        from ..watch.json_lines import to_json

        damaged: list[str] = []
        selection = Selection(recipes or (), seeds, estimators, changes)
        with checking_input(), files_in(results):
            # all of them before the first is written
            gathered = [
                (one, _gather(one, Store(runs), results, damaged))
                for one in list(_to_report(selection, Store(runs), results, damaged))
            ]
            for one, rows in gathered:
                place = results / one.reading.name
                write(rows, place)
                if not one.shipped:
                    write_whole(place / folder.READING, one.reading.to_json())
                folder.write(place)
            places = [results / one.reading.name for one, _ in gathered]
            sections = [folder.read_section(place)[1] for place in places]
        if as_json:
            documents = [_document(*pair) for pair in zip(places, sections, strict=True)]
            typer.echo(to_json(documents, indent=1))
        elif not quiet:
            _show(places, sections)
        if damaged:
            tell(list(dict.fromkeys(damaged)))
            raise typer.Exit(FAILED)


def _show(places: "list[Path]", sections: "list[Section]") -> None:
    from ..report.folder import PAGE
    from ..report.terminal import show

    # a pipe to a file or a pager needs no width of a terminal
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    for place, section in zip(places, sections, strict=True):
        show(section, console)
        total = sum(path.stat().st_size for path in place.iterdir())
        typer.echo(f"Wrote {place} ({size(total)}); open {place / PAGE}")


def _document(place: Path, section: "Section") -> dict[str, Any]:
    """A section without its figures, whose numbers are in the files beside it."""
    return {
        "name": place.name,
        "folder": str(place),
        "heading": section.heading,
        "text": section.text,
        "tables": [asdict(table) for table in section.tables],
        "claims": [{**asdict(one), "verdict": one.word} for one in section.verdicts],
    }


@dataclass(frozen=True)
class _Wanted:
    """One folder of a report."""

    reading: "Reading"
    runs: "list[Run]"
    shipped: bool
    """Whether it is a recipe that comes with the lab, which needs no ``reading.json``."""
    words: str
    """What `discretegrad run` needs to train these runs."""


def _to_report(
    selection: Selection, store: "Store", results: Path, damaged: list[str]
) -> Iterator[_Wanted]:
    from ..report.reading import of_recipe, of_runs
    from ..report.results import RUNS
    from ..tasks import recipes

    shipped = recipes().copy()
    chosen = selection.find()
    if not selection.recipes and not selection.filters:
        chosen = [
            recipe
            for recipe in shipped.values()
            if (results / recipe.name / RUNS).exists()
            or all(store.status(run, quick=True).done for run in recipe.runs())
        ]
    for recipe in chosen:
        known = recipe.name in shipped
        runs = selection.runs(recipe)
        yield _Wanted(of_recipe(recipe), runs, known, selection.words(store) or recipe.name)
    if not chosen:
        stored = selection.stored(store, damaged)
        for reading, own in of_runs(_STORED, stored):
            yield _Wanted(reading, own, False, "")
        if not stored:
            raise ValueError(
                f"expected stored runs in {store.root}, or results in {results}, got none that "
                "fit; train a recipe with `discretegrad run`, or say where the runs are with --runs"
            )


def _gather(one: _Wanted, store: "Store", results: Path, damaged: list[str]) -> "Results":
    """Stored runs, and what only the folder has."""
    from ..report.results import collect, gather, read

    reading = one.reading
    curves_of = [metric.name for metric in reading.metrics] if reading.curves else []
    stored = collect(reading.name, one.runs, store, curves_of, damaged)
    rows = gather(stored, store, read(results / reading.name), reading.runs())
    if all(row.state == "missing" for row in rows.rows):
        raise ValueError(
            f"expected runs of {reading.name} in {store.root}, got none; train them with "
            f"`discretegrad run {one.words}`, or say where they are with --runs"
        )
    return rows


def _check(recipes: list[str] | None, results: Path) -> None:
    from ..report import folder

    with checking_input(), files_in(results):
        files = [name for name in recipes or () if name.endswith(".py")]
        if len(files) < len(recipes or ()):
            raise ValueError(
                "expected no recipe with --check, which looks at all; leave it out, or give the "
                "Python files of recipes that do not come with the lab"
            )
        Selection(files).find()
        folders = folder.folders(results)
        if not folders:
            raise ValueError(
                f"expected results below {results}, got none; say where they are with --results"
            )
        difference = folder.check(results)
        if difference:
            raise Refused(difference, FAILED)
    typer.echo(f"All tables of {many(len(folders), 'recipe')} follow from their results.")
