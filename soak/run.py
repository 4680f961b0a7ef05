"""The command line: workers try cases until the time is over, and what they find is written."""

import argparse
import itertools
import multiprocessing
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import files
import machine
import reliability
import torch

from . import ROOT, cases, lab
from .kinds import KINDS, Kind, Unsuitable

PARTS = ("library", "lab")
SHRINK_SECONDS = {"library": 20.0, "lab": 60.0}
CONTEXT: BaseContext = multiprocessing.get_context("spawn")
HANG_SECONDS = 400.0
"""A case that takes longer, shrinking included, is a finding."""


class Report(NamedTuple):
    """What became of a case."""

    kind: str
    number: int
    attacks: int = 0
    seconds: float = 0.0
    problem: str = ""
    command: str = ""
    """What runs the smallest case that fails alike; empty if the same was found before."""
    suitable: bool = True


# workers


def attempt(kind: Kind, number: int, known: set[tuple[str, ...]]) -> Report:
    """Run a case; the first of its sort that fails is made smaller."""
    config, began = kind.pick(number), time.perf_counter()
    report = Report(kind.name, number)
    try:
        report = report._replace(attacks=kind.run(config))
    except Unsuitable:
        report = report._replace(suitable=False)
    except Exception as error:
        sort = (kind.name, str(next(iter(config.values()))), type(error).__name__)
        command, problem = "", error
        if sort not in known:
            known.add(sort)
            config, problem = kind.shrink(config, error, SHRINK_SECONDS[kind.part])
            command = kind.command(config)
        text = f"{type(problem).__name__}: {problem}"
        # a traceback says at its end what went wrong
        text = text if len(text) <= 1200 else f"{text[:300]} [...] {text[-900:]}"
        report = report._replace(attacks=1, problem=text, command=command)
    return report._replace(seconds=time.perf_counter() - began)


def work(names: Sequence[str], numbers: Iterator[int], seconds: float, parent: Connection) -> None:
    """In a process: always the kind that has had the least of its share of the time."""
    torch.set_num_threads(1)
    known: set[tuple[str, ...]] = set()
    used = dict.fromkeys(names, 0.0)
    if any(KINDS[name].part == "lab" for name in names):
        lab.prepare()
    end = time.perf_counter() + seconds
    total = {part: sum(KINDS[x].share for x in names if KINDS[x].part == part) for part in PARTS}
    shares = {name: KINDS[name].share / total[KINDS[name].part] for name in names}
    # at least one case of each kind
    while time.perf_counter() < end or not all(used.values()):
        name = min(names, key=lambda name: used[name] / shares[name])
        number = next(numbers)
        parent.send(Report(name, number))
        report = attempt(KINDS[name], number, known)
        used[name] += report.seconds
        parent.send(report)


class Worker:
    """A process that tries cases, and what is known about it."""

    def __init__(self, names: Sequence[str], numbers: Iterator[int], seconds: float) -> None:
        self.connection, child = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=work, args=(names, numbers, seconds, child))
        self._process.start()
        child.close()
        self.at: Report | None = None
        self.since = time.perf_counter()

    def receive(self) -> Report | None:
        """The report on a case that has ended; None if one has begun. EOFError: it is no more."""
        report: Report = self.connection.recv()
        ended = self.at is not None
        self.at, self.since = (None if ended else report), time.perf_counter()
        return report if ended else None

    def end(self, seconds: float) -> int | None:
        """Stop it if it has not ended after so long; its exit code."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()
        return self._process.exitcode


# the run


def soak(options: argparse.Namespace) -> list[Report]:
    """Every case that ended or hung, until the time is over."""
    begin = time.perf_counter()
    reports: list[Report] = []
    teams: list[list[str]] = [list(options.only)]
    parts = [[x for x in options.only if KINDS[x].part == part] for part in PARTS]
    if options.processes > 1 and all(parts):
        teams = parts

    def start(place: int, first: int) -> Worker:
        numbers = itertools.count(first, options.processes)
        return Worker(
            teams[place % len(teams)], numbers, begin + options.seconds - time.perf_counter()
        )

    workers = {p: start(p, options.first + p) for p in range(options.processes)}
    shown = time.perf_counter()
    while workers:
        ready = wait([worker.connection for worker in workers.values()], timeout=0.5)
        for place, worker in list(workers.items()):
            problem = ""
            if worker.connection in ready:
                try:
                    report = worker.receive()
                except EOFError:
                    code = worker.end(60)
                    del workers[place]
                    if code:
                        problem = f"the process died with the exit code {code}"
                else:
                    if report is not None:
                        reports.append(report)
                        show(report)
            elif time.perf_counter() - worker.since > HANG_SECONDS:
                worker.end(0)
                problem = f"it hangs: no end after {HANG_SECONDS:.0f} s"
            if problem:
                at, command = worker.at, options.command
                if at is None:  # between two cases
                    at = Report("none", options.first)
                else:
                    command = f"python -m soak --case {at.kind}-{at.number}"
                reports.append(at._replace(attacks=1, problem=problem, command=command))
                show(reports[-1])
                workers.pop(place, None)
                if time.perf_counter() < begin + options.seconds:
                    workers[place] = start(place, at.number + options.processes)
        terminal = sys.stderr.isatty()
        if time.perf_counter() - shown > (1 if terminal else 30):
            shown = time.perf_counter()
            line = (
                f"{time.perf_counter() - begin:.0f} of {options.seconds:.0f} s: {summary(reports)}"
            )
            print(f"\r{line} " if terminal else line, end="" if terminal else "\n", file=sys.stderr)
    return reports


def summary(reports: Sequence[Report]) -> str:
    """Counts in one line."""
    counts: dict[str, int] = {}
    for report in reports:
        if report.suitable and report.kind in KINDS:
            unit = KINDS[report.kind].unit
            counts[unit] = counts.get(unit, 0) + report.attacks
    attacks = ", ".join(reliability.counted(unit, number) for unit, number in counts.items())
    findings = sum(bool(report.problem) for report in reports)
    return f"{attacks or 'nothing yet'}; {findings:,} failed"


def show(report: Report) -> None:
    """Print a finding when it comes; one like an earlier one is only counted."""
    if report.command:
        print(
            f"\nFound by python -m soak --case {report.kind}-{report.number}\n  {report.problem}\n"
            f"The smallest case that fails alike:\n  {report.command}",
            flush=True,
        )


def rows(reports: Sequence[Report], about: dict[str, object]) -> list[dict[str, object]]:
    """A row for each kind."""
    table = []
    for name, kind in KINDS.items():
        own = [report for report in reports if report.kind == name and report.suitable]
        if own:
            commands = sorted({report.command for report in own if report.command})
            table.append(
                {
                    **about,
                    "kind": name,
                    "part": kind.part,
                    "says": kind.says,
                    "unit": kind.unit,
                    "cases": len(own),
                    "attacks": sum(report.attacks for report in own),
                    "failed": sum(bool(report.problem) for report in own),
                    "seconds": round(sum(report.seconds for report in own)),
                    "reproductions": "; ".join(commands),
                }
            )
    return table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, and what follows from them."""
    parser = argparse.ArgumentParser(
        prog="python -m soak",
        description=sys.modules[__package__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seconds", type=float, default=60.0, help="how long (default: 60)")
    add("--processes", type=int, default=1, help="workers at once (default: 1)")
    text = f"kinds of cases, of {', '.join(KINDS)}; or {' or '.join(PARTS)} (default: all)"
    add("--only", nargs="+", choices=[*KINDS, *PARTS], metavar="KIND", help=text)
    add("--first", type=int, help="number of the first case (default: another one every time)")
    add("--case", metavar="KIND-NUMBER", help="run this case alone")
    text = "run a case alone that has these values, and the simplest ones otherwise"
    add("--check", nargs="+", metavar=("KIND", "FIELD=VALUE"), help=text)
    text = "write the counts to benchmarks/soak.csv, which docs/reliability.md is made from"
    add("--record", action="store_true", help=text)
    text = "folder of soak.csv otherwise (default: output/soak)"
    add("--output", type=Path, default=ROOT / "output" / "soak", metavar="DIR", help=text)
    add("--commit", metavar="HASH", help="the commit of this tree, where git cannot tell")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.processes < 1:
        parser.error("expected positive numbers as --seconds and --processes")
    wanted = options.only or PARTS
    options.only = [x for x, kind in KINDS.items() if x in wanted or kind.part in wanted]
    if options.first is None:
        options.first = random.SystemRandom().randrange(10**9)
    options.single = None
    try:
        if options.check:
            kind = _kind(options.check[0])
            options.single = kind, kind.parse(options.check[1:])
        elif options.case:
            name, _, number = options.case.rpartition("-")
            options.single = _kind(name), _kind(name).pick(int(number))
    except ValueError as error:
        parser.error(str(error))
    words = ["python -m soak", f"--seconds {options.seconds:g}", f"--processes {options.processes}"]
    words += [f"--only {shlex.join(options.only)}"] if len(options.only) < len(KINDS) else []
    options.command = " ".join([*words, f"--first {options.first}"])
    return options


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise ValueError(f"expected a kind of case, one of {', '.join(KINDS)}, got {name!r}")
    return KINDS[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options say; 1 if something was found."""
    options = parse(arguments)
    torch.set_num_threads(1)
    if options.single:
        kind, config = options.single
        print(kind.command(config))
        kind.run(config)
        print("nothing is wrong")
        return 0
    print(options.command, flush=True)
    begin = time.perf_counter()
    about = machine.about_run(options, machine.Setup(torch.device(cases.DEVICE)))
    with (
        tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, TMPDIR=folder),  # of the workers, also those that are killed
    ):
        reports = soak(options)
    about |= {"duration": round(time.perf_counter() - begin), "processes": options.processes}
    path = (files.STORED if options.record else options.output) / reliability.FILE.name
    files.write_csv(path, reliability.FILE.columns, rows(reports, about))
    print(f"\n{summary(reports)}\nwritten: {path}")
    if options.record:
        print("now write the page: python benchmarks/table.py")
    return 1 if any(report.problem for report in reports) else 0
