"""What only a CUDA device can show: no synchronisation, CUDA graphs, agreement with the CPU."""

import math

import pytest
import torch

import discretegrad
from cases import DEFAULTS, SUBSETS, each, each_family
from discretegrad._seeded import seeded_exponential, seeded_logistic
from discretegrad.testing import Case, assert_discrete
from kernel_cases import warm_up, without_waiting

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda_generator():
    return torch.Generator("cuda").manual_seed(0)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@each([*DEFAULTS, *SUBSETS])
@pytest.mark.parametrize("tau", [1.0, 1.3])
def test_no_call_makes_the_gpu_wait(case, tau):
    logits = torch.randn(64, 1000, device="cuda", requires_grad=True)
    g = torch.randn_like(logits)
    mask = torch.rand(64, 1000, device="cuda") < 0.9
    tau_rows = torch.full((64, 1), tau, device="cuda")
    case.sample(logits).backward(g)  # first calls may load kernels
    with without_waiting():
        for temperature in (tau, tau_rows):
            case.sample(logits, temperature, mask=mask).backward(g)


@each([*DEFAULTS, *SUBSETS])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_contract_on_the_gpu(case, dtype, cuda_generator):
    top = torch.finfo(dtype).max
    logits = torch.randn(50, 65, device="cuda", generator=cuda_generator).to(dtype)
    logits[0, 0], logits[1, :], logits[2, 3] = top, -top, -math.inf
    logits.requires_grad_()
    state = torch.cuda.get_rng_state()
    z = case.sample(logits, generator=cuda_generator)
    z.backward(torch.randn(50, 65, device="cuda", generator=cuda_generator).to(dtype))
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert z.dtype == dtype
    assert_discrete(z, case.family)
    assert logits.grad.isfinite().all()
    assert z[2, 3] == 0
    assert logits.grad[2, 3] == 0


@each(DEFAULTS)
@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_gradient_equals_the_cpu_on_the_same_draw(case, tau, generator):
    logits = torch.randn(20, 300, generator=generator, dtype=torch.float64)
    g = torch.randn(20, 300, generator=generator, dtype=torch.float64)
    arguments, gradients = case.draw(logits), []
    for device in ("cpu", "cuda"):
        leaf = logits.to(device, copy=True).requires_grad_()
        z = case.sample(leaf, tau, **{name: x.to(device) for name, x in arguments.items()})
        z.backward(g.to(device))
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_noise_and_seeds_need_a_draw_on_the_gpu_too():
    logits, seed = torch.zeros(2, 3, device="cuda"), torch.zeros(2, device="cuda").long()
    with pytest.raises(ValueError, match="expected given= beside noise= or seed="):
        discretegrad.gumbel_rao(logits, seed=seed)
    with pytest.warns(UserWarning, match="tau=0.1 is unusual") as caught:
        discretegrad.reinmax(logits, 0.1)
    assert caught[0].filename == __file__


def test_seeded_noise_is_the_same_on_both_devices(generator):
    seed = torch.randint(2**62, (30, 1), generator=generator)
    like = torch.zeros(30, 11, dtype=torch.float64)
    for make in (seeded_exponential, seeded_logistic):
        seeds = seed if make is seeded_exponential else seed.expand(30, 11)
        on_cpu = make(seeds, 3, 50, like)
        on_gpu = make(seeds.cuda(), 3, 50, like.cuda()).cpu()
        torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [8, 1000])
def test_unchecked_nan_does_not_break_the_device(n):
    logits = torch.full((4, n), math.nan, device="cuda")
    index = discretegrad.reinmax(logits).argmax(-1)
    torch.cuda.synchronize()
    assert ((index >= 0) & (index < n)).all()
    for family in (discretegrad.Subset(2), discretegrad.Subset(3)):
        for row in (math.nan, -math.inf):
            bad = torch.full((4, n - 2), row, device="cuda")
            sample = discretegrad.reinmax(bad, family=family)
            torch.cuda.synchronize()
            assert_discrete(sample, family)


def test_checks_can_be_switched_on():
    before = discretegrad.set_checks("always")
    try:
        with pytest.raises(ValueError, match="NaN in row 1"):
            discretegrad.reinmax(torch.tensor([[0.0, 0.0], [math.nan, 0.0]], device="cuda"))
    finally:
        discretegrad.set_checks(before)


def test_generator_of_another_device():
    with pytest.raises(ValueError, match=r"generator on the logits' device cuda:0, got one on cpu"):
        discretegrad.reinmax(torch.zeros(3, device="cuda"), generator=torch.Generator())
    with pytest.raises(ValueError, match=r"device cpu, got one on cuda"):
        discretegrad.reinmax(torch.zeros(3), generator=torch.Generator("cuda"))


@each(DEFAULTS)
def test_cuda_graph_replays_draw_anew(case):
    logits = torch.zeros(64, 100, device="cuda", requires_grad=True)
    g = torch.randn(64, 100, device="cuda")

    def step():
        z = case.sample(logits)
        return z, torch.autograd.grad(z, logits, g)[0]

    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z, gradient = step()
    samples = []
    for _ in range(3):
        graph.replay()
        samples.append(z.clone())
        assert gradient.isfinite().all()
    assert not torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[1], samples[2])


# torch warns about its own internals while it compiles, differently in every version
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["reinmax", "gumbel_rao"])
@each_family
def test_compiled_equals_eager(name, family, dtype, generator):
    options = {"num_draws": 4} if name == "gumbel_rao" else {}
    case = Case(discretegrad.get(name), family, options)
    logits = torch.randn(32, 50, generator=generator).to(dtype)
    arguments = {key: x.cuda() for key, x in case.draw(logits).items()}
    g = torch.randn(32, 50, generator=generator).to("cuda", dtype)
    logits = logits.cuda().requires_grad_()
    eager = case.sample(logits, 0.8, **arguments)
    compiled = torch.compile(case.sample, fullgraph=True)(logits, 0.8, **arguments)
    assert compiled.dtype == dtype
    assert torch.equal(eager, compiled)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        torch.autograd.grad(compiled, logits, g)[0],
        torch.autograd.grad(eager, logits, g)[0],
        rtol=16 * eps,
        atol=16 * eps,
    )
    z = torch.compile(case.sample, fullgraph=True)(logits)
    assert z.dtype == dtype
    assert_discrete(z, family)


@pytest.mark.parametrize(("rows", "n", "k"), [(3, 5, 2), (40, 300, 7), (4, 3000, 200), (2, 50, 48)])
def test_subsets_on_the_gpu_are_those_of_the_cpu(rows, n, k, cuda_generator):
    family, logits = discretegrad.Subset(k), 4 * torch.randn(rows, n)
    g, draws = torch.randn(rows, n), 200
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        ours, theirs = (family.point(logits.to(device, dtype)) for device in ("cuda", "cpu"))
        mean = family.mean(theirs)
        torch.testing.assert_close(family.mean(ours).cpu(), mean, rtol=tolerance, atol=tolerance)
        products = [family.covariance(x, g.to(x)).cpu() for x in (ours, theirs)]
        torch.testing.assert_close(*products, rtol=tolerance, atol=tolerance)
        sample = discretegrad.reinmax(
            logits.to("cuda", dtype).expand(draws, rows, n), family=family, generator=cuda_generator
        )
        assert_discrete(sample, family)
        # six standard deviations of a fair bit, for some thousand entries
        error = (sample.double().mean(0).cpu() - mean).abs().max()
        assert error < 6 * 0.5 / math.sqrt(draws)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("training", [True, False])
def test_router_on_the_gpu(training, cuda_generator):
    """Nothing waits, and for the same draws it is the router of the CPU."""
    logits = torch.randn(64, 40, device="cuda", requires_grad=True)
    options = {"training": training, "jitter_eps": math.inf}
    discretegrad.sparse_mixer(logits, 2, **options)[0].sum().backward()  # loads kernels
    logits.grad = None
    draws = {"noise": torch.rand(64, 2, device="cuda")} if training else {}
    with without_waiting():
        weights, experts = discretegrad.sparse_mixer(
            logits, 2, generator=cuda_generator, **options, **draws
        )
        weights.sum().backward()
    if training:
        draws = {"given": experts.cpu(), "noise": draws["noise"].cpu()}
    on_cpu = logits.detach().cpu().requires_grad_()
    expected, same = discretegrad.sparse_mixer(on_cpu, 2, **options, **draws)
    expected.sum().backward()
    assert same.equal(experts.cpu())
    torch.testing.assert_close(weights.cpu(), expected)
    torch.testing.assert_close(logits.grad.cpu(), on_cpu.grad)
