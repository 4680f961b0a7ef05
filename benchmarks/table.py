"""Write every generated page and table again from what is stored, or check that they are current.

    python benchmarks/table.py            write docs/benchmarks.md, docs/reproduction.md, the tables
                                          of the README, and pictures
    python benchmarks/table.py --check    change nothing; fail if one of them is not current

Sources: benchmarks/results.csv (python benchmarks/run.py), the folders below results/ (discretegrad
run RECIPE, then discretegrad report RECIPE) and the registry of the library.
"""

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import reproduction
from measure import ROOT, read_csv
from pages import PICTURES, Row, markdown, ratio, relative, short, wrapped

import discretegrad
from cases import CASES, PROVIDERS, PYPI, REINMAX, TARGETS, TORCH, Target
from discretegrad_lab import published, results
from discretegrad_lab.config import Polynomial
from discretegrad_lab.estimators import ESTIMATORS
from discretegrad_lab.page import Claim, Figure
from discretegrad_lab.readings import NEAR, decimal, describe
from discretegrad_lab.recipes import RECIPES
from discretegrad_lab.report import VERDICTS, Entry, entries, section

RESULTS = ROOT / "benchmarks" / "results.csv"
DEMO = ROOT / "results" / "polynomial-headline"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"

_PAGE = """\
<!-- Written by `python benchmarks/run.py` from benchmarks/results.csv. Do not edit. -->
# Benchmarks

Forward plus backward of one sampler call in {dtype} on {threads} threads of a CPU.

| | |
| --- | --- |
| date | {date} |
| machine | {cpu}, {cores} cores |
| Python, torch | {python}, {torch} |
| discretegrad | {discretegrad}, commit {commit}{changes} |
| PyPI `reinmax` | {reinmax} |

Measure and write this page again with

```bash
{command}
```

Other machines give other times, so only ratios within this one run are shown: how many times as
fast as the baseline, the median over rounds, and in parentheses the 20th to 80th percentile. Above
1 is faster than the baseline. A wide range means that the machine was busy. A shape is rows x
categories.

## Targets

What `discretegrad.reinmax` at tau 1 promises, and what this run gave.

{targets}

## Speed against `torch.nn.functional.gumbel_softmax(hard=True)`

{speed_torch}

## Speed against PyPI `reinmax`

{speed_pypi}

## Peak memory

The most memory alive at once during forward and backward beyond the inputs, in tensors of the
logits' size. The sample and the gradient are two of them.

{memory}

## Where we lose

{losses}

## How it is measured

- Before anything is timed, every sampler must pass a gate at every shape: gradients finite, in this
  library samples exactly one-hot and rows of the gradient that sum to zero, and ReinMax gradients
  (ours and PyPI's) equal to the formula in float64 for the category that was drawn. If one fails,
  nothing is timed and nothing is written.
- All samplers run in one process, side by side. A block is up to 30 calls after warm-up calls (5
  calls at the large shapes; no call starts after a quarter of a second) and gives their median. A
  round is one block of every sampler in an order shuffled anew, so that none always runs after
  the same neighbour. Ratios are formed within a round. A sampler that needs more than a second a
  call is timed in three rounds, and on a busy machine all get fewer, at least five; the column
  `rounds` of the CSV counts them.
- A call is the sampler and `torch.autograd.grad` with a fixed gradient at the sample.
- Memory comes from torch's profiler, which sees every allocation on the CPU, also those inside
  an operation.
- The values of every column, with times in seconds for information, are in
  `benchmarks/results.csv`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    if parser.parse_args(arguments).check:
        stale = [path for path, text in generated().items() if path.read_text("utf-8") != text]
        stale += stale_pictures()
        for path in stale:
            print(f"{relative(path)} is not current: run python benchmarks/table.py")
        return 1 if stale else 0
    for path in write_all():
        print(f"written: {relative(path)}")
    return 0


def write_all() -> list[Path]:
    """Write every generated file, and return which."""
    texts = generated()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    # drawn again only for other curves: its bytes depend on the version of matplotlib
    pictures = stale_pictures()
    for path in pictures:
        draw_picture(path)
    return [*texts, *pictures]


def generated() -> dict[Path, str]:
    """What every generated file should hold."""
    rows = read_csv(RESULTS)
    readme = README.read_text(encoding="utf-8")
    blocks = {
        "estimators": estimators_block(),
        "scores": scores_block(),
        "demo": demo_block(),
        "reproduction": reproduction.readme_block(),
        "benchmark": benchmark_block(rows),
    }
    for name, block in blocks.items():
        readme = replace_block(readme, name, block)
    return {PAGE: page(rows), reproduction.PAGE: reproduction.page(), README: readme}


def replace_block(text: str, name: str, block: str) -> str:
    """``text`` with a new block between the markers of that name."""
    begin, end = f"<!-- begin generated: {name} -->\n", f"<!-- end generated: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"expected one pair of markers {begin.strip()!r} in README.md")
    before, rest = text.split(begin)
    return before + begin + block + rest[rest.index(end) :]


def page(rows: Sequence[Row]) -> str:
    """The page of the documentation."""
    about = dict(rows[0])
    about["changes"] = " with uncommitted changes" if about["uncommitted_changes"] == "yes" else ""
    return _PAGE.format(
        **about,
        targets=targets_table(rows),
        speed_torch=by_shape(rows, lambda row: ratio(row, "speedup_torch"), without=TORCH),
        speed_pypi=by_shape(rows, lambda row: ratio(row, "speedup_pypi"), without=PYPI),
        memory=by_shape(rows, lambda row: f"{float(row['peak_extra_tensors']):.1f}"),
        losses="\n".join(f"- {loss}" for loss in losses(rows)) or "Nowhere in this run.",
    )


def by_shape(rows: Sequence[Row], cell, without: str | None = None) -> str:
    """A table with a line for each sampler and a column for each shape."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    cells = {(row["provider"], row["shape"]): cell(row) for row in rows}
    names = [name for name in dict.fromkeys(row["provider"] for row in rows) if name != without]
    return markdown(
        ["sampler", *shapes],
        [[label(name), *(cells[name, shape] for shape in shapes)] for name in names],
    )


def targets_table(rows: Sequence[Row]) -> str:
    lines = []
    for target in TARGETS:
        row = find(rows, REINMAX, target.shape)
        if target.is_speed:
            promise = f"at least {target.limit:g}x {label(target.baseline)}"
            came = ratio(row, target.quantity)
        else:
            promise = f"at most {target.limit:g} of the memory of {label(target.baseline)}"
            came = f"{float(row[target.quantity]):.2f}"
        lines.append([target.shape, promise, came, "met" if is_met(target, rows) else "**missed**"])
    return markdown(["shape", "target", "this run", ""], lines)


def is_met(target: Target, rows: Sequence[Row]) -> bool:
    value = float(find(rows, REINMAX, target.shape)[target.quantity])
    return value >= target.limit if target.is_speed else value <= target.limit


def losses(rows: Sequence[Row]) -> list[str]:
    """Where a sampler of ours is slower, or needs more memory, than a baseline."""
    found: dict[str, list[str]] = {}
    ours = [provider.name for provider in PROVIDERS if provider.ours]
    for row in sorted(
        (r for r in rows if r["provider"] in ours), key=lambda r: ours.index(r["provider"])
    ):
        name = label(row["provider"])
        baselines = {"speedup_torch": TORCH}
        if row["provider"].startswith(REINMAX):
            baselines["speedup_pypi"] = PYPI
        for quantity, baseline in baselines.items():
            if float(row[quantity]) < 1:
                where = f"{row['shape']} ({short(row[quantity])}x)"
                found.setdefault(f"{name} is slower than {label(baseline)}", []).append(where)
        needed = float(row["peak_extra_tensors"])
        limit = float(find(rows, TORCH, row["shape"])["peak_extra_tensors"])
        if needed > limit:
            where = f"{row['shape']} ({needed:.1f} tensors, not {limit:.1f})"
            found.setdefault(f"{name} needs more memory than {label(TORCH)}", []).append(where)
    return [f"{claim} at {', '.join(places)}." for claim, places in found.items()]


def benchmark_block(rows: Sequence[Row]) -> str:
    """The short table of the README."""
    about = rows[0]
    lines = []
    for case in CASES:
        row = find(rows, REINMAX, case.name)
        baselines = [find(rows, name, case.name) for name in (TORCH, PYPI)]
        memory = [f"{float(r['peak_extra_tensors']):.1f}" for r in (row, *baselines)]
        lines.append(
            [
                case.name,
                ratio(row, "speedup_torch"),
                ratio(row, "speedup_pypi"),
                " / ".join(memory),
            ]
        )
    table = markdown(
        [
            "rows x categories",
            "vs `F.gumbel_softmax(hard=True)`",
            "vs PyPI `reinmax`",
            "peak memory: ours / torch / PyPI",
        ],
        lines,
    )
    note = (
        f"Median and 20th to 80th percentile of the ratio of times, {about['threads']} CPU "
        f"threads, {about['dtype']}, torch {about['torch']}, {about['date']}. Memory is beyond the "
        "inputs, in tensors of the logits' size."
    )
    return f"{table}\n\n{wrapped(note)}\n"


def estimators_block() -> str:
    """The samplers of the registry as a table."""
    lines = [
        [f"`{row.name}`", row.label, row.bias, row.temperature, row.reference]
        for row in discretegrad.ESTIMATORS.values()
        if row.kind == "sampler"
    ]
    return markdown(["function", "in papers", "bias", "temperature", "reference"], lines) + "\n"


def scores_block() -> str:
    """The score-function estimators of the registry as a table."""
    lines = [
        [
            f"`{row.name}`",
            row.label,
            " and ".join(row.families),
            "yes" if row.needs_grad_f else "no",
            row.reference,
        ]
        for row in discretegrad.ESTIMATORS.values()
        if row.kind == "score"
    ]
    headings = ["estimator", "in papers", "variables", "needs the gradient of f", "reference"]
    return markdown(headings, lines) + "\n"


def demo_block() -> str:
    """What ``make demo`` gives, from the stored results."""
    found = results.read(DEMO)
    return f"{demo_table(found)}\n\n{wrapped(demo_caption(found))}\n"


def demo_table(found: results.Results) -> str:
    """A line for each estimator, and for each p the loss and the steps."""
    lines: dict[str, list[str]] = {}
    headings = ["estimator"]
    for one in entries(found):
        title = ESTIMATORS[one.estimator].title
        problem = f"{describe(one.setting)}, best {decimal(one.optimum, 5)}"
        if problem not in headings:
            headings += [problem, "steps"]
        lines.setdefault(title, [title]).extend((_loss(one), _steps(one)))
    taus = _taus(found)
    if len({tau for some in taus.values() for tau in some}) > 1:
        headings.append("τ")
        for name, some in taus.items():
            lines[ESTIMATORS[name].title].append(" / ".join(f"{tau:g}" for tau in some) or "-")
    return markdown(headings, list(lines.values()))


def _loss(one: Entry) -> str:
    if not one.ours.count:
        return "-"
    half = f" ± {decimal(one.ours.half, 5)}" if one.ours.count > 1 else ""
    return decimal(one.ours.mean, 5) + half


def _steps(one: Entry) -> str:
    """A dash unless every run came near the optimum."""
    arrived = 0 < one.steps.count == one.ours.count
    return f"{one.steps.mean:,.0f}" if arrived else "-"


def _taus(found: results.Results) -> dict[str, list[float]]:
    """The temperatures of every estimator, one for each p; none where it has no temperature."""
    names = dict.fromkeys(row.config["estimator"] for row in found.rows)
    powers = [setting["power"] for setting in found.settings(("power",))]
    return {
        name: [found.where(estimator=name, power=power)[0].config["tau"] for power in powers]
        if ESTIMATORS[name].has_tau
        else []
        for name in names
    }


def demo_caption(found: results.Results) -> str:
    """What the table shows, and what it does not."""
    whole = section(found, figures=False)
    run, paper = found.rows[0].config, Polynomial(estimator="reinmax")
    seeds = len({row.config["seed"] for row in found.rows})
    number = "one seed" if seeds == 1 else f"{seeds} seeds, mean ± half the 95 % interval"
    return (
        f"The expected loss, which is exact, after {_training(run)} (Figure 1: "
        f"{_training(paper.document())}); {number}. The loss is the mean of |X - 0.45|^p over "
        f"{run['latents']} binary variables X, with {run['batch']} joint samples a step. Beside "
        f"it are the steps until it is within {100 * NEAR:g} % of the best possible and stays "
        f"there; a dash means: not within these steps. GR-MCK has {run['draws']:,} draws (the "
        f"paper: {paper.draws:,}). {_tuning(found)} For p = 2, a quadratic loss, ReinMax at τ = 1 "
        "is unbiased.\n\n"
        f"{_claims([item for item in whole.items if isinstance(item, Claim)], found.recipe)}\n\n"
        f"{whole.text}"
    )


def _training(config: Mapping[str, object]) -> str:
    steps = int(str(config["epochs"])) * int(str(config["steps_per_epoch"]))
    return f"{steps:,} steps of Adam at a learning rate of {config['learning_rate']:g}"


def _tuning(found: results.Results) -> str:
    """The temperatures of these runs, and how they were chosen."""
    searched = {
        (float(row["power"]), row["target"], row["estimator"], float(row["tau"]))
        for row in published.rows("temperatures.csv")
        if row["chosen"] == "yes" and int(row["runs"])
    }
    tempered = [row.config for row in found.rows if ESTIMATORS[row.config["estimator"]].has_tau]
    taus = {config["tau"] for config in tempered}
    which = f"τ is {taus.pop():g} everywhere" if len(taus) == 1 else "τ is given for each p"
    if not all((c["power"], c["target"], c["estimator"], c["tau"]) in searched for c in tempered):
        return (
            f"{which} and not tuned; the paper tunes it for each method, so this does not rank "
            "tuned methods."
        )
    search = RECIPES["polynomial-temperatures"].runs()
    seeds = " and ".join(str(seed) for seed in dict.fromkeys(run.seed for run in search))
    return (
        f"{which}: of {len(published.TEMPERATURES)} values the one that ended lowest with "
        f"{_training(search[0].document())}, {search[0].draws:,} draws and the seeds {seeds} "
        "(`polynomial-temperatures`)."
    )


def _claims(claims: Sequence[Claim], recipe: str) -> str:
    others = [
        f" {VERDICTS[one.holds].capitalize()}: “{one.text}” ({one.place})."
        for one in claims
        if not one.holds
    ]
    return (
        f"{len(claims) - len(others)} of {len(claims)} claims of the paper about this problem hold "
        f"for these seeds and temperatures ([numbers](results/{recipe}/report.md))."
        f"{''.join(others)}"
    )


def demo_figures() -> list[Figure]:
    """The curves of the stored results, one figure for each p."""
    return reproduction.figures_of(results.read(DEMO))


def fingerprint(figures: Sequence[Figure]) -> str:
    """The same for the same curves, colours and titles."""
    return hashlib.sha256(repr([astuple(one) for one in figures]).encode()).hexdigest()


def pictures() -> dict[Path, list[Figure]]:
    """All pictures of stored curves, and what they show."""
    found = {DEMO.name: demo_figures(), **reproduction.figures()}
    return {PICTURES / f"{name}.png": figures for name, figures in found.items()}


def draw_picture(path: Path) -> None:
    from discretegrad_lab.plots import draw

    figures = pictures()[path]
    # the picture says which curves it shows
    draw(figures, path, metadata={"Source": fingerprint(figures)})


def stale_pictures() -> list[Path]:
    """Those that show other curves than the stored ones."""
    return [path for path, figures in pictures().items() if source(path) != fingerprint(figures)]


def source(path: Path) -> str | None:
    from PIL import Image

    if not path.exists():
        return None
    with Image.open(path) as picture:
        return picture.text.get("Source")


def find(rows: Sequence[Row], provider: str, shape: str) -> Row:
    return next(row for row in rows if (row["provider"], row["shape"]) == (provider, shape))


def label(provider: str) -> str:
    if provider == TORCH:
        return "`F.gumbel_softmax`"
    return "PyPI `reinmax`" if provider == PYPI else f"`{provider}`"


if __name__ == "__main__":
    raise SystemExit(main())
