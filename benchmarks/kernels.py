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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import calls
import efficiency
import pages
import plain
import torch
from files import File, Row, with_spread
from gpu_cases import ABOUT, EAGER, NAMES, TORCH, about, named, pace
from lookups import BY_INDEX, LINEAR_SELECT, STRAIGHTFORWARD, lookup_cases
from machine import Setup
from measure import Case, measured
from samplers import PYPI, PYPI_REINMAX, REINMAX, Sampler, sampler_work, torch_gumbel_softmax
from script import Benchmark
from timing import STREAM, WALL

# samplers at many sizes

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

GRAPH, GRAPH_OF_20 = "graph", "graph of 20"
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


# the benchmark

FILE = File(
    "kernels.csv",
    (
        *(*NAMES, "ours", "rounds"),
        *with_spread("seconds", "speedup_torch", "speedup_pypi", "speedup_plain"),
        *("times_floor", "tensor_bytes", "peak_extra_bytes", "peak_extra_tensors"),
        *("beyond_bytes", "memory_ratio", "launches_forward", "launches_backward"),
        *("copies_forward", "copies_backward", *ABOUT),
    ),
)


def cases_of(make: Callable[[Setup], Iterator[Case]], setup: Setup) -> Iterator[Row]:
    return measured(make(setup), setup)


SECTIONS: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "large": partial(cases_of, partial(sampler_cases, "large")),
    "small": partial(cases_of, partial(sampler_cases, "small")),
    "gumbel_rao": partial(cases_of, gumbel_rao_cases),
    "efficiency": efficiency.rows_of,
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
    {"efficiency": efficiency.FILE},
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
        at("efficiency", efficiency.QP, "float32", "ours", "GR-MCK 1000"),
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
        "efficiency": efficiency.tables_of_problems(results.of(section="efficiency")),
    }


def case_tables(rows: Sequence[Row], cells: Mapping[str, Callable[[Row], str]]) -> str:
    """A table for each case; a provider that could not run says why."""
    groups = pages.cases(rows, "case", "dtype")
    return pages.joined(
        [pages.table(group, place_of(group[0]), _PROVIDER | cells) for group in groups]
    )


def times_floor(row: Row) -> str:
    return f"{pages.short(row['times_floor'])}x ({pages.seconds(row)})"


def by_case(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A table for each dtype and kind of variable: lines are samplers, columns are shapes."""
    rows = [row | {"is_bits": row["case"].endswith("bits")} for row in rows]
    return pages.joined(
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
    return pages.joined([pages.table(group, group[0]["case"], columns) for group in groups])


def launches(part: str, row: Row) -> str:
    kernels, copies = row[f"launches_{part}"], row[f"copies_{part}"]
    return f"{kernels}+{copies}" if copies not in ("", "0") else kernels


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
    pages.DOCS / "kernel-benchmarks.md", (FILE.name, efficiency.FILE.name), blocks, TARGETS
)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
