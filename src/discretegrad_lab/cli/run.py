"""The command ``discretegrad run``."""

import contextlib
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..tasks import EXAMPLE
from ..watch import streams
from . import common
from .plan import announced, show_plan
from .rungs import read_rungs
from .selection import Selection, find_device, parse_time

if TYPE_CHECKING:
    from ..runs.listener import Listener, Outcome
    from ..runs.search import Results
    from ..runs.store import Store
    from ..stack.config import Run
    from ..tasks.base import Recipe
    from ..watch.json_lines import JsonLines


_PATIENCE = 60.0
"""Seconds that training waits for whoever should read what it says."""


class Engine(StrEnum):
    """Who trains the stacks."""

    local = "local"
    ray = "ray"


@common.command(
    common.app,
    "run",
    f"discretegrad run {EXAMPLE} --dry-run",
    f"discretegrad run {EXAMPLE} --seeds 2 --estimators reinmax,st --device cpu",
    f"discretegrad run {EXAMPLE} --set tau=0.5,1,1.5 --set learning_rate=0.01",
    "discretegrad run my_sweep.py --budget 9m --tensorboard events",
    f"discretegrad run {EXAMPLE} --engine ray --ray-address auto --runs /shared/runs",
    "discretegrad run my_search.py --results results",
    f"discretegrad run {EXAMPLE} --json | jq .event",
)
def run(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=common.RECIPE)],
    seeds: common.Seeds = None,
    estimators: common.Estimators = None,
    changes: common.Changes = None,
    device: common.Device = "auto",
    runs: common.RunsDirectory = Path("runs"),
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Take over the rungs of a search that its results in this directory say are "
            "decided: runs that are dropped there are not trained, and the others are trained past "
            "those rungs. For a machine that does not have the runs those results are of; a rung "
            "that the runs here can decide is decided by them. By default nothing is taken over.",
        ),
    ] = None,
    data: common.DataDirectory = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Save and stop in time, such as 90s, 9m or 1h30m."),
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Save after the first epoch that ends so long after the last checkpoint, such as "
            "10s; 0s is after every epoch. By default soon after the start, then as often as takes "
            "2 % of the time, but not more than twice a minute.",
        ),
    ] = None,
    largest_stack: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Members at most; by default what fits."),
    ] = None,
    max_failures: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Save and stop when so many runs cannot be read or saved; by default the others "
            "are trained however many there are.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done; changes nothing.")
    ] = False,
    engine: Annotated[
        Engine, typer.Option(help="Train in this process or on a Ray cluster.")
    ] = Engine.local,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Train in so many processes side by side on one device. It pays for models whose "
            "stacks cannot grow and leave a GPU mostly idle.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a cluster, or auto; by default one is started."),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write TensorBoard event files too.")
    ] = None,
    quiet: common.Quiet = False,
    json_lines: Annotated[
        bool,
        typer.Option("--json", help="A JSON object for each event on stdout; the last is outcome."),
    ] = False,
) -> None:
    """Train the runs of a recipe that are not trained yet.

    Runs that are done are skipped and those that were begun go on, so the same command can be given
    again at any time, and in several terminals at once.
    """
    from ..runs import cluster, execute
    from ..runs import processes as several
    from ..runs.listener import Together
    from ..runs.options import StackOptions
    from ..runs.store import Store
    from ..watch.json_lines import JsonLines
    from ..watch.tensorboard import EventFiles

    events = JsonLines(sys.stdout) if json_lines else None
    with common.explaining(events):
        with common.checking_input():
            if ray_address is not None and engine is not Engine.ray:
                raise ValueError("expected --engine ray with --ray-address, got none; add it")
            if processes is not None and engine is Engine.ray:
                raise ValueError("expected one of --processes and --engine ray, got both")
            if quiet and json_lines:
                raise ValueError("expected one of --quiet and --json, got both; choose one")
            selection = Selection([recipe], seeds, estimators, changes)
            parts = [(chosen, selection.runs(chosen)) for chosen in selection.find()]
            with common.files_in(results or Path()):
                rows = None if results is None else read_rungs(results, parts)
            wanted = Wanted(
                selection,
                parts,
                Store(_directory(runs)),
                {
                    "device": _device(device, engine),
                    "data": data,
                    "budget": None if budget is None else parse_time(budget),
                    "stacks": StackOptions(
                        largest_stack,
                        None
                        if checkpoint_every is None
                        else parse_time(checkpoint_every, "--checkpoint-every", zero=True),
                        max_failures=max_failures,
                    ),
                },
                results,
                rows,
            )
            if engine is Engine.ray and importlib.util.find_spec("ray") is None:
                raise ValueError(
                    "expected the package ray for --engine ray, got none; install it with "
                    '`pip install "discretegrad[ray]"`, or train with --engine local'
                )
        if dry_run:
            show_plan(wanted, events, quiet, processes)
            return
        with common.checking_input():
            # the nodes of a cluster have their own
            if ray_address is None:
                wanted.check_data()
            wanted.store.check_room(common.ROOM)
            event_files = [] if tensorboard is None else [EventFiles(tensorboard)]
        began = time.perf_counter()
        streams.begin_training(_PATIENCE)
        with _shown(wanted, events, quiet) as listeners:
            together = Together(*listeners, *event_files, say=lambda why: common.tell([why]))
            silent = quiet or json_lines

            def train(chosen: "Sequence[Run]", options: dict[str, Any]) -> "Outcome":
                if engine is Engine.ray:
                    return cluster.execute(
                        chosen,
                        wanted.store.root,
                        address=ray_address,
                        listener=together,
                        **options,
                    )
                looked_at = chosen if silent else announced(chosen)
                announce = None if silent else _announce
                if processes is not None:
                    return several.execute(
                        looked_at,
                        wanted.store.root,
                        processes=processes,
                        listener=together,
                        announce=announce,
                        **options,
                    )
                return execute.execute(
                    looked_at, wanted.store, listener=together, announce=announce, **options
                )

            with _explaining_memory(wanted):
                outcome = _train(wanted, train)
        code = _exit_code(outcome)
        if together.problems and code != common.INTERRUPTED:
            code = common.FAILED
        seconds = time.perf_counter() - began
        if events is not None:
            problems = [*together.problems, *streams.problems()]
            fields = {**_outcome_fields(outcome), "problems": problems}
            events.event("outcome", **fields, seconds=seconds, exit_code=code)
        else:
            if quiet:
                # others have heard of it when it was met
                common.tell(list(outcome.damaged.values()))
            else:
                _summarise(wanted, outcome, seconds)
            common.tell(outcome.unrelated)
            # on stderr that of stdout has been said, when it was met
            for problem in () if quiet else streams.problems():
                typer.echo(f"discretegrad: {problem}")
        raise typer.Exit(code)


@dataclass(frozen=True)
class Wanted:
    """What a command line asks to train, checked."""

    selection: Selection
    parts: "list[tuple[Recipe, list[Run]]]"
    """The recipes, each with its runs."""
    store: "Store"
    options: dict[str, Any]
    """Of ``execute``, on a device as on a cluster: device, data, budget and stacks."""
    results: Path | None = None
    """What ``--results`` says."""
    rows: "Results | None" = None
    """Which decide rungs, from there."""

    @property
    def runs(self) -> "list[Run]":
        """Of all recipes."""
        return [run for _, runs in self.parts for run in runs]

    @property
    def searches(self) -> bool:
        """Whether runs may end at a rung."""
        return any(recipe.halving is not None for recipe, _ in self.parts)

    @property
    def name(self) -> str:
        """Of the recipes."""
        return ", ".join(recipe.name for recipe, _ in self.parts)

    @property
    def words(self) -> str:
        """What another command needs to be about the same runs and results."""
        option = "" if self.results is None else f" --results {shlex.quote(str(self.results))}"
        return self.selection.words(self.store) + option

    def check_data(self) -> None:
        """Raise ``DataError`` if data that the runs need are missing or damaged."""
        from ..tasks.data import require

        names = dict.fromkeys(
            name
            for recipe, runs in self.parts
            for name in recipe.data
            if any(run.needs(name) for run in runs)
        )
        require(list(names), self.options["data"])


def _train(
    wanted: Wanted, train: "Callable[[Sequence[Run], dict[str, Any]], Outcome]"
) -> "Outcome":
    """Train the runs with the options of ``execute``, those of a search from rung to rung."""
    from ..runs.listener import Outcome
    from ..runs.search import search

    if not wanted.searches:
        return train(wanted.runs, wanted.options)
    budget = wanted.options["budget"]
    deadline = None if budget is None else time.perf_counter() + budget

    def train_until(chosen: "Sequence[Run]", until: int | None) -> Outcome:
        left = None if deadline is None else deadline - time.perf_counter()
        if left is not None and left <= 0:
            return Outcome(stopped=tuple(chosen), stopped_by="budget")
        stacks = wanted.options["stacks"]._replace(until=until)
        return train(chosen, {**wanted.options, "budget": left, "stacks": stacks})

    return search(wanted.parts, wanted.store, train_until, wanted.rows)


def _directory(runs: Path) -> Path:
    if os.path.isfile(runs):
        raise ValueError(f"expected a directory as --runs, got the file {runs}; choose one")
    return runs


def _device(name: str, engine: Engine) -> str:
    if engine is Engine.local:
        return find_device(name)
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"expected the device auto, cpu or cuda with --engine ray, got {name!r}; Ray "
            "gives every stack a device of that kind"
        )
    return name


@contextlib.contextmanager
def _shown(
    wanted: Wanted, events: "JsonLines | None", quiet: bool
) -> "Iterator[Sequence[Listener]]":
    """Whoever shows the progress: nobody, JSON lines, a board on a terminal, or plain lines."""
    from rich.console import Console

    from ..watch.board import Board, Log

    console = Console(stderr=True)
    if quiet:
        yield []
    elif events is not None:
        yield [events]
    elif console.is_terminal:
        with Board(console, wanted.options["budget"]) as board:
            yield [board]
    else:
        yield [Log(sys.stderr)]


@contextlib.contextmanager
def _explaining_memory(wanted: Wanted) -> Iterator[None]:
    """Explain what a cluster or the memory of a device refuses."""
    import torch

    from ..runs.connection import ClusterError
    from ..runs.processes import ProcessLost

    try:
        yield
    except (ClusterError, ProcessLost) as error:
        raise common.Refused(str(error), common.FAILED) from error
    except torch.OutOfMemoryError as error:
        raise common.Refused(
            f"expected memory for a single run on {wanted.options['device']}, got: "
            f"{str(error).splitlines()[0]} Stop what else uses it, or choose another --device",
            common.FAILED,
        ) from error


def _announce(_: str) -> None:
    """Within the handler of a signal, where nothing but this is safe."""
    # and waiting for a reader is not
    if streams.ready(2, 0.0):
        os.write(2, _STOPPING)


_STOPPING = b"discretegrad: stopping after this epoch; once more to stop at once and lose it\n"


def _exit_code(outcome: "Outcome") -> int:
    from ..runs.listener import REASONS

    if outcome.stopped_by not in (None, *REASONS):
        return common.INTERRUPTED
    if outcome.damaged or outcome.unrelated:
        return common.FAILED
    return common.WORK_LEFT if outcome.stopped or outcome.elsewhere else common.DONE


_GROUPS = {
    "finished": "finished",
    "diverged": "diverged",
    "dropped": "dropped at a rung",
    "already": "done before",
    "stopped": "left",
    "elsewhere": "with another process",
}
"""The runs of an outcome, and what the summary calls them."""


def _outcome_fields(outcome: "Outcome") -> dict[str, object]:
    return {
        **{name: [run.identity for run in getattr(outcome, name)] for name in _GROUPS},
        "failed": [run.identity for run in outcome.failed],
        "damaged": {run.identity: reason for run, reason in outcome.damaged.items()},
        "unrelated": outcome.unrelated,
        "stopped_by": outcome.stopped_by,
        "abandoned": outcome.abandoned,
        "complete": outcome.complete,
    }


def _summarise(wanted: Wanted, outcome: "Outcome", seconds: float) -> None:
    from ..watch.words import duration

    parts = [
        f"{len(getattr(outcome, name)):,} {words}"
        for name, words in _GROUPS.items()
        if getattr(outcome, name)
    ]
    if outcome.failed:
        parts[0] += f" ({len(outcome.failed):,} of them failed to train)"
    if outcome.damaged:
        parts.append(f"{len(outcome.damaged):,} damaged and left alone")
    typer.echo(f"{wanted.name}: {', '.join(parts)}, in {duration(seconds)}.")
    if outcome.stopped:
        causes = {
            "": "A rung of the search waits for runs that are damaged or with another process",
            "budget": "The budget ended",
            "failures": "Too many runs failed",
        }
        cause = causes.get(outcome.stopped_by or "", "Interrupted")
        typer.echo(f"{cause}; what was trained is saved, and the same command goes on from there.")
        if outcome.abandoned:
            typer.echo(
                "An epoch was given up since it was not done in time; if that happens again, give "
                "a larger --budget, or a smaller --largest-stack, whose epochs take less time."
            )
    elif outcome.complete:
        typer.echo(f"Next: discretegrad report {wanted.words}")
