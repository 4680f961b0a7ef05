"""The ReinMax paper's table of time and memory: seven methods on two problems.

They have the names of the paper, and the temperatures that it found best for 10 categories x 30
variables.
"""

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import calls
import pages
import plain
import torch
from files import File, Row, with_spread
from gpu_cases import ABOUT, NAMES, about, pace
from machine import Setup
from measure import Case, Work, measured
from samplers import GATE_ROWS, REINMAX, Sampler, sampler_work
from timing import WALL, rounded
from torch import Tensor
from torch.nn.functional import gumbel_softmax

FILE = File(
    "efficiency.csv",
    (
        *(*NAMES, "rounds", *with_spread("seconds", "speedup_plain"), "peak_extra_bytes"),
        *("memory_ratio", "epoch_seconds", "peak_bytes", "source", *ABOUT),
    ),
)


class Method(NamedTuple):
    """A column of the paper's table of efficiency."""

    name: str
    sampler: str
    plain: Callable[..., Tensor]
    tau: float
    options: Mapping[str, Any] = {}


METHODS = (
    Method("ReinMax", REINMAX, plain.reinmax, 1.3),
    Method("ST", "straight_through", plain.straight_through, 1.4),
    Method("STGS", "gumbel_softmax", partial(gumbel_softmax, hard=True), 0.5),
    Method("GST-1.0", "gapped", plain.gapped, 0.5),
    *(
        Method(f"GR-MCK {k}", "gumbel_rao", plain.gumbel_rao, 1.0, {"num_draws": k})
        for k in (100, 300, 1000)
    ),
)
QP, VAE = "QP", "MNIST-VAE"
STEPS_PER_EPOCH = {QP: 200, VAE: 600}
PUBLISHED_SOURCE = "arXiv:2304.08612, table of efficiency, A6000"
# seconds an epoch and bytes, in the order of the methods
PUBLISHED = {
    QP: ((0.2, 6.5e6), (0.2, 5e6), (0.2, 5.5e6), (0.2, 8e6), (0.8, 0.3e9), (2.2, 1e9), (6.6, 3e9)),
    VAE: (*[(5.2, 13e6)] * 4, (5.2, 76e6), (5.2, 0.2e9), (5.4, 0.6e9)),
}


class Problem(NamedTuple):
    """What the methods are compared on."""

    name: str
    categories: int
    parameters: list[Tensor]
    inputs: list[Tensor]
    loss: Callable[[calls.Sample], Tensor]


def quadratic(setup: Setup) -> Problem:
    """The paper's quadratic programming: 128 binary variables, a batch of 512."""
    batch, variables = setup.small(512, 128)
    theta = setup.random(variables, 2, scale=0.01).requires_grad_()

    def loss(sample: calls.Sample) -> Tensor:
        z = sample(theta.expand(batch, -1, -1))
        return (z[..., 0] - 0.45).square().mean()

    return Problem(QP, 2, [theta], [], loss)


def autoencoder(setup: Setup) -> Problem:
    """The paper's VAE: 30 variables of 10 categories, two hidden layers, a batch of 100 images."""
    images = read_images(setup.data, *setup.small(100)).to(setup.device)
    encoder, decoder = (x.to(setup.device) for x in plain.coders((784, 512, 256, 300)))

    def loss(sample: calls.Sample) -> Tensor:
        return plain.negative_elbo(encoder, decoder, images, sample, 10)

    return Problem(VAE, 10, [*encoder.parameters(), *decoder.parameters()], [images], loss)


def read_images(path: Path, count: int) -> Tensor:
    """The first images of MNIST's file of training images, grey values from 0 to 1."""
    with gzip.open(path) as file:
        head, pixels = file.read(16), file.read(count * 784)
    if head[:4] != b"\0\0\x08\x03" or len(pixels) != count * 784:
        raise ValueError(f"{path.name} is not MNIST's file of training images")
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(count, 784) / 255


def rows_of(setup: Setup) -> Iterator[Row]:
    """Our methods and the plain forms, and what the paper reports."""
    for make in (quadratic, autoencoder):
        problem = make(setup)
        works = [
            work_of(method, form, problem, setup)
            for method in METHODS
            for form in ("ours", "plain")
        ]
        yield from measured(
            [Case(about("efficiency", problem.name), works, pace(setup), WALL)],
            setup,
        )
    for case, values in PUBLISHED.items():
        for method, (epoch, memory) in zip(METHODS, values, strict=True):
            numbers = {
                "epoch_seconds": epoch,
                "peak_bytes": int(memory),
                "source": PUBLISHED_SOURCE,
            }
            names = {"provider": method.name, "status": "ok"}
            yield about("efficiency", case, mode="published") | names | numbers


def work_of(method: Method, form: str, problem: Problem, setup: Setup) -> Work:
    options = {**method.options, "tau": method.tau}
    if setup.quick:
        options = {key: min(value, 10) for key, value in options.items()}
    is_ours = form == "ours"
    function = calls.sampler(method.sampler) if is_ours else method.plain
    sample = partial(function, **options)
    tau = method.tau if method.name == "ReinMax" else None
    logits = setup.random(2 * GATE_ROWS, problem.categories).requires_grad_()
    sampler = Sampler(method.name, sample, is_ours, tau)
    resident = sum(x.nbytes for x in (*problem.parameters, *problem.inputs))

    def derived(row: Row) -> Row:
        """In the units of the paper."""
        peak = row.get("peak_extra_bytes")
        return {
            "epoch_seconds": rounded(row["seconds"] * STEPS_PER_EPOCH[problem.name]),
            "peak_bytes": peak + resident if peak else "",
        }

    return Work(
        f"{method.name}, {form}",
        partial(problem.loss, sample),
        partial(torch.autograd.grad, inputs=problem.parameters),
        sampler_work(sampler, logits, setup.random(*logits.shape)).gate,
        ours=is_ours,
        against={"speedup_plain": f"{method.name}, plain", "memory_ratio": "ST, ours"},
        about={"provider": method.name, "mode": form, "source": "this run"},
        derived=derived,
    )


# the tables


def tables_of_problems(rows: Sequence[Row]) -> str:
    """Published numbers, plain forms and ours, a table for each problem."""
    tables = []
    for group in pages.cases(rows, "case"):
        by_form = {(row["mode"], row["provider"]): row for row in group}
        lines = [
            [
                method.name,
                *(epoch(by_form[form, method.name]) for form in ("published", "plain", "ours")),
                pages.ratio(by_form["ours", method.name], "speedup_plain"),
            ]
            for method in METHODS
        ]
        headings = [group[0]["case"], "published", "plain", "ours", "ours vs plain"]
        tables.append(pages.markdown(headings, lines))
    return pages.joined(tables)


def table_of_the_paper(rows: Sequence[Row]) -> str:
    """The same in the layout of the paper: a column for each method."""
    forms = {"published": "published", "plain": "plain forms, here", "ours": "this library"}
    by_form = {(row["case"], row["mode"], row["provider"]): row for row in rows}
    lines = [
        [f"{case}, {words}", *(epoch(by_form[case, form, method.name]) for method in METHODS)]
        for case in dict.fromkeys(row["case"] for row in rows)
        for form, words in forms.items()
    ]
    headings = ["an epoch, peak memory", *(method.name for method in METHODS)]
    return pages.markdown(headings, lines) if rows else pages.NOT_MEASURED


def epoch(row: Row) -> str:
    if not pages.is_ok(row):
        return row["status"]
    memory = pages.three_digits(float(row["peak_bytes"] or "nan") / 1e6)
    return f"{float(row['epoch_seconds']):.3g} s, {memory} MB"
