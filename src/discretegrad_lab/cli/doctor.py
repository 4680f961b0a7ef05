"""The command ``discretegrad doctor``: what a machine can do for the lab."""

from dataclasses import asdict
from pathlib import Path

import typer
from rich.text import Text

from . import common


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
    from .machine import parts_of_machine

    parts = list(parts_of_machine(runs, data))
    if as_json:
        typer.echo(to_json([asdict(part) for part in parts], indent=1))
    else:
        signs = {"x": Text("✗", "red"), "!": Text("!", "yellow"), " ": Text("✓")}
        rows = [(signs[part.sign], part.what, part.state, part.advice) for part in parts]
        common.print_table([""] * 4, rows, left=4)
    broken = [part.what for part in parts if part.broken]
    if broken:
        common.end(
            f"expected a machine that works, got trouble with {', '.join(broken)}", common.FAILED
        )
