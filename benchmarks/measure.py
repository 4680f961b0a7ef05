"""What the benchmarks share: memory on a CPU, spreads, the file of results, ReinMax's formula."""

import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the memory profiler is chatty otherwise

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import provenance


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


def reinmax_formula(logits: Tensor, g: Tensor, z: Tensor, tau: float) -> Tensor:
    """``2 J(m) g - J(p) g / 2`` for the sample z, written out apart from the library."""
    m = ((logits / tau).softmax(-1) + z) / 2
    return 2 * _jacobian_product(m, g) - _jacobian_product(logits.softmax(-1), g) / 2


def _jacobian_product(q: Tensor, g: Tensor) -> Tensor:
    return q * g - q * (q * g).sum(-1, keepdim=True)
