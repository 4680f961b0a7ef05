"""Shared by all tests."""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # the processes share the cores; threads beside them would only wait for each other
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if not torch.cuda.is_available():
    # Triton and the library read it when they are imported: kernels then run without a GPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def generator():
    """A CPU generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
