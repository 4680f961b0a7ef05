"""Time architecture searches on a GPU: several processes of the lab beside a plain loop.

A run-step is one step of one search: an update of the weights, then one of the architecture. The
plain loop is one search as anybody would write it, after the released code: modules of torch.nn,
the chosen operation times its weight plus the weights of the others, the index of each edge asked
from the device where it is needed, torch.optim.SGD and Adam, float32 throughout. Both train on
random pixels, which cost as much as images. The lab's time is taken while all processes train: from
when the last of them has done an epoch until the first one ends. For each number of processes a
line is added to the file, so a run that is cut short keeps what it has.

examples:
  PYTHONPATH=src python benchmarks/search.py --output FOLDER       about four minutes on an H200
  PYTHONPATH=src python benchmarks/search.py --processes 12 --gradient full
  PYTHONPATH=src python benchmarks/search.py --device cpu --quick   does it run?
"""

import argparse
import csv
import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import discretegrad
from discretegrad_lab import Listener, Run, load_recipes
from discretegrad_lab.runs import mps
from discretegrad_lab.runs.environment import describe, device_name
from discretegrad_lab.runs.processes import execute
from discretegrad_lab.tasks.nas.cells import EDGES

SWEEP = Path(__file__).with_name("search_sweep.py")
NAME = "search.csv"
PROCESSES = (1, 4, 12, 16)


# the plain loop


class Operation(nn.Module):
    """ReLU, convolution, batch norm."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, width, kernel, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(width, affine=False, track_running_stats=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        y: Tensor = self.layers(x)
        return y


class Nothing(nn.Module):
    """Zeros."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return x.mul(0.0)


class PlainCell(nn.Module):
    """Five operations on each of six edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edges = nn.ModuleList(
            nn.ModuleList(
                [
                    Nothing(),
                    nn.Identity(),
                    Operation(width, 1),
                    Operation(width, 3),
                    nn.AvgPool2d(3, 1, 1, count_include_pad=False),
                ]
            )
            for _ in EDGES
        )

    def forward(self, x: Tensor, z: Tensor, index: Tensor) -> Tensor:
        """The last node."""
        nodes = [x]
        for node in (1, 2, 3):
            total: Any = 0
            for edge, (end, start) in enumerate(EDGES):
                if end == node:
                    chosen = index[edge].item()
                    operations: Any = self.edges[edge]
                    for number, operation in enumerate(operations):
                        weight = z[edge, number]
                        if number == chosen:
                            total = total + weight * operation(nodes[start])
                        else:
                            total = total + weight
            nodes.append(total)
        return nodes[-1]


class Halve(nn.Module):
    """A residual block that halves the height and the width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Half the height and width."""
        y: Tensor = self.block(x) + self.shortcut(x)
        return y


class PlainSearch:
    """One search."""

    def __init__(self, run: Any, device: torch.device) -> None:
        widths = [run.channels * 2**stage for stage in range(3)]
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0])
        )
        layers: list[nn.Module] = []
        for stage, width in enumerate(widths):
            layers += [Halve(widths[stage - 1], width)] if stage else []
            layers += [PlainCell(width) for _ in range(run.cells)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU())
        self.classifier = nn.Linear(widths[-1], 10)
        modules = nn.ModuleList([self.stem, self.layers, self.head, self.classifier]).to(device)
        self.alpha = nn.Parameter(1e-3 * torch.randn(6, 5, device=device))
        self.weights = torch.optim.SGD(
            modules.parameters(), 0.025, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        self.architecture = torch.optim.Adam(
            [self.alpha], 3e-4, betas=(0.5, 0.999), weight_decay=run.decay
        )
        shape = (run.batch, 3, 32, 32)
        self.images = torch.randn(shape, device=device)
        self.labels = torch.randint(10, (run.batch,), device=device)

    def step(self) -> None:
        """Both updates; unsampled operations keep gradients of zero."""
        for optimiser in (self.weights, self.architecture):
            self.weights.zero_grad(set_to_none=False)
            self.architecture.zero_grad(set_to_none=False)
            z = discretegrad.reinmax(self.alpha)
            index = z.argmax(-1)
            x = self.stem(self.images)
            for layer in self.layers:
                x = layer(x, z, index) if isinstance(layer, PlainCell) else layer(x)
            logits = self.classifier(self.head(x).mean((2, 3)))
            nn.functional.cross_entropy(logits, self.labels).backward()
            optimiser.step()


def plain_seconds(run: Any, device: torch.device, steps: int) -> float:
    """The median time of a step."""
    precision = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        loop, times = PlainSearch(run, device), []
        for number in range(steps + 5):
            begin = time.perf_counter()
            loop.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number >= 5:
                times.append(time.perf_counter() - begin)
    finally:
        torch.backends.cudnn.allow_tf32 = precision
    return statistics.median(times)


# the lab


class Clock(Listener):
    """When epochs were done, by run."""

    def __init__(self) -> None:
        self.times: dict[Run, list[float]] = {}
        self.present: tuple[Run, ...] = ()

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """The next epochs are of these."""
        self.present = runs

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Note the time."""
        for run in self.present:
            self.times.setdefault(run, []).append(time.perf_counter())


def lab_seconds(runs: Sequence[Run], processes: int, device: torch.device) -> float:
    """Of a run-step, while all processes train; NaN if they never do at the same time."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        execute(runs, folder, processes=processes, device=device, listener=clock)
    begin = max(times[0] for times in clock.times.values())
    end = min(times[-1] for times in clock.times.values())
    epochs = sum(sum(begin < t <= end for t in times) for times in clock.times.values())
    # where the first one ends before the last one has begun, there is no such time
    return (end - begin) / (epochs * runs[0].steps_per_epoch) if epochs else math.nan


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, nargs="+", default=PROCESSES)
    parser.add_argument("--gradient", choices=("gdas", "full"), default="gdas")
    parser.add_argument("--epochs", type=int, default=12, help="of 50 steps each")
    parser.add_argument("--output", type=Path, default=Path("output/benchmarks"))
    parser.add_argument("--commit", default="", help="of this tree, where git cannot say")
    parser.add_argument("--quick", action="store_true", help="a rehearsal in miniature")
    options = parser.parse_args()
    device = torch.device(options.device)
    (recipe,) = load_recipes(SWEEP)
    changes: dict[str, Any] = {"gradient": options.gradient, "epochs": options.epochs}
    if options.quick:
        changes |= {"channels": 2, "cells": 1, "images": 16, "batch": 8, "epochs": 3}
    runs = [
        dataclasses.replace(run, **changes)
        for run in recipe.runs(seeds=range(max(options.processes)))
    ]
    environment = describe(device, tf32=True)
    with mps.shared_gpu(str(device)) as why_not:
        service = why_not or ("yes" if device.type == "cuda" else "no GPU")
    plain = plain_seconds(runs[0], device, 2 if options.quick else 20)
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for count in (0, *options.processes):
        seconds = lab_seconds(runs[:count], count, device) if count else plain
        rows.append(
            {
                "provider": f"{count} processes" if count else "plain loop",
                "gradient": options.gradient if count else "gdas",
                "milliseconds_per_run_step": f"{1000 * seconds:.4g}",
                "speedup": f"{plain / seconds:.4g}",
                "mps": service if count else "",
                "device": device_name(device),
                "torch": torch.__version__,
                "commit": options.commit or environment.get("commit") or "unknown",
            }
        )
        print(*rows[-1].values(), sep=", ", flush=True)
        with (options.output / NAME).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
