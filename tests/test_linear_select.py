"""linear_select: both its paths against all logits at once, on the same draws."""

import math
from dataclasses import replace

import pytest
import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import discretegrad
from discretegrad import BackendUnavailable, linear_select, set_checks
from discretegrad._random import draw_seeds
from discretegrad._seeded import seeded_exponential
from discretegrad.kernels import dispatch
from discretegrad.linear_select import blocks as in_blocks
from discretegrad.linear_select import tiles as in_tiles
from kernel_cases import (
    CATEGORICAL,
    LEVEL,
    REINMAX,
    chi_square,
    each,
    normal,
    poisoned_memory,
    seeded,
)
from watched_memory import Memory

TILED = [case for case in CATEGORICAL if case.name != "gumbel_rao"]
# an error may be this much of the largest number; the reference rounds logits as the code does
TOLERANCES = {
    torch.float64: 1e-11,
    torch.float32: 4e-6,
    torch.float16: 2**-9,
    torch.bfloat16: 2**-6,
}
WIDTH, OUT = 16, 5

interpreted = pytest.mark.skipif(
    not (dispatch._INTERPRETED and dispatch._HAS_TRITON), reason="needs Triton's interpreter"
)
each_backend = pytest.mark.parametrize(
    "backend", ["torch", pytest.param("triton", marks=interpreted)]
)
# in the interpreter numpy warns of what a GPU computes silently
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("global_seed"),
]


@pytest.fixture
def small_pieces(monkeypatch):
    """Several blocks and tiles, the last ones ragged, also for small tensors."""
    # kernels have blocks of 32 for tiles of this size
    cut(monkeypatch, rows=3, categories=24)


def cut(monkeypatch, rows, categories, itemsize=4):
    """Tiles of so many rows and categories; blocks of as many numbers."""
    monkeypatch.setattr(in_blocks, "_BLOCK_NUMBERS", rows * categories)
    monkeypatch.setattr(in_tiles, "_TILE_ROWS", rows)
    monkeypatch.setattr(in_tiles, "_TILE_STEP", categories)
    monkeypatch.setattr(in_tiles, "_TILE_BYTES", rows * categories * itemsize)


def problem(rows, n, dtype=torch.float64, width=WIDTH, out=OUT, requires_grad=True):
    """Hidden, head, table, and a gradient at the result."""
    hidden = normal(rows, width, seed=1, dtype=dtype)
    head = normal(n, width, seed=2, dtype=dtype) / 2
    table = normal(n, out, seed=3, dtype=dtype)
    inputs = [x.requires_grad_(requires_grad) for x in (hidden, head, table)]
    return inputs, normal(rows, out, seed=4, dtype=dtype)


def run(inputs, g, case=REINMAX, tau=1.0, **arguments):
    """The result, the index and the gradients for what requires one."""
    selected, index = linear_select(
        *inputs, case.name, tau, return_index=True, **case.options, **arguments
    )
    leaves = [x for x in inputs if x.requires_grad]
    return selected, index, torch.autograd.grad(selected, leaves, g)


def expected(case, inputs, g, index, tau=1.0, seed=None):
    """The gradients in float64, from logits that are as rounded as those of the code."""
    hidden, head, table = (x.detach() for x in inputs)
    for_logits = case.expected(hidden @ head.T, g @ table.T, index, tau, seed=seed)
    for_table = torch.zeros_like(table).double().index_add_(0, index, g.double())
    return for_logits @ head.double(), for_logits.T @ hidden.double(), for_table


def assert_close(actual, wanted, slack=1.0):
    assert actual.shape == wanted.shape
    error = (actual.double() - wanted).abs().max().item()
    assert error <= slack * TOLERANCES[actual.dtype] * max(wanted.abs().max().item(), 1e-30)


def assert_all_close(actual, wanted):
    for x, y in zip(actual, wanted, strict=True):
        assert_close(x, y)


# the torch path


@each(CATEGORICAL)
@pytest.mark.parametrize("tau", [1.0, 0.7])
@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_blocks_give_what_all_logits_at_once_give(case, tau, rows_at_once, monkeypatch):
    inputs, g = problem(10, 100)
    monkeypatch.setattr(in_blocks, "_BLOCK_NUMBERS", 100 * rows_at_once)
    selected, index, gradients = run(inputs, g, case, tau, generator=seeded(5))
    assert torch.equal(selected, inputs[2][index])

    hidden, head, table = inputs
    generator = seeded(5)
    drawn, handle = case.sample_index(hidden @ head.T, tau, backend="torch", generator=generator)
    assert torch.equal(index, drawn)
    if case.name != "gumbel_softmax":
        wanted = torch.autograd.grad(discretegrad.select(handle, table), inputs, g)
    else:
        # its noise is made from a seed for each row, so that backward can make it again
        generator = seeded(5)
        torch.rand(10, 1, dtype=torch.float64, generator=generator)
        noise = seeded_exponential(
            draw_seeds((10, 1), index.device, generator), 0, 1, hidden @ head.T
        )[0]
        z = discretegrad.gumbel_softmax(hidden @ head.T, tau, given=index, noise=noise)
        wanted = torch.autograd.grad(z @ table, inputs, g)
    assert_all_close(gradients, wanted)


@each([case for case in CATEGORICAL if not case.noisy])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_blocks_in_every_dtype(case, dtype, small_pieces):
    inputs, g = problem(10, 100, dtype)
    selected, index, gradients = run(inputs, g, case, 0.7, backend="torch")
    assert {x.dtype for x in (selected, *gradients)} == {dtype}
    assert_all_close(gradients, expected(case, inputs, g, index, 0.7))


@each(CATEGORICAL)
def test_no_tensor_is_larger_than_a_block(case, monkeypatch):
    # the gradient of the head is the largest tensor that there must be
    inputs, g = problem(48, 64, torch.float32, width=8, out=4)
    monkeypatch.setattr(in_blocks, "_BLOCK_NUMBERS", 512)
    monkeypatch.setattr("discretegrad._seeded._CHUNK_NUMBERS", 512)
    with Memory() as memory:
        run(inputs, g, case)
    assert memory.most_numbers == 64 * 8


# the Triton path


@interpreted
@each(TILED)
@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_tiles_give_what_all_logits_at_once_give(case, tau, small_pieces):
    inputs, g = problem(5, 77, torch.float32)
    seeds = draw_seeds((2, 2), "cpu", seeded(5))
    selected, index, gradients = run(inputs, g, case, tau, backend="triton", generator=seeded(5))
    assert torch.equal(selected, inputs[2][index])
    # rows are numbered from 0 in each block of them
    hidden, head, table = inputs
    blocks = [
        expected(case, (hidden[rows], head, table), g[rows], index[rows], tau, seed[:1])
        for rows, seed in zip((slice(0, 3), slice(3, 5)), seeds, strict=True)
    ]
    assert_close(gradients[0], torch.cat([block[0] for block in blocks]))
    assert_close(gradients[1], blocks[0][1] + blocks[1][1])
    assert_close(gradients[2], blocks[0][2] + blocks[1][2])


@interpreted
@each(TILED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tiles_in_low_precision(case, dtype, monkeypatch):
    cut(monkeypatch, rows=5, categories=24, itemsize=2)
    inputs, g = problem(5, 77, dtype)
    seed = draw_seeds((1, 2), "cpu", seeded(5))[0, :1]
    selected, index, gradients = run(inputs, g, case, 0.7, backend="triton", generator=seeded(5))
    assert {x.dtype for x in (selected, *gradients)} == {dtype}
    assert_all_close(gradients, expected(case, inputs, g, index, 0.7, seed))


@interpreted
@pytest.mark.parametrize("n", [1, 2, 23, 24, 25, 48, 49])
@each([case for case in TILED if case.method in ("reinmax", "gapped_p", "mean_second")])
def test_tiles_around_their_boundaries(case, n, small_pieces, monkeypatch):
    inputs, g = problem(4, n, torch.float32)
    with poisoned_memory(monkeypatch):
        _, index, gradients = run(inputs, g, case, 0.7, backend="triton")
    assert ((index >= 0) & (index < n)).all()
    wanted = expected(case, inputs, g, index, 0.7)
    if n == 1:
        assert all((x.abs() < 1e-6).all() for x in gradients[:2])
        assert_close(gradients[2], wanted[2])
    else:
        assert_all_close(gradients, wanted)


# both paths


def test_rows_of_users():
    inputs, g = problem(10, 100)
    mine = replace(discretegrad.get("gapped"), name="mine")
    results = [
        linear_select(*inputs, row, 0.7, gap=0.3, generator=seeded(5)) for row in (mine, "gapped")
    ]
    gradients = [torch.autograd.grad(selected, inputs, g) for selected in results]
    assert_all_close(*gradients)
    noisy = replace(discretegrad.get("gumbel_softmax"), takes=())
    with pytest.raises(ValueError, match=r"made again in backward.*Use sample_index and select"):
        linear_select(*inputs, noisy)


@each_backend
def test_frequencies_are_those_of_the_softmax(backend, monkeypatch):
    rows, n = 1000, 70
    cut(monkeypatch, rows=600, categories=32)
    hidden, head, table = problem(1, n, torch.float32)[0]
    many = hidden.expand(rows, -1)
    _, index = linear_select(many, head, table, return_index=True, backend=backend)
    probs = (hidden @ head.T).detach().double().softmax(-1)
    assert chi_square(index.bincount(minlength=n), probs) > LEVEL


@interpreted
def test_blocks_of_rows_draw_independently(monkeypatch):
    cut(monkeypatch, rows=50, categories=32)
    hidden, head, table = torch.zeros(100, 2), torch.zeros(64, 2), torch.zeros(64, 1)
    _, index = linear_select(hidden, head, table, return_index=True, backend="triton")
    # each pair agrees with probability 1/64
    assert (index[:50] == index[50:]).sum() < 12


@each_backend
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0)], ids=str)
@pytest.mark.parametrize(("width", "out"), [(WIDTH, OUT), (WIDTH, 0), (0, OUT)])
def test_shapes(backend, shape, width, out, small_pieces):
    """Also where nothing is drawn, nothing is looked up, or all categories are alike."""
    if backend == "triton" and 0 in (*shape, width):
        pytest.skip("kernels do not take empty tensors")
    (_, head, table), _ = problem(1, 40, torch.float32, width, out)
    hidden = normal(*shape, width).requires_grad_()
    selected, index = linear_select(hidden, head, table, return_index=True, backend=backend)
    assert (selected.shape, index.shape, index.dtype) == ((*shape, out), shape, torch.int64)
    assert torch.equal(selected, table[index])
    selected.sum().backward()
    for x in (hidden, head, table):
        assert x.grad.shape == x.shape
        assert x.grad.any() or 0 in (*shape, width, out)


@each_backend
@pytest.mark.parametrize("wanted", [(), (0,), (1,), (2,), (0, 1), (1, 2)], ids=str)
def test_gradients_for_some_inputs_only(backend, wanted, small_pieces):
    inputs, g = problem(5, 77, torch.float32)
    _, index, everything = run(inputs, g, backend=backend, generator=seeded(5))
    for position, x in enumerate(inputs):
        x.requires_grad_(position in wanted)
    if not wanted:
        assert not linear_select(*inputs, backend=backend).requires_grad
        return
    _, again, some = run(inputs, g, backend=backend, generator=seeded(5))
    assert torch.equal(index, again)
    assert all(torch.equal(x, everything[i]) for x, i in zip(some, wanted, strict=True))


@each_backend
def test_head_and_table_may_be_one_tensor(backend, small_pieces):
    inputs, g = problem(5, 77, torch.float32, out=WIDTH)
    hidden, head, _ = inputs
    _, _, apart = run((hidden, head, head.detach().clone().requires_grad_()), g, backend=backend,
                      generator=seeded(5))  # fmt: skip
    selected = linear_select(hidden, head, head, backend=backend, generator=seeded(5))
    tied = torch.autograd.grad(selected, (hidden, head), g)
    assert torch.equal(tied[0], apart[0])
    assert torch.equal(tied[1], apart[1] + apart[2])


@each_backend
def test_bias_is_added_to_the_logits(backend, small_pieces):
    (hidden, head, table), g = problem(5, 77)
    if backend == "triton":
        hidden, head, table, g = (x.detach().float() for x in (hidden, head, table, g))
    bias = normal(77, seed=6, dtype=g.dtype)
    inputs = [x.detach().requires_grad_() for x in (hidden, head, table, bias)]
    selected, index = linear_select(
        *inputs[:3], bias=inputs[3], return_index=True, backend=backend, generator=seeded(5)
    )
    z = discretegrad.reinmax(inputs[0] @ inputs[1].T + inputs[3], given=index)
    assert_all_close(
        torch.autograd.grad(selected, inputs, g), torch.autograd.grad(z @ inputs[2], inputs, g)
    )


@each_backend
def test_strides_do_not_matter(backend, small_pieces):
    inputs, _ = problem(5, 77, torch.float32)
    others = [x.detach().T.contiguous().T.requires_grad_() for x in inputs]
    others[0] = torch.stack([inputs[0].detach()] * 2, -1)[..., 0].requires_grad_()
    results = []
    for tensors in (inputs, others):
        selected = linear_select(*tensors, backend=backend, generator=seeded(5))
        # its gradient has strides of zero
        results.append(torch.autograd.grad(selected.sum(), tensors))
    assert_all_close(results[1], results[0])


@each_backend
def test_generator_decides_and_the_global_one_is_left_alone(backend, small_pieces):
    inputs, g = problem(5, 77, torch.float32)
    case = next(case for case in TILED if case.noisy)
    state = torch.get_rng_state()
    first, second, other = (
        run(inputs, g, case, 0.7, backend=backend, generator=seeded(seed)) for seed in (5, 5, 6)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first[1], second[1])
    assert all(torch.equal(x, y) for x, y in zip(first[2], second[2], strict=True))
    assert not torch.equal(first[1], other[1])
    assert not torch.equal(run(inputs, g, backend=backend)[1], run(inputs, g, backend=backend)[1])


# what torch does to functions


@each_backend
def test_second_derivative_is_an_error(backend):
    inputs, g = problem(5, 40, torch.float32)
    selected = linear_select(*inputs, backend=backend)
    for constant in (g, g.clone().requires_grad_()):
        gradients = torch.autograd.grad(
            selected, inputs, constant, create_graph=True, retain_graph=True
        )
        for x in gradients[:2]:
            with pytest.raises(RuntimeError, match="differentiating it again is refused"):
                x.sum().backward(retain_graph=True)


@each_backend
def test_checkpoint_draws_the_same_again(backend, small_pieces):
    inputs, g = problem(5, 77, torch.float32)
    case = next(case for case in TILED if case.noisy)

    def function(*tensors):
        return linear_select(*tensors, case.name, 0.7, backend=backend)

    torch.manual_seed(1)
    wanted = torch.autograd.grad(function(*inputs), inputs, g)
    torch.manual_seed(1)
    selected = checkpoint(function, *inputs, use_reentrant=False)
    for x, y in zip(torch.autograd.grad(selected, inputs, g), wanted, strict=True):
        assert torch.equal(x, y)


@each_backend
@pytest.mark.parametrize("around_backward", [False, True])
def test_autocast_casts_all_three_as_a_product_does(backend, around_backward):
    inputs, g = problem(5, 77, torch.float32)
    low = [x.detach().bfloat16().requires_grad_() for x in inputs]
    wanted, drawn, gradients = run(low, g.bfloat16(), backend=backend, generator=seeded(5))
    options = {"backend": backend, "return_index": True}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        selected, index = linear_select(*inputs, generator=seeded(5), **options)
    assert torch.equal(index, drawn)
    assert torch.equal(selected, wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around_backward):
        actual = torch.autograd.grad(selected, inputs, g.bfloat16())
    for x, y in zip(actual, gradients, strict=True):
        assert x.dtype == torch.float32
        assert torch.equal(x, y.float())


@each_backend
def test_autocast_around_backward_alone_changes_nothing(backend):
    inputs, g = problem(5, 77, torch.float32)
    gradients = []
    for enabled in (False, True):
        selected = linear_select(*inputs, backend=backend, generator=seeded(5))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            gradients.append(torch.autograd.grad(selected, inputs, g))
    assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))


@each_backend
@each([case for case in TILED if case.method in ("reinmax", "gapped_p", "mean_released")])
def test_compiled_call_is_the_eager_one(case, backend, compiler, small_pieces):
    def function(*tensors):
        return linear_select(*tensors, case.name, 0.7, backend=backend, **case.options)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs, g = problem(5, 77, torch.float32)
    inputs[1].requires_grad_(case is not TILED[0])
    leaves = [x for x in inputs if x.requires_grad]
    results = []
    for call in (compiled, function):
        torch.manual_seed(1)
        selected = call(*inputs)
        results.append((selected.detach(), *torch.autograd.grad(selected, leaves, g)))
    assert torch.equal(results[0][0], results[1][0])
    assert_all_close(*results)
    torch.manual_seed(1)
    assert torch.equal(compiled(*(x.detach() for x in inputs)), results[0][0])


@each_backend
def test_compiled_call_takes_batches_of_any_size(backend, compiler, small_pieces):
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def function(hidden, head, table):
        return linear_select(hidden, head, table, return_index=True, backend=backend)

    compiled = torch.compile(function, fullgraph=True, backend=counting)
    for rows in (4, 5, 7, 9):
        inputs, g = problem(rows, 77, torch.float32)
        selected, index = compiled(*inputs)
        assert torch.equal(selected, inputs[2][index])
        assert_all_close(
            torch.autograd.grad(selected, inputs, g), expected(REINMAX, inputs, g, index)
        )
    assert len(graphs) == 2


def test_transforms_of_the_call():
    inputs, g = problem(5, 77, requires_grad=False)

    def loss(*tensors):
        return (linear_select(*tensors) * g).sum()

    torch.manual_seed(1)
    found = grad(loss, argnums=(0, 1, 2))(*inputs)
    for x in inputs:
        x.requires_grad_()
    torch.manual_seed(1)
    assert_all_close(found, torch.autograd.grad(loss(*inputs), inputs))

    def index_of(hidden):
        return linear_select(hidden, *inputs[1:], return_index=True)[1]

    batch = normal(3, 4, WIDTH, dtype=torch.float64)
    assert vmap(index_of, randomness="different")(batch).shape == (3, 4)


# what is refused

NAN, INF = math.nan, math.inf
HIDDEN, HEAD, TABLE = torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(4, 5)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden": [[0.0]]}, TypeError, "expected hidden to be a floating-point tensor.*list"),
        ({"head": HEAD.long()}, TypeError, "expected head to be a floating-point.*int64"),
        ({"table": TABLE.double()}, TypeError, "expected table of the dtype of hidden.*float64"),
        ({"hidden": torch.tensor(1.0)}, ValueError, "expected hidden of shape"),
        ({"head": torch.zeros(4)}, ValueError, r"expected hidden of shape.*head \(4,\)"),
        ({"head": torch.zeros(5, 3)}, ValueError, "one row of head and one row of table"),
        ({"head": HEAD[:0], "table": TABLE[:0]}, ValueError, "at least one category"),
        ({"head": HEAD.T, "table": torch.zeros(3, 5)}, ValueError, "one width.*nn.Linear"),
        ({"head": HEAD.to("meta")}, ValueError, "expected head on the device of hidden"),
        ({"estimator": "reinforce"}, ValueError, "one of reinmax.*got 'reinforce'"),
        ({"estimator": len}, TypeError, "the name of a sampler.*function"),
        ({"bias": 1.0}, TypeError, "expected bias to be a tensor.*got float"),
        ({"bias": torch.zeros(4).double()}, TypeError, "dtype and device of head.*float64"),
        ({"bias": torch.zeros(3)}, ValueError, r"expected a bias of shape \(4,\).*got \(3,\)"),
        ({"tau": 0.0}, ValueError, "expected tau in"),
        ({"tau": torch.ones(2, 1)}, TypeError, "the same for all rows, got a tensor"),
        ({"return_index": 1}, TypeError, "expected return_index to be True or False"),
        ({"gap": 1.0}, TypeError, "reinmax: expected no options, got 'gap'"),
        ({"estimator": "gapped", "gap": -1.0}, ValueError, "finite gap of at least 0"),
        ({"estimator": "gumbel_rao", "num_draws": 0}, ValueError, "num_draws of at least 1"),
        ({"generator": 1}, TypeError, "expected generator to be a torch.Generator"),
        ({"backend": "cuda"}, ValueError, "expected backend to be one of"),
        (
            {"estimator": "gumbel_rao", "backend": "triton"},
            BackendUnavailable,
            "no kernel for gumbel_rao over tiles",
        ),
        ({"hidden": torch.full((2, 3), NAN)}, ValueError, "NaN or inf in row 0"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = {"hidden": HIDDEN, "head": HEAD, "table": TABLE, **changes}
    with pytest.raises(error, match=message):
        linear_select(**arguments)


@each_backend
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_rows_without_a_softmax_are_found(backend, value, small_pieces):
    inputs, _ = problem(10, 77, torch.float32, requires_grad=False)
    inputs[0][7, 3] = value
    with pytest.raises(ValueError, match="got NaN or inf in row 7"):
        linear_select(*inputs, backend=backend)
    before = set_checks("never")
    try:
        index = linear_select(*inputs, backend=backend, return_index=True)[1]
    finally:
        set_checks(before)
    assert ((index >= 0) & (index < 77)).all()


@each_backend
@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1,), (2,)], ids=str)
def test_several_gradients_at_once(backend, wanted, small_pieces):
    """``is_grads_batched``, and results that a user may change in place."""
    layer = [normal(*shape).float().requires_grad_() for shape in ((5, 3), (7, 3), (7, 2))]
    token, index = discretegrad.linear_select(*layer, return_index=True, backend=backend)
    index += 100
    token += 1
    g, leaves = normal(4, 5, 2, seed=3).float(), [layer[i] for i in wanted]
    together = torch.autograd.grad(token, leaves, g, is_grads_batched=True, retain_graph=True)
    for number, single in enumerate(g):
        alone = torch.autograd.grad(token, leaves, single, retain_graph=True)
        for x, y in zip(together, alone, strict=True):
            torch.testing.assert_close(x[number], y)
