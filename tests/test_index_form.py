"""The index form: categories with a handle, and ``select`` as ``one_hot @ weight`` without it."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import discretegrad
import kernel_cases as kernels
from cases import CATEGORICAL, HARD, SAMPLERS, each
from discretegrad import Handle, sample_index, select
from discretegrad.kernels import dispatch
from discretegrad.testing import assert_close, normal, seeded

# NumPy tells of infinities in Triton's interpreter that a GPU makes silently
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INTERPRETER = pytest.mark.skipif(
    not (dispatch._INTERPRETED and dispatch._HAS_TRITON),
    reason="runs in Triton's interpreter, where there is no GPU",
)
each_backend = pytest.mark.parametrize(
    "backend", ["torch", pytest.param("triton", marks=INTERPRETER)]
)
SAMPLERS_OF_CATEGORIES = [case for case in CATEGORICAL if case in HARD]
each_with_backend = pytest.mark.parametrize(
    ("case", "backend"),
    [
        *(pytest.param(x, "torch", id=f"{x}-torch") for x in SAMPLERS_OF_CATEGORIES),
        *(
            pytest.param(x, "triton", id=f"{x}-triton", marks=INTERPRETER)
            for x in SAMPLERS_OF_CATEGORIES
            if x.row.rule(**x.options).kernel is not None
        ),
    ],
)
FLOAT32 = torch.float32


def dtype_of(backend):
    return torch.float64 if backend == "torch" else FLOAT32


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    with torch.random.fork_rng():
        yield
    torch._dynamo.reset()


def leaves(*tensors):
    return [x.clone().requires_grad_() for x in tensors]


def index_of(case, logits, tau=0.7, **arguments):
    return sample_index(logits, case.row.name, tau, **case.options, **arguments)


def assert_is_the_dense_product(case, logits, weight, tau=0.7, dim=-1, **arguments):
    """Values and gradients of the index form and of the dense form, from the same draw."""
    results = []
    arguments |= {"dim": dim}
    for is_dense in (False, True):
        x, w = leaves(logits, weight)
        if is_dense:
            value = case.sample(x, tau, generator=seeded(1), **arguments).movedim(dim, -1) @ w
        else:
            value = select(index_of(case, x, tau, generator=seeded(1), **arguments)[1], w)
        g = normal(*value.shape, seed=11, dtype=weight.dtype)
        results.append((value.detach(), *torch.autograd.grad(value, (x, w), g)))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


@each_with_backend
def test_index_is_that_of_the_dense_sample(case, backend):
    logits = normal(4, 3, 9, dtype=dtype_of(backend))
    index, handle = index_of(case, logits, backend=backend, generator=seeded(1))
    z = case.sample(logits, backend=backend, generator=seeded(1))
    assert isinstance(handle, Handle)
    # handles may be kept in lists and asked for
    assert handle not in [index_of(case, logits, backend=backend)[1]]
    assert index.dtype == torch.int64
    assert not index.requires_grad
    assert torch.equal(index, z.argmax(-1))
    assert torch.equal(handle.index, index)


@each(SAMPLERS_OF_CATEGORIES)
def test_select_is_the_dense_product(case):
    for shape in ((6, 9), (2, 3, 9), (9,), (5, 1), (3, 100)):
        for width in ((4,), ()):
            assert_is_the_dense_product(case, normal(*shape), normal(shape[-1], *width, seed=2))
    for dim in (0, 1, 2, -2):
        logits, mask = normal(5, 4, 3), normal(5, 4, 3, seed=3) < 0.5
        mask.select(dim, 0).fill_(True)
        tau = normal(5, 4, 3, seed=4).exp().select(dim, 0).unsqueeze(dim)
        weight = normal(logits.shape[dim], 2, seed=2)
        assert_is_the_dense_product(case, logits, weight, tau, dim, mask=mask)


def check_gradients(case, logits, weight, tau=0.7, dim=-1, mask=None, backend="triton"):
    """Values and gradients against the dense torch path in float64 on the same draw."""
    x, w = leaves(logits, weight)
    arguments = {"dim": dim, "mask": mask, "generator": seeded(1), "backend": backend}
    index, handle = sample_index(x, case.name, tau, **case.options, **arguments)
    value = select(handle, w)
    assert torch.equal(value, weight[index])
    g = normal(*value.shape, seed=11, dtype=weight.dtype)
    for_logits, for_weight = torch.autograd.grad(value, (x, w), g)
    assert for_logits.dtype == logits.dtype
    assert for_weight.dtype == weight.dtype
    n = logits.shape[dim]
    flat, table = g.reshape(index.numel(), -1), weight.reshape(n, -1)
    # what the kernel gets is rounded, as the gradient of a dense one-hot would be
    at_one_hot = (flat @ table.T).reshape(*index.shape, n).movedim(-1, dim)
    expected = case.expected(logits, at_one_hot, index, tau, dim, mask, kernels.seed_of(1))
    scale = case.scale(at_one_hot, index, expected, dim)
    kernels.assert_gradient(for_logits, expected, scale)
    wide = torch.zeros(n, flat.shape[1], dtype=torch.float64)
    wide.index_add_(0, index.flatten(), flat.double())
    kernels.assert_gradient(for_weight.reshape(n, -1), wide, wide.abs().amax())


@each(kernels.CATEGORICAL)
@INTERPRETER
def test_kernels_agree_with_the_torch_path(case):
    check_gradients(case, normal(4, 3, 9, dtype=FLOAT32), normal(9, 5, seed=2, dtype=FLOAT32))
    logits, weight = normal(9, 4, dtype=FLOAT32), normal(9, seed=2, dtype=FLOAT32)
    mask = kernels.allowed_some(9, 4, dim=0)
    check_gradients(case, logits, weight, kernels.temperatures(1, 4), 0, mask)


@each_backend
@pytest.mark.parametrize("weight_dtype", kernels.DTYPES, ids=str)
@pytest.mark.parametrize("logits_dtype", kernels.DTYPES, ids=str)
def test_logits_and_weight_of_any_dtypes(logits_dtype, weight_dtype, backend):
    logits, weight = normal(6, 9, dtype=logits_dtype), normal(9, 4, seed=2, dtype=weight_dtype)
    check_gradients(kernels.REINMAX, logits, weight, backend=backend)


@each_with_backend
def test_several_selections_add_their_gradients(case, backend):
    dtype = dtype_of(backend)
    first, second = normal(7, 3, seed=2, dtype=dtype), normal(7, seed=3, dtype=dtype)
    (logits,) = leaves(normal(5, 7, dtype=dtype))
    z = case.sample(logits, 0.7, generator=seeded(1), backend=backend)
    dense = (z @ first).square().sum() + (z @ second).exp().sum()
    _, handle = index_of(case, logits, generator=seeded(1), backend=backend)
    indexed = select(handle, first).square().sum() + select(handle, second).exp().sum()
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (indexed, dense)]
    torch.testing.assert_close(
        *gradients, **{"rtol": 1e-5, "atol": 1e-5} if dtype == FLOAT32 else {}
    )


@each_backend
def test_only_what_needs_a_gradient_gets_one(backend):
    logits, weight = normal(5, 50, dtype=FLOAT32), normal(50, 3, seed=2, dtype=FLOAT32)
    for of_logits, of_weight in ((True, False), (False, True), (False, False)):
        x, w = logits.clone().requires_grad_(of_logits), weight.clone().requires_grad_(of_weight)
        index, handle = sample_index(x, generator=seeded(1), backend=backend)
        value = select(handle, w)
        assert value.requires_grad == (of_logits or of_weight)
        if value.requires_grad:
            value.sum().backward()
        assert (x.grad is not None) == of_logits
        assert (w.grad is not None) == of_weight
        if of_weight:
            # rows that were not drawn get zero
            drawn = torch.bincount(index, minlength=50).float()
            assert torch.equal(w.grad, drawn[:, None].expand(50, 3))
    x, w = leaves(logits, weight)
    with torch.no_grad():
        index, handle = sample_index(x, backend=backend)
        value = select(handle, w)
    assert torch.equal(value, weight[index])
    assert value.grad_fn is None


@each_backend
def test_wrong_derivatives_are_refused(backend):
    logits, weight = leaves(normal(3, 5, dtype=FLOAT32), normal(5, 4, dtype=FLOAT32))
    _, handle = sample_index(logits, backend=backend)
    first = torch.autograd.grad(select(handle, weight).square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiating it again is refused"):
        torch.autograd.grad(first[0].sum(), logits)
    value = select(handle, weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


@each(SAMPLERS_OF_CATEGORIES)
def test_under_transforms(case):
    """Per-sample gradients are those of the dense form; draws are the same from one seed."""
    batch, weight = normal(4, 7), normal(7, 3, seed=2)

    def indexed(logits, weight):
        return select(index_of(case, logits)[1], weight).square().sum()

    def dense(logits, weight):
        return (case.sample(logits, 0.7) @ weight).square().sum()

    results = []
    with torch.random.fork_rng():
        for loss in (indexed, dense):
            torch.manual_seed(1)
            gradient = vmap(grad(loss, argnums=(0, 1)), (0, None), randomness="different")
            results.append(gradient(batch, weight))
    for actual, expected in zip(*results, strict=True):
        assert actual.shape[0] == 4
        assert_close(actual, expected)


def test_kernels_are_not_used_under_transforms():
    with pytest.raises(discretegrad.BackendUnavailable, match=r"torch\.func"):
        vmap(
            lambda x: select(sample_index(x, backend="triton")[1], torch.ones(3)),
            randomness="different",
        )(torch.zeros(2, 3))


# torch warns about its own internals while it compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@each_with_backend
def test_compiled_and_from_a_checkpoint_it_is_the_same(case, backend, compiler):
    mask = torch.tensor([True, True, False, True, True])

    def step(logits, weight):
        index, handle = index_of(case, logits, mask=mask, backend=backend)
        return index, select(handle, weight)

    results = []
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for function in (step, compiled, partial(checkpoint, step, use_reentrant=False)):
        torch.manual_seed(1)
        logits, weight = leaves(normal(4, 5, dtype=FLOAT32), normal(5, 3, seed=2, dtype=FLOAT32))
        index, value = function(logits, weight)
        value.square().sum().backward()
        results.append((index, value.detach(), logits.grad, weight.grad))
    torch.testing.assert_close(results[1], results[0], rtol=4e-6, atol=1e-6)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=0)


def test_a_sampler_by_name_by_row_and_of_ones_own():
    logits, row = normal(3, 5), SAMPLERS["reinmax"]
    mine = replace(row, name="mine")
    for estimator in ("reinmax", row, row.function, mine):
        index, _ = sample_index(logits, estimator, generator=seeded(1))
        assert torch.equal(index, sample_index(logits, generator=seeded(1))[0])


WRONG_ESTIMATORS = [
    *[
        ({"estimator": name}, ValueError, f"got '{name}'. Only samplers have")
        for name in ("reinforce", "exact", "reinmaxx")
    ],
    ({"estimator": discretegrad.get("reinforce")}, ValueError, "Only samplers have"),
    ({"estimator": discretegrad.reinforce}, ValueError, "got 'reinforce'. Only samplers have"),
    ({"estimator": None}, TypeError, "the name of a sampler .*, its row or .*, got NoneType"),
    ({"estimator": len}, TypeError, "the name of a sampler .* got builtin_function"),
    ({"gap": 1.0}, TypeError, "reinmax: expected no options, got 'gap'"),
    ({"estimator": "gapped", "gap": -1.0}, ValueError, "gapped: expected a finite gap"),
    ({"estimator": "gapped", "order": 1}, TypeError, "expected options among gap, got 'order'"),
    ({"estimator": "gumbel_softmax", "hard": False}, ValueError, "hard=True, got False"),
    ({"given": torch.tensor([0, 0])}, TypeError, "got 'given'"),
]


def test_wrong_arguments_of_sample_index():
    for arguments, error, message in WRONG_ESTIMATORS:
        with pytest.raises(error, match=message):
            sample_index(torch.zeros(2, 3), **arguments)


@each_with_backend
def test_wrong_logits_name_the_sampler(case, backend):
    name = case.row.name
    wrong = [
        ({"logits": torch.tensor([float("nan"), 0.0])}, "expected logits without NaN"),
        ({"dim": 2}, "expected dim in"),
        ({"tau": 0.0}, "expected tau"),
    ]
    for changes, message in wrong:
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            sample_index(
                **{"logits": torch.zeros(2, 3), "estimator": name, "backend": backend, **changes}
            )


def test_wrong_arguments_of_select():
    pair = sample_index(torch.zeros(2, 3))
    handle, weight = pair[1], torch.zeros(3, 2)
    for arguments, error, message in (
        ((torch.zeros(3), weight), TypeError, "a handle from sample_index, got Tensor"),
        ((pair, weight), TypeError, "got tuple"),
        ((handle, [1.0, 2.0, 3.0]), TypeError, "got list"),
        ((handle, torch.arange(3)), TypeError, r"got torch\.int64"),
        ((handle, weight.mT), ValueError, r"\(3, width\) or \(3,\).*got \(2, 3\)"),
        ((handle, torch.zeros(3, 2, 2)), ValueError, r"got \(3, 2, 2\)"),
        ((handle, torch.zeros(())), ValueError, r"got \(\)"),
        ((handle, weight.to("meta")), ValueError, "device cpu, got meta"),
    ):
        with pytest.raises(error, match=message):
            select(*arguments)


@each_backend
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (4,), (0, 4)], ids=str)
@pytest.mark.parametrize("width", [(5,), (), (0,)], ids=str)
def test_results_belong_to_the_user(backend, shape, width):
    """An offset added to the index does not change the look-up, and the result may be changed in
    place; an empty batch or an empty row of the codebook is nothing special."""
    if backend == "triton" and 0 in shape:
        pytest.skip("the dispatcher leaves empty tensors to the torch path")
    logits, weight = normal(*shape).float(), normal(4, *width).float()
    leaves = [logits.requires_grad_(), weight.requires_grad_()]
    index, handle = discretegrad.sample_index(logits, "reinmax", backend=backend)
    drawn = index.clone()
    index += 100
    selected = discretegrad.select(handle, weight)
    assert torch.equal(selected, weight[drawn])
    plain = torch.autograd.grad(selected.sum(), leaves, retain_graph=True)
    selected += 1
    torch.nn.functional.relu(selected, inplace=True).sum().backward()
    expected = torch.autograd.grad(discretegrad.select(handle, weight).add(1).relu().sum(), leaves)
    for leaf, gradient, unchanged in zip(leaves, expected, plain, strict=True):
        assert leaf.grad.shape == unchanged.shape
        assert torch.equal(leaf.grad, gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_rows_that_meet_in_a_table_are_added_up_in_float32(dtype):
    """In bfloat16 a sum of ones would end at 256."""
    logits, weight = torch.zeros(4000, 2, dtype=dtype), torch.zeros(2, 3, dtype=dtype)
    weight.requires_grad_()
    generator = torch.Generator().manual_seed(0)
    index, handle = discretegrad.sample_index(logits, generator=generator)
    discretegrad.select(handle, weight).sum().backward()
    counts = index.bincount(minlength=2)
    assert torch.equal(weight.grad, counts[:, None].expand(2, 3).to(dtype))

    weight.grad = None
    result, index = discretegrad.linear_select(
        torch.zeros(4000, 5, dtype=dtype), torch.zeros(2, 5, dtype=dtype), weight,
        generator=generator, return_index=True,
    )  # fmt: skip
    result.sum().backward()
    counts = index.bincount(minlength=2)
    assert torch.equal(weight.grad, counts[:, None].expand(2, 3).to(dtype))
