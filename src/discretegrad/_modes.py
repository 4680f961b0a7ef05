"""In which mode of torch the code runs: some operations differ, or are impossible, in some."""

import torch
from torch import Tensor


def compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is tracing."""
    return torch.compiler.is_compiling()


def batched(g: Tensor) -> bool:
    """Whether ``g`` stands for several gradients at once (``is_grads_batched=True``).

    That is an older vmap than that of ``torch.func``: such a tensor has no memory that a kernel
    could read, and torch calls a registered operator once for each gradient.
    """
    return torch._C._functorch.is_legacy_batchedtensor(g)


def forward_over_forward() -> bool:
    """Whether ``torch.func`` differentiates in forward mode within forward mode.

    There torch takes the result of a function's own rule for forward mode as a constant.
    """
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return sum(x.key() == torch._C._functorch.TransformType.Jvp for x in levels) > 1


def transforming() -> bool:
    """Whether a ``torch.func`` transform (vmap, grad, ...) is active."""
    return torch._C._are_functorch_transforms_active()
