"""The precision of matrix products."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


def full_precision() -> AbstractContextManager[None]:
    """Without TF32, whose rounding would count as bias where gradients are compared."""
    return tf32(False)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """With or without TF32 on GPUs that can."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
