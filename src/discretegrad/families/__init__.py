"""The kinds of random variable, by name."""

from .base import Family as Family
from .base import Variables as Variables
from .bernoulli import Bernoulli
from .categorical import Categorical

FAMILIES: dict[str, Family] = {family.name: family for family in (Categorical(), Bernoulli())}
FamilyLike = str | Family


def get_family(name: str, family: FamilyLike) -> Family:
    """The family that a user named in a call of ``name``, or the family object itself."""
    if isinstance(family, Family):
        return family
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(repr(known) for known in FAMILIES)
        raise ValueError(f"{name}: expected family to be one of {known}, got {family!r}")
    return FAMILIES[family]
