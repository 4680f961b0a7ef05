"""What a run was trained with, and what this machine has to offer."""

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

import discretegrad

COMMIT = "DISCRETEGRAD_COMMIT"
"""Names the commit where git cannot, such as for a copy on a machine of a cluster."""

_PACKAGES = (Path(discretegrad.__file__).parent, Path(__file__).parents[1])
_MEMORY_INFO = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 62


class _Version(NamedTuple):
    """How a version of Linux control groups says what memory a group may have."""

    kind: str
    """Of the group, in the list of those that a process is in."""
    folder: str
    most: str
    used: str
    cached: str
    """What of the used memory are files that the kernel drops as soon as somebody needs it."""


_VERSIONS = (
    _Version("", "", "memory.max", "memory.current", "inactive_file"),
    _Version(
        "memory",
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def describe(device: torch.device | str, *, tf32: bool = False) -> dict[str, Any]:
    """Everything besides the configuration that may matter to a result, for a JSON file.

    Args:
        device: Where the run is trained.
        tf32: Whether its matrix products may round their factors, where the device can.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    can_round = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    commit, changed = _commit()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "changed_since_commit": changed,
        "source": source(),
        "discretegrad": discretegrad.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "cuda": str(torch.version.cuda) if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "system": f"{platform.system()} {platform.machine()}",
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "precision": "float32 with TF32 products" if tf32 and can_round else "float32",
    }


@functools.cache
def source() -> str:
    """A hash of the code of both packages: equal means the same code, committed or not."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted(package.rglob("*.py")):
            content = path.read_bytes()
            name = path.relative_to(package.parent).as_posix()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def device_name(device: torch.device | str) -> str:
    """What the maker calls it."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() if device.type == "cpu" else device.type


def check_device(device: torch.device | str) -> torch.device:
    """The device, if this machine has it."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"expected a device such as cpu or cuda:0, got {device!r}") from error
    if chosen.type == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= there:
            raise ValueError(
                f"expected a device of this machine, got {chosen}, and torch {torch.__version__} "
                f"finds {there or 'no'} CUDA GPU{'s' * (there > 1)}; choose the device cpu, or "
                "install a torch built for your GPU and its driver"
            )
    elif chosen.type != "cpu":
        raise ValueError(f"expected the device cpu or cuda, got {chosen}; choose one of the two")
    return chosen


def free_memory(device: torch.device | str) -> int:
    """Bytes that can still be had on a device."""
    device = torch.device(device)
    if device.type == "cuda":
        # what torch keeps for later can be had too
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    return min(_machine_memory(), _container_memory())


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory could not be had; on a CPU torch has no type for that."""
    signs = ("allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        sign in str(error) for sign in signs
    )


def _machine_memory() -> int:
    try:
        for line in _MEMORY_INFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        # no telling how much of it is used
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 << 30


def _container_memory() -> int:
    """What the limits of its control groups leave this process; no limit is a very large one.

    A group is a directory and its limit holds for all groups below it. A container may see its own
    group only, at the top and under another name than the process has.
    """
    left = _UNLIMITED
    for version in _VERSIONS:
        name = _group(version.kind)
        for group in (name, *name.parents):
            left = min(left, _left(_CONTAINER / version.folder / group, version))
    return left


def _group(kind: str) -> Path:
    """The name of the control group that this process is in, by the kind of group."""
    try:
        for line in _GROUPS.read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            # a group beyond what a container sees is called /..
            if kind in kinds.split(",") and ".." not in name:
                return Path(name.strip("/"))
    except (OSError, ValueError):
        pass
    return Path()


def _left(directory: Path, version: _Version) -> int:
    try:
        most = int((directory / version.most).read_text())
        used = int((directory / version.used).read_text())
    except (OSError, ValueError):
        return _UNLIMITED
    cached = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (directory / "memory.stat").read_text().splitlines():
            if line.startswith(f"{version.cached} "):
                cached = int(line.split()[1])
    return max(most - max(used - cached, 0), 0)


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache
def _commit() -> tuple[str | None, bool | None]:
    """The commit of the source, and whether the code differs from it; None if unknown."""
    library = _PACKAGES[0]
    # a copy installed below somebody else's repository is not part of it
    is_own = _git(library, "ls-files", "--error-unmatch", "__init__.py") is not None
    if COMMIT in os.environ or not is_own:
        return os.environ.get(COMMIT), None
    commit = _git(library, "rev-parse", "HEAD")
    changes = _git(library, "status", "--porcelain", "--", *map(str, _PACKAGES))
    return commit, None if changes is None else bool(changes)


def _git(directory: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *command],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
