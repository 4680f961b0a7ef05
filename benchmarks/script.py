"""A benchmark as a script: its sections, its command line, and the files that it writes.

A section yields rows: by `measured` from cases (measure.py), or by `contest` from stacks beside a
plain loop (contest.py). Both take turns in the rounds of timing.py. The file of results is written
after each section and keeps the stored rows of the others; pages.py makes the page from it.
"""

import argparse
import math
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from files import REHEARSED, STORED, File, Row, write_section
from machine import Setup, about_run, is_red, release
from timing import copy_bandwidth

# the columns that a line of the log shows, where a row has them
LOGGED = (
    *("vectorize", "members", "seconds", "epoch_seconds", "run_seconds", "times_floor", "speedup"),
    *("speedup_torch", "speedup_pypi", "speedup_plain", "time_ratio", "overhead", "memory_ratio"),
    *("peak_extra_tensors", "beyond_bytes", "launches_forward", "launches_backward"),
)


@dataclass(frozen=True)
class Benchmark:
    """A script: what it measures, and where that is written."""

    script: str
    description: str
    """With examples at its end."""
    sections: Mapping[str, Callable[[Setup], Iterator[Row]]]
    file: File
    """Of all sections ..."""
    other_files: Mapping[str, File] = field(default_factory=dict)
    """... but of these."""
    devices: tuple[str, ...] = ("cuda", "cpu")
    """The first is the default; if that is a GPU, a CPU only rehearses, with --quick."""
    threads: int | None = None
    """That torch may use; as many as it likes if None."""
    limit_seconds: float = math.inf
    quick_sections: tuple[str, ...] = ()
    """What is small enough for a rehearsal; all if empty."""
    add_arguments: Callable[[argparse.ArgumentParser], object] = bool
    read_arguments: Callable[[argparse.Namespace], tuple[Any, list[str], Row]] | None = None
    """Data of the setup, flags of the recorded command, columns. ValueError: wrong arguments."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Measure the chosen sections; 1 if something is wrong."""
        options = self.parse(arguments)
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(0)
        begin = time.perf_counter()
        setup = Setup(
            torch.device(options.device),
            options.quick,
            deadline=begin + options.limit,
            folder=options.output,
            data=options.data,
        )
        columns = {column for section in options.only for column in self.files[section].columns}
        about = options.about
        if "copy_bandwidth" in columns:
            setup = setup._replace(bandwidth=copy_bandwidth(setup))
            print(f"copy bandwidth: {setup.bandwidth / 1e12:.3f} TB/s", flush=True)
            release()
        about = about_run(options, setup) | about
        done, broken = self.measure(options.only, setup, about)
        if "copy_bandwidth" in columns:
            about["copy_bandwidth_end"] = copy_bandwidth(setup)
            print(f"copy bandwidth at the end: {about['copy_bandwidth_end'] / 1e12:.3f} TB/s")
            for section, rows in done.items():
                self.write(options.output, section, [about | row for row in rows])
        for row in (row for rows in done.values() for row in rows if is_red(row)):
            broken.append(self.line(row))
        print(*broken, f"written: {options.output}, {time.perf_counter() - begin:.0f} s", sep="\n")
        if options.output == STORED:
            if setup.on_gpu:  # a machine with a GPU may lack what draws the pictures
                print("now write the pages: python benchmarks/table.py")
            else:
                subprocess.run([sys.executable, str(STORED / "table.py")], check=True)
        return 1 if broken else 0

    def measure(
        self, sections: Sequence[str], setup: Setup, about: Row
    ) -> tuple[dict[str, list[Row]], list[str]]:
        """The rows of each section, written as soon as it is done, and what broke off."""
        begin, broken = time.perf_counter(), []
        done: dict[str, list[Row]] = {section: [] for section in sections}
        for section, rows in done.items():
            print(f"{section} ({time.perf_counter() - begin:.0f} s)", flush=True)
            try:
                for row in self.sections[section](setup):
                    print(f"  {self.line(row)}", flush=True)
                    rows.append(row)
            except Exception:
                traceback.print_exc()
                broken.append(f"{section} broke off")
            self.write(setup.folder, section, [about | row for row in rows])
        return done, broken

    def line(self, row: Row) -> str:
        """A line of the log: what a row is about, and its numbers or why it has none."""
        where = [str(row[x]) for x in ("case", "shape", "dtype", "mode", "provider") if row.get(x)]
        numbers = [f"{column} {row[column]}" for column in LOGGED if row.get(column, "") != ""]
        is_ok = row.get("status", "ok") == "ok"
        return f"{', '.join(where)}: {', '.join(numbers) if is_ok else row['status']}"

    def write(self, folder: Path, section: str, rows: Sequence[Row]) -> None:
        """Replace the rows of a section; in a file without a status, if none of them is red."""
        file = self.files[section]
        if "status" not in file.columns:
            is_whole = not any(map(is_red, rows))
            rows = [row for row in rows if is_whole and row.get("status", "ok") == "ok"]
        if rows:
            order = [name for name in self.sections if self.files[name] == file]
            write_section(folder, file, order, section, rows)

    @property
    def files(self) -> dict[str, File]:
        """The file of each section."""
        return dict.fromkeys(self.sections, self.file) | self.other_files

    @property
    def by_device(self) -> bool:
        """Whether the sections are the devices, so that --device chooses one."""
        return set(self.sections) == set(self.devices)

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The options, and what follows from them."""
        parser = argparse.ArgumentParser(
            description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add, names = parser.add_argument, list(self.sections)
        if not self.by_device:
            text = f"sections to measure, of {', '.join(names)} (default: all)"
            add("--only", nargs="+", choices=names, metavar="SECTION", help=text)
        text = f"where (default: {self.devices[0]})"
        add("--device", choices=self.devices, default=self.devices[0], help=text)
        text = "miniature sizes and two rounds: does it run? not a measurement"
        add("--quick", action="store_true", help=text)
        text = f"begin no case later than that (default: {self.limit_seconds:g})"
        add("--limit", type=float, default=self.limit_seconds, metavar="SECONDS", help=text)
        text = f"that torch may use (default: {self.threads or 'as many as it likes'})"
        add("--threads", type=int, default=self.threads, help=text)
        text = "folder of the CSV (default: benchmarks; for a rehearsal output/benchmarks)"
        add("--output", type=Path, metavar="DIR", help=text)
        text = "the commit that this tree is an exact copy of, for a machine where git cannot tell"
        add("--commit", metavar="HASH", help=text)
        self.add_arguments(parser)
        options = parser.parse_args(arguments)
        gpu_only = self.devices[0] == "cuda"
        if options.threads is not None and options.threads < 1:
            parser.error(f"expected --threads of at least 1, got {options.threads}")
        if gpu_only and options.device == "cpu" and not options.quick:
            parser.error("a CPU would take hours; it only rehearses, with --quick")
        if options.device == "cuda" and not torch.cuda.is_available():
            parser.error("expected a CUDA device, torch finds none; --device cpu --quick rehearses")
        options.output = (options.output or (REHEARSED if options.quick else STORED)).resolve()
        if options.quick and options.output == STORED:
            parser.error("a rehearsal (--quick) is not written to benchmarks")
        chosen = [options.device] if self.by_device else options.only
        if not chosen and options.quick:
            chosen = self.quick_sections
        options.only = [name for name in names if name in (chosen or names)]
        try:
            options.data, flags, options.about = (
                self.read_arguments(options) if self.read_arguments else (None, [], {})
            )
        except ValueError as error:
            parser.error(str(error))
        options.command = self.command(options, flags)
        return options

    def command(self, options: argparse.Namespace, flags: Sequence[str]) -> str:
        """From the options, so that no path of this machine is recorded."""
        parts = [f"python {self.script}", *flags]
        parts += [f"--device {options.device}"] if options.device != self.devices[0] else []
        parts += ["--quick"] if options.quick else []
        if len(options.only) < len(self.sections) and not self.by_device:
            parts.append(f"--only {' '.join(options.only)}")
        parts += [f"--threads {options.threads}"] if options.threads != self.threads else []
        return " ".join(parts)
