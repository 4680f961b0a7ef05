"""Stacked layers against those of torch.nn, member by member."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from discretegrad_lab.stack import layers

SEEDS = [3, 0, 11]
SIZES = [7, 33, 5, 2]


def alone(seed):
    """The same network for one member, as torch makes it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second, third = (nn.Linear(a, b) for a, b in pairwise(SIZES))
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


@pytest.fixture
def network():
    return layers.mlp(layers.generators(SEEDS), SIZES)


def test_a_member_starts_as_torch_would_start_it():
    before = torch.get_rng_state()
    network = layers.mlp(layers.generators(SEEDS), SIZES)
    assert torch.equal(torch.get_rng_state(), before)
    assert "members=3, in_features=7, out_features=33" in repr(network)
    for member, seed in enumerate(SEEDS):
        expected = alone(seed).state_dict()
        found = network.state_dict()
        assert list(found) == list(expected)
        for name, x in expected.items():
            assert torch.equal(found[name][member], x), (seed, name)


def test_outputs_and_gradients_are_those_of_each_member_alone(network, generator):
    x = torch.randn(len(SEEDS), 10, SIZES[0], generator=generator).requires_grad_()
    g = torch.randn(len(SEEDS), 10, SIZES[-1], generator=generator)
    y = network(x)
    assert y.shape == g.shape
    assert y.is_contiguous()
    names, parameters = zip(*network.named_parameters(), strict=True)
    found = torch.autograd.grad(y, [x, *parameters], g)
    # as the parameters, so that the optimiser need not read them across
    assert all(g.is_contiguous() for g in found[1:])
    for member, seed in enumerate(SEEDS):
        one = alone(seed)
        own = x.detach()[member].clone().requires_grad_()
        torch.testing.assert_close(one(own), y[member])
        expected = torch.autograd.grad(one(own), [own, *one.parameters()], g[member])
        for name, a, b in zip(["x", *names], found, expected, strict=True):
            torch.testing.assert_close(a[member], b, msg=name)


def test_derivatives_by_finite_differences(generator):
    layer = layers.Linear(layers.generators(SEEDS), 3, 2).double()
    x = torch.randn(len(SEEDS), 4, 3, generator=generator, dtype=torch.float64).requires_grad_()
    parameters = tuple(layer.parameters())

    def of(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(of, (x, *parameters))
    assert torch.autograd.gradgradcheck(of, (x, *parameters))


def test_members_do_not_touch_each_other(network, generator):
    x = torch.randn(len(SEEDS), 10, SIZES[0], generator=generator)
    x[1] = torch.nan
    y = network(x)
    y.sum().backward()
    assert y[1].isnan().all()
    for member in (0, 2):
        assert y[member].isfinite().all()
        for p in network.parameters():
            assert p.grad[member].isfinite().all()


# torch's own use of its deprecated parts
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instanti:DeprecationWarning")
def test_it_is_traced_as_one_graph(network, generator):
    x = torch.randn(len(SEEDS), 10, SIZES[0], generator=generator)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x))
    parameters = list(network.parameters())
    expected = torch.autograd.grad(network(x).square().sum(), parameters)
    found = torch.autograd.grad(compiled(x).square().sum(), parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
        assert a.is_contiguous()
