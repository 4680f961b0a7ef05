"""Layers whose forward draws: what a model uses without calling an estimator itself."""

from .quantize import LossBreakdown as LossBreakdown
from .quantize import VectorQuantize as VectorQuantize

__all__ = ["LossBreakdown", "VectorQuantize"]
