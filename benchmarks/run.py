"""Time the samplers side by side on a CPU, and measure the memory they need.

Forward plus backward of every sampler in float32: reinmax at two temperatures, the other samplers
of the library, torch.nn.functional.gumbel_softmax and PyPI reinmax. Times on one machine say little
about another, so what counts are ratios of times that were taken within moments of each other.
Before it is timed, a sampler must give right numbers: a speedup is never reported on a red gate,
and a shape with one is not written. The pages follow from the CSV (python benchmarks/table.py).

examples:
  python benchmarks/run.py                      the full run, about three minutes on two cores
  python benchmarks/run.py --quick              does it run? seconds; writes under output/
  python benchmarks/run.py --only 400x8         one shape; the stored rows of the others stay
  python benchmarks/run.py --against OTHER/src  this tree and another one side by side
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter

import calls
import pages
import torch
from files import MADE, File, Row, with_spread
from machine import Setup
from measure import Case, measured
from samplers import PYPI, PYPI_REINMAX, REINMAX, Sampler, sampler_work, torch_gumbel_softmax
from script import Benchmark
from timing import CPU_PACE, REHEARSAL

TORCH = "torch gumbel_softmax(hard=True)"

CASES = {
    "4096x1024": CPU_PACE,
    "64x131072": CPU_PACE,
    "3000x10": CPU_PACE._replace(calls=30, warmups=3, rounds=41),
    "400x8": CPU_PACE._replace(calls=30, warmups=3, rounds=81),
}

# the default of 100 draws would take minutes a call at the largest shape
_OPTIONS = {"gumbel_rao": {"num_draws": 10}}
SAMPLERS = (
    torch_gumbel_softmax(TORCH),
    PYPI_REINMAX,
    Sampler(REINMAX, calls.sampler(REINMAX), reinmax_tau=1.0),
    Sampler("reinmax tau=1.3", calls.sampler(REINMAX, tau=1.3), reinmax_tau=1.3),
    *(
        Sampler(
            " ".join([name, *(f"{key}={value}" for key, value in _OPTIONS.get(name, {}).items())]),
            calls.sampler(name, **_OPTIONS.get(name, {})),
        )
        for name in calls.SAMPLERS
        if name != REINMAX
    ),
)

# how many times as fast as torch and as PyPI reinmax
_SPEED = {"4096x1024": (5, 6), "64x131072": (5, 6), "3000x10": (1.8, 1.8), "400x8": (1.15, 1)}
_PROMISES = (
    ("speedup_torch", 0, "at least {}x `F.gumbel_softmax`"),
    ("speedup_pypi", 1, "at least {}x PyPI `reinmax`"),
    ("memory_share_pypi", None, "at most {} of the memory of PyPI `reinmax`"),
)
TARGETS = tuple(
    pages.Target(
        {"shape": shape, "provider": REINMAX},
        shape,
        column,
        0.5 if place is None else limits[place],
        says,
    )
    for column, place, says in _PROMISES
    for shape, limits in _SPEED.items()
)

FILE = File(
    "results.csv",
    (
        *("provider", "mode", "shape", "dtype", "rounds"),
        *with_spread("seconds", "speedup_torch", "speedup_pypi"),
        *("peak_extra_tensors", "memory_share_pypi", "threads", "cpu", "cores", "python", "torch"),
        *("reinmax", *MADE),
    ),
    part="shape",
)


def case_of(shape: str, setup: Setup) -> Case:
    """All samplers at one shape, on the same logits and gradient at the sample."""
    generator = torch.Generator().manual_seed(0)
    size = tuple(map(int, shape.split("x")))
    logits = torch.randn(size, generator=generator).requires_grad_()
    cotangent = torch.randn(size, generator=generator)
    baselines = {"speedup_torch": TORCH, "speedup_pypi": PYPI, "memory_share_pypi": PYPI}
    return Case(
        {"shape": shape, "dtype": "float32", "mode": "forward+backward"},
        [sampler_work(sampler, logits, cotangent, against=baselines) for sampler in SAMPLERS],
        REHEARSAL if setup.quick else CASES[shape],
        tensor_bytes=logits.nbytes,
    )


def rows_of(shape: str, setup: Setup) -> Iterator[Row]:
    return measured([case_of(shape, setup)], setup)


BENCHMARK = Benchmark(
    "benchmarks/run.py",
    __doc__,
    {shape: partial(rows_of, shape) for shape in CASES},
    FILE,
    devices=("cpu",),
    threads=2,
    quick_sections=("3000x10", "400x8"),
)


# the page


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page."""
    rows = results.rows
    by_shape = partial(pages.crossed, first="sampler", line=pages.label, column=itemgetter("shape"))
    others = {name: [row for row in rows if row["provider"] != name] for name in (TORCH, PYPI)}
    return {
        "speed torch": by_shape(others[TORCH], cell=lambda row: pages.ratio(row, "speedup_torch")),
        "speed pypi": by_shape(others[PYPI], cell=lambda row: pages.ratio(row, "speedup_pypi")),
        "memory": by_shape(rows, cell=tensors),
        "losses": pages.bullets(losses(rows)) or "Nowhere in this run.",
    }


def losses(rows: Sequence[Row]) -> list[str]:
    """Where a sampler of ours is slower, or needs more memory, than a baseline."""
    rivals = {x.name: (TORCH, PYPI)[: 1 + x.name.startswith(REINMAX)] for x in SAMPLERS if x.ours}
    groups, memory = pages.cases(rows, "shape"), "peak_extra_tensors"
    return pages.losses(groups, rivals, itemgetter("shape"), memory, speed)


def speed(row: Row, rival: Row) -> float:
    return float(row["speedup_torch" if rival["provider"] == TORCH else "speedup_pypi"])


def readme_block(rows: Sequence[Row]) -> str:
    """The short table of the README."""
    about = rows[0]
    lines = []
    for shape in CASES:
        row, *baselines = (find(rows, name, shape) for name in (REINMAX, TORCH, PYPI))
        memory = " / ".join(map(tensors, (row, *baselines)))
        lines.append(
            [shape, pages.ratio(row, "speedup_torch"), pages.ratio(row, "speedup_pypi"), memory]
        )
    headings = ["rows x categories", "vs `F.gumbel_softmax(hard=True)`", "vs PyPI `reinmax`"]
    headings.append("peak memory: ours / torch / PyPI")
    note = (
        f"Median and 20th to 80th percentile of the ratio of times, {about['threads']} CPU "
        f"threads, {about['dtype']}, torch {about['torch']}, {about['date']}. Memory is beyond the "
        "inputs, in tensors of the logits' size."
    )
    return f"{pages.markdown(headings, lines)}\n\n{pages.wrapped(note)}\n"


def tensors(row: Row) -> str:
    return f"{float(row['peak_extra_tensors']):.1f}"


def find(rows: Sequence[Row], provider: str, shape: str) -> Row:
    return next(row for row in rows if pages.matches(row, {"provider": provider, "shape": shape}))


PAGE = pages.Page(pages.DOCS / "benchmarks.md", (FILE.name,), blocks, TARGETS)


if __name__ == "__main__":
    import against

    raise SystemExit(against.main() if against.is_asked_for() else BENCHMARK.main())
