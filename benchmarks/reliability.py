"""The page of reliability figures, from what `make soak` counted (soak/, benchmarks/soak.csv)."""

from collections.abc import Sequence

import pages
from files import File

FILE = File(
    "soak.csv",
    (
        "kind", "part", "says", "unit", "cases", "attacks", "failed", "seconds", "reproductions",
        "duration", "processes", "device", "machine", "cpu", "cores", "threads", "python", "torch",
        "triton", "discretegrad", "commit", "uncommitted_changes", "date", "command",
    ),
    part="kind",
)  # fmt: skip
_PLURALS = {"process": "processes"}


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page."""
    rows = results.rows
    return {
        "provenance": pages.provenance([row | {"shape": row["part"]} for row in rows]),
        "figures": pages.table(rows, "what holds", _COLUMNS),
        "findings": _findings(rows),
    }


def counted(unit: str, number: int) -> str:
    """As in ``1,204 kills``."""
    return f"{number:,} {unit if number == 1 else _PLURALS.get(unit, f'{unit}s')}"


_COLUMNS = {
    "what holds": lambda row: row["says"],
    "kind": lambda row: f"`{row['kind']}`",
    "cases": lambda row: f"{int(row['cases']):,}",
    "attacks": lambda row: counted(row["unit"], int(row["attacks"])),
    "failed": lambda row: f"{int(row['failed']):,}",
}


def _findings(rows: Sequence[pages.Row]) -> str:
    commands = [x for row in rows for x in row["reproductions"].split("; ") if x]
    if not rows:
        return pages.NOT_MEASURED
    if not commands:
        return "Nothing was found."
    return "These commands show what was found:\n\n```bash\n" + "\n".join(commands) + "\n```"


PAGE = pages.Page(pages.DOCS / "reliability.md", (FILE.name,), blocks)
