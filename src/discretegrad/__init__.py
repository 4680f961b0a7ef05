"""discretegrad: gradients through discrete random variables.

``reinmax(logits)`` draws a one-hot sample from ``softmax(logits)`` and gives it a gradient that is
accurate to second order. The other samplers are called the same way; ``discretegrad.bernoulli``
has all of them for 0/1 variables. ``expectation(logits, f, estimator)`` is one front for samplers
and score-function estimators, and ``diagnose`` compares them on a problem of your own.
"""

from . import bernoulli as bernoulli
from ._checks import set_checks as set_checks
from ._diagnosis import Diagnosis as Diagnosis
from ._diagnosis import DiagnosisRow as DiagnosisRow
from ._diagnostics import diagnose as diagnose
from ._exact import exact_expectation as exact_expectation
from ._exact import exact_gradient as exact_gradient
from ._expectation import expectation as expectation
from ._linear_select import linear_select as linear_select
from ._registry import ESTIMATORS as ESTIMATORS
from ._registry import Estimator as Estimator
from ._registry import citation as citation
from ._registry import get as get
from ._select import Handle as Handle
from ._select import select as select
from .estimators.disarm_tree import disarm_tree as disarm_tree
from .estimators.exact import exact as exact
from .estimators.gapped import gapped as gapped
from .estimators.gapped import gapped_at as gapped_at
from .estimators.gapped import gapped_index as gapped_index
from .estimators.gumbel_rao import gumbel_rao as gumbel_rao
from .estimators.gumbel_rao import gumbel_rao_at as gumbel_rao_at
from .estimators.gumbel_rao import gumbel_rao_index as gumbel_rao_index
from .estimators.gumbel_rao import gumbel_rao_seeded as gumbel_rao_seeded
from .estimators.gumbel_softmax import gumbel_softmax as gumbel_softmax
from .estimators.gumbel_softmax import gumbel_softmax_at as gumbel_softmax_at
from .estimators.gumbel_softmax import gumbel_softmax_index as gumbel_softmax_index
from .estimators.leave_one_out import leave_one_out as leave_one_out
from .estimators.mean_baseline import mean_baseline as mean_baseline
from .estimators.mean_baseline import mean_baseline_at as mean_baseline_at
from .estimators.mean_baseline import mean_baseline_index as mean_baseline_index
from .estimators.muprop import MuProp as MuProp
from .estimators.muprop import muprop as muprop
from .estimators.rebar import Rebar as Rebar
from .estimators.rebar import rebar as rebar
from .estimators.reinforce import Reinforce as Reinforce
from .estimators.reinforce import reinforce as reinforce
from .estimators.reinmax import reinmax as reinmax
from .estimators.reinmax import reinmax_at as reinmax_at
from .estimators.reinmax import reinmax_index as reinmax_index
from .estimators.relax import ControlNetwork as ControlNetwork
from .estimators.relax import Relax as Relax
from .estimators.relax import relax as relax
from .estimators.straight_through import straight_through as straight_through
from .estimators.straight_through import straight_through_at as straight_through_at
from .estimators.straight_through import straight_through_index as straight_through_index
from .kernels.dispatch import BackendUnavailable as BackendUnavailable

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "ControlNetwork",
    "Diagnosis",
    "DiagnosisRow",
    "ESTIMATORS",
    "Estimator",
    "Handle",
    "MuProp",
    "Rebar",
    "Reinforce",
    "Relax",
    "bernoulli",
    "citation",
    "diagnose",
    "disarm_tree",
    "exact",
    "exact_expectation",
    "exact_gradient",
    "expectation",
    "gapped",
    "gapped_at",
    "gapped_index",
    "get",
    "gumbel_rao",
    "gumbel_rao_at",
    "gumbel_rao_index",
    "gumbel_rao_seeded",
    "gumbel_softmax",
    "gumbel_softmax_at",
    "gumbel_softmax_index",
    "leave_one_out",
    "linear_select",
    "mean_baseline",
    "mean_baseline_at",
    "mean_baseline_index",
    "muprop",
    "rebar",
    "reinforce",
    "reinmax",
    "reinmax_at",
    "reinmax_index",
    "relax",
    "select",
    "set_checks",
    "straight_through",
    "straight_through_at",
    "straight_through_index",
]
