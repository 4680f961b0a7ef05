"""The command ``discretegrad report``."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..tasks import EXAMPLE
from ..watch.words import many, size
from . import common
from .selection import Selection

if TYPE_CHECKING:
    from ..report.document import Section
    from ..report.reading import Reading
    from ..runs.store import Store
    from ..stack.config import Run
    from ..tasks.base import Recipe

_WIDE = 200
"""Columns of a table that is not shown on a terminal."""
_STORED = "stored"
"""The folder of a report on stored runs that are looked at without a recipe."""


@common.command(
    common.app,
    "report",
    "discretegrad report",
    f"discretegrad report {EXAMPLE} --seeds 10",
    "discretegrad report my_sweep.py",
    "discretegrad report --runs runs --set tau=0.5,1 --estimators reinmax,st",
    "discretegrad report --check",
)
def report(
    recipes: common.Recipes = None,
    seeds: common.Seeds = None,
    estimators: common.Estimators = None,
    changes: common.Changes = None,
    runs: common.RunsDirectory = Path("runs"),
    results: common.ResultsDirectory = Path("results"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Only prove that the tables follow from the results there."),
    ] = False,
    quiet: common.Quiet = False,
    as_json: common.AsJson = False,
) -> None:
    """Write what came out: curves, tables beside the paper's numbers, verdicts on its claims.

    Goes from the stored runs to CSV, Markdown and an HTML page in a folder for each recipe.
    Without a recipe it takes those that have a folder already, but for estimators whose
    settings a search has not chosen yet, and those whose runs are all done; if there are none,
    or runs are selected with --seeds, --estimators or --set, it takes all stored runs that fit,
    whatever recipe they belong to, in folders that begin with "stored". Results in a folder are
    kept where a run is not stored here, or is not done, or its model was measured, also of runs
    that were not asked for.
    """
    with common.explaining():
        if check:
            _check(recipes, results)
            return
        from ..report.folder import gather, read_section, write_results
        from ..report.results import RUNS
        from ..report.sources import lack
        from ..runs.store import Store
        from ..watch.json_lines import to_json

        damaged: list[str] = []
        store = Store(runs)
        selection = Selection(recipes or (), seeds, estimators, changes)
        with common.checking_input(), common.files_in(results):
            # all of them before the first is written
            gathered = []
            for reading, own in _to_report(selection, store, results, damaged):
                if problem := lack(results / reading.name, RUNS):
                    typer.echo(f"discretegrad: {problem}", err=True)
                rows = gather(reading, own, store, results, damaged)
                if all(row.state == "missing" for row in rows.rows):
                    # `run` takes one recipe, or the file that has it
                    name = reading.name.partition("@")[0]
                    one = [x for x in selection.recipes if x == name] or selection.recipes
                    words = replace(selection, recipes=one or [name]).words(store)
                    raise ValueError(
                        f"expected runs of {reading.name} in {store.root}, got none; train them "
                        f"with `discretegrad run {words}`, or say where they are with --runs"
                    )
                gathered.append((reading, rows))
            places = [write_results(reading, rows, results) for reading, rows in gathered]
            sections = [read_section(place)[1] for place in places]
        if as_json:
            documents = [_document(*pair) for pair in zip(places, sections, strict=True)]
            typer.echo(to_json(documents, indent=1))
        elif not quiet:
            _show(places, sections)
        if damaged:
            common.tell(list(dict.fromkeys(damaged)))
            raise typer.Exit(common.FAILED)


def _show(places: "list[Path]", sections: "list[Section]") -> None:
    from ..report.folder import PAGE
    from ..report.terminal import show

    # a pipe to a file or a pager needs no width of a terminal
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    for place, section in zip(places, sections, strict=True):
        show(section, console)
        total = 0
        for path in place.iterdir():
            # another report may just have renamed it
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
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


def _to_report(
    selection: Selection, store: "Store", results: Path, damaged: list[str]
) -> "Iterator[tuple[Reading, list[Run]]]":
    """How the results of each folder are to be read, and the runs that belong there."""
    from ..report.reading import of_recipe, of_runs
    from ..report.results import RUNS
    from ..runs.search import complete
    from ..tasks import recipes

    chosen = selection.find()
    if not selection.recipes and not selection.filters:
        chosen = [
            recipe
            for recipe in recipes().values()
            if (results / recipe.name / RUNS).exists() or complete(recipe, store)
        ]
    for recipe in chosen:
        runs = selection.runs(recipe) if selection.recipes else _chosen_runs(recipe)
        if runs:
            yield of_recipe(recipe), runs
    if not chosen:
        stored = selection.stored(store, damaged)
        yield from of_runs(_STORED, stored)
        if not stored:
            raise ValueError(
                f"expected stored runs in {store.root}, or results in {results}, got none that "
                "fit; train a recipe with `discretegrad run`, say where the runs are with --runs, "
                "or name the Python file whose task they are of"
            )


def _chosen_runs(recipe: "Recipe") -> "list[Run]":
    """Those of all estimators whose settings, if a search is to find them, were chosen."""
    from ..tasks.chosen import NotChosen

    keys = []
    for key in recipe.keys():
        try:
            recipe.runs(estimators=[key])
        except NotChosen as error:
            why = error
        else:
            keys.append(key)
    if keys:
        return recipe.runs(estimators=keys)
    typer.echo(f"discretegrad: {recipe.name} is left as it is: {why}", err=True)
    return []


def _check(recipes: list[str] | None, results: Path) -> None:
    from ..report import folder

    with common.checking_input(), common.files_in(results):
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
            raise common.Refused(difference, common.FAILED)
    typer.echo(f"All tables of {many(len(folders), 'recipe')} follow from their results.")
