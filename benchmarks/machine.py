"""Where a benchmark runs: the device, what may go wrong there, and what is recorded of it."""

import argparse
import datetime
import gc
import math
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from files import REHEARSED, ROOT, Row
from torch import Tensor

import discretegrad

TIME_OVER = "not measured: the time was over"


class Unavailable(Exception):
    """Something cannot run here; the message says why."""


class RedGate(Exception):
    """A provider computes wrong numbers."""


class Setup(NamedTuple):
    """Where and how to run."""

    device: torch.device
    quick: bool = False
    """Whether this is a rehearsal in miniature."""
    bandwidth: float = math.nan
    """Of a plain copy, in bytes read and written in a second."""
    deadline: float = math.inf
    """By the clock of ``time.perf_counter``; nothing new begins after it."""
    folder: Path = REHEARSED
    data: Any = None
    """What a benchmark reads from its options, such as images."""

    @property
    def on_gpu(self) -> bool:
        """Whether there are streams, graphs and an allocator to ask."""
        return self.device.type == "cuda"

    def random(self, *shape: int, dtype: torch.dtype = torch.float32, scale=1.0) -> Tensor:
        """Fresh standard normal numbers."""
        return torch.randn(shape, device=self.device, dtype=dtype).mul_(scale)

    def small(self, *shape: int) -> tuple[int, ...]:
        """The shape, or a miniature of it."""
        limits = [16 * 2**place if self.quick else n for place, n in enumerate(shape)]
        return tuple(map(min, shape, limits))

    def check_time(self) -> None:
        """Begin nothing new after the deadline."""
        if time.perf_counter() > self.deadline:
            raise Unavailable(TIME_OVER)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()


def attempt(function: Callable[[], Any]) -> tuple[Any, str]:
    """What a function returns and "ok", or nothing and what happened."""
    try:
        return function(), "ok"
    except torch.cuda.OutOfMemoryError:
        status = "out of memory"
    except Unavailable as error:
        status = str(error)
    except RedGate as error:
        status = f"red gate: {error}"
    # minutes of a GPU are not lost to one provider that fails
    except Exception as error:
        traceback.print_exc()  # with the error that this one may hide
        first_line = str(error).strip().partition("\n")[0][:200]
        status = f"failed: {type(error).__name__}: {first_line}"
    release()
    return None, status


def is_red(row: Row) -> bool:
    """Whether something failed that should not have."""
    return str(row.get("status", "ok")).startswith(("red gate", "failed"))


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def about_run(options: argparse.Namespace, setup: Setup) -> Row:
    """Where, with what and how this run was made; a file keeps the columns that it knows."""
    gpu = torch.cuda.get_device_properties(setup.device) if setup.on_gpu else None
    commit = options.commit or git("rev-parse", "--short", "HEAD") or "unknown"
    changed = not options.commit and git("status", "--porcelain")
    return {
        "device": setup.device.type,
        "machine": gpu.name if gpu else cpu_name(),
        "gpu": gpu.name if gpu else f"none ({cpu_name()})",
        "l2_bytes": gpu.L2_cache_size if gpu else "",
        "copy_bandwidth": setup.bandwidth,
        "copy_bandwidth_end": "",
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "dtype": "float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "reinmax": version_of("reinmax"),
        "discretegrad": discretegrad.__version__,
        "commit": commit,
        "uncommitted_changes": "unknown" if commit == "unknown" else "yes" if changed else "no",
        "date": datetime.date.today().isoformat(),
        "command": options.command,
    }


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """The processor, as the system calls it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def git(*arguments: str) -> str:
    """What git says about this repository; nothing where there is none."""
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
