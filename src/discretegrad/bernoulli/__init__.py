"""Estimators for Bernoulli variables: logits without a category axis, samples of zeros and ones.

Names, options and meaning of the samplers are those of the categorical ones in ``discretegrad``.
Each equals the categorical one on the two categories ``(logits, 0)``, in closed form and without
the second category. The score-function estimators here are defined for Bernoulli variables only;
those for both families are in ``discretegrad`` and take ``family="bernoulli"``.
"""

from .arms import arms as arms
from .disarm import disarm as disarm
from .double_cv import DoubleCV as DoubleCV
from .double_cv import double_cv as double_cv
from .gapped import gapped as gapped
from .gapped import gapped_at as gapped_at
from .gumbel_rao import gumbel_rao as gumbel_rao
from .gumbel_rao import gumbel_rao_at as gumbel_rao_at
from .gumbel_softmax import gumbel_softmax as gumbel_softmax
from .gumbel_softmax import gumbel_softmax_at as gumbel_softmax_at
from .mean_baseline import mean_baseline as mean_baseline
from .mean_baseline import mean_baseline_at as mean_baseline_at
from .reinmax import reinmax as reinmax
from .reinmax import reinmax_at as reinmax_at
from .rodeo import Rodeo as Rodeo
from .rodeo import rodeo as rodeo
from .straight_through import straight_through as straight_through
from .straight_through import straight_through_at as straight_through_at

__all__ = [
    "DoubleCV",
    "Rodeo",
    "arms",
    "disarm",
    "double_cv",
    "gapped",
    "gapped_at",
    "gumbel_rao",
    "gumbel_rao_at",
    "gumbel_softmax",
    "gumbel_softmax_at",
    "mean_baseline",
    "mean_baseline_at",
    "reinmax",
    "reinmax_at",
    "rodeo",
    "straight_through",
    "straight_through_at",
]
