"""Every score-function estimator is unbiased: proven, and the proofs shown to find errors.

Where the randomness of an estimator falls into finitely many regions its expectation is a sum,
in float64 and without Monte Carlo: all but REBAR and RELAX, whose noise is continuous. Those are
integrated by quadrature on small problems. All are sampled too, which also proves their draws.

Sampled means are compared by seeded z-tests. Over all comparisons in this file together, the
probability that a correct library fails for a new seed is FAILURE_RATE.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import discretegrad
import oracles
import score_oracles
from cases import each
from discretegrad import ESTIMATORS, _relax, _score, expectation
from discretegrad.families import FAMILIES
from discretegrad.testing import normal, seeded
from score_oracles import PROBLEMS, Problem, Regions, doubles

FAILURE_RATE = 1e-6
COMPARISONS = 3_000
"""No fewer than the z-tests in this file, which share the failure rate."""
Z_LIMIT = NormalDist().inv_cdf(1 - FAILURE_RATE / COMPARISONS / 2)
DRAWS = {True: 100_000, False: 30_000}
"""For z-tests of estimators with continuous noise, and of the draws of all others."""

TOLERANCES = {
    "exact": 1e-12,  # a sum over regions, of numbers around 1
    "quadrature": 1e-7,  # an integral by the trapezoid rule
    "same": 1e-11,  # one formula along two paths
    "derivation": 1e-8,  # a second derivation, relative, which need not be stable
    "slope": 1e-6,  # finite differences in float64, relative
}

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)

# enumeration itself is tested in test_exact.py
SCORE = {name: x for name, x in ESTIMATORS.items() if x.kind == "score" and name != "exact"}
ENUMERABLE = [name for name, row in SCORE.items() if not row.takes]
COUPLED = ("disarm", "arms", "disarm_tree")
"""The samples of these depend on each other, through uniform numbers."""
TREES = ("balanced", "stick_breaking")


class Smooth(nn.Module):
    """A control variate without kinks, or a baseline, with random parameters."""

    def __init__(self, problem: Problem, size: float = 1.0, seed: int = 0):
        super().__init__()
        self.axes = problem.logits.ndim
        inputs = problem.logits.numel()
        self.first = nn.Parameter(size * normal(inputs, 3, seed=seed) / math.sqrt(inputs))
        self.second = nn.Parameter(size * normal(3, seed=seed + 1))

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(z.flatten(-self.axes) @ self.first) @ self.second


def started(make: Callable[[], nn.Module], moved: float = 0.0) -> nn.Module:
    """A module in float64 from a seed, its parameters ``moved`` from where they start."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = make().double()
    generator = seeded(3)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += moved * noise
    return module


def control_network(problem: Problem, moved: float = 0.0) -> nn.Module:
    return started(lambda: discretegrad.ControlNetwork(problem.logits.numel(), hidden=8), moved)


def stein_network(moved: float = 0.0) -> nn.Module:
    return started(lambda: discretegrad.Rodeo(hidden=8).network, moved)


def controlled(moved: float = 0.0, **options: Any) -> Callable[[Problem], Mapping[str, Any]]:
    return lambda problem: {"control": control_network(problem, moved), **options}


# Names, numbers of samples and options, which may depend on the size of the problem. Every row has
# to have settings here, learned parameters both at their start and moved from it.
SETTINGS: Mapping[str, Sequence[tuple[str, Sequence[int], Any]]] = {
    "reinforce": [
        ("none", [1, 2], {}),
        ("self_critical", [1, 2], {"baseline": "self_critical"}),
        ("function", [1], {"baseline": lambda logits: logits.flatten(1).sum(-1).cos()}),
        ("network", [2], lambda problem: {"baseline": Smooth(problem)}),
    ],
    "leave_one_out": [("plain", [2, 3], {})],
    "disarm": [("plain", [2, 4], {})],
    "arms": [("plain", [2, 3, 4], {})],
    "disarm_tree": [(tree, [2], {"tree": tree}) for tree in TREES],
    "muprop": [
        ("start", [1, 2], {}),
        ("moved", [1, 2], {"offset": -0.3, "slope": 1.7}),
        ("slope=0", [1], {"slope": 0.0}),
    ],
    "double_cv": [
        ("start", [2, 3], {}),
        ("moved", [2, 3], {"alpha": 0.6}),
        ("alpha=0", [2], {"alpha": 0.0}),
    ],
    "rodeo": [
        ("start", [2], {"control": stein_network()}),
        ("moved", [2, 3], {"control": stein_network(0.5), "alpha": 0.8, "beta": -0.6}),
    ],
    "rebar": [
        ("start", [1, 2], {}),
        ("untied", [1], {"tied": False}),
        ("moved", [1], {"tau": 1.3, "scale": -0.6}),
        ("moved-untied", [1], {"tau": 0.3, "scale": 1.4, "tied": False}),
    ],
    "relax": [
        ("start", [1], controlled()),
        ("tied", [2], controlled(tied=True)),
        ("scale=0", [1], controlled(0.5, scale=0.0)),
        ("moved", [1], controlled(0.5, tau=1.2, scale=0.7)),
    ],
}


class Case:
    """An estimator with its options, on a problem."""

    def __init__(self, name: str, problem: Problem, num_samples: int, label: str, options: Any):
        self.name, self.problem, self.num_samples, self.label = name, problem, num_samples, label
        options = options(problem) if callable(options) else options
        self.options = {**SCORE[name].options, **options}

    def __str__(self):
        return f"{self.name}-{self.label}-K={self.num_samples}-{self.problem}"

    def run(self, copies: Tensor, **arguments: Any) -> Tensor:
        problem = self.problem
        arguments |= {"num_samples": self.num_samples, "mask": problem.mask, **self.options}
        return expectation(copies, problem.f, self.name, family=problem.family, **arguments)


def plain(name: str, problem: Problem, num_samples: int = 2, **options: Any) -> Case:
    return Case(name, problem, num_samples, "plain", options)


ALL_CASES = [
    Case(name, problem, num_samples, label, options)
    for name, rows in SETTINGS.items()
    for label, numbers, options in rows
    for num_samples in numbers
    for problem in PROBLEMS
    if problem.family in SCORE[name].families
]


class Moments(NamedTuple):
    """Expectations: of the value, of the gradients for the logits and for the parameter of f."""

    value: Tensor
    gradient: Tensor
    parameter: Tensor


def expected(result: Tensor, probs: Tensor, copies: Tensor, problem: Problem) -> Moments:
    """Of the results for a batch of draws; backward gets their probabilities as weights."""
    value = (probs * result).sum()
    gradient, parameter = torch.autograd.grad(value, (copies, problem.weight))
    return Moments(value.detach(), gradient.sum(0), parameter)


def truth(problem: Problem) -> Moments:
    of_problem = {"family": problem.family, "mask": problem.mask}
    value = discretegrad.exact_expectation(problem.logits, problem.f, **of_problem)
    (parameter,) = torch.autograd.grad(value, problem.weight)
    gradient = discretegrad.exact_gradient(problem.logits, problem.f, **of_problem)
    return Moments(value.detach(), gradient, parameter)


def assert_equal(found: Moments, problem: Problem, tolerance: str) -> None:
    for name, actual, exact in zip(Moments._fields, found, truth(problem), strict=True):
        error = (actual - exact).abs().max().item()
        assert error <= TOLERANCES[tolerance], f"{name} is wrong by {error}"


def all_draws(case: Case, where: float = 0.5) -> Regions:
    """A point of every region of the randomness, and the probabilities."""
    problem, count = case.problem, case.num_samples
    if case.name == "disarm":
        return score_oracles.pairs(problem, count // 2, where)
    if case.name == "disarm_tree":
        return score_oracles.tree_pairs(problem, count // 2, case.options["tree"], where)
    if case.name == "arms":
        return score_oracles.dirichlet_uniforms(problem, count, where)
    return score_oracles.repeat(score_oracles.joint_samples(problem), count)


def results(case: Case, points: Tensor, count: int, **arguments: Any) -> tuple[Tensor, Tensor]:
    """The estimator for each of ``count`` draws, and the logits of each.

    The points are uniform numbers if the samples are coupled, and else the samples.
    """
    copies = case.problem.many(count)
    if case.name not in COUPLED:
        given = points.argmax(-1) if case.problem.family == "categorical" else points
        return case.run(copies, given=given, **arguments), copies

    def rand(shape, **_):
        assert tuple(shape) == points.shape
        return points

    with mock.patch.object(torch, "rand", rand):
        return case.run(copies, **arguments), copies


def prove_by_enumeration(case: Case, where: float = 0.5) -> None:
    points, probs = all_draws(case, where)
    assert abs(probs.sum().item() - 1) <= TOLERANCES["exact"]
    result, copies = results(case, points, len(probs))
    assert_equal(expected(result, probs, copies, case.problem), case.problem, "exact")


def draw_many(case: Case, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Independent values and gradients."""
    copies = case.problem.many(count or DRAWS[bool(SCORE[case.name].takes)])
    value = case.run(copies, generator=seeded(2024))
    (gradient,) = torch.autograd.grad(value.sum(), copies)
    return value.detach(), gradient


def assert_mean(draws: Tensor, exact: Tensor) -> None:
    """A z-test of every coordinate.

    Rare samples make the draws skew, and the mean of skew draws leaves the normal distribution
    first by the Edgeworth term that widens the limit here.
    """
    count = len(draws)
    mean, spread = draws.mean(0), draws.std(0)
    constant = spread <= TOLERANCES["exact"]
    spread = spread.masked_fill(constant, 1.0)
    skewness = ((draws - mean) / spread).pow(3).mean(0).abs() / math.sqrt(count)
    limit = Z_LIMIT + skewness * (2 * Z_LIMIT**2 + 1) / 6
    error = (mean - exact).abs()
    z = error / spread * math.sqrt(count)
    good = torch.where(constant, error <= TOLERANCES["exact"], z <= limit)
    assert good.all(), f"off by {z.max():.1f} standard errors, limit {limit.min():.1f}"


def prove_means(draws: tuple[Tensor, Tensor], problem: Problem) -> None:
    """Of values and gradients."""
    exact = truth(problem)
    assert_mean(draws[0], exact.value)
    assert_mean(draws[1], exact.gradient)


def test_every_score_function_row_has_a_proof():
    assert set(SETTINGS) == set(SCORE)
    assert set(ENUMERABLE) | {name for name, _ in RELAXATIONS.values()} == set(SCORE)
    for name, row in SCORE.items():
        assert row.unbiased
        proven = [case for case in ALL_CASES if case.name == name]
        assert {case.problem.family for case in proven} == set(row.families)
        assert min(case.num_samples for case in proven) == row.min_samples
        learners = {type(x.module()) for x in LEARNERS if x.name == name}
        assert learners == ({row.module} if row.module is not None else set())


@each([case for case in ALL_CASES if case.name in ENUMERABLE])
def test_enumeration(case):
    # the estimate is constant in each region: the point in it does not matter
    for where in (0.5, 1e-6, 0.3, 1 - 1e-6) if case.name in COUPLED else (0.5,):
        prove_by_enumeration(case, where)


@pytest.mark.parametrize("size", [1.0, 8.0], ids=["small", "saturated"])
@pytest.mark.parametrize("shape", [(5, 2), (4, 3), (2, 5), (2, 6), (1, 7), (1, 8)], ids=str)
@pytest.mark.parametrize("tree", TREES)
def test_trees_of_every_size(tree, shape, size):
    problem = Problem("tree", "categorical", size * torch.tanh(normal(*shape, seed=4)))
    prove_by_enumeration(plain("disarm_tree", problem, tree=tree))


@each(ALL_CASES)
def test_sampling(case):
    prove_means(draw_many(case), case.problem)


@pytest.mark.parametrize("size", [1.0, 8.0], ids=["small", "saturated"])
def test_arms_with_five_samples(size):
    problem = Problem("three bits", "bernoulli", size * torch.tanh(normal(3, seed=6)))
    prove_by_enumeration(plain("arms", problem, 5))
    prove_means(draw_many(plain("arms", problem, 5)), problem)


QUADRATURE_PROBLEMS = [
    Problem("small", "bernoulli", doubles([0.4, -0.9])),
    Problem("saturated", "bernoulli", doubles([8.0, -0.5])),
    Problem("small", "categorical", normal(1, 3, seed=8)),
    Problem("saturated", "categorical", doubles([[8.0, 0, -1]])),
]
RELAXATIONS: Mapping[str, tuple[str, Callable[[Problem], Mapping[str, Any]]]] = {
    "rebar": ("rebar", lambda _: {"tau": 1.0}),
    "rebar-moved": ("rebar", lambda _: {"tau": 1.7, "scale": -0.6}),
    "relax": ("relax", lambda p: {"tau": 1.0, "control": Smooth(p)}),
    "relax-scale=0": ("relax", lambda p: {"scale": 0.0, "control": Smooth(p)}),
    "relax-moved": ("relax", lambda p: {"tau": 1.5, "scale": 0.7, "control": Smooth(p, size=2.0)}),
}


def noise_of(problem: Problem, sample: Tensor) -> Regions:
    """The noise given a sample, with the weights of the trapezoid rule."""
    if problem.family == "bernoulli":
        return score_oracles.logistic_grid(problem.logits.numel(), step=0.35, reach=22)
    drawn = int(sample.argmax(-1))
    noise, weights = score_oracles.exponential_grid(3, drawn, step=0.4, reach=22)
    return noise.unsqueeze(1), weights


def mirrored(problem: Problem, sample: Tensor, noise: Tensor) -> Tensor:
    """Other noise of the same distribution: the estimator adds what depends on either."""
    if problem.family == "bernoulli":
        return -noise
    drawn = int(sample.argmax(-1))
    # the two categories that were not drawn change places
    return noise[..., [k if k == drawn else 3 - drawn - k for k in range(3)]]


def prove_by_quadrature(problem: Problem, relaxation: str, tied: bool) -> None:
    name, options = RELAXATIONS[relaxation]
    case = plain(name, problem, 1, **options(problem), tied=tied)
    total = Moments(*(torch.zeros(()) for _ in Moments._fields))
    for sample, prob in zip(*score_oracles.joint_samples(problem), strict=True):
        noise, weights = noise_of(problem, sample)
        given = noise.unsqueeze(0)
        if not tied:
            given = torch.stack([given, mirrored(problem, sample, given)])
        samples = sample.expand(1, len(weights), *sample.shape)
        result, copies = results(case, samples, len(weights), noise=given)
        part = expected(result, prob * weights, copies, problem)
        total = Moments(*(x + y for x, y in zip(total, part, strict=True)))
    assert_equal(total, problem, "quadrature")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("problem", QUADRATURE_PROBLEMS, ids=str)
def test_quadrature(problem, relaxation, tied):
    prove_by_quadrature(problem, relaxation, tied)


class Plant(NamedTuple):
    """An error: what ``replace`` makes of a function takes its place in a file of the library."""

    label: str
    case: Case
    function: str
    replace: Callable[[Callable[..., Any], Problem], Callable[..., Any]]

    def __str__(self):
        return f"{self.label}-{self.case}"

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the file of the estimator, in one that it uses, or in the family."""
        row = SCORE[self.case.name]
        files = [
            importlib.import_module(row.function.__module__),
            *([_relax] if row.takes else []),
            type(FAMILIES[self.case.problem.family]),
            _score,
        ]
        place = next(x for x in files if hasattr(x, self.function))
        original = getattr(place, self.function)
        monkeypatch.setattr(place, self.function, self.replace(original, self.case.problem))


def times(factor: float) -> Callable[..., Any]:
    return lambda original, problem: lambda *arguments: factor * original(*arguments)


def with_itself(original, problem):
    """A leave-one-out mean that forgets to leave one out, and so the factor K / (K - 1)."""
    return lambda x: x.mean(0).expand_as(x)


def own_loss(original, problem):
    """A baseline that sees the sample it is for."""
    return lambda task, losses: 0.9 * original(task, losses)


def sigmoid_of_logit(original, problem):
    """sigmoid(l) in the place of sigmoid(|l|), the factor of a difference between values of f."""
    wrong = torch.sigmoid(problem.logits) / torch.sigmoid(problem.logits.abs())
    return lambda x, like: original(x, like) * wrong


def every_node(original, problem):
    """Nodes on one path count as if they were on both."""
    return lambda nodes, leaf: torch.ones_like(original(nodes, leaf))


def stays(original, problem):
    """The Stein operator with the probability of the present value, not of the other."""
    return lambda *arguments: original(*arguments)._replace(
        flip_probs=1 - original(*arguments).flip_probs
    )


def wider(factor: float) -> Callable[..., Any]:
    """Noise of another distribution than that of z given the sample."""

    def replace(original, problem):
        def perturbed(family, scale, drawn, noise):
            spread_out = noise**factor if family.name == "categorical" else factor * noise
            return original(family, scale, drawn, spread_out)

        return perturbed

    return replace


NAMED = {str(case): case for case in ALL_CASES}


def plants_for(problem: str) -> list[Plant]:
    """Errors of the estimators that enumeration proves."""
    bits, kinds = f"bernoulli-{problem}", f"categorical-{problem}"
    independent = lambda original, problem: lambda a, root, count: torch.ones_like(a)  # noqa: E731
    return [
        Plant(label, NAMED[case], function, replace)
        for label, case, function, replace in [
            ("sign", f"reinforce-none-K=1-{kinds}", "score", times(-1)),
            ("factor", f"reinforce-none-K=1-{bits}", "score", times(1.1)),
            ("own loss", f"reinforce-none-K=1-{kinds}", "signal", own_loss),
            ("K/(K-1)", f"leave_one_out-plain-K=2-{bits}", "others_mean", with_itself),
            ("K/(K-1)", f"leave_one_out-plain-K=3-{kinds}", "others_mean", with_itself),
            ("sign", f"disarm-plain-K=2-{bits}", "weighted", times(-1)),
            ("wrong weight", f"disarm-plain-K=2-{bits}", "weighted", sigmoid_of_logit),
            ("factor", f"arms-plain-K=2-{bits}", "_weight", times(1.1)),
            ("factor", f"arms-plain-K=3-{bits}", "_weight", times(1.1)),
            ("independent weight", f"arms-plain-K=3-{bits}", "_weight", independent),
            *(("both paths", f"disarm_tree-{x}-K=2-{kinds}", "reaches", every_node) for x in TREES),
            *(("factor", f"disarm_tree-{x}-K=2-{kinds}", "to_logits", times(1.1)) for x in TREES),
            ("K/(K-1)", f"double_cv-moved-K=3-{bits}", "others_mean", with_itself),
            ("K/(K-1)", f"rodeo-moved-K=3-{bits}", "others_mean", with_itself),
            ("flip", f"rodeo-moved-K=2-{bits}", "joint_samples", stays),
            *(
                (f"times {factor}", f"{setting}-{where}", "covariance", times(factor))
                for setting, where in (
                    ("muprop-start-K=1", bits),
                    ("muprop-start-K=1", kinds),
                    ("double_cv-start-K=2", bits),
                )
                for factor in (0.0, 1.1, -1.0)
            ),
        ]
    ]


GROSS_ERRORS = [
    ("dropped", "gradient_given_draw", times(0.0)),
    ("sign", "gradient_given_draw", times(-1.0)),
    ("dropped free", "gradient_given_noise", times(0.0)),
    ("sign of score", "score", times(-1.0)),
]


def fine_errors(factor: float) -> list[tuple[str, str, Callable[..., Any]]]:
    return [
        ("factor", "gradient_given_draw", times(factor)),
        ("factor free", "gradient_given_noise", times(factor)),
        ("factor of score", "score", times(factor)),
        ("noise", "perturbed", wider(factor)),
    ]


def relaxed_plants(problem: str, errors: Sequence[tuple[str, str, Any]]) -> list[Plant]:
    """Errors of the estimators with continuous noise."""
    return [
        Plant(label, NAMED[f"{setting}-K=1-{family}-{problem}"], function, replace)
        for setting in ("rebar-start", "relax-moved")
        for family in ("bernoulli", "categorical")
        for label, function, replace in errors
    ]


# their control variates follow f so closely that errors of a tenth hide in the noise of so many
# draws; quadrature finds those
SAMPLED_PLANTS = [
    *plants_for("small"),
    *relaxed_plants("small", [*GROSS_ERRORS, *fine_errors(1.5)]),
    *relaxed_plants("saturated", GROSS_ERRORS),
]


def each_plant(plants: Sequence[Plant]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("plant", plants, ids=str)


@each_plant(plants_for("small") + plants_for("saturated") + plants_for("masked"))
def test_enumeration_finds_a_planted_error(plant, monkeypatch):
    prove_by_enumeration(plant.case)
    plant.put(monkeypatch)
    with pytest.raises(AssertionError, match="gradient is wrong"):
        prove_by_enumeration(plant.case)


@each_plant(SAMPLED_PLANTS)
def test_sampling_finds_a_planted_error(plant, monkeypatch):
    plant.put(monkeypatch)
    with pytest.raises(AssertionError, match="standard errors"):
        prove_means(draw_many(plant.case), plant.case.problem)


@pytest.mark.parametrize("relaxation", ["rebar", "relax"])
@pytest.mark.parametrize("problem", QUADRATURE_PROBLEMS, ids=str)
@pytest.mark.parametrize("error", [*GROSS_ERRORS, *fine_errors(1.1)], ids=lambda error: error[0])
def test_quadrature_finds_a_planted_error(error, problem, relaxation, monkeypatch):
    Plant(error[0], plain(relaxation, problem), *error[1:]).put(monkeypatch)
    with pytest.raises(AssertionError, match="gradient is wrong"):
        prove_by_quadrature(problem, relaxation, tied=True)


def random_draw(case: Case, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    """What ``results`` takes for a batch: arbitrary numbers, no matter how likely."""
    generator = seeded(31)
    points, _ = all_draws(case)
    rand = partial(torch.rand, generator=generator, dtype=torch.float64)
    if case.name in COUPLED:
        return rand(len(points), count, *points.shape[2:]), {}
    points = points[:, torch.randint(points.shape[1], (count,), generator=generator)]
    if not SCORE[case.name].takes:
        return points, {}
    noise = rand(points.shape if case.options["tied"] else (2, *points.shape))
    noise = noise.logit() if case.problem.family == "bernoulli" else -noise.log()
    return points, {"noise": noise}


@each([case for case in ALL_CASES if case.problem.mask is None])
def test_second_derivation(case):
    """Draw for draw: to be unbiased is not yet to be the estimator of the paper."""
    count, problem = 6, case.problem
    points, noise = random_draw(case, count)
    result, copies = results(case, points, count, **noise)
    (found,) = torch.autograd.grad(result.sum(), copies)
    oracle, options = getattr(score_oracles, case.name, score_oracles.relaxed), dict(case.options)
    for place in range(count):
        if noise:
            own = noise["noise"][..., place, *[slice(None)] * problem.logits.ndim]
            options["noise"] = own.unsqueeze(0) if options["tied"] else own
        logits = problem.logits.clone().requires_grad_()
        surrogate = oracle(problem, logits, points[:, place], **options)
        (again,) = torch.autograd.grad(surrogate, logits)
        torch.testing.assert_close(found[place], again, rtol=TOLERANCES["derivation"], atol=1e-9)


class FirstBit(Problem):
    """A function of the first bit alone."""

    def f(self, z: Tensor) -> Tensor:
        return z[..., 0]


class Linear(Problem):
    def f(self, z: Tensor) -> Tensor:
        return z.flatten(-self.logits.ndim) @ self.weight[:, 0]


def gradients(case: Case, points: Tensor, count: int) -> Tensor:
    """The estimate for each draw."""
    result, copies = results(case, points, count)
    return torch.autograd.grad(result.sum(), copies)[0]


def second_moment(case: Case) -> Tensor:
    """Of every coordinate, by enumeration; unbiased estimators differ in it as in variance."""
    points, probs = all_draws(case)
    squares = gradients(case, points, len(probs)).square()
    return torch.tensordot(probs, squares, 1)


def variance(case: Case) -> Tensor:
    exact = discretegrad.exact_gradient(
        case.problem.logits, case.problem.f, family=case.problem.family, mask=case.problem.mask
    )
    return second_moment(case) - exact.square()


def both_variances(problem: Problem, of: Callable[[Case], Tensor] = variance) -> tuple[Tensor, ...]:
    """Of DisARM and of leave-one-out with two samples."""
    return tuple(of(plain(name, problem)) for name in ("disarm", "leave_one_out"))


@pytest.mark.parametrize("seed", range(10))
def test_disarm_varies_at_most_twice_the_likelier_probability_times_leave_one_out(seed):
    """For every function and coordinate.

    For two samples that differ in a bit, E (f(1, x) - f(0, x'))^2 over the other bits is, by
    Cauchy and Schwarz, at most twice as large for antithetic x and x' as for independent ones.
    So at p = 1/2, where the factor is 1, DisARM never varies more.
    """
    for size in (0.0, 0.5, 3.0):
        problem = Problem(f"seed {seed}", "bernoulli", size * normal(4, seed=100 + seed))
        object.__setattr__(problem, "weight", normal(4, 4, seed=seed).mul(2).requires_grad_())
        disarm, independent = both_variances(problem, of=second_moment)
        factor = 2 * torch.sigmoid(problem.logits.abs())
        assert (disarm <= factor * independent + 1e-14).all()


FIXED_BITS = [problem for problem in PROBLEMS if problem.family == "bernoulli"]


def test_disarm_may_vary_more_than_leave_one_out():
    """The order is no theorem for several bits: an even bit decides f, the others are uneven.

    Antithetic samples always differ in the even bit, so the others always get its noise.
    """
    problem = FirstBit("one of five", "bernoulli", doubles([0, *[-1.4] * 4]))
    disarm, independent = both_variances(problem)
    assert disarm.sum() > 1.1 * independent.sum()
    for usual in FIXED_BITS:
        disarm, independent = both_variances(usual)
        assert disarm.sum() < independent.sum()


@pytest.mark.parametrize("problem", FIXED_BITS, ids=str)
def test_arms_with_two_samples_is_disarm(problem):
    uniform, probs = score_oracles.pairs(problem, 1)
    # exponential numbers v and 1 - v have the shares v and 1 - v
    both = -torch.expm1(-torch.cat([1 - uniform, uniform]))
    arms = gradients(plain("arms", problem), both, len(probs))
    disarm = gradients(plain("disarm", problem), uniform, len(probs))
    torch.testing.assert_close(arms, disarm, rtol=0, atol=TOLERANCES["same"])
    assert disarm.abs().max() > 0.1
    same_variance = [variance(plain(x, problem)) for x in ("arms", "disarm")]
    torch.testing.assert_close(*same_variance, rtol=0, atol=TOLERANCES["same"])


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("problem", FIXED_BITS[:2], ids=str)
def test_a_tree_of_two_categories_is_disarm(problem, tree):
    uniform, probs = score_oracles.pairs(problem, 1)
    bits = plain("disarm", problem)
    disarm = gradients(bits, uniform, len(probs))

    class Bits(Problem):
        def f(self, z):
            return problem.f(z[..., 1])

    two = torch.stack([torch.zeros_like(problem.logits), problem.logits], -1)
    rows = plain("disarm_tree", Bits("two", "categorical", two), tree=tree)
    # disarm compares the uniform with the less likely value, the tree with the second category
    for_nodes = torch.where(problem.logits > 0, 1 - uniform, uniform).unsqueeze(-1)
    of_tree = gradients(rows, for_nodes, len(probs))
    torch.testing.assert_close(of_tree[..., 1], disarm, rtol=0, atol=TOLERANCES["same"])
    torch.testing.assert_close(of_tree[..., 0], -disarm, rtol=0, atol=TOLERANCES["same"])


def no_control(z: Tensor) -> Tensor:
    return 0 * z.flatten(2).sum(-1)


# an estimator, the options that turn its control variate off, and what it then is
REDUCTIONS = {
    "double_cv-alpha=0": ("double_cv", {"alpha": 0.0}, "leave_one_out"),
    "rodeo-start": ("rodeo", {"control": stein_network()}, "leave_one_out"),
    "relax-no control": ("relax", {"control": no_control, "tied": True}, "rebar"),
    "relax-nothing": ("relax", {"control": no_control, "scale": 0.0}, "reinforce"),
    "rebar-scale=0": ("rebar", {"scale": 0.0}, "reinforce"),
    "muprop-nothing": ("muprop", {"offset": 0.0, "slope": 0.0}, "reinforce"),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_its_control_variate_an_estimator_is_a_simpler_one(reduction):
    """On the same samples, which all estimators draw first."""
    name, options, simpler = REDUCTIONS[reduction]
    for problem in PROBLEMS:
        if problem.family in SCORE[name].families:
            pair = plain(name, problem, 3, **options), plain(simpler, problem, 3)
            for x, y in zip(*(draw_many(case, count=500) for case in pair), strict=True):
                torch.testing.assert_close(x, y, rtol=0, atol=TOLERANCES["same"])


@pytest.mark.parametrize("family", ["bernoulli", "categorical"])
def test_no_variance_for_linear_f(family):
    logits = next(x for x in PROBLEMS if str(x) == f"{family}-small").logits
    problem = Linear("linear", family, logits)
    cases = [plain("muprop", problem, 1), plain("muprop", problem, 2)]
    if family == "bernoulli":
        cases += [plain("double_cv", problem, 2), plain("double_cv", problem, 3)]
    for case in cases:
        assert variance(case).abs().max() <= TOLERANCES["same"]
        assert variance(plain("leave_one_out", problem)).min() > 0.01


class Learner(NamedTuple):
    """An estimator object, on a problem on which it has something to learn."""

    label: str
    name: str
    make: Callable[[Problem], nn.Module]
    problem: Problem
    num_samples: int

    def __str__(self):
        return f"{self.label}-{self.problem.family}"

    def module(self) -> nn.Module:
        return started(lambda: self.make(self.problem))

    def run(self, module: nn.Module, logits: Tensor, seed: int = 5) -> Tensor:
        arguments = {"num_samples": self.num_samples, "family": self.problem.family}
        return expectation(logits, self.problem.f, module, **arguments, generator=seeded(seed))

    def batch(self) -> Tensor:
        """Logits that differ."""
        noise = normal(6, *self.problem.logits.shape, seed=21)
        return (self.problem.logits + 0.5 * noise).requires_grad_()


BITS, KINDS = PROBLEMS[0], PROBLEMS[3]
MAKERS: Mapping[str, tuple[str, Callable[[Problem], nn.Module], int]] = {
    "Reinforce": ("reinforce", lambda p: discretegrad.Reinforce(Smooth(p)), 2),
    "MuProp": ("muprop", lambda _: discretegrad.MuProp(0.2, 0.3), 2),
    "Rebar": ("rebar", lambda _: discretegrad.Rebar(0.2, 0.3), 1),
    "Rebar-untied": ("rebar", lambda _: discretegrad.Rebar(0.2, 0.3, tied=False), 1),
    "Relax": ("relax", lambda p: discretegrad.Relax(small(p), tau=0.3, scale=0.2), 1),
    "Relax-network-only": ("relax", lambda p: discretegrad.Relax(small(p), scale=None), 1),
    "DoubleCV": ("double_cv", lambda _: discretegrad.DoubleCV(0.3), 2),
    "Rodeo": ("rodeo", lambda _: discretegrad.Rodeo(8, alpha=0.4, beta=-0.3), 2),
    "Rodeo-start": ("rodeo", lambda _: discretegrad.Rodeo(8), 3),
}


def small(problem: Problem) -> nn.Module:
    return discretegrad.ControlNetwork(problem.logits.numel(), 8)


LEARNERS = [
    Learner(label, name, make, problem, num_samples)
    for problem in (BITS, KINDS)
    for label, (name, make, num_samples) in MAKERS.items()
    if problem.family in SCORE[name].families
]
each_learner = pytest.mark.parametrize("learner", LEARNERS, ids=str)


def mean_square(learner: Learner, module: nn.Module, logits: Tensor) -> float:
    (gradient,) = torch.autograd.grad(learner.run(module, logits).sum(), logits)
    return gradient.square().sum().item() / len(logits)


@each_learner
def test_parameters_get_the_gradient_of_the_mean_square(learner):
    module, logits = learner.module(), learner.batch()
    learner.run(module, logits).mean().backward()
    biggest = 0.0
    for parameter in module.parameters():
        for place in range(0, parameter.numel(), max(1, parameter.numel() // 4)):
            found = parameter.grad.view(-1)[place].item()
            ends = []
            for step in (1e-5, -2e-5):
                with torch.no_grad():
                    parameter.view(-1)[place] += step
                ends.append(mean_square(learner, module, logits))
            with torch.no_grad():
                parameter.view(-1)[place] += 1e-5
            slope = (ends[0] - ends[1]) / 2e-5
            assert found == pytest.approx(slope, rel=TOLERANCES["slope"], abs=1e-8)
            biggest = max(biggest, abs(found))
    assert biggest > 1e-3


@each_learner
def test_learning_reaches_nothing_else(learner):
    """The logits and the parameters of f get the same gradient to the last bit without it."""
    runs = []
    for frozen in (False, True):
        module, logits = learner.module().requires_grad_(not frozen), learner.batch()
        value = learner.run(module, logits)
        gradients = torch.autograd.grad(value.square().mean(), (logits, learner.problem.weight))
        runs.append([value.detach(), *gradients])
    for learning, without in zip(*runs, strict=True):
        assert torch.equal(learning, without)


@each_learner
def test_learning_reduces_the_variance_whatever_the_sign_of_the_loss(learner):
    runs = []
    for sign in (1.0, -1.0, 3.0):
        module, logits = learner.module(), learner.batch()
        (sign * learner.run(module, logits).mean()).backward()
        runs.append([logits.grad / sign, *(x.grad / abs(sign) for x in module.parameters())])
    for run in runs[1:]:
        for x, y in zip(run, runs[0], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-13, atol=0)


def draws_of_module(learner: Learner, module: nn.Module) -> tuple[Tensor, Tensor]:
    copies = learner.problem.many(DRAWS[False])
    value = learner.run(module.requires_grad_(False), copies, seed=99)
    return value.detach(), torch.autograd.grad(value.sum(), copies)[0]


@each_learner
def test_training_reduces_the_variance_and_adds_no_bias(learner):
    module, logits = learner.module(), learner.problem.many(50)
    before = draws_of_module(learner, module)[1].var(0).sum()
    learning = torch.optim.Adam(module.requires_grad_(True).parameters(), lr=0.05)
    for step in range(120):
        learning.zero_grad()
        learner.run(module, logits, seed=step).mean().backward()
        learning.step()
    value, gradient = draws_of_module(learner, module)
    assert gradient.var(0).sum() < 0.95 * before
    prove_means((value, gradient), learner.problem)


def test_running_baseline_is_the_corrected_mean_of_earlier_values():
    decay, earlier = 0.8, []
    module = discretegrad.Reinforce("running", decay=decay).double()
    learner = Learner("running", "reinforce", lambda _: module, KINDS, 2)
    for step in range(6):
        weights = [decay**age for age in reversed(range(step))]
        baseline = sum(w * x for w, x in zip(weights, earlier, strict=True)) / sum(weights or [1])
        constant = torch.tensor(baseline, dtype=torch.float64)
        # outside training it is used and not changed
        fresh = discretegrad.Reinforce("running", decay=decay).double().eval()
        fresh.load_state_dict(module.state_dict())
        gradients = []
        for use in (discretegrad.Reinforce(lambda _, b=constant: b), fresh, module):
            logits = learner.batch()
            value = learner.run(use, logits, seed=step)
            gradients.append(torch.autograd.grad(value.sum(), logits)[0])
        for gradient in gradients[1:]:
            torch.testing.assert_close(gradient, gradients[0], rtol=1e-10, atol=1e-12)
        assert int(fresh.steps) == step
        earlier.append(value.mean().item())
    assert int(module.steps) == 6


def test_the_comparisons_share_the_failure_rate():
    problems = [x.problem for x in (*ALL_CASES, *LEARNERS)]
    problems += [Problem("three bits", "bernoulli", torch.zeros(3))] * 2
    assert sum(problem.logits.numel() + 1 for problem in problems) <= COMPARISONS
