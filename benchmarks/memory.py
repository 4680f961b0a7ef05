"""The most memory that is in use at once."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the memory profiler is chatty otherwise

import torch
from machine import Setup, release


@contextmanager
def peak_memory(setup: Setup) -> Iterator[list[int | str]]:
    """Most memory of the GPU that is in use at once, beyond what was; unknown on a CPU."""
    peak: list[int | str] = [""]
    if not setup.on_gpu:
        yield peak
        return
    release()  # what is still to be freed would count as well
    setup.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield peak
    setup.synchronize()
    peak[0] = torch.cuda.max_memory_allocated() - before


def peak_bytes_on_cpu(step: Callable[[], object]) -> int:
    """Most memory alive at once while ``step`` runs, beyond what was there.

    Every allocation that torch makes is seen, also those inside an operation.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        outputs = step()
    del outputs
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    live = peak = 0
    for change in changes:
        live += change["args"]["Bytes"]
        peak = max(peak, live)
    return peak
