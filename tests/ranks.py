"""Two processes that speak gloo, for tests of what happens across the ranks of a training."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def on_two_ranks(function: Callable[[int], Any], folder: Path) -> list[Any]:
    """What ``function(rank)`` returned in each of two processes; a function of a module."""
    torch.multiprocessing.spawn(_rank, args=(function, str(folder)), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


def _rank(rank: int, function: Callable[[int], Any], folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.save(function(rank), f"{folder}/rank{rank}.pt")
    store.set(f"saved {rank}", "")
    store.wait(["saved 0", "saved 1"])
    # not a return: gloo's threads may outlive the interpreter and then abort the process, whose
    # work is done (seen once, with torch 2.13)
    os._exit(0)
