"""Attacks on the lab: its processes killed, its files damaged, its output closed.

Most processes are forked from one that has imported everything, which takes a tenth of the time of
a start from nothing; what they run is the command ``discretegrad`` itself.
"""

import functools
import itertools
import json
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from discretegrad_lab.cli import app  # noqa: F401  (what a forked command needs is imported here)
from discretegrad_lab.runs import cluster, execute  # noqa: F401
from discretegrad_lab.runs.store import Store
from discretegrad_lab.watch import board, json_lines  # noqa: F401
from test_lab_execute import results

from . import ROOT
from .kinds import Unsuitable, kind
from .sweep import RECIPE

SWEEP = ROOT / "soak" / "sweep.py"
RUNS = tuple(RECIPE.runs())
TIME_LIMIT = 120.0
"""Seconds after which a command hangs."""
SIGNALS = ("KILL", "TERM", "HUP")
SEEDS = range(100_000)
FILES = ("status", "config", "metrics", "environment", "checkpoint")
OUTPUTS = ("open", "closed", "full", "gone")
DAMAGES = ("flip", "cut", "grow", "zero", "delete", "swap", "directory", "loop", "pipe")


# commands

_NUMBERS = itertools.count()


class Command:
    """A command line that runs in a process of its own."""

    def __init__(self, folder: Path, *words: object, fresh: bool = False, ends: str = "") -> None:
        number = next(_NUMBERS)
        self.errors, self.output = folder / f"errors-{number}", folder / f"output-{number}"
        arguments = [str(word) for word in words]
        self._process: Any
        if fresh or ends:
            command = shlex.join([sys.executable, "-m", "discretegrad_lab", *arguments])
            paths = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"
            line = f"exec {command} >{self.output} 2>{self.errors} {ends}"
            self._process = subprocess.Popen(
                ["bash", "-c", line], cwd=folder, env={**os.environ, "PYTHONPATH": paths}
            )
        else:
            self._process = _context().Process(
                target=_command, args=(arguments, folder, self.output, self.errors)
            )
            self._process.start()

    def stop(self, name: str) -> bool:
        """Send a signal; whether it still ran."""
        runs = self.code() is None
        if runs:
            os.kill(self._process.pid, getattr(signal, f"SIG{name}"))
        return runs

    def code(self) -> int | None:
        """The exit code, once there is one."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        code: int | None = self._process.exitcode
        return code

    def wait(self, *codes: int) -> int:
        """Until it ends, in one of these ways and without a traceback."""
        deadline = time.perf_counter() + TIME_LIMIT
        while (code := self.code()) is None:
            if time.perf_counter() > deadline:
                self.stop("KILL")
                raise AssertionError(f"a command hangs: {self.said()}")
            time.sleep(0.005)
        said = self.said()
        assert "Traceback" not in said, said
        assert code in codes, f"expected an exit code of {codes}, got {code}: {said}"
        return code

    def said(self) -> str:
        """What it wrote to stderr, at most its end."""
        return self.errors.read_text(errors="replace")[-2000:] if self.errors.exists() else ""


@functools.cache
def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["soak.lab"])
    return context


def _command(arguments: list[str], folder: Path, output: Path, errors: Path) -> None:
    from discretegrad_lab.__main__ import main

    os.chdir(folder)
    for stream, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.argv = ["discretegrad", *arguments]
    main()


def train(folder: Path, *words: object, **options: Any) -> Command:
    """The command that trains the sweep, with a checkpoint after every epoch."""
    fixed = ("run", SWEEP, "--device", "cpu", "--runs", folder / "runs", "--checkpoint-every", "0s")
    return Command(folder, *fixed, *words, **options)


# what is undisturbed


class Whole(NamedTuple):
    """What training without a disturbance gives, and how long a forked command takes."""

    folder: Path
    results: dict[Any, Any]
    seconds: float


@functools.cache
def whole() -> Whole:
    """Trained once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    train(folder).wait(0)  # the first one starts the process that others are forked from
    shutil.rmtree(folder / "runs")
    began = time.perf_counter()
    train(folder).wait(0)
    seconds = time.perf_counter() - began
    return Whole(folder, results(Store(folder / "runs"), RUNS), seconds)


@functools.cache
def half() -> Path:
    """A store in which runs are on their way."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    command = train(folder)
    # of two runs: one of the damages is to swap their files
    while any(sum(path.name.startswith(name) for path in _files(folder)) < 2 for name in FILES):
        assert command.code() is None, "a command ended before it had saved a run on its way"
        time.sleep(0.001)
    command.stop("KILL")
    command.wait(-signal.SIGKILL)
    return folder


def _files(folder: Path) -> list[Path]:
    """Of runs: what a killed process has left besides is read by nobody."""
    # only these folders: one in the making may be gone by the time that it is looked into
    return sorted(path for run in RUNS for path in folder.glob(f"runs/*/{run.identity}/*"))


def prepare() -> None:
    """What every case compares with, made beforehand."""
    whole()
    half()


@contextmanager
def place() -> Iterator[Path]:
    """A folder for one case."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """What takes longer hangs."""

    def hangs(*_: object) -> None:
        raise AssertionError(f"it hangs: no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends_well(folder: Path) -> None:
    """The same command once more trains what is left, and the end is that of undisturbed runs."""
    for _ in range(5):
        # the locks of a killed process may outlive it for a moment: then others have its runs
        if train(folder).wait(0, 3) == 0:
            break
        time.sleep(1)
    assert results(Store(folder / "runs"), RUNS) == whole().results, "the ends differ"


# attacks


@kind(
    "lab", "runs go on after a kill and end bit for bit as undisturbed ones", "kill", 3.0,
    signal=SIGNALS, kills=(1, 2, 3, 5), largest=(6, 1, 4), start=("forked",) * 9 + ("fresh",),
    seed=SEEDS,
)  # fmt: skip
def kill(c: SimpleNamespace) -> int:
    """Processes stopped at random moments."""
    rng, stopped = random.Random(c.seed), 0
    with place() as folder:
        for _ in range(c.kills):
            command = train(folder, "--largest-stack", c.largest, fresh=c.start == "fresh")
            seconds = whole().seconds + (3.0 if c.start == "fresh" else 0.0)
            time.sleep(rng.uniform(0, seconds))
            stopped += command.stop(c.signal)
            # before it listens to signals, they end it at once
            command.wait(0, 130, -getattr(signal, f"SIG{c.signal}"))
            for run in RUNS:
                status = Store(folder / "runs").status(run)
                assert status.state != "damaged", status.reason
        ends_well(folder)
    return stopped


@kind(
    "lab", "several processes share a store: no run is lost or trained twice", "process", 2.0,
    processes=(2, 3, 4), kills=(0, 0, 1), largest=(6, 1, 2), seed=SEEDS,
)  # fmt: skip
def together(c: SimpleNamespace) -> int:
    """Several processes on one store, some of them killed."""
    rng = random.Random(c.seed)
    with place() as folder:
        commands = []
        for _ in range(c.processes):
            commands.append(train(folder, "--largest-stack", c.largest, "--json"))
            time.sleep(rng.uniform(0, 0.5 * whole().seconds))
        for command in commands[: c.kills]:
            command.stop("KILL")
        ended = [command.wait(0, 3, -signal.SIGKILL) for command in commands]
        finished: list[str] = []
        for command, code in zip(commands, ended, strict=True):
            if code >= 0:
                outcome = json.loads(command.output.read_text().splitlines()[-1])
                finished += outcome["finished"]
        assert len(finished) == len(set(finished)), "a run was trained twice"
        if not c.kills:
            assert len(finished) == len(RUNS), f"{len(finished)} of {len(RUNS)} runs were trained"
        ends_well(folder)
    return c.processes


@kind(
    "lab", "a damaged file is told and never used, and the other runs are as they were", "damage",
    how=DAMAGES, base=("whole", "half"), file=FILES, command=(False,) * 49 + (True,), seed=SEEDS,
)  # fmt: skip
def damage(c: SimpleNamespace) -> None:
    """One stored file damaged: whoever reads it is told, and the other runs are as they were."""
    rng = random.Random(c.seed)
    with place() as folder:
        shutil.copytree((whole().folder if c.base == "whole" else half()) / "runs", folder / "runs")
        before = _contents(Store(folder / "runs"))
        files = _files(folder)
        path = rng.choice([file for file in files if file.name.startswith(c.file)])
        _damage(path, c.how, files, rng)
        victims = [run for run in RUNS if run.identity == path.parent.name]
        with limited(10):
            told = _is_told(Store(folder / "runs"), before, victims[0])
        if c.command:
            train(folder, "--quiet").wait(1 if told else 0)
            others = [run for run in RUNS if run not in victims]
            expected = {run: whole().results[run] for run in others}
            assert results(Store(folder / "runs"), others) == expected


def _is_told(store: Store, before: dict[Any, dict[str, Any]], victim: Any) -> bool:
    """Whether a run is called damaged; raises if that is wrong, or if anybody else suffers."""
    after = _contents(store)
    for run, parts in before.items():
        for name, part in parts.items():
            got = after[run][name]
            if run != victim:
                assert got == part, f"{name} of another run: {got}"
            elif got != part:
                assert got == "refused", f"{name} was used although it is damaged"
    told = store.status(victim).state == "damaged"
    assert told or after == before, "nobody is told"
    listed = set(store.runs(damaged=[]))
    assert {*before} - {victim} <= listed, "other runs are not listed"
    return told


def _contents(store: Store) -> dict[Any, dict[str, Any]]:
    """Everything that can be read of every run; what is refused with a message is ``refused``."""
    return {
        run: {
            name: _refused(functools.partial(read, run))
            for name, read in (
                ("load", lambda run: _bytes(store.load(run))),
                ("metrics", lambda run: repr(store.metrics(run))),
                ("environment", store.environment),
            )
        }
        for run in RUNS
        if store.directory(run).exists()
    }


def _bytes(saved: Any) -> tuple[Any, ...]:
    state = {name: x.numpy().tobytes() for name, x in saved.state.items()}
    return saved.status, repr(saved.metrics), saved.environment, state


def _refused(read: Any) -> Any:
    try:
        return read()
    except (ValueError, OSError):
        return "refused"


def _damage(path: Path, how: str, files: list[Path], rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    position = rng.randrange(len(content))
    others = [file for file in files if file.suffix == path.suffix and file != path]
    if how == "flip":
        content[position] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[position:]
    elif how == "grow":
        content += content[: position + 1]
    elif how == "zero":
        content[position : position + 64] = bytes(len(content[position : position + 64]))
    elif how == "swap":
        content = bytearray(rng.choice(others).read_bytes())
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how == "loop":
        path.symlink_to(path)
    elif how == "pipe":
        os.mkfifo(path)
    elif how != "delete":
        path.write_bytes(content)


@kind(
    "lab", "training does not depend on what becomes of its output", "command", 0.5,
    stdout=OUTPUTS, stderr=OUTPUTS, mode=("", "--json", "--quiet"),
)  # fmt: skip
def output(c: SimpleNamespace) -> None:
    """Output closed, on a full disk, or into a pipe that nobody reads: training goes on."""
    ends = {"closed": "{}>&-", "full": "{}>/dev/full", "gone": "{}> >(exit)"}
    words = [ends[how].format(n) for n, how in ((1, c.stdout), (2, c.stderr)) if how in ends]
    if not words:
        raise Unsuitable
    with place() as folder:
        command = train(folder, *c.mode.split(), ends=" ".join(words))
        command.wait(0, 1)
        assert results(Store(folder / "runs"), RUNS) == whole().results, "not all was trained"


@kind(
    "lab", "several reports at once leave one whole folder, and a change in it is noticed",
    "process", how=DAMAGES[:5], processes=(1, 2, 3), seed=SEEDS,
)  # fmt: skip
def reports(c: SimpleNamespace) -> int:
    """Several processes write one folder of results, and a changed byte in it is noticed."""
    rng = random.Random(c.seed)
    words = (SWEEP, "--runs", whole().folder / "runs", "--results")
    with place() as folder:
        commands = [Command(folder, "report", *words, "results") for _ in range(c.processes)]
        for command in commands:
            command.wait(0)
        check = ("report", "--check", "--results", "results")
        Command(folder, *check).wait(0)
        # the page may be missing, since it is too large to be committed
        files = [x for x in folder.glob("results/*/*") if c.how != "delete" or x.suffix != ".html"]
        path = rng.choice(sorted(files))
        _damage(path, c.how, [], rng)
        Command(folder, *check).wait(1, 2)
    return c.processes + 1
