"""Fuse small functions of large tensors, where the time goes into moving memory."""

from collections.abc import Callable, Sequence
from functools import wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
import torch._functorch.config as functorch_config
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

FROM_ELEMENTS = 2**20
"""Below, kernels are so short that compilation takes longer than it saves."""
FROM_STEPS = 100_000
"""A run of so many is taken to repay compilation, however short its kernels are."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def worth_compiling(device: torch.device, elements: int, steps: int = 0) -> bool:
    """Whether to compile what works on so many elements in each step: on a GPU, if they are many.

    Args:
        device: Where it runs.
        elements: Of the largest tensor.
        steps: Of a run; with enough of them the elements do not matter.
    """
    return device.type == "cuda" and (elements >= FROM_ELEMENTS or steps >= FROM_STEPS)


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function by ``torch.compile``, as if it had never been compiled before.

    Its backward pass writes over nothing that was kept for it. By default torch (2.11 and 2.13 at
    least) does so where such a tensor is needed no more, but it does not see that a view of it,
    which was kept too, still is. Gradients were silently wrong then.

    Args:
        function: At the top level of a module.
    """
    # Dynamo gives up on code that it has compiled for eight different stacks; a copy starts anew
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    fused: Callable[_P, _R] = torch.compile(copy, dynamic=False)

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with functorch_config.patch(donated_buffer=False):
            return fused(*args, **kwargs)

    return call


def compiled_with_gradients(
    losses: Callable[..., Tensor], leaves: Sequence[Tensor]
) -> Callable[..., tuple[Tensor, list[Tensor]]]:
    """The losses, without a graph, and the gradients of their sum, as one compiled function.

    The first call runs ``losses`` and its backward pass and writes down every operation of torch on
    the way; that list is compiled. So ``losses`` may itself differentiate, as an estimator does
    that learns or asks for slopes of f. ``torch.compile`` alone would not do: while it traces, the
    library lets nothing learn.

    All else happens in the first call alone: Python's branches and counts, and kernels that are
    launched without an operator of torch. Tensors that are not arguments are read at every call, at
    the place in memory that they had in the first.

    Args:
        losses: Of tensors or tuples of them, always of the same shapes.
        leaves: What the gradients are of. Whoever updates them does so in place.
    """

    def both(*args: Any) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad():
            values = losses(*args)
            gradients = torch.autograd.grad(values.sum(), leaves)
        return values.detach(), list(gradients)

    fused: Callable[..., tuple[Tensor, list[Tensor]]] | None = None

    @torch.no_grad()
    def call(*args: Any) -> tuple[Tensor, list[Tensor]]:
        nonlocal fused
        if fused is None:
            # in this thread, where the operations are written down
            with torch.autograd.set_multithreading_enabled(False):
                graph = make_fx(both)(*args)
            fused = torch.compile(graph, dynamic=False)
        return fused(*args)

    return call
