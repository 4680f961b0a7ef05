"""Fuse small functions of large tensors, where the time goes into moving memory."""

from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar

import torch

FROM_ELEMENTS = 2**20
"""Below, kernels are so short that compilation takes longer than it saves."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def worth_compiling(device: torch.device, elements: int) -> bool:
    """Whether to compile what works on so many elements: on a GPU, if they are many."""
    return device.type == "cuda" and elements >= FROM_ELEMENTS


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function by ``torch.compile``, as if it had never been compiled before."""
    # Dynamo gives up on code that it has compiled for eight different stacks; a copy starts anew
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(copy, dynamic=False)
