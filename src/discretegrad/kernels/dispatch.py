"""Which backend runs a sampler, and why the others cannot."""

import importlib.util
import os
from typing import get_args

import torch
from torch import Tensor

from .._checks import is_dense, is_word
from .._modes import transforming
from .._types import Backend
from ..families import Family

_BACKENDS = get_args(Backend)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HAS_TRITON = importlib.util.find_spec("triton") is not None
# Triton reads it when a kernel is defined: with "1" kernels run in its interpreter, on any device
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class BackendUnavailable(ValueError):
    """The backend that was asked for cannot run this call; the message lists every reason."""


def runs_on(device: torch.device) -> bool:
    """Whether kernels run there at all."""
    # torch 2.6 cannot compile is_cuda of a tensor in a backward
    return _HAS_TRITON and (device.type == "cuda" or _INTERPRETED)


def unsupported(logits: Tensor, lacking: str = "") -> list[str]:
    """Why the Triton backend cannot run a sampler on ``logits``; empty if it can.

    ``lacking`` names what the caller asks for and no kernel does, if there is such a thing.
    """
    reasons = [f"there is no kernel for {lacking}"] if lacking else []
    if not _HAS_TRITON:
        reasons.append("the package triton is not installed")
    if not logits.is_cuda and not _INTERPRETED:
        reasons.append(f"the logits are on {logits.device.type!r}, Triton needs 'cuda'")
    if logits.dtype not in _DTYPES:
        reasons.append(f"kernels compute in float32, the logits are {logits.dtype}")
    if logits.numel() == 0:
        reasons.append("the logits are empty")
    if type(logits) not in (Tensor, torch.nn.Parameter):
        reasons.append(f"the logits are of the subclass {type(logits).__name__}")
    if transforming():
        reasons.append("torch.func transforms cannot look into a kernel")
    return reasons


def choose_backend(name: str, logits: Tensor, backend: Backend, lacking: str = "") -> Backend:
    """The backend to run: what was asked for, or for ``"auto"`` the fastest that can."""
    if not is_word(backend, *_BACKENDS):
        raise ValueError(f"{name}: expected backend to be one of {_BACKENDS}, got {backend!r}")
    # what is no dense tensor goes to the torch path, whose checks say so
    if backend == "torch" or not isinstance(logits, Tensor) or not is_dense(logits):
        return "torch"
    if backend == "auto":
        # without the interpreter, which is for tests
        if not logits.is_cuda or unsupported(logits, lacking):
            return "torch"
        return "triton"
    if reasons := unsupported(logits, lacking):
        raise BackendUnavailable(
            f'{name}: backend "triton" cannot run here: {"; ".join(reasons)}. Use backend="auto".'
        )
    return "triton"


def fastest(name: str, logits: Tensor, family: Family) -> Family:
    """The family for logits of an estimator that takes no backend: with kernels where they run."""
    if not family.steps_in_kernels or choose_backend(name, logits, "auto") == "torch":
        return family
    return family.with_kernels()
