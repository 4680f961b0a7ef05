"""Gradients of weights as two factors: layers that keep them, and the kernel that multiplies them.

The kernel runs in Triton's interpreter, with poisoned memory around what it may write. What only a
GPU can show is in test_gpu_lab.py.
"""

import dataclasses

import pytest
import torch

import oracles
from discretegrad.kernels import dispatch
from discretegrad_lab.stack.layers import factors_of, generators, keep_factors, mlp, parameters_of
from discretegrad_lab.stack.model import Group
from discretegrad_lab.stack.momentum import Momentum
from discretegrad_lab.stack.optimisers import Optimiser
from discretegrad_lab.stack.products import Product, stand_ins, whole
from lab_cases import PRODUCT_KINDS, product_case, product_steps

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)

MEMBERS, EXAMPLES, SIZES = 2, 6, (7, 5, 3)


# layers


def layers_with_input(kept):
    network = mlp(generators(range(MEMBERS)), SIZES).double()
    if kept:
        keep_factors(network, EXAMPLES)
    x = torch.randn(MEMBERS, EXAMPLES, SIZES[0], generator=torch.Generator().manual_seed(0))
    return network, x.double().requires_grad_()


def gradients_by_name(network, x, loss):
    parameters = parameters_of(network=network)
    group = Group.alike(parameters, range(MEMBERS), 1e-3)
    group = dataclasses.replace(group, factors=factors_of(network=network))
    found = torch.autograd.grad(loss, [*group.leaves, x])
    named = group.by_parameter(iter(found))
    assert named.keys() == parameters.keys()
    return named, found[-1]


def test_factors_multiply_to_the_gradient():
    plain, for_x = gradients_by_name(*(args := layers_with_input(False)), loss_of(*args))
    kept, same_for_x = gradients_by_name(*(args := layers_with_input(True)), loss_of(*args))
    torch.testing.assert_close(same_for_x, for_x)
    assert {name for name, g in kept.items() if isinstance(g, Product)} == {
        "network.0.weight", "network.2.weight",
    }  # fmt: skip
    assert not any(isinstance(g, Product) for g in plain.values())
    for name, g in plain.items():
        torch.testing.assert_close(whole(kept[name]), g)


def loss_of(network, x):
    return network(x).square().sum()


def test_stand_ins_take_no_memory():
    product = stand_ins(torch.zeros(3, 50, 70), 1000)
    assert [tuple(x.shape) for x in product] == [(3, 1000, 50), (3, 1000, 70)]
    assert all(x.is_leaf and x.untyped_storage().nbytes() == 4 for x in product)


def test_another_number_of_examples_has_values_but_no_gradients():
    network, x = layers_with_input(True)
    plain, _ = layers_with_input(False)
    torch.testing.assert_close(network(x[:, :4]), plain(x[:, :4]))
    with pytest.raises(RuntimeError, match="shape"):
        gradients_by_name(network, x, loss_of(network, x[:, :4]))


# optimisers


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Optimiser(p, ["adam", "radam"], [0.1, 0.2], clip_norms=[0.1, None]),
        lambda p: Optimiser(p, ["adam", "radam"], [0.1, 0.2], decay=0.3),
        lambda p: Momentum(p, [0.1, 0.2], decay=0.3),
    ],
    ids=["limited norms", "decay", "momentum"],
)
def test_what_has_no_kernel_writes_the_gradient_down(make):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 3, 4, generator=generator)
    product = Product(*(torch.randn(2, 5, n, generator=generator) for n in (3, 4)))
    weights = []
    for gradient in (product, product.multiplied()):
        weight = start.clone()
        optimiser = make({"weight": weight})
        for _ in range(8):
            optimiser.step({"weight": gradient}, torch.ones(2, dtype=torch.bool))
        weights.append(weight)
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], start)


needs_interpreter = pytest.mark.skipif(
    not (dispatch._HAS_TRITON and dispatch._INTERPRETED), reason="needs Triton's interpreter"
)

# members, examples, outputs, inputs: several tiles, one, and less than one; rows that lie at
# multiples of 16 bytes, and others
SHAPES = [(3, 33, 70, 132), (3, 5, 128, 64), (2, 100, 16, 64), (2, 7, 5, 9), (1, 1, 1, 1)]


@needs_interpreter
@pytest.mark.parametrize("kinds", PRODUCT_KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_are_those_with_the_gradient(shape, kinds, poison):
    # radam changes its rule at step 6
    for found, expected in product_steps(shape, PRODUCT_KINDS[kinds], steps=7):
        # up to the rounding of sums in another order
        assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()


@needs_interpreter
def test_only_living_members_are_written(poison):
    """Not who has diverged, whose factors may be anything, nor what lies around the weights."""
    members, shape = 5, (3, 9, 6, 10)
    weights = torch.randn(members, *shape[2:], generator=torch.Generator().manual_seed(1))
    before = weights.clone()
    optimiser = Optimiser({"weight": weights[1:4]}, ["adam"] * 3, [0.1] * 3)
    product = product_case(shape, seed=0)
    product.outputs[1] = torch.nan
    optimiser.step({"weight": product}, torch.tensor([True, False, True]))
    changed = [not torch.equal(x, y) for x, y in zip(weights, before, strict=True)]
    assert changed == [False, True, False, True, False]
    assert weights.isfinite().all()
    state = optimiser.stacked_state()
    assert state["steps"].tolist() == [1, 0, 1]
    assert not state["mean/weight"][1].any()
    assert not state["square/weight"][1].any()


@needs_interpreter
def test_what_is_no_number_stays_none():
    """So that a run that diverges is seen to."""
    shape = (2, 9, 6, 10)
    weight = torch.zeros(2, 6, 10)
    product = product_case(shape, seed=0)
    product.inputs[1, 3, 4] = torch.nan
    optimiser = Optimiser({"weight": weight}, ["adam", "radam"], [0.1] * 2)
    optimiser.step({"weight": product}, torch.ones(2, dtype=torch.bool))
    assert weight[0].isfinite().all()
    assert weight[1, :, 4].isnan().all()


@needs_interpreter
def test_factors_of_any_strides(poison):
    shape = (2, 9, 6, 10)
    results = []
    for across in (False, True):
        product = product_case(shape, seed=0)
        if across:
            product = Product(*(x.mT.contiguous().mT for x in product))
            assert not product.outputs.is_contiguous()
        weight = torch.zeros(2, 6, 10)
        optimiser = Optimiser({"weight": weight}, ["radam"] * 2, [0.1] * 2)
        optimiser.step({"weight": product}, torch.ones(2, dtype=torch.bool))
        results.append(weight)
    assert torch.equal(*results)
    assert results[0].all()
