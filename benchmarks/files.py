"""Files of results, and their columns."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks"
REHEARSED = ROOT / "output" / "benchmarks"
# of a quantity that was measured in rounds: the ends of its columns, and what they hold
SPREAD = {"": 0.5, "_p20": 0.2, "_p80": 0.8}

# what is recorded of a GPU, and of how a row was made
ON_GPU = ("gpu", "l2_bytes", "copy_bandwidth", "copy_bandwidth_end", "python", "torch", "triton")
MADE = ("discretegrad", "commit", "uncommitted_changes", "date", "command")

Row = dict[str, Any]


class File(NamedTuple):
    """A CSV; a section replaces the rows that have its name in the column ``part``."""

    name: str
    columns: tuple[str, ...]
    part: str = "section"


def with_spread(*names: str) -> tuple[str, ...]:
    """The columns of quantities that have a median and percentiles."""
    return tuple(f"{name}{suffix}" for name in names for suffix in SPREAD)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows or none: a run that is cut off leaves the old file whole."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(path.name + ".partial")
    partly.write_text(text.getvalue(), encoding="utf-8", newline="")
    partly.replace(path)


def write_section(
    folder: Path, file: File, order: Sequence[str], section: str, rows: Sequence[Row]
) -> None:
    """The new rows of a section with the stored ones of the others, in the order of sections."""
    path = folder / file.name
    stored = read_csv(path) if path.exists() else []
    others = [row for row in stored if row[file.part] != section]
    places = {name: place for place, name in enumerate(order)}
    ordered = sorted([*others, *rows], key=lambda row: places.get(row[file.part], len(places)))
    write_csv(path, file.columns, ordered)
