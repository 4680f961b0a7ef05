"""The paper's experiments beside ours: a page of the documentation and a table of the README.

``python benchmarks/table.py`` writes both from the results that are stored below results/.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from measure import ROOT
from pages import markdown, wrapped

from discretegrad_lab import tasks
from discretegrad_lab.report import section as sections
from discretegrad_lab.report.document import Curve, Figure, Section, Verdict
from discretegrad_lab.report.entries import Entry, entries
from discretegrad_lab.report.reading import Reading, of_recipe
from discretegrad_lab.report.results import read as read_folder
from discretegrad_lab.report.tables import from_optimum
from discretegrad_lab.report.verdicts import RULE
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.tasks.evidence import Results
from discretegrad_lab.tasks.polynomial import temperature

PAGE = ROOT / "docs" / "reproduction.md"
RESULTS = ROOT / "results"

VAE = "vae-10x30"
CURVES, SETTINGS, SEARCH = (f"polynomial-{name}" for name in ("curves", "settings", "temperatures"))
STORED = (VAE, CURVES, "polynomial-grids", SETTINGS, SEARCH)

_PAGE = """\
<!-- Written by `python benchmarks/table.py` from the results below results/. Do not edit. -->
# The paper, trained again

Experiments of *Bridging Discrete and Backpropagation: Straight-Through and Beyond*
([arXiv:2304.08612](https://arxiv.org/abs/2304.08612)), trained by [the lab](lab.md) with the
settings that the paper gives, and those of its released code where the text does not say, beside
the numbers and claims of the paper.

{runs}

*Training* is the time of all epochs, with compiling in the first one, without starting and storing;
recipes share runs, which are trained once. Each is one command, and what it leaves is reported by
another:

```bash
discretegrad data fetch mnist
discretegrad run vae-10x30
discretegrad report vae-10x30
```

Every run, its configuration and its outcome are in the folder results of the repository, with the
full reports; `discretegrad report --check` proves that the reports follow from the runs. In a clone
`discretegrad report vae-10x30` makes of them a page with curves to look at, without any training.

{rule}

## A categorical VAE on MNIST

30 latent variables with 10 categories each, 96,000 steps of a batch of 100, and the optimiser, the
learning rate and the temperature that the paper found best for each estimator (Table 8). Matrix
products use TF32. This is one of the six sizes in the paper's tables; the others are not trained
here yet.

{vae}

![The loss against the epoch, train and test](assets/vae-10x30.png)

From the tenth epoch on; bands are 95 % intervals.

![Digits, and what each estimator's model makes of them](assets/vae-10x30-reconstructions.png)

Digits of the test set, and the decoder's mean for one sample of their code, from the model with the
lowest seed; drawn by `discretegrad plot vae-10x30` where these runs were trained.

## Polynomial programming

The mean of |X - c|^p over binary variables X is minimised over their logits, in 8,000 steps of Adam
at a learning rate of 0.001. Temperatures are tuned as in the paper, over ten values with two seeds
that are used nowhere else (batch 256, 128 variables; GR-MCK with 100 draws there and 1,000 in what
follows):

{temperatures}

Among the estimators that fail in setting A, ST and GST-1.0, all temperatures end equally far from
the optimum, so that the choice means nothing there.

{search_claims}

![Expected loss at the end against the temperature](assets/polynomial-temperatures.png)

### Training curves

128 variables, batch 256, c = 0.45 (Figure 1). The exact gradient is the reference.

![Expected loss against the step](assets/polynomial-curves.png)

{curves}

### Settings A and B, batch sizes and numbers of variables

In setting A every c is 0.45, in setting B they are spread over (0, 1) (Figures 7 to 10). The paper
shows these figures without naming their batch sizes and numbers of variables in the text: 16, 64
and 256, and 8, 32 and 128, are our choice. REINFORCE is the plain one without a baseline, as in the
released code; RODEO evaluates the loss as often as the others. Curves of these runs are kept every
other epoch, and averages over the epochs follow straight lines between. The simplest corner of the
grid, and the hardest one:

![Expected loss against the step, simplest and hardest setting](assets/polynomial-settings.png)

{settings}

How ReinMax compares with RODEO in simple settings depends on its temperature. What the search found
at a temperature of 1, in setting A with 128 variables and batch 256, beside what is above (mean ±
half the 95 % interval):

{at_one}
"""


@cache
def read(recipe: str) -> Results:
    """What is stored of a recipe."""
    return read_folder(RESULTS / recipe)


def reading(results: Results) -> Reading:
    """How the results of a recipe are to be read."""
    return of_recipe(tasks.recipe(results.recipe))


def section(results: Results) -> Section:
    """The report on them."""
    return sections.section(reading(results), results)


def page() -> str:
    """The page of the documentation."""
    return _PAGE.format(
        runs=runs_table(),
        vae=tables_and_claims(VAE),
        rule=wrapped(RULE),
        temperatures=temperatures_table(),
        search_claims=claims_table(section(read(SEARCH)).verdicts),
        curves=tables_and_claims(CURVES),
        settings=tables_and_claims(SETTINGS, folded=True),
        at_one=at_one_table(),
    )


def runs_table() -> str:
    """What was trained, on what, and how long it took."""
    lines = []
    for name in STORED:
        results, recipe = read(name), tasks.recipe(name)
        counts = ", ".join(f"{n:,} {state}" for state, n in results.counts().items() if n)
        about = [dict.fromkeys(getattr(row, what) for row in results.rows) for what in _PROVENANCE]
        inside = name != SETTINGS and _identities(name) <= _identities(SETTINGS)
        seconds = f"in {SETTINGS}" if inside else f"{training_seconds(results):,.0f} s"
        lines.append([name, recipe.reproduces, counts, seconds, *(", ".join(x) for x in about)])
    return markdown(["recipe", "of the paper", "runs", "training", *_PROVENANCE], lines)


_PROVENANCE = ("device", "torch", "commit")


def _identities(recipe: str) -> set[str]:
    return {row.identity for row in read(recipe).rows}


def training_seconds(results: Results) -> float:
    """Runs of a stack have the same time, and differ in none of these."""
    stacks = {(row.config["latents"], row.config["batch"]): row.seconds for row in results.rows}
    return sum(stacks.values())


def tables_and_claims(recipe: str, *, folded: bool = False) -> str:
    """What the report says; with ``folded`` a reader opens the tables one by one."""
    whole = section(read(recipe))
    parts = []
    for table in whole.tables:
        text = [wrapped(table.caption), markdown(table.headings, [list(row) for row in table.rows])]
        text += [wrapped(note) for note in table.notes]
        if folded:
            lines = "\n\n".join(text).splitlines()
            body = "\n".join(f"    {line}".rstrip() for line in lines)
            parts.append(f'??? note "{table.title}"\n\n{body}')
        else:
            parts += [f"**{table.title}**", *text]
    parts.append(claims_table(whole.verdicts))
    return "\n\n".join(parts)


def claims_table(verdicts: Sequence[Verdict]) -> str:
    """The paper's claims with what the runs say."""
    return markdown(
        ["the paper says", "where", "here", "numbers"],
        [[v.text, v.place, f"**{v.word}**", v.evidence] for v in verdicts],
    )


def temperatures_table() -> str:
    """The best of the search."""
    settings = read(SEARCH).settings(("power", "target"))
    headings = [reading(read(SEARCH)).describe(setting) for setting in settings]
    lines = [
        [line.label, *(f"{temperature(x['power'], x['target'], key):g}" for x in settings)]
        for key, line in LINES.items()
        if line.has_tau
    ]
    return markdown(["", *headings], lines)


def at_one_table() -> str:
    """ReinMax in the search at 1, at its best, and RODEO."""
    lines = []
    for power in (1.5, 2.0, 3.0):
        where = {"power": power, "target": "constant", "latents": 128, "batch": 256}
        rows = [
            _entry(read(SEARCH).part(tau=1.0, **where), "reinmax"),
            _entry(read(SETTINGS).part(**where), "reinmax"),
            _entry(read(SETTINGS).part(**where), "rodeo"),
        ]
        cells = [f"{from_optimum(entry)} ({entry.ours.count} runs)" for entry in rows]
        lines.append([reading(read(SEARCH)).describe({"power": power}), *cells])
    return markdown(["% above the optimum", "ReinMax, τ = 1", "ReinMax, tuned", "RODEO"], lines)


def _entry(results: Results, estimator: str) -> Entry:
    (entry,) = (x for x in entries(reading(results), results) if x.estimator == estimator)
    return entry


def figures() -> dict[str, list[Figure]]:
    """The curves of each picture, by its name."""
    return {
        VAE: [from_epoch(10, figure) for figure in figures_of(read(VAE))],
        CURVES: figures_of(read(CURVES)),
        SEARCH: figures_of(read(SEARCH)),
        SETTINGS: [
            figure
            for corner in (
                {"target": "constant", "latents": 8, "batch": 256},
                {"target": "spread", "latents": 128, "batch": 16},
            )
            for figure in figures_of(read(SETTINGS).part(**corner))
        ],
    }


def figures_of(results: Results) -> list[Figure]:
    """The curves of a report."""
    return section(results).figures


def from_epoch(first: int, figure: Figure) -> Figure:
    """Without the beginning, beside which nothing else could be seen."""
    return replace(figure, curves=tuple(_later(curve, first) for curve in figure.curves))


def _later(curve: Curve, first: int) -> Curve:
    start = next(number for number, x in enumerate(curve.x) if x >= first)
    parts = (curve.x, curve.y, curve.low, curve.high)
    x, y, low, high = (None if part is None else part[start:] for part in parts)
    return replace(curve, x=x, y=y, low=low, high=high)


def readme_block() -> str:
    """The column of the main table, and what became of the claims."""
    results = read(VAE)
    lines: dict[str, list[str]] = {}
    for entry in entries(reading(results), results):
        label = LINES[entry.estimator].label
        assert entry.cell is not None
        lines.setdefault(label, [label]).extend(
            (
                f"{entry.cell.value:.2f} ± {entry.cell.summary.half:.2f}",
                f"{entry.ours.mean:.2f} ± {entry.ours.half:.2f}",
                entry.verdict,
            )
        )
    headings = ["MNIST-VAE, 10 x 30"]
    for metric in ("train", "test"):
        headings += [f"{metric} \N{MINUS SIGN}ELBO, published", "ours", "difference"]
    return f"{markdown(headings, list(lines.values()))}\n\n{wrapped(_caption(results))}\n"


def _caption(results: Results) -> str:
    cells = entries(reading(results), results)
    published = {entry.cell.runs for entry in cells if entry.cell}
    ours = {entry.ours.count for entry in cells}
    doubts = [x for table in section(results).tables for x in table.notes if "in doubt" in x]
    seconds = f"{training_seconds(results):.0f} s"
    about = results.rows[0]
    claims = [verdict for name in STORED for verdict in section(read(name)).verdicts]
    held, failed, open_ = (
        sum(verdict.holds is holds for verdict in claims) for holds in (True, False, None)
    )
    trained = sum(read(name).counts()["finished"] for name in (VAE, SETTINGS, SEARCH))
    return (
        f"Mean ± half the 95 % interval, published over {_numbers(published)} runs and ours over "
        f"{_numbers(ours)}; *within* means that the difference lies inside its own 95 % interval. "
        f"All {len(results.rows)} runs trained at once in {seconds} on one {about.device} (commit "
        f"{about.commit}, TF32). {' '.join(doubts)}\n\n"
        f"{trained:,} finished runs are stored. Of {len(claims)} claims of the paper {held} hold "
        f"in them, {failed} do not and {open_} are undecided: "
        "[the paper, trained again](docs/reproduction.md)."
    )


def _numbers(counts: set[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
