"""What this machine can do for the library, and what to do about what it cannot."""

import importlib
import importlib.util
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from .estimators.reinmax import reinmax


@dataclass(frozen=True)
class Part:
    """One thing that a machine has or lacks."""

    what: str
    state: str
    advice: str = ""
    """What to do about it; empty if it is fine."""
    broken: bool = False
    """Whether something will fail because of it."""

    @property
    def sign(self) -> str:
        """One letter for a table."""
        return "x" if self.broken else "!" if self.advice else " "


def parts() -> Iterator[Part]:
    """Everything that matters to the library."""
    yield from software()
    if not torch.cuda.is_available():
        yield Part("GPU", "none that torch can use; everything runs on the CPU")
        yield Part("fused kernels", "only on GPUs; the CPU has its own path")
        return
    for number in range(torch.cuda.device_count()):
        yield Part(f"GPU {number}", torch.cuda.get_device_name(number))
    yield kernels()


def software() -> Iterator[Part]:
    """Versions."""
    from . import __version__

    yield Part("discretegrad", __version__)
    yield Part("Python", f"{platform.python_version()} on {platform.system()}")
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    yield Part("torch", f"{torch.__version__}, built {built}")


def kernels() -> Part:
    """Whether a fused kernel compiles, runs and agrees with the torch path."""
    what = "fused kernels"
    if importlib.util.find_spec("triton") is None:
        return Part(what, "none", "Install triton (Linux) for them; without it training is slower.")
    gradients: list[torch.Tensor] = []
    backends: tuple[Literal["triton", "torch"], ...] = ("triton", "torch")
    try:
        for backend in backends:
            logits = torch.linspace(-1, 1, 640, device="cuda").view(64, 10).requires_grad_()
            index = torch.arange(64, device="cuda") % 10
            weights = torch.linspace(0, 1, 10, device="cuda")
            sample = reinmax(logits, given=index, backend=backend)
            gradients += torch.autograd.grad((sample * weights).sum(), logits)
        torch.testing.assert_close(*gradients)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Part(
            what,
            f"fail: {first}",
            "Triton needs a C compiler and a torch of its own version; see that `gcc --version` "
            "works and install both packages anew.",
            broken=True,
        )
    # not the version of a distribution: several, of other names, bring this module
    return Part(what, f"run (triton {importlib.import_module('triton').__version__})")
