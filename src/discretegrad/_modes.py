"""In which mode of torch the code runs: some operations differ, or are impossible, in some."""

import torch


def compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is tracing."""
    return torch.compiler.is_compiling()


def transforming() -> bool:
    """Whether a ``torch.func`` transform (vmap, grad, ...) is active."""
    return torch._C._are_functorch_transforms_active()
