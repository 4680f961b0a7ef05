"""The table of NATS-Bench: what every cell reaches after 200 epochs, averaged over its seeds."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..data import DataError, read_file
from .cells import CELLS, Cell, from_text

FILE = "topology-200-epochs.csv.gz"
COLUMNS = {
    "validation": "cifar10_val",
    "test": "cifar10_test",
    "validation_cifar100": "cifar100_val",
    "test_cifar100": "cifar100_test",
    "validation_imagenet16": "imagenet16_val",
    "test_imagenet16": "imagenet16_test",
}
"""Accuracies in percent by the name of a metric, with their names in the file."""


class Entry(NamedTuple):
    """A cell of the table."""

    number: int
    """As the benchmark counts cells."""
    cell: Cell
    seeds: int
    """How many trainings the numbers are the means of."""
    accuracies: Mapping[str, float]
    """By the names of ``COLUMNS``."""


@dataclass(frozen=True)
class Benchmark:
    """All cells of a table, which may be a part of the space."""

    entries: Mapping[Cell, Entry]

    def __getitem__(self, cell: Cell) -> Entry:
        if cell not in self.entries:
            raise ValueError(f"expected a cell of the table, got {cell}, which it does not have")
        return self.entries[cell]

    def best(self, column: str) -> Entry:
        """The cell with the highest accuracy."""
        return max(self.entries.values(), key=lambda entry: entry.accuracies[column])

    def rank(self, cell: Cell, column: str) -> int:
        """1 for the best cell; cells that are equally good have the same rank."""
        own = self[cell].accuracies[column]
        return 1 + sum(entry.accuracies[column] > own for entry in self.entries.values())

    def median(self, column: str) -> float:
        """What half of the cells exceed."""
        values = sorted(entry.accuracies[column] for entry in self.entries.values())
        return values[len(values) // 2]

    def random_search(
        self, column: str, *, tries: int, by: str = "validation"
    ) -> tuple[float, float]:
        """Mean and standard deviation of what random search finds.

        It draws ``tries`` cells, each like the others, and takes the one that is best in the
        column ``by`` of the table. Both numbers are exact: the cell of rank r from below is taken
        with probability (r^k - (r-1)^k) / n^k.
        """
        if tries < 1:
            raise ValueError(f"expected a positive number of tries, got {tries}")
        order = sorted(self.entries.values(), key=lambda entry: entry.accuracies[by])
        n = len(order)
        shares = [(r / n) ** tries - ((r - 1) / n) ** tries for r in range(1, n + 1)]
        values = [entry.accuracies[column] for entry in order]
        mean = math.fsum(share * x for share, x in zip(shares, values, strict=True))
        variance = math.fsum(
            share * (x - mean) ** 2 for share, x in zip(shares, values, strict=True)
        )
        return mean, math.sqrt(variance)


def load(directory: Path | None = None) -> Benchmark:
    """The table in the data directories.

    Raises:
        DataError: If the file is in none of them, or is damaged.
    """
    benchmark = parse(read_file("nats-bench", FILE, directory))
    if len(benchmark.entries) != CELLS:
        raise DataError(f"expected {CELLS} cells in {FILE}, got {len(benchmark.entries)}")
    return benchmark


def parse(content: bytes) -> Benchmark:
    """The table of a compressed file; raises ``DataError`` if it is none."""
    entries: dict[Cell, Entry] = {}
    try:
        text = gzip.decompress(content).decode()
        for row in csv.DictReader(io.StringIO(text), strict=True):
            cell = from_text(row["arch"])
            accuracies = {name: float(row[column]) for name, column in COLUMNS.items()}
            if cell in entries or not all(0 <= x <= 100 for x in accuracies.values()):
                raise ValueError(f"the cell {row['arch']} twice, or accuracies that are none")
            entries[cell] = Entry(int(row["index"]), cell, int(row["n_seeds"]), accuracies)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, csv.Error) as error:
        raise DataError(
            f"expected a table of NATS-Bench, {FILE}, got one that cannot be read: {error}; put a "
            "whole copy of it in its place"
        ) from error
    return Benchmark(entries)
