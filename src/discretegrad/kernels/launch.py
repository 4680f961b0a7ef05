"""Start a kernel on the device of its tensors."""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

# Triton works out anew at every launch which variant of a kernel fits, in more time than a small
# kernel takes. From this version on a compiled kernel takes all arguments of its source, so a plan
# can remember it.
_REMEMBERS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 5)
_SEVERAL_DEVICES = torch.cuda.device_count() > 1
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class _Compiled(NamedTuple):
    """A variant of a kernel for tensors whose addresses are multiples of 16."""

    run: Any
    function: Any
    metadata: Any


class Plan:
    """All of a launch that does not change from call to call; worth keeping.

    It serves tensors of one device and of the same dtypes, in their order.
    """

    __slots__ = ("compiled", "constants", "copied", "kernel", "programs", "registers", "warps")

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
        self.compiled: _Compiled | None = None


def launch(plan: Plan, tensors: list[Tensor], numbers: tuple[float, ...] = ()) -> None:
    """Run a kernel on the device of the first tensor."""
    device = tensors[0].get_device()
    if _SEVERAL_DEVICES and device not in (-1, torch.cuda.current_device()):
        with torch.cuda.device(device):
            launch(plan, tensors, numbers)
        return
    for number in plan.copied:
        tensors[number] = tensors[number].contiguous()
    addresses = [x.data_ptr() for x in tensors]
    is_aligned = reduce(or_, addresses) % 16 == 0
    if is_aligned and is_ready(plan, device):
        start(plan, device, addresses, numbers)
        return
    options = {"num_warps": plan.warps}
    if plan.registers is not None:
        options["maxnreg"] = plan.registers
    compiled = plan.kernel[(plan.programs,)](*tensors, *numbers, *plan.constants, **options)
    # the interpreter compiles nothing
    if _REMEMBERS and compiled is not None and is_aligned:
        plan.compiled = _Compiled(compiled.run, compiled.function, compiled.packed_metadata)


def start(
    plan: Plan, device: int, addresses: Iterable[int], numbers: tuple[float, ...] = ()
) -> None:
    """Run a plan that is ready, with addresses that are multiples of 16.

    What Triton's own launch comes down to, as torch.compile does it for the kernels it writes.
    """
    run, function, metadata = plan.compiled  # type: ignore[misc]
    run(
        plan.programs, 1, 1, _current_stream(device), function, metadata, None, None, None,
        *addresses, *numbers, *plan.constants,
    )  # fmt: skip


def is_ready(plan: Plan, device: int) -> bool:
    """Whether ``start`` can run a plan: compiled, for the current device, and nobody watches."""
    if plan.compiled is None or (_SEVERAL_DEVICES and device != torch.cuda.current_device()):
        return False
    # a profiler may have asked Triton to be told of launches
    runtime = triton.knobs.runtime
    before, after = runtime.launch_enter_hook, runtime.launch_exit_hook
    return not (getattr(before, "calls", before) or getattr(after, "calls", after))


def power_of_two(size: int) -> int:
    """The least one that is not below ``size``; Triton's own function is slow to call."""
    return 1 << (size - 1).bit_length()
