"""Time stacks of training runs on a GPU, against a plain loop of one run and against its memory.

  polynomial   128 latents, batch 256, p = 2: run-steps per second of stacks
  overhead     what metrics, checkpoints and progress add to whole runs: of one estimator, and of
               Figure 1 as "discretegrad run polynomial-curves" trains it
  vae          the MNIST-VAE of the ReinMax paper, 8 categories x 4 latents, batch 100: time of a
               run-step in stacks of 1 to 320 members; at 160 also with five estimators
  bernoulli    the VAE with 200 Bernoulli variables, batch 100, binarised at every step: ReinMax
               and RODEO with two evaluations of the loss, RELAX with three

A run-step is one step of one member. Beside every stack, in the same rounds, runs the released
algorithm in plain PyTorch: one run, modules of torch.nn, ReinMax with stopped gradients as the
paper prints it, torch.optim.Adam, images that lie on the device, one step after the other; where a
stack has RODEO or RELAX, with the objects Rodeo and Relax of the library. All
times are on the wall clock, with the device idle at both ends. An epoch of a stack contains all
that training does: the order of the images, the random numbers, the mean loss. Before a stack is
timed it must have learned as much as the plain loop: a speedup is never reported on a red gate.

The CSV is written after each section and keeps the stored rows of the others; the page
docs/stack-benchmarks.md follows from it (python benchmarks/table.py). No stack is begun later than
150 seconds (--limit) after the start, the least important ones come last, and --only in a second
call measures a section again. DATA holds the folder mnist with its four files.

examples:
  PYTHONPATH=src python benchmarks/stacks.py --data DATA --commit HASH --output FOLDER
  PYTHONPATH=src python benchmarks/stacks.py --data DATA --only overhead --limit 260
  PYTHONPATH=src python benchmarks/stacks.py --synthetic --only vae     random pixels cost as much
  PYTHONPATH=src python benchmarks/stacks.py --device cpu --quick --synthetic     does it run?
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pages
import torch
import whole_runs
from contest import PLAIN, STACK, Metrics, Rival, contest, loss_faults, too_far
from files import MADE, ON_GPU, File, Row, with_spread
from machine import Setup
from memory import peak_memory
from plain_loops import PlainBernoulli, PlainPolynomial, PlainVae, widths
from script import Benchmark
from timing import Entry, Pace, rounded
from whole_runs import Repeats

from discretegrad_lab import Run, Stack, recipe, stack_of_task
from discretegrad_lab.report.document import Curve, Figure
from discretegrad_lab.stack.lines import Line
from discretegrad_lab.stack.precision import tf32
from discretegrad_lab.tasks.bernoulli_vae import model as bernoulli
from discretegrad_lab.tasks.bernoulli_vae.config import BernoulliVae
from discretegrad_lab.tasks.bernoulli_vae.images import Split
from discretegrad_lab.tasks.data import DataError, Images, load_mnist
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.config import Vae

FIGURE = "polynomial-curves"
FIVE = f"{STACK} of five estimators"
# how far a stack may be from the plain loop: in its loss, and in how far that has fallen
TOLERANCE = {"vae": 0.15, "polynomial": 0.3, "bernoulli": 0.15}
# the five methods that the paper trains it with
FIVE_TAUS = {"reinmax": 1.3, "st": 1.4, "stgs": 0.5, "gst-1.0": 0.5, "gr-mck": 0.5}


# what is trained


class Plan(NamedTuple):
    """How large everything is; a rehearsal has other numbers."""

    pace: Pace = Pace(rounds=5, seconds=0.0, calls=1, slow_seconds=1.0, slow_rounds=3)
    steps: int = 50
    """Of the plain loop in a round."""
    vae: tuple[int, ...] = (160, 1, 320, 40, 10, 80)
    """Members of stacks, the important ones first, should the time run out."""
    polynomial: tuple[int, ...] = (256, 64, 1024)
    bernoulli: tuple[int, ...] = (75, 15)
    bernoulli_fields: Mapping[str, Any] = {}
    """Of the Bernoulli runs."""
    images: tuple[int, int] = (60_000, 10_000)
    """For training and for the test."""
    draws: int = 1000
    """Of GR-MCK."""
    fields: Mapping[str, Any] = {}
    """Of the polynomial runs."""
    whole: Mapping[str, tuple[int, int]] = {"vae": (10, 160), "polynomial": (64, 40)}
    """Members and epochs of the whole runs of one estimator: as many epochs as in the paper."""
    figure: Mapping[str, Sequence[Any]] = {}
    """Which of the runs of Figure 1; all of them if it does not say."""
    repeats: Repeats = Repeats()


FULL = Plan()
QUICK = Plan(
    pace=Pace(rounds=2, seconds=0.0, calls=1),
    steps=1,
    vae=(2, 1),
    polynomial=(3, 2),
    bernoulli=(2,),
    bernoulli_fields={"latents": 8, "batch": 20, "steps_per_epoch": 2},
    images=(200, 50),
    draws=5,
    fields={"latents": 32, "batch": 64, "steps_per_epoch": 40},
    whole={"vae": (2, 2), "polynomial": (3, 3)},
    figure={"seeds": (0,), "estimators": ("reinmax", "st")},
    repeats=Repeats(seconds=60.0, most=2, bare=2),
)


class Data(NamedTuple):
    """What the sections get besides the setup."""

    plan: Plan
    images: Images | None = None
    """None if no section needs them."""


def vae_runs(members: int, plan: Plan, taus: Mapping[str, float] | None = None) -> list[Vae]:
    """The settings of the paper for ReinMax, or several estimators in turn."""
    taus = taus or {"reinmax": 1.3}
    return [
        Vae(
            estimator=name,
            tau=taus[name],
            learning_rate=5e-4,
            seed=seed,
            categories=8,
            latents=4,
            draws=plan.draws,
            tf32=True,
        )
        for seed, name in enumerate(itertools.islice(itertools.cycle(taus), members))
    ]


def polynomial_runs(members: int, plan: Plan) -> list[Polynomial]:
    return [Polynomial(estimator="reinmax", seed=seed, **plan.fields) for seed in range(members)]


# lines of the section bernoulli, with the evaluations of the loss and where temperatures start
BERNOULLI: Mapping[str, tuple[str | Line, int, float]] = {
    "ReinMax": ("reinmax", 2, 1.1),
    "RODEO": ("rodeo", 2, 1.0),
    "RELAX": (Line("RELAX", "relax"), 3, 0.1),
}


def bernoulli_runs(label: str, members: int, plan: Plan) -> list[BernoulliVae]:
    """As the lab trains it on all its data sets, here on one."""
    line, evaluations, tau = BERNOULLI[label]
    fields: dict[str, Any] = {"data": "mnist", "evaluations": evaluations, "tau": tau, "tf32": True}
    return [
        BernoulliVae(estimator=line, seed=seed, **fields, **plan.bernoulli_fields)  # type: ignore[arg-type]
        for seed in range(members)
    ]


def figure_runs(plan: Plan) -> list[Run]:
    """Figure 1, with all its estimators and powers."""
    fields = {"epochs": plan.whole["polynomial"][1], **plan.fields}
    return [replace(run, **fields) for run in recipe(FIGURE).runs(**plan.figure)]


def whole_cases(plan: Plan) -> dict[str, list[Run]]:
    """What is trained from its beginning to its end, by name."""
    cases: dict[str, list[Run]] = {}
    for task, make in (("vae", vae_runs), ("polynomial", polynomial_runs)):
        members, epochs = plan.whole[task]
        runs = [replace(run, epochs=epochs) for run in make(members, plan)]
        cases[named(runs[0])] = runs
    return cases | {FIGURE: figure_runs(plan)}


def named(run: Run) -> str:
    """What a case is called."""
    if isinstance(run, BernoulliVae):
        return f"Bernoulli VAE, {run.line.label}, K = {run.evaluations}"
    if isinstance(run, Vae):
        return f"VAE {run.categories}x{run.latents}"
    assert isinstance(run, Polynomial)
    return f"polynomial {run.latents}x{run.batch}, p = {run.power:g}"


# what a step must move


class Traffic(NamedTuple):
    """Of one step of one run."""

    parameters: int
    floor_bytes: int
    """For parameters and moments, as the page counts it."""
    activation_bytes: int
    """For activations besides, if none of them stayed in a cache."""


def traffic(run: Vae | BernoulliVae) -> Traffic:
    sizes = widths(run)
    coder, decoder = list(itertools.pairwise(sizes)), list(itertools.pairwise(sizes[::-1]))
    layers = [*coder, *decoder]
    parameters = sum((i + 1) * o for i, o in layers)
    weights = sum(i * o for i, o in layers[1:])
    # a layer reads its input forward and again for the gradient of its weights, and writes its
    # output; the gradient at the output is written once, and read for the weights and the input
    samples = run.evaluations if isinstance(run, BernoulliVae) else 1
    activations = sum(2 * i + 4 * o for i, o in [*coder, *samples * decoder]) - layers[0][1]
    return Traffic(parameters, 28 * parameters + 4 * weights, 4 * run.batch * activations)


# stacks against the plain loop


def image_rows(
    section: str,
    stacks: Sequence[tuple[str, Sequence[Any]]],
    make_loop: Callable[[], PlainVae | PlainBernoulli],
    steps: int,
    gate: Callable[..., list[str]],
    setup: Setup,
) -> Iterator[Row]:
    """Stacks against a loop that has made some steps, and against what a step must move."""
    run, plan = stacks[0][1][0], setup.data.plan
    needed = traffic(run)
    with peak_memory(setup) as peak:
        loop = make_loop()
        for _ in range(steps):
            loop.step()
        learned = loop.total.item() / steps
    rival = Rival(plain_entry(loop, plan), partial(gate, learned), peak[0])
    about = {"section": section, "case": named(run), **needed._asdict()}
    for row in contest(about, stacks, partial(stack_of, setup), rival, plan.pace, setup):
        if row["status"] == "ok":
            floor = needed.floor_bytes / setup.bandwidth
            row["times_floor"] = rounded(row["seconds"] / floor, 3)
        yield row


def plain_entry(loop: PlainVae | PlainBernoulli | PlainPolynomial, plan: Plan) -> Entry:
    # after the stack the caches and the allocator are not its own
    return Entry(PLAIN, loop.step, plan.steps, warmups=1)


def stack_of(setup: Setup, runs: Sequence[Run]) -> Stack:
    return stack_of_task(runs, setup.device, None)


def vae_rows(setup: Setup) -> Iterator[Row]:
    plan, images = setup.data
    stacks = [(STACK, vae_runs(members, plan)) for members in plan.vae]
    stacks.insert(1, (FIVE, vae_runs(max(plan.vae[0], len(FIVE_TAUS)), plan, FIVE_TAUS)))
    run = stacks[0][1][0]
    make_loop = partial(PlainVae, run, images.train, setup.device)
    steps = len(images.train) // run.batch
    # stacks read the images again for each; the plain loop multiplies matrices as they do
    with mock.patch.object(vae, "load_mnist", return_value=images), tf32(True):
        yield from image_rows("vae", stacks, make_loop, steps, vae_faults, setup)


def vae_faults(plain_loss: float, stack: Stack, metrics: Metrics) -> list[str]:
    """What is wrong with the mean losses of a first epoch, of ReinMax as the plain loop has it."""
    losses = metrics["train"]
    same = [x for x, run in zip(losses, stack.runs, strict=True) if run.estimator == "reinmax"]
    return loss_faults(losses, statistics.median(same), plain_loss, TOLERANCE["vae"])


def bernoulli_rows(setup: Setup) -> Iterator[Row]:
    plan, images = setup.data
    split = Split(images.train[:50_000], images.test, images.test)
    with mock.patch.object(bernoulli, "load_split", return_value=split), tf32(True):
        for label in BERNOULLI:
            stacks = [(STACK, bernoulli_runs(label, members, plan)) for members in plan.bernoulli]
            run = stacks[0][1][0]
            make_loop = partial(PlainBernoulli, run, split.train, setup.device)
            steps = min(run.steps_per_epoch, 300)
            gate = partial(bernoulli_faults, steps)
            yield from image_rows("bernoulli", stacks, make_loop, steps, gate, setup)


def bernoulli_faults(steps: int, plain_loss: float, stack: Stack, metrics: Metrics) -> list[str]:
    """What is wrong with the mean losses of a first epoch, which may be longer than the loop's."""
    losses = metrics["train"]
    middle = statistics.median(losses)
    if steps < stack.steps_per_epoch:
        plain_loss = min(plain_loss, middle)
    return loss_faults(losses, middle, plain_loss, TOLERANCE["bernoulli"])


def polynomial_rows(setup: Setup) -> Iterator[Row]:
    plan = setup.data.plan
    (run,) = polynomial_runs(1, plan)
    stacks = [(STACK, polynomial_runs(members, plan)) for members in plan.polynomial]
    with peak_memory(setup) as peak:
        loop = PlainPolynomial(run, setup.device)
        before = loop.expected()
        for _ in range(run.steps_per_epoch):
            loop.step()
        fall = before - loop.expected()
    gate = partial(polynomial_faults, before, fall)
    rival = Rival(plain_entry(loop, plan), gate, peak[0])
    about = {"section": "polynomial", "case": named(run)}
    return contest(about, stacks, partial(stack_of, setup), rival, plan.pace, setup)


def polynomial_faults(
    before: float, plain_fall: float, stack: Stack, metrics: Metrics
) -> list[str]:
    """What is wrong with how far the expected losses have fallen, on average."""
    fall = before - statistics.fmean(metrics["expected_loss"])
    return too_far("the fall of its loss", fall, plain_fall, TOLERANCE["polynomial"])


def overhead_rows(setup: Setup) -> Iterator[Row]:
    # read once, not by every stack
    with mock.patch.object(vae, "load_mnist", return_value=setup.data.images):
        yield from whole_runs.rows(whole_cases(setup.data.plan), setup.data.plan.repeats, setup)


# the benchmark

FILE = File(
    "stacks.csv",
    (
        *("section", "case", "provider", "members", "status", "rounds", "steps_per_epoch"),
        *(*with_spread("seconds", "speedup"), "start_seconds", "peak_bytes"),
        *Traffic._fields,
        *("times_floor", "epochs", *with_spread("overhead"), "bare_epoch_seconds"),
        *("run_seconds", "epochs_seconds", "checkpoint_seconds", "end_seconds"),
        *(*ON_GPU, *MADE, "images"),
    ),
)
# in this order they run, so that those with few rows come first
SECTIONS: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "polynomial": polynomial_rows,
    "overhead": overhead_rows,
    "vae": vae_rows,
    "bernoulli": bernoulli_rows,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pixels = parser.add_mutually_exclusive_group()
    text = "the data directory with the folder mnist (default: where the lab looks for it)"
    pixels.add_argument("--data", type=Path, metavar="DIR", help=text)
    text = "random pixels in place of MNIST, at the same cost"
    pixels.add_argument("--synthetic", action="store_true", help=text)


def read_arguments(options: argparse.Namespace) -> tuple[Data, list[str], Row]:
    """As many images as are needed."""
    plan = QUICK if options.quick else FULL
    if options.only == ["polynomial"]:
        return Data(plan), [], {"images": ""}
    if options.synthetic:
        generator = torch.Generator().manual_seed(0)
        random = partial(torch.randint, 256, dtype=torch.uint8, generator=generator)
        images = [random((count, vae.PIXELS)) for count in plan.images]
        return Data(plan, Images(*images)), ["--synthetic"], {"images": "random"}
    try:
        images = [x[:n] for x, n in zip(load_mnist(options.data), plan.images, strict=True)]
    except DataError as error:
        raise ValueError(f"{error}; or measure with --synthetic") from error
    return Data(plan, Images(*images)), ["--data DIR"], {"images": "mnist"}


BENCHMARK = Benchmark(
    "benchmarks/stacks.py",
    __doc__,
    SECTIONS,
    FILE,
    limit_seconds=150.0,
    add_arguments=add_arguments,
    read_arguments=read_arguments,
)


def _targets() -> Iterator[pages.Target]:
    def at(
        section: str,
        runs: Sequence[Run],
        *promise: Any,
        case: str = "",
        provider: str = STACK,
        unit: float = 1.0,
    ) -> pages.Target:
        case, members = case or named(runs[0]), str(len(runs))
        where = {"section": section, "case": case, "members": members, "provider": provider}
        label = f"{case}, {provider.replace('stack', f'{members} members')}"
        shown = partial(pages.interval, quantity=promise[0], unit=unit)
        return pages.Target(where, label, *promise, unit=unit, shown=shown)

    says = "at most {} µs per run-step"
    for provider, taus in ((STACK, None), (FIVE, FIVE_TAUS)):
        runs = vae_runs(160, FULL, taus)
        yield at("vae", runs, "seconds", 17.0, says, provider=provider, unit=1e-6)
    for label, most in (("ReinMax", 12.0), ("RODEO", 36.0), ("RELAX", 36.0)):
        yield at("bernoulli", bernoulli_runs(label, 75, FULL), "seconds", most, says, unit=1e-6)
    says = "at least {} times the run-steps per second of a plain loop"
    yield at("polynomial", polynomial_runs(256, FULL), "speedup", 50.0, says)
    says = "metrics, checkpoints and progress at most {} % of a run"
    for case, runs in whole_cases(FULL).items():
        yield at("overhead", runs, "overhead", 3.0, says, case=case, unit=0.01)


TARGETS = tuple(_targets())


# the page

RIVALS = {STACK: (PLAIN,), FIVE: (PLAIN, STACK)}


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page."""
    vae_results = results.of(section="vae")
    return {
        "losses": pages.losses_list(losses(results), results),
        "vae": race_table(vae_results),
        "floor": floor_text(vae_results),
        "bernoulli": race_table(results.of(section="bernoulli")),
        "polynomial": race_table(results.of(section="polynomial")),
        "overhead": whole_runs.table(results.of(section="overhead")),
    }


def losses(results: pages.Results) -> list[str]:
    """Where a stack is slower than the plain loop, or a member larger than a plain run."""
    groups = []
    for section in ("vae", "polynomial", "bernoulli"):
        rows = [row | {"member": of_member(row)} for row in results.of(section=section)]
        for case in pages.cases(rows, "case"):
            loop = [row for row in case if row["provider"] == PLAIN]
            groups += [[*group, *loop] for group in pages.cases(case, "members")]
    return pages.losses(groups, RIVALS, place, "member")


def of_member(row: Row) -> float | str:
    """The memory of a member."""
    return float(row["peak_bytes"]) / int(row["members"]) if row["peak_bytes"] else ""


def place(row: Row) -> str:
    return f"{row['case']}, {pages.plural(row['members'], 'member')}"


def race_table(rows: Sequence[Row]) -> str:
    def of_stacks(cell: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda row: "" if row["provider"] == PLAIN else cell(row)

    several = len({row["case"] for row in rows}) > 1
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: f"{row['case']}: {row['provider']}" if several else row["provider"],
        "members": lambda row: row["members"],
        "a run-step": pages.seconds,
        "run-steps per second": lambda row: f"{1 / float(row['seconds']):,.0f}",
        "vs the plain loop": lambda row: pages.ratio(row, "speedup"),
    }
    if any(row["times_floor"] for row in rows):
        columns["vs the floor"] = of_stacks(lambda row: f"{pages.short(row['times_floor'])}x")
    columns |= {
        "memory": lambda row: pages.size(row["peak_bytes"]),
        "a member's": of_stacks(lambda row: pages.size(of_member(row))),
        "start": of_stacks(lambda row: f"{float(row['start_seconds']):.1f} s"),
    }
    ordered = sorted(
        rows, key=lambda row: (row["case"] if several else "", row["provider"], int(row["members"]))
    )
    return pages.table(ordered, "", columns)


def floor_text(rows: Sequence[Row]) -> str:
    """How many bytes these are, and how long they take."""
    row = next(filter(pages.is_ok, rows), None)
    if row is None:
        return pages.NOT_MEASURED
    parameters, floor, activations = (int(row[name]) for name in Traffic._fields)
    speed, bandwidth = pages.tera(row["copy_bandwidth"]), float(row["copy_bandwidth"])
    return pages.wrapped(
        f"With P = {parameters:,} and W = {(floor - 28 * parameters) // 4:,} these are "
        f"{floor / 1e6:.1f} MB, or {1e6 * floor / bandwidth:.1f} µs at "
        f"{speed}. Activations would add {activations / 1e6:.1f} MB, or "
        f"{1e6 * activations / bandwidth:.1f} µs, if none of them stayed in a cache: the input of "
        "a layer is read twice and its output written once, the gradient at the output is written "
        "once and read twice."
    )


# the picture

COLOURS = {STACK: "#0072b2", FIVE: "#d55e00", PLAIN: "#000000"}


def pictures(results: pages.Results) -> dict[str, list[Figure]]:
    """Time of a run-step over the members; that of the plain loop is a level line."""
    rows = results.of(section="vae", status="ok")
    if not rows:
        return {}
    largest = max(int(row["members"]) for row in rows)
    curves = []
    for mark, (provider, colour) in enumerate(COLOURS.items()):
        chosen = [row for row in rows if row["provider"] == provider]
        if provider == PLAIN:
            chosen += [row | {"members": largest} for row in chosen]
        chosen.sort(key=lambda row: int(row["members"]))
        members = [int(row["members"]) for row in chosen]
        points = ([1e6 * float(row[x]) for row in chosen] for x in with_spread("seconds"))
        curves.append(Curve(provider, colour, members, *points, mark=mark))
    floor = 1e6 * int(rows[0]["floor_bytes"]) / float(rows[0]["copy_bandwidth"])
    words = {"reference": floor, "reference_name": "the floor", "log_y": True}
    figure = Figure(rows[0]["case"], "", "members", "µs per run-step", tuple(curves), **words)
    return {"stack_scaling.png": [figure]}


PAGE = pages.Page(pages.DOCS / "stack-benchmarks.md", (FILE.name,), blocks, TARGETS, pictures)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
