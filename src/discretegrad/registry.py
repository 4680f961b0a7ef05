"""The table of estimators: tests, documentation and command line derive from it."""

from collections.abc import Mapping
from types import MappingProxyType

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
    if name not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        raise ValueError(f"expected the name of an estimator ({known}), got {name!r}")
    return ESTIMATORS[name]


def get_sampler(name: str, estimator: object) -> Estimator:
    """The row of a sampler of categories that a user named, or passed, to the function ``name``."""
    row = ESTIMATORS.get(estimator) if isinstance(estimator, str) else estimator
    samplers = ", ".join(row.name for row in ESTIMATORS.values() if row.kind == "sampler")
    if not isinstance(estimator, (str, Estimator)):
        raise TypeError(
            f"{name}: expected estimator to be the name of a sampler ({samplers}) or its row, got "
            f"{type(estimator).__name__}"
        )
    if not isinstance(row, Estimator) or row.kind != "sampler" or row.rule is None:
        raise ValueError(
            f"{name}: expected estimator to be one of {samplers}, got {estimator!r}. Only "
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
