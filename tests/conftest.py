"""Shared by all tests."""

import pytest
import torch


@pytest.fixture
def generator():
    """A CPU generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
