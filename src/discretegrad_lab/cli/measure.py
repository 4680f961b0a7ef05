"""The command ``discretegrad measure``."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..watch.words import many
from . import common
from .selection import Selection, find_device, parse_time

if TYPE_CHECKING:
    from ..runs.store import Store
    from ..stack.config import Run
    from ..tasks.base import Recipe
    from ..tasks.evidence import Measured, Results


@common.command(
    common.app,
    "measure",
    "discretegrad measure my_sweep.py",
    "discretegrad measure my_sweep.py --seeds 5 --estimators reinmax,st --device cuda",
    "discretegrad measure my_sweep.py --runs /shared/runs --budget 9m",
)
def measure(
    recipes: Annotated[list[str], typer.Argument(metavar="RECIPE", help=common.RECIPE)],
    seeds: common.Seeds = None,
    estimators: common.Estimators = None,
    changes: common.Changes = None,
    device: common.Device = "auto",
    runs: common.RunsDirectory = Path("runs"),
    results: common.ResultsDirectory = Path("results"),
    data: common.DataDirectory = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin nothing that would end later, such as 9m."),
    ] = None,
    largest_stack: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Models at once at most; by default what fits."),
    ] = None,
    quiet: common.Quiet = False,
) -> None:
    """Measure finished models by what takes too long to do while they are trained.

    Needs the checkpoints, so it is given where the runs were trained. What a model is measured by
    is up to its task. The numbers go to `measures.csv` among the results, and the report on those
    shows them. They are written after every stack of models: the same command, given again, goes on
    with those that have none yet.
    """
    with common.explaining():
        from ..runs.measure import measures_of
        from ..runs.store import Store

        store = Store(runs)
        with common.checking_input():
            place = find_device(device)
            limit = None if budget is None else parse_time(budget)
            selection = Selection(recipes, seeds, estimators, changes)
            parts = [(recipe, selection.runs(recipe)) for recipe in selection.find()]
            for _, chosen in parts:
                measures_of(chosen[0])
        work = _Work(store, results, selection, place, quiet, data, largest_stack)
        if limit is not None:
            work.deadline = time.perf_counter() + limit
        with common.files_in(results):
            for recipe, chosen in parts:
                work.measure(recipe, chosen)
        work.end()


class _Work:
    """One call of the command."""

    deadline = float("inf")

    def __init__(
        self,
        store: "Store",
        results: Path,
        selection: Selection,
        device: str,
        quiet: bool,
        data: Path | None,
        largest_stack: int | None,
    ) -> None:
        self._store, self._results, self._selection = store, results, selection
        self._device, self._quiet = device, quiet
        self._data, self._largest = data, largest_stack
        self._damaged: list[str] = []
        self._left = 0
        """Models that the budget had no time for."""
        self._unfinished = 0
        """Runs that have no model yet, at least not here."""

    def measure(self, recipe: "Recipe", chosen: "list[Run]") -> None:
        """Measure those models of a recipe that have no numbers yet."""
        from ..report.folder import gather, write_results
        from ..report.reading import of_recipe
        from ..report.results import keep_measured, provenance
        from ..runs import measure
        from ..runs.environment import describe
        from ..tasks.evidence import DROPPED, Measured

        reading, began = of_recipe(recipe), time.perf_counter()
        damaged: list[str] = []

        def gathered(damaged: list[str]) -> "Results":
            with common.checking_input():
                return gather(reading, chosen, self._store, self._results, damaged, keep_all=True)

        rows = gathered(damaged)
        self._damaged += damaged
        done = {row.identity for row in rows.rows if row.measured is not None}
        dropped = {row.identity for row in rows.rows if row.state == DROPPED}
        finished = self._finished([run for run in chosen if run.identity not in dropped])
        if not finished and damaged:
            return
        if not finished:
            raise common.Refused(
                f"expected finished runs of {recipe.name} in {self._store.root}, got none; train "
                f"them with `discretegrad run {self._selection.words(self._store)}`, or say where "
                "they are with --runs"
            )
        todo = [run for run in finished if run.identity not in done]
        self._say(
            f"{recipe.name}: {many(len(todo), 'model')} to measure, "
            f"{len(finished) - len(todo):,} measured before"
        )
        about, longest = provenance(describe(self._device)), 0.0
        stacks = measure.measure(
            todo,
            self._store,
            device=self._device,
            data=self._data,
            largest_stack=self._largest,
        )
        place = self._results / reading.name
        if not todo:
            write_results(reading, rows, self._results)
        while todo:
            if time.perf_counter() + longest > self.deadline:
                self._left += len(todo)
                break
            start = time.perf_counter()
            with common.checking_input():
                stack = next(stacks)
            longest = max(longest, time.perf_counter() - start)
            todo = [run for run in todo if run not in stack.values and run not in stack.damaged]
            self._damaged += stack.damaged.values()
            new = {run.identity: Measured(x, *about) for run, x in stack.values.items()}
            # others may have trained, measured and reported meanwhile
            rows = _with(keep_measured(gathered(self._damaged), rows), new)
            write_results(reading, rows, self._results)
            seconds = time.perf_counter() - began
            self._say(f"Wrote {place}, {len(todo):,} left after {seconds:.0f} s")

    def end(self) -> None:
        """Say what could not be done, in words and by the exit code."""
        if self._damaged:
            common.tell(list(dict.fromkeys(self._damaged)))
        if self._unfinished:
            words = self._selection.words(self._store)
            typer.echo(
                f"discretegrad: expected finished runs in {self._store.root}, got "
                f"{many(self._unfinished, 'run')} without a final checkpoint there; train with "
                f"`discretegrad run {words}`, or measure where they were trained",
                err=True,
            )
        if self._left:
            typer.echo(
                f"discretegrad: the budget ended with {many(self._left, 'model')} left; give the "
                "same command again",
                err=True,
            )
        if self._damaged:
            raise typer.Exit(common.FAILED)
        if self._left or self._unfinished:
            raise typer.Exit(common.WORK_LEFT)

    def _finished(self, chosen: "list[Run]") -> "list[Run]":
        """Those with a final model; what is damaged has been told when rows were gathered."""
        states = {run: self._store.status(run, quick=True).state for run in chosen}
        finished = [run for run, state in states.items() if state == "finished"]
        # a run that diverged has no model to measure, and never will
        over = [state for state in states.values() if state in ("finished", "diverged", "damaged")]
        self._unfinished += len(chosen) - len(over)
        return finished

    def _say(self, text: str) -> None:
        if not self._quiet:
            typer.echo(text)


def _with(rows: "Results", measured: "Mapping[str, Measured]") -> "Results":
    return replace(
        rows,
        rows=tuple(
            replace(row, measured=measured.get(row.identity, row.measured)) for row in rows.rows
        ),
    )
