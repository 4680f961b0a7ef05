"""Whether other processes compute on a GPU at the same time."""

import os

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
"""Processes that have this variable share a GPU by NVIDIA's Multi-Process Service."""


def shares_gpu() -> bool:
    """Whether this process does, so that the time that it takes is not its own."""
    return bool(os.environ.get(PIPES))
