"""``diagnose``: its numbers, what it leaves untouched, and what it shows.

Every test is seeded, so it always gives the same answer. Had the seeds been random, a right
library would fail somewhere in this file with a chance of at most FAMILY_WISE: each p-value is
held against LEVEL = FAMILY_WISE / P_VALUES (Bonferroni), where P_VALUES is more than all tests
together compute. The exceptions, where ``bias_detected`` itself is tested, are said there.
"""

import json
import math
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy import stats
from torch import nn

import discretegrad
import oracles
from discretegrad import ESTIMATORS, Diagnosis, DiagnosisRow, diagnose, expectation, reinmax
from discretegrad.diagnose import cost, moments, problem, undrawn
from discretegrad.testing import normal, seeded
from watched_memory import Memory

FAMILY_WISE = 1e-6
P_VALUES = 100
LEVEL = FAMILY_WISE / P_VALUES
# a standard error from 32 groups has 31 degrees of freedom
LIMIT = stats.t.isf(LEVEL / 2, 31)

# the same numbers, summed in another order
TOLERANCE = {"rel": 1e-9, "abs": 1e-12}
# numbers of the order of 1, from float32 and from float64 on the same draws
SINGLE = {"rel": 1e-3, "abs": 1e-4}

FAMILIES = ("categorical", "bernoulli")
SHAPES = {"categorical": (2, 3, 3), "bernoulli": (2, 4)}
every_family = pytest.mark.parametrize("family", FAMILIES)

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


@pytest.fixture
def untimed(monkeypatch):
    """One call each instead of several, for tests that diagnose often."""
    monkeypatch.setattr(cost, "_WARM_UPS", 0)
    monkeypatch.setattr(cost, "_TIMED_CALLS", 1)


def objective(name, family):
    variables = SHAPES[family][1]
    return oracles.objectives(variables, 3 if family == "categorical" else None)[name]


def logits_of(family, dtype=torch.float64):
    return normal(*SHAPES[family], seed=3, dtype=dtype)


def diagnosed(estimators, f="cubic", family="categorical", seed=0, **arguments):
    """A diagnosis of one of the objectives."""
    logits = arguments.pop("logits", logits_of(family))
    arguments = {"family": family, "generator": seeded(seed), **arguments}
    return diagnose(logits, objective(f, family), estimators, **arguments)


def indicator(z):
    """Not differentiable, and whole numbers: whether the first variable has its first value."""
    return (z[..., 0, 0] > 0.5).long()


def approx(x, tolerance=TOLERANCE):
    return pytest.approx(float(x), **tolerance)


# the numbers


def plain_gradients(f, logits, name, family, draws, **options):
    """One call and one backward after the other."""
    generator, found = seeded(5), []
    for _ in range(draws):
        leaf = logits.clone().requires_grad_()
        value = expectation(leaf, f, name, family=family, generator=generator, **options)
        found.append(torch.autograd.grad(value.sum(), leaf)[0])
    return torch.stack(found)


def plain_measures(gradients, truth):
    """Bias, variance, error and cosine of the mean, as one would write them down."""
    draws, mean = len(gradients), gradients.mean(0)
    variance = gradients.flatten(1).var(0).sum()
    bias_squared = (mean - truth).square().sum() - variance / draws
    cosine = torch.cosine_similarity(mean.flatten(1), truth.flatten(1)).mean()
    return torch.stack([variance, bias_squared, variance + bias_squared, cosine])


def plain_standard_errors(gradients, truth):
    """The jackknife, recomputed from all gradients but those of one group."""
    groups = torch.arange(len(gradients)) % 32
    left = torch.stack([plain_measures(gradients[groups != g], truth) for g in range(32)])
    return (31 / 32 * (left - left.mean(0)).square().sum(0)).sqrt()


@every_family
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("straight_through", {}),
        ("reinmax", {"tau": 1.3}),
        ("gumbel_softmax", {"num_samples": 2}),
        ("leave_one_out", {"num_samples": 3}),
        ("muprop", {"num_samples": 1}),
    ],
)
def test_equals_a_plain_loop(name, options, family, untimed):
    # with one draw at a time the random numbers come in the order of the loop; 70 draws make
    # groups of two and of three
    draws, f, logits = 70, objective("cubic", family), logits_of(family)
    result = diagnosed([(name, options)], "cubic", family, 5, num_draws=draws, chunk_size=1)
    row = result.rows[0]
    truth = discretegrad.exact_gradient(logits, f, family=family)
    gradients = plain_gradients(f, logits, name, family, draws, **options)
    variance, bias_squared, _, of_mean = plain_measures(gradients, truth)
    bias_squared = bias_squared.clamp_min(0)
    cosines = torch.cosine_similarity(gradients.flatten(2), truth.flatten(1), dim=-1).mean(1)
    errors = plain_standard_errors(gradients, truth)
    expected = {
        "variance": (variance, errors[0]),
        "bias_squared": (bias_squared, errors[1]),
        "mse": (variance + bias_squared, errors[2]),
        "cosine_of_mean": (of_mean, errors[3]),
        "cosine": (cosines.mean(), cosines.std() / math.sqrt(draws)),
    }
    for measure, (value, error) in expected.items():
        assert getattr(row, measure) == approx(value)
        assert getattr(row, f"{measure}_standard_error") == approx(error)
    assert (row.draws, row.nonfinite, row.status) == (draws, 0, "ok")


def enumerated(name, f, logits):
    """Squared bias and variance of a sampler without noise, over all outcomes of each element."""
    bias_squared = variance = 0.0
    for element in logits:
        row = ESTIMATORS[name]
        truth = discretegrad.exact_gradient(element, f)

        def sample_at(copies, index, row=row):
            return row.function(copies, given=index)

        mean = oracles.expected_gradient(sample_at, element, f)
        outcomes = oracles.joint_outcomes(*element.shape)
        copies = element.expand(len(outcomes), *element.shape).clone().requires_grad_()
        gradients = torch.autograd.grad(f(sample_at(copies, outcomes)).sum(), copies)[0]
        probs = element.softmax(-1)[torch.arange(len(element)), outcomes].prod(-1)
        variance += float(probs @ (gradients - mean).square().sum((-1, -2)))
        bias_squared += float((mean - truth).square().sum())
    return bias_squared, variance


@pytest.mark.parametrize("name", ["straight_through", "reinmax", "gapped"])
def test_agrees_with_enumeration(name, untimed):
    row = diagnosed([name], "exponential", seed=6, num_draws=4000).rows[0]
    f, logits = objective("exponential", "categorical"), logits_of("categorical")
    bias_squared, variance = enumerated(name, f, logits)
    assert bias_squared > 0.01
    assert row.bias_detected
    assert abs(row.bias_squared - bias_squared) < LIMIT * row.bias_squared_standard_error
    assert abs(row.variance - variance) < LIMIT * row.variance_standard_error
    assert abs(row.mse - bias_squared - variance) < LIMIT * row.mse_standard_error
    # and the errors are small enough to say something
    assert row.variance_standard_error < 0.1 * variance
    assert row.bias_standard_error == approx(row.bias_squared_standard_error / 2 / row.bias)


@every_family
def test_where_there_is_no_bias_none_is_found(family, untimed):
    # a false alarm has a chance of 1e-3 for each estimator; these seeds give none
    unbiased = [row.name for row in ESTIMATORS.values() if row.unbiased and family in row.families]
    names = ["reinmax", *(n for n in unbiased if "control" not in ESTIMATORS[n].options)]
    assert len(names) > 5
    for row in diagnosed(names, "quadratic", family, 9).rows:
        assert row.bias_detected is False, row
        assert row.bias_p_value > undrawn.SIGNIFICANCE
        assert row.bias_standard_error is None
        if row.estimator != "exact":
            # less noise than the mean of the draws has: what is left is an estimate of zero
            assert row.bias_squared < 3 * row.variance / row.draws
    assert diagnosed(["straight_through"], "quadratic", family, 9).rows[0].bias_detected


UNBIASED = {
    "categorical": ["leave_one_out", "reinforce", "disarm_tree", "muprop", "rebar", "reinmax"],
    "bernoulli": ["leave_one_out", "reinforce", "disarm", "arms", "muprop", "rebar", "double_cv"],
}


def confident(family, gap):
    """Variables that nearly always take one value, and an f that is not linear."""
    if family == "bernoulli":
        weight = torch.tensor([1.0, -2.0, 1.5]).double()
        return torch.tensor([gap, gap, -gap]).double(), lambda z: (z @ weight - 0.4) ** 3 + 5
    logits, weight = torch.zeros(2, 3).double(), torch.tensor([1.0, 2.0, 4.0]).double()
    logits[:, 0] = gap
    # quadratic, where reinmax has no bias
    return logits, lambda z: (z @ weight).sum(-1).square()


def verdicts(family, gap, seeds, **arguments):
    """The rows of all unbiased estimators, for each seed."""
    logits, f = confident(family, gap)
    arguments = {"family": family, **arguments}
    for seed in range(seeds):
        yield from diagnose(logits, f, UNBIASED[family], generator=seeded(seed), **arguments).rows


@every_family
@pytest.mark.parametrize("reference", ["exact", "leave_one_out", "given"])
@pytest.mark.parametrize("gap", [8, 12])
def test_what_was_not_drawn_is_no_bias(gap, reference, family, untimed):
    # a false alarm has a chance of at most 1e-3 for each row: more than 2 among these 21 or 18
    # rows come by chance in 2e-6 of cases
    logits, f = confident(family, gap)
    if reference == "given":
        reference = discretegrad.exact_gradient(logits, f, family=family)
    rows = list(verdicts(family, gap, 3, reference=reference))
    assert sum(row.verdict == "biased" for row in rows) <= 2
    for row in rows:
        assert (row.verdict == "too few draws") == (row.bias_detected is None)
        assert (row.draws_needed is not None) == (row.bias_detected is None)


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("gap", [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15])
def test_false_alarms_are_as_rare_as_stated(gap, family, untimed):
    rows = list(verdicts(family, gap, 100))
    alarms = sum(row.verdict == "biased" for row in rows)
    assert stats.binom.sf(alarms - 1, len(rows), undrawn.SIGNIFICANCE) > LEVEL


def test_the_number_of_draws_that_would_tell_does_tell(untimed):
    # straight_through is biased; what it lacks to the truth is rare here
    logits, f = confident("categorical", 4)
    few = diagnose(logits, f, ["straight_through"], num_draws=100, generator=seeded(0))
    row = few.rows[0]
    assert (row.verdict, row.bias_detected) == ("too few draws", None)
    # it is no less than the truth, and the bound says so
    exact = diagnose(logits, f, ["exact"], num_draws=40, generator=seeded(0))
    assert row.bias_bound > 0.5 * exact.gradient_norm
    assert 100 < row.draws_needed < 10**5
    assert f"(too few draws, about {row.draws_needed} would tell)" in few.table()
    assert f"?{row.bias:.3g}" in few.table()
    assert "too few draws, about" in few.plot().get_supxlabel()
    assert json.loads(json.dumps(few.to_dicts()))[0]["verdict"] == "too few draws"
    enough = {"num_draws": 2 * row.draws_needed, "generator": seeded(0)}
    assert diagnose(logits, f, ["straight_through"], **enough).rows[0].verdict == "biased"


def test_too_few_draws_beside_a_long_run_can_be_cured(untimed):
    arguments = {"seed": 0, "reference": "leave_one_out"}
    (few,) = diagnosed([("straight_through", {"tau": 3.0})], num_draws=31, **arguments).rows
    assert (few.verdict, few.draws_needed) == ("too few draws", 32)
    # the long run has as many at least, so that its length is never what is missing
    (enough,) = diagnosed([("straight_through", {"tau": 3.0})], num_draws=32, **arguments).rows
    assert enough.draws_needed is None
    short = diagnosed(["exact"], num_draws=2, **arguments)
    assert short.reference == "mean of 32 draws of leave_one_out K=16"


def test_one_rare_outcome_among_likely_values(untimed):
    # every value is likely, and f is 0 but for one of 4096 outcomes: most runs do not draw it
    def f(z):
        return z.prod(-1)

    logits = torch.zeros(12).double()
    for seed in range(4):
        row = diagnose(logits, f, ["leave_one_out"], family="bernoulli", generator=seeded(seed))
        assert row.rows[0].verdict != "biased"


@pytest.mark.parametrize("offset", [0, 3.0])
@pytest.mark.parametrize("gap", [6.0, 10.0, -12.0])
def test_rounding_is_no_bias(gap, offset, untimed):
    weight, names = torch.tensor([1.0, 2.0, 4.0]), ["straight_through", "double_cv", "muprop"]
    logits, arguments = torch.full((3,), gap), {"family": "bernoulli", "generator": seeded(0)}
    result = diagnose(logits, lambda z: z @ weight + offset, names, **arguments)
    assert [row.verdict for row in result.rows] == ["no bias found"] * 3
    # the exact gradient does not have the precision of the logits
    truth = discretegrad.exact_gradient(
        logits.double(), lambda z: z @ weight.double(), family="bernoulli"
    )
    assert result.gradient_norm == pytest.approx(float(truth.norm()), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exact_estimator_has_no_error(dtype):
    row = diagnosed(["exact"], num_draws=40, logits=logits_of("categorical", dtype)).rows[0]
    assert row.mse < torch.finfo(dtype).eps
    assert row.bias_detected is False
    assert (row.cosine, row.cosine_of_mean) == (approx(1, SINGLE), approx(1, SINGLE))
    assert row.evaluations == 27


def estimator_with(error, gradient, deviation):
    """An estimator of known bias and variance."""

    def noisy(logits, f, *, num_samples, family, generator):
        noise = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
        return (logits * (gradient + error + deviation * noise)).sum(-1)

    return noisy


@pytest.mark.parametrize("long_run", [False, True], ids=["exact", "long run"])
def test_standard_errors_and_p_values_are_calibrated(long_run, untimed):
    gradient, deviation = normal(2, 5, seed=1), torch.linspace(0.2, 2, 10).double().view(2, 5)
    # four times as many draws of twice the deviation: as much noise as in the estimators' means
    reference = estimator_with(0, gradient, 2 * deviation) if long_run else gradient
    estimators = {
        "right": estimator_with(0, gradient, deviation),
        "wrong": estimator_with(0.2, gradient, deviation),
    }
    variance, bias_squared = float(deviation.square().sum()), 10 * 0.2**2
    problem = (torch.zeros(2, 5).double(), lambda z: z.sum(-1), estimators)
    arguments = {"num_draws": 320, "family": "bernoulli", "generator": seeded(8)}
    repeats = 100
    results = [diagnose(*problem, reference=reference, **arguments) for _ in range(repeats)]
    assert stats.kstest([r["right"].bias_p_value for r in results], "uniform").pvalue > LEVEL
    # z-values have deviation 1 if standard errors are right
    for label, name, value in (
        ("right", "variance", variance),
        ("wrong", "variance", variance),
        ("wrong", "bias_squared", bias_squared),
        ("wrong", "mse", variance + bias_squared),
    ):
        rows = [r[label] for r in results]
        z = [(getattr(row, name) - value) / getattr(row, f"{name}_standard_error") for row in rows]
        spread = torch.tensor(z).std().item()
        # the limit of a chi-squared test at LEVEL, for z-values with 31 degrees of freedom
        slack = stats.norm.isf(LEVEL / 2) / math.sqrt(2 * repeats) * 1.1
        assert abs(spread / math.sqrt(31 / 29) - 1) < slack, (label, name)
        assert abs(torch.tensor(z).mean()) < stats.norm.isf(LEVEL / 2) * spread / 10
    # where there is no bias, little of the noise passes for it: this is what subtracting is for
    noise = variance / 320 * (2 if long_run else 1)
    left = sum(r["right"].bias_squared for r in results) / repeats
    assert left < 0.4 * noise


@every_family
def test_chunks_change_nothing(family, untimed):
    # one random number per variable, in the order of the draws: the same for every chunk size
    first, *others = (
        diagnosed(["straight_through", "reinmax"], family=family, num_draws=100, **chunks)
        for chunks in ({}, {"chunk_size": 1}, {"chunk_size": 33, "vectorize": False})
    )
    measures = ("bias_squared", "variance", "cosine", "cosine_of_mean", "mse_standard_error")
    for other in others:
        for row, expected in zip(other.rows, first.rows, strict=True):
            for name in measures:
                assert getattr(row, name) == approx(getattr(expected, name))


def test_memory_grows_with_the_chunk_and_not_with_the_draws(untimed, monkeypatch):
    # a table of constant size, 2.5 MB, which would hide what is looked for
    monkeypatch.setattr(moments, "_SIGNS", 10)

    logits = logits_of("categorical")

    def largest(draws, chunk_size):
        arguments = {"reference": torch.zeros_like(logits), "chunk_size": chunk_size}
        with Memory() as memory:
            diagnosed(["leave_one_out"], num_draws=draws, **arguments)
        return memory.largest

    # leave_one_out holds two samples of each draw
    assert largest(2000, 40) == largest(400, 40) <= 2 * 40 * logits.numel() * 8
    assert largest(400, 200) > largest(400, 40)
    # by default a chunk has at most so many elements
    monkeypatch.setattr(problem, "_CHUNK_ELEMENTS", 2 * 40 * logits.numel())
    assert largest(400, None) == largest(400, 40)


# the reference


def test_a_long_run_agrees_with_the_exact_gradient(untimed):
    # seen through the exact estimator, whose error is that of the reference
    arguments = {"num_draws": 50, "reference": "leave_one_out", "reference_draws": 3000}
    result = diagnosed(["exact"], seed=2, **arguments)
    assert result.reference == "mean of 3000 draws of leave_one_out K=16"
    assert result.rows[0].bias_p_value > LEVEL
    # its stated error is the one that its variance gives
    single = diagnosed([("leave_one_out", {"num_samples": 16})], seed=3, num_draws=3000)
    stated = result.reference_standard_error
    assert stated == pytest.approx(math.sqrt(single.rows[0].variance / 3000), rel=0.1)
    assert result.gradient_norm == pytest.approx(single.gradient_norm, abs=LIMIT * stated)
    assert single.reference_standard_error == 0


def test_noise_of_the_reference_does_not_count_as_gradient(untimed):
    noise, generator = estimator_with(0, torch.zeros(2, 4), torch.ones(2, 4)), seeded(3)
    arguments = {"num_draws": 10, "reference": noise, "generator": generator}
    results = [diagnosed([noise], family="bernoulli", **arguments) for _ in range(40)]
    norms = sum(result.gradient_norm**2 for result in results)
    assert norms < 0.5 * sum(result.reference_standard_error**2 for result in results)


def test_a_wrong_reference_shows():
    def wrong(logits, f, **arguments):
        return 1.1 * expectation(logits, f, "leave_one_out", **arguments)

    assert diagnosed(["exact"], num_draws=1000, reference=wrong).rows[0].bias_detected


def test_kinds_of_reference(untimed):
    def reference(given, **arguments):
        arguments = {"num_draws": 20, "reference": given, **arguments}
        return diagnosed(["reinmax"], family="bernoulli", **arguments)

    f, logits = objective("cubic", "bernoulli"), logits_of("bernoulli")
    truth = discretegrad.exact_gradient(logits, f, family="bernoulli")
    exact = reference("exact")
    assert exact.reference == "exact, 16 joint outcomes enumerated"
    given = reference(truth)
    assert given.reference == "a given tensor, taken as exact"
    assert given.rows[0].mse == exact.rows[0].mse
    assert given.gradient_norm == approx(truth.norm())
    beyond = reference("auto", max_outcomes=15)
    assert beyond.reference == "mean of 80 draws of leave_one_out K=16"
    assert reference("disarm").reference == "mean of 80 draws of disarm K=16"
    for item in (("arms", {"num_samples": 4}), (ESTIMATORS["arms"], {"num_samples": 4})):
        assert reference(item, reference_draws=50).reference == "mean of 50 draws of arms K=4"
    assert reference(discretegrad.Rebar()).reference == "mean of 80 draws of Rebar K=16"
    with pytest.raises(ValueError, match="expected at most max_outcomes=3"):
        reference("exact", max_outcomes=3)

    def random(z):
        return z.square().sum(-1) + torch.randn(2)

    result = diagnose(logits, random, ["reinmax"], num_draws=9, family="bernoulli")
    assert result.reference.startswith("mean of 36 draws")


# what it costs


@every_family
def test_counted_evaluations_are_the_registered_ones(family, untimed):
    result = diagnosed(None, family=family, num_draws=2)
    assert {row.estimator for row in result.rows} == {
        name
        for name, row in ESTIMATORS.items()
        if family in row.families and name not in ("exact", "relax", "rodeo")
    }
    for row in result.rows:
        known = ESTIMATORS[row.estimator]
        assert row.num_samples == known.min_samples
        assert (row.evaluations, row.slopes) == known.cost(row.num_samples), row.label


def unregistered(logits, f, *, num_samples, family, generator):
    return expectation(logits, f, "reinmax", num_samples=2, generator=generator)


def in_a_transform(logits, f, *, num_samples, family, generator):
    return expectation(logits, f, "reinmax", num_samples=2, generator=generator, vectorize=True)


@pytest.mark.parametrize(
    ("estimator", "costs"),
    [
        (("reinforce", {"baseline": "self_critical"}), (2, 0)),
        (("rebar", {"tied": False}), (3, 2)),
        (("rebar", {"num_samples": 5}), (10, 5)),
        (("leave_one_out", {"num_samples": 6, "vectorize": True}), (6, 0)),
        (discretegrad.leave_one_out, (2, 0)),
        ("exact", (27, 0)),
        (unregistered, (2, 2)),
        (in_a_transform, (None, None)),
    ],
)
def test_evaluations_follow_the_options(estimator, costs, untimed):
    row = diagnosed([estimator], num_draws=2).rows[0]
    assert (row.evaluations, row.slopes) == costs
    assert (row.mse_per_evaluation is None) == (costs[0] is None)


def test_a_timed_step_includes_the_gradient_of_the_model():
    weight, passed = nn.Parameter(torch.ones(2)), []
    weight.register_hook(passed.append)
    diagnose(torch.zeros(3, 2, 2), lambda z: (z * weight).sum((-1, -2)), ["reinmax"], num_draws=2)
    assert len(passed) == cost._WARM_UPS + cost._TIMED_CALLS
    assert weight.grad is None


def test_memory_that_runs_out_is_no_property_of_the_estimator():
    def greedy(logits, f, **_):
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        diagnosed([greedy])


def test_what_a_budget_buys():
    names = ["straight_through", ("straight_through", {"num_samples": 4}), "leave_one_out"]
    result = diagnosed(names, seed=1)
    one, four, unbiased = result.rows
    assert four.mse_per_second == approx(four.bias_squared + four.variance * four.seconds)
    assert four.mse_per_evaluation == approx(four.bias_squared + 4 * four.variance)
    # averaging four buys what four evaluations buy, and no less bias
    assert four.mse_per_evaluation == pytest.approx(one.mse_per_evaluation, rel=0.1)
    assert four.bias == pytest.approx(one.bias, rel=0.1)
    # a bias that may be zero is none of what lasts
    assert unbiased.bias_detected is False
    assert unbiased.mse_per_evaluation == approx(2 * unbiased.variance)
    assert four.error(100) == approx(math.sqrt(four.bias_squared + four.variance * 4 / 100))
    assert unbiased.error(100) == approx(math.sqrt(unbiased.variance * 2 / 100))
    assert DiagnosisRow("mine", "mine", 1).error(100) is None
    with pytest.raises(ValueError, match="expected more than 0 evaluations, got 0"):
        four.error(0)
    with pytest.raises(KeyError, match=r"a row \(.*, leave_one_out K=2\), got 'leave_one_out'"):
        result["leave_one_out"]
    for row in result.rows:
        assert row.relative_bias == approx(row.bias / result.gradient_norm)
        assert row.relative_deviation == approx(math.sqrt(row.variance) / result.gradient_norm)
        assert row.relative_mse == approx(row.mse / result.gradient_norm**2)
        bound = row.bias_squared + 2 * row.bias_squared_standard_error
        assert (row.bias, row.bias_bound) == (approx(row.bias_squared**0.5), approx(bound**0.5))


# what it leaves untouched


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()

    def forward(self, z):
        return self.layers(z).squeeze(-1)


def test_nothing_of_the_user_is_touched():
    torch.manual_seed(0)
    f = Decoder()
    logits = nn.Parameter(logits_of("bernoulli"))
    logits.grad = torch.ones_like(logits)
    control = discretegrad.ControlNetwork(4).double()
    running = discretegrad.Reinforce("running")
    expectation(logits, f, running, family="bernoulli")
    modules = [f, running, discretegrad.Relax(control), discretegrad.Rebar(), control]
    modes = set()
    control.register_forward_pre_hook(lambda module, _: modes.add(module.training))
    states = [{k: v.clone() for k, v in m.state_dict().items()} for m in modules]
    before, now = logits.detach().clone(), torch.get_rng_state()
    result = diagnose(
        logits,
        f,
        ["reinmax", *modules[1:4], ("relax", {"control": control})],
        num_draws=64,
        family="bernoulli",
        generator=seeded(0),
    )
    assert [row.status for row in result.rows] == ["ok"] * 5
    assert torch.equal(torch.get_rng_state(), now)
    assert torch.equal(logits, before)
    assert torch.equal(logits.grad, torch.ones_like(logits))
    assert int(running.steps) == 1
    assert modes == {False}
    for module, state in zip(modules, states, strict=True):
        assert module.training
        assert all(torch.equal(state[key], value) for key, value in module.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(mode, untimed):
    f, logits = objective("cubic", "categorical"), logits_of("categorical")
    expected = diagnose(logits, f, ["reinmax"], num_draws=30, generator=seeded(0)).rows[0]
    with mode():
        row = diagnose(logits.clone(), f, ["reinmax"], num_draws=30, generator=seeded(0)).rows[0]
        assert not torch.is_grad_enabled()
    assert row.mse == expected.mse


def measured(row):
    """A row without what depends on the clock."""
    return {k: v for k, v in vars(row).items() if k not in ("seconds", "mse_per_second")}


@pytest.mark.parametrize("reference", ["auto", "leave_one_out"])
def test_a_row_depends_on_the_seed_and_not_on_its_neighbours(reference, untimed):
    arguments = {"num_draws": 40, "reference": reference}
    generator = seeded(4)
    names = ["gumbel_softmax", "leave_one_out", "reinmax"]
    first = diagnosed(names, generator=generator, **arguments)
    alone = diagnosed(["reinmax"], seed=4, **arguments)
    assert measured(alone.rows[0]) == measured(first.rows[2])
    # and the generator moves on
    assert diagnosed(["reinmax"], generator=generator, **arguments).rows[0].mse != alone.rows[0].mse


# what it is given


def test_labels(untimed):
    labelled = {
        "reinmax": "reinmax",
        "reinmax tau=1.3": ("reinmax", {"tau": 1.3}),
        "reinmax tau=tensor(2, 3, 1)": ("reinmax", {"tau": torch.ones(2, 3, 1)}),
        "leave_one_out K=2": ESTIMATORS["leave_one_out"],
        "leave_one_out K=4": ("leave_one_out", {"num_samples": 4}),
        "reinmax #2": "reinmax",
        "unregistered": unregistered,
        "Reinforce": discretegrad.Reinforce(),
    }
    result = diagnosed(list(labelled.values()), num_draws=2)
    assert [row.label for row in result.rows] == list(labelled)
    assert {row.status for row in result.rows} == {"ok"}
    named = diagnosed({"cold": ("reinmax", {"tau": 0.5}), "rloo": "leave_one_out"}, num_draws=2)
    assert [row.label for row in named.rows] == ["cold", "rloo"]
    assert (named["cold"].options, named["cold"].estimator) == ({"tau": 0.5}, "reinmax")


def test_rows_of_users_sampler_functions_and_objects_by_name(untimed):
    mine = replace(ESTIMATORS["reinmax"], name="mine", label="Mine")
    estimators = [mine, discretegrad.reinmax, "relax", ("rodeo", {"alpha": 0.5}), "reinmax"]
    state = torch.get_rng_state()
    result = diagnosed(estimators, family="bernoulli", num_draws=40)
    assert torch.equal(torch.get_rng_state(), state)
    labels = [row.label for row in result.rows]
    assert labels == ["mine", "reinmax", "relax", "rodeo alpha=0.5 K=2", "reinmax #2"]
    assert {row.status for row in result.rows} == {"ok"}
    # the same draws of the same formula
    assert result.rows[0].mse == result.rows[1].mse == result.rows[4].mse
    again = diagnosed(["relax"], family="bernoulli", num_draws=40)
    assert again.rows[0].mse == result.rows[2].mse
    assert result.rows[2].bias_detected is False


def test_samples_for_all_and_for_one(untimed):
    names = ["reinmax", ("leave_one_out", {"num_samples": 3}), "disarm_tree"]
    result = diagnosed(names, num_samples=5, num_draws=2)
    assert [row.num_samples for row in result.rows] == [5, 3, 5]
    assert result.rows[2].status.startswith("not applicable: disarm_tree: expected an even")


def test_the_table_says_which_option_is_wrong(untimed):
    text = diagnosed(["reinmax", ("reinmax", {"tua": 1.0})], num_draws=2).table()
    assert "expected options among " in text
    assert "got 'tua'." in text


@every_family
def test_masks(family, untimed):
    logits, mask = logits_of(family), torch.ones(SHAPES[family][1:], dtype=torch.bool)
    mask.view(-1)[1] = False
    arguments = {"num_draws": 40, "family": family}
    masked = diagnosed(None, mask=mask, **arguments)
    excluded = diagnosed(None, logits=logits.masked_fill(~mask, -math.inf), **arguments)
    assert masked.gradient_norm == excluded.gradient_norm
    for row, other in zip(masked.rows, excluded.rows, strict=True):
        assert (row.status, row.nonfinite) == ("ok", 0)
        assert row.mse == approx(other.mse)


def test_shapes_without_a_batch_and_without_latents(untimed):
    for shape in ((), (3,)):
        logits = normal(*shape, seed=1)
        result = diagnose(logits, lambda z: (z - 0.3) ** 3, num_draws=50, family="bernoulli")
        assert result.batch_shape == shape
        assert all(row.status == "ok" for row in result.rows)
    # a sum over all axes makes one joint sample of them
    single = diagnose(normal(2), lambda z: z[0] * z[1], ["reinmax"], family="bernoulli")
    assert single.batch_shape == ()
    assert single["reinmax"].bias_detected is False


@pytest.mark.parametrize("vectorize", [True, False])
def test_an_objective_that_writes_into_its_sample(vectorize, untimed):
    weight = torch.tensor([50.0, 1.0, 1.01])

    def scaling(z):
        z *= weight
        return z.sum(-1).square()

    def clearing(z):
        y = (z @ weight).square()
        z[..., 0] = 0
        return y

    def forgetting(z):
        y = z @ weight
        z.zero_()
        return y.square()

    # confident logits, at which enumerated outcomes decide between a bias and too few draws
    names = ["leave_one_out", "reinmax", "relax", "exact"]
    for logits in (torch.tensor([-8.0, 0.0, 0.0]), normal(2, 3, dtype=torch.float32)):
        plain, *writing = (
            diagnose(logits, f, names, num_draws=100, vectorize=vectorize, generator=seeded(0)).rows
            for f in (lambda z: (z @ weight).square(), scaling, clearing, forgetting)
        )
        assert [row.status for row in plain] == ["ok"] * len(names)
        for rows in writing:
            for row, expected in zip(rows, plain, strict=True):
                assert (row.status, row.verdict) == ("ok", expected.verdict)
                assert (row.evaluations, row.slopes) == (expected.evaluations, expected.slopes)
                assert row.mse == approx(expected.mse, SINGLE)


def test_an_objective_that_vmap_cannot_trace(untimed):
    def f(z):
        return z.sum((-1, -2)) if z.sum().item() > 0 else -z.sum((-1, -2))

    with pytest.raises(RuntimeError) as caught:
        diagnose(torch.zeros(3, 2, 2), f, ["reinmax"])
    assert "vectorize=False" in caught.value.__notes__[0]
    result = diagnose(torch.zeros(3, 2, 2), f, ["reinmax"], num_draws=5, vectorize=False)
    assert result.rows[0].status == "ok"


def test_an_objective_without_gradient(untimed):
    result = diagnose(torch.zeros(4, 2, 3), indicator, num_draws=40, generator=seeded(0))
    for row in result.rows:
        assert row.applicable == (not ESTIMATORS[row.estimator].needs_grad_f), row.label
        if not row.applicable:
            assert row.status.startswith(f"not applicable: {row.estimator}: expected f to be diff")
            assert row.mse is row.seconds is row.evaluations is None
            assert row.label in result.table()
    assert result.best().estimator in ("leave_one_out", "disarm_tree")


def test_estimates_that_are_not_finite_are_counted(untimed):
    def broken(logits, f, *, num_samples, family, generator):
        values = expectation(logits, f, "reinmax", generator=generator)
        draws = torch.arange(len(logits)) if logits.ndim > 3 else torch.zeros(1)
        factor = torch.where(draws % 10 == 3, math.nan, 1.0)
        return values * factor.view(-1, *[1] * (values.ndim - 1)) if logits.ndim > 3 else values

    f, logits = objective("cubic", "categorical"), logits_of("categorical")
    result = diagnosed([broken], seed=5, num_draws=40)
    row = result.rows[0]
    assert (row.draws, row.nonfinite, row.status) == (36, 4, "ok")
    gradients = plain_gradients(f, logits, "reinmax", "categorical", 40)
    gradients = gradients[torch.arange(40) % 10 != 3]
    assert row.variance == approx(gradients.flatten(1).var(0).sum())
    assert "(4 not finite)" in result.table()

    def always(logits, f, **arguments):
        return logits.sum((-1, -2)) * math.nan

    row = diagnosed([always], num_draws=40).rows[0]
    assert (row.draws, row.nonfinite) == (0, 40)
    assert row.status == "not applicable: fewer than two estimates are finite"
    with pytest.raises(ValueError, match="expected finite draws of the reference always"):
        diagnosed(["reinmax"], num_draws=40, reference=always)


def test_zero_gradients_have_no_direction(untimed):
    # the loss of the second element is constant, that of both in the second case
    logits, weight = torch.zeros(2, 3, 2), torch.tensor([1.0, 0.0])

    def f(z):
        return weight * z[..., 0, 0]

    row = diagnose(logits, f, ["straight_through"], num_draws=5).rows[0]
    assert row.cosine == row.cosine_of_mean == approx(1, SINGLE)
    result = diagnose(logits, lambda z: 0 * z.sum((-1, -2)), ["straight_through"], num_draws=30)
    row = result.rows[0]
    assert row.cosine is row.cosine_of_mean is row.relative_bias is None
    assert (row.mse, row.bias_detected) == (0, False)
    assert "?" in result.table()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_dtypes(dtype, untimed):
    logits = logits_of("categorical", dtype)
    names = ["reinmax", "straight_through", "leave_one_out"]
    result, wide = (
        diagnosed(names, "quadratic", seed=2, num_draws=400, logits=x)
        for x in (logits, logits.double())
    )
    tolerance = {"rel": 0.05} if dtype != torch.float32 else SINGLE
    assert result.dtype == str(dtype).removeprefix("torch.")
    for row, expected in zip(result.rows, wide.rows, strict=True):
        assert row.variance == pytest.approx(expected.variance, **tolerance)
        assert row.cosine == pytest.approx(expected.cosine, **tolerance)
        assert row.bias_detected == expected.bias_detected


FEW = "of at least 1"
ORDER = r"Write discretegrad.diagnose\(logits, f, estimators\)"
REFERENCE = torch.full((3, 2, 2), math.inf)
OF_BITS = partial(discretegrad.leave_one_out, family="bernoulli")
CAME = r"got partial\(leave_one_out, family=...\). Pass family to diagnose itself"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_draws": 1}, ValueError, "expected at least 2 draws"),
        ({"num_draws": 2.5}, TypeError, "expected num_draws to be an int"),
        ({"num_samples": 0}, ValueError, f"expected num_samples {FEW}"),
        ({"chunk_size": 0}, ValueError, f"expected chunk_size {FEW}"),
        ({"reference_draws": 0}, ValueError, f"expected reference_draws {FEW}"),
        ({"max_outcomes": 0}, ValueError, f"expected max_outcomes {FEW}"),
        ({"progress": "yes"}, TypeError, "expected progress to be True or False"),
        ({"vectorize": 1}, TypeError, "expected vectorize to be True or False"),
        ({"family": "normal"}, ValueError, "expected family to be one of"),
        ({"generator": 3}, TypeError, "expected generator to be a torch.Generator"),
        ({"mask": torch.ones(2, 2)}, TypeError, "expected mask to be a boolean tensor"),
        ({"f": 3}, TypeError, "expected f to be a function"),
        ({"f": lambda z: 1.0, "vectorize": False}, TypeError, "expected f to return a tensor"),
        ({"f": lambda z: z}, ValueError, "expected f to return one loss per batch element"),
        ({"logits": [1.0]}, TypeError, "expected logits to be a torch.Tensor"),
        ({"logits": torch.zeros(3, 2, 2).long()}, TypeError, "expected floating-point logits"),
        ({"logits": torch.full((3, 2, 2), math.nan)}, ValueError, "expected logits without NaN"),
        ({"logits": torch.zeros(0, 2, 2)}, ValueError, "expected logits with at least one"),
        ({"logits": sum, "f": torch.zeros(2)}, TypeError, f"builtin_.*, Tensor, None.*{ORDER}"),
        ({"f": ["reinmax"], "estimators": sum}, TypeError, f"got .Tensor, list, builtin.*{ORDER}"),
        ({"logits": sum, "estimators": torch.zeros(2)}, TypeError, ORDER),
        ({"estimators": [("reinmax", {"num_samples": 0})]}, ValueError, f"num_samples {FEW}"),
        ({"reference": ("leave_one_out", {"num_samples": 0})}, ValueError, f"num_samples {FEW}"),
        ({"estimators": "reinmax"}, TypeError, "Put a single one into a list"),
        ({"estimators": []}, ValueError, "expected at least one estimator"),
        ({"estimators": ["reinmux"]}, ValueError, "expected the name of an estimator"),
        ({"estimators": [3]}, TypeError, "expected an estimator to be a name"),
        ({"estimators": ("reinmax", {"tau": 1.3})}, TypeError, "write \\[\\("),
        ({"estimators": [("reinmax", 1.3)]}, TypeError, "expected the options"),
        ({"estimators": [("reinforce", {"given": 1})]}, ValueError, "options without given"),
        ({"estimators": [partial(reinmax, given=1)]}, ValueError, "options without given"),
        ({"estimators": [partial(reinmax, dim=0)]}, TypeError, "partial without dim, got"),
        ({"estimators": [partial(reinmax, 0)]}, TypeError, "options by their names, got"),
        ({"estimators": {"x": OF_BITS}}, TypeError, f"partial without family, {CAME}"),
        ({"reference": (OF_BITS, {})}, TypeError, f"partial without family, {CAME}"),
        ({"reference": "reinmax"}, ValueError, "expected an unbiased estimator"),
        ({"reference": discretegrad.reinmax}, ValueError, "expected an unbiased estimator"),
        ({"reference": (discretegrad.reinmax, {})}, ValueError, "expected an unbiased estimator"),
        ({"reference": torch.zeros(2)}, ValueError, "expected a reference gradient of"),
        ({"reference": REFERENCE}, ValueError, "expected a finite ref"),
        ({"reference": "leave_one_out", "reference_draws": 31}, ValueError, "at least 32 ref"),
    ],
)
def test_bad_input(changes, error, message):
    arguments = {"f": lambda z: z.square().sum((-1, -2)), "logits": torch.zeros(3, 2, 2)}
    with pytest.raises(error, match=message):
        diagnose(**{**arguments, **changes})


def test_an_estimator_that_returns_something_else_is_not_applicable(untimed):
    estimators = {
        "total": lambda logits, f, **arguments: logits.sum(),
        "constant": lambda logits, f, **arguments: logits.detach().sum((-1, -2)),
        "nothing": lambda logits, f, **arguments: None,
    }
    result = diagnosed(estimators)
    assert "one value per batch element" in result["total"].status
    assert "got a constant" in result["constant"].status
    assert "got NoneType" in result["nothing"].status
    with pytest.raises(ValueError, match="expected a row with a number for 'mse', got none"):
        result.best()


# what it shows


@pytest.fixture(scope="module")
def result():
    names = ["straight_through", "leave_one_out", "reinmax", ("reinmax", {"tau": 1.3}), "disarm"]
    return diagnosed(names, "quadratic", seed=1, num_draws=3000)


def test_table(result):
    text = result.table()
    assert str(result) == text
    assert "categorical logits (2, 3, 3), batch (2,), 3000 draws, float64 on cpu" in text
    assert "exact, 27 joint outcomes enumerated; norm " in text
    body = text.splitlines()[4:9]
    assert [row.label in line for row, line in zip(result.rows, body, strict=True)] == [True] * 5
    marked = [line for line in body if line.startswith("*")]
    assert marked == [line for line in body if f"  {result.best().label}  " in line]
    assert f"  {result['straight_through'].bias:.3g}  " in body[0]
    assert f"  {result['straight_through'].variance:.3g}  " in body[0]
    assert f"  <{result['leave_one_out K=2'].bias_bound:.3g}  " in body[1]
    assert "not applicable: disarm: expected family" in body[4]
    relative = result.table(relative=True)
    assert f"  {result['straight_through'].relative_bias:.3g}  " in relative
    assert f"  {result['straight_through'].relative_mse:.3g}  " in relative


def test_rows_as_dictionaries(result):
    rows = json.loads(json.dumps(result.to_dicts(), allow_nan=False))
    assert [row["label"] for row in rows] == [row.label for row in result.rows]
    assert rows[0]["mse"] == result.rows[0].mse
    assert rows[3]["options"] == {"tau": 1.3}
    assert DiagnosisRow(**rows[3]) == result.rows[3]


def test_best():
    def row(label, **numbers):
        shared = {"mse": 1.0, "variance": 1.0, "bias": 1.0, "bias_detected": True, "cosine": 0.5}
        return DiagnosisRow(label, label, 1, **{**shared, **numbers})

    rows = (
        row("exact bias", bias=0.3, bias_detected=False, variance=9.0, mse=9.0),
        row("less noise", bias=0.5, bias_detected=False, variance=4.0, mse=4.0, cosine=0.9),
        row("small", mse=0.5, variance=0.4, bias=0.1, seconds=2.0),
        row("fast", seconds=1.0, mse_per_second=1.0, mse_per_evaluation=2.0),
        DiagnosisRow("failed", "failed", 1, status="not applicable: no"),
    )
    summary = ("exact", 0.0, 1.0, 10, (1,), (), "bernoulli", "float32", "cpu", "2")
    result = Diagnosis(rows, *summary)
    assert result.best().label == "small"
    best = {"small": ["mse", "variance"], "less noise": ["bias", "cosine"]}
    best["fast"] = ["seconds", "mse_per_second", "mse_per_evaluation"]
    for label, keys in best.items():
        assert all(result.best(key).label == label for key in keys)
    with pytest.raises(ValueError, match="expected a row with a number for 'cosine_of_mean'"):
        result.best("cosine_of_mean")
    with pytest.raises(ValueError, match="expected by to be one of"):
        result.best("speed")


def test_plot(result, tmp_path):
    path = tmp_path / "figure.svg"
    figure = result.plot(str(path))
    assert path.read_text().count("<svg") == 1
    errors, _ = figure.axes
    labels = [text.get_text() for text in errors.get_yticklabels()]
    assert labels == [row.label for row in result.rows if row.applicable][::-1]
    assert "Not applicable: disarm K=2" in figure.get_supxlabel()
    # bars: the variance of every row, and the squared bias of those that have one
    widths = [bar.get_width() for bar in errors.patches]
    expected = [row.variance for row in result.rows[3::-1]]
    expected += [row.bias_squared for row in result.rows[3::-1] if row.bias_detected]
    assert widths == pytest.approx(expected)
    # and told apart without colour
    assert len({bar.get_hatch() for bar in errors.patches}) == 2


def test_plot_without_matplotlib(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install discretegrad\[lab\]"):
        result.plot()


@pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
def test_progress(rich, monkeypatch, capsys, untimed):
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)

    def shown(progress):
        diagnosed(["reinmax"], num_draws=40, chunk_size=10, progress=progress)
        captured = capsys.readouterr()
        assert not captured.out
        return captured.err

    assert not shown(False)
    assert not shown(None)  # stderr is no terminal here
    text = shown(True)
    assert "reinmax" in text
    if not rich:
        assert "diagnose: reinmax 75 %" in text
        assert text.endswith("\r\x1b[K")


@pytest.mark.gpu
@every_family
def test_on_a_gpu(family):
    generator = torch.Generator("cuda").manual_seed(0)
    logits = logits_of(family).cuda()
    result = diagnosed(None, "quadratic", family, logits=logits, generator=generator)
    assert result.device == torch.cuda.get_device_name()
    expected = diagnosed(None, "quadratic", family)
    assert result.gradient_norm == approx(expected.gradient_norm)
    for row, other in zip(result.rows, expected.rows, strict=True):
        assert row.status == "ok"
        assert row.seconds > 0
        assert (row.evaluations, row.slopes) == (other.evaluations, other.slopes)
        spread = math.hypot(row.variance_standard_error, other.variance_standard_error)
        assert abs(row.variance - other.variance) < LIMIT * spread
