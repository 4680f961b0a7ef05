"""Time the samplers on a GPU, against the copy bandwidth of its memory and against each other.

Every sampler is bound by memory traffic on a GPU. The least possible traffic of forward plus
backward is five passes: read the logits and write the sample; read the logits and the gradient at
the sample, and write the gradient. The time to move these bytes at the bandwidth of a plain copy,
measured in the same run before and after everything else, is the floor.

  large        forward plus backward at sizes that fill a GPU, as a multiple of the floor
  small        at sizes where starting kernels is all that counts: eager and in a CUDA graph
  gumbel_rao   1000 draws of noise on the quadratic problem of the ReinMax paper
  efficiency   the paper's table of time and memory: seven methods on two problems
  index        a codebook lookup by index against the product with a one-hot
  vocabulary   a lookup after a linear layer, without a tensor of rows x categories

Eager calls at small sizes, the graphs of 20 and the section efficiency are timed on the wall clock,
host included; everything else on the stream of the GPU, after a pause in which the host gets ahead.
Before a provider is timed it must give right numbers: a speedup is never reported on a red gate.
The CSV files are written after each section and keep the stored rows of the others; the page
docs/kernel-benchmarks.md follows from them (python benchmarks/table.py).

examples:
  python benchmarks/kernels.py --mnist train-images-idx3-ubyte.gz       about five minutes
  python benchmarks/kernels.py --only small index                       two sections
  python benchmarks/kernels.py --device cpu --quick --only large small  does it run? seconds
"""

import argparse
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import calls
import pages
import plain
import torch
from files import MADE, ON_GPU, File, Row, with_spread
from machine import Setup
from measure import Case, Work, measured
from samplers import (
    GATE_ROWS,
    PYPI,
    PYPI_REINMAX,
    REINMAX,
    Sampler,
    off_formula,
    pypi_reinmax,
    sampler_work,
    tolerance_of,
    torch_gumbel_softmax,
)
from script import Benchmark
from timing import STREAM, WALL, Pace, rounded
from torch import Tensor
from torch.nn.functional import gumbel_softmax

import discretegrad

FULL_PACE = Pace(rounds=7, seconds=0.012, calls=2000, slow_seconds=0.3, slow_rounds=2)
QUICK_PACE = Pace(rounds=2, seconds=0.0, calls=1)

# samplers at many sizes

TORCH = "F.gumbel_softmax(hard=True)"
TORCH_PATH, COMPILED = 'reinmax backend="torch"', "reinmax, compiled"
CATEGORICAL = (
    Sampler(REINMAX, calls.sampler(REINMAX), reinmax_tau=1.0),
    Sampler("reinmax tau=1.3", calls.sampler(REINMAX, tau=1.3), reinmax_tau=1.3),
    *(Sampler(x, calls.sampler(x)) for x in calls.SAMPLERS if x not in (REINMAX, "gumbel_rao")),
    Sampler(TORCH_PATH, calls.torch_reinmax, reinmax_tau=1.0),
    Sampler(COMPILED, calls.torch_reinmax, reinmax_tau=1.0, compiled=True),
    torch_gumbel_softmax(TORCH),
    PYPI_REINMAX,
)
# compiling takes far longer than measuring
UNCOMPILED = tuple(sampler for sampler in CATEGORICAL if not sampler.compiled)
BITS = tuple(
    Sampler(name, sample, reinmax_tau=tau, bits=True)
    for name, sample, tau in (
        ("bernoulli.reinmax", calls.bit_sampler(REINMAX), 1.0),
        ("bernoulli.straight_through", calls.bit_sampler("straight_through"), None),
        (
            'bernoulli.reinmax backend="torch"',
            calls.bit_sampler(REINMAX, backend="torch"),
            1.0,
        ),
    )
)

EAGER, GRAPH, GRAPH_OF_20 = "eager", "graph", "graph of 20"
# copies of forward plus backward in one CUDA graph; 0 without a graph
COPIES = {EAGER: 0, GRAPH: 1, GRAPH_OF_20: 20}
FLOAT32, BFLOAT16 = (torch.float32,), (torch.bfloat16,)


class Sizes(NamedTuple):
    """Where samplers are compared."""

    shape: tuple[int, int]
    samplers: tuple[Sampler, ...] = UNCOMPILED
    dtypes: tuple[torch.dtype, ...] = FLOAT32
    modes: tuple[str, ...] = (EAGER,)


_MAIN_SHAPES = ((65536, 1024), (8192, 32768), (2048, 131072))
SIZES = {
    "large": (
        *(Sizes(shape, CATEGORICAL) for shape in _MAIN_SHAPES),
        *(Sizes(shape, dtypes=BFLOAT16) for shape in _MAIN_SHAPES),
        # so little to move that starting kernels counts: a graph shows the kernels alone
        Sizes((64, 131072), modes=(EAGER, GRAPH)),
        Sizes((1_000_000, 10), modes=(EAGER, GRAPH)),
        Sizes((65536, 1024), BITS, FLOAT32 + BFLOAT16),
    ),
    "small": (
        Sizes((3000, 10), modes=(EAGER, GRAPH, GRAPH_OF_20)),
        Sizes((400, 8), modes=(EAGER, GRAPH, GRAPH_OF_20)),
    ),
}


def about(section: str, case: str, dtype: torch.dtype = torch.float32, mode: str = EAGER) -> Row:
    dtype_name = str(dtype).removeprefix("torch.")
    return {"section": section, "case": case, "dtype": dtype_name, "mode": mode}


def named(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def pace(setup: Setup) -> Pace:
    return QUICK_PACE if setup.quick else FULL_PACE


def sampler_cases(section: str, setup: Setup) -> Iterator[Case]:
    is_small, against = section == "small", {"speedup_torch": TORCH, "speedup_pypi": PYPI}
    chosen = [sizes._replace(shape=setup.small(*sizes.shape)) for sizes in SIZES[section]]
    # miniatures may coincide
    for sizes in {(x.shape, x.samplers is BITS, x.dtypes): x for x in chosen}.values():
        for dtype in sizes.dtypes:
            logits = setup.random(*sizes.shape, dtype=dtype).requires_grad_()
            cotangent = setup.random(*sizes.shape, dtype=dtype)
            if setup.on_gpu:
                torch._dynamo.reset()
            works = [
                sampler_work(sampler, logits, cotangent, against=against)
                for sampler in sizes.samplers
                if setup.on_gpu or not sampler.compiled
            ]
            name = named(sizes.shape) + (" bits" if sizes.samplers is BITS else "")
            for mode in sizes.modes if setup.on_gpu else (EAGER,):
                on_stream = mode == GRAPH or (not is_small and mode == EAGER)
                yield Case(
                    about(section, name, dtype, mode),
                    works,
                    pace(setup),
                    STREAM if on_stream else WALL,
                    COPIES[mode],
                    tensor_bytes=logits.nbytes,
                    has_floor=not is_small,
                    counts_launches=is_small and mode == EAGER and setup.on_gpu,
                )


def gumbel_rao_cases(setup: Setup) -> Iterator[Case]:
    options = {"tau": 0.5, "num_draws": 10 if setup.quick else 1000}
    for shape, prefix, make, plain_form in (
        ((512, 128, 2), "", calls.sampler, plain.gumbel_rao),
        ((512, 128), "bernoulli.", calls.bit_sampler, plain.bernoulli_gumbel_rao),
    ):
        logits = setup.random(*setup.small(*shape)).requires_grad_()
        cotangent, is_bits = setup.random(*logits.shape), bool(prefix)
        name, baseline = f"{prefix}gumbel_rao", f"{prefix}straight_through"
        forms = {
            name: make("gumbel_rao", **options),
            f'{name} backend="torch"': make("gumbel_rao", backend="torch", **options),
            f"plain {name}": partial(plain_form, **options),
            baseline: make("straight_through"),
        }
        samplers = [Sampler(n, x, "plain" not in n, bits=is_bits) for n, x in forms.items()]
        against = {"speedup_plain": f"plain {name}", "memory_ratio": baseline}
        yield Case(
            about("gumbel_rao", named(logits.shape)),
            [sampler_work(sampler, logits, cotangent, against=against) for sampler in samplers],
            pace(setup),
            STREAM,
            tensor_bytes=logits.nbytes,
        )


# lookups


class Lookup(NamedTuple):
    """A product with a sampled one-hot, in one way or another."""

    name: str
    apply: Callable[..., Tensor]
    """Of (logits, table), or of (hidden, head, table)."""
    ours: bool = True
    is_reinmax: bool = True


BY_INDEX, LINEAR_SELECT = "sample_index, select", "linear_select"
STRAIGHTFORWARD = "reinmax @ table"
_OF_LOGITS = (
    Lookup(BY_INDEX, calls.reinmax_row),
    Lookup(STRAIGHTFORWARD, lambda logits, table: calls.sampler(REINMAX)(logits) @ table),
    Lookup(TORCH, lambda logits, table: gumbel_softmax(logits, hard=True) @ table, False, False),
    Lookup(PYPI, lambda logits, table: pypi_reinmax(logits) @ table, ours=False),
)
LOOKUPS = {
    "index": _OF_LOGITS,
    "vocabulary": (
        Lookup(LINEAR_SELECT, discretegrad.linear_select),
        *(
            x._replace(apply=lambda hidden, head, table, x=x: x.apply(hidden @ head.T, table))
            for x in _OF_LOGITS
            if x.is_reinmax
        ),
    ),
}
# rows, categories, width of the table (and of the hidden layer), dtype
LOOKUP_SIZES = {
    "index": ((65536, 1024, 64, torch.float32), (8192, 32768, 512, torch.bfloat16)),
    "vocabulary": (
        (8192, 131072, 1024, torch.bfloat16),
        # one tensor of rows x categories has 80 GiB
        (163840, 262144, 1024, torch.bfloat16),
    ),
}


def lookup_cases(section: str, setup: Setup) -> Iterator[Case]:
    sizes = dict.fromkeys((setup.small(*shape), dtype) for *shape, dtype in LOOKUP_SIZES[section])
    for (rows, categories, width), dtype in sizes:
        table = setup.random(categories, width, dtype=dtype)
        leaves = [setup.random(rows, categories, dtype=dtype), table]
        if section == "vocabulary":
            # logits of variance 1
            head = setup.random(categories, width, dtype=dtype, scale=width**-0.5)
            leaves = [setup.random(rows, width, dtype=dtype), head, table]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        cotangent = setup.random(rows, width, dtype=dtype)
        yield Case(
            about(section, named((rows, categories, width)), dtype),
            [lookup_work(lookup, leaves, cotangent) for lookup in LOOKUPS[section]],
            pace(setup),
            STREAM,
            tensor_bytes=rows * categories * table.element_size(),
        )


def lookup_work(lookup: Lookup, leaves: Sequence[Tensor], cotangent: Tensor) -> Work:
    against = {"speedup_plain": STRAIGHTFORWARD, "memory_ratio": STRAIGHTFORWARD}
    return Work(
        lookup.name,
        lambda: lookup.apply(*leaves),
        lambda output: torch.autograd.grad(output, leaves, cotangent),
        lambda: lookup_faults(lookup, leaves, cotangent),
        ours=lookup.ours,
        against=against | {"speedup_torch": TORCH, "speedup_pypi": PYPI},
    )


def lookup_faults(lookup: Lookup, leaves: Sequence[Tensor], cotangent: Tensor) -> list[str]:
    """What is wrong with the output and all gradients for a few rows, against float64."""
    few = [leaves[0][:GATE_ROWS].detach().requires_grad_(), *leaves[1:]]
    cotangent = cotangent[:GATE_ROWS]
    output = lookup.apply(*few)
    gradients = torch.autograd.grad(output, few, cotangent)
    if not all(gradient.isfinite().all() for gradient in gradients):
        return ["its gradients are not finite"]
    if not lookup.is_reinmax:
        return []
    *before, table = (leaf.detach().double() for leaf in few)
    g = cotangent.double()
    # the row of the table that is nearest
    index = (2 * output.detach().double() @ table.T - table.square().sum(-1)).argmax(-1)
    faults = [] if torch.equal(output, few[-1][index]) else ["its output is no row of the table"]
    logits = before[0] @ before[1].T if len(before) == 2 else before[0]
    z = torch.zeros_like(logits).scatter_(-1, index.unsqueeze(-1), 1.0)
    slope = plain.reinmax_formula(logits, g @ table.T, z, 1.0)
    expected = [slope @ before[1], slope.T @ before[0]] if len(before) == 2 else [slope]
    # all of them round products of matrices, not only the result
    return faults + off_formula(gradients, [*expected, z.T @ g], tolerance_of(cotangent, False))


# what the ReinMax paper measured: its names and the temperatures that it found best for 10
# categories x 30 variables


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


def efficiency_rows(setup: Setup) -> Iterator[Row]:
    """Our methods and the plain forms, and what the paper reports."""
    for make in (quadratic, autoencoder):
        problem = make(setup)
        works = [
            efficiency_work(method, form, problem, setup)
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


def efficiency_work(method: Method, form: str, problem: Problem, setup: Setup) -> Work:
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


# the benchmark

_NAMES = ("section", "case", "dtype", "mode", "provider", "status")
_ABOUT = (*ON_GPU, "reinmax", *MADE)
FILE = File(
    "kernels.csv",
    (
        *(*_NAMES, "ours", "rounds"),
        *with_spread("seconds", "speedup_torch", "speedup_pypi", "speedup_plain"),
        *("times_floor", "tensor_bytes", "peak_extra_bytes", "peak_extra_tensors"),
        *("beyond_bytes", "memory_ratio", "launches_forward", "launches_backward"),
        *("copies_forward", "copies_backward", *_ABOUT),
    ),
)
EFFICIENCY = File(
    "efficiency.csv",
    (
        *(*_NAMES, "rounds", *with_spread("seconds", "speedup_plain"), "peak_extra_bytes"),
        *("memory_ratio", "epoch_seconds", "peak_bytes", "source", *_ABOUT),
    ),
)


def cases_of(make: Callable[[Setup], Iterator[Case]], setup: Setup) -> Iterator[Row]:
    return measured(make(setup), setup)


SECTIONS: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "large": partial(cases_of, partial(sampler_cases, "large")),
    "small": partial(cases_of, partial(sampler_cases, "small")),
    "gumbel_rao": partial(cases_of, gumbel_rao_cases),
    "efficiency": efficiency_rows,
    "index": partial(cases_of, partial(lookup_cases, "index")),
    "vocabulary": partial(cases_of, partial(lookup_cases, "vocabulary")),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "MNIST's train-images-idx3-ubyte.gz, for the section efficiency"
    parser.add_argument("--mnist", type=Path, metavar="FILE", help=text)


def read_arguments(options: argparse.Namespace) -> tuple[Path | None, list[str], Row]:
    path = options.mnist
    if "efficiency" not in options.only:
        return path, [], {}
    if path is None or not path.is_file():
        problem = "it is not given" if path is None else f"there is no file {path}"
        raise ValueError(
            f"the section efficiency needs MNIST, and {problem}: give --mnist with the path of "
            "train-images-idx3-ubyte.gz, or leave the section out with --only"
        )
    return path, ["--mnist FILE"], {}


BENCHMARK = Benchmark(
    "benchmarks/kernels.py",
    __doc__,
    SECTIONS,
    FILE,
    {"efficiency": EFFICIENCY},
    add_arguments=add_arguments,
    read_arguments=read_arguments,
)


# targets


def _targets() -> Iterator[pages.Target]:
    def at(*place: str) -> Callable[..., pages.Target]:
        where = dict(zip(("section", "case", "dtype", "mode", "provider"), place, strict=True))
        provider = where["provider"]
        return partial(pages.Target, where, f"`{provider}` {place_of(where)}")

    faster = "at least {} times as fast as `F.gumbel_softmax`"
    for shape, floor in (("65536x1024", 1.25), ("8192x32768", 1.25), ("2048x131072", 1.6)):
        for dtype in ("float32", "bfloat16"):
            large = at("large", shape, dtype, EAGER, REINMAX)
            yield large("times_floor", floor, "at most {} times the floor")
            yield large("speedup_pypi", 7.0, "at least {} times as fast as PyPI `reinmax`")
            yield large("speedup_torch", 4.0, faster)
            yield large("peak_extra_tensors", 2.1, "at most {} tensors of extra memory")
    for shape, sampler, floor in (
        ("64x131072", REINMAX, 2.0),
        ("1000000x10", REINMAX, 2.2),
        ("8192x32768", "gumbel_softmax", 1.5),
    ):
        odd = at("large", shape, "float32", EAGER, sampler)
        yield odd("times_floor", floor, "at most {} times the floor")
    for shape, speed, says in (
        ("3000x10", 1.6, faster),
        ("400x8", 1.0, "faster than `F.gumbel_softmax`"),
    ):
        small = at("small", shape, "float32", EAGER, REINMAX)
        yield small("launches_forward", 2.0, "at most {} kernels forward")
        yield small("launches_backward", 2.0, "at most {} kernels backward")
        yield small("speedup_pypi", 4.0, "at least {} times as fast as PyPI `reinmax`")
        yield small("speedup_torch", speed, says)
        graph = at("small", shape, "float32", GRAPH, REINMAX)
        yield graph("seconds", 12.0, "at most {} µs in a CUDA graph", 1e-6)
    for rao in (
        at("gumbel_rao", "512x128x2", "float32", EAGER, "gumbel_rao"),
        at("efficiency", QP, "float32", "ours", "GR-MCK 1000"),
    ):
        yield rao("memory_ratio", 2.0, "at most {} times the memory of `straight_through`")
        yield rao("speedup_plain", 20.0, "at least {} times as fast as the plain form")
    lookup = at("vocabulary", "8192x131072x1024", "bfloat16", EAGER, LINEAR_SELECT)
    beyond = "at most {} MiB beyond inputs, output and gradients"
    yield lookup("beyond_bytes", 256.0, beyond, 2**20)
    yield lookup("speedup_plain", 0.4, "at least {} times as fast as the straightforward form")


def place_of(row: Mapping[str, str]) -> str:
    """Where something was measured; eager is the rule."""
    mode = [row["mode"]] if row["mode"] != EAGER else []
    return " ".join([row["case"], row["dtype"], *mode])


TARGETS = tuple(_targets())


# the page

# what else computes the same, or something for the same purpose
RIVALS = {
    REINMAX: (TORCH_PATH, COMPILED, TORCH, PYPI),
    "reinmax tau=1.3": (TORCH, PYPI),
    **dict.fromkeys(("straight_through", "gumbel_softmax", "gapped", "mean_baseline"), (TORCH,)),
    **{
        name: (f'{name} backend="torch"', f"plain {name}")
        for name in ("bernoulli.reinmax", "gumbel_rao", "bernoulli.gumbel_rao")
    },
    BY_INDEX: (STRAIGHTFORWARD, TORCH, PYPI),
    LINEAR_SELECT: (BY_INDEX, STRAIGHTFORWARD, PYPI),
}
_PROVIDER = {"": pages.label}
_VS_TORCH = {"vs `F.gumbel_softmax`": lambda row: pages.ratio(row, "speedup_torch")}
_VS_PYPI = {"vs PyPI `reinmax`": lambda row: pages.ratio(row, "speedup_pypi")}
_VS_PRODUCT = {f"vs `{STRAIGHTFORWARD}`": lambda row: pages.ratio(row, "speedup_plain")}
_EXTRA_MEMORY = {"extra memory": lambda row: pages.size(row["peak_extra_bytes"])}
TABLES = {
    "gumbel_rao": {
        "time": pages.seconds,
        "vs the plain form": lambda row: pages.ratio(row, "speedup_plain"),
        **_EXTRA_MEMORY,
        "vs `straight_through`": lambda row: pages.short(row["memory_ratio"]),
    },
    "index": {"time": pages.seconds} | _VS_TORCH | _VS_PYPI | _VS_PRODUCT | _EXTRA_MEMORY,
    "vocabulary": {"time": pages.seconds}
    | _VS_PYPI
    | _VS_PRODUCT
    | {"memory": lambda row: pages.size(row["beyond_bytes"])},
}


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page."""
    large, rows = results.of(section="large"), results.rows
    eager = [row for row in large if row["mode"] == EAGER]
    measured_here = [row for row in rows if row.get("source", "this run") == "this run"]
    return {
        "provenance": pages.provenance(measured_here),
        "losses": pages.losses_list(losses(results), results),
        "floors": by_case(large, times_floor),
        "memory": by_case(eager, lambda row: pages.short(row["peak_extra_tensors"])),
        "small": small_tables(results.of(section="small")),
        **{name: case_tables(results.of(section=name), cells) for name, cells in TABLES.items()},
        "efficiency": efficiency_tables(results.of(section="efficiency")),
    }


def joined(tables: Sequence[str]) -> str:
    return "\n\n".join(tables) or pages.NOT_MEASURED


def case_tables(rows: Sequence[Row], cells: Mapping[str, Callable[[Row], str]]) -> str:
    """A table for each case; a provider that could not run says why."""
    groups = pages.cases(rows, "case", "dtype")
    return joined([pages.table(group, place_of(group[0]), _PROVIDER | cells) for group in groups])


def times_floor(row: Row) -> str:
    return f"{pages.short(row['times_floor'])}x ({pages.seconds(row)})"


def by_case(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A table for each dtype and kind of variable: lines are samplers, columns are shapes."""
    rows = [row | {"is_bits": row["case"].endswith("bits")} for row in rows]
    return joined(
        [
            pages.crossed(
                group,
                group[0]["dtype"],
                pages.label,
                lambda row: row["case"] + (f", {row['mode']}" if row["mode"] != EAGER else ""),
                lambda row: cell(row) if pages.is_ok(row) else row["status"],
            )
            for group in pages.cases(rows, "dtype", "is_bits")
        ]
    )


def small_tables(rows: Sequence[Row]) -> str:
    def in_mode(mode: str) -> Callable[[Row], str]:
        times = {(x["case"], x["provider"]): pages.seconds(x) for x in rows if x["mode"] == mode}
        return lambda row: times.get((row["case"], row["provider"]), "")

    columns = _PROVIDER | {"eager": pages.seconds} | _VS_TORCH | _VS_PYPI
    columns |= {"kernels forward": partial(launches, "forward")}
    columns |= {"backward": partial(launches, "backward")}
    columns |= {mode: in_mode(mode) for mode in (GRAPH, GRAPH_OF_20)}
    groups = pages.cases([row for row in rows if row["mode"] == EAGER], "case")
    return joined([pages.table(group, group[0]["case"], columns) for group in groups])


def launches(part: str, row: Row) -> str:
    kernels, copies = row[f"launches_{part}"], row[f"copies_{part}"]
    return f"{kernels}+{copies}" if copies not in ("", "0") else kernels


def efficiency_tables(rows: Sequence[Row]) -> str:
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
    return joined(tables)


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


def losses(results: pages.Results) -> list[str]:
    """Where a fused kernel is slower, or needs more memory, than something else."""
    timed = [
        # the allocator rounds up, which counts at small sizes
        row | {"peak_extra_bytes": ""} if row["section"] == "small" else row
        for row in results.rows
        if row["section"] != "efficiency"
    ]
    groups = pages.cases(timed, "section", "case", "dtype", "mode")
    sentences = pages.losses(groups, RIVALS, place_of, "peak_extra_bytes")
    return sentences + [
        f"{row['provider']} is slower than its plain form at {row['case']} "
        f"({pages.short(row['speedup_plain'])}x)."
        for row in results.of(section="efficiency", mode="ours", status="ok")
        if float(row["speedup_plain"]) < 1
    ]


PAGE = pages.Page(
    pages.DOCS / "kernel-benchmarks.md", (FILE.name, EFFICIENCY.name), blocks, TARGETS
)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
