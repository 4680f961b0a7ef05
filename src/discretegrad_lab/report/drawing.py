"""The figures of a page as still drawings (SVG), and the colours and marks of their lines."""

import math
from collections.abc import Callable, Iterable
from html import escape

from .axes import band_pieces, labels, limits, line_pieces, ticks
from .document import Curve, Figure, usable

# the page's backgrounds, also in page.html; lines keep a contrast of 3 to 1 to them
LIGHT, DARK = "#ffffff", "#14171b"
_CONTRAST = 3.0

# in pixels
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 360, 56, 12, 26, 42

# shapes around the point 0 0; page.html draws the same ones
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",  # circle
    "M-3.5 -3.5H3.5V3.5H-3.5Z",  # square
    "M0 -4.8L4.6 3.2H-4.6Z",  # triangle
    "M0 -5L5 0L0 5L-5 0Z",  # diamond
    "M0 4.8L4.6 -3.2H-4.6Z",  # triangle that points down
    "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",  # plus
    "M-4.5 -2.5L-2.5 -4.5L0 -2L2.5 -4.5L4.5 -2.5L2 0L4.5 2.5L2.5 4.5L0 2L-2.5 4.5L-4.5 2.5L-2 0Z",
    "M0 -4.8L4.6 -1.5L2.8 3.9H-2.8L-4.6 -1.5Z",  # pentagon
    "M0 -5.5L1.3 -1.8H5.2L2.1 .6L3.2 4.4L0 2.1L-3.2 4.4L-2.1 .6L-5.2 -1.8H-1.3Z",  # star
    "M-4.8 0L3.2 -4.6V4.6Z",  # triangle that points left
    "M4.8 0L-3.2 -4.6V4.6Z",  # triangle that points right
)


def drawing(figure: Figure, label: str) -> str:
    """The figure without interaction, as the script of the page would first draw it."""
    (x_low, x_high), (y_low, y_high) = limits(figure)
    log, bottom = figure.log_y, _HEIGHT - _BOTTOM
    f = math.log10 if log else float

    def px(x: float) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * (x - x_low) / (x_high - x_low):.1f}"

    def py(y: float) -> str:
        # what a logarithm does not have lies below: the lower ends of intervals
        part = (f(y) - f(y_low)) / (f(y_high) - f(y_low)) if usable(y, log) else 0.0
        return f"{bottom - (bottom - _TOP) * part:.1f}"

    parts = [
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f'<text class="label" x="2" y="12">{escape(figure.y_label)}</text>',
        f'<text class="label" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{escape(figure.x_label)}</text>',
    ]
    if figure.empty:
        parts.append(
            f'<text x="{_WIDTH / 2}" y="{_HEIGHT / 2}" text-anchor="middle">no data</text>'
        )
    ys = ticks(y_low, y_high, 6, log)
    for y, text in zip(ys, labels(ys, log), strict=True):
        parts.append(f'<path class="grid" d="M{_LEFT} {py(y)}H{_WIDTH - _RIGHT}"/>')
        place = f'x="{_LEFT - 6}" y="{py(y)}" dy=".35em"'
        parts.append(f'<text {place} text-anchor="end">{text}</text>')
    xs = ticks(x_low, x_high, 8)
    for x, text in zip(xs, labels(xs, False), strict=True):
        parts.append(f'<text x="{px(x)}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    if figure.reference is not None and usable(figure.reference, log):
        level = py(figure.reference)
        parts.append(f'<path class="reference" d="M{_LEFT} {level}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text class="label" x="{_LEFT + 6}" y="{level}" dy="-.4em">'
            f"{escape(figure.reference_name)}</text>"
        )
    for number in figure.drawn:
        curve = figure.curves[number]
        parts.append(f'<g style="{ink(curve)}">{_strokes(curve, px, py, log)}')
        for point in figure.marks(number):
            if usable(curve.y[point], log):
                at = f"translate({px(curve.x[point])} {py(curve.y[point])})"
                parts.append(f'<path class="mark" d="{mark(curve)}" transform="{at}"/>')
        parts.append("</g>")
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/></svg>')
    return "".join(parts)


def _strokes(
    curve: Curve, px: Callable[[float], str], py: Callable[[float], str], log: bool
) -> str:
    parts = []
    for band in band_pieces(curve, log):
        up = [f"{px(x)} {py(high)}" for x, _, high in band]
        down = [f"{px(x)} {py(low)}" for x, low, _ in reversed(band)]
        parts.append(f'<path class="band" d="M{"L".join(up + down)}Z"/>')
    for line in line_pieces(curve, log):
        places = [f"{px(x)} {py(y)}" for x, y in line]
        if len(places) > 1:
            parts.append(f'<path class="curve" d="M{"L".join(places)}"{dashes(curve)}/>')
        else:
            cx, cy = places[0].split()
            parts.append(f'<circle class="dot" cx="{cx}" cy="{cy}" r="3"/>')
    return "".join(parts)


def mark(curve: Curve) -> str:
    """The shape that tells a curve from its neighbours, whatever its colour."""
    return MARKS[curve.mark % len(MARKS)]


def ink(curve: Curve) -> str:
    """The colour of a curve on either background, as a style."""
    return f"--ink:light-dark({visible(curve.colour, LIGHT)},{visible(curve.colour, DARK)})"


def dashes(curve: Curve) -> str:
    """The dashes of a curve as an attribute."""
    return f' stroke-dasharray="{curve.dash}"' if curve.dash else ""


def visible(colour: str, background: str) -> str:
    """The colour, moved away from the background until their contrast is that of WCAG."""
    mixed, ground = rgb(colour), rgb(background)
    target = 0.0 if luminance(ground) > 0.5 else 255.0
    for percent in range(0, 101, 5):
        mixed = [c + (target - c) * percent / 100 for c in rgb(colour)]
        dark, light = sorted((luminance(mixed), luminance(ground)))
        if (light + 0.05) / (dark + 0.05) >= _CONTRAST:
            break
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def rgb(colour: str) -> list[float]:
    """Red, green and blue from 0 to 255."""
    return [float(int(colour[i : i + 2], 16)) for i in (1, 3, 5)]


def luminance(colour: Iterable[float]) -> float:
    """How bright red, green and blue are together, from 0 to 1, by WCAG."""
    linear = [c / 3294.6 if c <= 10.31 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
