"""The Triton kernels in Triton's interpreter, against the torch path in float64 on the same draws.

Blocks are made small where that lets every branch run on small sizes. Real sizes, and what only a
GPU can show, are in test_gpu_kernels.py.
"""

import ctypes
import itertools
import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from scipy import stats
from torch import Tensor

import discretegrad
import philox_reference
from discretegrad import BackendUnavailable, sample_index
from discretegrad.kernels import dispatch
from kernel_cases import (
    BERNOULLI,
    BLENDS,
    BY_METHOD,
    CASES,
    CATEGORICAL,
    LEVEL,
    NOISE_FREE,
    REINMAX,
    allowed_some,
    assert_gradient,
    assert_one_hot,
    check_case,
    check_ends,
    chi_square,
    each,
    each_dtype,
    independence,
    normal,
    seed_of,
    seeded,
    surrounded,
    temperatures,
    words_of_all_sizes,
)

triton = pytest.importorskip("triton")
if not dispatch._INTERPRETED:
    pytest.skip("runs in Triton's interpreter, where there is no GPU", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from discretegrad.kernels import bernoulli as bits  # noqa: E402
from discretegrad.kernels import (  # noqa: E402
    categorical,
    gumbel_rao,
    ops,
    philox,
    quick,
)
from discretegrad.kernels.formulas import FORMULAS  # noqa: E402
from discretegrad.kernels.layout import Bits, Drawn, Rows  # noqa: E402

BITS = BY_METHOD["bernoulli", "reinmax"]

# NumPy tells of infinities that a GPU makes silently
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("poison"),
]

HOSTS = (categorical, gumbel_rao, bits)
# the longest row that is one block, the size of a block of a longer one, that of a piece, and lanes
# picked together
ONE_BLOCK, BLOCK, PIECE, GROUP = 16, 16, 8, 4


def forget_plans():
    """Of how to cut rows into programs."""
    for module in HOSTS:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    quick._known.clear()


@pytest.fixture
def tiles(monkeypatch):
    """A function that sets a constant of how rows are cut, for the time of a test."""
    with monkeypatch.context() as patch:

        def change(module, name, value):
            patch.setattr(module, name, value)
            forget_plans()

        yield change
    forget_plans()


@pytest.fixture(params=["whole", "in pieces"])
def small_blocks(request, tiles):
    """Blocks so small that all branches run on rows of some dozen categories.

    A long row is read by one program, block after block, or by several, a piece each.
    """
    in_pieces = request.param == "in pieces"
    tiles(categorical, "FEW_ROWS", 512 if in_pieces else 0)
    for name in ("PIECE_DRAW", "PIECE_GRADIENT"):
        tiles(categorical, name, PIECE)
    for name in ("LONGEST_DRAW", "LONGEST_GRADIENT"):
        tiles(categorical, name, ONE_BLOCK)
    for name in ("LONG_DRAW", "LONG_GRADIENT"):
        tiles(categorical, name, BLOCK)
    tiles(categorical, "GROUP", GROUP)
    tiles(gumbel_rao, "LONGEST", ONE_BLOCK)
    tiles(gumbel_rao, "LONG_BLOCK", BLOCK)
    tiles(bits, "BLOCK", 16)
    tiles(bits, "DRAWS_BLOCK", 8)
    return in_pieces


@pytest.fixture(params=["threads share rows", "rows of a thread"])
def short_rows(request, tiles):
    """Short rows in both forms, at any number of them: whether a thread has them to itself."""
    per_thread = request.param == "rows of a thread"
    tiles(categorical, "MANY_ROWS", 1 if per_thread else 2**60)
    tiles(categorical, "THREAD_ROWS", 8)
    return per_thread


@pytest.fixture
def wide_programs(tiles):
    """Many short rows in a program, which is what takes the interpreter's time."""
    tiles(categorical, "_FEW_NUMBERS", 4096)


class Launch(NamedTuple):
    """One launch of a kernel."""

    constants: dict[str, int]
    programs: int


@pytest.fixture
def launches(monkeypatch):
    """What was launched, in order."""
    seen = []
    plain = interpreter.GridExecutor.__call__

    def record(self, *arguments, **options):
        given = dict(zip(self.arg_names, arguments, strict=False)) | options
        constants = {name: given[name] for name in self.constexprs}
        seen.append(Launch(constants, self.grid[0]))
        return plain(self, *arguments, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", record)
    return seen


def inputs(*shape, dtype=torch.float32, spread=2.0):
    """Logits and a gradient."""
    return spread * normal(*shape, dtype=dtype), normal(*shape, seed=11, dtype=dtype)


TAUS = {"tau=1": 1.0, "tau=0.6": 0.6, "tau by row": temperatures(3, 2, 1)}
each_tau = pytest.mark.parametrize("tau", TAUS.values(), ids=TAUS)


@each(CASES)
@each_tau
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_sample_and_gradient(case, tau, masked, short_rows):
    mask = allowed_some(3, 2, 7) if masked else None
    check_case(case, *inputs(3, 2, 7), tau, mask=mask, given=True)


@each(CASES)
@each_dtype()
def test_every_dtype(case, dtype, short_rows):
    logits, g = inputs(5, 9, dtype=dtype)
    check_case(case, logits, g, given=True)
    check_case(case, logits, g, temperatures(5, 1), mask=allowed_some(5, 9))


@each(CATEGORICAL)
@pytest.mark.parametrize("plain", [True, False], ids=["tau=1", "masked, tau by row"])
def test_rows_of_several_blocks(case, plain, small_blocks, launches):
    tau, mask = (1.0, None) if plain else (temperatures(2, 1), allowed_some(2, 37))
    check_case(case, *inputs(2, 37), tau, mask=mask, given=plain)
    for constants, programs in launches:
        if small_blocks and "PIECES" in constants:
            assert constants["PIECES"] == 8
            assert programs == (2 if "BLOCKS" in constants else 10)
        elif "SUMS_OWN" in constants or not small_blocks:
            assert constants.get("BLOCKS", 2) > 1
            assert not constants.get("ONE_BLOCK", False)


# a sampler for each way of walking over a row
METHODS = ("reinmax", "gumbel_softmax", "gumbel_rao")
WALKS = [case for case in CATEGORICAL if case.method in METHODS]
BIT_WALKS = [case for case in BERNOULLI if case.method in METHODS]


@each(WALKS)
@each_dtype()
def test_every_dtype_in_several_blocks(case, dtype, small_blocks):
    check_case(case, *inputs(2, 37, dtype=dtype), 0.6)


@each([*WALKS, *BIT_WALKS])
@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1,
          4 * BLOCK + 1]
)  # fmt: skip
def test_lengths_around_every_boundary(case, n, small_blocks):
    rows = 1 if case.method == "gumbel_rao" or not case.categorical else 2
    check_case(case, *inputs(rows, n), 0.6, mask=allowed_some(rows, n))


@each(WALKS)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 16, 17])
def test_numbers_of_rows_around_every_boundary(case, rows, short_rows, launches):
    check_case(case, *inputs(rows, 12))
    assert launches[0].programs == -(-rows // 8)
    assert launches[0].constants["PER_THREAD"] == (12 if short_rows else 0)


@each([case for case in CATEGORICAL if case.method != "gumbel_rao"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17])
def test_lengths_of_rows_of_a_thread(case, n, tiles, launches):
    """With 17 categories threads share the rows; a program is not full."""
    tiles(categorical, "MANY_ROWS", 1)
    check_case(case, *inputs(5, n), 0.6, mask=allowed_some(5, n))
    assert {c["PER_THREAD"] for c, _ in launches} == {n if n < 17 else 0}


@pytest.mark.parametrize("n", [3, 10, 16])
def test_the_form_of_short_rows_does_not_change_a_draw(n, tiles):
    draws = []
    for many in (1, 2**60):
        tiles(categorical, "MANY_ROWS", many)
        drawn = categorical.draw(Rows(inputs(50, n)[0]), seed_of(1), given=False, dense=False)[1]
        draws.append(drawn.categories)
    assert torch.equal(*draws)


@pytest.mark.parametrize("n", [10, 4097, 40_000])
def test_which_rows_have_a_form_of_their_own(n, monkeypatch):
    """Many short ones and a few long ones, and never more pieces than a program can look at."""
    usual = categorical.gradient_tiles(1, n, 8192, 8192)
    few, many = categorical.FEW_ROWS, categorical.MANY_ROWS
    forms = {
        rows: categorical.whole_tiles(rows, n, usual, 4096)
        for rows in (1, few, few + 1, many - 1, many)
    }
    assert [t.per_thread for t in forms.values()] == [0, 0, 0, 0, n if n == 10 else 0]
    assert [t.pieces for t in forms.values()] == ([10, 10] if n == 40_000 else [0, 0]) + [0] * 3
    monkeypatch.setattr(categorical, "MOST_PIECES", 9)
    assert categorical.whole_tiles(1, n, usual, 4096) == usual


@pytest.mark.parametrize("n", [64, 65, 1023, 1025, 2047, 2048, 2049, 4097, 8191, 8192, 8193])
def test_real_boundaries(n):
    for case in (REINMAX, BY_METHOD["categorical", "gumbel_softmax"], BITS):
        check_case(case, *inputs(1, n))


@pytest.mark.parametrize("num_draws", [1, 2, 3, 4, 5, 8, 9, 33])
@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_numbers_of_noise_draws(family, num_draws):
    case = replace(BY_METHOD[family, "gumbel_rao"], options={"num_draws": num_draws})
    for n in (3, 17, 300):  # groups of draws in one step, or one after the other
        check_case(case, *inputs(2, n), 0.7)


@pytest.mark.parametrize("n", [2, 3, 17])
def test_a_seed_for_each_row(n):
    (logits, g), draw, seeds = inputs(3, n), torch.tensor([0, 1, 1]), torch.arange(3)
    leaf, case = logits.requires_grad_(), BY_METHOD["categorical", "gumbel_rao"]
    z = case.sample_at(leaf, draw, 0.7, seed=seeds)
    alone = [
        case.sample_at(leaf[i : i + 1], draw[i : i + 1], 0.7, seed=seeds[i : i + 1])
        for i in range(3)
    ]
    gradients = [torch.autograd.grad(x, leaf, g)[0] for x in (z, torch.cat(alone))]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("n", range(3, 26))
def test_short_rows_in_one_block_or_two(n, launches):
    case = BY_METHOD["categorical", "gumbel_rao"]
    check_case(case, *inputs(3, n), 0.6)
    check_case(case, *inputs(3, n), 1.0, mask=allowed_some(3, n))
    (size,) = {(c["BLOCK"], c["REST"]) for c, _ in launches if "REST" in c}
    # less than a third of it is empty
    assert n <= sum(size) < 1.5 * n


def strided(kind):
    """Logits and a gradient of shape (4, 6, 5) with unusual strides."""
    logits, g = inputs(4, 6, 5)
    if kind == "transposed":
        return inputs(6, 4, 5)[0].transpose(0, 1), inputs(5, 6, 4)[1].permute(2, 1, 0)
    if kind == "steps":
        return inputs(8, 6, 15)[0][::2, :, ::3], inputs(4, 12, 6)[1][:, ::2, 1:]
    if kind == "expanded":
        return logits[:1].expand(4, 6, 5), g[:, :1, :1].expand(4, 6, 5)
    if kind == "a single number":
        return logits, g[0, 0, 0].expand(4, 6, 5)
    assert kind == "surrounded"
    return surrounded(logits), surrounded(g)


STRIDES = ["transposed", "steps", "expanded", "a single number", "surrounded"]


@pytest.mark.parametrize("kind", STRIDES)
@pytest.mark.parametrize(
    ("case", "dim"),
    [
        *itertools.product([REINMAX, BY_METHOD["categorical", "gumbel_softmax"]], [0, 1, 2, -1]),
        *((BY_METHOD["bernoulli", method], -1) for method in ("reinmax", "gumbel_rao")),
    ],
    ids=str,
)
def test_any_strides_and_any_axis(case, kind, dim, short_rows):
    check_case(case, *strided(kind), 0.8, dim=dim)


@each([BY_METHOD["categorical", "gumbel_rao"], BY_METHOD["categorical", "mean_second"]])
@pytest.mark.parametrize("dim", [0, 1])
def test_any_axis_in_several_blocks(case, dim, small_blocks):
    shape = (37, 2, 2) if dim == 0 else (2, 37, 2)
    check_case(case, *inputs(*shape), 0.8, dim=dim, mask=allowed_some(*shape, dim=dim))


EACH_ROW = [(4, 1, 1), (1, 3, 1), (3, 1), (4, 3, 1), (1,), ()]
EACH_BIT = [*EACH_ROW, (4, 1, 5), (4, 3, 5)]


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        *itertools.product([REINMAX, BY_METHOD["categorical", "gumbel_rao"]], EACH_ROW),
        *itertools.product([BITS, BY_METHOD["bernoulli", "gumbel_rao"]], EACH_BIT),
    ],
    ids=str,
)
def test_broadcast_temperatures(case, shape, short_rows):
    check_case(case, *inputs(4, 3, 5), temperatures(*shape))


@pytest.mark.parametrize("shape", [(4, 1, 5), (1, 3, 5), (5,), (3, 5), (4, 3, 5), (4, 3, 1)])
@each([REINMAX, BY_METHOD["categorical", "gumbel_rao"], BITS])
def test_broadcast_masks(case, shape, short_rows):
    mask = allowed_some(*shape)
    if case.categorical and shape[-1] == 1:
        mask = torch.ones(shape, dtype=torch.bool)
    check_case(case, *inputs(4, 3, 5), 0.8, mask=mask)


@each(CASES)
def test_a_single_variable(case):
    check_case(case, *inputs(6), torch.tensor([0.7]), mask=allowed_some(6))
    if not case.categorical:
        check_case(case, torch.tensor(0.3), torch.tensor(2.0), 0.7)


@pytest.mark.parametrize(
    "strided",
    [lambda x: x.T, lambda x: x[:, :1].T.expand(3, -1), lambda x: x[:1, :1].expand(3, 4)],
    ids=["transposed", "expanded", "one for all"],
)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *itertools.product([REINMAX], [torch.int32, torch.int64]),
        *itertools.product([BITS], [torch.bool, torch.int64, torch.float16]),
    ],
    ids=str,
)
def test_given_draws_of_any_dtype_and_strides(case, dtype, strided):
    logits, g = inputs(3, 4, 5) if case.categorical else inputs(3, 4)
    numbers = torch.arange(1, 13).reshape(4, 3) % (5 if case.categorical else 2)
    draw = strided(numbers.to(dtype))
    leaf = logits.requires_grad_()
    z = case.sample_at(leaf, draw, 0.7)
    plain = draw.long() if case.categorical else draw.float()
    assert z.dtype == torch.float32
    assert torch.equal(case.drawn(z), plain)
    expected = case.expected(logits, g, plain, 0.7)
    assert_gradient(torch.autograd.grad(z, leaf, g)[0], expected, case.scale(g, plain, expected))


@each([case for case in CASES if case.noisy])
def test_given_draws_with_fresh_noise(case):
    logits, g = inputs(4, 5)
    leaf = logits.requires_grad_()
    draw = torch.tensor([0, 4, 2, 2]) if case.categorical else (normal(4, 5) > 0).float()
    z = case.sample_at(leaf, draw, 0.7, generator=seeded(3))
    assert torch.equal(case.drawn(z), draw)
    expected = case.expected(logits, g, draw, 0.7, seed=seed_of(3))
    scale = case.scale(g, draw, expected)
    assert_gradient(torch.autograd.grad(z, leaf, g)[0], expected, scale)


class Started:
    """Stands for a compiled kernel: finds its tensors by their addresses, as a GPU does."""

    def __init__(self, plan, dtypes):
        self.plan, self.dtypes, self.count = plan, dtypes, 0
        plan.compiled = (self, None, None)

    def __call__(self, programs, y, z, stream, function, metadata, *arguments):
        assert (y, z, arguments[:3]) == (1, 1, (None,) * 3)
        addresses, rest = arguments[3 : 3 + len(self.dtypes)], arguments[3 + len(self.dtypes) :]
        tensors = [
            torch.frombuffer((ctypes.c_char * 8).from_address(address), dtype=dtype)
            for address, dtype in zip(addresses, self.dtypes, strict=True)
        ]
        self.count += 1
        self.plan.kernel[(programs,)](*tensors, *rest)


@each(CATEGORICAL)
@pytest.mark.parametrize("rows", [3, 4])
def test_a_call_as_before_gives_the_same(case, rows, monkeypatch):
    """A number of another type is not looked up, so the general way is taken; both are the same."""
    logits, g = inputs(rows, 12)
    leaf = logits.requires_grad_()
    real, whole = torch.float32, torch.int64
    monkeypatch.setattr("discretegrad.kernels.launch._current_stream", lambda device: 0)
    results, started = [], []
    forget_plans()
    for tau in (2, 2.0):
        z = case.sample(leaf, tau, generator=seeded(1))
        results.append((z.detach(), torch.autograd.grad(z, leaf, g)[0]))
        for known in quick._known.values():
            # what the first call by floating-point numbers planned is compiled for the second
            started = [Started(known.draw, [real, real, real, whole, whole, real])]
            if known.gradient is not None:
                started.append(Started(known.gradient, [*[real] * 6, whole, real, whole, real]))
    assert [one.count for one in started] == [0] * len(started)
    z = case.sample(leaf, 2.0, generator=seeded(1))
    results.append((z.detach(), torch.autograd.grad(z, leaf, g)[0]))
    assert [one.count for one in started] == [1] * len(started)
    for sample, gradient in results[1:]:
        assert torch.equal(sample, results[0][0])
        assert torch.equal(gradient, results[0][1])
    # what cannot be started directly is launched as ever: strides, alignment
    for other in (g.T.contiguous().T, torch.cat([g.flatten(), g[0]])[1:][: g.numel()].view_as(g)):
        expected = torch.autograd.grad(case.sample(leaf, 2, generator=seeded(1)), leaf, other)[0]
        z = case.sample(leaf, 2.0, generator=seeded(1))
        assert torch.equal(torch.autograd.grad(z, leaf, other)[0], expected)
    forget_plans()


@each(WALKS)
@pytest.mark.parametrize("n", [9, 37])
@pytest.mark.parametrize("contiguous", [True, False])
def test_in_place(case, n, contiguous, small_blocks):
    """Written over the gradient where that is possible, with the same result."""
    logits, g = inputs(3, n)
    if not contiguous:
        g = g.T.contiguous().T
    seed = seed_of(1)
    _, drawn = categorical.draw(Rows(logits), seed, given=False, dense=False)
    expected = case.expected(logits, g, drawn.categories, 0.7, seed=seed)
    kept = g.clone(memory_format=torch.preserve_format)
    actual = ops.gradient(case.kernel, g, Rows(logits, tau=0.7), seed, drawn, in_place=True)
    assert_gradient(actual, expected, case.scale(kept, drawn.categories, expected))
    assert (actual.data_ptr() == g.data_ptr()) == contiguous
    if not contiguous:
        assert torch.equal(g, kept)


@each(CASES)
def test_surroundings_of_the_input_stay_as_they_are(case, short_rows):
    logits, g = inputs(4, 7)
    mask, tau = allowed_some(4, 7), temperatures(4, 1)
    around = [surrounded(logits), surrounded(g), surrounded(mask, True), surrounded(tau)]
    before = [x._base.clone() for x in around]
    check_case(case, around[0], around[1], around[3], mask=around[2])
    for x, kept in zip(around, before, strict=True):
        assert torch.equal(x._base.nan_to_num(-7.0), kept.nan_to_num(-7.0))


@each([case for case in CATEGORICAL if case.method != "mean_released"])
def test_a_shift_of_the_gradient_changes_nothing(case, short_rows):
    """Every formula is relative to the draw, except the one that is kept as it was published."""
    logits, g = inputs(3, 7)
    g = (g * 64).round() / 64  # so that the shifted one is exact
    leaf = logits.requires_grad_()
    gradients = []
    for shift in (0.0, 4096.0):
        z = case.sample(leaf, 0.8, generator=seeded(1))
        gradients.append(torch.autograd.grad(z, leaf, g + shift)[0])
    assert torch.equal(*gradients)


def run_in_parts(case, logits, g, tau, sizes, seed=1, index=None):
    """The draw and the gradient of rows that come in parts, as for a vocabulary."""
    seed, rows = seed_of(seed), len(logits)
    drawn = Drawn(torch.empty(rows, dtype=torch.int64), torch.empty(3, rows))
    ends = torch.tensor(sizes).cumsum(0).tolist()
    spans = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    for begin, end in spans:
        categorical.draw_part(logits[:, begin:end].contiguous(), begin, seed, drawn)
    own = logits.gather(-1, drawn.categories[:, None]).squeeze(-1)
    assert torch.equal(drawn.statistics[2], own.float())
    if index is not None:
        drawn.categories.copy_(index)
        drawn.statistics[2] = logits.gather(-1, index[:, None]).squeeze(-1)
    at_draw = g.gather(-1, drawn.categories[:, None]).squeeze(-1).float()
    sums = torch.zeros(8, rows)
    known = categorical.LongRows(case.kernel, tau, seed, drawn, at_draw, sums)
    for begin, end in spans:
        pieces = [x[:, begin:end].contiguous() for x in (g, logits)]
        categorical.sums_part(known, *pieces, begin)
    results = [
        categorical.gradient_part(
            known, *[x[:, begin:end].contiguous() for x in (g, logits)], begin
        )
        for begin, end in spans
    ]
    return drawn, torch.cat(results, -1)


@each([BY_METHOD["categorical", m] for m in FORMULAS if m != "gumbel_rao"])
def test_rows_in_parts_have_the_same_gradient(case, small_blocks):
    logits, g = inputs(3, 28)
    # the last of the first part, the first of the second, and what a block of the first sticks out
    index = torch.tensor([19, 20, 27])
    for tau in (1.0, 0.7) if case.method in ("reinmax", "blend") else (0.7,):
        drawn, actual = run_in_parts(case, logits, g, tau, [20, 8], index=index)
        expected = case.expected(logits, g, drawn.categories, tau, seed=seed_of(1))
        assert_gradient(actual, expected, case.scale(g, drawn.categories, expected))
        total = drawn.statistics[0].exp() * drawn.statistics[1]
        assert torch.allclose(total, logits.exp().sum(-1))


FINITE = torch.finfo(torch.float32).max
EXTREMES = {
    "all the lowest": [-FINITE] * 5,
    "lowest and -inf": [-FINITE, -math.inf, -FINITE, -math.inf, -math.inf],
    "highest": [FINITE, 0.0, -FINITE, 1.0, -math.inf],
    "two highest": [FINITE, FINITE, -FINITE, 0.0, 0.0],
    "one allowed": [-math.inf, -math.inf, 3.0, -math.inf, -math.inf],
    "far below": [0.0, -90.0, -120.0, -1e4, -50.0],
    "far above": [-1e4, 0.0, 1e3, 1e4, 1e4],
}


@each(CATEGORICAL)
@pytest.mark.parametrize(
    ("small_blocks", "short_rows"),
    [("whole", "threads share rows"), ("in pieces", "rows of a thread")],
    indirect=True,
)
def test_extreme_logits(case, small_blocks, short_rows):
    """In one block, and in several with the extremes at the end of the row."""
    rows = torch.tensor(list(EXTREMES.values()))
    filled = torch.full((len(rows), 17), -math.inf)
    filled[:, -5:] = rows
    for logits in (rows,) if case.method == "gumbel_rao" else (rows, filled):
        leaf, g = logits.clone().requires_grad_(), normal(*logits.shape)
        for tau in (1.0, 0.6) if logits is rows else (0.6,):
            z = case.sample(leaf, tau, generator=seeded(1))
            assert_one_hot(z)
            draw = z.argmax(-1)
            assert (logits.softmax(-1).gather(-1, draw[:, None]) > 0).all()
            gradient = torch.autograd.grad(z, leaf, g)[0]
            assert not gradient[logits == -math.inf].any()
            expected = case.expected(logits, g, draw, tau, seed=seed_of(1))
            assert_gradient(gradient, expected, case.scale(g, draw, expected))


@each(BERNOULLI)
def test_extreme_bits(case):
    logits = torch.tensor([math.inf, -math.inf, FINITE, -FINITE, 0.0, 1e-38, 104.0, -88.0, 1e4])
    for tau in (1.0, 0.6, torch.tensor(3.0)):
        check_case(case, logits, normal(9, seed=11), tau)
    assert case.sample(logits)[:4].tolist() == [1, 0, 1, 0]


ACCURATE = ("straight_through", "reinmax", "blend", "gumbel_rao")


@each([case for case in BERNOULLI if case.method in ACCURATE])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_tails_of_bits_are_relatively_accurate(case, value):
    """No scale in the tolerance: an error of a logit counts as much as its exponential grows."""
    logits, seed = torch.linspace(-80, 80, 41), seed_of(1)
    draw = torch.full((41,), value)
    actual = bits.gradient(case.kernel, torch.ones(41), Bits(logits), seed, draw != 0)
    expected = case.expected(logits, torch.ones(41), draw, seed=seed)
    assert_gradient(actual / (1 + logits.abs()), expected / (1 + logits.abs()), torch.zeros(()))


@each(BLENDS)
def test_a_blend_ends_in_straight_through_and_reinmax(case):
    check_ends(case, *inputs(3, 7))


# the forms that rows of such a length have
FORMS_OF_LENGTHS = {
    "shared": (5, "whole", "threads share rows"),
    "of a thread": (5, "whole", "rows of a thread"),
    "whole": (20, "whole", "threads share rows"),
    "in pieces": (20, "in pieces", "threads share rows"),
}


@pytest.mark.parametrize(
    ("case", "n", "small_blocks", "short_rows"),
    [
        pytest.param(case, *form, id=f"{case.method}, {name}")
        for case in CATEGORICAL
        for name, form in FORMS_OF_LENGTHS.items()
        # whose kernel has one form for each length
        if case.method != "gumbel_rao" or name in ("shared", "whole")
    ],
    indirect=["small_blocks", "short_rows"],
)
def test_tails_of_categories_are_relatively_accurate(case, n, small_blocks, short_rows):
    """Each category far above the others, and each one drawn: no |g| in the tolerance."""
    # all of a short row, one of each piece of a long one
    ends = torch.arange(0, n, 1 if n < PIECE else PIECE) + (n >= PIECE)
    count = len(ends)
    for gap, tau in ((15.0, 1.0), (17.0, 2.0), (80.0, 1.0)):
        logits = -gap + torch.linspace(-1, 1, n).expand(count, count, n).clone()
        logits.scatter_(-1, ends.reshape(-1, 1, 1).expand(-1, count, 1), 0.0)
        leaf, g = logits.requires_grad_(), 3 + normal(n).expand(count, count, n)
        draw = ends.expand(count, count).contiguous()
        z = case.sample_at(leaf, draw, tau, generator=seeded(1))
        gradient = torch.autograd.grad(z, leaf, g)[0]
        expected = case.expected(logits, g, draw, tau, seed=seed_of(1))
        largest = expected.abs().amax(-1, keepdim=True)
        # what rounding a logit does to its exponential
        assert_gradient(gradient, expected, 10 * largest)
        if case.method != "mean_released":
            assert (gradient.sum(-1, keepdim=True).abs() <= 1e-6 * largest).all()


@pytest.mark.filterwarnings("ignore:.*is unusual")
@pytest.mark.parametrize("tau", [1e-30, 1e-3, 50.0, 1e30])
@each([case for case in CASES if not case.method.startswith("mean")])
def test_extreme_temperatures(case, tau):
    logits, g = inputs(2, 5)
    leaf = logits.requires_grad_()
    z = case.sample(leaf, tau, generator=seeded(1))
    gradient = torch.autograd.grad(z, leaf, g)[0]
    assert gradient.isfinite().all()
    if tau >= 1:
        expected = case.expected(logits, g, case.drawn(z), tau, seed=seed_of(1))
        scale = case.scale(g, case.drawn(z), expected) / (
            1 if case.method in ("reinmax", "blend") else tau
        )
        assert_gradient(gradient, expected, scale)


@each(CATEGORICAL)
def test_a_row_of_nan_stays_in_range_and_alone(case, small_blocks, unchecked):
    # several blocks where the way over a row differs
    logits, g = inputs(3, 17 if case in WALKS else 5)
    broken = logits.clone()
    broken[1] = math.nan
    results = []
    for x in (logits, broken):
        leaf = x.requires_grad_()
        z = case.sample(leaf, 0.8, generator=seeded(1))
        assert_one_hot(z)
        results.append((z.detach()[[0, 2]], torch.autograd.grad(z, leaf, g)[0][[0, 2]]))
    assert_same_results(*results)


def check_out_of_range(case, n):
    """Given categories that their rows do not have: other rows are neither written nor read."""
    around = -(-100 // n)  # rows, so that all is in memory of the test's own
    logits, g = inputs(2 * around + 5, n)
    wrong = around + torch.tensor([0, 2, 4])
    right = torch.ones(len(logits), dtype=torch.bool).index_fill(0, wrong, False)
    draw = torch.full((len(logits),), n // 2)

    def run():
        leaf = logits.clone().requires_grad_()
        z = case.sample_at(leaf, draw, 0.8, generator=seeded(1))
        return z.detach(), torch.autograd.grad(z, leaf, g)[0]

    expected = run()
    draw[wrong] = torch.tensor([n + 5, -1, -100])
    z, gradient = run()
    assert not z[wrong].any()
    assert_same_results([z[right], gradient[right]], [x[right] for x in expected])
    logits[right] = g[right] = math.nan
    z, beside_nan = run()
    assert torch.equal(z[right], expected[0][right])
    # it means nothing, but it comes from its own row alone
    assert torch.equal(beside_nan[wrong].nan_to_num(-7.0), gradient[wrong].nan_to_num(-7.0))


@each(CATEGORICAL)
@pytest.mark.parametrize("n", [2, 40])
def test_a_given_category_out_of_range(case, n, small_blocks, unchecked):
    check_out_of_range(case, n)


@each(WALKS)
def test_a_given_category_out_of_range_of_a_long_row(case, unchecked):
    check_out_of_range(case, 4096)


def test_excluded_categories_are_never_drawn(small_blocks, wide_programs, unchecked):
    """Most of the weight is excluded, by the mask or by -inf; a row may exclude everything."""
    for n, rows in ((8, 200), (16, 200), (40, 30)):
        logits = normal(rows, n)
        mask = torch.arange(n) % 3 == 1
        logits[:, ~mask] += 30
        for given, x in ((mask, logits), (None, logits.masked_fill(~mask, -math.inf))):
            index, _ = sample_index(x, mask=given, backend="triton")
            assert mask[index].all()
        index, _ = sample_index(torch.full((2, n), -math.inf), backend="triton")
        assert ((index >= 0) & (index < n)).all()


PROBS = torch.tensor([0.3, 0.05, 0.25, 0.1, 0.3])


def indices(logits, generator, rows):
    return sample_index(logits.expand(rows, -1), generator=generator, backend="triton")[0]


def test_frequencies_in_one_block(wide_programs):
    generator = seeded(1)
    index, other = (indices(PROBS.log(), generator, 20_000) for _ in range(2))
    assert chi_square(torch.bincount(index, minlength=5), PROBS) > LEVEL
    assert independence(index, other, PROBS) > LEVEL
    for shift in (1, 2, 512):  # the neighbour, and the same place in the next program
        assert independence(index[:-shift], index[shift:], PROBS) > LEVEL


@pytest.mark.parametrize(("n", "rows"), [(16, 20_000), (20, 200)], ids=["groups", "blocks"])
def test_frequencies_with_groups_and_blocks(n, rows, small_blocks, wide_programs):
    """Logits of all sizes in any order, one category that is rare and one that is excluded."""
    logits = 1.5 * normal(n, seed=4)
    logits[n // 2], logits[n // 3] = logits.logsumexp(0) - 7, -math.inf
    index = indices(logits, seeded(2), rows)
    counts, probs = torch.bincount(index, minlength=n), logits.double().softmax(-1)
    assert chi_square(counts, probs) > LEVEL
    rare = n // 2
    assert stats.binomtest(int(counts[rare]), rows, probs[rare].item()).pvalue > LEVEL


def test_pieces_are_drawn_as_by_the_reference(tiles):
    """First a piece and then a category within it, each by a number of its own."""
    tiles(categorical, "LONGEST_DRAW", ONE_BLOCK)
    tiles(categorical, "PIECE_DRAW", PIECE)
    logits, seed, rows = inputs(60, 37)[0], seed_of(3), torch.arange(60)
    _, drawn = categorical.draw(Rows(logits), seed, given=False, dense=False)
    weights = torch.zeros(60, 40, dtype=torch.float64)
    weights[:, :37] = logits.double().exp()
    weights = weights.view(60, 5, PIECE)

    def picked(weight, step):
        high, low, _, _ = philox_reference.words(seed, rows, step, philox_reference.DRAW)
        threshold = philox_reference.uniform53(high, low) * weight.sum(-1)
        return (weight.cumsum(-1) <= threshold[:, None]).sum(-1)

    piece = picked(weights.sum(-1), 1)
    assert torch.equal(drawn.categories, piece * PIECE + picked(weights[rows, piece], 0))


@pytest.mark.parametrize("difference", [1, 2**31, 2**32])
def test_neighbouring_seeds_are_independent(difference, wide_programs):
    logits = PROBS.log().expand(3000, -1).contiguous()
    draws = [
        categorical.draw(Rows(logits), seed_of(6) + d, given=False, dense=False)[1].categories
        for d in (0, difference)
    ]
    assert independence(*draws, PROBS) > LEVEL


@pytest.mark.parametrize("logit", [-6.0, -1.0, 0.0, 0.3, 5.0])
def test_frequencies_of_bits(logit):
    rows = 2**16
    value = BITS.sample(torch.full((rows,), logit), generator=seeded(7)).long()
    prob = torch.sigmoid(torch.tensor(logit).double())
    ones = int(value.sum())
    assert stats.binomtest(ones, rows, prob.item()).pvalue > LEVEL
    probs = torch.stack([1 - prob, prob])
    if ones > 1000 and rows - ones > 1000:
        for shift in (1, 4, 1024):
            assert independence(value[:-shift], value[shift:], probs) > LEVEL


def test_bits_are_the_draws_of_the_reference():
    logits = 3 * normal(3, 700)
    z = BITS.sample(logits, generator=seeded(8))
    word = philox_reference.neighbour_words(seed_of(8), 2100, philox_reference.DRAW)
    uniform = philox_reference.uniform(word).reshape(3, 700)
    unlikely = torch.sigmoid(-logits.double().abs())
    clear = (uniform / unlikely - 1).abs() > 1e-5
    assert clear.float().mean() > 0.99
    assert torch.equal((z != 0)[clear], ((uniform < unlikely) ^ (logits > 0))[clear])


@triton.jit
def _words_kernel(out, seed, item, position, PURPOSE: tl.constexpr, SIZE: tl.constexpr):
    a, b, c, d = philox.words(
        tl.load(seed), tl.load(item + tl.arange(0, SIZE)), tl.load(position), PURPOSE
    )
    number = tl.arange(0, SIZE)
    tl.store(out + number, a.to(tl.int64))
    tl.store(out + SIZE + number, b.to(tl.int64))
    tl.store(out + 2 * SIZE + number, c.to(tl.int64))
    tl.store(out + 3 * SIZE + number, d.to(tl.int64))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32, 2**63 - 1, -(2**63)])
def test_words_are_those_of_the_reference(seed):
    seed = torch.tensor([seed])
    item = torch.tensor([0, 1, 2**31, 2**32 - 1, 2**32, 2**40 + 5, 7, 8])
    for position in (0, 3, 2**31 - 1):
        out = torch.empty(4, 8, dtype=torch.int64)
        _words_kernel[(1,)](out, seed, item, torch.tensor([position]), 5, 8)
        assert torch.equal(out & 0xFFFFFFFF, philox_reference.words(seed, item, position, 5))


def test_reference_has_the_known_answers():
    for counter, key, answer in philox_reference.KNOWN_ANSWERS:
        assert tuple(philox_reference.philox(counter, key).tolist()) == answer


@triton.jit
def _numbers_kernel(out, word, SIZE: tl.constexpr):
    number = tl.arange(0, SIZE)
    w = tl.load(word + number).to(tl.uint32)
    tl.store(out + number, philox.exponential(w).to(tl.float64))
    tl.store(out + SIZE + number, philox.uniform53(w, w ^ 0x5A5A5A5A))


def test_numbers_made_of_words():
    word = words_of_all_sizes(4096)
    out = torch.empty(2, 4096, dtype=torch.float64)
    _numbers_kernel[(1,)](out, word, 4096)
    exponential = philox_reference.exponential(word)
    assert ((out[0] - exponential).abs() <= 1e-6 * exponential).all()
    assert torch.equal(out[1], philox_reference.uniform53(word, word ^ 0x5A5A5A5A))


def test_moments_of_the_numbers():
    word = philox_reference.neighbour_words(seed_of(10), 2**18, philox_reference.NOISE)
    for numbers, law in (
        (philox_reference.uniform(word), stats.uniform),
        (philox_reference.uniform53(word, word.roll(1)), stats.uniform),
        (philox_reference.exponential(word), stats.expon),
        (philox_reference.logistic(word), stats.logistic),
    ):
        assert stats.kstest(numbers.numpy(), law.cdf).pvalue > LEVEL
        spread = law.std() / math.sqrt(len(word))
        assert 2 * stats.norm.sf(abs(numbers.mean().item() - law.mean()) / spread) > LEVEL


@each(CASES)
def test_generators(case):
    """They reproduce, leave the global one alone, and the global one advances."""
    logits = normal(20, 6)
    state = torch.get_rng_state()
    first, second = (case.sample(logits, generator=seeded(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, case.sample(logits, generator=seeded(2)))
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng():
        first, second = case.sample(logits), case.sample(logits)
        torch.set_rng_state(state)
        assert torch.equal(first, case.sample(logits))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_all_samplers_draw_the_same_from_one_state(family):
    logits = normal(40, 6)
    samples = [case.sample(logits, generator=seeded(1)) for case in CASES if case.family == family]
    assert all(torch.equal(samples[0], z) for z in samples)
    if family == "categorical":
        for case in CATEGORICAL:
            index, _ = case.sample_index(logits, generator=seeded(1))
            assert torch.equal(index, samples[0].argmax(-1))


def test_auto_stays_on_the_torch_path_of_a_cpu(launches):
    logits = normal(3, 4).requires_grad_()
    for backend in ("auto", "torch"):
        REINMAX.sample(logits, backend=backend).sum().backward()
        BITS.sample(logits, backend=backend).sum().backward()
        sample_index(logits, backend=backend)
    assert not launches
    REINMAX.sample(logits)
    assert launches


class Subclass(Tensor):
    pass


REASONS = {
    "dtype": (lambda: torch.zeros(2, 3, dtype=torch.float64), "the logits are torch.float64"),
    "empty": (lambda: torch.zeros(0, 3), "the logits are empty"),
    "subclass": (lambda: torch.zeros(2, 3).as_subclass(Subclass), "of the subclass Subclass"),
    "device": (lambda: torch.zeros(2, 3, device="meta"), "the logits are on 'meta'"),
    "triton": (lambda: torch.zeros(2, 3), "the package triton is not installed"),
}


@pytest.mark.parametrize("kind", REASONS)
def test_reasons_why_kernels_cannot_run(kind, monkeypatch):
    make, reason = REASONS[kind]
    logits = make()
    # without the interpreter, as users have it
    monkeypatch.setattr(dispatch, "_INTERPRETED", kind == "triton")
    monkeypatch.setattr(dispatch, "_HAS_TRITON", kind != "triton")
    with pytest.raises(BackendUnavailable, match=f"{reason}.*Use backend="):
        REINMAX.sample(logits)
    if kind == "triton":
        assert (REINMAX.sample(logits, backend="auto").sum(-1) == 1).all()
        assert not REINMAX.sample(torch.nn.Parameter(logits), backend="auto").isnan().any()


def test_kernels_cannot_run_under_transforms():
    vmapped = torch.func.vmap(REINMAX.sample, randomness="different")
    for function in (vmapped, torch.func.grad(lambda x: REINMAX.sample(x).sum())):
        with pytest.raises(BackendUnavailable, match=r"torch\.func transforms"):
            function(normal(2, 3))


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_what_no_kernel_does(family):
    given = torch.tensor(1) if family == "categorical" else torch.ones(3)
    for name, arguments, lacking in (
        ("gumbel_softmax", {"hard": False}, "hard=False"),
        ("gumbel_softmax", {"given": given, "noise": torch.ones(3)}, "noise that is given"),
        ("gumbel_rao", {"given": given, "noise": torch.ones(2, 3)}, "noise that is given"),
    ):
        with pytest.raises(BackendUnavailable, match=f"no kernel for {lacking}"):
            getattr(discretegrad, name)(
                torch.zeros(3), family=family, backend="triton", **arguments
            )


def test_wrong_input_is_refused_as_on_the_torch_path():
    for case, message, arguments in (
        (REINMAX, "NaN in row 1", {"logits": torch.tensor([[0.0, 0.0], [math.nan, 0.0]])}),
        (REINMAX, "at least one allowed category", {"mask": torch.tensor([False, False])}),
        (REINMAX, "categories in", {"given": torch.tensor(2)}),
        (REINMAX, "tau", {"tau": -1.0}),
        (REINMAX, "expected backend to be one of", {"backend": "cuda"}),
        (BITS, "without NaN", {"logits": torch.tensor([math.nan])}),
        (BITS, "expected backend to be one of", {"backend": "cuda"}),
    ):
        with pytest.raises(ValueError, match=message):
            case.sample(**{"logits": torch.zeros(2), **arguments})


def assert_same_results(first, second):
    for actual, expected in zip(first, second, strict=True):
        assert torch.equal(actual, expected)


@each(CASES)
def test_compiled_sampler_is_the_eager_one(case, compiler):
    mask = torch.tensor([True, True, False, True, True])

    def sampler(logits):
        return case.sample(logits, 0.7, mask=mask)

    compiled = torch.compile(sampler, fullgraph=True, backend="aot_eager")
    logits, g = inputs(4, 5)
    results = []
    with torch.random.fork_rng():
        for function in (compiled, sampler):
            torch.manual_seed(1)
            leaf = logits.clone().requires_grad_()
            z = function(leaf)
            results.append((z.detach(), torch.autograd.grad(z, leaf, g)[0]))
    assert_same_results(*results)


@each([case for case in NOISE_FREE if case.method in ("reinmax", "mean_second")])
def test_compiled_deterministic_half_is_the_eager_one(case, compiler):
    logits, g = inputs(4, 5)
    leaf = logits.requires_grad_()
    arguments = (leaf, case.drawn(case.sample(logits)), temperatures(4, 1))
    compiled = torch.compile(case.sample_at, fullgraph=True, backend="aot_eager")
    results = [
        (z.detach(), torch.autograd.grad(z, leaf, g)[0])
        for z in (compiled(*arguments), case.sample_at(*arguments))
    ]
    assert_same_results(*results)


def test_compiled_sampler_takes_batches_of_any_size(compiler):
    compiled = torch.compile(lambda x: REINMAX.sample(x, 0.7), fullgraph=True, backend="aot_eager")
    for batch in (4, 6, 9):
        logits, g = normal(batch, 5).requires_grad_(), normal(batch, 5)
        z = compiled(logits)
        assert_one_hot(z)
        draw = REINMAX.drawn(z)
        expected = REINMAX.expected(logits, g, draw, 0.7)
        scale = REINMAX.scale(g, draw, expected)
        assert_gradient(torch.autograd.grad(z, logits, g)[0], expected, scale)


@each(CASES)
def test_double_backward_is_refused(case):
    logits = normal(3, 4).requires_grad_()
    z = case.sample(logits, 0.8)
    first = torch.autograd.grad(z.pow(2).sum(), logits, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiating it again is refused"):
        torch.autograd.grad(first.sum(), logits)


@each(CASES)
def test_without_gradients_nothing_is_kept(case):
    logits = normal(3, 4).requires_grad_()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            z = case.sample(logits, generator=seeded(1))
            assert z.grad_fn is None
    assert torch.equal(z, case.sample(logits, generator=seeded(1)))
    assert not case.sample(logits.detach()).requires_grad


@each(CASES)
def test_several_gradients_at_once(case):
    """``is_grads_batched``: torch then hands over a tensor without memory of its own."""
    logits, _ = inputs(3, 5)
    leaf, g = logits.requires_grad_(), normal(2, 3, 5)
    for draw in (None, torch.tensor([0, 4, 2]) if case.categorical else torch.ones(3, 5)):
        z = case.sample(leaf, 0.7, given=draw, generator=seeded(1))
        together = torch.autograd.grad(z, leaf, g, is_grads_batched=True, retain_graph=True)[0]
        alone = [torch.autograd.grad(z, leaf, single, retain_graph=True)[0] for single in g]
        assert torch.equal(together, torch.stack(alone))
