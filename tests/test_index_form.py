"""The index form: categories with a handle, and ``select`` as ``one_hot @ weight`` without it."""

import pytest
import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import discretegrad
from discretegrad import Handle, select
from discretegrad.kernels import dispatch
from kernel_cases import (
    CATEGORICAL,
    REINMAX,
    TOLERANCES,
    allowed_some,
    assert_gradient,
    each,
    each_dtype,
    normal,
    seed_of,
    seeded,
    temperatures,
)

# NumPy tells of infinities in Triton's interpreter that a GPU makes silently
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BACKENDS = [
    "torch",
    pytest.param(
        "triton",
        marks=pytest.mark.skipif(
            not (dispatch._INTERPRETED and dispatch._HAS_TRITON),
            reason="runs in Triton's interpreter, where there is no GPU",
        ),
    ),
]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
EXACT = {"rtol": 1e-12, "atol": 1e-13}


def dtype_of(backend):
    return torch.float64 if backend == "torch" else torch.float32


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    with torch.random.fork_rng():
        yield
    torch._dynamo.reset()


def leaves(*tensors):
    return [x.clone().requires_grad_() for x in tensors]


def both_forms(case, logits, weight, tau=0.7, dim=-1, mask=None, backend="torch"):
    """Values and gradients of the index form and of the dense form, from the same draw."""
    results = []
    arguments = {"dim": dim, "mask": mask, "backend": backend}
    for is_dense in (False, True):
        x, w = leaves(logits, weight)
        if is_dense:
            z = case.sample(x, tau, generator=seeded(1), **arguments)
            value = z.movedim(dim, -1) @ w
        else:
            _, handle = case.sample_index(x, tau, generator=seeded(1), **arguments)
            value = select(handle, w)
        g = normal(*value.shape, seed=11, dtype=weight.dtype)
        results.append((value.detach(), *torch.autograd.grad(value, (x, w), g)))
    return results


@each(CATEGORICAL)
@each_backend
def test_index_is_that_of_the_dense_sample(case, backend):
    logits = normal(4, 3, 9, dtype=dtype_of(backend))
    index, handle = case.sample_index(logits, backend=backend, generator=seeded(1))
    z = case.sample(logits, backend=backend, generator=seeded(1))
    assert isinstance(handle, Handle)
    assert index.dtype == torch.int64
    assert not index.requires_grad
    assert torch.equal(index, z.argmax(-1))
    assert torch.equal(handle.index, index)


SHAPES = {
    "matrix": ((6, 9), (9, 4)),
    "batch axes": ((2, 3, 9), (9, 4)),
    "vector": ((2, 3, 9), (9,)),
    "a single row": ((9,), (9, 4)),
    "a single row and a vector": ((9,), (9,)),
    "one category": ((5, 1), (1, 4)),
    "wide": ((3, 100), (100, 2)),
}


@each(CATEGORICAL)
@pytest.mark.parametrize(("shape", "weight_shape"), SHAPES.values(), ids=SHAPES)
def test_select_is_the_dense_product(case, shape, weight_shape):
    logits, weight = normal(*shape).double(), normal(*weight_shape, seed=2).double()
    for actual, expected in zip(*both_forms(case, logits, weight), strict=True):
        torch.testing.assert_close(actual, expected, **EXACT)


@each(CATEGORICAL)
@pytest.mark.parametrize("dim", [0, 1, 2, -2])
def test_any_axis_with_mask_and_temperatures(case, dim):
    logits = normal(5, 4, 3).double()
    n = logits.shape[dim]
    shape = list(logits.shape)
    shape[dim] = 1
    results = both_forms(
        case, logits, normal(n, 2, seed=2).double(), temperatures(*shape), dim,
        allowed_some(5, 4, 3, dim=dim),
    )  # fmt: skip
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, **EXACT)


def check_kernels(case, logits, weight, tau=0.7, dim=-1, mask=None):
    """Values and gradients of the kernels against the torch path in float64 on the same draw."""
    x, w = leaves(logits, weight)
    index, handle = case.sample_index(
        x, tau, dim=dim, mask=mask, generator=seeded(1), backend="triton"
    )
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
    expected = case.expected(logits, at_one_hot, index, tau, dim, mask, seed_of(1))
    assert_gradient(for_logits, expected, case.scale(at_one_hot, index, expected, dim))
    wide = torch.zeros(n, flat.shape[1], dtype=torch.float64)
    wide.index_add_(0, index.flatten(), flat.double())
    assert_gradient(for_weight.reshape(n, -1), wide, wide.abs().amax())


@each(CATEGORICAL)
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_kernels_agree_with_the_torch_path(case, backend):
    check_kernels(case, normal(4, 3, 9), normal(9, 5, seed=2))
    check_kernels(
        case, normal(9, 4), normal(9, seed=2), temperatures(1, 4), 0, allowed_some(9, 4, dim=0)
    )


@each_dtype()
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_kernels_in_every_dtype(dtype, backend):
    check_kernels(REINMAX, normal(6, 9, dtype=dtype), normal(9, 4, seed=2, dtype=dtype))


@each_backend
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logits_dtype", [torch.float32, torch.bfloat16])
def test_logits_and_weight_of_two_dtypes(logits_dtype, weight_dtype, backend):
    logits, weight = leaves(
        normal(6, 9, dtype=logits_dtype), normal(9, 4, seed=2, dtype=weight_dtype)
    )
    index, handle = REINMAX.sample_index(logits, 0.7, generator=seeded(1), backend=backend)
    value = select(handle, weight)
    assert value.dtype == weight_dtype
    g = normal(6, 4, seed=11, dtype=weight_dtype)
    value.backward(g)
    assert logits.grad.dtype == logits_dtype
    assert weight.grad.dtype == weight_dtype
    expected = REINMAX.expected(logits, g @ weight.detach().T, index, 0.7)
    scale = REINMAX.scale(g @ weight.detach().T, index, expected)
    assert_gradient(logits.grad, expected, scale)


@each(CATEGORICAL)
@each_backend
def test_several_selections_add_their_gradients(case, backend):
    dtype = dtype_of(backend)
    first, second = normal(7, 3, seed=2, dtype=dtype), normal(7, seed=3, dtype=dtype)
    gradients = []
    for is_dense in (False, True):
        (logits,) = leaves(normal(5, 7, dtype=dtype))
        if is_dense:
            z = case.sample(logits, 0.7, generator=seeded(1), backend=backend)
            loss = (z @ first).square().sum() + (z @ second).exp().sum()
        else:
            _, handle = case.sample_index(logits, 0.7, generator=seeded(1), backend=backend)
            loss = select(handle, first).square().sum() + select(handle, second).exp().sum()
        gradients.append(torch.autograd.grad(loss, logits)[0])
    tolerance = EXACT if backend == "torch" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(*gradients, **tolerance)


@each_backend
def test_only_what_needs_a_gradient_gets_one(backend):
    dtype = dtype_of(backend)
    logits, weight = normal(5, 7, dtype=dtype), normal(7, 3, seed=2, dtype=dtype)
    for of_logits, of_weight in ((True, False), (False, True), (False, False)):
        x = logits.clone().requires_grad_(of_logits)
        w = weight.clone().requires_grad_(of_weight)
        _, handle = REINMAX.sample_index(x, generator=seeded(1), backend=backend)
        value = select(handle, w)
        assert value.requires_grad == (of_logits or of_weight)
        if value.requires_grad:
            value.sum().backward()
        assert (x.grad is not None) == of_logits
        assert (w.grad is not None) == of_weight


@each_backend
def test_nothing_is_kept_without_gradients(backend):
    logits, weight = leaves(normal(5, 7), normal(7, 3))
    with torch.no_grad():
        index, handle = REINMAX.sample_index(logits, backend=backend)
        value = select(handle, weight)
    assert torch.equal(value, weight[index])
    assert value.grad_fn is None


@each_backend
def test_rows_that_were_not_drawn_get_zero(backend):
    logits, weight = leaves(normal(3, 50), normal(50, 4))
    index, handle = REINMAX.sample_index(logits, generator=seeded(1), backend=backend)
    select(handle, weight).sum().backward()
    drawn = torch.bincount(index, minlength=50).float()
    assert torch.equal(weight.grad, drawn[:, None].expand(50, 4))


@each_backend
def test_double_backward_is_refused(backend):
    logits, weight = leaves(normal(3, 5), normal(5, 4))
    _, handle = REINMAX.sample_index(logits, backend=backend)
    first = torch.autograd.grad(select(handle, weight).square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiating it again is refused"):
        torch.autograd.grad(first[0].sum(), logits)


@each_backend
def test_weight_that_is_changed_in_between_is_noticed(backend):
    logits, weight = leaves(normal(3, 5), normal(5, 4))
    _, handle = REINMAX.sample_index(logits, backend=backend)
    value = select(handle, weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


@each(CATEGORICAL)
def test_under_transforms(case):
    """Per-sample gradients are those of the dense form; draws are the same from one seed."""
    batch, weight = normal(4, 7).double(), normal(7, 3, seed=2).double()

    def indexed(logits, weight):
        _, handle = case.sample_index(logits, 0.7, backend="torch")
        return select(handle, weight).square().sum()

    def dense(logits, weight):
        return (case.sample(logits, 0.7, backend="torch") @ weight).square().sum()

    results = []
    with torch.random.fork_rng():
        for loss in (indexed, dense):
            torch.manual_seed(1)
            gradient = vmap(grad(loss, argnums=(0, 1)), (0, None), randomness="different")
            results.append(gradient(batch, weight))
    for actual, expected in zip(*results, strict=True):
        assert actual.shape[0] == 4
        torch.testing.assert_close(actual, expected, **EXACT)


def test_kernels_are_not_used_under_transforms():
    with pytest.raises(discretegrad.BackendUnavailable, match=r"torch\.func"):
        vmap(
            lambda x: select(discretegrad.reinmax_index(x, backend="triton")[1], torch.ones(3)),
            randomness="different",
        )(torch.zeros(2, 3))


# torch warns about its own internals while it compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@each(CATEGORICAL)
@each_backend
def test_compiled_is_eager(case, backend, compiler):
    def step(logits, weight):
        index, handle = case.sample_index(logits, 0.7, mask=mask, backend=backend)
        return index, select(handle, weight)

    mask = torch.tensor([True, True, False, True, True])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for function in (compiled, step):
        torch.manual_seed(1)
        logits, weight = leaves(normal(4, 5), normal(5, 3, seed=2))
        index, value = function(logits, weight)
        value.square().sum().backward()
        results.append((index, value.detach(), logits.grad, weight.grad))
    own, scale, _ = TOLERANCES[torch.float32]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=own, atol=scale)


@each_backend
def test_checkpoint_gives_the_same_gradient(backend):
    def step(logits, weight):
        return select(REINMAX.sample_index(logits, 0.7, backend=backend)[1], weight).square()

    results = []
    with torch.random.fork_rng():
        for run in (step, lambda *x: checkpoint(step, *x, use_reentrant=False)):
            torch.manual_seed(4)
            logits, weight = leaves(normal(6, 5), normal(5, 3, seed=2))
            run(logits, weight).sum().backward()
            results.append((logits.grad, weight.grad))
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


def handle_of(*shape):
    return discretegrad.reinmax_index(torch.zeros(shape))[1]


WRONG = {
    "no handle": (lambda: torch.zeros(3), lambda: torch.zeros(3, 2), TypeError, "a handle from"),
    "the pair": (
        lambda: discretegrad.reinmax_index(torch.zeros(2, 3)),
        lambda: torch.zeros(3, 2),
        TypeError,
        "got tuple",
    ),
    "no tensor": (lambda: handle_of(2, 3), lambda: [1.0, 2.0, 3.0], TypeError, "got list"),
    "integers": (lambda: handle_of(2, 3), lambda: torch.arange(3), TypeError, r"got torch\.int64"),
    "too few rows": (
        lambda: handle_of(2, 3),
        lambda: torch.zeros(2, 3),
        ValueError,
        r"\(3, width\) or \(3,\).*got \(2, 3\)",
    ),
    "too many axes": (
        lambda: handle_of(2, 3),
        lambda: torch.zeros(3, 2, 2),
        ValueError,
        r"got \(3, 2, 2\)",
    ),
    "no axis": (lambda: handle_of(2, 3), lambda: torch.zeros(()), ValueError, r"got \(\)"),
    "another device": (
        lambda: handle_of(2, 3),
        lambda: torch.zeros(3, 2, device="meta"),
        ValueError,
        "device cpu, got meta",
    ),
}


@pytest.mark.parametrize(("handle", "weight", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_of_select(handle, weight, error, message):
    with pytest.raises(error, match=message):
        select(handle(), weight())


@each(CATEGORICAL)
@each_backend
def test_wrong_logits_name_the_function_that_was_called(case, backend):
    name = f"{case.name}_index"
    with pytest.raises(ValueError, match=f"{name}: expected logits without NaN"):
        case.sample_index(torch.tensor([float("nan"), 0.0]), backend=backend)
    with pytest.raises(ValueError, match=f"{name}: expected dim in"):
        case.sample_index(torch.zeros(2, 3), dim=2, backend=backend)
    with pytest.raises(ValueError, match=f"{name}: expected tau"):
        case.sample_index(torch.zeros(2, 3), 0.0, backend=backend)
