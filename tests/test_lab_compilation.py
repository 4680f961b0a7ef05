"""What stacks compile: gradients that are right, and nothing stored that need not be."""

import math
import re

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from discretegrad_lab.stack import learned
from discretegrad_lab.stack.compilation import compiled
from discretegrad_lab.stack.layers import generators


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


def test_the_hidden_layer_of_rodeo_is_not_stored():
    members, points = 2, 40
    network = learned.SteinNetwork(generators(range(members)))
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(members, points, 2, generator=generator) for _ in range(2))
    inner, outer = network.inner, network.outer
    weights = [p.detach() for p in (inner.weight, inner.bias, outer.weight, outer.bias)]
    # how much a result may read before it is stored: on a CPU more than on a GPU, unless it is set
    with config.patch(realize_acc_reads_threshold=8):
        for function, arguments in (
            (learned.stein, (x, *weights)),
            (learned.stein_slopes, (g, x, *weights[:-1])),
        ):
            found, (code,) = run_and_get_code(compiled(function, inline=True), *arguments)
            torch.testing.assert_close(found, function(*arguments), rtol=1e-4, atol=1e-5)
            shapes = re.findall(r"empty_strided_cpu\(\(([\d, ]+)\)", code)
            largest = max(math.prod(map(int, re.findall(r"\d+", shape))) for shape in shapes)
            assert largest < members * points * learned.STEIN_HIDDEN
