"""Whole runs: what metrics, checkpoints and progress add to the epochs of a bare stack."""

import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pages
from contest import STACK
from files import Row
from machine import TIME_OVER, RedGate, Setup, Unavailable, attempt, release
from rich.console import Console
from timing import block_seconds, rounded, spread

from discretegrad_lab import Listener, Run, Stack, Store, execute, stack_of_task
from discretegrad_lab.runs.listener import Together
from discretegrad_lab.watch.board import Board


class Timeline(Listener):
    """When the things of a whole run happened."""

    def __init__(self) -> None:
        self.first_epoch = self.trained = self.end = 0.0
        """By the clock, when the first epoch, the last one and everything was done."""
        self.epochs: list[float] = []
        self.checkpoints: list[float] = []

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """The first one also compiles and captures."""
        self.first_epoch = self.first_epoch or time.perf_counter()
        self.epochs.append(seconds)

    def checkpointed(self, epoch: int, seconds: float) -> None:
        """Training has waited for that."""
        self.checkpoints.append(seconds)

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """What is left to do is waiting for the disk."""
        self.trained = time.perf_counter()


class Repeats(NamedTuple):
    """How often the same is measured, since disks are noisy."""

    seconds: float = 20.0
    """Whole runs are repeated until they have taken so long ..."""
    most: int = 6
    """... but not more often than this."""
    bare: int = 8
    """Epochs without anything else, before a whole run and after it."""


def rows(cases: Mapping[str, Sequence[Run]], repeats: Repeats, setup: Setup) -> Iterator[Row]:
    """A row for each of the cases, which are given by their names."""
    for case, runs in cases.items():
        about = {"section": "overhead", "case": case, "provider": STACK, "members": len(runs)}
        numbers, status = attempt(partial(whole_run, runs, repeats, setup))
        release()
        yield about | {"status": status} | (numbers or {})


def whole_run(runs: Sequence[Run], repeats: Repeats, setup: Setup) -> Row:
    """Train and store runs from their beginning to their end, against epochs of a bare stack."""
    setup.check_time()
    # so many that none of those measured is one with a test
    longer = [replace(run, epochs=10**6) for run in runs]
    bare_stack = stack_of_task(longer, setup.device, None)
    bare_stack.advance()
    bare = bare_epochs(bare_stack, repeats, setup)
    begin, timelines = time.perf_counter(), [stored_run(runs, setup)]
    while len(timelines) < repeats.most and time.perf_counter() - begin < repeats.seconds:
        timelines.append(stored_run(runs, setup))
    bare += bare_epochs(bare_stack, repeats, setup)
    return shares(timelines, bare) | {"steps_per_epoch": bare_stack.steps_per_epoch}


def stored_run(runs: Sequence[Run], setup: Setup) -> Timeline:
    timeline = Timeline()
    setup.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=setup.folder) as folder:
        # a terminal that nobody looks at
        console = Console(file=io.StringIO(), force_terminal=True, width=100)
        left = setup.deadline - time.perf_counter()
        with Board(console) as board:
            outcome = execute(
                runs,
                Store(Path(folder)),
                device=setup.device,
                budget=max(left, 1.0) if math.isfinite(left) else None,
                listener=Together(board, timeline),
            )
            timeline.end = time.perf_counter()
    if outcome.stopped_by == "budget":
        raise Unavailable(TIME_OVER)
    if len(outcome.finished) < len(runs):
        raise RedGate(f"{len(runs) - len(outcome.finished)} runs did not finish")
    return timeline


def bare_epochs(stack: Stack, repeats: Repeats, setup: Setup) -> list[float]:
    stack.epoch = 1
    return [block_seconds(stack.advance, 1, setup) for _ in range(repeats.bare)]


def shares(timelines: Sequence[Timeline], bare: Sequence[float]) -> Row:
    """What a run of so many bare epochs would not have taken, as a share of what it took.

    What comes before its first epoch, and compiling and capturing in it, is left out on both sides.
    Each run is compared with each of the bare epochs; the parts are those of the median run, of two
    the slower one.
    """
    timelines = sorted(timelines, key=lambda x: x.end - x.first_epoch)
    timeline = timelines[len(timelines) // 2]
    epochs, middle = len(timeline.epochs), statistics.median(bare)
    after_first = timeline.end - timeline.first_epoch
    overheads = [
        1 - epochs * seconds / (x.end - x.first_epoch + seconds)
        for x in timelines
        for seconds in bare
    ]
    return {
        "rounds": len(timelines),
        "epochs": epochs,
        **{name: round(x, 5) for name, x in spread("overhead", overheads, digits=6).items()},
        "bare_epoch_seconds": rounded(middle),
        "run_seconds": rounded(after_first + middle),
        "epochs_seconds": rounded(sum(timeline.epochs[1:]) + middle),
        "checkpoint_seconds": rounded(sum(timeline.checkpoints)),
        "end_seconds": rounded(timeline.end - timeline.trained),
    }


# the page


def table(rows: Sequence[Row]) -> str:
    parts = ("run", "epochs", "checkpoint", "end")

    def part(name: str, row: Row) -> str:
        return f"{float(row[f'{name}_seconds']):.3f} s"

    def rest(row: Row) -> str:
        whole, *known = (float(row[f"{name}_seconds"]) for name in parts)
        return f"{whole - sum(known):.3f} s"

    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: row["case"],
        "members": lambda row: row["members"],
        "epochs": lambda row: row["epochs"],
        "times": lambda row: row["rounds"],
        "overhead": lambda row: f"{pages.interval(row, 'overhead', 0.01)} %",
    }
    headings = ("the run", "training", "waiting to save", "end")
    columns |= {x: partial(part, name) for x, name in zip(headings, parts, strict=True)}
    return pages.table(rows, "", columns | {"all else": rest})
