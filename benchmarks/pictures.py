"""The pictures of stored runs."""

from dataclasses import replace
from pathlib import Path

import several
import stored
from pages import PICTURES
from stored import is_drawn, reading, section

from discretegrad_lab.report.document import Curve, Drawing, Figure

_DRAWN = {
    **dict.fromkeys(
        (stored.GRADIENTS, stored.BY_TEMPERATURE), ("gradient_cosine", "gradient_bias")
    ),
    # what the draws leave room for: the bias itself is zero for many, which has no logarithm
    **dict.fromkeys(stored.BIT_GRADIENTS, ("gradient_deviation", "gradient_bias_bound")),
}
_PARSED = ("valid_accuracy", "test_accuracy", "valid_loss")


def of_curves() -> dict[Path, list[Figure]]:
    """What each picture of stored curves shows."""
    corners = (
        {"target": "constant", "latents": 8, "batch": 256},
        {"target": "spread", "latents": 128, "batch": 16},
    )
    settings = [section(stored.read(stored.SETTINGS).part(**corner)).figures for corner in corners]
    shown = {
        name: section(stored.read(name)).figures
        for name in (stored.DEMO, stored.CURVES, stored.SEARCH)
    }
    for name in filter(is_drawn, (stored.VAE, stored.SMALL_SAMPLES)):
        shown[name] = [from_epoch(10, figure) for figure in section(stored.read(name)).figures]
    shown |= {
        stored.SETTINGS: [figure for figures in settings for figure in figures],
    }
    for name, metrics in _DRAWN.items():
        if not is_drawn(name):
            continue
        # estimators differ by more than a factor of ten in the first epochs
        shown[name] = [
            replace(figure, log_y=figure.better == "down")
            for figure in chosen_figures(name, *metrics)
        ]
    for name in filter(is_drawn, (stored.SEARCHED, *stored.BITS)):
        shown[name] = [from_share(0.1, figure) for figure in section(stored.read(name)).figures]
    if is_drawn(stored.SAMPLES):
        how, results = reading(stored.read(stored.SAMPLES)), stored.read(stored.SAMPLES)
        shown[stored.SAMPLES] = several.over_time(how, results, section(results).figures)
    if is_drawn(stored.PARSING):
        shown[stored.PARSING] = [from_epoch(2, x) for x in chosen_figures(stored.PARSING, *_PARSED)]
    return {PICTURES / f"{name}.png": figures for name, figures in shown.items()}


def maps() -> dict[Path, list[Figure]]:
    """What each picture of a search shows, a panel for each size: the loss in training alone."""
    if not stored.read(stored.TEMPERATURES).rows:
        return {}
    return {PICTURES / f"{stored.TEMPERATURES}.png": chosen_figures(stored.TEMPERATURES, "train")}


def drawings() -> dict[Path, str]:
    """Drawings of reports that a page shows as they are."""
    return {
        PICTURES / f"{recipe}-{drawing.file}": drawing.svg
        for recipe in stored.DRAWINGS
        for drawing in drawn(recipe)
    }


def drawn(recipe: str) -> list[Drawing]:
    """Those of a recipe."""
    return [x for x in section(stored.read(recipe)).drawings if x.file in stored.DRAWINGS[recipe]]


def chosen_figures(recipe: str, *metrics: str) -> list[Figure]:
    """The figures of a report that show some of its metrics."""
    results = stored.read(recipe)
    labels = {metric.label for metric in reading(results).metrics if metric.name in metrics}
    return [figure for figure in section(results).figures if figure.y_label in labels]


def from_epoch(first: int, figure: Figure) -> Figure:
    """Without the beginning, beside which nothing else could be seen."""
    return replace(figure, curves=tuple(_later(curve, first) for curve in figure.curves))


def from_share(share: float, figure: Figure) -> Figure:
    """The same, where curves end at different places: each without so much of its own."""
    # a point that is there but for its rounding stays
    share *= 1 - 1e-6
    curves = tuple(_later(curve, share * curve.x[-1]) for curve in figure.curves)
    return replace(figure, curves=curves)


def _later(curve: Curve, first: float) -> Curve:
    start = next(number for number, x in enumerate(curve.x) if x >= first)
    parts = (curve.x, curve.y, curve.low, curve.high)
    x, y, low, high = (None if part is None else part[start:] for part in parts)
    return replace(curve, x=x, y=y, low=low, high=high)
