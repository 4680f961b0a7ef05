"""Two source trees side by side: the samplers of run.py on a CPU, each tree in its own process.

    python benchmarks/run.py --against OTHER/src [--only 400x8 3000x10] [--rounds 81] [--threads 2]

Both processes read the same list of cases, with the library of their tree. They take turns in every
round, in an order that is shuffled anew, so that a busy machine disturbs both alike. A speed is the
time of the other tree divided by that of this one, formed within each round: above 1 this tree is
faster. What both trees take from elsewhere (torch, PyPI reinmax) shows how far noise goes, and a
speed relative to torch is divided by that of F.gumbel_softmax in the same round. The ratio of the
fastest blocks suffers least where other programs run.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import run
import torch
from files import REHEARSED, ROOT, Row, write_csv
from machine import Setup
from pages import markdown, ratio, short
from timing import CALLS, block_seconds, compared, rounded, spread

LOSS = 0.95  # a sampler slower than this is named at the end
SERVE = "--serve"


def is_asked_for() -> bool:
    return SERVE in sys.argv or any(x.startswith("--against") for x in sys.argv)


def serve() -> None:
    """Time a block for each line of input: a shape, a sampler, calls and calls to warm up."""
    setup, works = Setup(torch.device("cpu")), {}
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for line in sys.stdin:
        shape, provider, calls, warmups = json.loads(line)
        if shape not in works:
            # one shape at a time stays in memory
            works = {shape: {work.provider: work for work in run.case_of(shape, setup).works}}
        work = works[shape].get(provider)
        if work is None:
            # the library of this tree does not have it
            print(math.nan, flush=True)
            continue
        for _ in range(warmups):
            work.call()
        print(block_seconds(work.call, calls, setup, CALLS), flush=True)


class Tree:
    """A process with the library of one source tree."""

    def __init__(self, source: Path, threads: int) -> None:
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "run.py"), SERVE],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, shape: str, provider: str, calls: int, warmups: int) -> float:
        """The median of a block of calls."""
        self.process.stdin.write(json.dumps([shape, provider, calls, warmups]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{provider} at {shape} failed in one of the trees, see above")
        return float(answer)


def compare(shape: str, trees: Sequence[Tree], rounds: int | None) -> Iterator[Row]:
    """A row for each sampler at a shape: this tree is the first of both."""
    rng, pace = random.Random(0), run.CASES[shape]
    names = [sampler.name for sampler in run.SAMPLERS]
    # the first call loads code
    first = {(name, tree): tree.seconds(shape, name, 1, 1) for name in names for tree in trees}
    names = [name for name in names if not any(math.isnan(first[name, tree]) for tree in trees)]
    pairs = [(name, tree) for name in names for tree in trees]
    times: dict[tuple[str, Tree], list[float]] = {pair: [] for pair in pairs}
    for number in range(rounds or pace.rounds):
        for name, tree in rng.sample(pairs, len(pairs)):
            estimate = min(first[name, each] for each in trees)
            if estimate < pace.slow_seconds or number < pace.slow_rounds:
                calls = max(1, min(pace.calls, round(pace.seconds / estimate)))
                warmups = int(estimate < pace.slow_seconds)
                times[name, tree].append(tree.seconds(shape, name, calls, warmups))
    speeds = {n: compared("speedup", *(times[n, tree] for tree in trees)) for n in names}
    for name in names:
        this, other = (times[name, tree] for tree in trees)
        relative = [x / y for x, y in zip(speeds[name], speeds[run.TORCH], strict=False)]
        yield {
            "shape": shape,
            "provider": name,
            "rounds": len(this),
            **spread("seconds", this),
            **spread("other_seconds", other),
            **spread("speedup", speeds[name]),
            **spread("speedup_relative", relative),
            "speedup_fastest": rounded(min(other) / min(this)),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if a sampler of this library is slower than in the other tree by more than 5 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, metavar="SRC", help="the other tree's folder src")
    parser.add_argument("--only", nargs="+", choices=list(run.CASES), default=list(run.CASES))
    parser.add_argument("--rounds", type=int, help="in place of those of run.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(SERVE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    if not (options.against / "discretegrad").is_dir():
        parser.error(f"expected a folder with discretegrad in it, got {options.against}")
    trees = [Tree(x.resolve(), options.threads) for x in (ROOT / "src", options.against)]
    rows = []
    try:
        for shape in options.only:
            for row in compare(shape, trees, options.rounds):
                rows.append(row)
                relative = f"{ratio(row, 'speedup_relative')} relative to torch"
                fastest = f"{short(row['speedup_fastest'])}x of the fastest blocks"
                speed = f"{ratio(row, 'speedup')}, {relative}, {fastest}"
                print(f"  {shape}: {row['provider']}: {speed}", flush=True)
    finally:
        for tree in trees:
            tree.process.communicate()
    path = REHEARSED / "against.csv"
    write_csv(path, list(rows[0]), rows)
    names = [sampler.name for sampler in run.SAMPLERS if sampler.ours]
    slower = [row for row in rows if row["provider"] in names and row["speedup"] < LOSS]
    lines = [[row["shape"], row["provider"], ratio(row, "speedup")] for row in slower]
    print(markdown(["slower here", "sampler", "speed"], lines) if slower else "nothing is slower")
    print(f"written: {path}")
    return 1 if slower else 0
