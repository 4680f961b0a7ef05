"""linear_select on a CUDA device: agreement, memory, CUDA graphs, compiled code."""

import pytest
import torch

from discretegrad import linear_select, reinmax
from discretegrad.linear_select import blocks as in_blocks
from discretegrad.linear_select import front
from discretegrad.linear_select import tiles as in_tiles
from discretegrad.nn import VectorQuantize
from kernel_cases import (
    CATEGORICAL,
    LEVEL,
    REINMAX,
    chi_square,
    each,
    normal,
    seeded,
    warm_up,
    without_waiting,
)

pytestmark = pytest.mark.gpu

TILED = [case for case in CATEGORICAL if case.name != "gumbel_rao"]
# an error may be this much of the largest number; the reference rounds logits as the code does
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2**-8, torch.bfloat16: 2**-6}


def problem(rows, n, dtype, width=64, out=48):
    hidden = normal(rows, width, seed=1, dtype=dtype, device="cuda")
    head = normal(n, width, seed=2, dtype=dtype, device="cuda") / 4
    table = normal(n, out, seed=3, dtype=dtype, device="cuda")
    inputs = [x.requires_grad_() for x in (hidden, head, table)]
    return inputs, normal(rows, out, seed=4, dtype=dtype, device="cuda")


def cut(monkeypatch, rows, categories, dtype):
    monkeypatch.setattr(in_tiles, "_TILE_ROWS", rows)
    monkeypatch.setattr(in_tiles, "_TILE_BYTES", rows * categories * dtype.itemsize)


def product(x, weight):
    """``x @ weight.T``, rounded as in the code: a product of another shape may differ."""
    return torch.cat(
        [
            torch.cat([x[rows] @ tile.T for tile in weight.split(size)], 1)
            for rows in in_tiles._row_blocks(len(x))
            for size in [in_tiles._tile_size(x[rows], len(weight))]
        ]
    )


def expected(case, inputs, g, index, tau, seed=None):
    hidden, head, table = (x.detach() for x in inputs)
    at_one_hot = product(g, table)
    for_logits = case.expected(product(hidden, head), at_one_hot, index, tau, seed=seed)
    for_table = torch.zeros_like(table).double().index_add_(0, index, g.double())
    return for_logits @ head.double(), for_logits.T @ hidden.double(), for_table


def assert_close(actual, wanted):
    for x, y in zip(actual, wanted, strict=True):
        assert x.isfinite().all()
        assert (x.double() - y).abs().max() <= TOLERANCES[x.dtype] * y.abs().max()


@pytest.fixture
def kernels_only(monkeypatch):
    """Whatever takes the torch path fails."""
    monkeypatch.delattr(front, "select_in_blocks")


@each([case for case in TILED if not case.noisy])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_gradients_on_the_gpu(case, dtype, tau, kernels_only, monkeypatch):
    cut(monkeypatch, 256, 1024, dtype)
    inputs, g = problem(300, 5003, dtype)
    selected, index = linear_select(*inputs, case.name, tau, return_index=True, **case.options)
    assert torch.equal(selected, inputs[2][index])
    gradients = torch.autograd.grad(selected, inputs, g)
    assert_close(gradients, expected(case, inputs, g, index, tau))


def test_gumbel_noise_on_the_gpu(kernels_only, monkeypatch):
    case = next(case for case in TILED if case.noisy)
    cut(monkeypatch, 256, 1024, torch.float32)
    inputs, g = problem(200, 3001, torch.float32)
    seed = torch.randint(2**63 - 1, (1, 2), device="cuda", generator=seeded(5, "cuda"))[0, :1]
    selected, index = linear_select(
        *inputs, case.name, 0.7, return_index=True, generator=seeded(5, "cuda")
    )
    gradients = torch.autograd.grad(selected, inputs, g)
    assert_close(gradients, expected(case, inputs, g, index, 0.7, seed))


def test_frequencies_on_the_gpu(kernels_only, monkeypatch):
    cut(monkeypatch, 2**14, 512, torch.float32)
    (hidden, head, table), _ = problem(1, 2000, torch.float32)
    many = hidden.detach().expand(200_000, -1)
    _, index = linear_select(many, head, table, return_index=True)
    probs = (hidden @ head.T).detach().double().softmax(-1)
    assert chi_square(index.bincount(minlength=2000), probs) > LEVEL


def test_memory_of_a_vocabulary(kernels_only):
    rows, n, width = 8192, 131072, 1024
    inputs, g = problem(rows, n, torch.bfloat16, width, width)
    for _ in range(2):  # the first call loads kernels and takes the workspace of cuBLAS
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        selected, index = linear_select(*inputs, return_index=True)
        results = [selected, index, *torch.autograd.grad(selected, inputs, g)]
        extra = torch.cuda.max_memory_allocated() - before
        extra -= sum(x.numel() * x.element_size() for x in results)
        del selected, results
    assert extra < 2**28


def test_more_rows_than_a_tile_holds(kernels_only):
    inputs, g = problem(40_000, 3000, torch.bfloat16)
    selected, index = linear_select(*inputs, return_index=True)
    gradients = torch.autograd.grad(selected, inputs, g)
    assert_close(gradients, expected(REINMAX, inputs, g, index, 1.0))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_no_call_makes_the_gpu_wait(kernels_only, monkeypatch):
    cut(monkeypatch, 256, 1024, torch.float32)
    inputs, g = problem(300, 5003, torch.float32)
    torch.autograd.grad(linear_select(*inputs), inputs, g)
    with without_waiting():
        torch.autograd.grad(linear_select(*inputs), inputs, g)


def test_replayed_graphs_draw_anew(kernels_only, monkeypatch):
    cut(monkeypatch, 256, 1024, torch.float32)
    inputs, g = problem(300, 5003, torch.float32)

    def step():
        selected, index = linear_select(*inputs, return_index=True)
        return selected, index, torch.autograd.grad(selected, inputs, g)

    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        selected, index, gradients = step()
    draws = []
    for _ in range(3):
        graph.replay()
        assert torch.equal(selected, inputs[2][index])
        assert_close(gradients, expected(REINMAX, inputs, g, index, 1.0))
        draws.append(index.clone())
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[2])


# of torch's own compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_on_the_gpu(dtype, kernels_only, monkeypatch):
    cut(monkeypatch, 256, 1024, dtype)
    inputs, g = problem(300, 5003, dtype)

    @torch.compile(fullgraph=True)
    def function(hidden, head, table):
        return linear_select(hidden, head, table, tau=0.7, return_index=True)

    selected, index = function(*inputs)
    assert torch.equal(selected, inputs[2][index])
    gradients = torch.autograd.grad(selected, inputs, g)
    assert_close(gradients, expected(REINMAX, inputs, g, index, 0.7))


def test_gumbel_rao_takes_the_torch_path(monkeypatch):
    monkeypatch.setattr(in_blocks, "_BLOCK_NUMBERS", 2**14)
    inputs, g = problem(64, 1000, torch.float32)
    selected, index = linear_select(*inputs, "gumbel_rao", 0.5, num_draws=3, return_index=True)
    assert torch.equal(selected, inputs[2][index])
    assert all(x.isfinite().all() for x in torch.autograd.grad(selected, inputs, g))


def quantiser(codes, scale, **arguments):
    """A layer with codes that are apart."""
    layer = VectorQuantize(64, codes, sample_codebook_temp=scale, **arguments).cuda()
    layer.codebook.copy_(normal(codes, 64, seed=2, dtype=torch.float32, device="cuda"))
    layer.embed_avg.copy_(layer.codebook)
    return layer


def test_quantiser_on_the_gpu(kernels_only):
    layer = quantiser(3000, 40.0)
    codebook = layer.codebook.clone()
    x = normal(500, 64, seed=1, dtype=torch.float32, device="cuda").requires_grad_()
    g = normal(500, 64, seed=4, dtype=torch.float32, device="cuda")
    code, index, _ = layer(x)
    assert torch.equal(code, codebook[index])
    # not by torch.cdist, which rounds more
    wide = x.detach().double().requires_grad_()
    logits = (2 * wide @ codebook.double().T - codebook.double().square().sum(1)) / 40
    wanted = reinmax(logits, given=index, backend="torch") @ codebook.double()
    (exact,) = torch.autograd.grad(wanted, wide, g.double())
    (actual,) = torch.autograd.grad(code, x, g)
    assert (actual - exact).abs().max() < 1e-3 * exact.abs().max()
    nearest = torch.cdist(x.detach().double(), layer.codebook.double()).argmin(-1)
    # codes that are equally near but for rounding may differ
    assert (layer.eval()(x)[1] == nearest).float().mean() > 0.99


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_quantiser_does_not_make_the_gpu_wait(kernels_only):
    layer = quantiser(300, 40.0, threshold_ema_dead_code=1, entropy_loss_weight=0.1)
    x = normal(500, 64, seed=1, dtype=torch.float32, device="cuda").requires_grad_()

    def step():
        code, _, loss = layer(x)
        torch.autograd.grad(code.sum() + loss, x)

    step()
    with without_waiting():
        step()


def test_memory_of_a_quantiser(kernels_only):
    rows, codes = 100_000, 16_384
    layer = quantiser(codes, 40.0)
    x = normal(rows, 64, seed=1, dtype=torch.float32, device="cuda").requires_grad_()
    for _ in range(2):  # the first call loads kernels and takes the workspace of cuBLAS
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        code, _, loss = layer(x)
        (code.sum() + loss).backward()
        extra = torch.cuda.max_memory_allocated() - before
        del code, loss
        x.grad = None
    # all distances would take 6.6 GB
    assert extra < 2**30
