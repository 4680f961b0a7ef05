"""Write docs/stack-benchmarks.md and its picture again from what is stored, or check them.

    python benchmarks/stacks_table.py                   write the page and the picture
    python benchmarks/stacks_table.py --check           change nothing; fail if one is not current
    python benchmarks/stacks_table.py --preview DIR     the same from and into another folder

Source: benchmarks/stacks.csv (python benchmarks/stacks.py). What is not in it is shown as not
measured.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pages
import stacks
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
    tera,
    three_digits,
)
from stacks import FIVE, FULL, PLAIN, RESULTS, STACK, TARGETS, Target

PICTURE = "stack_scaling.png"
COLOURS = {STACK: "#0072B2", FIVE: "#D55E00", PLAIN: "#000000", "floor": "#888888"}
_SHARED = 1.1  # several estimators that take less than this many times as long cost nothing

_PAGE = """\
<!-- Written by `python benchmarks/stacks_table.py` from benchmarks/stacks.csv. Do not edit. -->
# Stacks on a GPU

The lab trains many runs as one tensor program: every parameter and activation has a leading member
axis, and one CUDA graph advances all members. Here is what that gains on a GPU. A **run-step** is
one step of one member; its time is that of a step of the whole stack, divided by the members. The
**plain loop** is the released algorithm in plain PyTorch, measured in the same rounds: one run,
modules of `torch.nn`, ReinMax with stopped gradients as the paper prints it, `torch.optim.Adam`,
all data on the device, one step after the other.

{provenance}

Speeds are how many times as fast as the plain loop, the median over rounds, and in parentheses the
20th to 80th percentile. Above 1 is faster.

## Targets

What the lab promises, and what was measured.

{targets}

## Where we lose

{losses}

## The VAE of the paper

8 categories x 4 latents on MNIST, batch 100, Adam, matrix products with TF32 on both sides. *Five
estimators* are ReinMax, ST, STGS, GST-1.0 and GR-MCK with {draws} draws, as many members of each.
*Start* is what building, compiling and capturing take before the first step, and after so many
steps the stack has made up for it. Memory is the most in use at once, with the images.
{picture}
{vae}

**The floor** is the time to move the bytes that a step of one run needs at least, at the bandwidth
of a plain copy from device to device, bytes read plus bytes written. With P parameters, of which W
are weights of layers after the first one, these are 36 P + 4 W:

- 28 P: the update reads parameter, gradient and two moments, and writes all but the gradient
- 4 P: backward writes the gradient
- 4 P: forward reads the parameters
- 4 W: backward reads the weights; the images need no gradient

{floor}

## Polynomial programming

128 latents, batch 256, p = 2, ReinMax with Adam in float32.

{polynomial}

## What else a run costs

Whole runs from the first step to the last, as long as the paper's, trained and stored by
`discretegrad_lab.execute` on the disk of that machine, with progress shown; against epochs of a
stack that does nothing but train. *Overhead* is the share of the time that the bare epochs do not
explain: metrics and test images, checkpoints, progress, and the wait for the last files. Starting
is left out on both sides. *polynomial-curves* is Figure 1 as `discretegrad run polynomial-curves`
trains it, with all its estimators and powers; the others are ReinMax alone. Short runs are trained
several *times*, since disks are noisy: the interval is over these and over bare epochs, the parts
are those of the median run, of two the slower one. Short runs also show what writing their
directories costs (*end*), some milliseconds each with every file synced; a longer run has no more
of it, and the next stack of the same command starts meanwhile.

{overhead}

## How it is measured

- Before a stack is timed it must pass a gate: after its first epoch no loss may be infinite, and
  the members with ReinMax must have learned as much as the plain loop. Without that it gets no
  times.
- A round is an epoch of the stack and {steps} steps of the plain loop after one to warm up, in an
  order shuffled anew; ratios are formed within a round. There are {rounds} rounds,
  {slow_rounds} where an epoch takes more than {slow:g} s.
- All times are on the wall clock, with the device idle at both ends. An epoch of a stack contains
  all that training does: the order of the images, the random numbers, the mean loss.
- The plain loop never waits for a loss, which most loops do.
- Memory is that of torch's allocator.
- The values of every column are in the file stacks.csv in the folder benchmarks.
"""


def measured(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok"]


# the page


def page(results: Results) -> str:
    """The page of the documentation."""
    vae = results.of("vae")
    return _PAGE.format(
        provenance=pages.provenance_table(results.rows),
        targets=targets_table(results),
        losses=bullets(losses(results)) or ("Nowhere." if results.rows else NOT_MEASURED),
        draws=FULL.draws,
        picture=f"\n![Time of a run-step](assets/{PICTURE})\n" if measured(vae) else "",
        vae=race_table(vae),
        floor=floor_text(vae),
        polynomial=race_table(results.of("polynomial")),
        overhead=overhead_table(results.of("overhead")),
        steps=FULL.steps,
        rounds=FULL.rounds,
        slow_rounds=stacks.SLOW_ROUNDS,
        slow=stacks.SLOW_SECONDS,
    )


def targets_table(results: Results) -> str:
    lines = [
        [
            f"{target.case}, {target.members} members",
            target.says.format(f"{target.limit:g}"),
            *judged(target, results.rows),
        ]
        for target in TARGETS
    ]
    return pages.targets_table(lines)


def judged(target: Target, rows: Sequence[Row]) -> tuple[str, str]:
    """What was measured, and whether that is enough."""
    key = (target.section, target.case, str(target.members), STACK)
    row = next(
        (r for r in rows if (r["section"], r["case"], r["members"], r["provider"]) == key), None
    )
    return pages.judged(target, row, lambda row: interval(row, target.column, target.unit))


def interval(row: Row, column: str, unit: float) -> str:
    """Median with its spread, as in ``16.1 (16.0-16.3)``."""
    median, low, high = (
        two_digits(float(row[column + suffix]) / unit) for suffix in ("", "_p20", "_p80")
    )
    return f"{median} ({low}-{high})" if "-" not in low else f"{median} ({low} to {high})"


def two_digits(number: float) -> str:
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def plural(number: int | str, what: str) -> str:
    return f"{number} {what}{'' if str(number) == '1' else 's'}"


def losses(results: Results) -> list[str]:
    """Where a stack is slower or larger than plain runs, or costs more than it should."""
    found = []
    for section in ("vae", "polynomial"):
        rows = measured(results.of(section))
        plain = next((row for row in rows if row["provider"] == PLAIN), None)
        if plain is None:
            continue
        for row in rows:
            if row is plain:
                continue
            who = f"{row['case']}: a {row['provider']} with {plural(row['members'], 'member')}"
            if float(row["speedup"]) < 1:
                found.append(f"{who} is slower than the plain loop ({short(row['speedup'])}x).")
            if row["peak_bytes"] and plain["peak_bytes"]:
                more = float(row["peak_bytes"]) / int(row["members"]) / float(plain["peak_bytes"])
                if more > 1:
                    found.append(
                        f"{who} takes {short(more)} times the memory of as many plain runs."
                    )
        found += mixtures(rows)
    for row in measured(results.of("overhead")):
        target = next(target for target in TARGETS if target.section == "overhead")
        if not target.is_met(float(row["overhead"])):
            share = two_digits(100 * float(row["overhead"]))
            found.append(
                f"{row['case']}: {share} % of the {three_digits(float(row['run_seconds']))} s of a "
                f"whole run of {plural(row['members'], 'member')} is not training."
            )
    return found


def mixtures(rows: Sequence[Row]) -> list[str]:
    """Where several estimators take longer than one."""
    alone = {row["members"]: row for row in rows if row["provider"] == STACK}
    found = []
    for row in rows:
        if row["provider"] == FIVE and row["members"] in alone:
            more = float(row["seconds"]) / float(alone[row["members"]]["seconds"])
            if more > _SHARED:
                found.append(
                    f"{row['case']}: {row['members']} members with five estimators take "
                    f"{short(more)} times as long as with ReinMax alone."
                )
    return found


def race_table(rows: Sequence[Row]) -> str:
    if not rows:
        return NOT_MEASURED
    plain = next(row for row in rows if row["provider"] == PLAIN)
    headings = ["", "members", "a run-step", "run-steps per second", "vs the plain loop"]
    with_floor = any(row["times_floor"] for row in rows)
    headings += ["vs the floor"] if with_floor else []
    headings += ["memory", "a member's", "start", "made up for after"]
    lines = []
    for row in sorted(rows, key=lambda row: (row["provider"], int(row["members"]))):
        if row["status"] != "ok":
            blank = [""] * (len(headings) - 3)
            lines.append([row["provider"], row["members"], row["status"], *blank])
            continue
        members = int(row["members"])
        memory = row["peak_bytes"]
        line = [
            row["provider"],
            row["members"],
            seconds(row),
            f"{1 / float(row['seconds']):,.0f}",
            ratio(row, "speedup"),
        ]
        if with_floor:
            line.append(f"{short(row['times_floor'])}x" if row is not plain else "")
        line += [
            size(memory),
            size(float(memory) / members) if memory and row is not plain else "",
            f"{float(row['start_seconds']):.1f} s" if row["start_seconds"] else "",
            made_up(row, plain),
        ]
        lines.append(line)
    return markdown(headings, lines)


def made_up(row: Row, plain: Row) -> str:
    """After how many steps the stack is ahead of as many plain runs, one after the other."""
    if row is plain or plain["status"] != "ok":
        return ""
    gain = int(row["members"]) * (float(plain["seconds"]) - float(row["seconds"]))
    if gain <= 0:
        return "never"
    return f"{float(row['start_seconds']) / gain:,.0f} steps"


def floor_text(rows: Sequence[Row]) -> str:
    """How many bytes these are, and how long they take."""
    row = next(iter(measured(rows)), None)
    if row is None:
        return NOT_MEASURED
    parameters, floor, activations = (
        int(row[name]) for name in ("parameters", "floor_bytes", "activation_bytes")
    )
    weights = (floor - 36 * parameters) // 4
    bandwidth = float(row["copy_bandwidth"])
    text = (
        f"With P = {parameters:,} and W = {weights:,} these are {floor / 1e6:.1f} MB, or "
        f"{1e6 * floor / bandwidth:.1f} µs at {tera(row['copy_bandwidth'])}. Activations would add "
        f"{activations / 1e6:.1f} MB, or {1e6 * activations / bandwidth:.1f} µs, if none of them "
        "stayed in a cache: the input of a layer is read twice and its output written once, the "
        "gradient at the output is written once and read twice."
    )
    return textwrap.fill(text + cache_note(rows), 100)


def cache_note(rows: Sequence[Row]) -> str:
    """Which stacks may be faster than the floor."""
    fitting = [
        int(row["members"])
        for row in measured(rows)
        if row["provider"] == STACK
        and row["l2_bytes"]
        and 4 * int(row["parameters"]) * int(row["members"]) <= int(row["l2_bytes"])
    ]
    if not fitting:
        return ""
    return (
        f" The parameters of {plural(max(fitting), 'member')} fit into the cache of the GPU "
        f"({size(rows[0]['l2_bytes'])}), so less than the floor is possible up to there."
    )


def overhead_table(rows: Sequence[Row]) -> str:
    if not rows:
        return NOT_MEASURED
    headings = ["", "members", "epochs", "times", "overhead", "the run", "training"]
    headings += ["waiting to save", "end", "all else"]
    lines = []
    for row in rows:
        if row["status"] != "ok":
            lines.append([row["case"], row["members"], "", "", row["status"], *[""] * 5])
            continue
        whole, *parts = (
            float(row[f"{name}_seconds"]) for name in ("run", "epochs", "checkpoint", "end")
        )
        lines.append(
            [
                row["case"],
                row["members"],
                row["epochs"],
                row["rounds"],
                f"{interval(row, 'overhead', 0.01)} %",
                *(f"{part:.3f} s" for part in (whole, *parts, whole - sum(parts))),
            ]
        )
    return markdown(headings, lines)


# the picture


def pictures(results: Results) -> list[str]:
    return [PICTURE] if measured(results.of("vae")) else []


def draw(results: Results, folder: Path) -> list[Path]:
    """Time of a run-step over the members; nothing if it was not measured."""
    rows = measured(results.of("vae"))
    if not rows:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PICTURE
    metadata = {"Source": results.digest}
    scaling(rows).savefig(path, dpi=110, metadata=metadata, pil_kwargs={"optimize": True})
    return [path]


def scaling(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    ax = figure.subplots()
    for provider, marker in ((STACK, "o"), (FIVE, "s")):
        chosen = sorted(
            (row for row in rows if row["provider"] == provider), key=lambda r: int(r["members"])
        )
        values, low, high = (
            [1e6 * float(row[f"seconds{suffix}"]) for row in chosen]
            for suffix in ("", "_p20", "_p80")
        )
        spreads = [
            [v - x for v, x in zip(values, low, strict=True)],
            [x - v for v, x in zip(values, high, strict=True)],
        ]
        members = [int(row["members"]) for row in chosen]
        ax.errorbar(members, values, spreads, marker=marker, color=COLOURS[provider],
                    capsize=2, label=provider)  # fmt: skip
        for x, y in zip(members, values, strict=True):
            ax.annotate(three_digits(y), (x, y), xytext=(4, 5), textcoords="offset points",
                        fontsize="x-small", color=COLOURS[provider])  # fmt: skip
    bandwidth = float(rows[0]["copy_bandwidth"])
    floor = 1e6 * int(rows[0]["floor_bytes"]) / bandwidth
    lines = [(floor, "floor", "memory traffic", ":")]
    lines += [
        (1e6 * float(row["seconds"]), PLAIN, PLAIN, "--")
        for row in rows
        if row["provider"] == PLAIN
    ]
    for value, colour, label, style in lines:
        ax.axhline(value, color=COLOURS[colour], linestyle=style, linewidth=1,
                   label=f"{label}, {three_digits(value)} µs")  # fmt: skip
    target = next(target for target in TARGETS if target.section == "vae")
    ax.plot([target.members], [target.limit], "*", color="#009E73", markersize=11,
            label=f"target, {target.limit:g} µs", zorder=3)  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks = sorted({int(row["members"]) for row in rows})
    ax.set_xticks(ticks, list(map(str, ticks)))
    ax.minorticks_off()
    ax.set_xlabel("members")
    ax.set_ylabel("µs per run-step")
    ax.grid(alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    return figure


PAGE = Page(
    "benchmarks/stacks_table.py",
    ROOT / "docs" / "stack-benchmarks.md",
    (RESULTS,),
    page,
    pictures,
    draw,
)


def main(arguments: Sequence[str] | None = None) -> int:
    return PAGE.main(__doc__, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
