"""The command ``discretegrad doctor``."""

from dataclasses import asdict
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import common
from .machine import examine


@common.command(
    common.app,
    "doctor",
    "discretegrad doctor",
    "discretegrad doctor --runs /shared/runs",
    "discretegrad doctor --json",
)
def doctor(
    runs: common.RunsDirectory = Path("runs"),
    data: common.DataDirectory = None,
    as_json: common.AsJson = False,
) -> None:
    """Say what this machine can do, and what to do about what it cannot."""
    from ..watch.json_lines import to_json

    parts = examine(runs, data)
    if as_json:
        typer.echo(to_json([asdict(part) for part in parts], indent=1))
    else:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
        table.add_column("", no_wrap=True)
        for _ in range(3):
            table.add_column("", overflow="fold")
        for part in parts:
            warning = Text("!", "yellow") if part.advice else Text("✓")
            sign = Text("✗", "red") if part.broken else warning
            table.add_row(sign, *map(Text, (part.what, part.state, part.advice)))
        Console().print(table)
    broken = [part.what for part in parts if part.broken]
    if broken:
        common.end(
            f"expected a machine that works, got trouble with {', '.join(broken)}", common.FAILED
        )
