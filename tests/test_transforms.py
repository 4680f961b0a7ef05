"""Every sampler inside what PyTorch does to functions and modules: compile, vmap, export, DDP."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from cases import CASES, DEFAULTS, HARD, NOISE_FREE, RELAXED, SUBSETS, each
from discretegrad.testing import (
    assert_close,
    assert_discrete,
    gradient,
    normal,
    seeded,
    weights_like,
)
from ranks import on_two_ranks

REINMAX = [case for case in CASES if case.row.name == "reinmax"]
MASK = torch.tensor([True, True, False, True, True])


pytestmark = pytest.mark.usefixtures("global_seed")


@pytest.fixture
def every_warning():
    """torch shows some warnings once per process only; here they count every time."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def drawn(case, sample):
    """The draw behind a sample, in the form that the library takes."""
    return sample.detach().argmax(-1) if case.categorical else sample.detach()


# --- compile and export


def assert_compiled_is_eager(sampler, logits):
    compiled = torch.compile(sampler, fullgraph=True, backend="aot_eager")
    for x in logits:
        results = []
        for function in (compiled, sampler):
            # compiled code may draw the noise that only the gradient needs as late as in backward
            torch.manual_seed(1)
            sample = function(x)
            results.append((sample.detach(), gradient(sample, x)))
        (sample, grad), (expected, expected_grad) = results
        assert sample.dtype == x.dtype
        if x.itemsize > 2:
            assert_close(sample, expected)
            assert_close(grad, expected_grad)
        else:
            assert torch.equal(sample, expected)
            eps = torch.finfo(x.dtype).eps
            torch.testing.assert_close(grad, expected_grad, rtol=eps, atol=0)


@each(CASES)
def test_compiled_sampler_is_the_eager_one(case, compiler):
    # batches of any size
    sizes = (4, 6, 9) if case in DEFAULTS else (4,)
    inputs = [normal(size, 5) for size in sizes]
    if case in REINMAX:
        inputs += [inputs[0].to(dtype) for dtype in (torch.float16, torch.bfloat16)]
    inputs = [x.requires_grad_() for x in inputs]
    assert_compiled_is_eager(lambda x: case.sample(x, 0.7, mask=MASK), inputs)
    # at a given draw
    logits, tau = normal(4, 100).requires_grad_(), normal(4, 1, seed=5).exp()
    arguments = case.draw(logits)
    assert_compiled_is_eager(lambda x: case.sample(x, tau, **arguments), [logits])


# all but the first take too long for every run of the tests
@each([CASES[0], *(pytest.param(case, marks=pytest.mark.slow, id=str(case)) for case in CASES[1:])])
def test_compiled_with_the_default_backend(case, compiler):
    logits = normal(30, 5, dtype=torch.float32).requires_grad_()
    arguments, weights = case.draw(logits), weights_like(logits)

    @torch.compile(fullgraph=True)
    def both(logits):
        return case.sample(logits, 0.7, mask=MASK), case.sample(logits, 0.7, **arguments)

    sample, at = both(logits)
    sample_grad, at_grad = (
        torch.autograd.grad(x, logits, weights, retain_graph=True)[0] for x in (sample, at)
    )
    assert_close(at_grad, gradient(case.sample(logits, 0.7, **arguments), logits, weights))
    assert (sample[:, 2] == 0).all()
    assert (sample_grad[:, 2] == 0).all()
    if case.hard:
        assert_discrete(sample, case.family)
    if case in NOISE_FREE:
        expected = case.sample(logits, 0.7, given=drawn(case, sample), mask=MASK)
        assert_close(sample_grad, gradient(expected, logits, weights))


class Sampler(nn.Module):
    """A sampler and nothing else."""

    def __init__(self, case):
        super().__init__()
        self.case = case

    def forward(self, x: Tensor) -> Tensor:
        return self.case.sample(x, 0.7, mask=MASK)


@each(CASES)
def test_export(case, own_warnings):
    module, x = Sampler(case), normal(8, 5, dtype=torch.float32)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(module, (x,), dynamic_shapes=shapes).module()
    for size in (8, 30):
        x = normal(size, 5, dtype=torch.float32)
        torch.manual_seed(1)
        sample = exported(x)
        torch.manual_seed(1)
        assert torch.equal(sample, module(x))
        assert not torch.equal(sample, exported(x))


# --- torch.func


@each([case for case in DEFAULTS if case.row.name in ("reinmax", "gumbel_rao", "blend")])
def test_compiled_without_a_gradient(case, compiler):
    """However many constants the gradient would need."""
    sampler = partial(case.sample, tau=1.3)
    compiled = torch.compile(sampler, fullgraph=True, backend="aot_eager")
    logits = normal(4, 5, dtype=torch.float32)
    torch.manual_seed(1)
    expected = sampler(logits)
    for leaf in (logits, logits.clone().requires_grad_()):
        torch.manual_seed(1)
        with torch.set_grad_enabled(not leaf.requires_grad):
            assert compiled(leaf).equal(expected)


def with_sample(sampler, weights):
    """The loss ``(sample * weights).sum()`` for transforms; the sample comes along."""

    def loss(*arguments):
        sample = sampler(*arguments)
        return (sample * weights).sum(), sample

    return loss


@each(CASES)
def test_vmap_draws_for_each_example(case, every_warning):
    logits = normal(3, 5).expand(6, 7, 3, 5)
    each_draws = partial(vmap, randomness="different")
    one_axis = each_draws(case.sample)(logits.flatten(0, 1))
    two_axes = each_draws(each_draws(case.sample))(logits).flatten(0, 1)
    for samples in (one_axis, two_axes):
        assert len(samples.flatten(1).unique(dim=0)) > 10
        if case.hard:
            assert_discrete(samples, case.family)
    same = vmap(case.sample, randomness="same")(logits)
    assert (same == same[0]).all()
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(case.sample)(logits)
    # each example has frequencies of its own
    certain = torch.tensor([[9.0, -9.0], [-9.0, 9.0]]).repeat(50, 1)
    samples = each_draws(case.sample)(certain)
    assert (samples.round() == (certain > 0)).float().mean() > 0.98
    # logits that are shared
    taus = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    samples = each_draws(lambda tau: case.sample(logits[0, 0], tau))(taus)
    assert samples.shape == (3, 3, 5)
    before = torch.get_rng_state()
    first, again, other = (
        each_draws(partial(case.sample, generator=seeded(seed)))(logits) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@each(CASES)
def test_gradient_of_each_example_under_vmap(case, every_warning):
    """With the logits of each example, along the first or last axis, and with shared logits."""
    logits, weights = normal(20, 3, 5), normal(20, 3, 5, seed=7)

    def loss(logits, weights):
        return with_sample(partial(case.sample, tau=0.7, mask=MASK), weights)(logits)

    for axis in (0, -1, None):
        of_each = vmap(grad(loss, has_aux=True), in_dims=(axis, 0), randomness="different")
        shared = logits[0] if axis is None else logits.movedim(0, axis)
        grads, samples = of_each(shared, weights)
        if case.row.takes:
            assert (grads[..., MASK] != 0).any(0).all()
            continue
        for i in range(20):
            single = logits[0 if axis is None else i].clone().requires_grad_()
            expected = case.sample(single, 0.7, given=drawn(case, samples[i]), mask=MASK)
            assert torch.equal(samples[i], expected)
            assert_close(grads[i], gradient(expected, single, weights[i]))


@pytest.mark.parametrize(
    ("case", "batched"),
    [
        (case, batched)
        for case in CASES
        for batched in ("logits", "given", "noise", "tau", "mask", "all")
        if batched != "noise" or case.row.takes
    ],
    ids=str,
)
def test_vmap_over_any_argument(case, batched, every_warning):
    """The deterministic half with one argument batched and the others shared by all examples."""
    size, weights = 4, normal(3, 5, seed=7)
    logits, mask = normal(size, 3, 5), MASK.expand(size, 3, 5).clone()
    mask[0] = True
    # draws that every mask allows
    allowed = logits.masked_fill(~MASK, -torch.inf)
    draws = [case.draw(allowed[i], seed=i) for i in range(size)]
    batch = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    if "noise" in batch:
        batch["noise"] *= torch.linspace(0.5, 2, size).reshape(-1, *[1] * (batch["noise"].ndim - 1))
    batch |= {"logits": logits, "tau": normal(size, 3, 1, seed=6).exp(), "mask": mask}
    axes = {name: 0 if batched in (name, "all") else None for name in batch}
    shared = {name: x if axes[name] == 0 else x[1] for name, x in batch.items()}

    def at(logits, rest):
        return case.sample(logits, **rest)

    def split(x):
        return x["logits"], {name: value for name, value in x.items() if name != "logits"}

    of_each = vmap(grad(with_sample(at, weights), has_aux=True), in_dims=split(axes))
    grads, samples = of_each(*split(shared))
    for i in range(size):
        single, rest = split({name: x[i] if axes[name] == 0 else x for name, x in shared.items()})
        single = single.clone().requires_grad_()
        expected = at(single, rest)
        assert_close(samples[i], expected)
        assert_close(grads[i], gradient(expected, single, weights))
    if batched == "all":
        # vmap in vmap, of the batch and of its reverse
        twice = {name: torch.stack([x, x.flip(0)]) for name, x in shared.items()}
        for nested, plain in zip(vmap(of_each)(*split(twice)), (grads, samples), strict=True):
            assert_close(nested, torch.stack([plain, plain.flip(0)]))


@each([*CASES, *SUBSETS])
@pytest.mark.parametrize("shape", [(2, 4), (1, 40)], ids=str)
def test_jacobian_is_that_of_its_rows(case, shape):
    logits = normal(*shape).requires_grad_()
    arguments = case.draw(logits)
    sample = case.sample(logits, 0.7, **arguments)
    units = torch.eye(sample.numel(), dtype=sample.dtype).reshape(-1, *shape)
    expected = torch.stack(
        [torch.autograd.grad(sample, logits, unit, retain_graph=True)[0] for unit in units]
    )
    by_func = jacrev(lambda x: case.sample(x, 0.7, **arguments))(logits.detach())
    assert_close(by_func.reshape(expected.shape), expected)
    batched = torch.autograd.grad(sample, logits, units, is_grads_batched=True)[0]
    assert_close(batched, expected)


# --- modules


class Network(nn.Module):
    """A sampler between two layers."""

    def __init__(self, case):
        super().__init__()
        self.sampler = partial(case.row.function, tau=0.7, family=case.family, **case.options)
        self.encoder = nn.Linear(6, 5)
        self.decoder = nn.Linear(5, 1)
        with torch.no_grad():
            for seed, parameter in enumerate(self.parameters()):
                parameter.copy_(normal(*parameter.shape, seed=seed, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.sampler(self.encoder(x))).square()


def gradients(network, x, seed, forward=None):
    """The gradients of all parameters for the draws of one global seed."""
    torch.manual_seed(seed)
    network.zero_grad()
    (forward or network)(x).mean().backward()
    return [parameter.grad.clone() for parameter in network.parameters()]


@each(CASES)
def test_checkpoints_and_copies_draw_the_same_again(case):
    network, x = Network(case), normal(8, 6, dtype=torch.float32)
    expected = gradients(network, x, seed=1)
    again = partial(checkpoint, network.forward, use_reentrant=False)
    assert all(map(torch.equal, gradients(network, x, 1, again), expected))
    twins = copy.deepcopy(network), pickle.loads(pickle.dumps(network))
    network.encoder.weight.data.zero_()
    for twin in twins:
        assert all(map(torch.equal, gradients(twin, x, seed=1), expected))
    sample = case.sample(normal(4, 5), generator=seeded(1))
    assert torch.equal(copy.deepcopy(sample), sample)
    assert torch.equal(pickle.loads(pickle.dumps(sample)), sample)


def train_a_rank(rank: int) -> list[list[Tensor]]:
    """One process of the test below: the gradients of a step for every sampler."""
    x = normal(8, 6, seed=20 + rank, dtype=torch.float32)
    networks = (DistributedDataParallel(Network(case)) for case in DEFAULTS)
    return [gradients(network, x, seed=30 + rank) for network in networks]


def test_distributed_data_parallel_averages_the_gradients(tmp_path):
    first, second = on_two_ranks(train_a_rank, tmp_path)
    for case, of_first, of_second in zip(DEFAULTS, first, second, strict=True):
        alone = [
            gradients(Network(case), normal(8, 6, seed=20 + rank, dtype=torch.float32), 30 + rank)
            for rank in (0, 1)
        ]
        for synced, other, mine, theirs in zip(of_first, of_second, *alone, strict=True):
            assert torch.equal(synced, other), case
            assert not torch.equal(mine, theirs), case
            assert_close(synced, (mine + theirs) / 2)


# --- second derivatives

REFUSED = "differentiating it again is refused.*exact_expectation"
OBJECTIVES = {"linear": lambda z: z, "nonlinear": lambda z: z**3 + z}


@each(HARD)
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_double_backward_is_refused(case, objective):
    logits, scale = normal(4, 5).requires_grad_(), normal(4, 5, seed=4).requires_grad_()

    def value():
        return (objective(case.sample(logits, 0.7, generator=seeded(1))) * scale).sum()

    (first,) = torch.autograd.grad(value(), logits, create_graph=True)
    for allow_unused in (False, True):
        for x in (logits, scale):
            with pytest.raises(RuntimeError, match=REFUSED):
                torch.autograd.grad(first.sum(), x, allow_unused=allow_unused, retain_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        first.square().sum().backward(retain_graph=True)
    # the gradient as a number inside a second loss
    plain = torch.autograd.grad(value(), logits)[0]
    logits.grad = None
    (first.detach() * logits).sum().backward()
    assert_close(logits.grad, plain)


@each(HARD)
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_double_backward_is_refused_under_transforms(case, objective, every_warning, own_warnings):
    logits, weights = normal(4, 5), normal(4, 5, seed=7)

    def of(logits):
        return (objective(case.sample(logits, 0.7)) * weights).sum()

    twice = grad(lambda x: grad(of)(x).sum())
    for transformed in (twice, jacrev(grad(of)), vmap(twice, randomness="different")):
        with pytest.raises(RuntimeError, match=REFUSED):
            transformed(logits)
    # forward mode is not implemented, which torch says in words of its own
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(of, (logits,), (logits,))


@each(REINMAX)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_double_backward_of_compiled_code_is_no_wrong_number(case, backend, compiler):
    compiled = torch.compile(lambda x: case.sample(x, 0.7), fullgraph=True, backend=backend)
    logits = normal(4, 5).requires_grad_()
    sample = compiled(logits)
    value = (sample * weights_like(sample)).pow(3).sum()
    first = torch.autograd.grad(value, logits, create_graph=True)[0]
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.sum(), logits)


@each(RELAXED)
@pytest.mark.parametrize("excluded", ["mask", "infinite"])
def test_learnable_tau_gets_a_finite_gradient(case, excluded):
    """Its value is in test_theorems; here beside categories that cannot be drawn."""
    logits, mask = normal(6, 5), None
    if excluded == "mask":
        mask = MASK
    else:
        logits = logits.masked_fill(~MASK, -torch.inf)
    logits.requires_grad_()
    tau = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    sample = case.sample(logits, tau, mask=mask, generator=seeded(1))
    (sample.square() * weights_like(sample)).sum().backward()
    assert tau.grad.isfinite()
    assert tau.grad != 0
    assert logits.grad.isfinite().all()
