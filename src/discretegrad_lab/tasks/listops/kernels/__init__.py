"""Triton kernels for what a Tree-LSTM does between its products of matrices.

They are imported where they run. Everything else runs on the torch path, which is also what they
are tested against.
"""

import importlib.util

import torch
from torch import Tensor

LONGEST = 4096
"""Words of a sentence, which a program holds on chip."""
WIDEST = 2048
"""Hidden numbers of a state, likewise."""
backend = "auto"
"""``"torch"`` for no kernels, ``"triton"`` for kernels also on a CPU, in Triton's interpreter."""

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def serve(x: Tensor, length: int, hidden: int) -> bool:
    """Whether kernels run for sentences of such a length with such states."""
    if backend == "torch" or not _HAS_TRITON or not (x.is_cuda or backend == "triton"):
        return False
    return x.dtype == torch.float32 and length <= LONGEST and hidden <= WIDEST
