"""discretegrad: gradients through discrete random variables.

``reinmax(logits)`` draws a one-hot sample from ``softmax(logits)`` and gives it a gradient that is
accurate to second order. The other samplers are called the same way; ``discretegrad.bernoulli``
has all of them for 0/1 variables.
"""

from . import bernoulli as bernoulli
from ._checks import set_checks as set_checks
from ._registry import ESTIMATORS as ESTIMATORS
from ._registry import Estimator as Estimator
from ._registry import citation as citation
from ._registry import get as get
from .estimators.gapped import gapped as gapped
from .estimators.gapped import gapped_at as gapped_at
from .estimators.gumbel_rao import gumbel_rao as gumbel_rao
from .estimators.gumbel_rao import gumbel_rao_at as gumbel_rao_at
from .estimators.gumbel_softmax import gumbel_softmax as gumbel_softmax
from .estimators.gumbel_softmax import gumbel_softmax_at as gumbel_softmax_at
from .estimators.mean_baseline import mean_baseline as mean_baseline
from .estimators.mean_baseline import mean_baseline_at as mean_baseline_at
from .estimators.reinmax import reinmax as reinmax
from .estimators.reinmax import reinmax_at as reinmax_at
from .estimators.straight_through import straight_through as straight_through
from .estimators.straight_through import straight_through_at as straight_through_at
from .exact import exact_expectation as exact_expectation
from .exact import exact_gradient as exact_gradient
from .kernels.dispatch import BackendUnavailable as BackendUnavailable

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "ESTIMATORS",
    "Estimator",
    "bernoulli",
    "citation",
    "exact_expectation",
    "exact_gradient",
    "gapped",
    "gapped_at",
    "get",
    "gumbel_rao",
    "gumbel_rao_at",
    "gumbel_softmax",
    "gumbel_softmax_at",
    "mean_baseline",
    "mean_baseline_at",
    "reinmax",
    "reinmax_at",
    "set_checks",
    "straight_through",
    "straight_through_at",
]
