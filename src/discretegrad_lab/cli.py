"""The command line ``discretegrad``.

What it needs is imported where it is used: torch takes seconds, and help should not.
"""

import contextlib
import importlib.util
import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from .arguments import (
    find_device,
    find_recipe,
    parse_budget,
    parse_estimators,
    parse_seeds,
    suggestion,
)
from .doctor import ROOM, examine, many

if TYPE_CHECKING:
    from .config import Run
    from .display import Json
    from .execute import Estimate, Listener, Outcome
    from .recipes import Recipe
    from .results import Results
    from .store import Store
    from .tensorboard import EventFiles

DONE, FAILED, USAGE, WORK_LEFT, INTERRUPTED = 0, 1, 2, 3, 130

_EXIT_CODES = (
    "[bold]Exit codes:[/] 0 done; 1 something failed, such as a damaged run or a check; 2 wrong "
    "usage or input, nothing was changed; 3 work is left, because the budget ended or another "
    "process has it; 130 interrupted, what was trained is saved, by a second Ctrl-C only up to the "
    "last checkpoint."
)
_REASONS = 5  # to say of many
_WIDE = 200  # columns of a table that is not shown on a terminal
_PAGE = "report.html"
_PICTURE = "curves.png"
_RECONSTRUCTIONS = "reconstructions.png"


def _examples(*lines: str) -> str:
    """The end of a help page."""
    return "\n\n".join(["[bold]Examples:[/]", *(f"  [cyan]{x}[/]" for x in lines), _EXIT_CODES])


app = typer.Typer(
    name="discretegrad",
    help=(
        "Train and report the experiments of the ReinMax paper (arXiv:2304.08612), or a sweep of "
        "your own choice.\n\nAn experiment is a [bold]recipe[/]: a list of training runs. Runs "
        "that are alike are trained together as one tensor program. Each has a directory with its "
        "configuration, metrics and checkpoint, so that a command that was stopped, or killed, "
        "goes on where it was when it is given again."
    ),
    epilog=_examples(
        "discretegrad list",
        "discretegrad run polynomial-headline",
        "discretegrad report polynomial-headline",
        "discretegrad plot polynomial-headline",
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="Fetch and check data sets.",
    epilog=_examples("discretegrad data check", "discretegrad data fetch mnist"),
    no_args_is_help=True,
)
app.add_typer(data_app, name="data")


_Function = TypeVar("_Function", bound=Callable[..., None])


def _command(group: typer.Typer, name: str, *examples: str) -> Callable[[_Function], _Function]:
    """Make a function a command whose help is its docstring and some examples."""

    def register(function: _Function) -> _Function:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        # some versions of typer keep the line breaks of a paragraph
        text = "\n\n".join(" ".join(one.split()) for one in paragraphs)
        group.command(name, help=text, epilog=_examples(*examples))(function)
        return function

    return register


class Engine(StrEnum):
    """Who trains the stacks."""

    local = "local"
    ray = "ray"


Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="SEEDS",
        help="How many, such as 5 for 0 to 4, or which, such as 0-4,7; a single one is 7-7.",
    ),
]
Estimators = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Some of them, such as reinmax,st.")
]
RunsDirectory = Annotated[
    Path, typer.Option("--runs", metavar="DIR", help="Where the runs are kept.")
]
ResultsDirectory = Annotated[
    Path,
    typer.Option("--results", metavar="DIR", help="Tables and pages go to a folder in it."),
]
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where to look for data sets first; then in $DISCRETEGRAD_DATA and the user's cache.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE", help="Names that `discretegrad list` shows."),
]


class Refused(Exception):
    """A command that cannot be carried out; the message says why and what to do."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def _explaining(events: "Json | None" = None) -> Iterator[None]:
    """Turn what a user can put right into a paragraph and an exit code."""
    from .data import DataError
    from .store import DamagedRun, NewerStore, StoreError

    try:
        yield
        return
    except Refused as error:
        message, code = str(error), error.code
    except (DataError, NewerStore) as error:
        message, code = str(error), USAGE
    except (DamagedRun, StoreError) as error:
        message, code = str(error), FAILED
    except KeyboardInterrupt:
        message, code = "interrupted; runs go on from their last checkpoints", INTERRUPTED
    if events is not None:
        events.event("error", message=message, exit_code=code)
    _end(message, code)


@contextlib.contextmanager
def _checking_input() -> Iterator[None]:
    """In here a ``ValueError`` is about what the user gave."""
    try:
        yield
    except ValueError as error:
        raise Refused(str(error)) from error


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"discretegrad: {message}", err=True)
    raise typer.Exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        from discretegrad import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """What comes before a command."""


# list


@_command(app, "list", "discretegrad list")
def list_recipes() -> None:
    """List the experiments: what they reproduce, what they cost and which data they need."""
    from .recipes import RECIPES

    console = Console()
    for recipe in RECIPES.values():
        needed = ", ".join(recipe.data) or "none"
        console.print(
            Text(recipe.name, "bold"), Text(f" {many(len(recipe.runs()), 'run')}, data: {needed}")
        )
        for line in (recipe.title, f"Reproduces {recipe.reproduces}; {recipe.cost}."):
            console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


# run


@_command(
    app,
    "run",
    "discretegrad run polynomial-headline --dry-run",
    "discretegrad run polynomial-curves --seeds 2 --estimators reinmax,st --device cpu",
    "discretegrad run vae-10x30 --budget 9m --tensorboard events",
    "discretegrad run polynomial-grids --engine ray --ray-address auto --runs /shared/runs",
    "discretegrad run polynomial-headline --json | jq .event",
)
def run(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name that `discretegrad list` shows.")
    ],
    seeds: Seeds = None,
    estimators: Estimators = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:1; auto takes a GPU if there is one.")
    ] = "auto",
    runs: RunsDirectory = Path("runs"),
    data: DataDirectory = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Save and stop in time, such as 90s, 9m or 1h30m."),
    ] = None,
    largest_stack: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Members at most; by default what fits."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done; changes nothing.")
    ] = False,
    engine: Annotated[
        Engine, typer.Option(help="Train in this process or on a Ray cluster.")
    ] = Engine.local,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a cluster, or auto; by default one is started."),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write TensorBoard event files too.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what went wrong.")] = False,
    json_lines: Annotated[
        bool,
        typer.Option("--json", help="A JSON object for each event on stdout; the last is outcome."),
    ] = False,
) -> None:
    """Train the runs of a recipe that are not trained yet.

    Runs that are done are skipped and those that were begun go on, so the same command can be given
    again at any time, and in several terminals at once.
    """
    from .display import Json

    events = Json(sys.stdout) if json_lines else None
    with _explaining(events):
        with _checking_input():
            wanted = _Wanted.of(
                recipe, seeds, estimators, device, runs, data, budget, largest_stack, engine
            )
            if ray_address is not None and engine is not Engine.ray:
                raise ValueError("expected --engine ray with --ray-address, got none; add it")
            if engine is Engine.ray and importlib.util.find_spec("ray") is None:
                raise ValueError(
                    "expected the package ray for --engine ray, got none; install it with "
                    '`pip install "discretegrad[ray]"`, or train with --engine local'
                )
            if quiet and json_lines:
                raise ValueError("expected one of --quiet and --json, got both; choose one")
        if dry_run:
            _show_plan(wanted, events)
            return
        with _checking_input():
            # the nodes of a cluster have their own
            if ray_address is None:
                wanted.check_data()
            wanted.store.check_room(ROOM)
            event_files = _event_files(tensorboard)
        began = time.perf_counter()
        with _display(wanted, events, quiet) as listener:
            silent = quiet or json_lines
            outcome = _train(wanted, ray_address, [*listener, *event_files], silent)
        problems = [files.problem for files in event_files if files.problem]
        code = _exit_code(outcome)
        if problems and code != INTERRUPTED:
            code = FAILED
        for problem in problems:
            typer.echo(f"discretegrad: {problem}", err=True)
        seconds = time.perf_counter() - began
        if events is not None:
            found = {**_outcome_fields(outcome), "problems": problems}
            events.event("outcome", **found, seconds=seconds, exit_code=code)
        else:
            _summarise(wanted, outcome, seconds, quiet)
        raise typer.Exit(code)


@dataclass(frozen=True)
class _Wanted:
    """What a command line asks to train, checked."""

    recipe: "Recipe"
    runs: "list[Run]"
    store: "Store"
    device: str
    data: Path | None
    budget: float | None
    largest_stack: int | None
    engine: Engine
    selection: dict[str, str | None]
    """Options that choose runs, as they were given."""

    @classmethod
    def of(
        cls,
        recipe: str,
        seeds: str | None,
        estimators: str | None,
        device: str,
        directory: Path,
        data: Path | None,
        budget: str | None,
        largest_stack: int | None,
        engine: Engine,
    ) -> "_Wanted":
        from .store import Store

        chosen = find_recipe(recipe)
        seconds = None if budget is None else parse_budget(budget)
        if directory.is_file():
            raise ValueError(
                f"expected a directory as --runs, got the file {directory}; choose one"
            )
        selection = {"--seeds": seeds, "--estimators": estimators}
        runs = _runs(chosen, seeds, estimators)
        if engine is Engine.local:
            device = find_device(device)
        elif device not in ("auto", "cpu", "cuda"):
            raise ValueError(
                f"expected the device auto, cpu or cuda with --engine ray, got {device!r}; Ray "
                "gives every stack a device of that kind"
            )
        return cls(
            chosen, runs, Store(directory), device, data, seconds, largest_stack, engine, selection
        )

    def check_data(self) -> None:
        """Raise ``DataError`` if the recipe's data are missing or damaged."""
        from .data import load_mnist

        if "mnist" in self.recipe.data:
            load_mnist(self.data)

    def again(self) -> str:
        """What other commands need to find these runs."""
        options = dict(self.selection)
        if self.store.root != Path("runs"):
            options["--runs"] = str(self.store.root)
        words = [word for name, x in options.items() if x is not None for word in (name, x)]
        return shlex.join([self.recipe.name, *words])


def _runs(recipe: "Recipe", seeds: str | None, estimators: str | None) -> "list[Run]":
    return recipe.runs(
        None if seeds is None else parse_seeds(seeds),
        None if estimators is None else parse_estimators(estimators),
    )


def _show_plan(wanted: _Wanted, events: "Json | None") -> None:
    """What ``run`` would do."""
    from .data import DataError
    from .display import duration, size
    from .execute import estimate

    device = find_device("auto") if wanted.device == "auto" else wanted.device
    with _checking_input():
        plan = estimate(
            wanted.runs, wanted.store, device=device, largest_stack=wanted.largest_stack
        )
    notes = _time_notes(wanted, plan, device)
    try:
        wanted.check_data()
    except DataError as error:
        notes.append(str(error))
    if events is not None:
        events.event("estimate", device=device, **_plan_fields(plan), notes=notes)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("stack")
    for heading in ("members", "from epoch", "steps", "memory", "time"):
        table.add_column(heading, justify="right")
    for stack in plan.stacks:
        table.add_row(
            _label(stack.runs),
            f"{len(stack.runs):,}",
            f"{stack.epoch}",
            f"{stack.steps:,}",
            size(stack.bytes),
            "?" if stack.seconds is None else duration(stack.seconds),
        )
    console = Console()
    if plan.stacks:
        console.print(table)
    seconds = _seconds(plan)
    time_left = "unknown" if seconds is None else f"about {duration(seconds)}"
    lines = [
        f"{wanted.recipe.name} on {device}: {many(plan.members, 'run')} to train in "
        f"{many(len(plan.stacks), 'stack')}, {len(plan.done)} done before, "
        f"{len(plan.damaged)} damaged.",
        f"Memory: {size(plan.bytes)} for the largest stack. Time: {time_left}. "
        "Nothing was changed.",
        *notes,
        *plan.damaged.values(),
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _seconds(plan: "Estimate") -> float | None:
    """Of all stacks, as far as known; others by their size, if one of the same task is known."""
    work: dict[str, float] = {}
    known: dict[str, tuple[float, float]] = {}
    for stack in plan.stacks:
        run = stack.runs[0]
        one = float(stack.steps * stack.bytes)
        work[run.task] = work.get(run.task, 0.0) + one
        if stack.seconds is not None:
            seconds, done = known.get(run.task, (0.0, 0.0))
            known[run.task] = seconds + stack.seconds, done + one
    if work.keys() - known.keys():
        return None
    return sum(known[task][0] / known[task][1] * amount for task, amount in work.items())


def _time_notes(wanted: _Wanted, plan: "Estimate", device: str) -> list[str]:
    measured = sum(stack.seconds is not None for stack in plan.stacks)
    if measured == len(plan.stacks):
        return []
    if _seconds(plan) is not None:
        return [f"The time is measured for {many(measured, 'stack')} and scaled for the others."]
    return [
        f"No runs like these were trained on {device} yet, so their speed is not known. Train for "
        f"a minute with `discretegrad run {wanted.again()} --budget 1m`, which loses no whole "
        "epoch, and ask again."
    ]


def _plan_fields(plan: "Estimate") -> dict[str, object]:
    return {
        "stacks": [
            {
                "runs": [one.identity for one in stack.runs],
                "epoch": stack.epoch,
                "steps": stack.steps,
                "bytes": stack.bytes,
                "seconds": stack.seconds,
            }
            for stack in plan.stacks
        ],
        "done": [one.identity for one in plan.done],
        "damaged": {one.identity: reason for one, reason in plan.damaged.items()},
        "members": plan.members,
        "steps": plan.steps,
        "bytes": plan.bytes,
        "seconds": _seconds(plan),
    }


def _label(runs: "Sequence[Run]") -> str:
    """The task of a stack, and the fields that are not as they are by default."""
    run = runs[0]
    changed = [
        f"{one.name.replace('_', ' ')} {value}"
        for one in fields(run)
        if one.name not in run.member_fields and (value := getattr(run, one.name)) != one.default
    ]
    return ", ".join([run.task, *changed])


@contextlib.contextmanager
def _display(wanted: _Wanted, events: "Json | None", quiet: bool) -> "Iterator[list[Listener]]":
    """Whoever shows the progress: nobody, JSON lines, a board on a terminal, or plain lines."""
    from .display import Board, Lines

    if quiet:
        yield []
        return
    shown: Json | Board | Lines
    if events is not None:
        shown = events
    else:
        console = Console(stderr=True)
        shown = Board(console, wanted.budget) if console.is_terminal else Lines(sys.stderr)
    with shown:
        yield [shown]


def _event_files(directory: Path | None) -> "list[EventFiles]":
    if directory is None:
        return []
    from .tensorboard import EventFiles

    return [EventFiles(directory)]


def _train(
    wanted: _Wanted, address: str | None, listeners: "Sequence[Listener]", silent: bool
) -> "Outcome":
    import torch

    from .display import Together

    options: dict[str, Any] = {
        "device": wanted.device,
        "data": wanted.data,
        "budget": wanted.budget,
        "largest_stack": wanted.largest_stack,
        "listener": Together(*listeners),
    }
    try:
        if wanted.engine is Engine.ray:
            from . import cluster

            try:
                return cluster.execute(wanted.runs, wanted.store.root, address=address, **options)
            except cluster.ClusterError as error:
                raise Refused(str(error), FAILED) from error
        from .execute import execute

        announce = None if silent else _announce
        return execute(wanted.runs, wanted.store, announce=announce, **options)
    except torch.OutOfMemoryError as error:
        raise Refused(
            f"expected memory for a single run on {wanted.device}, got: "
            f"{str(error).splitlines()[0]} Stop what else uses it, or choose another --device",
            FAILED,
        ) from error


def _announce(_: str) -> None:
    """Within the handler of a signal, where nothing but this is safe."""
    os.write(2, b"discretegrad: stopping after this epoch; once more to stop at once and lose it\n")


def _exit_code(outcome: "Outcome") -> int:
    if outcome.stopped_by not in (None, "budget"):
        return INTERRUPTED
    if outcome.damaged:
        return FAILED
    return WORK_LEFT if outcome.stopped or outcome.elsewhere else DONE


_GROUPS = ("finished", "diverged", "already", "stopped", "elsewhere")


def _outcome_fields(outcome: "Outcome") -> dict[str, object]:
    return {
        **{name: [one.identity for one in getattr(outcome, name)] for name in _GROUPS},
        "damaged": {one.identity: reason for one, reason in outcome.damaged.items()},
        "stopped_by": outcome.stopped_by,
        "abandoned": outcome.abandoned,
        "complete": outcome.complete,
    }


def _summarise(wanted: _Wanted, outcome: "Outcome", seconds: float, quiet: bool) -> None:
    from .display import duration

    words = ("finished", "diverged", "done before", "left", "with another process")
    parts = [
        f"{len(getattr(outcome, name)):,} {word}"
        for name, word in zip(_GROUPS, words, strict=True)
        if getattr(outcome, name)
    ]
    if outcome.damaged:
        parts.append(f"{len(outcome.damaged):,} damaged and left alone")
    if quiet:
        # others have heard of it when it was met
        _tell(list(outcome.damaged.values()))
        return
    typer.echo(f"{wanted.recipe.name}: {', '.join(parts)}, in {duration(seconds)}.")
    if outcome.stopped:
        cause = "The budget ended" if outcome.stopped_by == "budget" else "Interrupted"
        typer.echo(f"{cause}; what was trained is saved, and the same command goes on from there.")
        if outcome.abandoned:
            typer.echo(
                "An epoch was given up since it was not done in time; if that happens again, give "
                "a larger --budget, or a smaller --largest-stack, whose epochs take less time."
            )
    elif outcome.complete:
        typer.echo(f"Next: discretegrad report {wanted.again()}")


# report and plot


@_command(
    app,
    "report",
    "discretegrad report",
    "discretegrad report polynomial-curves --seeds 10",
    "discretegrad report --check",
)
def report(
    recipes: Names = None,
    seeds: Seeds = None,
    estimators: Estimators = None,
    runs: RunsDirectory = Path("runs"),
    results: ResultsDirectory = Path("results"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Only prove that the tables follow from the results there."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No tables here.")] = False,
) -> None:
    """Write what came out: tables beside the paper's numbers, claims, curves.

    Goes from the stored runs to CSV, Markdown and an HTML page in a folder for each recipe. Without
    names it takes the recipes that have a folder already and those whose runs are all done. Results
    in the folder are kept where a run is not stored here, or is not done, also of runs that were
    not asked for.
    """
    with _explaining():
        if check:
            _check_reports(recipes, results)
            return
        from .display import size
        from .files import write_whole
        from .page import render
        from .report import page, section, show, write
        from .results import read
        from .results import write as write_results
        from .store import Store

        store = Store(runs)
        damaged: list[str] = []
        with _checking_input(), _files(results):
            # all of them before the first is written
            gathered = {}
            for recipe in _to_report(recipes, store, results):
                folder, wanted = results / recipe.name, _runs(recipe, seeds, estimators)
                gathered[folder] = _gather(recipe, wanted, store, folder, damaged)
            for folder, found in gathered.items():
                write_results(found, folder)
                write(folder)
                # from the rounded numbers of the files, as a check would
                write_whole(folder / _PAGE, render(page([read(folder)])))
        # a pipe to a file or a pager needs no width of a terminal
        console = Console(width=None if sys.stdout.isatty() else _WIDE)
        for folder in () if quiet else gathered:
            show(section(read(folder)), console)
            total = sum(path.stat().st_size for path in folder.iterdir())
            typer.echo(f"Wrote {folder} ({size(total)}); open {folder / _PAGE}")
        if damaged:
            _tell(damaged)
            raise typer.Exit(FAILED)


def _to_report(names: Sequence[str] | None, store: "Store", results: Path) -> "list[Recipe]":
    from .recipes import RECIPES
    from .results import RUNS

    if names:
        return [find_recipe(name) for name in dict.fromkeys(names)]
    chosen = [
        recipe
        for recipe in RECIPES.values()
        if (results / recipe.name / RUNS).exists()
        or all(store.status(one, quick=True).done for one in recipe.runs())
    ]
    if not chosen:
        raise ValueError(
            f"expected a recipe whose runs are all done in {store.root}, or results in {results}, "
            "got none; name a recipe to report what there is of it, or train one with "
            "`discretegrad run`"
        )
    return chosen


def _gather(
    recipe: "Recipe", runs: "Sequence[Run]", store: "Store", folder: Path, damaged: list[str]
) -> "Results":
    """Stored runs, and what only the folder has."""
    from .results import gather, read

    found = gather(recipe, runs, store, read(folder), damaged)
    if all(row.state == "missing" for row in found.rows):
        raise ValueError(
            f"expected runs of {recipe.name} in {store.root}, got none; train them with "
            f"`discretegrad run {recipe.name}`, or say where they are with --runs"
        )
    return found


def _tell(reasons: Sequence[str]) -> None:
    """Say the first of them, and how many more there are."""
    for reason in reasons[:_REASONS]:
        typer.echo(f"discretegrad: {reason}", err=True)
    if len(reasons) > _REASONS:
        typer.echo(f"discretegrad: and {len(reasons) - _REASONS:,} more", err=True)


def _check_reports(names: Sequence[str] | None, results: Path) -> None:
    from .page import render
    from .report import check, page
    from .results import RUNS, read

    with _checking_input(), _files(results):
        folders = sorted(path.parent for path in results.glob(f"*/{RUNS}"))
        if names:
            raise ValueError("expected no recipe with --check, which looks at all; leave it out")
        if not folders:
            raise ValueError(
                f"expected results below {results}, got none; say where they are with --results"
            )
        difference = check(results)
        if difference:
            raise Refused(difference, FAILED)
        for folder in folders:
            path = folder / _PAGE
            if path.exists() and path.read_bytes() != render(page([read(folder)])).encode():
                raise Refused(
                    f"expected {folder.name}/{_PAGE} to follow from the results beside it, got "
                    f"another page; write it again with `discretegrad report {folder.name}`",
                    FAILED,
                )
    typer.echo(f"All tables of {many(len(folders), 'recipe')} follow from their results.")


@_command(app, "plot", "discretegrad plot", "discretegrad plot polynomial-curves --results results")
def plot(
    recipes: Names = None,
    results: ResultsDirectory = Path("results"),
    runs: RunsDirectory = Path("runs"),
    data: DataDirectory = None,
) -> None:
    """Draw the curves of a report as PNG files, and what trained models reconstruct.

    Takes the results that `discretegrad report` has written; without names all of them. Pictures
    of a VAE also need its runs and its data, and are left out where there are no finished runs.
    """
    with _explaining():
        if importlib.util.find_spec("matplotlib") is None:
            raise Refused(
                "expected the package matplotlib for plots, got none; install it with "
                '`pip install "discretegrad[lab]"`'
            )
        from .data import load_mnist
        from .page import Figure
        from .recipes import RECIPES
        from .report import section
        from .results import RUNS, read

        with _checking_input(), _files(results):
            names = dict.fromkeys(recipes or ()) or [
                name for name in RECIPES if (results / name / RUNS).exists()
            ]
            if not names:
                raise ValueError(
                    f"expected results in {results}, got none; write them with "
                    "`discretegrad report`"
                )
            chosen = [find_recipe(name) for name in names]
            for recipe in chosen:
                if not (results / recipe.name / RUNS).exists():
                    raise ValueError(
                        f"expected results in {results / recipe.name}, got none; write them with "
                        f"`discretegrad report {recipe.name}`"
                    )
            # matplotlib writes a cache the first time
            from .pictures import draw_reconstructions, finished
            from .plots import draw
            from .store import Store

            store = Store(runs)
            figures = {
                results / recipe.name: [
                    one
                    for one in section(read(results / recipe.name)).items
                    if isinstance(one, Figure)
                ]
                for recipe in chosen
            }
            damaged: list[str] = []
            models = {results / recipe.name: finished(recipe, store, damaged) for recipe in chosen}
            # before the first picture is drawn
            images = load_mnist(data) if any(models.values()) else None
            written = []
            for folder, panels in figures.items():
                draw(panels, folder / _PICTURE)
                written.append(folder / _PICTURE)
                if models[folder]:
                    path = folder / _RECONSTRUCTIONS
                    draw_reconstructions(models[folder], store, path, images=images)
                    written.append(path)
        for path in written:
            typer.echo(f"Wrote {path}")
        if damaged:
            _tell(damaged)
            raise typer.Exit(FAILED)


@contextlib.contextmanager
def _files(directory: Path) -> Iterator[None]:
    """Explain what the file system refuses in a directory of results."""
    from .store import StoreError

    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise Refused(
            f"expected to read and write in {directory}, got: {error.strerror or error}{where}; "
            "make room and see that you may write there, or choose another directory with "
            "--results",
            FAILED,
        ) from error


# data


DataNames = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Data sets, such as mnist.")
]


@_command(data_app, "fetch", "discretegrad data fetch", "discretegrad data fetch mnist --data data")
def fetch(
    names: DataNames = None,
    directory: DataDirectory = None,
) -> None:
    """Download data sets from their public sources; without names those that recipes need."""
    from .data import DataError
    from .data import fetch as fetch_data

    with _explaining():
        with _checking_input():
            chosen = [_data_set(name) for name in names or _needed()]
        for name in chosen:
            try:
                with _bars() as tell:
                    files = fetch_data(name, directory, tell)
            except DataError as error:
                raise Refused(str(error), FAILED) from error
            for path in files:
                typer.echo(f"fetched {path}")
            if not files:
                typer.echo(f"{name} is there already")


@_command(data_app, "check", "discretegrad data check", "discretegrad data check mnist")
def check_data(
    names: DataNames = None,
    directory: DataDirectory = None,
) -> None:
    """Verify the checksums of data sets; without names of those that recipes need or that are
    there."""
    from .data import check

    with _explaining():
        with _checking_input():
            chosen = dict.fromkeys(_data_set(name) for name in names or _needed())
        states = check(directory)
        if not names:
            chosen |= dict.fromkeys(one.data_set for one in states if one.state != "missing")
        found = [one for one in states if one.data_set in chosen]
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("data set", "file", "state", "where"):
            table.add_column(heading, overflow="fold")
        for one in found:
            where = "" if one.path is None else f"{one.path} {one.reason}".strip()
            table.add_row(*map(Text, (one.data_set, one.file, one.state, where)))
        Console().print(table)
        bad = dict.fromkeys(one.data_set for one in found if one.state != "ok")
        if bad:
            raise Refused(
                f"expected whole data sets, got files of {' and '.join(bad)} that are missing or "
                f"damaged; run `discretegrad data fetch {' '.join(bad)}`",
                FAILED,
            )


def _needed() -> dict[str, None]:
    """Data sets of all recipes."""
    from .recipes import RECIPES

    return dict.fromkeys(name for recipe in RECIPES.values() for name in recipe.data)


def _data_set(name: str) -> str:
    from .data import DATA_SETS

    if name not in DATA_SETS:
        raise ValueError(
            f"expected a data set of {', '.join(DATA_SETS)}, got {name!r}; "
            f"{suggestion(name, DATA_SETS) or 'choose one of these'}"
        )
    return name


@contextlib.contextmanager
def _bars() -> "Iterator[Callable[[str, int, int | None], None] | None]":
    """A bar for each file on a terminal; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield tell


# doctor


@_command(app, "doctor", "discretegrad doctor", "discretegrad doctor --runs /shared/runs")
def doctor(
    runs: RunsDirectory = Path("runs"),
    data: DataDirectory = None,
) -> None:
    """Say what this machine can do, and what to do about what it cannot."""
    findings = examine(runs, data)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("", no_wrap=True)
    for _ in range(3):
        table.add_column("", overflow="fold")
    for one in findings:
        sign = Text("✗", "red") if one.broken else Text("!", "yellow") if one.advice else Text("✓")
        table.add_row(sign, *map(Text, (one.what, one.found, one.advice)))
    Console().print(table)
    broken = [one.what for one in findings if one.broken]
    if broken:
        _end(f"expected a machine that works, got trouble with {', '.join(broken)}", FAILED)
