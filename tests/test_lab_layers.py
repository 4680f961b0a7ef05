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


def test_a_member_starts_as_torch_would_start_it(network):
    for member, seed in enumerate(SEEDS):
        expected = alone(seed).state_dict()
        found = network.state_dict()
        assert list(found) == list(expected)
        for name, x in expected.items():
            assert torch.equal(found[name][member], x), (seed, name)


def test_layers_after_one_another_continue_the_same_numbers():
    generators = layers.generators(SEEDS)
    layers.Linear(generators, 4, 6)
    second = layers.Linear(generators, 6, 3)
    for member, seed in enumerate(SEEDS):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nn.Linear(4, 6)
            assert torch.equal(second.weight[member], nn.Linear(6, 3).weight)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    layers.mlp(layers.generators(SEEDS), SIZES)
    assert torch.equal(torch.get_rng_state(), before)


def test_members_of_one_seed_are_equal_and_of_others_are_not():
    layer = layers.Linear(layers.generators([1, 1, 2]), 4, 3)
    assert torch.equal(layer.weight[0], layer.weight[1])
    assert not torch.equal(layer.weight[0], layer.weight[2])


def test_outputs_and_gradients_are_those_of_each_member_alone(network, generator):
    x = torch.randn(len(SEEDS), 10, SIZES[0], generator=generator).requires_grad_()
    g = torch.randn(len(SEEDS), 10, SIZES[-1], generator=generator)
    y = network(x)
    assert y.shape == g.shape
    assert y.is_contiguous()
    names, parameters = zip(*network.named_parameters(), strict=True)
    found = torch.autograd.grad(y, [x, *parameters], g)
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


def test_gradients_lie_in_memory_as_the_parameters(network, generator):
    x = torch.randn(len(SEEDS), 10, SIZES[0], generator=generator)
    for g in torch.autograd.grad(network(x).sum(), list(network.parameters())):
        assert g.is_contiguous()


def test_inputs_without_gradient_get_none(generator):
    layer = layers.Linear(layers.generators(SEEDS), 3, 2)
    layer(torch.randn(len(SEEDS), 4, 3, generator=generator)).sum().backward()
    assert layer.weight.grad.shape == layer.weight.shape
    assert layer.bias.grad.shape == layer.bias.shape


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


def test_the_parameters_are_float32_on_the_cpu_and_can_be_moved(network):
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert {p.device.type for p in network.parameters()} == {"cpu"}
    assert {p.device.type for p in network.to("meta").parameters()} == {"meta"}


def test_the_activation_can_be_chosen():
    network = layers.mlp(layers.generators([0]), [2, 3, 4], activation=nn.Tanh)
    assert [type(layer).__name__ for layer in network] == ["Linear", "Tanh", "Linear"]
    assert "members=1, in_features=2, out_features=3" in repr(network)


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
