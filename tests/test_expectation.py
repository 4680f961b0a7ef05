"""The front and the contract of every estimator behind it: the rules run over the registry."""

import contextlib
import copy
import dataclasses
import itertools
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

import score_oracles
from cases import each
from discretegrad import (
    ESTIMATORS,
    ControlNetwork,
    DoubleCV,
    Estimator,
    MuProp,
    Rebar,
    Reinforce,
    Relax,
    Rodeo,
    exact_expectation,
    expectation,
    leave_one_out,
    reinmax,
    rodeo,
    testing,
)
from discretegrad.expectation import make_object
from discretegrad.families import FAMILIES
from discretegrad.testing import assert_close, normal, seeded

INF, NAN = math.inf, math.nan
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

pytestmark = pytest.mark.usefixtures("global_seed")
fixed_draws = pytest.fixture(score_oracles.fixed_draws)


def joint_control(axes: int) -> Callable[[Tensor], Tensor]:
    """A control variate of joint samples that take up the last ``axes`` axes."""
    return lambda z: sums_over(z.mul(0.7).tanh(), axes)


def sums_over(x: Tensor, axes: int) -> Tensor:
    return x.sum(tuple(range(-axes, 0))) if axes else x


def stein_control(x: Tensor) -> Tensor:
    """The network of RODEO, without anything to learn."""
    return (x * 0.3).tanh() + x.flip(-1) * 0.1


# the options under which a row is tested, and its cost where they change it; a row that is not
# listed has no options
VARIANTS: Mapping[str, Sequence[Any]] = {
    "gumbel_softmax": [(), ({"hard": False},)],
    "gumbel_rao": [({"num_draws": 3},)],
    "gapped": [({"gap": "p"},)],
    "mean_baseline": [(), ({"order": 1},)],
    "reinforce": [
        (),
        ({"baseline": "self_critical"}, {"extra_evaluations": 1}),
        ({"baseline": torch.Tensor.mean},),
    ],
    "disarm_tree": [(), ({"tree": "stick_breaking"},)],
    "muprop": [(), ({"offset": 0.4, "slope": -0.6},)],
    "double_cv": [(), ({"alpha": 0.5},)],
    "rebar": [(), ({"tied": False}, {"evaluations": 3, "slopes": 2})],
    "relax": [
        ({"control": joint_control},),
        ({"control": joint_control, "tied": True}, {"evaluations": 2, "slopes": 1}),
        ({"control": joint_control, "scale": 0.0}, {"evaluations": 1, "slopes": 0}),
    ],
    "rodeo": [({"control": stein_control, "alpha": 0.7, "beta": -0.4},)],
}
# the samples of these depend on each other
COUPLED = {"disarm", "arms", "disarm_tree"}


@dataclass(frozen=True)
class Case(testing.Case):
    """An estimator with its options."""

    own_cost: Mapping[str, int] = field(default_factory=dict)
    """What the options change: evaluations and slopes per sample, and whatever their number."""

    def __str__(self):
        options = {name: x for name, x in self.options.items() if name != "control"}
        named = {name: getattr(x, "__name__", x) for name, x in options.items()}
        return str(testing.Case(self.row, self.family, named))

    @property
    def sampled(self) -> bool:
        """Whether f is evaluated at samples, and not at all outcomes."""
        return self.row.evaluations is not None

    @property
    def needs_slope(self) -> bool:
        return self.cost("slopes") + self.cost("extra_slopes") > 0

    @property
    def count(self) -> int:
        """A number of samples that every estimator can have."""
        return max(2, self.row.min_samples)

    def cost(self, what: str) -> int:
        return self.own_cost.get(what, getattr(self.row, what))

    def run(self, problem: "Problem", f=None, logits=None, estimator=None, **arguments) -> Tensor:
        options = {"num_samples": self.count, "family": self.family, **self.options}
        if options.get("control") is joint_control:
            options["control"] = joint_control(len(problem.consumed))
        return expectation(
            problem.logits if logits is None else logits,
            problem.f if f is None else f,
            self.row.name if estimator is None else estimator,
            **{**options, **arguments},
        )

    def results(self, problem: "Problem", *positional, **arguments) -> tuple[Tensor, ...]:
        """The result, and the gradients for the logits and the weight of the problem."""
        result = self.run(problem, *positional, **arguments)
        return result.detach(), *problem.backward(result)


# for each row and family a case for each variant; the first of them is the default
VARIED = [
    [Case(row, family, *variant) for variant in VARIANTS.get(row.name, [()])]
    for row in ESTIMATORS.values()
    for family in row.families
]
CASES = [case for cases in VARIED for case in cases]
DEFAULTS = [cases[0] for cases in VARIED]
SAMPLED = [case for case in CASES if case.sampled]
SLOPED = [case for case in SAMPLED if case.needs_slope]
SLOPE_FREE = [case for case in CASES if not case.needs_slope]
REINMAX = {case.family: case for case in CASES if case.row.name == "reinmax"}
WITH_TAU = [case for case in CASES if case.row.kind == "sampler" or "tau" in case.row.options]


class Problem:
    """Logits, and a cubic function of each joint sample with a weight of its own."""

    def __init__(self, case, batch=(4,), latent=(2,), categories=3, dtype=torch.float64):
        self.batch = batch
        self.consumed = (*latent, categories) if case.categorical else latent
        self.logits = normal(*batch, *self.consumed, dtype=dtype).requires_grad_()
        self.weight = normal(*self.consumed, seed=1, dtype=dtype).requires_grad_()

    def f(self, z: Tensor, weight: Tensor | None = None) -> Tensor:
        x = sums_over(z * (self.weight if weight is None else weight), len(self.consumed))
        return (x - 0.3) ** 3 + x

    def backward(self, result: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients for the logits and the weight, for a different gradient everywhere."""
        return torch.autograd.grad((result * self.incoming(result)).sum(), self.leaves())

    def leaves(self) -> tuple[Tensor, Tensor]:
        return self.logits, self.weight

    def fill(self, logits: Tensor | float, where: Any = ...) -> None:
        with torch.no_grad():
            self.logits[where] = logits

    def sound(self, result: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients, which are finite, as the result is, and not all zero."""
        assert result.isfinite().all()
        gradients = self.backward(result)
        assert all(x.isfinite().all() for x in gradients)
        assert (gradients[0] != 0).any()
        return gradients

    @staticmethod
    def incoming(result: Tensor) -> Tensor:
        return normal(*result.shape, seed=11, dtype=result.dtype)


class Recorder:
    """Remembers what f was asked and what it said, and counts gradients that come back."""

    def __init__(self, f):
        self.f, self.slopes = f, 0
        self.seen: list[Tensor] = []
        self.losses: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        self.seen.append(z.detach().clone())
        if z.requires_grad:
            z = z.clone()
            z.register_hook(self._count)
        loss = self.f(z)
        self.losses.append(loss.detach())
        return loss

    def _count(self, gradient: Tensor) -> None:
        self.slopes += 1


def assert_all(check: Callable[[Tensor, Tensor], Any], found, expected) -> None:
    """Tensors in pairs: ``torch.equal``, or ``assert_close``, of each."""
    for actual, wanted in zip(found, expected, strict=True):
        assert check(actual, wanted) is not False


SHAPES = [(batch, latent) for batch in ((), (4,), (3, 2)) for latent in ((), (2,), (2, 2))]


@each(SAMPLED)
@pytest.mark.parametrize(("batch", "latent"), SHAPES, ids=str)
def test_value_is_the_mean_of_f_at_discrete_samples(case, batch, latent):
    problem = Problem(case, batch, latent)
    f, of_reinmax = Recorder(problem.f), Recorder(problem.f)
    result = case.run(problem, f, generator=seeded(1))
    assert result.shape == batch
    assert result.dtype == torch.float64
    samples = f.seen[: case.count]
    for sample in samples:
        assert sample.shape == problem.logits.shape
        assert sample.dtype == problem.logits.dtype
        if case.hard:
            assert ((sample == 0) | (sample == 1)).all()
            if case.categorical:
                assert (sample.sum(-1) == 1).all()
    if case.hard and case.row.name not in COUPLED:
        # independent samples are the same for all estimators
        REINMAX[case.family].run(problem, of_reinmax, generator=seeded(1))
        assert_all(torch.equal, samples, of_reinmax.seen)
    plain = torch.stack([problem.f(sample) for sample in samples]).mean(0)
    assert torch.equal(result, plain)
    to_logits, to_weight = problem.backward(result)
    assert to_logits.isfinite().all()
    (expected,) = torch.autograd.grad((plain * Problem.incoming(plain)).sum(), problem.weight)
    assert_close(to_weight, expected)


@each([case for case in CASES if not case.sampled])
def test_value_without_samples_is_the_expectation(case):
    for batch, latent in SHAPES:
        problem = Problem(case, batch, latent)
        f = Recorder(problem.f)
        result = case.run(problem, f, vectorize=False)
        # one call finds the shape
        outcomes = (3 if case.categorical else 2) ** math.prod(latent)
        assert len(f.seen) == 1 + outcomes
        assert result.shape == batch
        expected = exact_expectation(problem.logits, problem.f, family=case.family, vectorize=False)
        assert torch.equal(result, expected)
        assert_all(torch.equal, problem.backward(result), problem.backward(expected))
        assert len(f.seen) == 1 + 2 * outcomes


@each(CASES)
def test_ways_to_name_an_estimator(case):
    """Its row, its function, any callable like it, a row of one's own; the family's object."""
    problem, row = Problem(case), case.row
    expected = case.results(problem, generator=seeded(1))
    mine = dataclasses.replace(row, name="mine", function=partial(row.function))
    ways = [row, row.function, mine, mine.function]
    for estimator in ways:
        arguments = {"estimator": estimator, "family": FAMILIES[case.family]}
        assert_all(torch.equal, case.results(problem, generator=seeded(1), **arguments), expected)
    with pytest.raises(TypeError, match=r"^mine: expected options among"):
        case.run(problem, estimator=mine, flavour=1)


def as_given(case: Case, samples: Sequence[Tensor]) -> Tensor:
    """Samples in the form in which they are given."""
    samples = torch.stack(list(samples))
    return samples.argmax(-1) if case.categorical else samples


@each([case for case in SAMPLED if not case.row.takes])
def test_draws_that_were_made_elsewhere(case):
    problem = Problem(case)
    f = Recorder(problem.f)
    drawn = case.results(problem, f, num_samples=4, generator=seeded(1))
    given, before = as_given(case, f.seen[:4]), torch.get_rng_state()
    # whatever says which of two values it is
    forms = [given] if case.categorical else [given, given.bool(), given.clone().requires_grad_()]
    for form, count in itertools.product(forms, (None, 4)):
        assert_all(torch.equal, case.results(problem, num_samples=count, given=form), drawn)
    assert torch.equal(torch.get_rng_state(), before)
    if case.row.name not in COUPLED:
        other = case.run(problem, num_samples=4, given=given.roll(1, 1))
        assert not torch.equal(other, drawn[0])


@each([case for case in CASES if case.row.kind == "score" and case.row.takes])
def test_draws_and_noise_that_were_made_elsewhere(case):
    problem = Problem(case)
    f = Recorder(problem.f)
    drawn = case.run(problem, f, num_samples=3, generator=seeded(1))
    given = as_given(case, f.seen[:3])
    # the same numbers: those of the draw come first
    generator, shape = seeded(1), (3, *problem.logits.shape)
    torch.rand((3, *given.shape[1:]), generator=generator, dtype=torch.float64)
    tied = case.options.get("tied", case.row.options["tied"])
    uniform = torch.stack(
        [torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2 - tied)]
    )
    noise = -torch.log1p(-uniform) if case.categorical else uniform.logit()
    noise = noise[0] if tied else noise
    again = case.run(problem, num_samples=None, given=given, noise=noise)
    assert torch.equal(again, drawn)
    assert_all(assert_close, problem.backward(again), problem.backward(drawn))
    # the noise may be drawn here all the same
    assert torch.equal(case.run(problem, num_samples=None, given=given), drawn)
    for draws, wrong, error, message in (
        (None, noise, ValueError, "given= beside noise="),
        (given, noise[:1], ValueError, f"noise of shape {re.escape(str(tuple(noise.shape)))}, got"),
        (
            given,
            -noise.abs() * (1 if case.categorical else NAN),
            ValueError,
            "finite .* noise, got",
        ),
        (given, 3.0, TypeError, "noise to be a floating-point tensor, got float"),
    ):
        with pytest.raises(error, match=f"^{case.row.name}: expected .*{message}"):
            case.run(problem, num_samples=None, given=draws, noise=wrong)


@each(SAMPLED)
def test_draws_that_are_refused(case):
    problem, name = Problem(case), case.row.name
    # the first category or the value 0 is the likeliest
    problem.fill(torch.tensor([2.0, 1.0, 0.0]) if case.categorical else -1.0)
    good = torch.zeros(case.count, *problem.logits.shape)
    good = good[..., 0].long() if case.categorical else good
    if not case.row.takes:
        assert case.run(problem, given=good).isfinite().all()
    mask = torch.ones_like(problem.logits, dtype=torch.bool)
    mask[0, 0] = torch.arange(3) > 0 if case.categorical else False
    excluded = good if case.categorical else 1 - good
    refused = [
        (ValueError, r".* on cpu, got \([\d, ]+\) on cpu", good[0], None),
        (ValueError, r".* on cpu, got \([\d, ]+\) on cpu", torch.cat([good, good]), None),
        (TypeError, "given to be a", [0.0], None),
        (TypeError, "given to be a", good.to(torch.complex64), None),
        (ValueError, "given (categories|values) that are", excluded, mask),
    ]
    for value in (-1, 3) if case.categorical else (0.5, 2.0, NAN):
        wrong = good.clone()
        wrong[0, 0, 0] = value
        refused.append((ValueError, "(every )?given (categories in|value to)", wrong, None))
    if name in ("disarm", "disarm_tree"):
        # partners never take the less likely of two values both
        unlikely = good + (2 if case.categorical else 1)
        refused.append((ValueError, "given to hold antithetic", unlikely, None))
    for error, message, given, where in refused:
        with pytest.raises(error, match=f"^{name}: expected {message}"):
            case.run(problem, given=given, mask=where)


@pytest.mark.parametrize(
    ("name", "options", "others"),
    [
        ("rodeo", ("alpha", "beta"), {"control": stein_control}),
        ("double_cv", ("alpha",), {}),
        ("rebar", ("scale",), {"noise": normal(2, 3, 2, 4, seed=3)}),
        (
            "relax",
            ("scale",),
            {"noise": normal(2, 2, 3, 2, 4, seed=3), "control": joint_control(1)},
        ),
    ],
)
def test_weights_for_each_of_the_first_batch_axes(name, options, others):
    logits, target = normal(3, 2, 4), normal(4, seed=1)
    each = torch.tensor([0.2, -0.5, 0.9], dtype=torch.float64)
    weights = [each * (1 + number) for number in range(len(options))]
    given = (normal(2, 3, 2, 4, seed=2) > 0).double()

    def estimate(logits, given, *weights, rows=slice(None)):
        arguments = {"given": given, **others, **dict(zip(options, weights, strict=True))}
        if "noise" in others:
            arguments["noise"] = others["noise"][..., rows, :, :]
        f, function = (lambda b: ((b - target) ** 3).sum(-1)), ESTIMATORS[name].function
        return function(logits, f, family="bernoulli", **arguments).mean(1).sum()

    together, alone = ([x.clone().requires_grad_() for x in (logits, *weights)] for _ in range(2))
    estimate(together[0], given, *together[1:]).backward()
    for n in range(3):
        row = slice(n, n + 1)
        estimate(alone[0][row], given[:, row], *(x[n] for x in alone[1:]), rows=row).backward()
    assert_all(assert_close, (x.grad for x in together), (x.grad for x in alone))
    for shape in ((2,), (3, 2, 4), (3, 2, 4, 1)):
        message = rf"{options[0]} to be .*, or with one for the first axes of \(3"
        with pytest.raises(ValueError, match=message):
            estimate(together[0], given, torch.zeros(shape), *[0.0] * (len(options) - 1))


COEFFICIENTS = {"muprop": ("offset", "slope"), "rebar": ("scale",), "relax": ("scale",)}
COEFFICIENTS |= {"double_cv": ("alpha",), "rodeo": ("alpha", "beta")}


@each([case for case in DEFAULTS if case.row.name in COEFFICIENTS])
def test_coefficient_with_one_element_has_any_number_of_axes(case):
    """Their sizes are those of no axis of f, so that a product with them would broadcast."""
    for batch in ((4,), (1, 3), ()):
        problem, runs = Problem(case, batch), []
        for shape in ((), (1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)):
            names = COEFFICIENTS[case.row.name]
            own = [torch.full(shape, -0.7, requires_grad=True) for _ in names]
            options = dict(zip(names, own, strict=True))
            result = case.run(problem, generator=seeded(1), **options)
            found = torch.autograd.grad(result.sum(), [*problem.leaves(), *own])
            runs.append([result, *found[:2], *(x.reshape(()) for x in found[2:])])
        for run in runs[1:]:
            assert_all(torch.equal, run, runs[0])


def test_control_variate_of_rodeo_may_have_axes_of_size_one_beyond():
    logits = normal(3, 4).requires_grad_()
    runs = []
    for control in (stein_control, lambda x: stein_control(x)[..., None]):
        arguments = {"control": control, "alpha": 0.7, "beta": -0.4, "generator": seeded(1)}
        result = rodeo(logits, lambda b: (b**3).sum(-1), **arguments)
        runs.append(torch.autograd.grad(result.sum(), logits))
    assert_all(torch.equal, *runs)


@each(CASES)
@pytest.mark.parametrize(("batch", "latent"), [((0,), (2,)), ((3, 0), ()), ((3,), (0,))], ids=str)
def test_nothing_to_sample(case, batch, latent):
    problem = Problem(case, batch, latent)
    result = case.run(problem)
    assert result.shape == batch
    assert result.isfinite().all()
    to_logits, to_weight = problem.backward(result)
    assert to_logits.shape == problem.logits.shape
    assert (to_weight == 0).all()


@each(CASES)
def test_samples_and_gradients_have_the_dtype_of_the_logits_and_the_result_that_of_f(case):
    """Also for an f that is random: what it said is what counts."""
    for dtype, loss_dtype in itertools.product(FLOATS, FLOATS):
        problem = Problem(case, (20,), dtype=dtype)
        f = Recorder(lambda z: (problem.f(z) * torch.rand(20)).to(loss_dtype))  # noqa: B023
        result = case.run(problem, f)
        assert all(z.dtype == dtype for z in f.seen)
        wider = torch.promote_types(dtype, loss_dtype)
        assert result.dtype == (loss_dtype if case.sampled else wider)
        if case.sampled:
            assert torch.equal(result, torch.stack(f.losses[: case.count]).mean(0))
        assert all(x.dtype == dtype for x in problem.sound(result))


@each([case for case in CASES if case.row.kind == "score"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_loss_scale_beyond_the_range_of_the_logits(case, dtype):
    """Mixed precision scales the loss by 2^16, which float16 cannot hold, though the gradients."""
    low, high = (Problem(case, dtype=x) for x in (dtype, torch.float32))
    high.fill(low.logits.detach())
    control = joint_control(len(low.consumed))
    own = {"control": lambda z: 1e-3 * control(z)} if case.row.name == "relax" else {}
    gradients = []
    for problem, scale in ((low, 2.0**16), (high, 1.0)):
        arguments = {"generator": seeded(1), **own}
        result = case.run(problem, lambda z: 1e-3 * high.f(z.float()), **arguments)
        gradients.append(torch.autograd.grad(scale * result.sum(), problem.logits)[0])
    assert gradients[0].dtype == dtype
    # relaxed samples are rounded before f sees them
    atol = 16 * torch.finfo(dtype).eps * gradients[1].abs().max().item()
    torch.testing.assert_close(gradients[0].float() / 2**16, gradients[1], rtol=0, atol=atol)


@each([x for x in SLOPE_FREE if x.sampled and not callable(x.options.get("baseline"))])
def test_estimate_does_not_suffer_from_the_dtype_of_the_logits(case):
    """Where all is computed in float32, only the samples and the result are rounded."""
    low, high = (Problem(case, (20,), dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    high.fill(low.logits.detach())
    results = []
    for problem in (low, high):
        result = case.run(problem, lambda z: high.f(z.float()), generator=seeded(1))
        results.append((result, torch.autograd.grad(result.sum(), problem.logits)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1].bfloat16())


def ignores_constants(case):
    """Whether the gradient stays the same if a constant is added to f."""
    options = case.options
    if case.row.name == "reinforce":
        return options.get("baseline") == "self_critical"
    return case.row.name != "rodeo" and "offset" not in options and options.get("scale") != 0


@each([case for case in CASES if case.row.kind != "sampler" and ignores_constants(case)])
def test_a_wider_f_is_not_rounded_to_the_dtype_of_the_logits(case):
    """A constant cancels to the precision of f."""
    low, high = (Problem(case, (20,), dtype=dtype) for dtype in (torch.float32, torch.float64))
    high.fill(low.logits.detach())

    def gradient(problem, level):
        result = case.run(problem, lambda z: high.f(z.double()) + level, generator=seeded(1))
        return torch.autograd.grad(result.sum(), problem.logits)[0]

    torch.testing.assert_close(gradient(low, 1e6), gradient(low, 0), rtol=1e-5, atol=1e-6)


class Level(nn.Module):
    """A baseline that has learned one number."""

    def __init__(self):
        super().__init__()
        self.number = nn.Parameter(torch.tensor(1e5))

    def forward(self, logits: Tensor) -> Tensor:
        return self.number.clone()


def running_level() -> nn.Module:
    estimator = Reinforce(decay=0.5).eval()
    estimator.load_state_dict({"mean": torch.tensor(0.5e5), "steps": torch.tensor(1)})
    return estimator


BASELINES = {
    "running": running_level,
    "network": lambda: Reinforce(Level()),
    "function": lambda: Reinforce(lambda logits: torch.tensor(1e5)),
    "whole number": lambda: Reinforce(lambda logits: torch.tensor(100_000)),
}


@pytest.mark.parametrize("made", BASELINES.values(), ids=BASELINES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_baseline_is_not_rounded_to_the_dtype_of_the_logits(made, dtype):
    """It cancels the level of f, which is beyond the range of float16."""
    estimator, low = made(), normal(20, 3, dtype=dtype)

    def gradients(logits):
        f = lambda z: 1e5 + z.float() @ torch.arange(3.0)  # noqa: E731
        result = expectation(logits, f, estimator, generator=seeded(1))
        assert result.dtype == torch.float32
        return torch.autograd.grad(result.sum(), [logits, *estimator.parameters()])

    (of_low, *own), (of_high, *expected) = (
        gradients(x.requires_grad_()) for x in (low, low.float())
    )
    assert torch.equal(of_low, of_high.to(dtype))
    assert_all(torch.equal, own, expected)


@each(CASES)
def test_vectorized_f_is_random_for_each_sample(case):
    problem = Problem(case)

    def noisy(z):
        return problem.f(z) * 0 + torch.rand(problem.batch, dtype=z.dtype)

    # noise that all samples shared would be uniform, not close to its mean; exact weighs outcomes
    result = case.run(problem, noisy, num_samples=100, vectorize=True)
    assert (result - 0.5).abs().max() < (0.2 if case.sampled else 0.5)


def ones(z):
    """How many variables have their first value, or the value 1."""
    return z[..., 0].flatten(1).sum(-1) if z.ndim > 2 else z.sum(-1)


WITHOUT_SLOPE = {
    "integers": lambda z: ones(z).long(),
    "booleans": lambda z: ones(z) == 1,
    "floats": lambda z: (ones(z) == 1).to(z.dtype),
    "constants": lambda z: ones(z.detach()) ** 2,
}


@each(SLOPE_FREE)
@pytest.mark.parametrize("vectorize", [False, True])
def test_f_need_not_be_differentiable(case, vectorize):
    problem = Problem(case, (20,), dtype=torch.float32)
    for f in WITHOUT_SLOPE.values():
        result = case.run(problem, f, vectorize=vectorize, generator=seeded(1))
        floats = case.run(problem, lambda z, f=f: f(z).float(), generator=seeded(1))
        assert result.dtype == torch.float32
        assert_close(result, floats)
        gradients = [torch.autograd.grad(x.sum(), problem.logits)[0] for x in (result, floats)]
        assert_close(*gradients)
        assert gradients[0].isfinite().all()
        assert (gradients[0] != 0).any()


@each(SLOPED)
@pytest.mark.parametrize("vectorize", [False, True])
def test_missing_slope_is_an_error_that_names_alternatives(case, vectorize):
    problem = Problem(case)
    functions = [WITHOUT_SLOPE["floats"], WITHOUT_SLOPE["constants"]]
    # it is found though parameters, or the logits themselves, have one
    functions.append(lambda z: problem.f(z.detach()))
    functions.append(lambda z: problem.f(z.detach()) + problem.logits.flatten(1).sum(-1))
    free = {row.name for row in ESTIMATORS.values() if not row.needs_grad_f} - {"exact"}
    for f in functions:
        with pytest.raises(
            ValueError,
            match=f"^{case.row.name}: expected f to be differentiable with respect to the sample, ",
        ) as caught:
            case.run(problem, f, vectorize=vectorize)
        alternatives = str(caught.value).split("needs values of f only: ")[1]
        assert set(re.split(", | or ", alternatives.rstrip("."))) == free
        # nobody asks for a gradient
        value = case.run(problem, f, logits=problem.logits.detach(), vectorize=vectorize)
        assert value.shape == problem.batch
        with torch.no_grad():
            assert case.run(problem, f, vectorize=vectorize).shape == problem.batch


@each(SLOPED)
@pytest.mark.parametrize("vectorize", [False, True])
def test_missing_slope_is_an_error_in_transforms(case, vectorize):
    """There a sampler would give zero, and rebar and relax an estimate with a bias."""
    ensemble = Ensemble(case)
    f, (many, weights) = ensemble.problem.f, ensemble.inputs
    message = f"^{case.row.name}: expected f to be differentiable with respect to the sample, "

    def total(logits, weight):
        without = partial(f, weight=weight)
        arguments = {"logits": logits, "vectorize": vectorize}
        return case.run(ensemble.problem, lambda z: without(z.detach()), **arguments).sum()

    leaves = [x.clone().requires_grad_() for x in (many, weights)]
    for transformed, inputs in (
        (grad(total, argnums=(0, 1)), (many[0], weights[0])),
        (vmap(grad(total, argnums=(0, 1)), randomness="different"), (many, weights)),
        (vmap(total, randomness="different"), leaves),
        (grad(lambda x, w: vmap(total, randomness="different")(x, w).sum()), (many, weights)),
    ):
        with pytest.raises(ValueError, match=message):
            transformed(*inputs)
    # nobody asks for a gradient of the logits
    assert grad(total, argnums=1)(many[0], weights[0]).isfinite().all()
    assert vmap(total, randomness="different")(many, leaves[1]).isfinite().all()


@each(CASES)
@pytest.mark.parametrize("batch", [(4,), ()], ids=str)
def test_f_may_write_into_its_sample(case, batch):
    problem = Problem(case, batch)

    def writing(z, weight=problem.weight):
        z.mul_(weight)
        x = sums_over(z, len(problem.consumed))
        z.zero_()
        return (x - 0.3) ** 3 + x

    for vectorize, logits in itertools.product((False, True), (None, problem.logits.detach())):
        arguments = {"logits": logits, "vectorize": vectorize}
        runs = []
        for f in (writing, problem.f):
            result = case.run(problem, f, generator=seeded(1), **arguments)
            leaves = problem.leaves() if logits is None else problem.leaves()[1:]
            runs.append((result, *torch.autograd.grad(result.sum(), leaves)))
        assert_all(assert_close, *runs)

    def total(logits, weight, f):
        f = partial(f, weight=weight)
        return case.run(problem, f, logits=logits, generator=seeded(1)).sum()

    inputs = [x.detach() for x in problem.leaves()]
    both = partial(grad(total, argnums=(0, 1)), *inputs)
    assert_all(assert_close, both(writing), both(problem.f))


@each([case for case in CASES if str(case) in ("categorical-reinmax", "categorical-muprop")])
def test_compiled_f_may_write_into_its_sample(case, compiler):
    problem = Problem(case)

    def step(logits):
        f = lambda z: z.mul_(problem.weight).sum((-1, -2)) ** 2  # noqa: E731
        return case.run(problem, f, logits=logits).sum()

    gradients = []
    for function in (torch.compile(step, fullgraph=True, backend="aot_eager"), step):
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(function(problem.logits), problem.logits)[0])
    assert_close(*gradients)


@each(SAMPLED)
def test_logits_that_f_uses_itself_get_both_gradients(case):
    problem = Problem(case)

    def f(z, logits=problem.logits):
        """A loss with a sampled KL term: the log-probability of the sample."""
        return problem.f(z) + FAMILIES[case.family].log_prob(logits, z).sum(-1)

    recorder, constant = Recorder(f), partial(f, logits=problem.logits.detach())
    result = case.run(problem, recorder, generator=seeded(1))
    alone = case.run(problem, constant, generator=seeded(1))
    plain = torch.stack([f(sample) for sample in recorder.seen[: case.count]]).mean(0)
    both, estimate, ordinary = (problem.backward(x)[0] for x in (result, alone, plain))
    assert torch.equal(result, alone)
    assert (ordinary.abs() > 1e-3).any()
    assert_close(both, estimate + ordinary)


@each(CASES)
def test_memory_layout_does_not_matter(case):
    problem, turned = (Problem(case, (3, 4)) for _ in range(2))
    turned.logits = problem.logits.detach().movedim(0, -1).contiguous().movedim(-1, 0)
    assert not turned.logits.requires_grad_().is_contiguous()
    runs = [case.results(x, generator=seeded(1)) for x in (problem, turned)]
    assert torch.equal(runs[0][0], runs[1][0])
    assert_all(assert_close, *runs)


@each(CASES)
def test_constants_give_constants_and_f_is_evaluated_at_the_samples_only(case):
    problem, count = Problem(case), case.count if case.sampled else None
    for context, logits in (
        (torch.no_grad(), problem.logits),
        (torch.inference_mode(), problem.logits),
        (contextlib.nullcontext(), problem.logits.detach()),
    ):
        f = Recorder(lambda z: problem.f(z).detach())
        with context:
            result = case.run(problem, f, logits=logits)
        assert not result.requires_grad
        assert count in (None, len(f.seen))
    # parameters learn also where the logits are constants
    f = Recorder(problem.f)
    result = case.run(problem, f, logits=problem.logits.detach())
    (to_weight,) = torch.autograd.grad(result.sum(), problem.weight)
    assert (to_weight != 0).any()
    assert count in (None, len(f.seen))
    assert f.slopes == 0


@each(SAMPLED)
@pytest.mark.parametrize("samples", [None, 4, 6])
def test_cost_is_that_of_the_table(case, samples):
    """A slope is a backward pass through f that ends at its argument.

    Score-function estimators make theirs in forward; a sampler gets its own from the backward
    pass of the user. That pass goes through f also for the parameters of f, but then it need not
    end at the sample. By default there are as many samples as are needed.
    """
    count, problem = samples or case.row.min_samples, Problem(case)
    evaluations = case.cost("evaluations") * count + case.cost("extra_evaluations")
    slopes = case.cost("slopes") * count + case.cost("extra_slopes")
    f = Recorder(problem.f)
    result = case.run(problem, f, num_samples=samples)
    assert f.slopes == (0 if case.row.kind == "sampler" else slopes)
    problem.backward(result)
    assert (len(f.seen), f.slopes) == (evaluations, slopes)
    # no pass more where f has no parameters
    problem.weight.requires_grad_(False)
    f = Recorder(problem.f)
    case.run(problem, f, num_samples=samples).sum().backward()
    assert f.slopes == slopes


@each(CASES)
def test_vectorized_is_the_same_in_one_call(case):
    problem, arguments = Problem(case), {"num_samples": 6, "vectorize": True}
    f = Recorder(problem.f)
    together = case.results(problem, f, generator=seeded(1), **arguments)
    if case.sampled:
        # once for the samples, and once for whatever else is evaluated
        more = case.cost("evaluations") > 1 or case.cost("extra_evaluations") > 0
        assert [z.shape for z in f.seen] == [problem.logits.shape] * (2 if more else 1)
    arguments["vectorize"] = False
    apart = case.results(problem, generator=seeded(1), **arguments)
    assert_all(assert_close, together, apart)
    if not case.sampled:
        return
    # f itself takes all of them
    arguments["vectorize"], f = "stacked", Recorder(problem.f)
    assert_all(assert_close, case.results(problem, f, generator=seeded(1), **arguments), apart)
    assert {z.ndim for z in f.seen} == {1 + problem.logits.ndim}
    with pytest.raises(ValueError, match="one loss per sample and batch element"):
        case.results(problem, lambda z: problem.f(z).sum(), generator=seeded(1), **arguments)


@each(CASES)
@pytest.mark.parametrize("vectorize", [False, True])
def test_mask_means_the_same_as_minus_infinity_and_broadcasts(case, vectorize):
    """Also where f is infinite at what is excluded."""
    problem, infinite = (Problem(case, (6,), (2,), 4) for _ in range(2))
    mask = torch.tensor([True, False, True, True] if case.categorical else [True, False])
    # the excluded ones would be drawn nearly always, were they not excluded
    problem.fill(problem.logits.detach() + 9 * ~mask)
    infinite.fill(problem.logits.detach().masked_fill(~mask, -INF))
    runs = []
    for which, where in (
        (problem, mask.expand_as(problem.logits)),
        (problem, mask),
        (infinite, None),
    ):

        def f(z, which=which):
            excluded = sums_over(z * ~mask, len(which.consumed))
            return torch.where(excluded > 0, INF, which.f(z))

        result = case.run(which, f, mask=where, vectorize=vectorize, generator=seeded(1))
        runs.append((result, *which.sound(result)))
    assert_all(assert_close, runs[1], runs[0])
    assert_all(assert_close, runs[2], runs[0])
    assert (runs[0][1].masked_select(~mask) == 0).all()


@each(WITH_TAU)
def test_tensor_tau_has_one_temperature_for_each_variable(case):
    problem = Problem(case)
    taus = torch.tensor([0.6, 0.9, 1.0, 1.6], dtype=torch.float64)
    rows = taus.reshape(-1, *[1] * len(problem.consumed))
    together = case.results(problem, tau=rows, generator=seeded(1))
    for number, tau in enumerate(taus.tolist()):
        alone = case.results(problem, tau=tau, generator=seeded(1))
        assert_all(assert_close, *([x[number] for x in run[:2]] for run in (together, alone)))


@each(CASES)
def test_generator_decides_and_the_global_state_is_left_alone(case):
    problem, generator, runs = Problem(case, (60,)), seeded(5), []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        runs.append(case.results(problem, generator=seeded(5)))
        assert torch.equal(torch.get_rng_state(), before)
    assert_all(torch.equal, *runs)
    if case.sampled:
        # every call draws anew
        assert not torch.equal(*(case.run(problem, generator=generator) for _ in range(2)))
        # the global state likewise, and it decides where there is no generator
        torch.manual_seed(3)
        first, second = (case.run(problem) for _ in range(2))
        assert not torch.equal(first, second)
        torch.manual_seed(3)
        assert torch.equal(case.run(problem), first)


class Ensemble:
    """Several models at once: logits and weights with a leading axis."""

    def __init__(self, case, members=3):
        self.case, self.problem = case, Problem(case)
        shape = self.problem.logits.shape
        self.inputs = normal(members, *shape), normal(members, *shape[1:], seed=1)
        self.weights = normal(shape[0], seed=11)

    def loss(self, logits, weight, **arguments):
        f = partial(self.problem.f, weight=weight)
        return self.case.run(self.problem, f, logits=logits, **arguments)

    def total(self, logits, weight, **arguments):
        return (self.loss(logits, weight, **arguments) * self.weights).sum()


@each(CASES)
def test_ensemble_is_a_loop_over_its_members(case, fixed_draws):
    """Its losses, its gradients inside vmap and after it, and transforms of transforms."""
    ensemble = Ensemble(case)
    inputs = ensemble.inputs
    each_member = partial(vmap, randomness="different")
    for vectorize in (False, True):
        loss = partial(ensemble.loss, vectorize=vectorize)
        together = each_member(loss)(*inputs)
        assert_close(together, torch.stack([loss(*member) for member in zip(*inputs, strict=True)]))
    leaves = [x.clone().requires_grad_() for x in inputs]
    loop = sum(ensemble.total(*member) for member in zip(*leaves, strict=True))
    expected = torch.autograd.grad(loop, leaves)
    assert_all(assert_close, each_member(grad(ensemble.total, argnums=(0, 1)))(*inputs), expected)
    after = each_member(ensemble.total)(*leaves).sum()
    assert_all(assert_close, torch.autograd.grad(after, leaves), expected)
    # batch elements do not meet
    member = [x[0].clone().requires_grad_() for x in inputs]
    (alone,) = torch.autograd.grad(ensemble.loss(*member).sum(), member[:1])
    assert_close(jacrev(ensemble.loss)(*(x.detach() for x in member)).sum(0), alone)
    grid = torch.stack([inputs[0], 2 * inputs[0]])
    nested = each_member(each_member(ensemble.loss), in_dims=(0, None))(grid, inputs[1])
    assert_close(nested, torch.stack([each_member(ensemble.loss)(x, inputs[1]) for x in grid]))


@each(SAMPLED)
def test_members_of_an_ensemble_draw_for_themselves(case):
    ensemble = Ensemble(case)
    logits, weight = (x[0] for x in ensemble.inputs)
    many = logits.expand(20, *logits.shape)

    def results(seed=None, randomness="different"):
        before = torch.get_rng_state()
        loss = partial(ensemble.loss, generator=None if seed is None else seeded(seed))
        found = vmap(loss, in_dims=(0, None), randomness=randomness)(many, weight)
        assert found.shape == (20, 4)
        assert seed is None or torch.equal(torch.get_rng_state(), before)
        return found

    assert len(results().unique(dim=0)) > 10
    assert len(results(randomness="same").unique(dim=0)) == 1
    assert torch.equal(results(1), results(1))
    assert not torch.equal(results(1), results(2))
    assert len(results(1).unique(dim=0)) > 10


@each([case for case in SAMPLED if case.hard])
def test_second_derivative_is_refused(case):
    problem = Problem(case)
    (first,) = torch.autograd.grad(case.run(problem).sum(), problem.logits, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiating it again is refused"):
        torch.autograd.grad(first.sum(), problem.logits)

    def total(logits):
        return case.run(problem, logits=logits).sum()

    with pytest.raises(RuntimeError, match="differentiating it again is refused"):
        grad(lambda logits: grad(total)(logits).sum())(problem.logits.detach())


# Every estimator compiles. The samplers are also tested on their own, so here one stands for all;
# the two families differ most in the noise of rebar.
QUICK = {
    ("reinmax", "categorical"),
    ("rebar", "categorical"),
    *((row.name, row.families[-1]) for row in ESTIMATORS.values() if row.kind == "score"),
}
COMPILED = [
    *((case, True, case in DEFAULTS and (case.row.name, case.family) in QUICK) for case in CASES),
    *((case, False, case.row.name == "double_cv") for case in DEFAULTS),
]


@pytest.mark.parametrize(
    ("case", "learns"),
    [
        pytest.param(case, learns, id=f"{case}-{learns}", marks=[] if quick else pytest.mark.slow)
        for case, learns, quick in COMPILED
    ],
)
def test_compiled_is_the_eager_one(case, learns, compiler):
    """Also with nothing to learn in f."""
    problem = Problem(case)
    problem.weight.requires_grad_(learns)
    leaves = problem.leaves() if learns else (problem.logits,)

    def step(logits, weight):
        return case.run(problem, partial(problem.f, weight=weight), logits=logits)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for function in (compiled, step):
        torch.manual_seed(1)
        result = function(problem.logits, problem.weight)
        gradients = torch.autograd.grad((result * Problem.incoming(result)).sum(), leaves)
        results.append((result.detach(), *gradients))
    assert_all(assert_close, *results)


@each(CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_saturated_logits(case, dtype):
    for size in (50.0, 3e4):
        problem = Problem(case, dtype=dtype)
        problem.fill(problem.logits.detach().sign() * size)
        problem.fill(torch.tensor([-size, 0, size] if case.categorical else [0, size]), where=0)
        result = case.run(problem, num_samples=4)
        assert result.isfinite().all()
        assert all(x.isfinite().all() for x in problem.backward(result))


@each(CASES)
def test_what_is_certain(case):
    """An infinite log-odd, or the only category that is allowed, gets no gradient."""
    problem = Problem(case, (20,), (3,))
    certain = torch.tensor([[0, 1, 0]] * 3) if case.categorical else torch.tensor([1, 0, 1])
    problem.fill(torch.where(certain > 0, INF, -INF) if not case.categorical else 0.3)
    mask = certain > 0 if case.categorical else None
    result = case.run(problem, num_samples=4, mask=mask, vectorize=False)
    assert_close(result, problem.f(certain.double()).expand(20))
    assert (problem.backward(result)[0] == 0).all()
    # the rest is not impressed
    problem.fill(0.3, where=(slice(None), 2))
    mask = None if mask is None else mask | torch.tensor([[False], [False], [True]])
    to_logits, _ = problem.sound(case.run(problem, num_samples=4, mask=mask, vectorize=False))
    assert (to_logits[:, :2] == 0).all()


@each([case for case in CASES if case.categorical])
def test_one_category(case):
    for latent in ((), (2,)):
        problem = Problem(case, latent=latent, categories=1)
        f = Recorder(problem.f)
        result = case.run(problem, f, vectorize=False)
        assert all(z.shape == problem.logits.shape for z in f.seen)
        assert_close(result, problem.f(torch.ones_like(problem.logits)))
        assert_close(problem.backward(result)[0], torch.zeros_like(problem.logits))


@each(CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ties_and_rows_of_the_gradient_that_sum_to_zero(case, dtype):
    # on both sides of the size where the draw changes its method
    for categories in (2, 7, 64, 65) if case.categorical else (2,):
        problem = Problem(case, (50,), (1,) if case.categorical else (3,), categories, dtype)
        for logits in (problem.logits.detach().clone(), 0.0):
            problem.fill(logits)
            to_logits, _ = problem.sound(case.run(problem, num_samples=4))
            size = to_logits.abs().sum(-1).max()
            if case.categorical:
                assert to_logits.sum(-1).abs().max() < 16 * torch.finfo(dtype).eps * size


@each(DEFAULTS)
def test_result_does_not_depend_on_the_number_of_threads(case):
    problem = Problem(case, (1100,), (2,), 8)
    problem.weight.requires_grad_(False)
    runs, before = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            result = case.run(problem, num_samples=4, generator=seeded(1))
            runs.append((result, torch.autograd.grad(result.sum(), problem.logits)[0]))
    finally:
        torch.set_num_threads(before)
    assert_all(torch.equal, *runs)


# with options of their own, not with those of a variant
OBJECTS = [Case(case.row, case.family) for case in DEFAULTS if case.row.module is not None]


def new_object(case: Case, problem: Problem, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make_object(case.row.name, problem.logits, problem.f, case.family)


def all_gradients(case, problem, estimator, **arguments) -> list[Tensor]:
    """The result, and the gradients for the logits, for f and for all that the object learns."""
    result = case.run(problem, estimator=estimator, **arguments)
    leaves = [*problem.leaves(), *estimator.parameters()]
    return [result.detach(), *torch.autograd.grad(result.mean(), leaves)]


@each(OBJECTS)
def test_object_made_from_its_name_teaches_logits_f_and_itself(case):
    for latent in ((2,), (1,), ()):
        problem = Problem(case, latent=latent)
        estimator, f = new_object(case, problem), Recorder(problem.f)
        assert type(estimator) is case.row.module
        result, to_logits, to_weight, *own = all_gradients(case, problem, estimator, f=f)
        plain = torch.stack([problem.f(z) for z in f.seen[: case.count]]).mean(0)
        assert torch.equal(result, plain)
        # f gets its ordinary gradient and nothing from the control variate
        assert_close(to_weight, torch.autograd.grad(plain.mean(), problem.weight)[0])
        assert (to_logits != 0).any()
        assert all(x.isfinite().all() for x in own)
        # where nothing learns, f is evaluated at the samples only
        estimator.requires_grad_(False)
        f = Recorder(problem.f)
        case.run(problem, f, problem.logits.detach(), estimator).sum().backward()
        assert (len(f.seen), f.slopes) == (case.count, 0)


@each(OBJECTS)
def test_estimator_object_can_be_copied_and_saved(case):
    problem = Problem(case)
    estimator, fresh = (new_object(case, problem, seed) for seed in (0, 1))
    with torch.no_grad():
        for parameter in estimator.parameters():
            parameter += 0.1
    all_gradients(case, problem, estimator)  # a running mean remembers it
    fresh.load_state_dict(estimator.state_dict())
    twins = [copy.deepcopy(estimator), fresh, pickle.loads(pickle.dumps(estimator))]
    expected = all_gradients(case, problem, estimator, generator=seeded(1))
    for twin in twins:
        assert type(twin) is type(estimator)
        assert_all(torch.equal, all_gradients(case, problem, twin, generator=seeded(1)), expected)


@each(OBJECTS)
def test_estimator_object_may_have_another_dtype_than_the_logits(case):
    for logits_dtype, dtype in itertools.product(FLOATS, (torch.float32, torch.float64)):
        problem = Problem(case, dtype=logits_dtype)
        estimator = new_object(case, problem).to(dtype)
        result, to_logits, to_weight, *own = all_gradients(case, problem, estimator)
        assert {x.dtype for x in (result, to_logits, to_weight)} == {logits_dtype}
        assert {x.dtype for x in own} <= {dtype}
        assert all(x.isfinite().all() for x in (to_logits, *own))


@each([case for case in OBJECTS if "control" not in case.row.options])
def test_fresh_estimator_object_is_its_function(case):
    # parameters start in float32, so everything is compared there
    problem = Problem(case, dtype=torch.float32)
    estimators = case.row, new_object(case, problem)
    runs = [case.results(problem, estimator=x, generator=seeded(1)) for x in estimators]
    assert torch.equal(runs[0][0], runs[1][0])
    assert_all(assert_close, *runs)


def test_running_baseline_forgets_losses_that_are_not_finite_and_empty_batches():
    estimator = Reinforce(decay=0.5)
    logits = torch.zeros(3, 2, requires_grad=True)
    for value in (4.0, 8.0, NAN, 2.0):
        result = expectation(logits, lambda z, v=value: z[..., 0] * 0 + v, estimator)
    (gradient,) = torch.autograd.grad(result.sum(), logits)
    # the distance of f from the baseline (8 / 2 + 4 / 4) / (1 - 1 / 4), times the score
    assert gradient.abs()[0, 0].item() == pytest.approx((20 / 3 - 2) / 2)
    assert estimator.steps == 3
    before = copy.deepcopy(estimator.state_dict())
    expectation(logits[:0], lambda z: z[..., 0], estimator)
    assert_all(torch.equal, estimator.state_dict().values(), before.values())


def test_running_baseline_in_transforms():
    """Where it cannot be updated that is said, and in evaluation mode nothing is in the way."""
    estimator, logits = Reinforce(), normal(5, 3)
    f = lambda z: z @ torch.arange(3.0, dtype=z.dtype)  # noqa: E731
    total = lambda x: expectation(x, f, estimator).sum()  # noqa: E731
    ways = [
        lambda: grad(total)(logits),
        lambda: vmap(total, randomness="different")(logits),
        lambda: vmap(grad(total), randomness="different")(logits),
    ]
    expectation(logits, f, estimator)
    before = copy.deepcopy(estimator.state_dict())
    for way in ways:
        with pytest.raises(RuntimeError, match=r"^Reinforce: expected evaluation mode .*\.eval\("):
            way()
        estimator.eval()
        assert way().isfinite().all()
        estimator.train()
    assert_all(torch.equal, estimator.state_dict().values(), before.values())

    def with_buffers(logits, buffers):
        result = torch.func.functional_call(estimator, buffers, (logits, f))
        return result.sum(), buffers

    gradient, after = grad(with_buffers, has_aux=True)(
        logits, {name: x.clone() for name, x in before.items()}
    )
    assert gradient.isfinite().all()
    assert after["steps"] == before["steps"] + 1 == 2


@each([case for case in OBJECTS if str(case) in ("bernoulli-double_cv", "bernoulli-relax")])
def test_compiled_estimator_object_learns_nothing(case, compiler):
    """Compiled code has no second derivative: the parameters of the object get no gradient."""
    problem = Problem(case)
    estimator = new_object(case, problem)
    compiled = torch.compile(
        lambda logits: case.run(problem, logits=logits, estimator=estimator),
        fullgraph=True,
        backend="aot_eager",
    )
    compiled(problem.logits).mean().backward()
    assert problem.logits.grad.isfinite().all()
    assert all(x.grad is None for x in estimator.parameters())


def loss(z):
    return z.flatten(1).sum(-1)


class Bad(NamedTuple):
    """A call with wrong arguments, and the whole error that it must give."""

    error: type[Exception]
    message: str
    estimator: Any = "reinforce"
    family: str = "categorical"
    arguments: Mapping[str, Any] = {}
    logits: Any = None
    f: Any = loss


def required(row: Estimator) -> dict[str, Any]:
    """The options that a row cannot do without."""
    return {"control": loss} if "control" in row.options else {}


@contextlib.contextmanager
def refused(error: type[Exception], message: str) -> Iterator[None]:
    """This very error, with this whole message."""
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


def bad_for_rows() -> Iterator[Bad]:
    """What every estimator refuses, on the first family that it is for."""
    fewer = r"With fewer samples use reinforce, muprop or rebar, or a sampler .*"
    others = r"Other estimators have other options: see discretegrad\.ESTIMATORS\."
    make = r"Make one with torch\.Generator\('cpu'\)\.manual_seed\(0\)\."
    for row in ESTIMATORS.values():
        for error, message, arguments in (
            (ValueError, "num_samples of at least 1, got 0", {"num_samples": 0}),
            (TypeError, "num_samples to be an int, got bool", {"num_samples": True}),
            (ValueError, rf"num_samples of at least 2, got 1\. {fewer}", {"num_samples": 1}),
            (TypeError, rf"options among .*, got 'flavour'\. {others}", {"flavour": "plain"}),
            (TypeError, rf"generator to be a torch\.Generator, got int\. {make}", {"generator": 0}),
        ):
            if row.min_samples > 1 or arguments != {"num_samples": 1}:
                message = rf"{row.name}: expected {message}"
                arguments = {**required(row), **arguments}
                yield Bad(error, message, row.name, row.families[0], arguments)
        for family in {"categorical", "bernoulli"} - set(row.families):
            working = ", ".join(x.name for x in ESTIMATORS.values() if family in x.families)
            message = (
                rf"{row.name}: expected family='{row.families[0]}', which it is defined for, got "
                rf"'{family}'\. For that family use one of {working}\."
            )
            made = [] if row.module is None else [row.module()]
            for estimator in (row.name, row, row.function, partial(row.function), *made):
                yield Bad(ValueError, message, estimator, family)
        if row.module is not None:
            once = r"Make one once, so that it can learn, and pass that\."
            message = rf"expectation: .* object, got the class {row.module.__name__}\. {once}"
            yield Bad(TypeError, message, row.module)


def bad_values() -> Iterator[Bad]:
    """Logits, masks and temperatures that no estimator takes."""
    taus = {0.0: r"0\.0", -1.0: r"-1\.0", NAN: "nan", torch.tensor(-2.0): r"-2\.0", "hot": "str"}
    nan = torch.tensor([[[0.0, 0.0, 0.0], [0.0, NAN, 0.0]]])
    for case in DEFAULTS:
        name, needs = case.row.name, required(case.row)
        here = rf"{name}(_expectation)?: expected"
        message = rf"{here} logits without NaN, got NaN.* Find its origin with torch\.autograd.*"
        yield Bad(ValueError, message, name, case.family, needs, nan)
        if not case.categorical:
            continue
        message = rf"{here} at least one allowed category in every row, but in row 0 the mask .*"
        mask = torch.tensor([[False], [True]])
        yield Bad(ValueError, message, name, arguments={"mask": mask, **needs})
        for tau, came in taus.items() if case in WITH_TAU else ():
            error = TypeError if tau == "hot" else ValueError
            message = rf"{here} .*tau.* got {came}\. Use tau=1\.0 unless .*"
            yield Bad(error, message, name, arguments={"tau": tau, **needs})
        if case in WITH_TAU:
            shapes = r"logits have shape \(5, 2, 3\), got tau of shape \(5, 2\)\."
            message = rf"{here} a tau that broadcasts .* {shapes} .* use tau\.unsqueeze\(-1\)\."
            yield Bad(ValueError, message, name, arguments={"tau": torch.ones(5, 2), **needs})
    for name in ("reinmax", "reinforce"):
        message = rf"{name}: expected a mask .* shape \(5, 2, 3\), got shape \(4,\)"
        yield Bad(ValueError, message, name, arguments={"mask": torch.ones(4) > 0})
        message = rf"{name}: expected mask to be .*, got torch\.float32\. Convert .*"
        yield Bad(TypeError, message, name, arguments={"mask": torch.ones(3)})


def bad_options() -> Iterator[Bad]:
    """What single estimators refuse."""
    for name, made in (("relax", r"Relax\(2\)"), ("rodeo", r"Rodeo\(\)")):
        message = (
            rf"{name}: expected a control variate, got None\. It learns, so make it once: "
            rf"estimator = discretegrad\.{made}\. Give its parameters to an optimiser, and pass it "
            r"as the estimator\."
        )
        yield Bad(ValueError, message, name, "bernoulli")
        message = rf"{name}: expected control to be a function or an nn\.Module, got int"
        yield Bad(TypeError, message, name, "bernoulli", {"control": 3})
    pairs = r"expected an even num_samples, because samples come in antithetic pairs, got 3\."
    for name, others in (("disarm", "arms or leave_one_out"), ("disarm_tree", "leave_one_out")):
        message = rf"{name}: {pairs} For an odd number use {others}\."
        yield Bad(ValueError, message, name, ESTIMATORS[name].families[0], {"num_samples": 3})
    for name, options in COEFFICIENTS.items():
        for option in options:
            axes = ", or with one for .*" if name != "muprop" else ""
            element = rf"a tensor with one element{axes}, got shape \(2,\)"
            for value, error, message in (
                (NAN, ValueError, f"a finite {option}, got nan"),
                ("much", TypeError, f"{option} to be a number, got str"),
                (True, TypeError, f"{option} to be a number, got bool"),
                (torch.ones(2), ValueError, f"{option} to be a number or {element}"),
                (torch.tensor(NAN), ValueError, f"a finite {option}, got NaN or inf"),
                (
                    torch.tensor(1),
                    TypeError,
                    f"{option} to be .* got dtype torch.int64. Convert .*",
                ),
            ):
                arguments = {**required(ESTIMATORS[name]), option: value}
                yield Bad(error, rf"{name}: expected {message}", name, "bernoulli", arguments)
    for name, option in (("rebar", "tied"), ("exact", "vectorize")):
        message = rf"{name}: expected {option} to be True or False, got 1"
        yield Bad(TypeError, message, name, arguments={option: 1})
    for name in ("reinforce", "reinmax"):
        message = rf'(expectation|{name}): expected vectorize to be True, False or "stacked", got 1'
        yield Bad(TypeError, message, name, arguments={"vectorize": 1})
    wrong = r'expected baseline None, "running", "self_critical" or a callable, got'
    for value in ("mean", 1.0):
        yield Bad(ValueError, rf"reinforce: {wrong} {value!r}", arguments={"baseline": value})
    message = (
        r'reinforce: expected baseline None, "self_critical" or a callable, got "running", which '
        r"must remember earlier calls\. Make an object that does, once: estimator = "
        r'discretegrad\.Reinforce\(baseline="running"\), and pass it as the estimator\.'
    )
    yield Bad(ValueError, message, arguments={"baseline": "running"})
    message = r'disarm_tree: expected tree to be "balanced" or "stick_breaking", got \'oak\''
    yield Bad(ValueError, message, "disarm_tree", arguments={"tree": "oak"})
    message = r"reinforce: expected options among num_samples, baseline, mask, given, vectorize, .*"
    yield Bad(TypeError, message, arguments={"tau": 1.0})


OF_PARTIALS = {
    "family": "Pass family to expectation itself, which overrides what a partial has\\.",
    "generator": "Pass generator to expectation itself, which overrides what a partial has\\.",
    "dim": r"Here categories are last: pass logits\.movedim\(dim, -1\)\.",
    "given": "Pass given to expectation itself, with samples in a leading axis\\.",
}


def bad_calls() -> Iterator[Bad]:
    """What the front refuses."""
    message = rf"expected the name of an estimator \({', '.join(ESTIMATORS)}\), got 'vimco'"
    yield Bad(ValueError, message, "vimco")
    message = r"expectation: expected estimator to be a name .*, a row, .* a callable .*, got int"
    yield Bad(TypeError, message, 3)
    message = "expectation: expected family to be one of 'categorical', 'bernoulli', or .*, got .*'"
    yield Bad(ValueError, message, family="poisson")
    message = r"expectation: expected f to be .*, got Tensor\. .* in the order \(logits, f\)\."
    yield Bad(TypeError, message, logits=loss, f=torch.zeros(5, 2, 3))
    message = r'.* a category axis, got a scalar\. For a single .* family="bernoulli"\.'
    yield Bad(ValueError, message, logits=torch.zeros(()))
    for option, advice in OF_PARTIALS.items():
        message = rf"expectation: expected a partial without {option}, got {{}}\. {advice}"
        bound = {"tau": 1.3, option: 0}
        came = rf"partial\(reinmax, tau=\.\.\., {option}=\.\.\.\)"
        yield Bad(TypeError, message.format(came), partial(reinmax, **bound))
        if option in ("family", "generator"):
            for function, name in ((leave_one_out, "leave_one_out"), (Relax(6), "Relax")):
                came = rf"partial\({name}, {option}=\.\.\.\)"
                yield Bad(TypeError, message.format(came), partial(function, **{option: 0}))
    for function in (reinmax, leave_one_out):
        message = (
            rf"expectation: expected a partial that gives options by their names, got "
            rf"partial\({function.__name__}, \.\.\., tau=\.\.\.\)\. expectation itself passes "
            r"what comes first, from the logits on\."
        )
        yield Bad(TypeError, message, partial(function, torch.zeros(5, 2, 3), tau=1.3))
    message = (
        r"expectation: expected an estimator that can be called as .*, with \(logits, f\) and "
        r"family, generator, num_samples, got <function .*>: .*\. For a sampler of your own .*"
    )
    yield Bad(TypeError, message, lambda logits, **arguments: logits)


@pytest.mark.parametrize(
    "bad",
    [*bad_for_rows(), *bad_values(), *bad_options(), *bad_calls()],
    ids=lambda bad: bad.message,
)
def test_bad_arguments(bad):
    logits = torch.zeros((5, 2, 3) if bad.family == "categorical" else (5, 2), requires_grad=True)
    f, generator = Recorder(bad.f) if callable(bad.f) else bad.f, seeded(1)
    states = torch.get_rng_state(), generator.get_state()
    arguments = {"generator": generator, "num_samples": 2, **bad.arguments}
    logits = logits if bad.logits is None else bad.logits
    with refused(bad.error, bad.message):
        expectation(logits, f, bad.estimator, family=bad.family, **arguments)
    # nothing has happened: samplers find logits without a distribution by drawing from them, and
    # who must say how large a network to make has to know what f consumes
    assert torch.equal(torch.get_rng_state(), states[0])
    row = ESTIMATORS.get(bad.estimator) if isinstance(bad.estimator, str) else None
    if not (row is not None and row.kind == "sampler" and "_expectation" in bad.message):
        assert torch.equal(generator.get_state(), states[1])
    assert not callable(bad.f) or not f.seen or "Relax" in bad.message


CONVERT = r"a tensor, got {}\. Convert with torch\.as_tensor\(loss\)\."
BEGINS = r"one loss .*, a shape that begins \(5, 2\), got {}\. Sum f over its other axes\."
RETURNS = [
    (lambda z: 1.0, TypeError, CONVERT.format("float")),
    (lambda z: (loss(z), loss(z)), TypeError, CONVERT.format("tuple")),
    (lambda z: loss(z) * 1j, TypeError, r"real losses, got dtype torch\.complex\d+"),
    (lambda z: loss(z)[:3], ValueError, BEGINS.format(r"\(3,\)")),
    (lambda z: loss(z)[:, None], ValueError, BEGINS.format(r"\(5, 1\)")),
]


@each(DEFAULTS)
@pytest.mark.parametrize("vectorize", [False, True])
def test_bad_losses(case, vectorize):
    problem = Problem(case, (5,))
    for f, error, message in RETURNS:
        with refused(error, f"{case.row.name}(_expectation)?: expected f to return {message}"):
            case.run(problem, f, vectorize=vectorize)


FITS = r"a baseline that broadcasts to the batch shape \(5,\), got {}\. It gets the logits; .*"
EACH = (
    r"the control .* one number per sample .*, shape {}, got {}\. It must accept any number of .*"
)
TENSOR = "the control variate to return a tensor, got float"
SIZE = r"the last axes of z to have 3 elements together, got shape \(4, 5, 2\)\. Make it for one .*"


@pytest.mark.parametrize(
    ("name", "function", "error", "message"),
    [
        ("reinforce", lambda x: x, ValueError, FITS.format(r"\(5, 2\)")),
        ("reinforce", lambda x: 1.0, TypeError, "the baseline to return a tensor, got float"),
        ("relax", lambda z: z.sum(), ValueError, EACH.format(r"\(4, 5\)", r"\(\)")),
        ("relax", lambda z: 1.0, TypeError, TENSOR),
        ("relax", ControlNetwork(3), ValueError, SIZE),
        ("rodeo", lambda x: x[..., :1], ValueError, EACH.format(r".*, 3, 2\)", r".*, 3, 1\)")),
        ("rodeo", lambda x: 1.0, TypeError, TENSOR),
    ],
)
def test_functions_that_return_something_else(name, function, error, message):
    logits = torch.zeros(5, 2, requires_grad=True)
    option = {"baseline" if name == "reinforce" else "control": function}
    with refused(error, rf"\w+: expected {message}"):
        expectation(logits, loss, name, family="bernoulli", num_samples=2, **option)


@pytest.mark.parametrize(
    ("made", "arguments", "error", "message"),
    [
        (Reinforce, {"baseline": "mean"}, ValueError, r"baseline None, .* got 'mean'"),
        (Reinforce, {"decay": 1.0}, ValueError, r"decay in \[0, 1\), got 1\.0\. Try 0\.99\."),
        (MuProp, {"offset": INF}, ValueError, r"a finite offset, got inf"),
        (Rebar, {"tau": 0.0}, ValueError, r"tau in \(0, inf\), .* got 0\.0\. .*"),
        (Rebar, {"scale": NAN}, ValueError, r"a finite scale, got nan"),
        (Rebar, {"tied": 1}, TypeError, r"tied to be True or False, got 1"),
        (Relax, {"control": None}, ValueError, r"a control variate, got None\. .*"),
        (Relax, {"control": 3, "tau": -1.0}, ValueError, r"tau in \(0, inf\), .* got -1\.0\. .*"),
        (ControlNetwork, {"num_inputs": 0}, ValueError, r"num_inputs of at least 1, got 0"),
        (ControlNetwork, {"num_inputs": 3, "hidden": 2.5}, TypeError, r"hidden to be an int, .*"),
        (DoubleCV, {"alpha": "a"}, TypeError, r"alpha to be a number, got str"),
        (Rodeo, {"hidden": 0}, ValueError, r"hidden of at least 1, got 0"),
    ],
)
def test_bad_estimator_object(made, arguments, error, message):
    with refused(error, f"{made.__name__}: expected {message}"):
        made(**arguments)


def test_only_what_learns_is_made_from_its_name():
    with pytest.raises(ValueError, match=r"^expected an estimator that can learn, .*'reinmax'"):
        make_object("reinmax", torch.zeros(3), loss)
