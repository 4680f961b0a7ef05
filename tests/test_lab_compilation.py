"""What stacks compile: gradients that are right, and nothing stored that need not be."""

import re

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from discretegrad_lab.stack.compilation import compiled, compiled_with_gradients


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


def test_a_step_stores_no_result_that_its_gradient_can_compute_again():
    members, width = 2, 50
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(members, width, generator=generator) / 2
    weight = torch.randn(members, 1, generator=generator).requires_grad_()

    def losses(x):
        h = weight * x
        # more operations than torch would repeat by itself
        for _ in range(30):
            h = h * x + x
        # its gradient needs the sum first, and then h again
        return (h * h).sum(1).square()

    expected = losses(x)
    (gradient,) = torch.autograd.grad(expected.sum(), weight)
    (values, (found,)), (code,) = run_and_get_code(compiled_with_gradients(losses, [weight]), x)
    torch.testing.assert_close(values, expected.detach())
    torch.testing.assert_close(found, gradient)
    shapes = re.findall(r"empty_strided_cpu\(\(([\d, ]+)\)", code)
    assert shapes
    assert f"{members}, {width}" not in shapes
