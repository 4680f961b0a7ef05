"""The network of RODEO: its kernels in Triton's interpreter, against torch functions and networks.

Fresh memory is poisoned, and what lies around it must stay as it was. What only a GPU can show is
in test_gpu_lab.py.
"""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

import oracles
from discretegrad.kernels import dispatch
from discretegrad_lab.stack import stein
from discretegrad_lab.stack.layers import generators
from discretegrad_lab.stack.stein import SteinNetwork
from stein_cases import assert_members_are_alone, assert_near, by_kernels, by_torch, inputs

triton = pytest.importorskip("triton")
if not dispatch._INTERPRETED:
    pytest.skip("runs in Triton's interpreter, where there is no GPU", allow_module_level=True)

from discretegrad_lab.stack import stein_kernels  # noqa: E402

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)

# members, points, hidden units: several blocks and spans, or less than one of each
SHAPES = [(2, 70, 100), (2, 1, 100), (1, 7, 1), (3, 700, 7), (1, 512, 16), (2, 4100, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_the_torch_functions(shape, poison):
    given = inputs(*shape)
    for found, expected in zip(by_kernels(*given), by_torch(*given), strict=True):
        assert found.dtype == torch.float32
        assert_near(found, expected)


@pytest.mark.parametrize("shape", [(3, 700, 7), (2, 4100, 5)], ids=str)
def test_a_member_alone_is_the_same_to_the_last_bit(shape):
    assert_members_are_alone(*inputs(*shape))


def test_any_strides(poison):
    g, x, layers = inputs(2, 70, 9)
    across = [one.movedim(0, -1).contiguous().movedim(-1, 0) for one in (g, x, *layers)]
    assert not any(one.is_contiguous() for one in across)
    found = by_kernels(across[0], across[1], across[2:])
    for one, expected in zip(found, by_kernels(g, x, layers), strict=True):
        assert torch.equal(one, expected)


def test_what_is_no_number_stays_none():
    """So that a run that diverges is seen to."""
    g, x, layers = inputs(1, 40, 9)
    x[0, 3] = torch.nan
    outputs, *gradients = by_kernels(g, x, layers)
    assert outputs[0, 3].isnan().all()
    assert outputs[0, 4].isfinite().all()
    assert gradients[0].isnan().all()


# the network


MEMBERS = 3


def network():
    made = SteinNetwork(generators(range(MEMBERS)))
    # what it is asked for: (samples, members, batch, points, 2)
    x = torch.randn(2, MEMBERS, 4, 5, 2, generator=torch.Generator().manual_seed(0))
    return made, x


def losses(made, x):
    """One for each member; no two outputs count the same."""
    weights = torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape)
    return (made(x) * weights).transpose(0, 1).flatten(1).sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_network_of_a_member_is_one_of_torch(dtype, poison):
    made, x = network()
    made, x = made.to(dtype), x.to(dtype)
    parameters = dict(made.named_parameters())
    found = losses(made, x)
    gradients = torch.autograd.grad(found.sum(), list(parameters.values()))
    weights = torch.linspace(-1, 2, x.numel(), dtype=dtype).view(x.shape).double()
    for member in range(MEMBERS):
        plain = nn.Sequential(nn.Linear(2, 100), nn.LeakyReLU(0.3), nn.Linear(100, 2)).double()
        for p, own in zip(plain.parameters(), parameters.values(), strict=True):
            p.data.copy_(own[member])
        expected = (plain(x[:, member].double()) * weights[:, member]).sum()
        limit = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {}
        torch.testing.assert_close(found[member].double(), expected, **limit)
        own = torch.autograd.grad(expected, list(plain.parameters()))
        for g, right in zip(gradients, own, strict=True):
            torch.testing.assert_close(g[member].double(), right, **limit)
        torch.testing.assert_close(made.of_member(member)(x), plain(x.double()).to(dtype))


def test_only_what_went_in_is_kept():
    made, x = network()
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses(made, x)
    assert sizes
    assert max(sizes) <= max(x.numel(), MEMBERS * 2 * stein.STEIN_HIDDEN)


def test_kernels_run_in_single_precision_where_there_is_triton(monkeypatch):
    x = torch.zeros(1, 1, 2)
    assert stein._has_kernels(x)
    assert not stein._has_kernels(x.double())
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)
    assert not stein._has_kernels(x)
    made, x = network()
    # torch functions alone
    monkeypatch.setattr(stein_kernels, "launch", None)
    losses(made, x).sum().backward()


# a compiler sees a kernel as one operation


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_trace_has_each_kernel_as_one_node(mode):
    made, x = network()

    def step(parameters, x):
        """With its backward pass inside."""
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        found = losses(lambda x: functional_call(made, leaves, x), x)
        return found.detach(), *torch.autograd.grad(found.sum(), list(leaves.values()))

    parameters = {name: p.detach() for name, p in made.named_parameters()}
    traced = make_fx(step, tracing_mode=mode)(parameters, x)
    nodes = [node for node in traced.graph.nodes if node.op == "call_function"]
    for operator in (
        torch.ops.discretegrad_lab.stein,
        torch.ops.discretegrad_lab.stein_partial_slopes,
    ):
        assert sum(node.target == operator.default for node in nodes) == 1
    # the others make nothing as large as the hidden layer
    results = [node.meta["val"] for node in nodes if isinstance(node.meta["val"], torch.Tensor)]
    assert results
    assert all(result.numel() < x.numel() // 2 * stein.STEIN_HIDDEN for result in results)
    # with numbers that the trace has not seen
    others = {name: p + 0.1 for name, p in parameters.items()}, 2 * x
    for found, expected in zip(traced(*others), step(*others), strict=True):
        assert torch.equal(found, expected)


# Dynamo itself does it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_network_is_the_same(compiler):
    made, x = network()
    fused = torch.compile(losses, fullgraph=True, backend="aot_eager")
    parameters = list(made.parameters())
    found, expected = (f(made, x) for f in (fused, losses))
    torch.testing.assert_close(found, expected)
    pairs = (torch.autograd.grad(one.sum(), parameters) for one in (found, expected))
    for g, right in zip(*pairs, strict=True):
        torch.testing.assert_close(g, right)


@pytest.mark.parametrize("name", ["stein", "stein_partial_slopes"])
def test_an_operator_is_what_it_says(name):
    g, x, layers = inputs(2, 40, 9)
    arguments = {"stein": (x, *layers), "stein_partial_slopes": (g, x, *layers[:-1])}[name]
    operator = getattr(torch.ops.discretegrad_lab, name).default
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
