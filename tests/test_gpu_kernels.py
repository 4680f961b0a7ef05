"""The Triton kernels on a GPU: real sizes, and what only a GPU can show.

The torch path in float64 on the same draws is the reference, as in test_kernels.py, which runs
small sizes through every branch. Compiling takes most of the time here, a second or two for each
variant of a kernel, so sizes and options repeat where they can.

The environment variables DISCRETEGRAD_SOAK and DISCRETEGRAD_SOAK_SEED set the number of calls of
the soak (default 4000) and which ones: processes with seeds of their own share a million calls.
"""

import math
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from scipy import stats
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import discretegrad
import philox_reference
from discretegrad import sample_index, select
from discretegrad.kernels import dispatch, philox
from kernel_cases import (
    BLENDS,
    BY_METHOD,
    CASES,
    CATEGORICAL,
    DTYPES,
    LEVEL,
    REINMAX,
    Case,
    allowed_some,
    assert_gradient,
    check_case,
    check_ends,
    chi_square,
    each,
    independence,
    normal,
    seeded,
    surrounded,
    temperatures,
    warm_up,
    without_waiting,
    words_of_all_sizes,
)

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
BITS = BY_METHOD["bernoulli", "reinmax"]
GIB = 2**30


@pytest.fixture
def memory():
    """An empty device: what the test holds is given back."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    assert torch.cuda.max_memory_allocated() < 100 * GIB
    torch.cuda.empty_cache()


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(*shape, dtype=torch.float32, spread=2.0):
    """Logits and a gradient."""
    logits = spread * normal(*shape, dtype=dtype, device=DEVICE)
    return logits, normal(*shape, seed=11, dtype=dtype, device=DEVICE)


def mask_of(*shape, dim=-1):
    return allowed_some(*shape, dim=dim, device=DEVICE)


def tau_of(*shape):
    return temperatures(*shape, device=DEVICE)


LENGTHS = [
    1, 2, 10, 100, 1000, 1023, 1024, 1025, 2048, 2049, 4097, 8191, 8192, 8193, 32768, 100_000,
    1_000_000,
]  # fmt: skip


@pytest.mark.parametrize("n", LENGTHS)
def test_every_length(n, poison):
    check_case(REINMAX, *inputs(5, n))


# around what has a form of its own: many short rows, of which a thread has some to itself, and long
# rows that are too many to be cut into pieces
NUMBERS = [(20_001, n) for n in (1, 2, 3, 7, 10, 15, 16, 17)]
NUMBERS += [(2**14 - 1, 10), (2**14, 10), (512, 9000), (513, 9000)]


@pytest.mark.parametrize("shape", NUMBERS, ids=str)
@each([REINMAX, BY_METHOD["categorical", "gumbel_softmax"]])
def test_every_form(case, shape, poison):
    check_case(case, *inputs(*shape))
    check_case(case, *inputs(*shape), tau_of(shape[0], 1), mask=mask_of(*shape))


@pytest.mark.parametrize("shape", [(20_001, 10), (5, 20_001), (520, 9001)], ids=str)
def test_every_form_gives_the_same_again(shape):
    """Bit by bit, whatever the order of the programs."""
    logits, g = inputs(*shape)
    for case in CATEGORICAL:
        leaf, results = logits.requires_grad_(), []
        for _ in range(3):
            z = case.sample(leaf, 0.7, generator=seeded(1, DEVICE))
            results.append((z.detach(), torch.autograd.grad(z, leaf, g)[0]))
        for again in results[1:]:
            assert torch.equal(again[0], results[0][0])
            assert torch.equal(again[1], results[0][1])


@each(CASES)
def test_every_sampler(case, poison):
    check_case(case, *inputs(37, 100), tau_of(37, 1), mask=mask_of(37, 100), given=True)
    if case.categorical:
        check_case(case, *inputs(5, 20_000))
        check_case(case, *inputs(20_001, 10), 0.7, given=True)


@each(BLENDS)
def test_a_blend_ends_in_straight_through_and_reinmax(case):
    check_ends(case, *inputs(37, 100))


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("shape", [(37, 100), (5, 20_000), (20_001, 10)], ids=str)
def test_low_precisions(dtype, shape, poison):
    check_case(REINMAX, *inputs(*shape, dtype=dtype))
    check_case(BITS, *inputs(*shape, dtype=dtype))
    # whose long rows add up in a float32 tensor of their own
    check_case(BY_METHOD["categorical", "gumbel_rao"], *inputs(*shape, dtype=dtype), 0.7)


@pytest.mark.parametrize("n", [3, 100, 5000])
@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_a_thousand_noise_draws(family, n):
    case = replace(BY_METHOD[family, "gumbel_rao"], options={"num_draws": 1000})
    check_case(case, *inputs(4, n), 0.5)


@triton.jit
def _noise_kernel(out, word, SIZE: tl.constexpr):
    number = tl.arange(0, SIZE)
    tl.store(out + number, philox.exponential(tl.load(word + number).to(tl.uint32)))


def test_noise_is_relatively_accurate():
    """Also where the logarithm of the hardware is not: near 1."""
    word = words_of_all_sizes(2**15)
    noise = torch.empty(2**15, device=DEVICE)
    _noise_kernel[(1,)](noise, word.to(DEVICE), 2**15)
    expected = philox_reference.exponential(word)
    assert ((noise.cpu() - expected).abs() <= 1e-6 * expected).all()


@pytest.mark.parametrize("dim", [0, 1])
def test_any_axis(dim, poison):
    logits, g = inputs(30, 20, 7)
    shape = [30, 20, 7]
    shape[dim] = 1
    check_case(REINMAX, logits, g.transpose(0, 1).contiguous().transpose(0, 1), tau_of(*shape),
               dim, mask_of(30, 20, 7, dim=dim))  # fmt: skip


def test_surrounded_and_expanded():
    logits, g = inputs(37, 100)
    check_case(REINMAX, surrounded(logits), surrounded(g))
    check_case(REINMAX, logits[:1].expand(37, 100), g[0, 0].expand(37, 100))


def test_addresses_of_any_alignment():
    """A variant that was compiled for aligned tensors is not run for others."""
    for shift in (0, 1, 4, 3):
        memory = [x.flatten() for x in inputs(38, 100)]
        logits, g = (x[shift : shift + 3700].view(37, 100) for x in memory)
        check_case(REINMAX, logits, g)
        check_case(BITS, logits, g)


def test_extremes():
    top = torch.finfo(torch.float32).max
    logits = normal(8, 100, device=DEVICE)
    logits[0], logits[1, 3], logits[2, :99] = -top, top, -math.inf
    logits[3, 50:], logits[4, ::2] = -math.inf, -top
    logits[5] = torch.arange(100, device=DEVICE) * 100.0
    check_case(REINMAX, logits, normal(8, 100, seed=11, device=DEVICE))
    wide = torch.full((8, 20_000), -math.inf, device=DEVICE)
    wide[:, -100:] = logits
    check_case(REINMAX, wide, normal(8, 20_000, seed=11, device=DEVICE))


def test_auto_uses_the_kernels_where_it_can():
    assert dispatch.choose_backend("reinmax", torch.zeros(3, device=DEVICE), "auto") == "triton"
    assert dispatch.choose_backend("reinmax", torch.zeros(3).double().to(DEVICE), "auto") == "torch"
    assert dispatch.choose_backend("reinmax", torch.zeros(3), "auto") == "torch"
    with pytest.raises(discretegrad.BackendUnavailable, match="the logits are on 'cpu'"):
        discretegrad.reinmax(torch.zeros(3), backend="triton")


def check_far_end(case, logits, g, dim=-1, count=1000):
    """The last rows of a sample and its gradient, against the torch path, and all of the sample."""
    z = case.sample(
        logits, generator=seeded(1, DEVICE), **({"dim": dim} if case.categorical else {})
    )
    (gradient,) = torch.autograd.grad(z, logits, g)
    rows = 0 if case.categorical and dim in (-1, logits.ndim - 1) else logits.ndim - 1
    tails = [
        x.detach().narrow(rows, x.shape[rows] - count, count) for x in (z, gradient, logits, g)
    ]
    draw = case.drawn(tails[0], dim)
    expected = case.expected(tails[2], tails[3], draw, dim=dim)
    assert_gradient(tails[1], expected, case.scale(tails[3], draw, expected, dim))
    if case.categorical:
        # in a dtype that counts to one, without a copy of the sample
        assert (z.detach().sum(dim) == 1).all()
        assert z.detach().amax() == 1
        assert z.detach().amin() == 0
    return z.detach(), gradient


BIG = {
    "long rows": ((2**15 + 1, 2**16), -1),
    "short rows": ((2**30 + 3, 2), -1),
    "first axis": ((2**16, 2**15 + 1), 0),
}


@pytest.mark.parametrize(("shape", "dim"), BIG.values(), ids=BIG)
def test_more_than_two_to_the_31_elements(shape, dim, memory):
    logits = torch.empty(shape, device=DEVICE, dtype=torch.bfloat16)
    logits.normal_(generator=seeded(0, DEVICE)).requires_grad_()
    assert logits.numel() > 2**31
    g = normal(shape[dim], seed=11, dtype=torch.bfloat16, device=DEVICE)
    g = (g if dim == -1 else g[:, None]).expand(shape)
    check_far_end(REINMAX, logits, g, dim)


def test_more_than_two_to_the_31_bits(memory):
    size = 2**31 + 77
    logits = torch.empty(size, device=DEVICE, dtype=torch.bfloat16)
    logits.normal_(generator=seeded(0, DEVICE)).requires_grad_()
    z, gradient = check_far_end(BITS, logits, normal(1, device=DEVICE).bfloat16().expand(size))
    # both values occur at the far end, which is drawn like the rest
    tail = z[-100_000:].float()
    probs = logits.detach()[-100_000:].double().sigmoid()
    spread = (probs * (1 - probs)).sum().sqrt()
    assert 2 * stats.norm.sf(((tail.sum() - probs.sum()).abs() / spread).item()) > LEVEL
    assert (gradient[-100_000:] != 0).all()


def test_more_than_two_to_the_32_bytes(memory):
    """In rows of a million, with the draw at their ends."""
    n = 2**20
    logits = torch.zeros(1030, n, device=DEVICE)
    logits[:, : n - 1] = -math.inf
    z = discretegrad.reinmax(logits)
    assert (z[:, n - 1] == 1).all()
    assert z.sum() == 1030


def peak_of(step) -> int:
    """Bytes that a step holds at most, besides those that are held already."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(
    ("case", "tau"),
    [
        (REINMAX, 1.0),
        (REINMAX, 0.7),
        (BY_METHOD["categorical", "gumbel_softmax"], 1.0),
        (BY_METHOD["categorical", "gumbel_rao"], 1.0),
        (BITS, 1.0),
    ],
    ids=str,
)
def test_peak_memory(case, tau, memory):
    logits, g = inputs(8192, 4096)
    logits.requires_grad_()
    assert peak_of(lambda: case.sample(logits, tau).backward(g)) <= 2.1 * logits.nbytes


def test_peak_memory_of_the_index_form(memory):
    """One tensor of the size of the logits, their gradient."""
    logits, weight = inputs(8192, 4096)[0].requires_grad_(), normal(4096, 64, device=DEVICE)
    weight.requires_grad_()
    # the first product of a thread allocates the workspace of its library, and backward has its own
    (weight.T @ weight).sum().backward()
    weight.grad = None
    assert peak_of(lambda: select(sample_index(logits)[1], weight).sum().backward()) <= (
        1.1 * logits.nbytes
    )


def kernels_of(step) -> list[str]:
    """What a call runs on the GPU."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    return [event.name for event in seen.events() if event.device_type == on_device]


@pytest.mark.filterwarnings("ignore")  # of the profiler
@each([REINMAX, BY_METHOD["categorical", "gumbel_softmax"], BITS])
@pytest.mark.parametrize("shape", [(3000, 10), (400, 8)], ids=str)
def test_at_most_two_launches_each_way(case, shape):
    logits, g = inputs(*shape)
    logits.requires_grad_()
    case.sample(logits).backward(g)
    samples = []
    forward = kernels_of(lambda: samples.append(case.sample(logits)))
    backward = kernels_of(lambda: torch.autograd.grad(samples[0], logits, g))
    assert 1 <= len(forward) <= 2, forward
    assert 1 <= len(backward) <= 2, backward


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@each([REINMAX, BY_METHOD["categorical", "gumbel_rao"], BITS])
def test_no_call_makes_the_gpu_wait(case):
    logits, g = inputs(37, 100)
    logits.requires_grad_()
    mask, tau, weight = mask_of(37, 100), tau_of(37, 1), normal(100, 8, device=DEVICE)
    weight.requires_grad_()
    # from 3072 rows on torch sorts the indices for the gradient of the weight
    many = inputs(4001, 100)[0].requires_grad_()

    def step():
        case.sample(logits, tau, mask=mask).backward(g)
        if not case.noisy:
            case.sample_at(logits, draw, tau, mask=mask).backward(g)
        if case.categorical:
            _, handle = case.sample_index(many, 0.7)
            select(handle, weight).sum().backward()

    draw = case.drawn(case.sample(logits, tau, mask=mask))
    step()  # first calls may load kernels
    with without_waiting():
        step()


@each([REINMAX, BITS])
def test_another_stream(case):
    logits, g = inputs(37, 100)
    results = []
    default = torch.cuda.current_stream()
    for stream in (default, torch.cuda.Stream()):
        stream.wait_stream(default)
        with torch.cuda.stream(stream):
            leaf = logits.detach().clone()
            if stream != default:
                torch.cuda._sleep(10**7)  # what runs on another stream would overtake
            leaf = (leaf + 1).requires_grad_()
            z = case.sample(leaf, generator=seeded(1, DEVICE))
            results.append((z.detach(), torch.autograd.grad(z, leaf, g)[0]))
        torch.cuda.synchronize()
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


@each([REINMAX, BY_METHOD["categorical", "gumbel_rao"], BITS])
@pytest.mark.parametrize("own", [False, True], ids=["default generator", "own generator"])
def test_replays_draw_anew_and_reproduce(case, own):
    logits, g = inputs(37, 100)
    logits.requires_grad_()
    generator = seeded(0, DEVICE) if own else None

    def step():
        z = case.sample(logits, 0.7, generator=generator)
        return z, torch.autograd.grad(z, logits, g)[0]

    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        z, gradient = step()
    # torch sets the seed of a graph on the stream of its capture, which replays do not wait for
    torch.cuda.synchronize()

    def replays(seed):
        if generator is None:
            torch.cuda.manual_seed(seed)
        else:
            generator.manual_seed(seed)
        results = []
        for _ in range(3):
            graph.replay()
            results.append((z.detach().clone(), gradient.clone()))
        return results

    first, again, other = replays(5), replays(5), replays(6)
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
    samples = [z for z, _ in first + other]
    assert len({tuple(z.flatten().tolist()) for z in samples}) == 6
    if not case.noisy:
        for sample, of_sample in first:
            draw = case.drawn(sample)
            expected = case.expected(logits, g, draw, 0.7)
            assert_gradient(of_sample, expected, case.scale(g, draw, expected))


# torch warns about its own internals while it compiles, differently in every version
COMPILER_WARNINGS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@COMPILER_WARNINGS
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@each([REINMAX, BY_METHOD["categorical", "gumbel_softmax"], BITS])
def test_compiled(case, mode, compiler):
    logits, g = inputs(37, 100)
    logits.requires_grad_()

    def sampler(logits):
        return case.sample(logits, 0.7)

    compiled = torch.compile(sampler, fullgraph=True, mode=mode)

    def step(seed=None):
        if seed is not None:
            torch.cuda.manual_seed(seed)
        torch.compiler.cudagraph_mark_step_begin()
        z = compiled(logits)
        return z.detach().clone(), torch.autograd.grad(z, logits, g)[0].clone()

    for _ in range(4):  # until graphs are captured
        step()
    first, second = step(5), step()
    again = step(5)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], second[0])
    if not case.noisy:
        draw = case.drawn(first[0])
        expected = case.expected(logits, g, draw, 0.7)
        assert_gradient(first[1], expected, case.scale(g, draw, expected))


@COMPILER_WARNINGS
def test_compiled_index_form(compiler):
    logits, weight = inputs(37, 100)[0], normal(100, 8, device=DEVICE)
    logits.requires_grad_()
    weight.requires_grad_()

    @torch.compile(fullgraph=True)
    def step(logits, weight):
        index, handle = sample_index(logits, backend="triton")
        return index, select(handle, weight)

    index, value = step(logits, weight)
    assert torch.equal(value, weight[index])
    g = normal(37, 8, seed=11, device=DEVICE)
    value.backward(g)
    at_one_hot = g.double() @ weight.detach().double().T
    expected = REINMAX.expected(logits, at_one_hot, index)
    # the product that feeds the formula is rounded, perhaps to 10 bits of a factor
    error = (logits.grad - expected).abs().max()
    assert error < 1e-2 * expected.abs().max()
    counts = torch.zeros_like(weight).index_add_(0, index, g)
    torch.testing.assert_close(weight.grad, counts)


class Model(nn.Module):
    """A discrete bottleneck."""

    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Linear(16, 100), nn.Linear(100, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inside(x)
        return self.outside(discretegrad.reinmax(logits, backend="triton")) + self.outside(
            discretegrad.reinmax(logits, family="bernoulli", backend="triton")
        )


def made_model() -> Model:
    torch.manual_seed(0)
    return Model().to(DEVICE)


def gradients_of(model, run=None) -> list[Tensor]:
    torch.cuda.manual_seed(7)
    x = normal(37, 16, device=DEVICE).requires_grad_()
    (model if run is None else run)(x).square().mean().backward()
    return [p.grad for p in model.parameters()]


def test_checkpoint_gives_the_same_gradient():
    plain, kept = made_model(), made_model()
    expected = gradients_of(plain)
    actual = gradients_of(kept, lambda x: checkpoint(kept, x, use_reentrant=False))
    for one, two in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, two)


@pytest.fixture
def process_group(tmp_path):
    if not dist.is_nccl_available():
        pytest.skip("needs NCCL")
    dist.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/group", rank=0, world_size=1,
        device_id=torch.device("cuda", 0),
    )  # fmt: skip
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # of torch's own wrappers
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp", "fully_shard"])
def test_data_parallel(wrapper, process_group):
    expected = gradients_of(made_model())
    model = made_model()
    if wrapper == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    elif wrapper == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=0, use_orig_params=True)
    else:
        fsdp = pytest.importorskip("torch.distributed.fsdp")
        if not hasattr(fsdp, "fully_shard"):
            pytest.skip("needs a torch with fully_shard")
        model = fsdp.fully_shard(model)
    actual = gradients_of(model)
    for one, two in zip(actual, expected, strict=True):
        one = one.full_tensor() if hasattr(one, "full_tensor") else one
        torch.testing.assert_close(one.reshape(two.shape), two)


def draws(logits, rows, seed=1):
    index, _ = sample_index(logits.expand(rows, -1), generator=seeded(seed, DEVICE))
    return index


@pytest.mark.parametrize(
    ("n", "rows"), [(5, 10**7), (100, 10**7), (1000, 10**7), (5000, 10**7), (200_000, 10**6)]
)
def test_frequencies(n, rows):
    """Logits of all sizes in any order, a category of one in a million, and excluded ones."""
    logits = 2 * normal(n, seed=4, device=DEVICE)
    rare, excluded = n // 2, n // 3
    logits[rare] = logits.logsumexp(0) - math.log(1e6)
    logits[excluded] = -math.inf
    counts = torch.zeros(n, dtype=torch.int64, device=DEVICE)
    pieces = 1 if n < 10**5 else 4
    for piece in range(pieces):
        index = draws(logits, rows // pieces, piece)
        counts += torch.bincount(index, minlength=n)
    probs = logits.double().softmax(-1)
    assert counts[excluded] == 0
    assert chi_square(counts, probs) > LEVEL
    assert stats.binomtest(int(counts[rare]), rows, probs[rare].item()).pvalue > LEVEL


def test_frequencies_of_a_few_long_rows():
    """Which are cut into pieces: the same as above, in many calls."""
    n, rows, calls = 5000, 512, 2000
    logits = 2 * normal(n, seed=4, device=DEVICE)
    logits[n // 3] = -math.inf
    counts = torch.zeros(n, dtype=torch.int64, device=DEVICE)
    for seed in range(calls):
        counts += torch.bincount(draws(logits, rows, seed), minlength=n)
    assert counts[n // 3] == 0
    assert chi_square(counts, logits.double().softmax(-1)) > LEVEL


def test_draws_are_independent():
    probs = torch.tensor([0.3, 0.05, 0.25, 0.1, 0.3], device=DEVICE)
    index, other = draws(probs.log(), 10**7), draws(probs.log(), 10**7, 2)
    for shift in (1, 2, 64, 128, 10**6):
        assert independence(index[:-shift], index[shift:], probs) > LEVEL
    assert independence(index, other, probs) > LEVEL


@pytest.mark.parametrize("logit", [-12.0, -1.0, 0.3, 6.0])
def test_frequencies_of_bits(logit):
    rows = 10**7
    logits = torch.full((rows,), logit, device=DEVICE)
    value = BITS.sample(logits, generator=seeded(7, DEVICE)).long()
    prob = torch.tensor(logit).double().sigmoid()
    ones = int(value.sum())
    assert stats.binomtest(ones, rows, prob.item()).pvalue > LEVEL
    if 10**5 < ones < rows - 10**5:
        probs = torch.stack([1 - prob, prob]).to(DEVICE)
        for shift in (1, 2, 4, 1024):
            assert independence(value[:-shift], value[shift:], probs) > LEVEL


def test_mean_gradient_is_that_of_the_torch_path():
    """Two paths with their own draws and noise; a z-test for each category."""
    rows = 2**20
    logits = torch.tensor([0.5, -0.4, 0.1, 1.0], device=DEVICE).expand(rows, 4)
    g = torch.tensor([1.0, -2.0, 0.5, 3.0], device=DEVICE).expand(rows, 4)
    for case in CATEGORICAL:
        means = []
        for backend in ("triton", "torch"):
            leaf = logits.detach().clone().requires_grad_()
            z = case.sample(leaf, 0.7, backend=backend, generator=seeded(8, DEVICE))
            gradient = torch.autograd.grad(z, leaf, g)[0].double()
            means.append((gradient.mean(0), gradient.var(0) / rows))
        (one, spread_one), (two, spread_two) = means
        # straight_through does not depend on the draw: what is left is rounding
        error = ((one - two).abs() - 1e-6).clamp_min(0)
        score = (error / (spread_one + spread_two).sqrt().clamp_min(1e-12)).max()
        assert 2 * stats.norm.sf(score.item()) * 4 > LEVEL, case


SANITIZED = """
import torch, discretegrad as dg
from discretegrad.linear_select import tiles
torch.manual_seed(0)
for shape in ((5, 7), (2, 2100), (2, 9000), (513, 9000), (20001, 7)):
    logits = torch.randn(*shape, device="cuda", requires_grad=True)
    mask, tau = torch.rand(*shape, device="cuda") < 0.9, torch.rand(shape[0], 1, device="cuda") + 1
    mask[:, 0] = True
    g = torch.randn(*shape, device="cuda")
    dg.reinmax(logits, tau, mask=mask, backend="triton").backward(g)
    dg.gumbel_rao(logits, num_draws=5, backend="triton").backward(g)
    dg.reinmax(logits, tau, family="bernoulli", mask=mask, backend="triton").backward(g)
    index, handle = dg.sample_index(logits, "gumbel_softmax", backend="triton")
    dg.select(handle, torch.randn(shape[1], 3, device="cuda")).sum().backward()
# rows in two parts, of 256 and 45 categories
tiles._TILE_BYTES = 0
tensors = [torch.randn(n, 8, device="cuda", requires_grad=True) for n in (5, 301, 301)]
dg.linear_select(*tensors, backend="triton").sum().backward()
torch.cuda.synchronize()
print("finished")
"""


def test_no_access_outside_of_tensors():
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).exists():
        pytest.skip("needs compute-sanitizer")
    environment = os.environ | {
        # each tensor an allocation of its own, so that the tool knows where it ends
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    # what fails without the tool is no fault of the tool
    alone = [sys.executable, "-c", SANITIZED]
    subprocess.run(alone, env=environment, check=True, timeout=400)
    command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", sys.executable]
    run = subprocess.run(
        [*command, "-c", SANITIZED], env=environment, capture_output=True, text=True, timeout=400
    )
    output = run.stdout + run.stderr
    if "finished" not in output and "Invalid __" not in output:
        pytest.skip(f"compute-sanitizer cannot run here: {output[-300:]}")
    assert run.returncode == 0, output[-4000:]
    assert "ERROR SUMMARY: 0 errors" in output


# all of one kind for the compiler: neither 1 nor a multiple of 16
SOAK_ROWS = (3, 5, 7, 13, 30, 63)


class Soaked(NamedTuple):
    """One kind of call of the soak: it is compiled once and called with many numbers of rows."""

    case: Case
    n: int
    dtype: torch.dtype
    tau: str
    masked: bool
    layout: str


def soak_kind(choose: random.Random) -> Soaked:
    case = choose.choice(CASES)
    # a rare draw of a mean baseline makes float16 overflow, as it should
    dtypes = [d for d in DTYPES if case.name != "mean_baseline" or d != torch.float16]
    return Soaked(
        case,
        choose.choice((1, 2, 3, 5, 8, 10, 17, 33, 65, 100, 129)),
        choose.choice((torch.float32, torch.float32, *dtypes)),
        choose.choice(("one", "number", "row", "tensor")),
        choose.random() < 0.5,
        choose.choice(("contiguous", "contiguous", "transposed", "steps", "shifted")),
    )


def soak_view(memory: Tensor, kind: Soaked, rows: int, choose: random.Random) -> Tensor:
    """Rows from a random place, which is aligned unless it is to be shifted."""
    step = 2 if kind.layout == "steps" else 1
    start = 16 * choose.randrange(2**15) + (kind.layout == "shifted")
    piece = memory[start : start + rows * kind.n * step : step]
    return piece.view(kind.n, rows).T if kind.layout == "transposed" else piece.view(rows, kind.n)


def test_soak():
    """Random small calls, each against the torch path."""
    calls = int(os.environ.get("DISCRETEGRAD_SOAK", "4000"))
    first = int(os.environ.get("DISCRETEGRAD_SOAK_SEED", "0")) * calls
    choose = random.Random(first)
    kinds = [soak_kind(choose) for _ in range(max(1, min(calls // 100, 80)))]
    memory = {dtype: 1.5 * normal(2**20, dtype=dtype, device=DEVICE) for dtype in DTYPES}
    faults = []
    for seed in range(first, first + calls):
        kind, rows = choose.choice(kinds), choose.choice(SOAK_ROWS)
        logits, g = (soak_view(memory[kind.dtype], kind, rows, choose) for _ in range(2))
        tau = {"one": 1.0, "number": 0.7}.get(kind.tau)
        if tau is None:
            shape = (rows, 1) if kind.tau == "row" else ()
            tau = temperatures(*shape, seed=seed, device=DEVICE)
        mask = allowed_some(rows, kind.n, seed=seed, device=DEVICE) if kind.masked else None
        try:
            check_case(kind.case, logits, g, tau, mask=mask, seed=seed, given=True)
        except AssertionError as error:
            faults.append(f"{kind}, {rows} rows, seed {seed}: {error}")
    assert not faults, f"{len(faults)} of {calls}: " + "\n".join(faults[:20])
