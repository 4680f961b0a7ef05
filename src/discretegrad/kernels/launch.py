"""Start a kernel on the device of its tensors."""

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

# Triton works out anew at every launch which variant of a kernel fits, in more time than a small
# kernel takes. From this version on a compiled kernel takes all arguments of its source, so a plan
# can remember it.
_REMEMBERS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 5)
_SEVERAL_DEVICES = torch.cuda.device_count() > 1


class Plan:
    """All of a launch that depends on shapes, strides and options alone; worth keeping."""

    __slots__ = ("constants", "copied", "kernel", "programs", "ready", "registers", "warps")

    def __init__(
        self,
        kernel: Any,
        programs: int,
        warps: int,
        constants: tuple[int, ...],
        copied: tuple[int, ...] = (),
        registers: int | None = None,
    ) -> None:
        self.kernel = kernel
        """Takes tensors, floating-point numbers and the constants, in this order."""
        self.programs = programs
        self.warps = warps
        self.constants = constants
        """Integers, and what the kernel declares ``constexpr``: Triton makes variants for them."""
        self.copied = copied
        """Which of the tensors must be made contiguous."""
        self.registers = registers
        """The most that a thread may use, so that more threads fit."""
        self.ready: dict[Any, Callable[..., None]] = {}
        """Compiled variants for aligned tensors, by device and dtypes."""


def launch(plan: Plan, tensors: list[Tensor], numbers: tuple[float, ...] = ()) -> None:
    """Run a kernel on the device of the first tensor."""
    device = tensors[0].device
    if _SEVERAL_DEVICES and device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(plan, tensors, numbers)
        return
    for number in plan.copied:
        tensors[number] = tensors[number].contiguous()
    addresses = [x.data_ptr() for x in tensors]
    together = 0
    for address in addresses:
        together |= address
    key = (device, *[x.dtype for x in tensors])
    run = plan.ready.get(key)
    if run is not None and together % 16 == 0:
        run(*addresses, *numbers, *plan.constants)
        return
    options = {"num_warps": plan.warps}
    if plan.registers is not None:
        options["maxnreg"] = plan.registers
    compiled = plan.kernel[(plan.programs,)](*tensors, *numbers, *plan.constants, **options)
    # the interpreter compiles nothing
    if _REMEMBERS and compiled is not None and together % 16 == 0:
        plan.ready[key] = compiled[(plan.programs, 1, 1)]


def power_of_two(size: int) -> int:
    """The least one that is not below ``size``; Triton's own function is slow to call."""
    return 1 << (size - 1).bit_length()
