"""Write the generated tables of the pages from the registry, data/*.csv and the stored results.

A table stands between ``<!-- begin generated: name -->`` and ``<!-- end generated: name -->``.

    python docs/scripts/tables.py
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import discretegrad

DOCS = Path(__file__).parent.parent
PAGES = (
    "choosing-an-estimator.md",
    "routers.md",
    "subsets.md",
    "theory.md",
    "vector-quantisation.md",
)
_BLOCK = re.compile(
    r"(<!-- begin generated: (\w+) -->\n).*?(<!-- end generated: \2 -->)", re.DOTALL
)
_POLYNOMIALS = ("linear", "quadratic", "cubic")
_NETWORKS = {float(s): f"network, steepness {s}" for s in (0.25, 0.5, 1.0, 2.0)}
# temperatures in the range where each estimator is used
_TYPICAL_TAUS = {
    "ReinMax": ("1.0", "1.3"),
    "ST": ("1.0", "1.3"),
    "Blend 0.5": ("1.0", "1.3"),
    "STGS": ("0.1", "0.5", "1.0"),
    "GR-MCK": ("0.1", "0.5", "1.0"),
    "GST-1.0": ("0.5", "1.0"),
    "GST-p": ("0.5", "1.0"),
    "1/n, order 1": ("1.0",),
    "1/n, order 2": ("1.0",),
    "1/n, as released": ("1.0",),
}
_EXPERTS = {
    "sparse-mixer-1": "SparseMixer v1",
    "sparse-mixer-2": "SparseMixer v2",
    "top-1-gate": "Top-1 gate",
    "reinmax-gated": "ReinMax, gated",
    "top-1-st-gated": "Top-1 ST, gated",
    "rloo-gated": "RLOO, gated",
    "reinmax": "ReinMax",
    "top-1-st": "Top-1 ST",
    "rloo": "RLOO",
    "soft-mixture": "All experts, soft",
}
_CODEBOOKS = {"copied": "Nearest, copied", "stgs": "STGS", "st": "ST", "reinmax": "ReinMax"}


def pages() -> dict[Path, str]:
    """Every page with generated tables and the text it should have."""
    current = tables()

    def replacement(match: re.Match[str]) -> str:
        return match[1] + "\n" + current[match[2]] + "\n" + match[3]

    texts = {DOCS / name: (DOCS / name).read_text() for name in PAGES}
    return {path: _BLOCK.sub(replacement, text) for path, text in texts.items()}


def tables() -> dict[str, str]:
    """The tables by name."""
    measured = _read("bias_and_variance.csv")
    return {
        "estimators": _estimators(),
        "scores": _scores(),
        "temperature": _by_temperature(measured),
        "direction": _direction(measured),
        "comparison": _comparison(measured),
        "steepness": _by_steepness(measured),
        "sharpness": _by_sharpness(measured),
        "paper_temperatures": _paper_temperatures(),
        "cold": _cold(measured),
        "search": _search(),
        "gapped": _gapped(),
        "subset_orders": _subset_orders(),
        "newer": _newer(),
        "router_gradients": _router_gradients(),
        "experts": _experts("accuracy", 2),
        "experts_in_use": _experts("usage", 1),
        "experts_rates": _two_runs("experts-rates", "accuracy", "learning_rate", _EXPERTS, 1),
        "codebook": _codebook(),
        "codebook_scales": _two_runs("codebook-scales", "test", "scale", _CODEBOOKS, 1),
        "blend": _blend(),
    }


def _subset_orders() -> str:
    measured = _read("subset_orders.csv")
    labels, steepness = (
        dict.fromkeys(row[x] for row in measured) for x in ("estimator", "steepness")
    )
    by_setting = {(row["k"], row["estimator"], row["steepness"]): row for row in measured}

    def cell(*setting: str) -> str:
        row = by_setting[setting]
        return f"{_bias(row)} / {float(row['deviation']):.2f}"

    rows = [
        [k, label, *(cell(k, label, s) for s in steepness)]
        for k in dict.fromkeys(row["k"] for row in measured)
        for label in labels
    ]
    return _table(["k", "", *(f"steepness {s}" for s in steepness)], rows)


def _newer() -> str:
    measured = _read("newer_estimators.csv")
    labels, functions = (dict.fromkeys(row[x] for row in measured) for x in ("estimator", "f"))
    cells = {
        (row["estimator"], row["f"]): f"{_bias(row)} / {float(row['deviation']):.2f}"
        for row in measured
    }
    rows = [[label, *(cells[label, f] for f in functions)] for label in labels]
    return _table(["bias / deviation", *functions], rows)


def _router_gradients() -> str:
    measured = _read("router_gradients.csv")
    routers, steepness = (
        dict.fromkeys(row[x] for row in measured) for x in ("router", "steepness")
    )
    by_setting = {(row["router"], row["steepness"]): row for row in measured}

    def cell(*setting: str) -> str:
        row = by_setting[setting]
        return " / ".join(f"{float(row[x]):.2f}" for x in ("routing", "gating", "both"))

    rows = [[router, *(cell(router, s) for s in steepness)] for router in routers]
    return _table(["bias", *(f"steepness {s}" for s in steepness)], rows)


def _estimators() -> str:
    rows = [
        [
            f"[`{row.name}`](api/samplers.md#discretegrad.{row.name})",
            row.label,
            row.bias,
            "yes" if row.takes else "no",
            ", ".join(f"`{name}={value!r}`" for name, value in row.options.items()) or "none",
            row.temperature,
            row.reference,
        ]
        for row in discretegrad.ESTIMATORS.values()
        if row.kind == "sampler"
    ]
    return _table(
        [
            "Sampler",
            "In papers",
            "Bias",
            "Extra noise",
            "Own options",
            "Temperature",
            "Reference",
        ],
        rows,
    )


def _scores() -> str:
    rows = [
        [
            f"[`{row.name}`](api/score-functions.md#discretegrad.{row.name})",
            row.label,
            "any, also subsets" if row.any_family else " and ".join(row.families),
            str(row.min_samples) if row.evaluations else "-",
            _count(row.evaluations, row.extra_evaluations),
            _count(row.slopes, row.extra_slopes),
            f"`{row.module.__name__}`" if row.module else "-",
            row.reference,
        ]
        for row in discretegrad.ESTIMATORS.values()
        if row.kind == "score"
    ]
    return _table(
        [
            "Estimator",
            "In papers",
            "Variables",
            "Least K",
            "f",
            "Gradient of f",
            "Learns as",
            "Reference",
        ],
        rows,
    )


def _count(per_sample: int | None, extra: int) -> str:
    """How often something is evaluated for K samples."""
    if per_sample is None:
        return "all outcomes"
    terms = [f"{per_sample}K".removeprefix("1") if per_sample else "", str(extra) if extra else ""]
    return " + ".join(filter(None, terms)) or "0"


def _by_temperature(measured: Sequence[Mapping[str, str]]) -> str:
    labels = ("ReinMax", "ST", "STGS", "GST-1.0")
    taus = list(dict.fromkeys(row["tau"] for row in measured if row["estimator"] in labels))
    rows = [
        [label, f, *(_bias(_find(measured, label, tau, f)) for tau in taus)]
        for f in _POLYNOMIALS
        for label in labels
    ]
    return _table(["Estimator", "f", *taus], rows)


def _direction(measured: Sequence[Mapping[str, str]]) -> str:
    taus = ("0.1", "0.5", "1.0", "1.3", "2.0")
    rows = []
    for label in ("ReinMax", "ST", "STGS", "GR-MCK", "GST-1.0"):
        measurements = [_find(measured, label, tau, _NETWORKS[0.5]) for tau in taus]
        rows.append(
            [label, *(f"{_cosine(row)} / {float(row['deviation']):.2f}" for row in measurements)]
        )
    return _table(["Cosine / deviation", *taus], rows)


def _comparison(measured: Sequence[Mapping[str, str]]) -> str:
    rows = []
    for label, taus in _TYPICAL_TAUS.items():
        for tau in taus:
            row = _find(measured, label, tau, _NETWORKS[0.5])
            bias, deviation = float(row["bias"]), float(row["deviation"])
            errors = [math.hypot(bias, deviation / math.sqrt(n)) for n in (1, 100, 10_000)]
            cells = [_bias(row), f"{deviation:.2f}", *(f"{error:.2f}" for error in errors)]
            rows.append([label, tau, *cells, _cosine(row)])
    return _table(
        [
            "Estimator",
            "tau",
            "Bias",
            "Deviation",
            "Error of 1",
            "Error of 100",
            "Error of 10,000",
            "Cosine",
        ],
        rows,
    )


def _by_steepness(measured: Sequence[Mapping[str, str]]) -> str:
    labels = {
        "ReinMax": "1.0",
        "ST": "1.0",
        "Blend 0.5": "1.0",
        "STGS": "0.5",
        "GR-MCK": "0.5",
        "GST-1.0": "0.7",
    }
    rows = []
    for label, tau in labels.items():
        measurements = [_find(measured, label, tau, f) for f in _NETWORKS.values()]
        rows.append(
            [label, tau, *(f"{_bias(row)} / {float(row['deviation']):.2f}" for row in measurements)]
        )
    return _table(["Estimator", "tau", *(f"steepness {s:g}" for s in _NETWORKS)], rows)


def _by_sharpness(measured: Sequence[Mapping[str, str]]) -> str:
    rows = []
    for label in ("ReinMax", "ST", "1/n, order 1", "1/n, order 2"):
        measurements = [
            _find(measured, label, "1.0", "linear", scale) for scale in ("1.0", "2.0", "4.0")
        ]
        rows.append([label, *(f"{float(row['deviation']):.2f}" for row in measurements)])
    return _table(["Deviation at tau 1", "logits", "2 logits", "4 logits"], rows)


def _cold(measured: Sequence[Mapping[str, str]]) -> str:
    """Gumbel-Rao at temperatures near 0 beside ReinMax at 1."""
    functions = (*_POLYNOMIALS, _NETWORKS[0.5])
    rows = []
    for label, tau in (
        ("GR-MCK, 100 draws", "0.1"),
        ("GR-MCK, 100 draws", "0.01"),
        ("GR-MCK, 100 draws", "0.001"),
        ("ReinMax", "1.0"),
    ):
        cells = [_find(measured, label.split(",")[0], tau, f)["deviation"] for f in functions]
        rows.append([label, tau, *(f"{float(cell):.2f}" for cell in cells)])
    return _table(["Deviation of one estimate", "tau", *_POLYNOMIALS, "network"], rows)


def _search() -> str:
    """How far ReinMax ended above the optimum of polynomial programming, in percent."""
    stored = _results("polynomial-temperatures")
    taus = ("0.5", "0.7", "1.0", "1.1", "1.3", "1.5")
    percent = {
        (row["power"], row["target"], row["tau"]): 100
        * (float(row["ours"]) / float(row["optimum"]) - 1)
        for row in stored
        if row["estimator"] == "reinmax"
    }
    settings = {"constant": "setting A", "spread": "setting B"}
    rows = [
        [f"p = {float(p):g}, {setting}", *(f"{percent[p, target, tau]:.2f}" for tau in taus)]
        for p in ("1.5", "2.0", "3.0")
        for target, setting in settings.items()
    ]
    return _table(["% above the optimum", *(f"τ = {float(tau):g}" for tau in taus)], rows)


def _gapped() -> str:
    """ReinMax beside GST-1.0 in the VAE of 30 variables with 10 categories."""
    stored = {(row["metric"], row["estimator"]): row for row in _results("vae-10x30")}
    rows = []
    for metric, images in (("train", "training images"), ("test", "test images")):
        pair = [stored[metric, name] for name in ("reinmax", "gst-1.0")]
        ours = [f"{float(row['ours']):.2f} ± {float(row['half_interval']):.2f}" for row in pair]
        rows.append([f"-ELBO, {images}", *ours, *(row["published"] for row in pair)])
    return _table(["", "ReinMax", "GST-1.0", "ReinMax, paper", "GST-1.0, paper"], rows)


def _blend() -> str:
    """ReinMax, the blend and ST in the VAEs of the main table."""
    sizes = ("8x4", "4x24", "8x16", "16x12", "64x8", "10x30")
    labels = {"reinmax": "ReinMax", "blend-0.5": "Blend 0.5", "st": "ST"}
    stored = {
        (size, row["metric"], row["estimator"]): (
            f"{float(row['ours']):.1f} ± {float(row['half_interval']):.1f}"
        )
        for size in sizes
        for row in _results(f"vae-{size}")
    }
    rows = [
        [f"{label}, {metric}", *(stored[size, metric, name] for size in sizes)]
        for metric in ("train", "test")
        for name, label in labels.items()
    ]
    return _table(["-ELBO", *sizes], rows)


def _experts(metric: str, digits: int) -> str:
    """A number of the mixtures of experts for both data sets and all weights of the balance."""
    cells: dict[str, dict[str, str]] = {key: {} for key in _EXPERTS}
    for recipe, images in (("experts-mnist", "MNIST"), ("experts-fashion", "Fashion-MNIST")):
        for row in _results(recipe):
            if row["metric"] == metric:
                head = f"{images}, {float(row['balance']):g}"
                cells[row["estimator"]][head] = _with_half(row, digits)
    heads = list(cells["reinmax"])
    rows = [[label, *(cells[key][head] for head in heads)] for key, label in _EXPERTS.items()]
    return _table(["balance", *heads], rows)


def _two_runs(recipe: str, metric: str, field: str, labels: Mapping[str, str], digits: int) -> str:
    """What each of two runs had at the end, over the values of a field: too few for an interval."""
    cells: dict[tuple[str, float], list[str]] = {}
    for row in _rows(DOCS.parent / "results" / recipe / "runs.csv"):
        number = f"{float(row[f'final_{metric}']):.{digits}f}"
        cells.setdefault((row["estimator"], float(row[field])), []).append(number)
    values = sorted({value for _, value in cells})
    rows = [
        [label, *(", ".join(cells.get((key, value), ["-"])) for value in values)]
        for key, label in labels.items()
    ]
    return _table([field.replace("_", " "), *(f"{value:g}" for value in values)], rows)


def _codebook() -> str:
    """Drawn and nearest codes in the autoencoder of MNIST."""
    stored = {(row["metric"], row["estimator"]): row for row in _results("codebook-mnist")}
    metrics = {"test": "test reconstruction", "train": "loss in training", "usage": "codes in use"}
    rows = [
        [label, *(_with_half(stored[metric, key], 1) for metric in metrics)]
        for key, label in _CODEBOOKS.items()
    ]
    return _table(["", *metrics.values()], rows)


def _with_half(row: Mapping[str, str], digits: int) -> str:
    return f"{float(row['ours']):.{digits}f} ± {float(row['half_interval']):.{digits}f}"


def _paper_temperatures() -> str:
    rows = _read("paper_temperatures.csv")
    return _table(list(rows[0]), [list(row.values()) for row in rows])


def _find(
    measured: Sequence[Mapping[str, str]], label: str, tau: str, f: str, scale: str = "1.0"
) -> Mapping[str, str]:
    wanted = (label, tau, f, scale)
    (row,) = [
        row
        for row in measured
        if (row["estimator"], row["tau"], row["f"], row["logit_scale"]) == wanted
    ]
    return row


def _bias(row: Mapping[str, str]) -> str:
    bias = float(row["bias"])
    return "**0**" if bias == 0 else f"{bias:.2f}"


def _cosine(row: Mapping[str, str]) -> str:
    return f"{float(row['cosine']):.3f}"


def _read(name: str) -> list[dict[str, str]]:
    return _rows(DOCS / "data" / name)


def _results(recipe: str) -> list[dict[str, str]]:
    """What ``discretegrad report`` wrote of a recipe."""
    return _rows(DOCS.parent / "results" / recipe / "table.csv")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
