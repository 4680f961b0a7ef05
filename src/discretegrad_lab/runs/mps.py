"""NVIDIA's Multi-Process Service: kernels of several processes run on a GPU at the same time.

Without it a GPU gives each process a slice of time in turn.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..stack.sharing import PIPES, shares_gpu

_CONTROL = "nvidia-cuda-mps-control"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
_SECONDS = 60.0
"""That starting, trying and stopping it may take, each."""
_TRIAL = "import torch; torch.ones(1, device='cuda').sum().item()"


@contextlib.contextmanager
def shared_gpu(device: str) -> Iterator[str]:
    """Let processes that are started within share a GPU by a service of their own.

    Yields:
        Why there is none; empty if there is, also one that a user has started, or where the device
        is no GPU.
    """
    if not device.startswith("cuda") or shares_gpu():
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        names = {PIPES: str(Path(folder, "pipe")), _LOGS: str(Path(folder, "log"))}
        why_not = _start(names)
        if why_not:
            yield why_not
            return
        os.environ.update(names)
        try:
            yield ""
        finally:
            for name in names:
                os.environ.pop(name, None)
            _stop(names)


def _start(names: dict[str, str]) -> str:
    """Start the service and see that a process can use it; why it cannot, if so."""
    if shutil.which(_CONTROL) is None:
        return f"there is no {_CONTROL}"
    for path in names.values():
        Path(path).mkdir()
    environment = {**os.environ, **names}
    for command in ([_CONTROL, "-d"], [sys.executable, "-c", _TRIAL]):
        try:
            # the service keeps what it inherits open, so it gets nothing to write to
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            _stop(names)
            return f"{command[0]}: {error}"
        if done.returncode:
            _stop(names)
            return f"{command[0]} ended with exit code {done.returncode}"
    return ""


def _stop(names: dict[str, str]) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [_CONTROL],
            input=b"quit\n",
            env={**os.environ, **names},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
