"""The page about the costs of a step, from benchmarks/steps.csv (python benchmarks/steps.py)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import ROOT, read_csv
from pages import Row, bullets, markdown, ratio, short

from discretegrad import ESTIMATORS

RESULTS = ROOT / "benchmarks" / "steps.csv"
PAGE = ROOT / "docs" / "estimator-costs.md"
BASELINE = "straight_through"
F_ALONE = "f alone"
TARGET = 0.25  # of the step, beyond the evaluations of f
LOSS = 1.5  # times the time or memory of the baseline that need an explanation

# estimators that f alone pays for: they need its values and nothing else
REINFORCE_FAMILY = tuple(
    row.name
    for row in ESTIMATORS.values()
    if row.kind == "score" and row.evaluations is not None and not row.needs_grad_f
)

# why an estimator takes longer or needs more memory than the baseline
REASONS = {
    "gumbel_softmax": "it draws noise for every variable and differentiates a relaxed sample.",
    "gumbel_rao": "its gradient averages 100 draws of noise for every sample, the default of "
    "`num_draws`.",
    "muprop": "it takes the slope of f at the mean in a backward of its own.",
    "double_cv": "it takes the slopes of f in a backward of their own, before that of the decoder.",
    "rodeo": "its network is evaluated, for each ordered pair of samples, at the one and all its "
    "neighbours with one bit changed, and learning keeps what that needs for its backward. It is "
    "meant for an f that costs more than this network.",
    "rebar": "it relaxes the samples and takes the slope of f there; learning its temperature "
    "takes second derivatives of f.",
    "relax": "it takes two slopes of f per sample, and evaluates and differentiates a network "
    "besides; learning takes second derivatives of both.",
    "arms": "logarithms and powers of float64 numbers for every variable of every sample.",
    "disarm_tree": "it treats every bit as two categories, and so handles twice the numbers.",
}

_PAGE = """\
<!-- Written by `python benchmarks/steps.py` from benchmarks/steps.csv. Do not edit. -->
# What a step costs

Time and peak memory of a training step with every estimator, at the same number of evaluations
of f. The problem: {latents} Bernoulli variables for each of {batch} images, a decoder
{latents}-{hidden}-{pixels} (LeakyReLU), f the cross-entropy of the {pixels} pixels. A step is
`expectation(logits, f, ...).mean().backward()`, with gradients for the logits and the decoder.
Everybody evaluates f {evaluations} times, so K, the number of samples, depends on the estimator.

How to read the tables:

- **time** and **memory** are ratios to `straight_through`, the cheapest that works through the
  slope of f. Above 1 is slower or larger.
- **beyond f** is the share of the step that is left if the evaluations of f are taken off:
  {evaluations} of them at constant samples, with their backward to the decoder.
- **beyond f and slopes** takes off the slopes of f as well (its gradient with respect to the
  sample), one for each that the estimator needs, and the backward to the decoder for the K
  samples only.
- Numbers are medians over rounds, with the 20th to 80th percentile in parentheses. A wide range
  means that the machine was busy. A share just below zero is noise.
- *frozen* has fixed coefficients and networks; *learning* also computes their gradients.

Not in the tables:

{impossible}

{devices}

## How it is measured

- Before anything is timed, a gate must be green: every step evaluates f as often as the registry
  says, losses and gradients are finite, the decoder's gradient is that of f alone at the same
  samples, `vectorize=True` and learning change no gradient, and for unbiased estimators the mean
  of 4000 estimates on three variables is the exact gradient up to its standard error. If anything
  fails, nothing is timed and nothing is written.
- All estimators run in one process. A block is five steps after a warm-up step (no step starts
  after a quarter of a second) and gives their median. A round is one block of every estimator in
  an order shuffled anew. Ratios and shares are formed within a round. An estimator that needs
  more than a quarter of a second a step is timed in five rounds, one step each; the column
  `rounds` of the CSV counts them.
- On a GPU times come from CUDA events around each step, after warm-up and synchronisation. Steps
  follow each other as in training. This problem is small for a GPU: most of the time goes into
  starting kernels, so the ratios count operations rather than arithmetic.
- Memory is the most that is alive at once in a step beyond the problem and the estimator, from
  torch's profiler on a CPU and from its allocator on a GPU. Gradients count.
- `disarm_tree` is for categories only: it gets the bits as 200 variables of two categories, and f
  reads the first. `gumbel_rao` runs with its default of 100 draws; `rodeo` with both weights
  at 0.5, its network with 100 hidden units; `relax` with a network of 137.
- The values of every column, with times in seconds for information, are in
  `benchmarks/steps.csv`.
"""

_DEVICE = """\
## {title}

| | |
| --- | --- |
| date | {date} |
| machine | {machine_line} |
| Python, torch | {python}, {torch} |
| discretegrad | {discretegrad}, commit {commit}{changes} |

Measure and write this page again with

```bash
{command}
```

### Target on {where}: less than {target:.0%} beyond f

{targets}

### One call of f per sample on {where}

The default, `vectorize=False`.

{loop}

### All samples in one call on {where}

With `vectorize=True`; `straight_through` and f alone run under `torch.vmap` as well. The last
column compares the time with that of the same estimator without it.

{vectorized}

### Where we lose on {where}

Estimators that need {loss:g} times the time or memory of `straight_through`, or more, with one call
of f per sample.

{losses}"""


def write_page(results: Path, page_path: Path) -> Path:
    page_path.write_text(page(read_csv(results)), encoding="utf-8")
    return page_path


def page(rows: Sequence[Row]) -> str:
    """The page of the documentation."""
    devices = list(dict.fromkeys(row["device"] for row in rows))
    return _PAGE.format(
        **rows[0],
        impossible=bullets(impossible(rows[0]["latents"])),
        devices="\n\n".join(
            device_section([row for row in rows if row["device"] == device]) for device in devices
        ),
    )


def impossible(latents: str) -> list[str]:
    """The estimators that cannot run on this problem, and why."""
    return [
        f"`{row.name}`: it evaluates f at every joint outcome, and {latents} bits have 2 to the "
        f"power of {latents} of them."
        for row in ESTIMATORS.values()
        if row.evaluations is None
    ]


def device_section(rows: Sequence[Row]) -> str:
    about = dict(rows[0])
    is_gpu = about["device"] == "cuda"
    changed = {"yes": " with uncommitted changes", "no": "", "unknown": ""}
    about["changes"] = changed[about["uncommitted_changes"]]
    host = f"{about['cores']} cores, {about['threads']} threads"
    where = f"{about['cpu']}, " if is_gpu else ""
    about["machine_line"] = f"{about['machine']}, {where}{host}"
    loop = [row for row in rows if row["vectorize"] == "no"]
    vectorized = [row for row in rows if row["vectorize"] == "yes"]
    return _DEVICE.format(
        **about,
        title="GPU" if is_gpu else "CPU",
        where="the GPU" if is_gpu else "the CPU",
        target=TARGET,
        targets=targets_table(rows),
        loop=costs_table(loop),
        vectorized=costs_table(vectorized, ("against the loop", "loop_ratio")),
        loss=LOSS,
        losses=bullets(losses(loop)) or "None in this run.",
    )


def targets_table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row["vectorize"] == "no" and row["estimator"] in REINFORCE_FAMILY:
            verdict = "met" if float(row["overhead"]) < TARGET else "**missed**"
            lines.append([label(row), share(row, "overhead"), verdict])
    return markdown(["estimator", "beyond f", ""], lines)


def costs_table(rows: Sequence[Row], extra: tuple[str, str] | None = None) -> str:
    """A line for every step, and what the baseline took in plain units."""
    baseline = next(row for row in rows if row["provider"] == BASELINE)
    unit = f"For information: {float(baseline['seconds']) * 1000:.3g} milliseconds and "
    unit += f"{float(baseline['peak_mib']):.3g} MiB is 1x."
    headings = ["", "K", "time", "memory", "beyond f", "beyond f and slopes"]
    lines = []
    for row in rows:
        line = [label(row), str(row["num_samples"]), *cells(row)]
        lines.append([*line, ratio(row, extra[1])] if extra else line)
    table = markdown([*headings, extra[0]] if extra else headings, lines)
    return f"{table}\n\n{unit}"


def cells(row: Mapping[str, object]) -> list[str]:
    """Time, memory and overheads of a row."""
    return [
        ratio(row, "time_ratio"),
        f"{short(row['memory_ratio'])}x",
        share(row, "overhead") if row["provider"] != F_ALONE else "",
        share(row, "overhead_with_slopes") if row["provider"] != row["reference"] else "",
    ]


def losses(rows: Sequence[Row]) -> list[str]:
    """Estimators that cost much more than the baseline, the slowest first, and why."""
    costs: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: -float(row["time_ratio"])):
        slower, larger = float(row["time_ratio"]), float(row["memory_ratio"])
        if row["estimator"] and max(slower, larger) >= LOSS:
            how = f", {row['variant']}" if row["variant"] else ""
            cost = f"{short(slower)}x the time and {short(larger)}x the memory{how}"
            costs.setdefault(row["estimator"], []).append(cost)
    return [
        f"`{name}` takes {'; '.join(found)}" + (f": {REASONS[name]}" if name in REASONS else ".")
        for name, found in costs.items()
    ]


def label(row: Row) -> str:
    if not row["estimator"]:
        return f"*{row['provider']}*"
    return f"`{row['estimator']}`" + (f" {row['variant']}" if row["variant"] else "")


def share(row: Mapping[str, object], quantity: str) -> str:
    """Median with its spread, as in ``12 % (10 to 14)``."""
    values = (float(str(row[quantity + suffix])) * 100 for suffix in ("", "_p20", "_p80"))
    median, low, high = (f"{value:.0f}".replace("-0", "0") for value in values)
    return f"{median} % ({low} to {high})"
