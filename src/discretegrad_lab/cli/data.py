"""The commands ``discretegrad data fetch`` and ``discretegrad data check``."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from ..tasks import EXAMPLE_DATA
from . import common
from .selection import suggestion

data_app = typer.Typer(
    help="Fetch and check data sets.",
    epilog=common.examples("discretegrad data check", f"discretegrad data fetch {EXAMPLE_DATA}"),
    no_args_is_help=True,
)
common.app.add_typer(data_app, name="data")

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help=f"Data sets, such as {EXAMPLE_DATA}.")
]


@common.command(
    data_app,
    "fetch",
    "discretegrad data fetch",
    f"discretegrad data fetch {EXAMPLE_DATA} --data data",
)
def fetch(names: Names = None, directory: common.DataDirectory = None) -> None:
    """Download data sets from their public sources; without names those that recipes need."""
    from ..tasks import data

    with common.explaining():
        with common.checking_input():
            chosen = [_known(name) for name in names or _needed()]
        for name in chosen:
            try:
                with _ended_like_ctrl_c(), _bars() as tell:
                    files = data.fetch(name, directory, tell)
            except data.DataError as error:
                raise common.Refused(str(error), common.FAILED) from error
            for path in files:
                typer.echo(f"fetched {path}")
            if not files:
                typer.echo(f"{name} is there already")


@common.command(
    data_app, "check", "discretegrad data check", f"discretegrad data check {EXAMPLE_DATA}"
)
def check(names: Names = None, directory: common.DataDirectory = None) -> None:
    """Verify the checksums of data sets; without names of those that recipes need or that are
    there."""
    from ..tasks import data

    with common.explaining():
        with common.checking_input():
            chosen = dict.fromkeys(_known(name) for name in names or _needed())
        states = data.check(directory)
        if not names:
            chosen |= dict.fromkeys(file.data_set for file in states if file.state != "missing")
        files = [file for file in states if file.data_set in chosen]
        places = ("" if x.path is None else f"{x.path} {x.reason}".strip() for x in files)
        rows = [
            (file.data_set, file.file, file.state, place)
            for file, place in zip(files, places, strict=True)
        ]
        common.print_table(("data set", "file", "state", "where"), rows, left=4)
        bad = dict.fromkeys(file.data_set for file in files if file.state != "ok")
        if bad:
            raise common.Refused(
                f"expected whole data sets, got files of {' and '.join(bad)} that are missing or "
                f"damaged; run `discretegrad data fetch {' '.join(bad)}`",
                common.FAILED,
            )


def _needed() -> dict[str, None]:
    """Data sets of all recipes, but for those that cannot be fetched."""
    from ..tasks import recipes
    from ..tasks.data import DATA_SETS

    names = dict.fromkeys(name for recipe in recipes().values() for name in recipe.data)
    return {name: None for name in names if name in DATA_SETS and DATA_SETS[name].public}


def _known(name: str) -> str:
    from ..tasks.data import DATA_SETS

    if name not in DATA_SETS:
        raise ValueError(
            f"expected a data set of {', '.join(DATA_SETS)}, got {name!r}; "
            f"{suggestion(name, DATA_SETS) or 'choose one of these'}"
        )
    return name


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let other signals that end a process also clear away what is not complete."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _bars() -> "Iterator[Callable[[str, int, int | None], None] | None]":
    """A bar for each file on a terminal; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        numbers: dict[str, TaskID] = {}

        def tell(name: str, done: int, total: int | None) -> None:
            if name not in numbers:
                numbers[name] = bars.add_task(name)
            bars.update(numbers[name], completed=done, total=total)

        yield tell
