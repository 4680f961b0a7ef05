"""Every sampler inside what PyTorch does to functions and modules: compile, vmap, export, DDP."""

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from cases import (
    CASES,
    TOLERANCES,
    assert_close,
    assert_discrete,
    each,
    gradient,
    normal,
    seeded,
    weights_like,
)
from discretegrad import exact_expectation, gumbel_softmax, gumbel_softmax_at, reinmax_at

CATEGORICAL = [case for case in CASES if case.categorical]
HARD = [case for case in CASES if case.hard]
RELAXED = [case for case in CASES if not case.hard]
NOISE_FREE = [case for case in CASES if not case.estimator.noise]
# one case for each sampler: those with the options it has by default, or nearly
DEFAULTS = [case for case in CASES if case.options.keys() <= {"num_draws"}]


def own_warnings(test):
    """Let pass what torch's own use of its deprecated parts warns of, here and nowhere else."""
    messages = (".torch.jit.script(_method)?. is deprecated", ".*Function'> should not be instanti")
    for message in messages:
        test = pytest.mark.filterwarnings(f"ignore:{message}:DeprecationWarning")(test)
    return test


MASK = torch.tensor([True, True, False, True, True])


@pytest.fixture(autouse=True)
def global_seed():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def every_warning():
    """torch shows some warnings once per process only; here they count every time."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def with_sample(sampler, weights):
    """The loss ``(sample * weights).sum()`` for transforms; the sample comes along."""

    def loss(*arguments):
        sample = sampler(*arguments)
        return (sample * weights).sum(), sample

    return loss


@each(CASES)
@own_warnings
def test_compiled_sampler_is_the_eager_one(case, compiler):
    def sampler(logits):
        return case.sample(logits, 0.7, mask=MASK)

    compiled = torch.compile(sampler, fullgraph=True, backend="aot_eager")
    logits = normal(4, 5).requires_grad_()
    results = []
    for function in (compiled, sampler):
        # compiled code may draw the noise that only the gradient needs as late as in backward
        torch.manual_seed(1)
        sample = function(logits)
        results.append((sample.detach(), gradient(sample, logits)))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)
    if case.hard:
        assert_discrete(results[0][0], case.family)


@each(CASES)
@own_warnings
def test_compiled_deterministic_half_is_the_eager_one(case, compiler):
    logits = normal(4, 100).requires_grad_()
    tau = normal(4, 1, seed=5).exp()
    draw, noise = case.draw(logits), case.noise(logits)
    compiled = torch.compile(case.sample_at, fullgraph=True, backend="aot_eager")
    sample = compiled(logits, draw, noise, tau)
    expected = case.sample_at(logits, draw, noise, tau)
    assert_close(sample, expected)
    assert_close(gradient(sample, logits), gradient(expected, logits))


@each(DEFAULTS)
@own_warnings
def test_compiled_sampler_takes_batches_of_any_size(case, compiler):
    def sampler(logits):
        return case.sample(logits, 0.7)

    compiled = torch.compile(sampler, fullgraph=True, backend="aot_eager")
    for batch in (4, 6, 9):
        logits = normal(batch, 5).requires_grad_()
        results = []
        for function in (compiled, sampler):
            torch.manual_seed(1)
            sample = function(logits)
            results.append((sample.detach(), gradient(sample, logits)))
        for actual, expected in zip(*results, strict=True):
            assert_close(actual, expected)


@each([case for case in CASES if case.estimator.name == "reinmax"])
@own_warnings
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_compiled_sampler_keeps_a_low_precision(case, dtype, compiler):
    compiled = torch.compile(case.sample, fullgraph=True, backend="aot_eager")
    logits = normal(4, 5, dtype=dtype).requires_grad_()
    torch.manual_seed(1)
    sample = compiled(logits)
    torch.manual_seed(1)
    expected = case.sample(logits)
    assert sample.dtype == dtype
    assert torch.equal(sample, expected)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        gradient(sample, logits), gradient(expected, logits), rtol=eps, atol=0
    )


@each(
    [
        case if case.estimator.name == "reinmax" else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ]
)
@own_warnings
def test_compiled_with_the_default_backend(case, compiler):
    logits = normal(30, 5, dtype=torch.float32).requires_grad_()
    draw, noise = case.draw(logits), case.noise(logits)

    @torch.compile(fullgraph=True)
    def both(logits):
        return case.sample(logits, 0.7, mask=MASK), case.sample_at(logits, draw, noise, 0.7)

    sample, at = both(logits)
    weights = weights_like(logits)
    sample_grad, at_grad = (
        torch.autograd.grad(x, logits, weights, retain_graph=True)[0] for x in (sample, at)
    )
    assert_close(at_grad, gradient(case.sample_at(logits, draw, noise, 0.7), logits, weights))
    assert (sample[:, 2] == 0).all()
    assert (sample_grad[:, 2] == 0).all()
    if case.hard:
        assert_discrete(sample, case.family)
    if not case.estimator.noise:
        own = sample.detach().argmax(-1) if case.categorical else sample.detach()
        expected = case.sample_at(logits, own, None, 0.7, mask=MASK)
        assert_close(sample_grad, gradient(expected, logits, weights))


@each([case for case in CASES if case.estimator.name == "reinmax"])
@own_warnings
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_double_backward_of_compiled_code_is_no_wrong_number(case, backend, compiler):
    compiled = torch.compile(lambda x: case.sample(x, 0.7), fullgraph=True, backend=backend)
    logits = normal(4, 5).requires_grad_()
    sample = compiled(logits)
    first = torch.autograd.grad(
        (sample * weights_like(sample)).pow(3).sum(), logits, create_graph=True
    )[0]
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.sum(), logits)


@each(CASES)
def test_vmap_draws_for_each_example(case, every_warning):
    logits = normal(3, 5).expand(40, 3, 5)
    different = vmap(case.sample, randomness="different")(logits)
    assert len(different.flatten(1).unique(dim=0)) > 10
    same = vmap(case.sample, randomness="same")(logits)
    assert (same == same[0]).all()
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(case.sample)(logits)
    if case.hard:
        assert_discrete(different, case.family)


@each(CASES)
def test_vmap_draws_from_the_generator_it_is_given(case, every_warning):
    logits = normal(40, 3, 5)
    before = torch.get_rng_state()
    samples = [
        vmap(partial(case.sample, generator=seeded(seed)), randomness="different")(logits)
        for seed in (1, 1, 2)
    ]
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])
    assert torch.equal(torch.get_rng_state(), before)


@each(CASES)
def test_vmap_gives_frequencies_of_each_example(case, every_warning):
    logits = torch.tensor([[9.0, -9.0], [-9.0, 9.0]]).repeat(50, 1)
    samples = vmap(case.sample, randomness="different")(logits)
    assert (samples.round() == (logits > 0)).float().mean() > 0.98


@each(NOISE_FREE)
@pytest.mark.parametrize("in_dim", [0, -1])
def test_gradient_of_each_example_under_vmap(case, in_dim, every_warning):
    logits, weights = normal(40, 3, 5), normal(3, 5, seed=7)
    loss = with_sample(lambda x: case.sample(x, 0.7, mask=MASK), weights)
    of_each = vmap(grad(loss, has_aux=True), in_dims=in_dim, randomness="different")
    grads, samples = of_each(logits.movedim(0, in_dim))
    for i in range(40):
        single = logits[i].clone().requires_grad_()
        draw = samples[i].argmax(-1) if case.categorical else samples[i]
        expected = case.sample_at(single, draw, None, 0.7, mask=MASK)
        assert torch.equal(samples[i], expected)
        assert_close(grads[i], gradient(expected, single, weights))


@pytest.mark.parametrize(
    ("case", "batched"),
    [
        (case, batched)
        for case in CASES
        for batched in ("logits", "draw", "noise", "tau", "mask", "all")
        if batched != "noise" or case.estimator.noise
    ],
    ids=str,
)
def test_vmap_over_any_argument(case, batched, every_warning):
    """The deterministic half with one argument batched and the others shared by all examples."""
    size, weights = 4, normal(3, 5, seed=7)
    logits = normal(size, 3, 5)
    mask = MASK.expand(size, 3, 5).clone()
    mask[0] = True
    # draws that every mask allows
    allowed = logits.masked_fill(~MASK, -torch.inf)
    batch = {
        "logits": logits,
        "draw": torch.stack([case.draw(allowed[i], seed=i) for i in range(size)]),
        "tau": normal(size, 3, 1, seed=6).exp(),
        "mask": mask,
    }
    if case.estimator.noise:
        batch["noise"] = torch.stack([case.noise(logits[i], seed=i) for i in range(size)])
    axes = {name: 0 if batched in (name, "all") else None for name in batch}
    shared = {name: x if axes[name] == 0 else x[1] for name, x in batch.items()}

    def at(logits, rest):
        noise = rest.get("noise")
        return case.sample_at(logits, rest["draw"], noise, rest["tau"], mask=rest["mask"])

    def split(x):
        return x["logits"], {name: value for name, value in x.items() if name != "logits"}

    of_each = vmap(grad(with_sample(at, weights), has_aux=True), in_dims=split(axes))
    grads, samples = of_each(*split(shared))
    for i in range(size):
        one = {name: x[i] if axes[name] == 0 else x for name, x in shared.items()}
        one_logits, rest = split(one)
        one_logits = one_logits.clone().requires_grad_()
        expected = at(one_logits, rest)
        assert_close(samples[i], expected)
        assert_close(grads[i], gradient(expected, one_logits, weights))


@each(CASES)
def test_vmap_with_shared_logits_and_other_inputs_batched(case, every_warning):
    logits, weights = normal(3, 5), normal(40, 3, 5, seed=7)

    def loss(logits, weights):
        sample = case.sample(logits, 0.7)
        return (sample * weights).sum(), sample

    of_each = vmap(grad(loss, has_aux=True), in_dims=(None, 0), randomness="different")
    grads, samples = of_each(logits, weights)
    assert len(samples.flatten(1).unique(dim=0)) > 10
    if case.estimator.noise:
        assert (grads != 0).any(0).all()
        return
    for i in range(40):
        single = logits.clone().requires_grad_()
        draw = samples[i].argmax(-1) if case.categorical else samples[i]
        expected = case.sample_at(single, draw, None, 0.7)
        assert_close(grads[i], gradient(expected, single, weights[i]))


@each(CASES)
def test_vmap_over_tau_draws_with_shared_logits(case, every_warning):
    logits = normal(3, 5)
    taus = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    samples = vmap(lambda tau: case.sample(logits, tau), randomness="different")(taus)
    assert samples.shape == (3, 3, 5)
    if case.hard:
        assert_discrete(samples, case.family)


@each(CASES)
def test_vmap_in_vmap(case, every_warning):
    logits, weights = normal(2, 4, 3, 5), normal(3, 5, seed=7)
    draw, noise = case.draw(logits), case.noise(logits)
    if noise is not None and noise.ndim > logits.ndim:
        noise = noise.movedim(0, 2)
    loss = with_sample(lambda *x: case.sample_at(*x, 0.7), weights)
    in_dims = (0, 0, None if noise is None else 0)
    twice = vmap(vmap(grad(loss, has_aux=True), in_dims=in_dims), in_dims=in_dims)
    grads, samples = twice(logits, draw, noise)
    for i in range(2):
        for j in range(4):
            single = logits[i, j].clone().requires_grad_()
            row_noise = None if noise is None else noise[i, j]
            expected = case.sample_at(single, draw[i, j], row_noise, 0.7)
            assert_close(samples[i, j], expected)
            assert_close(grads[i, j], gradient(expected, single, weights))


@each(CASES)
def test_vmap_in_vmap_draws(case, every_warning):
    logits = normal(3, 5).expand(6, 7, 3, 5)
    samples = vmap(vmap(case.sample, randomness="different"), randomness="different")(logits)
    assert len(samples.flatten(0, 1).flatten(1).unique(dim=0)) > 10
    if case.hard:
        assert_discrete(samples, case.family)


@each(CASES)
def test_func_grad_is_the_gradient(case):
    logits = normal(4, 5)
    weights = weights_like(logits)
    torch.manual_seed(1)
    loss = with_sample(lambda x: case.sample(x, 0.7, mask=MASK), weights)
    result, sample = grad(loss, has_aux=True)(logits)
    torch.manual_seed(1)
    logits.requires_grad_()
    expected = case.sample(logits, 0.7, mask=MASK)
    assert torch.equal(sample, expected)
    assert_close(result, gradient(expected, logits, weights))


def jacobian_by_rows(sample, logits):
    rows = [
        torch.autograd.grad(sample, logits, unit.reshape(sample.shape), retain_graph=True)[0]
        for unit in torch.eye(sample.numel(), dtype=sample.dtype)
    ]
    return torch.stack(rows).reshape(*sample.shape, *logits.shape)


@each(CASES)
@pytest.mark.parametrize("shape", [(2, 4), (1, 40)], ids=str)
def test_jacobian_is_that_of_its_rows(case, shape):
    logits = normal(*shape).requires_grad_()
    draw, noise = case.draw(logits), case.noise(logits)
    sample = case.sample_at(logits, draw, noise, 0.7)
    expected = jacobian_by_rows(sample, logits)
    by_func = jacrev(lambda x: case.sample_at(x, draw, noise, 0.7))(logits.detach())
    assert_close(by_func, expected)
    units = torch.eye(sample.numel(), dtype=sample.dtype).reshape(-1, *sample.shape)
    batched = torch.autograd.grad(sample, logits, units, is_grads_batched=True)[0]
    assert_close(batched.reshape(expected.shape), expected)


def test_jacobian_of_reinmax_is_its_formula():
    logits, k = normal(4), torch.tensor(2)
    p = logits.softmax(-1)
    z = torch.eye(4, dtype=torch.float64)[k]
    m = (p + z) / 2

    def j(q):
        return q.diag() - q.outer(q)

    assert_close(jacrev(lambda x: reinmax_at(x, k))(logits), 2 * j(m) - j(p) / 2)


class Network(nn.Module):
    """A sampler between two layers."""

    def __init__(self, case):
        super().__init__()
        self.sampler = partial(case.estimator.functions[case.family], tau=0.7, **case.options)
        self.encoder = nn.Linear(6, 5)
        self.decoder = nn.Linear(5, 1)
        with torch.no_grad():
            for seed, parameter in enumerate(self.parameters()):
                parameter.copy_(normal(*parameter.shape, seed=seed, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.sampler(self.encoder(x))).square()


class Sampler(nn.Module):
    """A sampler and nothing else."""

    def __init__(self, case):
        super().__init__()
        self.case = case

    def forward(self, x: Tensor) -> Tensor:
        return self.case.sample(x, 0.7, mask=MASK)


def gradients(network, x, seed):
    """The gradients of all parameters for the draws of one global seed."""
    torch.manual_seed(seed)
    network.zero_grad()
    network(x).mean().backward()
    return [parameter.grad.clone() for parameter in network.parameters()]


@each(CASES)
def test_checkpoint_draws_the_same_again(case):
    network, x = Network(case), normal(8, 6, dtype=torch.float32)
    expected = gradients(network, x, seed=1)

    def under_checkpoint(x):
        return checkpoint(network.forward, x, use_reentrant=False)

    torch.manual_seed(1)
    network.zero_grad()
    under_checkpoint(x).mean().backward()
    for parameter, wanted in zip(network.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, wanted)


@each(CASES)
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["deepcopy", "pickle"],
)
def test_copies_of_a_module(case, copied):
    network, x = Network(case), normal(8, 6, dtype=torch.float32)
    expected = gradients(network, x, seed=1)
    twin = copied(network)
    network.encoder.weight.data.zero_()
    for actual, wanted in zip(gradients(twin, x, seed=1), expected, strict=True):
        assert torch.equal(actual, wanted)


@each(CASES)
def test_copy_of_a_sample_without_graph(case):
    sample = case.sample(normal(4, 5), generator=seeded(1))
    assert torch.equal(copy.deepcopy(sample), sample)
    assert torch.equal(pickle.loads(pickle.dumps(sample)), sample)


@each(CASES)
@own_warnings
@pytest.mark.parametrize("batch", ["fixed", "dynamic"])
def test_export(case, batch):
    module, x = Sampler(case), normal(8, 5, dtype=torch.float32)
    shapes = None if batch == "fixed" else {"x": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(module, (x,), dynamic_shapes=shapes).module()
    for size in (8,) if batch == "fixed" else (8, 30):
        x = normal(size, 5, dtype=torch.float32)
        torch.manual_seed(1)
        sample = exported(x)
        torch.manual_seed(1)
        assert torch.equal(sample, module(x))
        assert not torch.equal(sample, exported(x))


def train_on_two_processes(rank: int, folder: str) -> None:
    """One process of the test below: a step for every case, and its gradients into a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = []
    for case in CASES:
        network = DistributedDataParallel(Network(case))
        x = normal(8, 6, seed=20 + rank, dtype=torch.float32)
        results.append(gradients(network, x, seed=30 + rank))
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_distributed_data_parallel_averages_the_gradients(tmp_path):
    torch.multiprocessing.spawn(train_on_two_processes, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for case, of_first, of_second in zip(CASES, first, second, strict=True):
        alone = [
            gradients(Network(case), normal(8, 6, seed=20 + rank, dtype=torch.float32), 30 + rank)
            for rank in (0, 1)
        ]
        for synced, other, mine, theirs in zip(of_first, of_second, *alone, strict=True):
            assert torch.equal(synced, other), case
            assert not torch.equal(mine, theirs), case
            torch.testing.assert_close(
                synced, (mine + theirs) / 2, msg=str(case), **TOLERANCES[torch.float32]
            )


REFUSED = "differentiating it again is refused.*exact_expectation"
OBJECTIVES = {"linear": lambda z: z, "nonlinear": lambda z: z**3 + z}


def first_gradient(case, objective):
    logits = normal(4, 5).requires_grad_()
    sample = case.sample(logits, 0.7, generator=seeded(1))
    value = (OBJECTIVES[objective](sample) * weights_like(sample)).sum()
    return torch.autograd.grad(value, logits, create_graph=True)[0], logits


@each(HARD)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_double_backward_is_refused(case, objective):
    first, logits = first_gradient(case, objective)
    for allow_unused in (False, True):
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.autograd.grad(first.sum(), logits, allow_unused=allow_unused, retain_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        first.square().sum().backward()


@each(HARD)
@own_warnings
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_double_backward_is_refused_under_transforms(case, objective, every_warning):
    logits, weights = normal(4, 5), normal(4, 5, seed=7)

    def of(logits):
        return (OBJECTIVES[objective](case.sample(logits, 0.7)) * weights).sum()

    with pytest.raises(RuntimeError, match=REFUSED):
        grad(lambda x: grad(of)(x).sum())(logits)
    with pytest.raises(RuntimeError, match=REFUSED):
        jacrev(grad(of))(logits)
    with pytest.raises(RuntimeError, match=REFUSED):
        vmap(grad(lambda x: grad(of)(x).sum()), randomness="different")(logits.expand(2, 4, 5))
    # forward mode is not implemented, which torch says in words of its own
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(of, (logits,), (logits,))


@each(HARD)
def test_double_backward_to_other_inputs_is_refused(case):
    logits, scale = normal(4, 5).requires_grad_(), normal(5, seed=4).requires_grad_()
    value = (case.sample(logits, 0.7) * scale).sum()
    first = torch.autograd.grad(value, logits, create_graph=True)[0]
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.autograd.grad(first.sum(), scale)


@each(HARD)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_create_graph_without_a_second_derivative_is_fine(case, objective):
    first, logits = first_gradient(case, objective)
    sample = case.sample(logits, 0.7, generator=seeded(1))
    plain = gradient(OBJECTIVES[objective](sample), logits)
    assert_close(first.detach(), plain)
    # the gradient as a number inside a second loss
    (first.detach() * logits).sum().backward()
    assert_close(logits.grad, plain)


def test_second_derivatives_are_those_of_the_exact_expectation():
    """What the error above advises does work."""
    logits = normal(3).requires_grad_()
    weights = weights_like(logits)
    hessian = torch.autograd.functional.hessian(
        lambda x: exact_expectation(x, lambda z: z @ weights), logits
    )
    expected = torch.autograd.functional.hessian(lambda x: x.softmax(-1) @ weights, logits)
    assert_close(hessian, expected)


def frozen_noise(case, relaxed, logits, tau):
    """The relaxed sample as a plain function of logits: noise is what it was, whatever they are."""
    start = logits.detach().clone()
    if case.categorical:
        perturbed = tau * relaxed.detach().log()
        return lambda x: ((perturbed + x - start) / tau).softmax(-1)
    perturbed = tau * relaxed.detach().logit()
    return lambda x: torch.sigmoid((perturbed + x - start) / tau)


@each(RELAXED)
@pytest.mark.parametrize("tau", [0.6, 1.0])
def test_relaxed_sample_has_first_and_second_derivatives(case, tau):
    logits = normal(2, 3).requires_grad_()
    draw, noise = case.draw(logits), case.noise(logits)
    relaxed = case.sample_at(logits, draw, noise, tau)
    plain = frozen_noise(case, relaxed, logits, tau)
    assert torch.autograd.gradcheck(plain, logits)
    assert torch.autograd.gradgradcheck(plain, logits)

    derivatives = []
    for sample in (relaxed, plain(logits)):
        value = (sample**3 * weights_like(sample)).sum()
        first = torch.autograd.grad(value, logits, create_graph=True)[0]
        second = torch.autograd.grad((first**2).sum(), logits)[0]
        derivatives.append((first.detach(), second))
    for actual, expected in zip(*derivatives, strict=True):
        assert (expected != 0).all()
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@each(RELAXED)
@pytest.mark.parametrize("shape", [(), (3, 1)], ids=str)
def test_relaxed_sample_has_derivatives_for_tau(case, shape):
    logits = normal(3, 4)
    draw, noise = case.draw(logits), case.noise(logits)
    tau = torch.full(shape, 0.7, dtype=torch.float64, requires_grad=True)

    def of(tau):
        return case.sample_at(logits, draw, noise, tau)

    assert torch.autograd.gradcheck(of, tau)
    assert torch.autograd.gradgradcheck(of, tau)


@each(RELAXED)
@pytest.mark.parametrize("excluded", ["none", "mask", "infinite"])
def test_learnable_tau_gets_a_finite_gradient(case, excluded):
    logits = normal(6, 5)
    mask = MASK if excluded == "mask" else None
    if excluded == "infinite":
        logits = logits.masked_fill(~MASK, -torch.inf)
    logits.requires_grad_()
    tau = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    sample = case.sample(logits, tau, mask=mask, generator=seeded(1))
    (sample.square() * weights_like(sample)).sum().backward()
    assert tau.grad.isfinite()
    assert tau.grad != 0
    assert logits.grad.isfinite().all()


def test_learnable_tau_learns():
    logits = normal(200, 5)
    tau = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    optimizer = torch.optim.SGD([tau], lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        sample = gumbel_softmax(logits, tau, hard=False, generator=seeded(step))
        # a sharp sample has squares that sum to one
        (1 - sample.square().sum(-1)).mean().backward()
        optimizer.step()
    assert tau < 1.9


def test_relaxed_sample_at_zero_noise_has_known_values():
    """Noise of ones moves each of three equal logits by the same amount."""
    logits, noise = torch.zeros(3), torch.ones(3)
    relaxed = gumbel_softmax_at(logits, torch.tensor(1), noise, hard=False)
    torch.testing.assert_close(relaxed, torch.tensor([1 / 6, 2 / 3, 1 / 6]))


@each(CASES)
def test_autocast_around_a_network(case):
    network, x = Network(case), normal(8, 6, dtype=torch.float32)
    seen = []
    network.decoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = network(x).mean()
        logits = network.encoder(x)
    value.backward()
    assert logits.dtype == torch.bfloat16
    assert seen[0].dtype == torch.bfloat16
    if case.hard:
        assert_discrete(seen[0], case.family)
    for parameter in network.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()
    torch.manual_seed(1)
    assert torch.equal(case.sample(logits.detach(), 0.7), seen[0])
