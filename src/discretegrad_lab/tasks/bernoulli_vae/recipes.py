"""The experiments of the Bernoulli VAE: Table 6 as published, and with one protocol for all.

Each of its six rows is a recipe, with the lines of both protocols; the recipes of all data sets
train the same runs, in stacks that hold the members of all three.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...stack.lines import Line
from ..base import Build, Metric, Recipe, Run, Task
from ..chosen import Choice
from ..halving import SEARCH_SEEDS, Halving, Rung
from .claims import CLAIMS, EXACT_DIVERGENCE
from .config import DATA, WORDS, BernoulliVae
from .exhibits import exhibits
from .gradients import METRICS, REFERENCE_DRAWS
from .gradients import NAMES as GRADIENTS
from .model import BernoulliVaeModel, memory
from .published import RELEASED, table

TASK = Task(
    config=BernoulliVae,
    model=BernoulliVaeModel,
    metrics=(
        Metric("train", "Train \N{MINUS SIGN}ELBO", 2),
        Metric("valid", "Validation \N{MINUS SIGN}ELBO", 2),
        Metric("test", "Test \N{MINUS SIGN}ELBO", 2),
        Metric("test_bound", "Test bound, 100 samples", 2, minor=True),
        Metric("gpu_seconds", "seconds of the device per run", 3, minor=True),
        Metric("loss_evaluations", "evaluations of f", 0, minor=True),
        *METRICS,
    ),
    memory=memory,
    words=WORDS,
    claims=CLAIMS,
)
EXACT = Line(
    "ReinMax, exact divergence", "reinmax", key=EXACT_DIVERGENCE, colour="#0072B2", dash="10 3"
)
"""As all others but for the divergence, whose expectation is beside the loss."""
SAMPLERS = ("reinmax", EXACT, "st", "stgs", "gst-1.0", "gr-mck")
"""Lines with a temperature, which is searched."""
_RLOO = Line("RLOO", "leave_one_out", key="leave-one-out", colour="#999933", dash="2 3")
_DOUBLE = Line("Double CV", "double_cv", colour="#117733")
SCORES: dict[int, tuple[str | Line, ...]] = {
    2: (
        _RLOO,
        Line("DisARM", "disarm", colour="#332288", dash="2 3"),
        _DOUBLE,
        "rodeo",
        Line("REBAR", "rebar", colour="#882255", dash="6 3"),
        Line("RELAX, tied", "relax", key="relax-tied", colour="#882255", dash="10 3", tied=True),
    ),
    3: (
        _RLOO,
        Line("ARMS", "arms", colour="#332288"),
        _DOUBLE,
        "rodeo",
        Line(
            "REBAR, untied", "rebar", key="rebar-untied", colour="#882255", dash="2 3", tied=False
        ),
        Line("RELAX", "relax", colour="#882255"),
    ),
}
"""The unbiased lines that K evaluations admit."""
AS_RELEASED = Line("ReinMax, as released", "reinmax", key=RELEASED, colour="#0072B2", dash="2 3")
CORRECTED = Line(
    "ReinMax, as released, prior paired rightly",
    "reinmax",
    key="reinmax-corrected",
    colour="#0072B2",
    dash="6 3",
)
PRIORS = {AS_RELEASED.key: "released", CORRECTED.key: "learned"}
TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.1, 1.2, 1.3, 1.5)
"""Candidates of the search."""
SMALL_TEMPERATURES = dict.fromkeys(("stgs", "gst-1.0", "gr-mck"), (0.1, 0.2))
"""Further ones of lines with a relaxed sample, which may be best where it is nearly discrete."""
RUNGS = (Rung(25), Rung(75))
"""Of 200 epochs: half of the candidates train beyond the first, a quarter to the end."""
CHOICE = Choice(
    BernoulliVae,
    Path(__file__).with_name("temperatures.csv"),
    where=("data", "evaluations"),
    fields=("tau",),
    by=("valid",),
)
"""Found by the searches, which what trains with a temperature waits for."""
# where the temperature starts of estimators that learn it: as in the released code of RELAX
_LEARNED_TAU = 0.1


def lines(evaluations: int) -> tuple[str | Line, ...]:
    """All lines of a row of the table."""
    return (AS_RELEASED, CORRECTED, *SAMPLERS, *SCORES[evaluations])


def temperature(data: str, evaluations: int, estimator: str) -> float:
    """What the search found to be best.

    Raises:
        NotChosen: If nothing was chosen yet.
    """
    search = f"bernoulli-vae-search-k{evaluations}"
    return float(CHOICE.required(search, estimator, "valid", data, evaluations)["tau"])


def _key(estimator: str | Line) -> str:
    return estimator.key if isinstance(estimator, Line) else estimator


def _run(estimator: Any, seed: int, data: Any, evaluations: int, **changes: Any) -> BernoulliVae:
    """A run under the protocol of its line; a temperature that is to be searched is 1."""
    key = _key(estimator)
    fields: dict[str, Any] = {
        "estimator": estimator,
        "seed": seed,
        "data": data,
        "evaluations": evaluations,
        "tf32": True,
        # as in the released scripts of the baselines
        "learning_rate": 3e-4 if data == "fashion-mnist" else 1e-3,
    }
    if isinstance(estimator, Line) and estimator.row in ("rebar", "relax"):
        fields["tau"] = _LEARNED_TAU
    if key == EXACT.key:
        fields["divergence"] = "exact"
    if key in PRIORS:
        # as in the released script of ReinMax
        hot = data == "omniglot" and evaluations == 3
        fields |= {
            "optimiser": "radam",
            "learning_rate": 5e-4 if hot else 3e-4,
            "tau": 1.2 if hot else 1.1,
            "binarised": "once",
            "prior": PRIORS[key],
            "divergence": "exact",
            "start": "torch",
            "two_logits": True,
        }
    return BernoulliVae(**fields | changes)


def _build(
    evaluations: int, names: Sequence[str], *, searched: bool = True, **changes: Any
) -> Build:
    """Runs on these data sets, with the temperatures that the search chose, or without a search."""

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        key = _key(estimator)
        for data in names:
            tau = {}
            if searched and key in [_key(x) for x in SAMPLERS]:
                tau["tau"] = temperature(data, evaluations, key)
            yield _run(estimator, seed, data, evaluations, **tau | changes)

    return build


_NOTE = (
    "ReinMax as released: images binarised once, a learned prior, RAdam, torch's initial weights; "
    "all other lines: images binarised anew at every step, a uniform prior, Adam at the learning "
    "rates of the baseline papers, Glorot's initial weights. Seconds of the device: the share of a "
    "run in the time of its stack, which holds runs of its line alone, without tests; unknown "
    "where other processes shared the device. Evaluations of f: for an image in a step, as counted."
)
_OMNIGLOT = (
    " The published numbers of Omniglot are of other pixels: the papers' file is not to be had, "
    "and here it is another resize of the drawings with a random split of the same sizes."
)
_METRICS = ("train", "test", "test_bound", "gpu_seconds", "loss_evaluations")


def _row(data: str, evaluations: int) -> Recipe:
    return Recipe(
        f"bernoulli-vae-{data}-k{evaluations}",
        f"Bernoulli VAE on {DATA[data]}, {evaluations} evaluations",
        TASK,
        _build(evaluations, [data]),
        seeds=tuple(range(5)),
        estimators=lines(evaluations),
        choices=lines(evaluations),
        metrics=_METRICS,
        reproduces=f"Table 6, {DATA[data]} and K = {evaluations}",
        data=(data,),
        claims=tuple(CLAIMS),
        published={"train": table(data, evaluations)},
        note=_NOTE + (_OMNIGLOT if data == "omniglot" else ""),
        overview=True,
        over="gpu_seconds",
        against=("reinmax", "rodeo"),
        exhibits=exhibits,
    )


def _all_data(evaluations: int) -> Recipe:
    return Recipe(
        f"bernoulli-vae-k{evaluations}",
        f"Bernoulli VAE on three data sets, {evaluations} evaluations",
        TASK,
        _build(evaluations, tuple(DATA)),
        seeds=tuple(range(5)),
        estimators=lines(evaluations),
        choices=lines(evaluations),
        metrics=_METRICS,
        reproduces=f"Table 6, K = {evaluations}",
        data=tuple(DATA),
        panels=("data",),
        curves=False,
        claims=tuple(CLAIMS),
        note=_NOTE + _OMNIGLOT,
        overview=True,
        against=("reinmax", "rodeo"),
        exhibits=exhibits,
    )


def _times(evaluations: int) -> Recipe:
    return Recipe(
        f"bernoulli-vae-times-k{evaluations}",
        f"What a step of the Bernoulli VAE takes, {evaluations} evaluations",
        TASK,
        _build(evaluations, tuple(DATA), searched=False, epochs=3),
        # 75 members in a stack
        seeds=tuple(range(25)),
        estimators=lines(evaluations),
        choices=lines(evaluations),
        metrics=("train", "gpu_seconds", "loss_evaluations"),
        data=tuple(DATA),
        panels=("data",),
        curves=False,
        note="Seconds of the device for 3,000 steps of a run, as a member of a stack of 75 runs "
        "with the same line, with nothing else on the device.",
        overview=True,
    )


def _search(evaluations: int) -> Recipe:
    def build(estimator: Any, seed: int) -> Iterator[Run]:
        for data in DATA:
            for tau in (*SMALL_TEMPERATURES.get(_key(estimator), ()), *TEMPERATURES):
                yield _run(estimator, seed, data, evaluations, tau=tau, epochs=200)

    return Recipe(
        f"bernoulli-vae-search-k{evaluations}",
        f"The search for temperatures of the Bernoulli VAE, {evaluations} evaluations",
        TASK,
        build,
        seeds=SEARCH_SEEDS,
        estimators=SAMPLERS,
        choices=SAMPLERS,
        metrics=("valid", "train"),
        data=tuple(DATA),
        panels=("data",),
        rows=("tau",),
        curves=False,
        halving=Halving("valid", CHOICE.fields, RUNGS),
        choice=CHOICE,
    )


def _gradients(evaluations: int) -> Recipe:
    alike = tuple(x for x in lines(evaluations) if x not in (AS_RELEASED, CORRECTED, EXACT))
    return Recipe(
        f"bernoulli-vae-gradients-k{evaluations}",
        f"Gradients of the Bernoulli VAE on MNIST, {evaluations} evaluations",
        TASK,
        _build(evaluations, ["mnist"], compared=True, epochs=300),
        # with two, half an interval would be nine standard deviations
        seeds=(0, 1, 2),
        estimators=alike,
        choices=alike,
        metrics=("train", *GRADIENTS),
        data=("mnist",),
        note="Along each line's own training, at the logits of the first 20 bits of 4 training "
        "images. All bits are drawn, and networks and weights of an estimator are those that it "
        "has learned so far. Deviation and bias are relative to the norm of the true gradient. "
        f"That is the mean of {REFERENCE_DRAWS:,} draws of an unbiased estimator, which differs "
        "from the truth by about its error.",
        overview=True,
    )


RECIPES = (
    *(_row(data, evaluations) for evaluations in SCORES for data in DATA),
    *map(_all_data, SCORES),
    *map(_times, SCORES),
    *map(_search, SCORES),
    *map(_gradients, SCORES),
)
