"""The figures of a report, and images that models make, as PNG files: the same bytes each time."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ..runs.files import write_whole
from .document import Curve, Figure, Tried, usable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

# a dollar sign in a title is a dollar sign
_STYLE: Any = {
    "text.parse_math": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "legend.frameon": False,
}
_WIDTH = 1.6  # of lines, in points
_DPI = 150
_COLUMNS = 3  # panels side by side
_LINE = 48  # letters of a title that fit above a panel
_DOTS = 3  # for a pixel of a picture
_PANEL = 4.2  # inches across
_MARKS = "os^DvPXp*<>"  # the shapes of html.MARKS
_MAP_NOTE = "Framed: the best of its row. The worst quarter of a panel has one colour."


def draw(
    figures: Sequence[Figure], path: Path | str, *, metadata: Mapping[str, str] | None = None
) -> None:
    """One panel for each figure, with one legend for them all.

    Args:
        figures: Those of a report; their captions stay out.
        path: The PNG file to write.
        metadata: Texts to store in the file, such as what the picture was made from.

    Raises:
        ValueError: If there is no figure.
    """
    if not figures:
        raise ValueError("expected at least one figure, got none")
    columns = 2 if len(figures) == 4 else min(_COLUMNS, len(figures))
    rows = math.ceil(len(figures) / columns)
    entries = {
        (curve.name, curve.colour, curve.dash, _mark(curve)): curve.name
        for figure in figures
        for curve in figure.curves
    }
    # inches that an entry of the legend takes: a sample of the line, and its letters
    entry = 0.6 + 0.075 * max((len(name) for name in entries.values()), default=0)
    across = max(1, min(len(entries), 2 * columns + 1, int(_PANEL * columns / entry)))
    below = 0.2 * math.ceil(len(entries) / across)
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(_PANEL * columns, 3.1 * rows + below), layout="constrained")
        panels = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for panel, figure in zip(panels, figures, strict=False):
            _panel(panel, figure)
        for panel in panels[len(figures) :]:
            panel.remove()
        if entries:
            handles = [_line([], [], *look[1:]) for look in entries]
            canvas.legend(handles, list(entries.values()), loc="outside lower center", ncols=across)
        _save(canvas, path, metadata)


def draw_map(
    figures: Sequence[Figure], path: Path | str, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Figures over values that were searched as maps: a row for each curve, its numbers in cells.

    The lighter a cell, the better its number, and the best of each row has a frame. The worst
    quarter of a panel's numbers has one colour: runs that failed to train are far from all others,
    beside which nothing else could be seen. A cell says how many of its runs failed.

    Args:
        figures: Those with ``searched``, one panel for each.
        path: The PNG file to write.
        metadata: Texts to store in the file, such as what the picture was made from.

    Raises:
        ValueError: If there is no figure.
    """
    if not figures:
        raise ValueError("expected at least one figure, got none")
    columns = min(2, len(figures))
    rows = math.ceil(len(figures) / columns)
    tallest = max(len(figure.curves) for figure in figures)
    with matplotlib.rc_context(_STYLE):
        size = 6.0 * columns, (0.9 + 0.33 * tallest) * rows + 0.25
        canvas = Canvas(figsize=size, layout="constrained")
        panels = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for panel, figure in zip(panels, figures, strict=False):
            _map_panel(panel, figure)
        for panel in panels[len(figures) :]:
            panel.remove()
        canvas.supxlabel(_MAP_NOTE, fontsize=8)
        _save(canvas, path, metadata)


def _map_panel(panel: "Axes", figure: Figure) -> None:
    values = sorted({x for curve in figure.curves for x in curve.x})
    cells = np.full((len(figure.curves), len(values)), math.nan)
    failed = np.zeros(cells.shape, dtype=int)
    for row, curve in enumerate(figure.curves):
        places = [values.index(x) for x in curve.x]
        cells[row, places] = [y if usable(y) else math.nan for y in curve.y]
        if isinstance(curve, Tried):
            failed[row, places] = curve.failed
    down = figure.better == "down"
    known = cells[np.isfinite(cells)]
    best, end = _map_ends(known if down else -known)
    low, high = (best, end) if down else (-end, -best)
    image = panel.imshow(
        cells, cmap="viridis_r" if down else "viridis", vmin=low, vmax=high, aspect="auto"
    )
    # the arrow of the bar: numbers beyond it have the colour of its end
    panel.figure.colorbar(image, ax=panel, extend="max" if down else "min", aspect=12, pad=0.02)
    panel.set_title(textwrap.fill(figure.title, _LINE))
    panel.set_xlabel(figure.x_label)
    panel.set_xticks(range(len(values)), [f"{x:g}" for x in values])
    panel.set_yticks(range(len(figure.curves)), [curve.name for curve in figure.curves])
    panel.tick_params(length=0)
    panel.grid(False)
    panel.spines[:].set_visible(False)
    for row, numbers in enumerate(cells):
        finite = numbers[np.isfinite(numbers)]
        best_of_row = (finite.min() if down else finite.max()) if finite.size else math.nan
        for column, value in enumerate(numbers):
            if not math.isfinite(value):
                continue
            dark = (value > (low + high) / 2) == down
            style: Any = {"color": "white" if dark else "black", "size": 7}
            if value == best_of_row:
                corner = column - 0.46, row - 0.44
                frame = Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=style["color"])
                panel.add_patch(frame)
                style["weight"] = "bold"
            text = f"{value:#.4g}"
            if failed[row, column]:
                text += f"\n{failed[row, column]} failed"
            panel.text(column, row, text, ha="center", va="center", **style)


def _map_ends(badness: "NDArray[np.float64]") -> tuple[float, float]:
    """Where colours begin, at the least, and where they end, before the largest quarter."""
    if not badness.size:
        return 0.0, 1.0
    least = float(badness.min())
    return least, max(float(np.quantile(badness, 0.75)), least + 1e-9)


def _mark(curve: Curve) -> str:
    return _MARKS[curve.mark % len(_MARKS)]


def _line(x: Sequence[float], y: Sequence[float], colour: str, dash: str, mark: str = "") -> Line2D:
    # matplotlib counts dashes in widths of the line, pages in pixels of a line two wide
    style: Any = (0, [float(part) / 2 for part in dash.split()]) if dash else "-"
    # a point between two gaps has no line
    marker, points = ("o", 3) if len(x) == 1 else (mark, 4.5)
    return Line2D(
        x, y, color=colour, linestyle=style, linewidth=_WIDTH, marker=marker, markersize=points
    )


def _panel(panel: "Axes", figure: Figure) -> None:
    log = figure.log_y
    x_limits, (bottom, top) = limits(figure)
    panel.set_title(textwrap.fill(figure.title, _LINE))
    panel.set(xlabel=figure.x_label, ylabel=figure.y_label)
    if log:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator() if top >= 10 * bottom else MaxNLocator(6))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set(xlim=x_limits, ylim=(bottom, top))
    if figure.reference is not None and usable(figure.reference, log):
        panel.axhline(figure.reference, color="0.2", linewidth=0.8, linestyle=":")
        panel.annotate(
            figure.reference_name,
            (0, figure.reference),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=8,
        )
    for number in figure.drawn:
        curve = figure.curves[number]
        for band in _band_pieces(curve, log):
            # matplotlib itself cuts off what a logarithmic axis does not have
            x, low, high = zip(*band, strict=True)
            panel.fill_between(x, low, high, color=curve.colour, alpha=0.16, linewidth=0)
        for line in _line_pieces(curve, log):
            x, y = zip(*line, strict=True)
            panel.add_line(_line(x, y, curve.colour, curve.dash))
        marked = [n for n in figure.marks(number) if usable(curve.y[n], log)]
        across, up = ([values[n] for n in marked] for values in (curve.x, curve.y))
        panel.plot(across, up, _mark(curve), color=curve.colour, markersize=4.5)
    if figure.empty:
        panel.text(0.5, 0.5, "no data", transform=panel.transAxes, ha="center")


def _line_pieces(curve: Curve, log: bool) -> list[list[tuple[float, float]]]:
    """The line between its gaps: points x, y."""
    points = zip(curve.x, curve.y, strict=True)
    pieces = groupby(points, key=lambda point: usable(point[0]) and usable(point[1], log))
    return [list(piece) for good, piece in pieces if good]


def _band_pieces(curve: Curve, log: bool) -> list[list[tuple[float, float, float]]]:
    """The interval between its gaps: x, low, high; low may lie below a logarithmic axis."""
    if curve.low is None or curve.high is None:
        return []
    points = zip(curve.x, curve.low, curve.high, strict=True)
    pieces = groupby(points, key=lambda p: usable(p[0]) and usable(p[1]) and usable(p[2], log))
    return [list(piece) for good, piece in pieces if good]


def limits(figure: Figure) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ends of both axes: all lines, and of wide bands as much again above and below them."""
    xs = [x for curve in figure.curves for x in curve.x]
    ys = [y for curve in figure.curves for y in curve.y]
    if figure.reference is not None:
        ys.append(figure.reference)
    lowest, highest = _ends(ys, 1.0, figure.log_y)
    bands = [y for curve in figure.curves for s in (curve.low, curve.high) for y in s or ()]
    ys += [min(max(y, lowest), highest) for y in bands if usable(y, figure.log_y)]
    return _ends(xs, 0.0, False), _ends(ys, 0.05, figure.log_y)


def _ends(values: Iterable[float], share: float, log: bool) -> tuple[float, float]:
    numbers = [float(f"{v:.7g}") for v in values if usable(v, log)]
    scaled = [math.log10(v) for v in numbers] if log else numbers
    low, high = min(scaled, default=0.0), max(scaled, default=1.0)
    space = share * (high - low)
    if low == high:
        space = 0.5 if log else 0.05 * abs(high) or 0.5
    low, high = low - space, high + space
    return (10**low, 10**high) if log else (low, high)


def picture_grid(images: "Sequence[tuple[str, ArrayLike | Tensor]]", path: Path | str) -> None:
    """Rows of grey pictures with their names, such as digits above their reconstructions.

    Args:
        images: For each row its name and its pictures: (number, height, width), from 0, black, to
            1, white; the same shape for all. What is not finite is red.
        path: The PNG file to write.

    Raises:
        ValueError: If the rows are none, or of different or other shapes.
    """
    rows = [_pictures(pictures) for _, pictures in images]
    shapes = [row.shape for row in rows]
    if not rows or len(shapes[0]) != 3 or 0 in shapes[0] or len(set(shapes)) > 1:
        raise ValueError(
            "expected rows of the same shape (number, height, width), "
            f"got {', '.join(map(str, shapes)) or 'no row'}"
        )
    number, height, width = shapes[0]
    apart = 2  # pixels between pictures
    tops = [i * (height + apart) for i in range(len(rows))]
    sheet = np.ones((tops[-1] + height, number * (width + apart) - apart, 3))
    for top, row in zip(tops, rows, strict=True):
        for k, picture in enumerate(row):
            left = k * (width + apart)
            sheet[top : top + height, left : left + width] = _rgb(picture)
    # whole dots for each pixel, so that all are of the same size
    margin, left = 2, 6 + 4 * max(len(name) for name, _ in images)
    down, across = sheet.shape[0], sheet.shape[1]
    total = left + across + margin, margin + down + margin
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(total[0] * _DOTS / _DPI, total[1] * _DOTS / _DPI))
        place = left / total[0], margin / total[1], across / total[0], down / total[1]
        panel = canvas.add_axes(place)
        panel.imshow(sheet, interpolation="nearest")
        panel.set_xticks([])
        panel.set_yticks([top + height / 2 - 0.5 for top in tops], [name for name, _ in images])
        panel.tick_params(length=0)
        panel.grid(False)
        panel.spines[:].set_visible(False)
        _save(canvas, path, None)


def _pictures(pictures: "ArrayLike | Tensor") -> "NDArray[np.float64]":
    if hasattr(pictures, "detach"):
        pictures = pictures.detach().cpu()
    return np.asarray(pictures, dtype=np.float64)


def _rgb(picture: "NDArray[np.float64]") -> "NDArray[np.float64]":
    colours = np.clip(np.nan_to_num(picture), 0.0, 1.0)[..., None].repeat(3, -1)
    colours[~np.isfinite(picture)] = (0.8, 0.0, 0.0)
    return colours


def _save(canvas: Canvas, path: Path | str, metadata: Mapping[str, str] | None) -> None:
    buffer = BytesIO()
    # the name of the program would carry its version
    canvas.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None, **(metadata or {})})
    write_whole(Path(path), buffer.getvalue())
