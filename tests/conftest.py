"""Shared by all tests."""

import importlib.util
import os
import signal
import tempfile
import warnings
from pathlib import Path

# torch reads it when it is imported: threads that wait for others leave the cores to them
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # the processes share the cores; threads beside them would only wait for each other
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# what a shell starts in the background, or with nohup, ignores signals that tests send
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (getattr(signal, "SIGHUP", signal.SIGTERM), signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

has_triton = importlib.util.find_spec("triton") is not None
# there is none on Windows and macOS
needing_triton = ["test_gpu_kernels.py", "test_gpu_lab.py", "test_lab_listops_kernels.py"]
collect_ignore = [] if has_triton else needing_triton
if not torch.cuda.is_available():
    # Triton and the library read it when they are imported: kernels then run without a GPU
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if os.environ["TRITON_INTERPRET"] == "1" and has_triton:
        import quick_interpreter

        quick_interpreter.install()


def pytest_runtest_setup(item):
    """So that plain ``pytest`` passes on a machine without a GPU, too."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def generator():
    """A CPU generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def global_seed():
    """The same global random numbers for every test that draws from them."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


@pytest.fixture
def own_warnings():
    """Let pass what torch's own use of its deprecated parts warns of."""
    messages = (".torch.jit.script(_method)?. is deprecated", ".*Function'> should not be instanti")
    with warnings.catch_warnings():
        for message in messages:
            warnings.filterwarnings("ignore", message, DeprecationWarning)
        yield


@pytest.fixture
def compiler(own_warnings):
    """A compiler that has compiled nothing yet."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def poison(request, monkeypatch):
    """Kernels get poisoned memory, except in what is compiled."""
    from kernel_cases import poisoned_memory

    if "compiler" in request.fixturenames:
        yield
        return
    with poisoned_memory(monkeypatch):
        yield


@pytest.fixture
def unchecked():
    """Nobody looks at values, as on a GPU."""
    import discretegrad

    before = discretegrad.set_checks("never")
    yield
    discretegrad.set_checks(before)


@pytest.fixture
def memory():
    """A directory for very many files, in memory where the system has such a place."""
    place = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as name:
        yield Path(name)
