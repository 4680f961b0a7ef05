"""discretegrad: gradients through discrete random variables.

``reinmax(logits)`` draws a one-hot sample from ``softmax(logits)`` and gives it a gradient that is
accurate to second order; ``family="bernoulli"`` draws bits, and ``Subset(k)`` k of n items. The
other samplers are called the same way. ``expectation(logits, f, estimator)`` is one front for
samplers and score-function estimators, and ``diagnose`` compares them on a problem of your own.
"""

from . import distributions as distributions
from . import nn as nn
from ._checks import set_checks as set_checks
from ._row import Estimator as Estimator
from .diagnose import Diagnosis as Diagnosis
from .diagnose import DiagnosisRow as DiagnosisRow
from .diagnose import diagnose as diagnose
from .estimators.arms import arms as arms
from .estimators.blend import blend as blend
from .estimators.disarm import disarm as disarm
from .estimators.disarm_tree import disarm_tree as disarm_tree
from .estimators.double_cv import double_cv as double_cv
from .estimators.gapped import gapped as gapped
from .estimators.gumbel_rao import gumbel_rao as gumbel_rao
from .estimators.gumbel_softmax import gumbel_softmax as gumbel_softmax
from .estimators.leave_one_out import leave_one_out as leave_one_out
from .estimators.mean_baseline import mean_baseline as mean_baseline
from .estimators.muprop import muprop as muprop
from .estimators.rebar import rebar as rebar
from .estimators.reinforce import reinforce as reinforce
from .estimators.reinmax import reinmax as reinmax
from .estimators.relax import relax as relax
from .estimators.rodeo import rodeo as rodeo
from .estimators.straight_through import straight_through as straight_through
from .exact import exact_expectation as exact_expectation
from .exact import exact_gradient as exact_gradient
from .expectation import expectation as expectation
from .families import Family as Family
from .families import Subset as Subset
from .kernels.dispatch import BackendUnavailable as BackendUnavailable
from .linear_select import linear_select as linear_select
from .objects import ControlNetwork as ControlNetwork
from .objects import DoubleCV as DoubleCV
from .objects import MuProp as MuProp
from .objects import Rebar as Rebar
from .objects import Reinforce as Reinforce
from .objects import Relax as Relax
from .objects import Rodeo as Rodeo
from .registry import ESTIMATORS as ESTIMATORS
from .registry import citation as citation
from .registry import get as get
from .replace_gumbel_softmax import replace_gumbel_softmax as replace_gumbel_softmax
from .sample_index import sample_index as sample_index
from .select import Handle as Handle
from .select import select as select
from .sparse_mixer import sparse_mixer as sparse_mixer

# after the module of the same name, which it hides
from .estimators.exact import exact as exact  # isort: skip

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "ControlNetwork",
    "Diagnosis",
    "DiagnosisRow",
    "DoubleCV",
    "ESTIMATORS",
    "Estimator",
    "Family",
    "Handle",
    "MuProp",
    "Rebar",
    "Reinforce",
    "Relax",
    "Rodeo",
    "Subset",
    "arms",
    "blend",
    "citation",
    "diagnose",
    "disarm",
    "disarm_tree",
    "double_cv",
    "exact",
    "exact_expectation",
    "exact_gradient",
    "expectation",
    "gapped",
    "get",
    "gumbel_rao",
    "gumbel_softmax",
    "leave_one_out",
    "linear_select",
    "mean_baseline",
    "muprop",
    "rebar",
    "reinforce",
    "reinmax",
    "relax",
    "replace_gumbel_softmax",
    "rodeo",
    "sample_index",
    "select",
    "set_checks",
    "sparse_mixer",
    "straight_through",
]
