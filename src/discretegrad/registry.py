"""The table of estimators: tests, documentation and command line derive from it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

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

ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
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
)
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
    return next((row for row in ESTIMATORS.values() if row.function is estimator), None)


def get_sampler(name: str, estimator: object) -> Estimator:
    """The row of a sampler of categories that a user named, or passed, to the function ``name``."""
    row = ESTIMATORS.get(estimator) if isinstance(estimator, str) else find_row(estimator)
    samplers = ", ".join(row.name for row in ESTIMATORS.values() if row.kind == "sampler")
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
