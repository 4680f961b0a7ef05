"""Where the lines of a figure lie and how its axes are marked, for pages and pictures alike."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from .document import LARGEST, Curve, Figure, usable


def line_pieces(curve: Curve, log: bool) -> list[list[tuple[float, float]]]:
    """The line between its gaps: points x, y."""
    points = zip(curve.x, curve.y, strict=True)
    pieces = groupby(points, key=lambda point: usable(point[0]) and usable(point[1], log))
    return [list(piece) for good, piece in pieces if good]


def band_pieces(curve: Curve, log: bool) -> list[list[tuple[float, float, float]]]:
    """The interval between its gaps: x, low, high; low may lie below a logarithmic axis."""
    if curve.low is None or curve.high is None:
        return []
    points = zip(curve.x, curve.low, curve.high, strict=True)
    pieces = groupby(points, key=lambda p: usable(p[0]) and usable(p[1]) and usable(p[2], log))
    return [list(piece) for good, piece in pieces if good]


def limits(figure: Figure) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ends of both axes: all that can be drawn, with a little space above and below it."""
    xs = [x for curve in figure.curves for x in curve.x]
    ys = [y for curve in figure.curves for s in (curve.y, curve.low, curve.high) for y in s or ()]
    if figure.reference is not None:
        ys.append(figure.reference)
    return _ends(xs, 0.0, False), _ends(ys, 0.05, figure.log_y)


def _ends(values: Iterable[float], share: float, log: bool) -> tuple[float, float]:
    numbers = [rounded(v) or 0.0 for v in values if usable(v, log)]
    scaled = [math.log10(v) for v in numbers] if log else numbers
    low, high = min(scaled, default=0.0), max(scaled, default=1.0)
    space = share * (high - low)
    if low == high:
        space = 0.5 if log else 0.05 * abs(high) or 0.5
    low, high = low - space, high + space
    return (10**low, 10**high) if log else (low, high)


def rounded(value: float | None) -> float | None:
    """A number with seven digits, which are more than a screen shows; None for a gap."""
    if value is None or not usable(value):
        return None
    return float(f"{value:.7g}") if abs(value) * LARGEST > 1 else 0.0


def ticks(low: float, high: float, count: int, log: bool = False) -> list[float]:
    """Round numbers between the ends, about ``count`` of them."""
    if log and high / low >= 10:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        every = math.ceil((last - first) / count)
        digits = (1, 2, 5) if 3 * (last - first) <= count + 3 else (1,)
        powers = [d * 10.0**k for k in range(first, last + 1, every) for d in digits]
        return [p for p in powers if low <= p <= high]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= 0.7 * rough)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def labels(numbers: Sequence[float], log: bool) -> list[str]:
    """The numbers as text, with the same number of decimals along a plain axis."""
    texts = [f"{v:.6g}" for v in numbers]
    if (log and numbers[-1] >= 10 * numbers[0]) or any("e" in text for text in texts):
        return texts
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    return [f"{v:.{decimals}f}" for v in numbers]
