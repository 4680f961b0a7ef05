"""The kinds of random variable, by name."""

from .base import Family as Family
from .base import Variables as Variables
from .bernoulli import Bernoulli
from .categorical import Categorical
from .subset import Subset as Subset

FAMILIES: dict[str, Family] = {family.name: family for family in (Categorical(), Bernoulli())}
FamilyLike = str | Family


def get_family(name: str, family: FamilyLike) -> Family:
    """The family that a user named in a call of ``name``, or the family object itself."""
    # first the name, because to ask for an abstract class takes longer than all the rest
    if isinstance(family, str) and family in FAMILIES:
        return FAMILIES[family]
    if isinstance(family, Family):
        return family
    known = ", ".join(repr(known) for known in FAMILIES)
    raise ValueError(
        f"{name}: expected family to be one of {known}, or discretegrad.Subset(k), got {family!r}"
    )
