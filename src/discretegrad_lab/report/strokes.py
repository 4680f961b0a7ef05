"""Colours, dashes and marks of the lines of a page."""

from collections.abc import Iterable

from .document import Curve

# the page's backgrounds, also in page.html; lines keep a contrast of 3 to 1 to them
LIGHT, DARK = "#ffffff", "#14171b"
_CONTRAST = 3.0

# shapes around the point 0 0
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
