"""Connecting to a Ray cluster, and what can go wrong there."""

import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import torch

_CONNECT = 5.0
"""Seconds to wait for a cluster; Ray itself would wait for minutes."""
# runs and reports do not need more, and Ray would take a third of the memory
_OBJECTS = 128 << 20


class ClusterError(ValueError):
    """The cluster cannot do it; the message says why and what to do."""


def import_ray() -> Any:
    """The package, if it is installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClusterError(
            "expected the package ray for training on a cluster, got none; install it with "
            '`pip install "discretegrad[ray]"`'
        ) from error


def check_address(address: str | None) -> None:
    """Whether somebody listens there."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not (host and "/" not in host and port.isdecimal()):
        raise ClusterError(
            f"expected auto or HOST:PORT as the address of a Ray cluster, got {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str | None, error: Exception) -> ClusterError:
    got = " ".join(str(error).split()).rstrip(".")
    if address is None:
        return ClusterError(
            f"expected to start a Ray cluster on this machine, got: {got}; train without Ray, or "
            "give the address of a cluster that runs"
        )
    # Ray mentions it somewhere in the chain of causes
    if "AuthenticationError" in "".join(traceback.format_exception(error)):
        return ClusterError(
            f"expected a Ray cluster at the address {address} that lets this machine in, got one "
            "that asks for a token; set RAY_AUTH_MODE=token, and give this machine "
            "the cluster's token as Ray's documentation on token authentication says"
        )
    return ClusterError(
        f"expected a Ray cluster at the address {address}, got: {got}; start one with "
        "`ray start --head`, or leave the address out to have one started on this machine"
    )


@contextlib.contextmanager
def connected(ray: Any, address: str | None, **options: Any) -> Iterator[None]:
    """Connect to a cluster, or start one, and end that again."""
    if ray.is_initialized():
        yield
        return
    if address is None:
        # no report goes out to anybody
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"include_dashboard": False, "object_store_memory": _OBJECTS, **options}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from error
    try:
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler exits on the spot
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        yield
    finally:
        ray.shutdown()


def resources(ray: Any, device: torch.device | str) -> tuple[str, int]:
    """The kind of device to train on, and how many of it the cluster has."""
    available = ray.cluster_resources()
    if device == "auto":
        device = "cuda" if available.get("GPU", 0) >= 1 else "cpu"
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"expected the device cpu or cuda, got {device!r}") from error
    names = {"cpu": "CPU", "cuda": "GPU"}
    if wanted.type not in names or wanted.index:
        raise ValueError(
            f"expected the device cpu or cuda for a cluster, got {wanted}; choose one of the two, "
            "and Ray gives every stack a device of that kind"
        )
    count = int(available.get(names[wanted.type], 0))
    if count < 1:
        raise ClusterError(
            f"expected a cluster with a {names[wanted.type]}, got one without; choose another "
            "device, or add a node that has one"
        )
    return wanted.type, count


def lost(error: Exception) -> ClusterError:
    """What to say when Ray gives up."""
    lines = str(error).rstrip(" .\n").splitlines() or [type(error).__name__]
    return ClusterError(
        f"expected workers that live until their stacks are trained, got: {lines[-1].strip()}; see "
        "that every node has memory for it and the same discretegrad and ray as this machine, and "
        "start again: what was saved is whole, and work goes on from there"
    )
