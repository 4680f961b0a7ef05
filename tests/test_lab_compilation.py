"""What stacks compile: gradients that are right."""

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._inductor import config

from discretegrad_lab.stack.compilation import compiled


@pytest.fixture(autouse=True)
def anew(compiler):
    """Nothing that was compiled before is taken from a file: its key knows too little."""
    with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


def product(logits, weight):
    """Its backward pass wants the probabilities, and twice a part of them."""
    first, second = logits.sigmoid().unbind()
    return (first.unsqueeze(-1) * second.unsqueeze(-2) * weight).sum(0).square().sum()


# Dynamo itself does it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_backward_pass_writes_over_nothing_that_it_still_needs():
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 4), (4, 4))
    leaves = [torch.randn(size, generator=generator, requires_grad=True) for size in sizes]
    expected = torch.autograd.grad(product(*leaves), leaves)
    found = torch.autograd.grad(compiled(product)(*leaves), leaves)
    for actual, g in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, g)
