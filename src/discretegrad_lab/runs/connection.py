"""Connecting to a Ray cluster, and what can go wrong there."""

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_log = logging.getLogger(__name__)

_CONNECT = 5.0
"""Seconds to wait for a cluster; Ray itself would wait for minutes."""
_OLDEST = (2, 52)
"""The first version of Ray whose clusters can ask for a token."""
_LOOK = 1.0
"""Seconds between two looks at the processes of Ray that a driver needs."""
_HEAD_AWAY, _NODE_AWAY = 20.0, 2.0
"""Seconds that these may be gone: a head can be started again. Ray would end the driver, with
nothing but a line in its log, when the head has been away for 60."""
# runs and reports do not need more, and Ray would take a third of the memory
_OBJECTS = 128 << 20


class ClusterError(ValueError):
    """The cluster cannot do it; the message says why and what to do."""


def import_ray(address: str | None) -> Any:
    """The package, if it is installed and new enough.

    Args:
        address: Of the cluster to connect to; None if one is to be started.
    """
    if address is None and "ray" not in sys.modules:
        # Ray reads it when it is imported; from some version on this is its default
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ClusterError(
            "expected the package ray for training on a cluster, got none; install it with "
            '`pip install "discretegrad[ray]"`'
        ) from error
    if tuple(map(int, re.findall(r"\d+", ray.__version__)[:2])) < _OLDEST:
        raise ClusterError(
            f"expected ray {'.'.join(map(str, _OLDEST))} or later, whose clusters can ask for a "
            f"token, got {ray.__version__}, which lets everybody in who can reach it; install a "
            'newer one with `pip install --upgrade "discretegrad[ray]"`'
        )
    return ray


def check_address(address: str | None) -> None:
    """Whether somebody listens there who could be Ray."""
    if address in (None, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not (host and "/" not in host and port.isdecimal()):
        raise ClusterError(
            f"expected auto or HOST:PORT as the address of a Ray cluster, got {address!r}"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT) as listener:
            answers = os.environ.get("RAY_USE_TLS", "0") != "0" or _speaks_http2(listener)
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from error
    if not answers:
        got = "something else that listens there, or a head that does not answer"
        raise _unreachable(address, ConnectionError(got))


def _speaks_http2(listener: socket.socket) -> bool:
    """Whether a server greets like those of Ray, which would wait for ever for others to do so."""
    # the client's greeting with empty settings; the server's begins with its own settings
    settings = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    listener.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
    deadline, answer = time.monotonic() + _CONNECT, b""
    with contextlib.suppress(TimeoutError):
        while len(answer) < len(settings) and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            piece = listener.recv(len(settings) - len(answer))
            if not piece:
                break
            answer += piece
    return len(answer) == len(settings) and answer[3:5] == settings[3:5]


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
    target = resolved(address)
    check_address(target)
    alone = _on_loopback() if _is_of_this_machine(target) else contextlib.nullcontext()
    options |= {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        with alone:
            ray.init(address or "local", **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from error
    try:
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler exits on the spot
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        with _replaced("ray._private.worker", "print_to_stdstream", _log_notice):
            yield
    finally:
        ray.shutdown()


def resolved(address: str | None) -> str | None:
    """The address that auto stands for, if Ray finds one."""
    if address == "auto":
        services: Any = sys.modules.get("ray._private.services")
        with contextlib.suppress(AttributeError, OSError, RuntimeError, TypeError, ValueError):
            address = services.get_ray_address_from_environment(address, None)
    return address


def _is_of_this_machine(address: str | None) -> bool:
    """Whether a cluster is, or is to be, one that no other machine can reach."""
    if address is None:
        return True
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # nothing is sent; it chooses the interface that leads to others
            probe.connect(("203.0.113.1", 9))
            outside = probe.getsockname()[0]
        socket.create_connection((outside, int(port)), _CONNECT).close()
    except OSError:
        return True
    return False


def _on_loopback() -> contextlib.AbstractContextManager[None]:
    """Within this, Ray starts and finds clusters that no other machine can reach.

    Otherwise it listens on all interfaces, and replaces an address such as 127.0.0.1 by one that
    other machines can reach, also where nobody listens there.
    """
    # of its two ways to choose an address, that of systems where it supports one machine only
    return _replaced("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False)


@contextlib.contextmanager
def _replaced(module: str, name: str, value: Any) -> Iterator[None]:
    """Within this, a name of a module of Ray stands for something else, if there is such a name."""
    place = sys.modules.get(module)
    if not hasattr(place, name):
        yield
        return
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def _log_notice(notice: Mapping[str, Any], *_: object, **__: object) -> None:
    """Log what Ray would print on stdout, where others may expect nothing but JSON."""
    _log.info("%s", "\n".join(map(str, notice.get("lines", ()))))


class Lifeline:
    """Tells whether the processes of Ray live that a driver cannot do without.

    Ray ends the driver some time after one of them is gone, with a line in a log at best.
    """

    def __init__(self, ray: Any) -> None:
        context = ray.get_runtime_context()
        own = next(x for x in ray.nodes() if x["NodeID"] == context.get_node_id())
        node = f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}"
        self._processes = {
            "the head of the cluster (its GCS)": (context.gcs_address, _HEAD_AWAY),
            "the raylet of this machine": (node, _NODE_AWAY),
        }
        self._looked = time.monotonic()
        self._heard = dict.fromkeys(self._processes, self._looked)
        self.cut = False
        """Whether one of them is gone, so that Ray must not be asked for anything any more."""

    def check(self) -> None:
        """Raise ``ClusterError`` if one of them is gone; looks once a second at most."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        for process, (address, most) in self._processes.items():
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), _LOOK).close()
                self._heard[process] = now
            except OSError as error:
                if now - self._heard[process] > most:
                    self.cut = True
                    gone = f"{process} does not listen at {address} any more"
                    raise lost(ConnectionError(gone)) from error


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
