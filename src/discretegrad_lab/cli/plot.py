"""The command ``discretegrad plot``."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..tasks import EXAMPLE
from . import common
from .selection import Selection

if TYPE_CHECKING:
    from ..runs.store import DamagedRun, Store
    from ..stack.config import Run
    from ..tasks.base import Picture
    from ..tasks.evidence import Results

CURVES, MAP = "curves.png", "map.png"


@common.command(
    common.app,
    "plot",
    "discretegrad plot",
    f"discretegrad plot {EXAMPLE} --results results",
    "discretegrad plot my_sweep.py",
)
def plot(
    recipes: common.Recipes = None,
    changes: common.Changes = None,
    results: common.ResultsDirectory = Path("results"),
    runs: common.RunsDirectory = Path("runs"),
    data: common.DataDirectory = None,
) -> None:
    """Draw the curves of a report as PNG files, and images that trained models make.

    Where values of a setting were searched, such as temperatures, there is also a map of them.

    Takes the results that `discretegrad report` has written; without names all of them. Images also
    need the runs and their data, and are left out where there are no finished runs.
    """
    with common.explaining():
        if importlib.util.find_spec("matplotlib") is None:
            raise common.Refused(
                "expected the package matplotlib for plots, got none; install it with "
                '`pip install "discretegrad[lab]"`'
            )
        from ..report.folder import read_section
        from ..runs.store import Store

        with common.checking_input(), common.files_in(results):
            selection = Selection(recipes or (), changes=changes)
            folders = _folders(selection, results)
            sections = {folder: read_section(folder) for folder in folders}
            # matplotlib writes a cache the first time
            from ..report.plots import draw, draw_map, picture_grid

            store = Store(runs)
            damaged: list[str] = []
            images = {}
            # before the first picture is drawn
            for folder, (rows, _) in sections.items():
                for picture, finished in _pictures(rows, store, damaged):
                    drawn = picture.draw(finished, lambda run: store.load(run).state, data)
                    images[folder / f"{picture.name}.png"] = drawn
            written = []
            for folder, (_, section) in sections.items():
                if section.figures:
                    draw(section.figures, folder / CURVES)
                    written.append(folder / CURVES)
                searched = [figure for figure in section.figures if figure.searched]
                if searched:
                    draw_map(searched, folder / MAP)
                    written.append(folder / MAP)
            for path, labelled in images.items():
                picture_grid(labelled, path)
                written.append(path)
        for path in written:
            typer.echo(f"Wrote {path}")
        for folder in sections:
            if all(path.parent != folder for path in written):
                typer.echo(
                    f"Nothing to draw of {folder}: its results have no curves, and no finished run "
                    f"of it in {runs} makes images"
                )
        if damaged:
            common.tell(damaged)
            raise typer.Exit(common.FAILED)


def _folders(selection: Selection, results: Path) -> list[Path]:
    from ..report.folder import folders
    from ..report.results import RUNS

    chosen = []
    for name in selection.recipes:
        # a folder of stored runs has no recipe, so its name is enough
        if (results / name / RUNS).exists() and not selection.changes:
            chosen.append(results / name)
        else:
            recipes = Selection([name], changes=selection.changes).find()
            chosen += [results / recipe.name for recipe in recipes]
    if not selection.recipes:
        chosen = folders(results)
        if not chosen:
            raise ValueError(
                f"expected results in {results}, got none; write them with `discretegrad report`"
            )
    for folder in chosen:
        if not (folder / RUNS).exists():
            raise ValueError(
                f"expected results in {folder}, got none; write them with "
                f"`discretegrad report {' '.join(selection.recipes)}`"
            )
    return chosen


def _pictures(
    results: "Results", store: "Store", damaged: list[str]
) -> "Iterator[tuple[Picture, list[Run]]]":
    """The pictures of a task, each with one finished run of each estimator that has any.

    It is the one with the lowest seed that can be read; ``damaged`` takes the reasons why others
    cannot.
    """
    from ..tasks import tasks

    known = tasks()
    for name in dict.fromkeys(row.config["task"] for row in results.rows):
        if name not in known or not known[name].pictures:
            continue
        identities = {row.identity for row in results.rows}
        chosen: dict[str, Run] = {}
        errors: list[DamagedRun] = []
        stored = [run for run in store.runs(errors) if run.identity in identities]
        damaged += [str(error) for error in errors if error.directory.name in identities]
        for run in sorted(stored, key=lambda run: run.seed):
            if run.estimator not in chosen:
                status = store.status(run)
                if status.state == "finished":
                    chosen[run.estimator] = run
                elif status.reason:
                    damaged.append(status.reason)
        order = [key for key in results.estimators() if key in chosen]
        for picture in known[name].pictures if chosen else ():
            yield picture, [chosen[key] for key in order]
