"""Subsets whose draws and moments are made by kernels."""

from typing import ClassVar

from ..families.subset import Steps, Subset
from . import subset_steps


class KernelSubset(Subset):
    """``Subset(k)`` with kernels, for what they can do. From the same uniform numbers it draws the
    same subsets but for those that rounding decides."""

    _steps: ClassVar[Steps] = subset_steps
