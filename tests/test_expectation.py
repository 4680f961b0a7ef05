"""The front and the contract of every estimator behind it: the rules run over the registry."""

import contextlib
import copy
import dataclasses
import inspect
import math
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

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
    reinmax,
    rodeo,
)
from discretegrad.expectation import make_object

INF, NAN = math.inf, math.nan
# for one formula computed along two paths
TOLERANCES = {
    torch.float64: {"rtol": 1e-11, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
}
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def joint_control(axes: int) -> Callable[[Tensor], Tensor]:
    """A control variate of joint samples that take up the last ``axes`` axes."""

    def control(z: Tensor) -> Tensor:
        return z.mul(0.7).tanh().sum(tuple(range(-axes, 0))) if axes else z.mul(0.7).tanh()

    return control


def stein_control(x: Tensor) -> Tensor:
    """The network of RODEO, without anything to learn."""
    return (x * 0.3).tanh() + x.flip(-1) * 0.1


@dataclass(frozen=True)
class Variant:
    """Options under which a row is tested, and its cost where they change it."""

    options: Mapping[str, Any] = field(default_factory=dict)
    # evaluations and slopes per sample, and the same whatever the number of samples
    cost: Mapping[str, int] = field(default_factory=dict)


# a row that is not listed has no options
VARIANTS: Mapping[str, Sequence[Variant]] = {
    "gumbel_softmax": (Variant(), Variant({"hard": False})),
    "gumbel_rao": (Variant({"num_draws": 3}),),
    "gapped": (Variant({"gap": "p"}),),
    "mean_baseline": (Variant(), Variant({"order": 1})),
    "reinforce": (
        Variant(),
        Variant({"baseline": "self_critical"}, {"extra_evaluations": 1}),
        Variant({"baseline": torch.Tensor.mean}),
    ),
    "disarm_tree": (Variant(), Variant({"tree": "stick_breaking"})),
    "muprop": (Variant(), Variant({"offset": 0.4, "slope": -0.6})),
    "double_cv": (Variant(), Variant({"alpha": 0.5})),
    "rebar": (Variant(), Variant({"tied": False}, {"evaluations": 3, "slopes": 2})),
    "relax": (
        Variant({"control": joint_control}),
        Variant({"control": joint_control, "tied": True}, {"evaluations": 2, "slopes": 1}),
        Variant({"control": joint_control, "scale": 0.0}, {"evaluations": 1, "slopes": 0}),
    ),
    "rodeo": (Variant({"control": stein_control, "alpha": 0.7, "beta": -0.4}),),
}
# the samples of these depend on each other
COUPLED = {"disarm", "arms", "disarm_tree"}


@dataclass(frozen=True)
class Case:
    """An estimator with its options."""

    row: Estimator
    family: str
    variant: Variant

    def __str__(self):
        options = [
            f"{name}={getattr(value, '__name__', value)}"
            for name, value in self.variant.options.items()
            if name != "control"
        ]
        return "-".join([self.family, self.row.name, *options])

    @property
    def categorical(self) -> bool:
        return self.family == "categorical"

    @property
    def sampled(self) -> bool:
        """Whether f is evaluated at samples, and not at all outcomes."""
        return self.row.evaluations is not None

    @property
    def hard(self) -> bool:
        return self.variant.options.get("hard", True)

    @property
    def needs_slope(self) -> bool:
        return self.cost("slopes") + self.cost("extra_slopes") > 0

    @property
    def count(self) -> int:
        """A number of samples that every estimator can have."""
        return max(2, self.row.min_samples)

    def cost(self, what: str) -> int:
        return self.variant.cost.get(what, getattr(self.row, what))

    def options(self, problem: "Problem") -> dict[str, Any]:
        options = dict(self.variant.options)
        if options.get("control") is joint_control:
            options["control"] = joint_control(len(problem.consumed))
        return options

    def run(self, problem: "Problem", f=None, logits=None, estimator=None, **arguments) -> Tensor:
        arguments = {"num_samples": self.count, **self.options(problem), **arguments}
        return expectation(
            problem.logits if logits is None else logits,
            problem.f if f is None else f,
            self.row.name if estimator is None else estimator,
            family=self.family,
            **arguments,
        )


CASES = [
    Case(row, family, variant)
    for row in ESTIMATORS.values()
    for variant in VARIANTS.get(row.name, (Variant(),))
    for family in row.families
]
# one for each row and family
DEFAULTS = [case for case in CASES if case.variant == VARIANTS.get(case.row.name, (Variant(),))[0]]
SAMPLED = [case for case in CASES if case.sampled]
SCORE = [case for case in CASES if case.row.kind == "score"]
SLOPED = [case for case in SAMPLED if case.needs_slope]
SLOPE_FREE = [case for case in CASES if not case.needs_slope]
CATEGORICAL = [case for case in CASES if case.categorical]
BERNOULLI = [case for case in CASES if not case.categorical]
REINMAX = {case.family: case for case in CASES if case.row.name == "reinmax"}
WITH_TAU = [case for case in CASES if case.row.kind == "sampler" or "tau" in case.row.options]


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=str)


def sums_over(x: Tensor, axes: int) -> Tensor:
    return x.sum(tuple(range(-axes, 0))) if axes else x


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

    @staticmethod
    def incoming(result: Tensor) -> Tensor:
        return normal(*result.shape, seed=11, dtype=result.dtype)


class Recorder:
    """Remembers what f was asked and what it said."""

    def __init__(self, f):
        self.f = f
        self.seen: list[Tensor] = []
        self.losses: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        self.seen.append(z.detach().clone())
        loss = self.f(z)
        self.losses.append(loss.detach())
        return loss


class CountedSlope(torch.autograd.Function):
    """The identity; counts how often a gradient comes back through it."""

    count = 0

    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, g):
        CountedSlope.count += 1
        return g


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCES[expected.dtype])


@pytest.fixture(autouse=True)
def global_seed():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


@pytest.fixture
def fixed_draws(monkeypatch):
    """Random numbers that depend on the shape only: evenly spread, the same in every transform."""

    def rand(*shape, dtype=torch.float32, device=None, generator=None):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        place = torch.arange(math.prod(shape), dtype=torch.float64, device=device)
        return ((place * 0.6180339887 + 0.37) % 1).to(dtype).reshape(shape)

    def randint(high, shape, device=None, generator=None):
        place = torch.arange(math.prod(shape), device=device)
        return (place * 2654435761 % high).reshape(shape)

    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(torch, "randint", randint)


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def own_warnings(test):
    """Let pass what torch's own use of its deprecated parts warns of, here and nowhere else."""
    messages = (".torch.jit.script(_method)?. is deprecated", ".*Function'> should not be instanti")
    for message in messages:
        test = pytest.mark.filterwarnings(f"ignore:{message}:DeprecationWarning")(test)
    return test


SHAPES = [(batch, latent) for batch in ((), (4,), (3, 2)) for latent in ((), (2,), (2, 2))]


@each(SAMPLED)
def test_value_is_the_mean_of_f_at_discrete_samples(case):
    for batch, latent in SHAPES:
        assert_value_is_the_mean(case, batch, latent)


def assert_value_is_the_mean(case, batch, latent):
    problem = Problem(case, batch, latent)
    f = Recorder(problem.f)
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
        result = case.run(problem)
        assert result.shape == batch
        expected = exact_expectation(problem.logits, problem.f, family=case.family)
        assert torch.equal(result, expected)
        gradients = problem.backward(result), problem.backward(expected)
        for actual, wanted in zip(*gradients, strict=True):
            assert torch.equal(actual, wanted)


@each(SCORE)
def test_front_function_and_row_are_the_same(case):
    problem = Problem(case)
    function, options = case.row.function, case.options(problem)
    ways = [
        case.run(problem, generator=seeded(1)),
        case.run(problem, estimator=case.row, generator=seeded(1)),
        case.run(problem, estimator=function, generator=seeded(1)),
        case.run(problem, estimator=partial(function), generator=seeded(1)),
        function(
            problem.logits,
            problem.f,
            num_samples=case.count,
            family=case.family,
            generator=seeded(1),
            **options,
        ),
    ]
    expected = problem.backward(ways[0])
    for result in ways[1:]:
        assert torch.equal(result, ways[0])
        for actual, wanted in zip(problem.backward(result), expected, strict=True):
            assert torch.equal(actual, wanted)


def as_given(case: Case, samples: Sequence[Tensor]) -> Tensor:
    """Samples in the form in which they are given."""
    samples = torch.stack(list(samples))
    return samples.argmax(-1) if case.categorical else samples


@each([case for case in SAMPLED if not case.row.takes])
def test_draws_that_were_made_elsewhere(case):
    problem = Problem(case)
    f = Recorder(problem.f)
    drawn = case.run(problem, f, num_samples=4, generator=seeded(1))
    given = as_given(case, f.seen[:4])
    expected, before = problem.backward(drawn), torch.get_rng_state()
    # whatever says which of two values it is
    forms = [given] if case.categorical else [given, given.bool(), given.clone().requires_grad_()]
    for form in forms:
        for count in (None, 4):
            again = case.run(problem, num_samples=count, given=form)
            assert torch.equal(again, drawn)
            for actual, wanted in zip(problem.backward(again), expected, strict=True):
                assert torch.equal(actual, wanted)
    assert torch.equal(torch.get_rng_state(), before)
    if case.row.name not in COUPLED:
        other = case.run(problem, num_samples=4, given=given.roll(1, 1))
        assert not torch.equal(other, drawn)


RELAXED = [case for case in SCORE if case.row.takes]


@each(RELAXED)
def test_draws_and_noise_that_were_made_elsewhere(case):
    problem = Problem(case)
    f = Recorder(problem.f)
    drawn = case.run(problem, f, num_samples=3, generator=seeded(1))
    given = as_given(case, f.seen[:3])
    # the same numbers: those of the draw come first
    generator, shape = seeded(1), (3, *problem.logits.shape)
    torch.rand((3, *given.shape[1:]), generator=generator, dtype=torch.float64)
    tied = case.options(problem).get("tied", case.row.options["tied"])
    uniform = torch.stack(
        [torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2 - tied)]
    )
    noise = -torch.log1p(-uniform) if case.categorical else uniform.logit()
    noise = noise[0] if tied else noise
    again = case.run(problem, num_samples=None, given=given, noise=noise)
    assert torch.equal(again, drawn)
    for actual, wanted in zip(problem.backward(again), problem.backward(drawn), strict=True):
        assert_close(actual, wanted)
    # the noise may be drawn here all the same
    assert torch.equal(case.run(problem, num_samples=None, given=given), drawn)
    with pytest.raises(ValueError, match=f"^{case.row.name}: expected given= beside noise="):
        case.run(problem, noise=noise)
    for wrong, error, message in (
        (noise[:1], ValueError, rf"noise of shape \({', '.join(map(str, noise.shape))}\), got"),
        (-noise.abs() if case.categorical else noise * NAN, ValueError, "finite .* noise, got"),
        (3.0, TypeError, "noise to be a floating-point tensor, got float"),
    ):
        with pytest.raises(error, match=f"^{case.row.name}: expected .*{message}"):
            case.run(problem, num_samples=None, given=given, noise=wrong)


@each(SAMPLED)
def test_draws_that_do_not_fit(case):
    problem = Problem(case)
    good = torch.zeros(case.count, *problem.logits.shape)
    good = good[..., 0].long() if case.categorical else good
    for given in (good[0], torch.cat([good, good])):
        with pytest.raises(
            ValueError, match=re.escape(f"on cpu, got {tuple(given.shape)} on cpu")
        ):
            case.run(problem, given=given)
    for given in ([0.0], good.to(torch.complex64)):
        with pytest.raises(TypeError, match=f"^{case.row.name}: expected given to be a"):
            case.run(problem, given=given)


@each(SAMPLED)
def test_draws_that_nobody_can_make(case):
    problem = Problem(case)
    good = torch.zeros(case.count, *problem.logits.shape)
    good = good[..., 0].long() if case.categorical else good
    for value in (-1, 3) if case.categorical else (0.5, 2.0, NAN):
        given = good.clone()
        given[0, 0, 0] = value
        with pytest.raises(ValueError, match=r"expected (every )?given (categories in|value to)"):
            case.run(problem, given=given)
    mask = torch.ones_like(problem.logits, dtype=torch.bool)
    mask[0, 0] = torch.arange(3) > 0 if case.categorical else False
    with pytest.raises(ValueError, match=r"expected given (categories|values) that are"):
        case.run(problem, given=good if case.categorical else 1 - good, mask=mask)


@each([case for case in CASES if case.row.name in ("disarm", "disarm_tree")])
def test_pairs_that_are_not_antithetic(case):
    """Partners never take the less likely of two values both."""
    problem = Problem(case)
    with torch.no_grad():
        problem.logits[:] = torch.tensor([2.0, 1.0, 0.0]) if case.categorical else -1.0
    good = torch.zeros(2, *problem.logits.shape)
    good = good[..., 0].long() if case.categorical else good
    assert case.run(problem, given=good).isfinite().all()
    with pytest.raises(ValueError, match=f"^{case.row.name}: expected given to hold antithetic"):
        case.run(problem, given=good + (2 if case.categorical else 1))


def test_rodeo_with_a_weight_for_each_of_the_first_batch_axes():
    logits = normal(3, 2, 4, dtype=torch.float64)
    weights = [torch.tensor([0.2, -0.5, 0.9], dtype=torch.float64) * s for s in (1, 2)]
    target = normal(4, seed=1, dtype=torch.float64)
    given = (normal(2, 3, 2, 4, seed=2) > 0).double()
    found = []
    for rows in ([slice(0, 3)], [slice(n, n + 1) for n in range(3)]):
        leaves = [x.clone().requires_grad_() for x in (logits, *weights)]
        for row in rows:
            alpha, beta = (w[row] if len(rows) == 1 else w[row.start] for w in leaves[1:])
            loss = rodeo(
                leaves[0][row],
                lambda b: ((b - target) ** 3).sum(-1),
                given=given[:, row],
                control=stein_control,
                alpha=alpha,
                beta=beta,
            )
            loss.mean(1).sum().backward()
        found.append([x.grad for x in leaves])
    for together, alone in zip(*found, strict=True):
        assert_close(together, alone)


@pytest.mark.parametrize("shape", [(2,), (3, 2, 4), (3, 2, 4, 1)])
def test_rodeo_with_weights_that_do_not_fit(shape):
    with pytest.raises(ValueError, match=r"alpha to be .*, or with one for the first axes of \(3"):
        rodeo(
            torch.zeros(3, 2, 4, requires_grad=True),
            lambda b: b.sum(-1),
            control=stein_control,
            alpha=torch.zeros(shape),
        )


EMPTY = {
    "no batch element": ((0,), (2,)),
    "none with two batch axes": ((3, 0), ()),
    "no variable": ((3,), (0,)),
}


@each(CASES)
@pytest.mark.parametrize(("batch", "latent"), EMPTY.values(), ids=EMPTY.keys())
def test_nothing_to_sample(case, batch, latent):
    problem = Problem(case, batch, latent)
    result = case.run(problem)
    assert result.shape == batch
    assert result.isfinite().all()
    to_logits, to_weight = problem.backward(result)
    assert to_logits.shape == problem.logits.shape
    assert (to_weight == 0).all()


@each(CASES)
def test_gradient_has_the_dtype_of_the_logits(case):
    for dtype in FLOATS:
        problem = Problem(case, (20,), dtype=dtype)
        f = Recorder(problem.f)
        result = case.run(problem, f)
        assert all(z.dtype == dtype for z in f.seen)
        assert result.dtype == dtype
        to_logits, to_weight = problem.backward(result)
        assert to_logits.dtype == to_weight.dtype == dtype
        assert to_logits.isfinite().all()
        assert (to_logits != 0).any()


@each(SAMPLED)
def test_losses_keep_their_own_dtype(case):
    for dtype in FLOATS:
        for loss_dtype in set(FLOATS) - {dtype}:
            problem = Problem(case, dtype=dtype)
            f = Recorder(lambda z: problem.f(z).to(loss_dtype))  # noqa: B023
            result = case.run(problem, f)
            assert result.dtype == loss_dtype
            assert torch.equal(result, torch.stack(f.losses[: case.count]).mean(0))
            to_logits, _ = problem.backward(result)
            assert to_logits.dtype == dtype
            assert to_logits.isfinite().all()


@each(
    [
        case
        for case in SLOPE_FREE
        if case.sampled and not callable(case.variant.options.get("baseline"))
    ]
)
def test_estimate_does_not_suffer_from_the_dtype_of_the_logits(case):
    """Where all is computed in float32, only the samples and the result are rounded."""
    low, high = (Problem(case, (20,), dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    with torch.no_grad():
        high.logits.copy_(low.logits)
        high.weight.copy_(low.weight)
    results = []
    for problem in (low, high):
        result = case.run(problem, lambda z: high.f(z.float()), generator=seeded(1))
        results.append((result, torch.autograd.grad(result.sum(), problem.logits)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1].bfloat16())


def count_of_ones(z):
    return z[..., 0].flatten(1).sum(-1) if z.ndim > 2 else z.sum(-1)


WHOLE = {
    "integers": lambda z: count_of_ones(z).long(),
    "booleans": lambda z: count_of_ones(z) == 1,
}


@each(SLOPE_FREE)
@pytest.mark.parametrize("kind", WHOLE)
def test_losses_may_be_whole_numbers(case, kind):
    dtype = torch.float32
    problem = Problem(case, (20,), dtype=dtype)
    f = WHOLE[kind]
    result = case.run(problem, f, generator=seeded(1))
    floats = case.run(problem, lambda z: f(z).to(dtype), generator=seeded(1))
    assert result.dtype == dtype
    assert torch.equal(result, floats)
    gradients = [torch.autograd.grad(x.sum(), problem.logits)[0] for x in (result, floats)]
    assert torch.equal(*gradients)
    assert (gradients[0] != 0).any()


STOCHASTIC = {
    "dropout": lambda z: nn.functional.dropout(z, 0.5),
    "noise": lambda z: z * torch.rand(z.shape, dtype=z.dtype),
}


@each(SAMPLED)
@pytest.mark.parametrize("kind", STOCHASTIC)
def test_f_may_be_random(case, kind):
    problem = Problem(case)
    f = Recorder(lambda z: problem.f(STOCHASTIC[kind](z)))
    result = case.run(problem, f)
    assert torch.equal(result, torch.stack(f.losses[: case.count]).mean(0))
    to_logits, to_weight = problem.backward(result)
    assert to_logits.isfinite().all()
    assert (to_logits != 0).any()
    assert (to_weight != 0).any()
    vectorized = case.run(problem, lambda z: problem.f(STOCHASTIC[kind](z)), vectorize=True)
    assert vectorized.shape == problem.batch
    assert vectorized.isfinite().all()


@each(DEFAULTS)
def test_vectorized_f_is_random_for_each_sample(case):
    problem = Problem(case)

    def noisy(z):
        return problem.f(z) * 0 + torch.rand(problem.batch, dtype=z.dtype)

    # noise that all samples shared would be uniform, not close to its mean; exact weighs outcomes
    result = case.run(problem, noisy, num_samples=100, vectorize=True)
    assert (result - 0.5).abs().max() < (0.2 if case.sampled else 0.5)


def not_differentiable(z):
    return (z.flatten(1).argmax(-1) > 0).to(z.dtype)


@each(SLOPE_FREE)
@pytest.mark.parametrize("vectorize", [False, True])
def test_f_need_not_be_differentiable(case, vectorize):
    problem = Problem(case, (20,))
    for f in (not_differentiable, lambda z: problem.f(z.detach()).detach()):
        result = case.run(problem, f, vectorize=vectorize)
        (to_logits,) = torch.autograd.grad(result.sum(), problem.logits)
        assert to_logits.isfinite().all()
        assert (to_logits != 0).any()


@each(SLOPED)
@pytest.mark.parametrize("vectorize", [False, True])
def test_missing_slope_is_an_error_that_names_alternatives(case, vectorize):
    problem = Problem(case)
    for f in (not_differentiable, lambda z: problem.f(z.detach()).detach()):
        with pytest.raises(
            ValueError,
            match=f"^{case.row.name}: expected f to be differentiable "
            "with respect to the sample, but its result does not "
            "depend on the sample .* Use an estimator that needs "
            "values of f only: reinforce, leave_one_out, .*",
        ):
            case.run(problem, f, vectorize=vectorize)
        # nobody asks for a gradient
        value = case.run(problem, f, logits=problem.logits.detach(), vectorize=vectorize)
        assert value.shape == problem.batch
        with torch.no_grad():
            assert case.run(problem, f, vectorize=vectorize).shape == problem.batch


def test_alternatives_without_a_slope_are_those_of_the_table():
    problem = Problem(REINMAX["categorical"])
    with pytest.raises(ValueError, match="values of f only") as caught:
        expectation(problem.logits, not_differentiable, "reinmax")
    named = str(caught.value).split("values of f only: ")[1]
    free = {row.name for row in ESTIMATORS.values() if not row.needs_grad_f} - {"exact"}
    words = named.rstrip(".").replace(" or ", ", ").split(", ")
    assert set(words) == free


@each([case for case in SLOPED if case.row.kind == "score"])
def test_missing_slope_is_found_though_parameters_have_one(case):
    problem = Problem(case)
    with pytest.raises(ValueError, match="expected f to be differentiable"):
        case.run(problem, lambda z: problem.f(z.detach()))


@each(SAMPLED)
def test_logits_that_f_uses_itself_get_both_gradients(case):
    problem = Problem(case)

    def f_of(logits):
        """A loss with a sampled KL term: the log-probability of the sample."""

        def f(z):
            if case.categorical:
                log_prob = (z * logits.log_softmax(-1)).sum((-2, -1))
            else:
                log_prob = (z * logits - nn.functional.softplus(logits)).sum(-1)
            return problem.f(z) + log_prob

        return f

    f = Recorder(f_of(problem.logits))
    result = case.run(problem, f, generator=seeded(1))
    both, _ = problem.backward(result)
    alone = case.run(problem, f_of(problem.logits.detach()), generator=seeded(1))
    estimate, _ = problem.backward(alone)
    plain = torch.stack([f.f(sample) for sample in f.seen[: case.count]]).mean(0)
    ordinary, _ = problem.backward(plain)
    assert torch.equal(result, alone)
    assert (ordinary.abs() > 1e-3).any()
    assert_close(both, estimate + ordinary)


@each(CASES)
def test_one_backward_fills_every_gradient_once(case):
    problem = Problem(case)
    expected = problem.backward(case.run(problem, generator=seeded(1)))
    result = case.run(problem, generator=seeded(1))
    (result * problem.incoming(result)).sum().backward()
    for leaf, wanted in zip(problem.leaves(), expected, strict=True):
        assert torch.equal(leaf.grad, wanted)


@each(CASES)
def test_estimate_is_scaled_for_each_batch_element(case):
    problem = Problem(case)
    (each_one,) = torch.autograd.grad(case.run(problem, generator=seeded(1)).sum(), problem.logits)
    result = case.run(problem, generator=seeded(1))
    scaled, _ = problem.backward(result)
    factors = problem.incoming(result).reshape(-1, *[1] * len(problem.consumed))
    assert_close(scaled, factors * each_one)


@each(CASES)
def test_memory_layout_does_not_matter(case):
    problem = Problem(case, (3, 4))
    turned = problem.logits.detach().movedim(0, -1).contiguous().movedim(-1, 0).requires_grad_()
    assert not turned.is_contiguous()
    results = [
        case.run(problem, logits=logits, generator=seeded(1)) for logits in (problem.logits, turned)
    ]
    assert torch.equal(*results)
    gradients = [
        torch.autograd.grad(result.sum(), logits)[0]
        for result, logits in zip(results, (problem.logits, turned), strict=True)
    ]
    assert_close(*gradients)


@each(CASES)
def test_constants_give_constants(case):
    problem = Problem(case)
    for context, logits in (
        (torch.no_grad(), problem.logits),
        (torch.inference_mode(), problem.logits),
        (contextlib.nullcontext(), problem.logits.detach()),
    ):
        with context:
            result = case.run(problem, lambda z: problem.f(z).detach(), logits=logits)
        assert not result.requires_grad
    # parameters learn also where the logits are constants
    result = case.run(problem, logits=problem.logits.detach())
    (to_weight,) = torch.autograd.grad(result.sum(), problem.weight)
    assert (to_weight != 0).any()


def counted(problem):
    return Recorder(lambda z: problem.f(CountedSlope.apply(z)))


@each(SAMPLED)
@pytest.mark.parametrize("samples", ["fewest", 4, 6])
def test_cost_is_that_of_the_table(case, samples):
    """A slope is a backward pass through f that ends at its argument.

    Score-function estimators make theirs in forward; a sampler gets its own from the backward
    pass of the user. That pass goes through f also for the parameters of f, but then it need not
    end at the sample.
    """
    count = case.row.min_samples if samples == "fewest" else samples
    problem = Problem(case)
    f = counted(problem)
    CountedSlope.count = 0
    result = case.run(problem, f, num_samples=count)
    if case.row.kind == "sampler":
        assert CountedSlope.count == 0
    problem.backward(result)
    assert len(f.seen) == case.cost("evaluations") * count + case.cost("extra_evaluations")
    assert CountedSlope.count == case.cost("slopes") * count + case.cost("extra_slopes")


@each(SAMPLED)
def test_backward_makes_no_slope_that_nobody_needs(case):
    problem = Problem(case)
    problem.weight.requires_grad_(False)
    CountedSlope.count = 0
    case.run(problem, counted(problem)).sum().backward()
    assert CountedSlope.count == case.cost("slopes") * case.count + case.cost("extra_slopes")


@each(SAMPLED)
def test_without_gradients_f_is_evaluated_at_the_samples_only(case):
    problem = Problem(case)
    f = counted(problem)
    CountedSlope.count = 0
    with torch.no_grad():
        case.run(problem, f)
    assert len(f.seen) == case.count
    case.run(problem, f, logits=problem.logits.detach()).sum().backward()
    assert len(f.seen) == 2 * case.count
    assert CountedSlope.count == 0


@each(SAMPLED)
def test_vectorized_f_is_called_once_for_all_samples(case):
    problem = Problem(case)
    calls = []

    def f(z):
        calls.append(z.shape)
        return problem.f(z)

    case.run(problem, f, num_samples=6, vectorize=True).sum().backward()
    # once for the samples, and once for whatever else is evaluated
    more = case.cost("evaluations") > 1 or case.cost("extra_evaluations") > 0
    assert calls == [problem.logits.shape] * (2 if more else 1)


@each([case for case in CASES if not case.sampled])
def test_exact_evaluates_all_outcomes_and_all_again_in_backward(case):
    problem = Problem(case)
    outcomes = 9 if case.categorical else 4
    f = Recorder(problem.f)
    result = case.run(problem, f, vectorize=False)
    # one call finds the shape
    assert len(f.seen) == 1 + outcomes
    result.sum().backward()
    assert len(f.seen) == 1 + 2 * outcomes


def mask_of(problem):
    return (torch.arange(problem.logits.numel()) % 3 != 1).reshape(problem.logits.shape)


@each(CASES)
def test_mask_means_the_same_as_minus_infinity(case):
    problem, infinite = (Problem(case, (6,), (2,), 4) for _ in range(2))
    mask = mask_of(problem)
    # the excluded ones would be drawn nearly always, were they not excluded
    with torch.no_grad():
        problem.logits += 9 * ~mask
        infinite.logits.copy_(problem.logits.masked_fill(~mask, -INF))
    f = Recorder(problem.f)
    masked = case.run(problem, f, mask=mask, generator=seeded(1), vectorize=False)
    result = case.run(infinite, generator=seeded(1), vectorize=False)
    assert torch.equal(masked, result)
    if case.sampled:
        assert all((z[~mask] == 0).all() for z in f.seen)
    to_logits, to_weight = problem.backward(masked)
    expected = infinite.backward(result)
    assert torch.equal(to_logits, expected[0])
    assert torch.equal(to_weight, expected[1])
    assert (to_logits[~mask] == 0).all()
    assert (to_logits[mask] != 0).any()


@each(CASES)
def test_mask_broadcasts(case):
    problem = Problem(case)
    mask = torch.tensor([True, False, True] if case.categorical else [True, False])
    result = case.run(problem, mask=mask, generator=seeded(1))
    expected = case.run(problem, mask=mask.expand_as(problem.logits), generator=seeded(1))
    assert torch.equal(result, expected)
    assert torch.equal(problem.backward(result)[0], problem.backward(expected)[0])


@each(WITH_TAU)
def test_tensor_tau_has_one_temperature_for_each_variable(case):
    problem = Problem(case)
    taus = torch.tensor([0.6, 0.9, 1.0, 1.6], dtype=torch.float64)
    rows = taus.reshape(-1, *[1] * len(problem.consumed))
    result = case.run(problem, tau=rows, generator=seeded(1))
    to_logits, _ = problem.backward(result)
    for number, tau in enumerate(taus.tolist()):
        single = case.run(problem, tau=tau, generator=seeded(1))
        assert_close(result[number], single[number])
        assert_close(to_logits[number], problem.backward(single)[0][number])


@each(CASES)
def test_generator_decides_and_the_global_state_is_left_alone(case):
    problem = Problem(case)
    runs = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        result = case.run(problem, generator=seeded(5))
        runs.append((result, *problem.backward(result)))
        assert torch.equal(torch.get_rng_state(), before)
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


@each(SAMPLED)
def test_every_call_draws_anew(case):
    problem = Problem(case, (60,))
    generator = seeded(5)
    first, second = (case.run(problem, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    # the global state likewise, and it decides where there is no generator
    torch.manual_seed(3)
    first, second = (case.run(problem) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(case.run(problem), first)


@each([case for case in SAMPLED if case.hard and case.row.name not in COUPLED])
def test_independent_samples_are_the_same_for_all_estimators(case):
    problem = Problem(case, (30,))
    recorders = [Recorder(problem.f) for _ in range(2)]
    for f, which in zip(recorders, (case, REINMAX[case.family]), strict=True):
        which.run(problem, f, num_samples=3, generator=seeded(4))
    for sample, expected in zip(recorders[0].seen[:3], recorders[1].seen, strict=True):
        assert torch.equal(sample, expected)


@each(CASES)
def test_vectorized_is_the_same(case):
    problem = Problem(case)
    one_by_one = case.run(problem, num_samples=4, vectorize=False, generator=seeded(1))
    together = case.run(problem, num_samples=4, vectorize=True, generator=seeded(1))
    assert_close(together, one_by_one)
    expected = problem.backward(one_by_one)
    for actual, wanted in zip(problem.backward(together), expected, strict=True):
        assert_close(actual, wanted)


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
@pytest.mark.parametrize("vectorize", [False, True])
def test_ensemble_is_a_loop_over_its_members(case, vectorize, fixed_draws):
    ensemble = Ensemble(case)
    inputs = ensemble.inputs
    loss = partial(ensemble.loss, vectorize=vectorize)
    together = vmap(loss, randomness="different")(*inputs)
    assert_close(together, torch.stack([loss(*member) for member in zip(*inputs, strict=True)]))


@each(CASES)
def test_gradients_of_an_ensemble_are_a_loop_over_its_members(case, fixed_draws):
    ensemble = Ensemble(case)
    inputs = ensemble.inputs
    gradients = vmap(grad(ensemble.total, argnums=(0, 1)), randomness="different")(*inputs)
    for number, member in enumerate(zip(*inputs, strict=True)):
        leaves = [x.clone().requires_grad_() for x in member]
        expected = torch.autograd.grad(ensemble.total(*leaves), leaves)
        for actual, wanted in zip(gradients, expected, strict=True):
            assert_close(actual[number], wanted)


@each(CASES)
def test_backward_after_vmap(case, fixed_draws):
    ensemble = Ensemble(case)
    leaves = [x.clone().requires_grad_() for x in ensemble.inputs]
    together = vmap(ensemble.total, randomness="different")(*leaves).sum()
    loop = sum(ensemble.total(*member) for member in zip(*leaves, strict=True))
    expected = torch.autograd.grad(loop, leaves)
    for actual, wanted in zip(torch.autograd.grad(together, leaves), expected, strict=True):
        assert_close(actual, wanted)


@each(SAMPLED)
def test_members_of_an_ensemble_draw_for_themselves(case):
    ensemble = Ensemble(case)
    logits, weight = (x[0] for x in ensemble.inputs)
    many = logits.expand(20, *logits.shape)
    draw = vmap(ensemble.loss, in_dims=(0, None), randomness="different")
    results = draw(many, weight)
    assert results.shape == (20, 4)
    assert len(results.unique(dim=0)) > 10
    same = vmap(ensemble.loss, in_dims=(0, None), randomness="same")(many, weight)
    assert len(same.unique(dim=0)) == 1


@each(SAMPLED)
def test_generator_decides_inside_vmap(case):
    ensemble = Ensemble(case)
    logits, weight = (x[0] for x in ensemble.inputs)
    many = logits.expand(20, *logits.shape)

    def results(seed):
        before = torch.get_rng_state()
        loss = partial(ensemble.loss, generator=seeded(seed))
        found = vmap(loss, in_dims=(0, None), randomness="different")(many, weight)
        assert torch.equal(torch.get_rng_state(), before)
        return found

    assert torch.equal(results(1), results(1))
    assert not torch.equal(results(1), results(2))
    assert len(results(1).unique(dim=0)) > 10


@each(CASES)
def test_functional_gradient_is_that_of_autograd(case):
    ensemble = Ensemble(case)
    member = [x[0] for x in ensemble.inputs]
    gradients = grad(lambda *x: ensemble.total(*x, generator=seeded(3)), argnums=(0, 1))(*member)
    leaves = [x.clone().requires_grad_() for x in member]
    expected = torch.autograd.grad(ensemble.total(*leaves, generator=seeded(3)), leaves)
    for actual, wanted in zip(gradients, expected, strict=True):
        assert_close(actual, wanted)


@each(CASES)
def test_nested_transforms(case, fixed_draws):
    ensemble = Ensemble(case)
    logits, weight = ensemble.inputs
    grid = torch.stack([logits, 2 * logits])
    inner = vmap(ensemble.loss, randomness="different")
    together = vmap(inner, in_dims=(0, None), randomness="different")(grid, weight)
    assert_close(together, torch.stack([inner(x, weight) for x in grid]))
    jacobian = jacrev(ensemble.loss)(logits[0], weight[0])
    # batch elements do not meet
    leaf = logits[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(ensemble.loss(leaf, weight[0]).sum(), leaf)
    assert_close(jacobian.sum(0), expected)


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


def slow_unless(quick, cases):
    return [case if quick(case) else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def assert_compiles(case, learns):
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
        weights = Problem.incoming(result)
        gradients = torch.autograd.grad((result * weights).sum(), leaves)
        results.append((result.detach(), *gradients))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


@each(slow_unless(lambda x: x in DEFAULTS and (x.row.name, x.family) in QUICK, CASES))
@own_warnings
def test_compiled_is_the_eager_one(case, compiler):
    assert_compiles(case, learns=True)


@each(slow_unless(lambda x: (x.row.name, x.family) == ("double_cv", "bernoulli"), DEFAULTS))
@own_warnings
def test_compiled_with_nothing_to_learn_in_f(case, compiler):
    assert_compiles(case, learns=False)


@own_warnings
def test_generator_breaks_the_graph(compiler):
    """torch cannot trace a generator: with one, compiled code runs the draw outside the graph."""
    (case,) = [x for x in CASES if str(x) == "bernoulli-leave_one_out"]
    problem = Problem(case)

    def step(logits, generator):
        return case.run(problem, logits=logits, generator=generator)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(step, fullgraph=True, backend="aot_eager")(problem.logits, seeded(1))
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager")
    results = [function(problem.logits, seeded(1)) for function in (compiled, step)]
    assert_close(*results)
    assert_close(*(problem.backward(result)[0] for result in results))


@each(CASES)
@pytest.mark.parametrize("vectorize", [False, True])
def test_f_may_be_infinite_at_excluded_outcomes(case, vectorize):
    problem = Problem(case)
    mask = torch.ones(problem.logits.shape, dtype=torch.bool)
    mask[..., 0, 0] = False

    def f(z):
        excluded = z[..., 0, 0] if case.categorical else z[..., 0]
        return torch.where(excluded > 0, INF, problem.f(z))

    if not case.categorical:
        mask[..., 0], mask[..., 1] = False, True
    result = case.run(problem, f, mask=mask, vectorize=vectorize)
    assert result.isfinite().all()
    to_logits, to_weight = problem.backward(result)
    assert to_logits.isfinite().all()
    assert to_weight.isfinite().all()
    assert (to_logits != 0).any()


@each(CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_saturated_logits(case, dtype):
    for size in (50.0, 3e4):
        problem = Problem(case, dtype=dtype)
        with torch.no_grad():
            problem.logits.sign_().mul_(size)
            if case.categorical:
                problem.logits[0] = torch.tensor([-size, 0, size])
            else:
                problem.logits[0, 0] = 0
        result = case.run(problem, num_samples=4)
        assert result.isfinite().all()
        for gradient in problem.backward(result):
            assert gradient.isfinite().all()


@each(BERNOULLI)
def test_infinite_bit_is_certain(case):
    problem = Problem(case, (20,), (3,))
    with torch.no_grad():
        problem.logits[:] = torch.tensor([INF, -INF, 0.3])
    f = Recorder(problem.f)
    result = case.run(problem, f, num_samples=4, vectorize=False)
    if case.sampled:
        assert all((z[..., 0] == 1).all() and (z[..., 1] == 0).all() for z in f.seen)
    to_logits, _ = problem.backward(result)
    assert (to_logits[..., :2] == 0).all()
    assert to_logits.isfinite().all()
    assert (to_logits[..., 2] != 0).any()


@each(CATEGORICAL)
def test_only_allowed_category_is_certain(case):
    problem = Problem(case)
    mask = torch.zeros(problem.logits.shape, dtype=torch.bool)
    mask[..., 1] = True
    result = case.run(problem, mask=mask)
    certain = problem.f(mask.double())
    assert_close(result, certain)
    assert (problem.backward(result)[0] == 0).all()


@each(CATEGORICAL)
@pytest.mark.parametrize("latent", [(), (2,)], ids=str)
def test_one_category(case, latent):
    problem = Problem(case, latent=latent, categories=1)
    f = Recorder(problem.f)
    result = case.run(problem, f, vectorize=False)
    assert all(z.shape == problem.logits.shape for z in f.seen)
    assert_close(result, problem.f(torch.ones_like(problem.logits)))
    assert_close(problem.backward(result)[0], torch.zeros_like(problem.logits))


@each(CASES)
def test_ties(case):
    # on both sides of the size where the draw changes its method
    for categories in (2, 64, 65) if case.categorical else (2,):
        problem = Problem(case, (50,), (1,) if case.categorical else (3,), categories)
        with torch.no_grad():
            problem.logits.zero_()
        result = case.run(problem, num_samples=4)
        assert result.isfinite().all()
        to_logits, _ = problem.backward(result)
        assert to_logits.isfinite().all()
        assert (to_logits != 0).any()


@each(CATEGORICAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradient_rows_sum_to_zero(case, dtype):
    problem = Problem(case, (40,), (2,), 7, dtype)
    to_logits, _ = problem.backward(case.run(problem, num_samples=4))
    size = to_logits.abs().sum(-1).max()
    assert size > 0
    assert to_logits.sum(-1).abs().max() < 16 * torch.finfo(dtype).eps * size


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@each(DEFAULTS)
def test_result_does_not_depend_on_the_number_of_threads(case):
    problem = Problem(case, (1100,), (2,), 8)
    runs = []
    for count in (1, 2):
        with threads(count):
            result = case.run(problem, num_samples=4, generator=seeded(1))
            (to_logits,) = torch.autograd.grad(result.sum(), problem.logits)
            runs.append((result.detach(), to_logits))
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


# how an estimator object is made for joint samples of a size; by default without arguments
MAKERS: Mapping[type[nn.Module], Callable[[int], nn.Module]] = {
    Relax: lambda size: Relax(ControlNetwork(size, hidden=4)),
    Rodeo: lambda size: Rodeo(4, alpha=0.3, beta=-0.2),
}


@dataclass(frozen=True)
class Learner:
    """A family, and how to make an estimator object for it."""

    case: Case
    make: Callable[[int], nn.Module]
    name: str

    def __str__(self):
        return f"{self.case.family}-{self.name}"

    def new(self, problem: Problem, seed=0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make(math.prod(problem.consumed))

    def run(self, problem: Problem, estimator: nn.Module, f=None, **arguments) -> Tensor:
        return expectation(
            problem.logits,
            problem.f if f is None else f,
            estimator,
            num_samples=self.case.count,
            family=self.case.family,
            **arguments,
        )


LEARNERS = [
    Learner(case, MAKERS.get(case.row.module, lambda size, m=case.row.module: m()), case.row.name)
    for case in DEFAULTS
    if case.row.module is not None
] + [
    Learner(case, make, name)
    for case in DEFAULTS
    if case.row.name == "reinforce"
    for name, make in (
        ("reinforce network", lambda size: Reinforce(ControlNetwork(size, hidden=4))),
        ("reinforce self_critical", lambda size: Reinforce("self_critical")),
        ("relax without f", lambda size: Relax(ControlNetwork(size, hidden=4), scale=None)),
        ("relax tied", lambda size: Relax(ControlNetwork(size, hidden=4), tied=True)),
        ("rebar untied", lambda size: Rebar(tied=False)),
    )
]
each_learner = pytest.mark.parametrize("learner", LEARNERS, ids=str)


def gradients_of(learner, problem, estimator, **arguments):
    """The result, and the gradients for the logits, for f and for the estimator."""
    result = learner.run(problem, estimator, **arguments)
    result.mean().backward()
    own = {name: x.grad for name, x in estimator.named_parameters()}
    found = result.detach(), problem.logits.grad, problem.weight.grad, own
    problem.logits.grad = problem.weight.grad = None
    estimator.zero_grad()
    return found


@each_learner
def test_one_backward_teaches_logits_f_and_estimator(learner):
    problem = Problem(learner.case)
    estimator = learner.new(problem)
    f = Recorder(problem.f)
    result, to_logits, to_weight, own = gradients_of(
        learner, problem, estimator, f=f, generator=seeded(1)
    )
    plain = torch.stack([problem.f(z) for z in f.seen[: learner.case.count]]).mean(0)
    assert torch.equal(result, plain)
    # f gets its ordinary gradient and nothing from the control variate
    assert_close(to_weight, torch.autograd.grad(plain.mean(), problem.weight)[0])
    assert (to_logits != 0).any()
    for name, gradient in own.items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert (gradient != 0).any(), name


@each_learner
def test_estimator_object_can_be_copied_and_saved(learner):
    problem = Problem(learner.case)
    estimator = learner.new(problem)
    gradients_of(learner, problem, estimator, generator=seeded(3))
    fresh = learner.new(problem, seed=1)
    fresh.load_state_dict(estimator.state_dict())
    copies = [copy.deepcopy(estimator), fresh, pickle.loads(pickle.dumps(estimator))]
    expected = gradients_of(learner, problem, estimator, generator=seeded(1))
    for twin in copies:
        assert type(twin) is type(estimator)
        found = gradients_of(learner, problem, twin, generator=seeded(1))
        for actual, wanted in zip(found[:3], expected[:3], strict=True):
            assert torch.equal(actual, wanted)
        assert found[3].keys() == expected[3].keys()
        for name, gradient in found[3].items():
            assert torch.equal(gradient, expected[3][name])


@each_learner
def test_estimator_object_may_have_another_dtype_than_the_logits(learner):
    for logits_dtype in FLOATS:
        problem = Problem(learner.case, dtype=logits_dtype)
        for dtype in (torch.float32, torch.float64):
            estimator = learner.new(problem).to(dtype)
            result, to_logits, _, own = gradients_of(learner, problem, estimator)
            assert result.dtype == to_logits.dtype == logits_dtype
            assert to_logits.isfinite().all()
            for name, gradient in own.items():
                assert gradient.dtype == dtype, name
                assert gradient.isfinite().all(), name


@each_learner
def test_estimator_object_changes_nothing_where_nothing_learns(learner):
    problem = Problem(learner.case)
    estimator = learner.new(problem).requires_grad_(False)
    f = counted(problem)
    CountedSlope.count = 0
    with torch.no_grad():
        learner.run(problem, estimator, f=f)
    constant = expectation(
        problem.logits.detach(),
        f,
        estimator,
        num_samples=learner.case.count,
        family=learner.case.family,
    )
    constant.sum().backward()
    assert len(f.seen) == 2 * learner.case.count
    assert CountedSlope.count == 0


@pytest.mark.parametrize(
    "learner",
    [x for x in LEARNERS if x.name in ("reinforce", "muprop", "rebar", "double_cv")],
    ids=str,
)
def test_fresh_estimator_object_is_its_function(learner):
    # parameters start in float32, so everything is compared there
    problem = Problem(learner.case, dtype=torch.float32)
    result, to_logits, *_ = gradients_of(
        learner, problem, learner.new(problem), generator=seeded(1)
    )
    expected = learner.case.run(problem, generator=seeded(1))
    assert torch.equal(result, expected)
    expected.mean().backward()
    assert_close(to_logits, problem.logits.grad)


def test_any_callable_is_an_estimator():
    problem = Problem(REINMAX["bernoulli"])
    received = {}

    def constant(logits, f, **arguments):
        received.update(arguments)
        return f(torch.ones_like(logits))

    generator = seeded(1)
    result = expectation(
        problem.logits,
        problem.f,
        constant,
        num_samples=3,
        family="bernoulli",
        generator=generator,
        flavour="plain",
    )
    assert torch.equal(result, problem.f(torch.ones_like(problem.logits)))
    assert received == {
        "num_samples": 3,
        "family": "bernoulli",
        "generator": generator,
        "flavour": "plain",
    }


def test_running_baseline_is_the_corrected_mean_of_earlier_values():
    estimator = Reinforce(decay=0.5)
    logits = torch.zeros(3, 2, requires_grad=True)
    seen = []
    for value in (4.0, 8.0, NAN, 2.0):
        result = expectation(logits, lambda z, v=value: z[..., 0] * 0 + v, estimator)
        (gradient,) = torch.autograd.grad(result.sum(), logits)
        seen.append((gradient.abs() / 0.5)[0, 0].item())
    # the distance of f from the baseline: 0, then 4, then (8 / 2 + 4 / 4) / (1 - 1 / 4)
    assert seen[:2] == [4.0, 4.0]
    assert seen[3] == pytest.approx(20 / 3 - 2)
    assert estimator.steps == 3
    estimator.eval()
    before = copy.deepcopy(estimator.state_dict())
    expectation(logits, lambda z: z[..., 0], estimator)
    assert all(torch.equal(x, before[name]) for name, x in estimator.state_dict().items())
    estimator.train()
    expectation(logits[:0], lambda z: z[..., 0], estimator)
    assert all(torch.equal(x, before[name]) for name, x in estimator.state_dict().items())


@pytest.mark.parametrize("name", ["double_cv", "relax"])
@own_warnings
def test_compiled_estimator_object_learns_nothing(name, compiler):
    """Compiled code has no second derivative: the parameters of the object get no gradient."""
    (learner,) = [x for x in LEARNERS if str(x) == f"bernoulli-{name}"]
    problem = Problem(learner.case)
    estimator = learner.new(problem)
    compiled = torch.compile(
        lambda logits: learner.run(problem, estimator), fullgraph=True, backend="aot_eager"
    )
    compiled(problem.logits).mean().backward()
    assert problem.logits.grad.isfinite().all()
    assert all(x.grad is None for x in estimator.parameters())


def loss(z):
    return z.flatten(1).sum(-1)


@dataclass(frozen=True)
class Bad:
    """A call with wrong arguments, and the whole error that it must give."""

    what: str
    error: type[Exception]
    message: str
    estimator: Any = "reinforce"
    family: str = "categorical"
    logits: Any = None
    f: Any = loss
    arguments: Mapping[str, Any] = field(default_factory=dict)
    # samplers find logits that have no distribution by drawing from them
    found_by_drawing: bool = False

    def __str__(self):
        return self.what

    def run(self, logits: Tensor, generator: torch.Generator) -> None:
        arguments = {"generator": generator, "num_samples": 2, **self.arguments}
        expectation(
            logits if self.logits is None else self.logits,
            self.f,
            self.estimator,
            family=self.family,
            **arguments,
        )


def row_with(value):
    return torch.tensor([[[0.0, 0.0, 0.0], [0.0, value, 0.0]]])


def names(family):
    return ", ".join(row.name for row in ESTIMATORS.values() if family in row.families)


BITS, CATEGORIES = torch.zeros(5, 2), torch.zeros(5, 2, 3)
BAD = [
    Bad(
        "unknown name",
        ValueError,
        rf"expected the name of an estimator \({', '.join(ESTIMATORS)}\), got 'vimco'",
        "vimco",
    ),
    Bad(
        "estimator of a wrong type",
        TypeError,
        r"expectation: expected estimator to be a name in discretegrad\.ESTIMATORS, a row, a "
        r"sampler of discretegrad, or a callable with the arguments of discretegrad\.reinforce, "
        r"got int",
        3,
    ),
    *[
        Bad(
            f"the class {made.__name__}",
            TypeError,
            rf"expectation: expected an estimator object, got the class {made.__name__}\. Make one "
            r"once, so that it can learn, and pass that\.",
            made,
        )
        for made in (Reinforce, Relax, MuProp, Rebar, DoubleCV, Rodeo)
    ],
    *[
        Bad(
            f"{row.name} on {family} variables, by {way}",
            ValueError,
            rf"{row.name}: expected family='{row.families[0]}', which it is defined for, got "
            rf"'{family}'\. For that family use one of {names(family)}\.",
            estimator,
            family,
            BITS,
        )
        for row in ESTIMATORS.values()
        for family in {"categorical", "bernoulli"} - set(row.families)
        for way, estimator in (
            ("name", row.name),
            ("row", row),
            ("function", row.function),
            ("partial function", partial(row.function)),
        )
    ],
    Bad(
        "unknown family",
        ValueError,
        r"expectation: expected family to be one of 'categorical', 'bernoulli', got 'poisson'",
        family="poisson",
    ),
    *[
        Bad(
            f"too few samples for {row.name}",
            ValueError,
            rf"{row.name}: expected num_samples of at least {row.min_samples}, got 1\. With fewer "
            r"samples use reinforce, muprop or rebar, or a sampler such as reinmax\.",
            row.name,
            row.families[0],
            BITS,
            arguments={
                "num_samples": 1,
                **({"control": loss} if "control" in row.options else {}),
            },
        )
        for row in ESTIMATORS.values()
        if row.min_samples > 1
    ],
    *[
        Bad(
            f"an odd number of samples for {name}",
            ValueError,
            rf"{name}: expected an even num_samples, because samples come in antithetic pairs, got "
            rf"3\. For an odd number use {others}\.",
            name,
            family,
            BITS,
            arguments={"num_samples": 3},
        )
        for name, family, others in (
            ("disarm", "bernoulli", "arms or leave_one_out"),
            ("disarm_tree", "categorical", "leave_one_out"),
        )
    ],
    *[
        Bad(
            f"num_samples {value} for {row.name}",
            error,
            rf"{row.name}: expected num_samples {message}",
            row.name,
            row.families[0],
            BITS,
            arguments={
                "num_samples": value,
                **({"control": loss} if "control" in row.options else {}),
            },
        )
        for row in ESTIMATORS.values()
        for value, error, message in (
            (0, ValueError, "of at least 1, got 0"),
            (-1, ValueError, "of at least 1, got -1"),
            (2.0, TypeError, "to be an int, got float"),
            (True, TypeError, "to be an int, got bool"),
        )
    ],
    *[
        Bad(
            f"unknown option of {row.name}",
            TypeError,
            rf"{row.name}: expected options among [\w, ]*mask[\w, ]*, got 'flavour'\. Other "
            r"estimators have other options: see discretegrad\.ESTIMATORS\.",
            row.name,
            row.families[0],
            BITS,
            arguments={"flavour": "plain"},
        )
        for row in ESTIMATORS.values()
    ],
    Bad(
        "an option of another estimator",
        TypeError,
        r"reinforce: expected options among num_samples, baseline, mask, given, vectorize, got "
        r"'tau'\. Other estimators have other options: see discretegrad\.ESTIMATORS\.",
        arguments={"tau": 1.0},
    ),
    Bad(
        "f that is no function",
        TypeError,
        r"expectation: expected f to be a function from a sample to one loss per batch element, "
        r"got Tensor\. Arguments come in the order \(logits, f\)\.",
        f=torch.zeros(3),
    ),
    Bad(
        "swapped arguments",
        TypeError,
        r"expectation: expected f to be a function .*, got Tensor\. .* order \(logits, f\)\.",
        logits=loss,
        f=CATEGORIES,
    ),
    Bad(
        "running by name",
        ValueError,
        r'reinforce: expected baseline None, "self_critical" or a callable, got "running", which '
        r"must remember earlier calls\. Make an object that does, once: estimator = "
        r'discretegrad\.Reinforce\(baseline="running"\), and pass it as the estimator\.',
        arguments={"baseline": "running"},
    ),
    *[
        Bad(
            f"baseline {value}",
            ValueError,
            r'reinforce: expected baseline None, "running", "self_critical" or a callable, got '
            rf"{value!r}",
            arguments={"baseline": value},
        )
        for value in ("mean", 1.0)
    ],
    *[
        Bad(
            f"{name} without a control variate",
            ValueError,
            rf"{name}: expected a control variate, got None\. It learns, so make it once: "
            rf"estimator = discretegrad\.{made}\. Give its parameters to an optimiser, and pass "
            r"it as the estimator\.",
            name,
            "bernoulli",
            BITS,
        )
        for name, made in (
            ("relax", r"Relax\(2\)"),
            ("rodeo", r"Rodeo\(\)"),
        )
    ],
    *[
        Bad(
            f"a control variate of {name} that is no function",
            TypeError,
            rf"{name}: expected control to be a function or an nn\.Module, got int",
            name,
            "bernoulli",
            BITS,
            arguments={"control": 3},
        )
        for name in ("relax", "rodeo")
    ],
    *[
        Bad(
            f"tau {value} for {case.row.name}",
            error,
            rf"{case.row.name}: expected .*tau.* got {came}\. Use tau=1\.0 unless .*",
            case.row.name,
            arguments={
                "tau": value,
                **({"control": loss} if "control" in case.row.options else {}),
            },
        )
        for case in WITH_TAU
        if case in DEFAULTS and case.categorical
        for value, error, came in (
            (0.0, ValueError, r"0\.0"),
            (-1.0, ValueError, r"-1\.0"),
            (NAN, ValueError, "nan"),
            (torch.tensor(-2.0), ValueError, r"-2\.0"),
            ("hot", TypeError, "str"),
        )
    ],
    *[
        Bad(
            f"tau of a wrong shape for {case.row.name}",
            ValueError,
            rf"{case.row.name}: expected a tau that broadcasts against logits with size 1 along "
            r"dim -1 \(one temperature per row\), logits have shape \(5, 2, 3\), got tau of shape "
            r"\(5, 2\)\. For one value per row use tau\.unsqueeze\(-1\)\.",
            case.row.name,
            arguments={
                "tau": torch.ones(5, 2),
                **({"control": loss} if "control" in case.row.options else {}),
            },
        )
        for case in WITH_TAU
        if case in DEFAULTS and case.categorical
    ],
    *[
        Bad(
            f"{option} {value} for {name}",
            error,
            rf"{name}: expected {message}",
            name,
            "bernoulli",
            BITS,
            arguments={option: value, **({"control": loss} if name == "rodeo" else {})},
        )
        for name, option in (
            ("muprop", "offset"),
            ("muprop", "slope"),
            ("rebar", "scale"),
            ("double_cv", "alpha"),
            ("rodeo", "beta"),
        )
        for value, error, message in (
            (NAN, ValueError, f"a finite {option}, got nan"),
            ("much", TypeError, f"{option} to be a number, got str"),
            (True, TypeError, f"{option} to be a number, got bool"),
            (
                torch.ones(2),
                ValueError,
                f"{option} to be a number or a floating-point tensor with one element"
                rf"{', or with one for .*' if name == 'rodeo' else ''}, got shape "
                r"\(2,\) and dtype torch\.float32",
            ),
        )
    ],
    *[
        Bad(
            f"{option} of {name} that is no flag",
            TypeError,
            rf"{name}: expected {option} to be True or False, got 1",
            name,
            arguments={option: 1},
        )
        for name, option in (
            ("rebar", "tied"),
            ("reinforce", "vectorize"),
            ("reinmax", "vectorize"),
            ("exact", "vectorize"),
        )
    ],
    Bad(
        "unknown tree",
        ValueError,
        r'disarm_tree: expected tree to be "balanced" or "stick_breaking", got \'oak\'',
        "disarm_tree",
        arguments={"tree": "oak"},
    ),
    *[
        Bad(
            f"NaN in the logits of {case}",
            ValueError,
            rf"{case.row.name}(_expectation)?: expected logits without NaN, got NaN.* Find its "
            r"origin with torch\.autograd\.set_detect_anomaly\(True\)\.",
            case.row.name,
            case.family,
            row_with(NAN),
            arguments={"control": loss} if "control" in case.row.options else {},
            found_by_drawing=case.row.kind == "sampler",
        )
        for case in DEFAULTS
    ],
    *[
        Bad(
            f"no category allowed for {case.row.name}",
            ValueError,
            rf"{case.row.name}(_expectation)?: expected at least one allowed category in every "
            r"row, but in row 0 the mask and -inf logits exclude all of them\. Drop such rows, or "
            r"allow a dummy category\.",
            case.row.name,
            arguments={
                "mask": torch.tensor([[False], [True]]),
                **({"control": loss} if "control" in case.row.options else {}),
            },
            found_by_drawing=case.row.kind == "sampler",
        )
        for case in DEFAULTS
        if case.categorical
    ],
    *[
        Bad(
            f"mask of a wrong {what} for {name}",
            error,
            rf"{name}: expected {message}",
            name,
            arguments={"mask": mask},
        )
        for name in ("reinmax", "reinforce")
        for what, mask, error, message in (
            (
                "shape",
                torch.ones(4, dtype=torch.bool),
                ValueError,
                r"a mask that broadcasts to the logits' shape \(5, 2, 3\), got shape \(4,\)",
            ),
            (
                "dtype",
                torch.ones(3),
                TypeError,
                r"mask to be a boolean tensor \(True where a category is allowed\), got "
                r"torch\.float32\. Convert with mask\.bool\(\)\.",
            ),
        )
    ],
    *[
        Bad(
            f"generator of a wrong type for {row.name}",
            TypeError,
            rf"{row.name}: expected generator to be a torch\.Generator, got int\. Make one with "
            r"torch\.Generator\('cpu'\)\.manual_seed\(0\)\.",
            row.name,
            row.families[0],
            BITS,
            arguments={
                "generator": 0,
                **({"control": loss} if "control" in row.options else {}),
            },
        )
        for row in ESTIMATORS.values()
    ],
    Bad(
        "scalar logits",
        ValueError,
        r"reinforce: expected logits with a category axis, got a scalar\. For a single 0/1 "
        r'variable set family="bernoulli"\.',
        logits=torch.zeros(()),
    ),
    *[
        Bad(
            f"an object on the wrong family: {type(made).__name__}",
            ValueError,
            r"\w+: expected family='bernoulli', which it is defined for, got 'categorical'\. For "
            r"that family use one of \w.*\.",
            made,
        )
        for made in (DoubleCV(), Rodeo())
    ],
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_arguments(bad):
    logits = CATEGORIES.clone() if bad.family == "categorical" else BITS.clone()
    logits.requires_grad_()
    calls = []
    if callable(bad.f):
        bad = dataclasses.replace(bad, f=lambda z: calls.append(z) or loss(z))
    generator = seeded(1)
    states = torch.get_rng_state(), generator.get_state()
    with pytest.raises(bad.error) as caught:
        bad.run(logits, generator)
    assert type(caught.value) is bad.error
    assert re.fullmatch(bad.message, str(caught.value)), str(caught.value)
    # nothing has happened
    assert torch.equal(torch.get_rng_state(), states[0])
    if not bad.found_by_drawing:
        assert torch.equal(generator.get_state(), states[1])
    # whoever must say how large a network to make has to know what f consumes
    if not isinstance(bad.arguments.get("generator"), int) and "Relax" not in bad.message:
        assert not calls
    assert logits.grad is None


RETURNS = {
    "a float": (
        lambda z: 1.0,
        TypeError,
        r"expected f to return a tensor, got float\. Convert with torch\.as_tensor\(loss\)\.",
    ),
    "nothing": (
        lambda z: None,
        TypeError,
        r"expected f to return a tensor, got NoneType\. Convert with torch\.as_tensor\(loss\)\.",
    ),
    "a pair": (
        lambda z: (loss(z), loss(z)),
        TypeError,
        r"expected f to return a tensor, got tuple\. Convert with torch\.as_tensor\(loss\)\.",
    ),
    "complex losses": (
        lambda z: loss(z).to(torch.complex64),
        TypeError,
        r"expected f to return real losses, got dtype torch\.complex64",
    ),
    "a transposed batch": (
        lambda z: loss(z)[:3],
        ValueError,
        r"expected f to return one loss per batch element, a shape that begins \(5, 2\), got "
        r"\(3,\)\. Sum f over its other axes\.",
    ),
    "an axis too many": (
        lambda z: loss(z)[:, None],
        ValueError,
        r"expected f to return one loss per batch element, a shape that begins \(5, 2\), got "
        r"\(5, 1\)\. Sum f over its other axes\.",
    ),
}


@each(DEFAULTS)
@pytest.mark.parametrize("vectorize", [False, True])
def test_bad_losses(case, vectorize):
    name = case.row.name if case.sampled else f"{case.row.name}(_expectation)?"
    problem = Problem(case, (5,))
    for f, error, message in RETURNS.values():
        with pytest.raises(error) as caught:
            case.run(problem, f, vectorize=vectorize)
        assert type(caught.value) is error
        assert re.fullmatch(f"{name}: {message}", str(caught.value)), str(caught.value)
        assert problem.logits.grad is None


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_bad_baseline(family):
    logits = torch.zeros(5, 2, 3, requires_grad=True)
    shape = r"\(5,\)"
    for baseline, error, message in (
        (
            lambda x: x.sum(-1),
            ValueError,
            rf"reinforce: expected a baseline that broadcasts to the batch shape {shape}, got "
            r"\(5, 2\)\. It gets the logits; reduce it to one number per batch element\.",
        ),
        (
            lambda x: x.flatten(1)[:3, 0],
            ValueError,
            rf"reinforce: expected a baseline that broadcasts to the batch shape {shape}, got "
            r"\(3,\)\. It gets the logits; reduce it to one number per batch element\.",
        ),
        (
            lambda x: 3.0,
            TypeError,
            r"reinforce: expected the baseline to return a tensor, got float",
        ),
    ):
        with pytest.raises(error) as caught:
            expectation(logits, loss, "reinforce", family=family, baseline=baseline)
        assert re.fullmatch(message, str(caught.value)), str(caught.value)
        assert logits.grad is None


@pytest.mark.parametrize(
    ("name", "control", "error", "message"),
    [
        (
            "relax",
            lambda z: z.sum(-1).sum(),
            ValueError,
            r"relax: expected the control variate to return one number per sample and batch "
            r"element, shape \(4, 5\), got \(\)\. It must accept any number of leading axes\.",
        ),
        (
            "relax",
            lambda z: z,
            ValueError,
            r"relax: expected the control variate to return one number per sample and batch "
            r"element, shape \(4, 5\), got \(4, 5, 2\)\. It must accept any number of leading "
            r"axes\.",
        ),
        (
            "relax",
            lambda z: 1.0,
            TypeError,
            r"relax: expected the control variate to return a tensor, got float",
        ),
        (
            "rodeo",
            lambda x: x[..., :1],
            ValueError,
            r"rodeo: expected the control variate to return one number per sample and batch "
            r"element, shape \(2, 5, 3, 2\), got \(2, 5, 3, 1\)\. It must accept any number of "
            r"leading axes\.",
        ),
        (
            "rodeo",
            lambda x: None,
            TypeError,
            r"rodeo: expected the control variate to return a tensor, got NoneType",
        ),
    ],
)
def test_bad_control(name, control, error, message):
    logits = torch.zeros(5, 2, requires_grad=True)
    with pytest.raises(error) as caught:
        expectation(logits, loss, name, family="bernoulli", num_samples=2, control=control)
    assert re.fullmatch(message, str(caught.value)), str(caught.value)
    assert logits.grad is None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Reinforce("mean"),
            ValueError,
            r"Reinforce: expected baseline None, .* got 'mean'",
        ),
        (
            lambda: Reinforce(decay=1.0),
            ValueError,
            r"Reinforce: expected decay in \[0, 1\), got 1\.0\. Try 0\.99\.",
        ),
        (
            lambda: Reinforce(decay="slow"),
            TypeError,
            r"Reinforce: expected decay to be a number, got str",
        ),
        (lambda: MuProp(offset=INF), ValueError, r"MuProp: expected a finite offset, got inf"),
        (
            lambda: MuProp(slope=None),
            TypeError,
            r"MuProp: expected slope to be a number, got NoneT.*",
        ),
        (
            lambda: Rebar(tau=0.0),
            ValueError,
            r"Rebar: expected tau in \(0, inf\), .* got 0\.0\. .*",
        ),
        (lambda: Rebar(scale=NAN), ValueError, r"Rebar: expected a finite scale, got nan"),
        (lambda: Rebar(tied=1), TypeError, r"Rebar: expected tied to be True or False, got 1"),
        (lambda: Relax(None), ValueError, r"Relax: expected a control variate, got None\. .*"),
        (lambda: Relax("r"), TypeError, r"Relax: expected control to be a function or .* got str"),
        (
            lambda: Relax(ControlNetwork(3), tau=-1.0),
            ValueError,
            r"Relax: expected tau in \(0, inf\), .* got -1\.0\. .*",
        ),
        (
            lambda: Relax(ControlNetwork(3), scale="a"),
            TypeError,
            r"Relax: expected scale to be a number, got str",
        ),
        (
            lambda: ControlNetwork(0),
            ValueError,
            r"ControlNetwork: expected num_inputs of at least 1, got 0",
        ),
        (
            lambda: ControlNetwork(3, hidden=2.5),
            TypeError,
            r"ControlNetwork: expected hidden to be an int, got float",
        ),
        (
            lambda: DoubleCV("a"),
            TypeError,
            r"DoubleCV: expected alpha to be a number, got str",
        ),
        (
            lambda: Rodeo(0),
            ValueError,
            r"Rodeo: expected hidden of at least 1, got 0",
        ),
        (
            lambda: Rodeo(beta=NAN),
            ValueError,
            r"Rodeo: expected a finite beta, got nan",
        ),
    ],
)
def test_bad_estimator_object(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


def test_control_network_of_a_wrong_size():
    logits = torch.zeros(5, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"^ControlNetwork: expected .*3.* got .*"):
        expectation(logits, loss, "relax", family="bernoulli", control=ControlNetwork(3))


@pytest.mark.parametrize(("family", "shape"), [("categorical", (1, 3)), ("bernoulli", (1,))])
def test_control_network_of_a_single_variable(family, shape):
    logits = torch.zeros(5, *shape, requires_grad=True)
    estimator = Relax(ControlNetwork(math.prod(shape)))
    result = expectation(logits, loss, estimator, family=family)
    result.mean().backward()
    assert result.shape == (5,)
    assert all(x.grad is not None for x in estimator.parameters())
