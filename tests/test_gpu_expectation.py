"""The front and the score-function estimators on a CUDA device."""

import pytest
import torch

import score_oracles
from discretegrad import ESTIMATORS, Estimator, MuProp, Rebar, Reinforce, expectation
from discretegrad.expectation import make_object
from kernel_cases import without_waiting

pytestmark = pytest.mark.gpu

fixed_draws = pytest.fixture(score_oracles.fixed_draws)


def control(z):
    """A control variate for joint samples that take up all but the first two axes."""
    return z.mul(0.7).tanh().flatten(2).sum(-1)


def stein_control(x):
    return (x * 0.3).tanh() + x.flip(-1) * 0.1


OPTIONS = {
    "gumbel_rao": {"num_draws": 3},
    "relax": {"control": control},
    "rodeo": {"control": stein_control, "alpha": 0.7, "beta": -0.4},
}
CASES = [
    pytest.param(row, family, id=f"{row.name}-{family}")
    for row in ESTIMATORS.values()
    for family in row.families
]
each_case = pytest.mark.parametrize(("row", "family"), CASES)
LEARNERS = [(row, row.families[0]) for row in ESTIMATORS.values() if row.module is not None]


class Problem:
    """Three variables and a cubic function of them."""

    def __init__(self, family, device="cuda", dtype=torch.float32):
        shape = (3, 4) if family == "categorical" else (3,)
        cpu = torch.Generator().manual_seed(0)
        self.family = family
        self.logits = torch.randn(64, *shape, generator=cpu).to(device, dtype).requires_grad_()
        self.weight = torch.randn(shape, generator=cpu).to(device, dtype).requires_grad_()
        self.mask = (torch.randn(64, *shape, generator=cpu) < 1.3).to(device)
        if family == "categorical":
            self.mask[..., 0] = True

    def f(self, z):
        x = (z * self.weight).flatten(1).sum(-1)
        return (x - 0.3) ** 3 + x

    def run(self, estimator, **arguments):
        if isinstance(estimator, Estimator):
            arguments |= OPTIONS.get(estimator.name, {})
        return expectation(
            self.logits, self.f, estimator, num_samples=4, family=self.family, **arguments
        )


def assert_never_waits(step):
    step()  # first calls may load kernels
    with without_waiting():
        step()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@each_case
@pytest.mark.parametrize("vectorize", [False, True])
def test_no_call_makes_the_gpu_wait(row, family, vectorize):
    problem = Problem(family)

    def step():
        result = problem.run(row, mask=problem.mask, vectorize=vectorize)
        result.mean().backward()

    assert_never_waits(step)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize(("row", "family"), LEARNERS)
def test_no_estimator_object_makes_the_gpu_wait(row, family):
    problem = Problem(family)
    estimator = make_object(row, problem.logits, problem.f, family)
    assert_never_waits(lambda: problem.run(estimator).mean().backward())
    for parameter in estimator.parameters():
        assert parameter.grad.device.type == "cuda"
        assert parameter.grad.isfinite().all()


@each_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_contract_on_the_gpu(row, family, dtype):
    problem = Problem(family, dtype=dtype)
    with torch.no_grad():
        problem.logits[0] *= 1e4
    state = torch.cuda.get_rng_state()
    runs = []
    for _ in range(2):
        generator = torch.Generator("cuda").manual_seed(3)
        result = problem.run(row, generator=generator)
        gradients = torch.autograd.grad(result.sum(), (problem.logits, problem.weight))
        runs.append((result, *gradients))
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for first in runs[0]:
        assert first.device.type == "cuda"
        assert first.dtype == dtype
        assert first.isfinite().all()
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert runs[0][0].shape == (64,)


@each_case
def test_gpu_agrees_with_the_cpu(row, family, fixed_draws):
    runs = []
    for device in ("cpu", "cuda"):
        problem = Problem(family, device, torch.float64)
        result = problem.run(row, mask=problem.mask)
        weights = torch.linspace(-1, 2, 64, dtype=torch.float64, device=device)
        gradients = torch.autograd.grad((result * weights).sum(), (problem.logits, problem.weight))
        runs.append([x.detach().cpu() for x in (result, *gradients)])
    for cpu, cuda in zip(*runs, strict=True):
        torch.testing.assert_close(cuda, cpu, rtol=1e-9, atol=1e-11)


@each_case
def test_generator_of_another_device_is_an_error(row, family):
    problem = Problem(family)
    with pytest.raises(ValueError, match=r"expected a generator on the logits' device cuda:0, got"):
        problem.run(row, generator=torch.Generator())


@pytest.mark.parametrize("make", [Reinforce, MuProp, Rebar])
def test_numbers_of_an_estimator_object_may_stay_on_the_cpu(make):
    problem, estimator = Problem("categorical"), make()
    for _ in range(2):
        problem.run(estimator).mean().backward()
    assert problem.logits.grad.isfinite().all()
    for parameter in estimator.parameters():
        assert parameter.grad.device.type == "cpu"
        assert parameter.grad.isfinite().all()
