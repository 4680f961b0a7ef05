"""What the benchmarks share: options, memory on a CPU, spreads, targets, the file of results."""

import argparse
import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the memory profiler is chatty otherwise

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import provenance

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks"
QUICK_OUTPUT = ROOT / "output" / "benchmarks"


def add_sections_argument(parser: argparse.ArgumentParser, sections: Iterable[str]) -> None:
    sections = list(sections)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=sections,
        default=sections,
        metavar="SECTION",
        help=f"sections to measure, of {', '.join(sections)} (default: all)",
    )


def add_commit_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--commit",
        metavar="HASH",
        help="the commit that this tree is an exact copy of, for a machine where git cannot tell",
    )


def about_commit(given: str | None) -> dict[str, str]:
    """The commit that was given, or what git says."""
    commit = given or provenance.commit()
    changes = "yes" if not given and provenance.has_changes() else "no"
    return {
        "commit": commit,
        "uncommitted_changes": "unknown" if commit == "unknown" else changes,
    }


class Promise:
    """What every target is: a limit, and on which side of it a number should be."""

    column: str
    limit: float
    unit: float
    """What a limit of 1 is in the results."""

    @property
    def is_least(self) -> bool:
        """Whether more is better."""
        return self.column.startswith("speedup")

    def is_met(self, value: float) -> bool:
        """Whether the number keeps the promise."""
        value /= self.unit
        return value >= self.limit if self.is_least else value <= self.limit


def peak_bytes_on_cpu(step: Callable[[], object]) -> int:
    """Most memory alive at once while ``step`` runs, beyond what was there.

    Every allocation that torch makes is seen, also those inside an operation.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kept = step()
    del kept
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    live = peak = 0
    for change in changes:
        live += change["args"]["Bytes"]
        peak = max(peak, live)
    return peak


def spread(name: str, values: Sequence[float], digits: int) -> dict[str, float]:
    """Median and 20th and 80th percentile, with so many significant digits."""
    points = torch.tensor(values, dtype=torch.float64)
    quantiles = {"": 0.5, "_p20": 0.2, "_p80": 0.8}
    return {
        f"{name}{suffix}": float(f"{points.quantile(q).item():.{digits}g}")
        for suffix, q in quantiles.items()
    }


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows or none: a run that is cut off leaves the old file whole."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    provenance.write_whole(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def merged(
    path: Path, order: Sequence[str], section: str, rows: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The new rows of a section with the stored ones of the others, in the order of sections."""
    stored = read_csv(path) if path.exists() else []
    kept = [row for row in stored if row["section"] != section]
    return sorted([*kept, *rows], key=lambda row: order.index(row["section"]))


def reinmax_formula(logits: Tensor, g: Tensor, z: Tensor, tau: float) -> Tensor:
    """``2 J(m) g - J(p) g / 2`` for the sample z, written out apart from the library."""
    m = ((logits / tau).softmax(-1) + z) / 2
    return 2 * _jacobian_product(m, g) - _jacobian_product(logits.softmax(-1), g) / 2


def _jacobian_product(q: Tensor, g: Tensor) -> Tensor:
    return q * g - q * (q * g).sum(-1, keepdim=True)
