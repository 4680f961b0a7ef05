"""Write docs/kernel-benchmarks.md and its pictures again from what is stored, or check them.

    python benchmarks/kernels_table.py                   write the page and the pictures
    python benchmarks/kernels_table.py --check           change nothing; fail if one is not current
    python benchmarks/kernels_table.py --preview DIR     the same from and into another folder

Sources: benchmarks/kernels.csv and benchmarks/efficiency.csv (python benchmarks/kernels.py). What
is not in them is shown as not measured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import kernels
import pages
from kernels import (
    BY_INDEX,
    COMPILED,
    EAGER,
    EFFICIENCY,
    GRAPH,
    GRAPH_OF_20,
    LINEAR_SELECT,
    METHODS,
    PYPI,
    REINMAX,
    RESULTS,
    SECTIONS,
    STEPS_PER_EPOCH,
    STRAIGHTFORWARD,
    TARGETS,
    TORCH,
    TORCH_PATH,
    Target,
)
from matplotlib.figure import Figure
from measure import ROOT
from pages import (
    NOT_MEASURED,
    Page,
    Results,
    Row,
    bullets,
    markdown,
    ratio,
    seconds,
    short,
    size,
    three_digits,
)

FLOOR_PICTURE, MEMORY_PICTURE = "kernel_floor.png", "kernel_memory.png"
COLOURS = {
    REINMAX: "#0072B2",
    "reinmax tau=1.3": "#56B4E9",
    "straight_through": "#D55E00",
    "gumbel_softmax": "#009E73",
    "gapped": "#CC79A7",
    "mean_baseline": "#E69F00",
    TORCH_PATH: "#7A4FBF",
    COMPILED: "#8C564B",
    TORCH: "#999999",
    PYPI: "#000000",
}
# what else computes the same, or something for the same purpose
RIVALS = {
    REINMAX: (TORCH_PATH, COMPILED, TORCH, PYPI),
    "reinmax tau=1.3": (TORCH, PYPI),
    "straight_through": (TORCH,),
    "gumbel_softmax": (TORCH,),
    "gapped": (TORCH,),
    "mean_baseline": (TORCH,),
    "bernoulli.reinmax": ('bernoulli.reinmax backend="torch"',),
    "gumbel_rao": ('gumbel_rao backend="torch"', "plain gumbel_rao"),
    "bernoulli.gumbel_rao": (
        'bernoulli.gumbel_rao backend="torch"',
        "plain bernoulli.gumbel_rao",
    ),
    BY_INDEX: (STRAIGHTFORWARD, TORCH, PYPI),
    LINEAR_SELECT: (BY_INDEX, STRAIGHTFORWARD, PYPI),
}
_MORE = 1.01  # less than this is no difference of memory

_PAGE = """\
<!-- Written by `python benchmarks/kernels_table.py` from benchmarks/kernels.csv and
benchmarks/efficiency.csv. Do not edit. -->
# Kernels on a GPU

Time and memory of forward plus backward on a GPU, against the bandwidth of its memory and against
other implementations. At sizes that fill a GPU every sampler is bound by memory traffic. The least
possible is five passes: forward reads the logits and writes the sample; backward reads the logits
and the gradient at the sample, and writes the gradient: 20 bytes an element in float32, 10 in
bfloat16. **The floor** is the time to move them at the bandwidth of a plain copy from device to
device, bytes read plus bytes written, as measured at the beginning of the same run.

{provenance}

Speeds are how many times as fast as another implementation, the median over rounds, and in
parentheses the 20th to 80th percentile. Above 1 is faster. A shape is rows x categories.

## Targets

What this library promises, and what was measured.

{targets}

## Where we lose

By the ratio of median times, which can differ in the last digit from a median of ratios.

{losses}

## Large

`reinmax` at tau 1. Extra memory is the most that is alive at once beyond the inputs, in tensors of
the logits' size; the sample and the gradient are two of them.

{headline}
{pictures}
Every sampler, as a multiple of the floor, with the median time. `{torch_path}` is the
same formula in plain torch operations, and `{compiled}` that form through `torch.compile`.

{floors}

Extra memory, in tensors of the logits' size.

{memory}

## Small

Here the time goes into starting kernels. *Eager* is the wall clock over many calls; in a *graph*
one forward and backward is captured and replayed; *graph of 20* has twenty of them in one graph and
shows what another one adds. Kernels are launches forward and backward, with copies and fills after
the plus sign.

{small}

## Gumbel-Rao with 1000 draws

On the logits of the paper's quadratic problem, tau 0.5. The plain form holds the noise of all draws
in memory.

{gumbel_rao}

## The paper's table of efficiency

A step is forward and backward without an update of the parameters: quadratic programming (QP) with
128 binary variables and a batch of 512, and a VAE on MNIST with 30 variables of 10 categories and a
batch of 100. The plain forms are those with a stopped gradient that the papers print. Time is that
of an epoch ({qp_steps} and {vae_steps} steps), memory the peak with parameters and inputs.
Published numbers are from another GPU and contain what the training loop did around the step; ours
repeat one batch, so only plain and ours compare.
Source: {source}.

{efficiency}

## A codebook by index

`one_hot @ table` with gradients for the logits and the table, rows x categories x width.
`reinmax_index` with `select` never writes the one-hot; the others multiply with it, in float32
without TF32. Memory is beyond the inputs.

{index}

## Vocabulary

A linear layer, a sample, and a row of a table: rows x categories x width of both. `linear_select`
never holds a tensor of rows x categories. Memory is beyond inputs, output and all gradients.

{vocabulary}

## How it is measured

- Before a provider is timed it must pass a gate: gradients finite; in this library samples exactly
  one-hot and rows of the gradient that sum to zero; ReinMax gradients (ours and PyPI's) equal to
  the formula in float64, for rows at both ends of the tensor. Without that it gets no times.
- All providers of a case run in one process. A block is as many calls as fit into {block_ms:.0f}
  milliseconds after a warm-up call. A round is one block of every provider in an order shuffled
  anew, and there are {rounds}. Ratios are formed within a round. A provider that needs more than
  {slow:g} seconds a call gets {slow_rounds} rounds of one call.
- Eager calls at small sizes, graphs of 20 and the table of efficiency are timed by the wall clock
  around a block, so they include what the host needs. All others are timed by events on the stream
  of the GPU, the median of the calls in a block, each after a pause in which the host gets ahead.
- A call is the sampler and `torch.autograd.grad` with a fixed random gradient at the sample.
- Memory is that of torch's allocator, launches are those that torch's profiler sees.
{cache}- The values of every column are in the files kernels.csv and efficiency.csv in the folder
  benchmarks.
"""


# the page


def page(results: Results) -> str:
    """The page of the documentation."""
    large, small = results.of("large"), results.of("small")
    pace = kernels.FULL_PACE
    return _PAGE.format(
        provenance=pages.provenance_table(
            row for row in results.rows if row.get("source", "this run") == "this run"
        ),
        targets=targets_table(results),
        losses=bullets(losses(results)) or ("Nowhere." if results.rows else NOT_MEASURED),
        headline=or_missing(headline_table(large), large),
        pictures=pictures_block(large),
        torch_path=TORCH_PATH,
        compiled=COMPILED,
        floors=by_case(large, floor_cell),
        memory=by_case([row for row in large if row["mode"] == EAGER], memory_cell),
        small=or_missing(small_tables(small), small),
        gumbel_rao=simple_tables(
            results.of("gumbel_rao"),
            {
                "time": seconds,
                "vs the plain form": lambda row: ratio(row, "speedup_plain"),
                "extra memory": lambda row: size(row["peak_extra_bytes"]),
                "vs `straight_through`": lambda row: short(row["memory_ratio"]),
            },
        ),
        qp_steps=STEPS_PER_EPOCH[kernels.QP],
        vae_steps=STEPS_PER_EPOCH[kernels.VAE],
        source=kernels.PUBLISHED_SOURCE,
        efficiency=efficiency_tables(results.of("efficiency")),
        index=simple_tables(
            results.of("index"),
            {
                "time": seconds,
                "vs `F.gumbel_softmax`": lambda row: ratio(row, "speedup_torch"),
                "vs PyPI `reinmax`": lambda row: ratio(row, "speedup_pypi"),
                f"vs `{STRAIGHTFORWARD}`": lambda row: ratio(row, "speedup_plain"),
                "extra memory": lambda row: size(row["peak_extra_bytes"]),
            },
        ),
        vocabulary=simple_tables(
            results.of("vocabulary"),
            {
                "time": seconds,
                "vs PyPI `reinmax`": lambda row: ratio(row, "speedup_pypi"),
                f"vs `{STRAIGHTFORWARD}`": lambda row: ratio(row, "speedup_plain"),
                "memory": lambda row: size(row["beyond_bytes"]),
            },
        ),
        block_ms=pace.seconds * 1000,
        rounds=pace.rounds,
        slow=kernels.SLOW_SECONDS,
        slow_rounds=kernels.SLOW_ROUNDS,
        cache=cache_note(large),
    )


def targets_table(results: Results) -> str:
    lines = []
    for target in TARGETS:
        lines.append(
            [
                f"`{target.provider}` {named(target.case, target.dtype, target.mode)}",
                target.says.format(f"{target.limit:g}"),
                *judged(target, results.rows),
            ]
        )
    return pages.targets_table(lines)


def judged(target: Target, rows: Sequence[Row]) -> tuple[str, str]:
    """What was measured, and whether that is enough."""
    key = (target.section, target.case, target.dtype, target.mode, target.provider)
    row = next(
        (r for r in rows if tuple(r[c] for c in ("section", *_CASE, "provider")) == key), None
    )
    return pages.judged(target, row, lambda row: short(float(row[target.column]) / target.unit))


_CASE = ("case", "dtype", "mode")


def named(case: str, dtype: str, mode: str) -> str:
    """Where something was measured; eager is the rule."""
    return " ".join([case, dtype, *([mode] if mode != EAGER else [])])


def grouped(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Rows of the same case together."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in _CASE), []).append(row)
    return groups


def losses(results: Results) -> list[str]:
    """Where a fused kernel is slower, or needs more memory, than something else."""
    found: dict[str, list[str]] = {}
    for section in SECTIONS:
        if section == "efficiency":
            continue
        for case, rows in grouped(results.of(section)).items():
            for row, rival in contests([row for row in rows if row["status"] == "ok"]):
                names = f"`{row['provider']}`", f"`{rival['provider']}`"
                speed = float(rival["seconds"]) / float(row["seconds"])
                if speed < 1:
                    claim = f"{names[0]} is slower than {names[1]}"
                    found.setdefault(claim, []).append(f"{named(*case)} ({short(speed)}x)")
                # the allocator rounds up, which counts at small sizes
                if section == "small" or not row["peak_extra_bytes"]:
                    continue
                more = float(row["peak_extra_bytes"]) / float(rival["peak_extra_bytes"] or "inf")
                if more > _MORE:
                    claim = f"{names[0]} needs more memory than {names[1]}"
                    found.setdefault(claim, []).append(f"{named(*case)} ({short(more)}x)")
    for row in results.of("efficiency"):
        if row["mode"] == "ours" and row["status"] == "ok" and float(row["speedup_plain"]) < 1:
            claim = f"{row['provider']} is slower than its plain form"
            found.setdefault(claim, []).append(f"{row['case']} ({short(row['speedup_plain'])}x)")
    return [f"{claim} at {', '.join(places)}." for claim, places in found.items()]


def contests(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Every fused kernel with its rivals that were timed beside it."""
    by_name = {row["provider"]: row for row in rows}
    return [
        (row, by_name[rival])
        for name, row in by_name.items()
        for rival in RIVALS.get(name, ())
        if rival in by_name
    ]


def headline_table(rows: Sequence[Row]) -> str:
    lines = []
    for (case, dtype, mode), group in grouped(rows).items():
        by_name = {row["provider"]: row for row in group}
        row = by_name.get(REINMAX)
        if row is None:
            continue
        if row["status"] != "ok":
            lines.append([named(case, dtype, mode), row["status"], "", "", ""])
            continue
        memory = [memory_cell(by_name[name]) for name in (REINMAX, TORCH, PYPI) if name in by_name]
        lines.append(
            [
                named(case, dtype, mode),
                f"{short(row['times_floor'])}x",
                ratio(row, "speedup_torch"),
                ratio(row, "speedup_pypi"),
                " / ".join(memory) if mode == EAGER else "",
            ]
        )
    headings = ["", "the floor", "vs `F.gumbel_softmax`", "vs PyPI `reinmax`"]
    return markdown([*headings, "memory: ours / torch / PyPI"], lines)


def by_case(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A table for each dtype: a line for each sampler, a column for each shape."""
    tables = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        chosen = [row for row in rows if row["dtype"] == dtype]
        for bits in (False, True):
            some = [row for row in chosen if row["case"].endswith("bits") == bits]
            cases = list(dict.fromkeys((row["case"], row["mode"]) for row in some))
            names = dict.fromkeys(row["provider"] for row in some)
            cells = {(row["provider"], row["case"], row["mode"]): cell(row) for row in some}
            headings = [case if mode == EAGER else f"{case}, {mode}" for case, mode in cases]
            lines = [[f"`{name}`", *(cells.get((name, *case), "") for case in cases)]
                     for name in names]  # fmt: skip
            tables += [markdown([dtype, *headings], lines)] if lines else []
    return "\n\n".join(tables) or NOT_MEASURED


def floor_cell(row: Row) -> str:
    if row["status"] != "ok":
        return row["status"]
    return f"{short(row['times_floor'])}x ({seconds(row)})"


def memory_cell(row: Row) -> str:
    return short(row["peak_extra_tensors"]) if row["status"] == "ok" else row["status"]


def small_tables(rows: Sequence[Row]) -> str:
    tables = []
    for case in dict.fromkeys(row["case"] for row in rows):
        by_key = {(r["provider"], r["mode"]): r for r in rows if r["case"] == case}
        lines = []
        for name in dict.fromkeys(provider for provider, _ in by_key):
            row = by_key[name, EAGER]
            graphs = [by_key.get((name, mode)) for mode in (GRAPH, GRAPH_OF_20)]
            lines.append(
                [
                    f"`{name}`",
                    seconds(row),
                    ratio(row, "speedup_torch"),
                    ratio(row, "speedup_pypi"),
                    launches(row, "forward"),
                    launches(row, "backward"),
                    *(seconds(graph) if graph else "" for graph in graphs),
                ]
            )
        headings = [case, "eager", "vs `F.gumbel_softmax`", "vs PyPI `reinmax`"]
        headings += ["kernels forward", "backward", GRAPH, GRAPH_OF_20]
        tables.append(markdown(headings, lines))
    return "\n\n".join(tables)


def launches(row: Row, part: str) -> str:
    kernels_, copies = row[f"launches_{part}"], row[f"copies_{part}"]
    return f"{kernels_}+{copies}" if copies not in ("", "0") else kernels_


def simple_tables(rows: Sequence[Row], cells: Mapping[str, Callable[[Row], str]]) -> str:
    """A table for each case; a provider that could not run says why."""
    tables = []
    for (case, dtype, _), group in grouped(rows).items():
        lines = [
            [f"`{row['provider']}`"]
            + (
                [cell(row) for cell in cells.values()]
                if row["status"] == "ok"
                else [row["status"], *[""] * (len(cells) - 1)]
            )
            for row in group
        ]
        tables.append(markdown([f"{case} {dtype}", *cells], lines))
    return "\n\n".join(tables) or NOT_MEASURED


def efficiency_tables(rows: Sequence[Row]) -> str:
    tables = []
    for problem in dict.fromkeys(row["case"] for row in rows):
        by_key = {(r["provider"], r["mode"]): r for r in rows if r["case"] == problem}
        lines = [
            [
                method.name,
                *(epoch(by_key[method.name, form]) for form in ("published", "plain", "ours")),
                ratio(by_key[method.name, "ours"], "speedup_plain"),
            ]
            for method in METHODS
        ]
        tables.append(markdown([problem, "published", "plain", "ours", "ours vs plain"], lines))
    return "\n\n".join(tables) or NOT_MEASURED


def epoch(row: Row) -> str:
    if row["status"] != "ok":
        return row["status"]
    memory = three_digits(float(row["peak_bytes"] or "nan") / 1e6)
    return f"{float(row['epoch_seconds']):.3g} s, {memory} MB"


def cache_note(rows: Sequence[Row]) -> str:
    """Which large cases are not larger than the cache."""
    l2 = next((int(row["l2_bytes"]) for row in rows if row["l2_bytes"]), 0)
    found = dict.fromkeys(
        f"{row['case']} {row['dtype']} ({size(row['tensor_bytes'])})"
        for row in rows
        if int(row["tensor_bytes"]) <= l2
    )
    if not found:
        return ""
    text = (
        f"A tensor fits into the cache of the GPU ({size(l2)}) at {', '.join(found)}: part of the "
        "traffic never reaches memory there, and less than the floor is possible. At all other "
        "large sizes data are larger than the cache."
    )
    return bullets([text]) + "\n"


def pictures_block(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    return (
        f"\n![Time as a multiple of the floor](assets/{FLOOR_PICTURE})\n\n"
        f"![Extra memory](assets/{MEMORY_PICTURE})\n"
    )


def or_missing(text: str, rows: Sequence[Row]) -> str:
    return text if rows else NOT_MEASURED


# the pictures


def pictures(results: Results) -> list[str]:
    return [FLOOR_PICTURE, MEMORY_PICTURE] if results.of("large") else []


def draw(results: Results, folder: Path) -> list[Path]:
    """Time and memory at large sizes; nothing if they were not measured."""
    rows = [row for row in results.of("large") if row["provider"] in COLOURS]
    rows = [row for row in rows if row["mode"] == EAGER and row["status"] == "ok"]
    if not rows:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, quantity, label, line, text in (
        (FLOOR_PICTURE, "times_floor", "time / floor", 1.0, "the floor"),
        (MEMORY_PICTURE, "peak_extra_tensors", "tensors of the logits' size", 2.0, "sample and "
         "gradient"),
    ):  # fmt: skip
        figure = bars(rows, quantity, label, line, text)
        path = folder / name
        metadata = {"Source": results.digest}
        figure.savefig(path, dpi=110, metadata=metadata, pil_kwargs={"optimize": True})
        written.append(path)
    return written


def bars(rows: Sequence[Row], quantity: str, label: str, line: float, text: str) -> Figure:
    """A panel for each dtype, a group for each shape, a bar for each sampler."""
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(9, 2.9 * len(dtypes) + 0.5), layout="constrained")
    panels = figure.subplots(len(dtypes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    width = 0.86 / len(COLOURS)
    for ax, dtype in zip(panels, dtypes, strict=True):
        for number, (provider, colour) in enumerate(COLOURS.items()):
            values = {
                row["case"]: float(row[quantity])
                for row in rows
                if (row["dtype"], row["provider"]) == (dtype, provider) and row[quantity]
            }
            places = [cases.index(case) + (number - 4.5) * width for case in values]
            ax.bar(places, values.values(), width, color=colour, label=provider)
        ax.axhline(line, color="black", linewidth=0.8, linestyle="--")
        ax.annotate(
            text, (1, line), xycoords=("axes fraction", "data"), xytext=(2, -3),
            textcoords="offset points", fontsize="x-small",
        )  # fmt: skip
        ax.set_ylabel(f"{label}\n{dtype}", fontsize="small")
        ax.set_xticks(range(len(cases)), cases)
        ax.grid(axis="y", alpha=0.3)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False,
                  fontsize="x-small")  # fmt: skip
    return figure


PAGE = Page(
    "benchmarks/kernels_table.py",
    ROOT / "docs" / "kernel-benchmarks.md",
    (RESULTS, EFFICIENCY),
    page,
    pictures,
    draw,
)


def main(arguments: Sequence[str] | None = None) -> int:
    return PAGE.main(__doc__, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
