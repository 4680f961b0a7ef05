"""What a machine has or lacks of what the commands need: torch is imported, which takes seconds."""

import errno
import importlib.util
import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from discretegrad.doctor import Part, kernels, software

from ..runs.environment import device_name, free_memory
from ..runs.files import nearest_directory
from ..tasks import EXAMPLE
from ..tasks.data import DATA_SETS, check
from ..watch.words import many, size
from .common import ROOM


def parts_of_machine(runs: Path, data: Path | None) -> Iterator[Part]:
    """Everything that matters to the commands.

    Args:
        runs: The directory of the runs.
        data: Where to look for data sets first.
    """
    yield from software()
    yield from hardware()
    yield disk(runs)
    yield from _data_found(data)
    yield from _packages()


def hardware() -> Iterator[Part]:
    """Processors, their memory, and what runs on them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Part(
        "CPU",
        f"{device_name('cpu')}, {many(cores or 1, 'core')}, {torch.get_num_threads()} used by "
        f"torch, {size(free_memory('cpu'))} of memory free",
    )
    if not torch.cuda.is_available():
        remedy = (
            "Install a driver and see that `nvidia-smi` works."
            if torch.version.cuda
            else "If this machine has one, install a torch that is built for CUDA."
        )
        yield Part(
            "GPU",
            "none that torch can use",
            f"Training runs on the CPU: minutes for {EXAMPLE}, hours for the rest. {remedy}",
        )
        yield Part("TF32", "only on GPUs")
        yield Part("fused kernels", "only on GPUs; the CPU has its own path")
        return
    for number in range(torch.cuda.device_count()):
        name = f"cuda:{number}"
        total = torch.cuda.get_device_properties(number).total_memory
        free = free_memory(name)
        advice = "" if free > total / 2 else "Something else uses most of its memory."
        state = f"{device_name(name)}, {size(free)} of {size(total)} free"
        yield Part(f"GPU {number}", state, advice)
    capable = torch.cuda.get_device_capability() >= (8, 0)
    yield Part(
        "TF32",
        "can round products; recipes that allow it say so" if capable else "not on this GPU",
        "" if capable else "Recipes that allow TF32 run in float32, and slower.",
    )
    yield kernels()


def disk(runs: Path) -> Part:
    """Whether there is room for runs."""
    what = "runs directory"
    try:
        place = nearest_directory(runs)
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        free = shutil.disk_usage(place).free
    except OSError as error:
        reason = error.strerror or error
        return Part(
            what, f"{runs}: cannot be written ({reason})", "Choose another with --runs.", True
        )
    # ten times the largest recipe
    advice = "" if free > 10e9 else "Free some space, or choose another directory with --runs."
    return Part(what, f"{runs}: {size(free)} free", advice, broken=free < ROOM)


def _data_found(directory: Path | None) -> Iterator[Part]:
    reports = check(directory)
    for name, data_set in DATA_SETS.items():
        remedies = {file.name: data_set.remedy(file) for file in data_set.files}
        files = [file for file in reports if file.data_set == name]
        bad = [file for file in files if file.state != "ok"]
        if not bad:
            places = dict.fromkeys(str(file.path.parent) for file in files if file.path)
            yield Part(f"data set {name}", ", ".join(places))
        else:
            states = dict.fromkeys(file.state for file in bad)
            remedy = remedies[bad[0].file]
            yield Part(
                f"data set {name}",
                " and ".join(states),
                f"{remedy[:1].upper()}{remedy[1:]}, or say where it is with --data.",
            )


def _packages() -> Iterator[Part]:
    uses = {
        "matplotlib": ("lab", "plots"),
        "tensorboard": ("tensorboard", "--tensorboard"),
        "ray": ("ray", "--engine ray"),
    }
    for name, (extra, use) in uses.items():
        if importlib.util.find_spec(name) is None:
            advice = f'For {use}: pip install "discretegrad[{extra}]"'
            yield Part(name, "not installed", advice)
        else:
            yield Part(name, metadata.version(name))
