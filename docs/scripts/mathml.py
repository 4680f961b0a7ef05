"""Formulas as MathML: browsers draw them without a script and without the network.

A hook of mkdocs. ``pymdownx.arithmatex`` marks the formulas of pages and docstrings; here each is
converted when the site is built.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
_UPRIGHT_LETTERS = re.compile(r'(?:<mi mathvariant="normal">\w</mi>)+')
_BAR = '<mo stretchy="false">&#x0007C;'
_FUNCTION_NAME = re.compile(r"(<m[io]>(?:log|max|min)</m[io]>)(?=<m[in]|<msub><m[in])")


def on_page_content(content: str, **_: Any) -> str:
    """Replace every formula of a page."""
    return _FORMULA.sub(_replacement, content)


def _replacement(match: re.Match[str]) -> str:
    tex = html.unescape(match["tex"]).strip()
    return mathml(tex, display="block" if match["tag"] == "div" else "inline")


def mathml(tex: str, display: str) -> str:
    """A LaTeX formula as MathML; an unknown command is an error."""
    converted = convert(tex, display=display)
    unknown = re.findall(r"\\\w+|<mi>&</mi>", converted)
    if unknown:
        raise ValueError(f"cannot convert {unknown} in the formula {tex!r}")
    # \mathrm{softmax} arrives letter by letter, log x without its space, ~ and the prime as letters
    converted = _UPRIGHT_LETTERS.sub(_as_word, converted)
    converted = converted.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")
    converted = converted.replace("<mi>&#x02032;</mi>", "<mo>&#x02032;</mo>")
    # | would be set as a relation, with space on both sides, also where it begins |x| or ||x||
    converted = converted.replace(_BAR, _BAR.replace(">", ' lspace="0" rspace="0">'))
    return _FUNCTION_NAME.sub(r'\1<mspace width="0.167em" />', converted)


def _as_word(match: re.Match[str]) -> str:
    letters = re.findall(r">(\w)<", match[0])
    return f"<mi>{''.join(letters)}</mi>"
