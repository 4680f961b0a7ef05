"""What the GPU is asked to do: kernels by their names, how many and how long."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from files import Row
from machine import Setup, attempt
from timing import rounded


def names_on_gpu(function: Callable[[], object]) -> list[str]:
    """Everything that runs on the GPU for a call, by name."""
    return [event.name for event in events_on_gpu(function)]


def events_on_gpu(function: Callable[[], object]) -> list[Any]:
    """The same as events of torch's profiler."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    return [event for event in profile.events() if event.device_type == on_gpu]


def by_kernel(function: Callable[[], object], most: int, steps: int = 1) -> dict[str, Row]:
    """Launches and seconds of a step on the GPU: of all kernels, and of those that take longest.

    Args:
        function: Runs so many steps.
        most: How many kernels are named.
        steps: How many those are.
    """
    seconds, launches = Counter[str](), Counter[str]()
    for event in events_on_gpu(function):
        for name in ("all", short_name(event.name)):
            seconds[name] += event.device_time * 1e-6
            launches[name] += 1
    return {
        name: {"launches": f"{launches[name] / steps:.5g}", "seconds": rounded(spent / steps)}
        for name, spent in seconds.most_common(1 + most)
    }


def kernel_rows(about: Row, profile: Callable[[], dict[str, Row]], setup: Setup) -> Iterator[Row]:
    """A row for each name in a profile, or one that says why there is none."""
    numbers, status = attempt(profile) if setup.on_gpu else (None, "needs a GPU")
    for provider, row in (numbers or {"all": {}}).items():
        yield about | {"provider": provider, "status": status, **row}


def short_name(name: str) -> str:
    """A kernel without its types and arguments."""
    name = name.replace("(anonymous namespace)::", "")
    parts = [x for x in name.replace("(", "<").split("<") if x.strip(" >")]
    return " ".join(parts[:1] + [x for x in parts if "Functor" in x or "lambda" in x][:1])[:80]
