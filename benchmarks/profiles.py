"""What the GPU is asked to do: kernels by their names, how many and how long."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pages
import torch
from files import Row
from machine import Setup, attempt
from timing import rounded

ON_THE_CLOCK, ALL = "a step on the clock", "all"
"""Names in a profile that are of no kernel."""


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
        for name in (ALL, short_name(event.name)):
            seconds[name] += event.device_time * 1e-6
            launches[name] += 1
    return {
        name: {"launches": f"{launches[name] / steps:.5g}", "seconds": rounded(spent / steps)}
        for name, spent in seconds.most_common(1 + most)
    }


def kernel_rows(about: Row, profile: Callable[[], dict[str, Row]], setup: Setup) -> Iterator[Row]:
    """A row for each name in a profile, or one that says why there is none."""
    numbers, status = attempt(profile) if setup.on_gpu else (None, "needs a GPU")
    for provider, row in (numbers or {ALL: {}}).items():
        yield about | {"provider": provider, "status": status, **row}


def short_name(name: str) -> str:
    """A kernel without its types and arguments."""
    parts = [x for x in plain_name(name).replace("(", "<").split("<") if x.strip(" >")]
    return " ".join(parts[:1] + [x for x in parts if "Functor" in x or "lambda" in x][:1])[:80]


def plain_name(name: str) -> str:
    """A kernel without what is not part of its name."""
    return demangled(name).removeprefix("void ").replace("(anonymous namespace)::", "")


def demangled(name: str) -> str:
    """Namespaces and name of a function that the profiler gives as the compiler wrote it."""
    rest, parts = name.removeprefix("_ZN"), []
    while name.startswith("_ZN") and (size := re.match(r"\d+", rest)):
        end = size.end() + int(size[0])
        parts.append(rest[size.end() : end])
        rest = rest[end:]
    return "::".join(parts) or name


def kernels_table(rows: Sequence[Row]) -> str:
    """Launches and time of the kernels of each case, by name."""
    columns: dict[str, pages.Cell] = {
        "": lambda row: f"{row['case']}: {shown(row['provider'])}",
        "launches": lambda row: row["launches"],
        "time": pages.seconds,
    }
    return pages.table(rows, "", columns)


def shown(name: str) -> str:
    return name if name in (ON_THE_CLOCK, ALL) else f"`{plain_name(name)}`"
