"""Fuse small functions of large tensors, where the time goes into moving memory."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch

FROM_ELEMENTS = 2**20
"""Below, kernels are so short that compilation takes longer than it saves."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def worth_compiling(device: torch.device, elements: int) -> bool:
    """Whether to compile what works on so many elements: on a GPU, if they are many."""
    return device.type == "cuda" and elements >= FROM_ELEMENTS


# above any number of reads and operations: by default 5 reads are enough to store a result
_INLINED: dict[str, Any] = {"realize_reads_threshold": 2**10, "realize_opcount_threshold": 2**10}


def compiled(function: Callable[_P, _R], *, inline: bool = False) -> Callable[_P, _R]:
    """The function by ``torch.compile``, as if it had never been compiled before.

    Args:
        function: At the top level of a module.
        inline: Whether to compute intermediate results again wherever they are used, instead of
            storing those that are used several times. For results that are far larger than what
            goes in and comes out.
    """
    # Dynamo gives up on code that it has compiled for eight different stacks; a copy starts anew
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(copy, dynamic=False, options=_INLINED if inline else None)
