"""The table of estimators: tests, documentation and command line derive from it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ._checks import check_hard, check_options
from ._row import Estimator
from .estimators import (
    arms,
    blend,
    disarm,
    disarm_tree,
    double_cv,
    exact,
    gapped,
    gumbel_rao,
    gumbel_softmax,
    leave_one_out,
    mean_baseline,
    muprop,
    rebar,
    reinforce,
    reinmax,
    relax,
    rodeo,
    straight_through,
)
from .sampling import Rule

# torch 2.6 cannot compile a look-up in a dictionary that is read-only
ROWS: dict[str, Estimator] = {
    module.ROW.name: module.ROW
    for module in (
        reinmax,
        straight_through,
        blend,
        gumbel_softmax,
        gumbel_rao,
        gapped,
        mean_baseline,
        reinforce,
        leave_one_out,
        disarm,
        arms,
        disarm_tree,
        muprop,
        double_cv,
        rodeo,
        rebar,
        relax,
        exact,
    )
}
ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(ROWS)
"""Every estimator by name, read-only."""


EstimatorLike = str | Estimator | Callable[..., Tensor]
"""A name, a row, or the function of one."""


def get(name: str) -> Estimator:
    """The registry row of an estimator.

    Args:
        name: A key of ``discretegrad.ESTIMATORS``.

    Returns:
        The row.

    Raises:
        ValueError: If there is no such estimator; the message lists those there are.

    Example:
        >>> import discretegrad
        >>> discretegrad.get("reinmax").exact_for
        'quadratic'
    """
    if not isinstance(name, str) or name not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        raise ValueError(f"expected the name of an estimator ({known}), got {name!r}")
    return ESTIMATORS[name]


def find_row(estimator: object) -> Estimator | None:
    """The row of an estimator that is given by its name, its row or its function, if it has one."""
    if isinstance(estimator, str):
        return get(estimator)
    if isinstance(estimator, Estimator):
        return estimator
    return next((row for row in ROWS.values() if row.function is estimator), None)


def get_sampler(name: str, estimator: object) -> Estimator:
    """The row of a sampler of categories that a user named, or passed, to the function ``name``."""
    row = ROWS.get(estimator) if isinstance(estimator, str) else find_row(estimator)
    samplers = ", ".join(row.name for row in ROWS.values() if row.kind == "sampler")
    if row is None and not isinstance(estimator, str):
        raise TypeError(
            f"{name}: expected estimator to be the name of a sampler ({samplers}), its row or its "
            f"function, got {type(estimator).__name__}"
        )
    if row is None or row.kind != "sampler" or row.rule is None:
        came = estimator if row is None else row.name
        raise ValueError(
            f"{name}: expected estimator to be one of {samplers}, got {came!r}. Only "
            "samplers have a gradient for the logits of one draw."
        )
    return row


def sampler_rule(
    name: str, estimator: object, options: Mapping[str, Any]
) -> tuple[Estimator, Rule]:
    """The row of a sampler as ``get_sampler`` finds it, and its rule for options of its own."""
    row = get_sampler(name, estimator)
    if options:  # torch 2.6 cannot compile a look at those of the row
        check_options(row.name, options, tuple(row.options))
    check_hard(name, options.get("hard", True))
    assert row.rule is not None
    return row, row.rule(**options)


def citation(name: str) -> str:
    """The BibTeX entry of the paper that introduced an estimator.

    Args:
        name: A key of ``discretegrad.ESTIMATORS``.

    Returns:
        BibTeX.

    Raises:
        ValueError: If there is no such estimator.

    Example:
        >>> import discretegrad
        >>> print(discretegrad.citation("reinmax").splitlines()[0])
        @inproceedings{liu2023bridging,
    """
    return get(name).bibtex
