"""Which backend runs a sampler, and why the others cannot."""

from typing import get_args

from torch import Tensor

from .._types import Backend


class BackendUnavailable(ValueError):
    """The backend that was asked for cannot run this call; the message lists every reason."""


def unsupported(name: str, logits: Tensor) -> list[str]:
    """Why the Triton backend cannot run the sampler ``name`` on ``logits``; empty if it can."""
    reasons = [f"this version has no Triton kernel for {name!r}"]
    if logits.device.type != "cuda":
        reasons.append(f"the logits are on {logits.device.type!r}, Triton needs 'cuda'")
    return reasons


def choose(name: str, logits: Tensor, backend: Backend) -> Backend:
    """The backend to run: what was asked for, or for ``"auto"`` the fastest that can."""
    if backend == "auto" or backend == "torch":
        return "torch"
    if backend not in get_args(Backend):
        raise ValueError(
            f"{name}: expected backend to be one of {get_args(Backend)}, got {backend!r}"
        )
    reasons = "; ".join(unsupported(name, logits))
    raise BackendUnavailable(
        f'{name}: backend "triton" cannot run here: {reasons}. Use backend="auto".'
    )
