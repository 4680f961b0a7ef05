"""The cases that the tests of samplers run over, derived from the registry."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from discretegrad import ESTIMATORS, Subset
from discretegrad.testing import Case

SAMPLERS = {name: row for name, row in ESTIMATORS.items() if row.kind == "sampler"}
FAMILIES = ("categorical", "bernoulli")

# the options under which a row is tested; a row that is not listed has none
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gumbel_softmax": ({}, {"hard": False}),
    "gumbel_rao": ({"num_draws": 3},),
    "gapped": ({}, {"gap": "p"}),
    "mean_baseline": ({}, {"order": 1}, {"as_released": True}),
}
CASES = [
    Case(row, family, options)
    for row in SAMPLERS.values()
    for options in VARIANTS.get(row.name, ({},))
    for family in row.families
]
SUBSETS = [Case(row, Subset(2)) for row in SAMPLERS.values() if row.any_family]
CATEGORICAL = [case for case in CASES if case.categorical]
BERNOULLI = [case for case in CASES if not case.categorical]
HARD = [case for case in CASES if case.hard]
RELAXED = [case for case in CASES if not case.hard]
NOISE_FREE = [case for case in CASES if not case.row.takes]
NOISY = [case for case in HARD if case.row.takes]
# one case for each sampler and family: with its default options, or nearly
DEFAULTS = [case for case in CASES if case.options.keys() <= {"num_draws"}]

each_family = pytest.mark.parametrize("family", FAMILIES)
# for tests where small temperatures are the point
any_tau = pytest.mark.filterwarnings("ignore:.*is unusual")


def each(cases: Sequence[Any]) -> pytest.MarkDecorator:
    """Run a test for each of these cases."""
    return pytest.mark.parametrize("case", cases, ids=str)
