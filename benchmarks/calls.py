"""How the benchmarks call samplers and estimators of the library, and PyPI reinmax.

Names are looked up when something is called, so that the list of samplers on a CPU can be timed
with two versions of the library (``run.py --against``).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

import discretegrad

SAMPLERS = tuple(name for name, row in discretegrad.ESTIMATORS.items() if row.kind == "sampler")

Sample = Callable[..., Tensor]


def sampler(name: str, **options: Any) -> Sample:
    """A sampler of categories, with some options given."""
    function = getattr(discretegrad, name)
    return partial(function, **options) if options else function


def bit_sampler(name: str, **options: Any) -> Sample:
    """The same for Bernoulli variables."""
    return partial(getattr(discretegrad, name), family="bernoulli", **options)


def torch_reinmax(logits: Tensor) -> Tensor:
    """ReinMax in plain torch operations; a function of its own, so that it can be compiled."""
    return discretegrad.reinmax(logits, backend="torch")


def reinmax_row(logits: Tensor, table: Tensor) -> Tensor:
    """The row of a table that ReinMax draws, by its index."""
    _, handle = discretegrad.sample_index(logits, "reinmax")
    return discretegrad.select(handle, table)


class Learner(NamedTuple):
    """How to make an estimator that learns, and the same one without learning."""

    module: Callable[[int], nn.Module]
    """For so many latent variables."""
    frozen_options: Callable[[Any], dict[str, Any]] = lambda module: {}
    """Of the function, given the module."""


LEARNERS = {
    "muprop": Learner(lambda _: discretegrad.MuProp()),
    "double_cv": Learner(lambda _: discretegrad.DoubleCV()),
    # away from zero, where nothing but leave-one-out would be left
    "rodeo": Learner(
        lambda _: discretegrad.Rodeo(alpha=0.5, beta=0.5),
        lambda module: {"control": module.network, "alpha": 0.5, "beta": 0.5},
    ),
    "rebar": Learner(lambda _: discretegrad.Rebar()),
    "relax": Learner(
        lambda latents: discretegrad.Relax(discretegrad.ControlNetwork(latents)),
        lambda module: {"control": module.control},
    ),
}


def running_reinforce() -> nn.Module:
    """REINFORCE with a running mean of f as its baseline."""
    return discretegrad.Reinforce("running")


def pypi_reinmax(logits: Tensor) -> Tensor:
    """The released implementation; ImportError where it is not installed."""
    import reinmax

    return reinmax.reinmax(logits, 1.0)[0]
