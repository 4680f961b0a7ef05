"""The kernels for subsets on a GPU: real sizes, compiled programs, graphs, and that nothing waits.

What they compute is compared in test_subset_kernels.py too, on small sizes, in every branch.
"""

import math

import pytest
import torch

import discretegrad
from discretegrad import Subset
from discretegrad.families import counting
from discretegrad.kernels.dispatch import fastest
from discretegrad.testing import assert_discrete
from kernel_cases import warm_up, without_waiting
from subset_cases import OPTIONS, assert_near, check_steps, draws_of, gradients_of

pytestmark = pytest.mark.gpu

# rows, items, k: those of the benchmark, both ends, and more items left out than chosen
SIZES = [
    *[(400, 32, 4), (1024, 256, 8), (256, 1024, 64), (16, 5000, 100)],
    *[(3, 1, 1), (5, 2, 1), (7, 33, 33), (64, 130, 128), (9, 1000, 500), (2, 40_001, 30)],
]
each_size = pytest.mark.parametrize(("rows", "n", "k"), SIZES)
each_sampler = pytest.mark.parametrize("name", OPTIONS)


def numbers(*shape, seed=0, spread=2.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return spread * torch.randn(shape, device="cuda", generator=generator)


@each_size
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_steps_are_those_of_torch(rows, n, k, spread):
    rows = min(rows, 16)
    logits = numbers(rows, n, spread=spread)
    if n > 2 * k:
        logits[:, ::7] = -math.inf
    check_steps(logits, k, numbers(rows, n, seed=1) + 100)


@each_size
@pytest.mark.parametrize("count", [1, 5])
def test_draws_are_those_of_torch(rows, n, k, count):
    """But for thresholds that rounding decides, once in about a million."""
    ours, theirs = draws_of(numbers(rows, n), k, count)
    differ = (ours != theirs).any(-1).double().mean()
    assert differ <= 1e-5 * n + 1e-2


@each_size
@each_sampler
def test_samplers(name, rows, n, k):
    logits, g = numbers(rows, n), numbers(rows, n, seed=1)
    given = Subset(k).likeliest(logits + numbers(rows, n, seed=2))
    for tau in (1.0, 0.7):
        ours, theirs = gradients_of(name, logits, g, Subset(k), tau, given=given)
        assert_near(ours[1], theirs[1].cpu().double(), 1e-5)
        again, _ = gradients_of(name, logits, g, Subset(k), tau, given=given)
        assert torch.equal(ours[1], again[1])


def test_more_rows_than_programs(monkeypatch):
    from discretegrad.kernels import subset

    logits, g = numbers(3000, 50), numbers(3000, 50, seed=1)
    results = []
    for scratch in (2**27, 2**16):
        monkeypatch.setattr(subset, "SCRATCH", scratch)
        subset._moments_plan.cache_clear()
        subset._draw_plan.cache_clear()
        ours, _ = gradients_of("reinmax", logits, g, Subset(7))
        results.append(ours)
    assert all(map(torch.equal, *results))
    subset._moments_plan.cache_clear()
    subset._draw_plan.cache_clear()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@each_sampler
def test_auto_takes_the_kernels_and_waits_for_nothing(name):
    logits, g = numbers(64, 100).requires_grad_(), numbers(64, 100, seed=1)
    function = getattr(discretegrad, name)

    def step(backend):
        z = function(logits, 0.8, family=Subset(5), backend=backend, **OPTIONS[name])
        return z, torch.autograd.grad(z, logits, g)[0]

    step("auto")  # loads kernels
    with without_waiting():
        torch.cuda.manual_seed(1)
        ours = step("auto")
    torch.cuda.manual_seed(1)
    theirs = step("triton")
    assert all(map(torch.equal, ours, theirs))
    assert_discrete(ours[0].detach(), Subset(5))


def test_score_functions_take_the_kernels():
    logits = numbers(16, 300).requires_grad_()
    assert type(fastest("leave_one_out", logits, Subset(9))) is not Subset
    weights = numbers(300, seed=1)
    given = counting.draw(
        counting.balanced(logits.detach(), 9),
        9,
        torch.rand(4, 16, 299, dtype=torch.float64, device="cuda"),
    ).float()
    gradients = []
    for x in (logits, logits.detach().double().requires_grad_()):
        f = lambda z: (z @ weights.to(z)).square()  # noqa: E731
        loss = discretegrad.leave_one_out(x, f, family=Subset(9), given=given.to(x.dtype))
        gradients.append(torch.autograd.grad(loss.sum(), x)[0])
    assert_near(gradients[0], gradients[1].cpu(), 1e-4)


# torch warns about its own internals while it compiles, differently in every version
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@each_sampler
def test_compiled(name, compiler):
    function = getattr(discretegrad, name)

    def sampler(x):
        return function(x, 0.7, family=Subset(5), **OPTIONS[name])

    compiled = torch.compile(sampler, fullgraph=True)
    logits, g = numbers(40, 60).requires_grad_(), numbers(40, 60, seed=1)
    z = compiled(logits)
    assert_discrete(z.detach(), Subset(5))
    given = function(logits, 0.7, family=Subset(5), given=z.detach(), **OPTIONS[name])
    ours, theirs = (torch.autograd.grad(x, logits, g)[0] for x in (z, given))
    assert_near(ours, theirs.cpu().double(), 1e-5)


@each_sampler
def test_cuda_graph_replays_draw_anew(name):
    logits = torch.zeros(64, 100, device="cuda", requires_grad=True)
    g = numbers(64, 100, seed=1)

    def step():
        z = getattr(discretegrad, name)(logits, family=Subset(7), **OPTIONS[name])
        return z, torch.autograd.grad(z, logits, g)[0]

    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z, gradient = step()
    samples = []
    for _ in range(3):
        graph.replay()
        samples.append(z.detach().clone())
        assert_discrete(samples[-1], Subset(7))
        assert gradient.isfinite().all()
        # z keeps the graph of autograd, in which the logits belong to the stream of the capture
        leaf = logits.detach().clone().requires_grad_()
        again = getattr(discretegrad, name)(
            leaf, family=Subset(7), given=samples[-1], **OPTIONS[name]
        )
        assert torch.equal(gradient, torch.autograd.grad(again, leaf, g)[0])
    assert not torch.equal(samples[0], samples[1])


@pytest.mark.parametrize("row", [math.nan, -math.inf, math.inf])
def test_bad_rows_stay_alone(row):
    logits, g = numbers(3, 300), numbers(3, 300, seed=1)
    bad = logits.clone()
    bad[1] = row
    (ours, _), (clean, _) = (list(gradients_of("reinmax", x, g, Subset(4))) for x in (bad, logits))
    assert_discrete(ours[0], Subset(4))
    for x, y in zip(ours, clean, strict=True):
        assert torch.equal(x[[0, 2]], y[[0, 2]])
    assert ours[1][1].isnan().all()
