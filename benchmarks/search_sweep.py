"""Searches on random pixels, for benchmarks/search.py: they cost what searches on images do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from discretegrad_lab import Metric, Recipe, Run, Task
from discretegrad_lab.tasks.nas.benchmark import COLUMNS, Benchmark, Entry
from discretegrad_lab.tasks.nas.cells import CELLS, from_number
from discretegrad_lab.tasks.nas.config import Search
from discretegrad_lab.tasks.nas.images import Halves, Labelled
from discretegrad_lab.tasks.nas.model import LOSS, SearchModel, memory

SIDE = 32


class TimedSearch(Search):
    """A search that is made to be timed."""

    task: ClassVar[str] = "timed-search"


def noise(count: int) -> Labelled:
    """Random pixels and labels."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, SIDE, SIDE), generator=generator)
    return Labelled(pixels.to(torch.uint8), torch.randint(10, (count,), generator=generator))


def model(runs: list[Any], device: torch.device, data: Path | None) -> SearchModel:
    """The model of the lab, on those, with a table of zeros."""
    zeros = dict.fromkeys(COLUMNS, 0.0)
    cells = {
        cell: Entry(n, cell, 1, zeros) for n, cell in enumerate(map(from_number, range(CELLS)))
    }
    half = noise(runs[0].images)
    return SearchModel(runs, device, images=Halves(half, half), benchmark=Benchmark(cells))


TASK = Task(TimedSearch, model, (Metric(LOSS, "loss"),), memory)


def build(estimator: Any, seed: int) -> Iterator[Run]:
    """A search of 600 steps."""
    yield TimedSearch(estimator=estimator, seed=seed, tf32=True, images=50 * 64, epochs=12)


RECIPE = Recipe("timed-search", "Timed", TASK, build, (0,), ("reinmax",), (LOSS,))
