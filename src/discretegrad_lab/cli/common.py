"""What all commands share: the application, its options, exit codes and how errors are told."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..report.document import printable
from ..tasks import EXAMPLE

if TYPE_CHECKING:
    from ..watch.json_lines import JsonLines

DONE, FAILED, USAGE, WORK_LEFT, INTERRUPTED = 0, 1, 2, 3, 130

_EXIT_CODES = (
    "[bold]Exit codes:[/] 0 done; 1 something failed, such as a damaged run or a check; 2 wrong "
    "usage or input, nothing was changed; 3 work is left, because the budget ended or another "
    "process has it; 130 interrupted, what was trained is saved, by a second Ctrl-C only up to the "
    "last checkpoint."
)
_REASONS = 5
"""Of many reasons, so many are told."""
ROOM = 1 << 20
"""Bytes of a disk: far less than any run takes, so that one with less is full."""


def examples(*lines: str) -> str:
    """The end of a help page."""
    return "\n\n".join(["[bold]Examples:[/]", *(f"  [cyan]{x}[/]" for x in lines), _EXIT_CODES])


app = typer.Typer(
    name="discretegrad",
    help=(
        "Train and report the experiments of the ReinMax paper (arXiv:2304.08612), or a sweep of "
        "your own choice.\n\nAn experiment is a [bold]recipe[/]: a list of training runs, by its "
        "name or in a Python file. Runs that are alike are trained together as one tensor program. "
        "Each has a directory with its configuration, metrics and checkpoint, so that a command "
        "that was stopped, or killed, goes on where it was when it is given again."
    ),
    epilog=examples(
        "discretegrad list",
        f"discretegrad run {EXAMPLE}",
        f"discretegrad report {EXAMPLE}",
        f"discretegrad plot {EXAMPLE}",
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Function = TypeVar("_Function", bound=Callable[..., None])


def command(group: typer.Typer, name: str, *lines: str) -> Callable[[_Function], _Function]:
    """Make a function a command whose help is its docstring and some examples."""

    def register(function: _Function) -> _Function:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        # some versions of typer keep the line breaks of a paragraph
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        group.command(name, help=text, epilog=examples(*lines))(function)
        return function

    return register


RECIPE = "A name that `discretegrad list` shows, or a Python file that defines RECIPE or RECIPES."
Recipes = Annotated[list[str] | None, typer.Argument(metavar="RECIPE", help=RECIPE)]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        metavar="SEEDS",
        help="How many, such as 5 for 0 to 4, or which, such as 0-4,7; a single one is 7-7.",
    ),
]
Estimators = Annotated[
    str | None,
    typer.Option("--estimators", metavar="NAMES", help="Some of them, such as reinmax,st."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUES",
        help="Other values of a field of the runs, such as tau=0.5,1,1.5; several options give "
        "all combinations. `discretegrad list RECIPE` shows the fields.",
    ),
]
RunsDirectory = Annotated[
    Path, typer.Option("--runs", metavar="DIR", help="Where the runs are stored.")
]
ResultsDirectory = Annotated[
    Path,
    typer.Option("--results", metavar="DIR", help="Tables and pages go to a folder in it."),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or cuda:1; auto takes a GPU if there is one.")
]
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where to look for data sets first; then in $DISCRETEGRAD_DATA and the user's cache.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what went wrong.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


class Refused(Exception):
    """A command that cannot be carried out; the message says why and what to do."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def explaining(events: "JsonLines | None" = None) -> Iterator[None]:
    """Turn what a user can put right into a paragraph and an exit code."""
    from ..runs.search import NotMeasured
    from ..runs.store import DamagedRun, NewerStore, StoreError
    from ..tasks.data import DataError
    from ..tasks.halving import OtherSearch

    try:
        yield
        return
    except Refused as error:
        message, code = str(error), error.code
    except (DataError, NewerStore, NotMeasured, OtherSearch) as error:
        message, code = str(error), USAGE
    except (DamagedRun, StoreError) as error:
        message, code = str(error), FAILED
    except OSError as error:
        if error.filename is None:
            raise
        message = (
            f"expected a file or directory that can be used, got {error.filename}: "
            f"{error.strerror}; choose another one, or put that right"
        )
        code = FAILED
    except KeyboardInterrupt:
        message, code = "interrupted; runs go on from their last checkpoints", INTERRUPTED
    if events is not None:
        events.event("error", message=message, exit_code=code)
    end(message, code)


@contextlib.contextmanager
def checking_input() -> Iterator[None]:
    """In here a ``ValueError`` is about what the user gave."""
    try:
        yield
    except ValueError as error:
        raise Refused(str(error)) from error


@contextlib.contextmanager
def files_in(directory: Path) -> Iterator[None]:
    """Explain what the file system refuses in a directory of results."""
    from ..runs.store import StoreError

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


def end(message: str, code: int) -> NoReturn:
    """Stop with a message and an exit code."""
    typer.echo(f"discretegrad: {printable(message)}", err=True)
    raise typer.Exit(code)


def tell(reasons: Sequence[str]) -> None:
    """Say the first reasons, and how many more there are."""
    for reason in reasons[:_REASONS]:
        typer.echo(f"discretegrad: {printable(reason)}", err=True)
    if len(reasons) > _REASONS:
        typer.echo(f"discretegrad: and {len(reasons) - _REASONS:,} more", err=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], left: int) -> None:
    """Print texts in columns, the first ``left`` of them flush left; empty headings stay out."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=any(headings))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(x)) if isinstance(x, str) else x for x in row))
    Console().print(table)


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
