"""What users write on the command line, as values; a ``ValueError`` says what is wrong with it."""

import difflib
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recipes import Recipe

_MOST_SEEDS = 100_000
# what a run takes, see ``config``, whose import takes seconds
_LARGEST_SEED = 2**31 - 1
_SOME_SEEDS = "give a number of seeds such as 5, or seeds such as 0-4,7"


def find_recipe(name: str) -> "Recipe":
    """The recipe of a name; a wrong one gets a suggestion."""
    from .recipes import RECIPES

    if name not in RECIPES:
        raise ValueError(
            f"expected a recipe of {', '.join(RECIPES)}, got {name!r}; "
            f"{suggestion(name, RECIPES)}`discretegrad list` describes them"
        )
    return RECIPES[name]


def parse_seeds(text: str) -> list[int]:
    """``5`` as 0 to 4, ``0-4,7`` as it says."""
    if re.fullmatch(r"\d+", text.strip()):
        ranges = [(0, _seed(text.strip()) - 1)]
    else:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        matches = [re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part) for part in parts]
        if not matches or None in matches:
            raise ValueError(f"expected seeds, got {text!r}; {_SOME_SEEDS}")
        ranges = [(_seed(m[1]), _seed(m[2] or m[1])) for m in matches if m]
    if any(first > last for first, last in ranges):
        raise ValueError(f"expected at least one seed in every part, got {text!r}; {_SOME_SEEDS}")
    if sum(last - first + 1 for first, last in ranges) > _MOST_SEEDS:
        raise ValueError(f"expected at most {_MOST_SEEDS:,} seeds, got {text!r}; {_SOME_SEEDS}")
    seeds = [seed for first, last in ranges for seed in range(first, last + 1)]
    return list(dict.fromkeys(seeds))


def _seed(digits: str) -> int:
    # Python refuses to read thousands of digits, in words that are not for users
    long = len(digits) > 20
    if long or int(digits) > _LARGEST_SEED:
        got = f"a number of {len(digits)} digits" if long else digits
        raise ValueError(
            f"expected seeds between 0 and {_LARGEST_SEED} (2**31 - 1), got {got}; {_SOME_SEEDS}"
        )
    return int(digits)


def parse_estimators(text: str) -> list[str]:
    """Names with commas between them; a wrong one gets a suggestion."""
    from .estimators import ESTIMATORS

    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not names:
        raise ValueError(
            f"expected estimators such as reinmax,st, got {text!r}; leave the option out for all"
        )
    for name in names:
        if name not in ESTIMATORS:
            raise ValueError(
                f"expected estimators of {', '.join(ESTIMATORS)}, got {name!r}; "
                f"{suggestion(name, ESTIMATORS) or 'choose some of these'}"
            )
    return list(dict.fromkeys(names))


def parse_budget(text: str) -> float:
    """``90s``, ``9m``, ``1.5h`` or ``1h30m`` in seconds."""
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower())
    factors = (3600, 60, 1)
    seconds = (
        sum(float(part or 0) * factor for part, factor in zip(match.groups(), factors, strict=True))
        if match
        else 0.0
    )
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"expected a time as --budget, got {text!r}; give it in seconds, minutes or hours, "
            "such as 90s, 9m or 1h30m"
        )
    return seconds


def find_device(name: str) -> str:
    """A device that this machine has; auto is a GPU if there is one."""
    import torch

    from .environment import check_device

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(check_device(name))


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, as the beginning of a sentence; empty if none is near."""
    nearest = difflib.get_close_matches(name.lower(), list(known), 1, 0.5)
    return f"did you mean {nearest[0]}? " if nearest else ""
