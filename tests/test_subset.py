"""Subsets of k items: the distribution against enumeration, and what holds where it cannot.

What every sampler promises on them is in test_contract, like that of the other families. Tests
with random numbers are seeded; with other seeds a right library would fail in this file with a
chance of at most 1e-6.
"""

import itertools
import math
import pickle

import pytest
import torch
from scipy import stats

import discretegrad
from cases import SUBSETS, each
from discretegrad import BackendUnavailable, Subset, reinforce, reinmax, sample_index
from discretegrad._types import Call
from discretegrad.estimators.reinmax import _gradient as reinmax_formula
from discretegrad.families import FAMILIES, counting
from discretegrad.testing import assert_discrete, gradient, normal, seeded

LEVEL = 1e-7
SIZES = [(1, 1), (2, 1), (2, 2), (5, 1), (5, 2), (5, 4), (6, 3), (7, 7), (9, 3), (9, 7)]
SAMPLERS = [case.row for case in SUBSETS]
SCORES = [row for row in discretegrad.ESTIMATORS.values() if row.kind == "score" and row.any_family]


def every_subset(n, k, dtype=torch.float64):
    rows = [[i in chosen for i in range(n)] for chosen in itertools.combinations(range(n), k)]
    return torch.tensor(rows, dtype=dtype)


def moments(logits, k):
    """Subsets, their probabilities, mean and covariance, by their definitions."""
    subsets = every_subset(len(logits), k, logits.dtype)
    impossible = (subsets > 0) & (logits == -math.inf)
    sums = torch.where(subsets > 0, logits, 0).masked_fill(impossible, -math.inf).sum(-1)
    probs = sums.softmax(0)
    mean = probs @ subsets
    residuals = subsets - mean
    return subsets, probs, mean, residuals.T @ (probs.unsqueeze(-1) * residuals)


def close(actual, expected, tolerance=1e-12):
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance


def kinds_of_logits(n, k):
    yield normal(n)
    yield 6 * normal(n)
    yield (2 * normal(n)).round()  # ties
    yield torch.zeros(n, dtype=torch.float64)
    if n > k + 1:
        excluded = torch.arange(n) == n - 1
        yield normal(n).masked_fill(excluded, -math.inf)
        yield torch.where(torch.arange(n) < k, 0.0, -math.inf).double()  # k are left


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_moments_equal_enumeration(n, k):
    family, g = Subset(k), normal(n, seed=1)
    for logits in kinds_of_logits(n, k):
        subsets, probs, mean, covariance = moments(logits, k)
        point = family.point(logits)
        close(family.mean(point), mean)
        close(family.covariance(point, g), covariance @ g)
        close(family.covariance(point, g + 1e3), covariance @ g, 1e-11)
        close(family.residual(subsets > 0, point), subsets - mean)
        log_probs = family.log_prob(logits, subsets)
        close(log_probs.exp(), probs)
        assert (log_probs[probs > 0] - probs[probs > 0].log()).abs().max() < 1e-10
        close(family.entropy(logits), -torch.special.xlogy(probs, probs).sum())
        likeliest = family.log_prob(logits, family.likeliest(logits))
        close(likeliest.exp(), probs.max())
        jacobian = torch.autograd.functional.jacobian(family.relaxed, logits)
        close(jacobian, covariance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype):
    family, logits = Subset(30), (3 * normal(200)).to(dtype)
    sample = family.likeliest(logits)
    for function in (family.relaxed, family.entropy, lambda x: family.log_prob(x, sample)):
        assert torch.equal(function(logits), function(logits.float()).to(dtype))


def test_entropy_of_the_largest_logits_is_finite():
    largest = torch.finfo(torch.float32).max
    rows = {x: torch.tensor([x, -x, 0.0, 1.0, 2.0, -math.inf]) for x in (largest, 200.0)}
    for k in range(1, 6):
        logits = rows[largest].clone().requires_grad_()
        entropy = Subset(k).entropy(logits)
        assert float(entropy.detach()) == pytest.approx(
            float(Subset(k).entropy(rows[200.0])), abs=1e-6
        )
        assert torch.autograd.grad(entropy, logits)[0].isfinite().all()


@pytest.mark.parametrize(("n", "k"), [*SIZES, (100, 98)])
def test_every_subset_has_a_number(n, k):
    family, logits = Subset(k), normal(n)
    drawn = family.outcome(logits, torch.arange(family.outcomes(logits)))
    assert sorted(drawn.tolist()) == sorted((every_subset(n, k) > 0).tolist())


@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("row", SAMPLERS, ids=lambda row: row.name)
def test_samplers_are_exact_for_what_their_rows_say(row, k):
    n, family, theta = 6, Subset(k), normal(6, seed=3)
    linear, matrix = normal(n, seed=4), normal(n, n, seed=5)
    subsets, probs, _, _ = moments(theta, k)
    degrees = {
        "linear": lambda z: z @ linear,
        "quadratic": lambda z: z @ linear + ((z @ matrix) * z).sum(-1),
        "beyond": lambda z: (z @ matrix).tanh().sum(-1),
    }
    logits = theta.expand(subsets.shape).clone().requires_grad_()
    sample = row.function(logits, family=family, given=subsets)
    assert torch.equal(sample, subsets)
    for degree, f in degrees.items():
        (gradients,) = torch.autograd.grad(f(sample).sum(), logits, retain_graph=True)
        exact = discretegrad.exact_gradient(theta, f, family=family)
        error = (probs @ gradients - exact).norm() / exact.norm()
        exact_here = (
            degree in {"linear": ("linear",), "quadratic": ("linear", "quadratic")}[row.exact_for]
        )
        assert error < 1e-12 if exact_here else error > 1e-3


@pytest.mark.parametrize("row", SCORES, ids=lambda row: row.name)
def test_score_functions_are_unbiased(row):
    """By enumeration of the samples that they are given."""
    family, theta = Subset(2), normal(5, seed=6)
    matrix = normal(5, 5, seed=7)

    def f(z):
        return (z @ matrix).tanh().sum(-1)

    subsets, probs, _, _ = moments(theta, 2)
    if row.name == "exact":
        logits = theta.clone().requires_grad_()
        mean = torch.autograd.grad(row.function(logits, f, family=family), logits)[0]
    else:
        joint = list(itertools.product(range(len(subsets)), repeat=row.min_samples))
        given = subsets[torch.tensor(joint).T]
        logits = theta.expand(len(joint), 5).clone().requires_grad_()
        loss = row.function(logits, f, family=family, given=given)
        (gradients,) = torch.autograd.grad(loss.sum(), logits)
        mean = probs[torch.tensor(joint)].prod(-1) @ gradients
    true = torch.autograd.functional.jacobian(
        lambda x: (subsets @ x).softmax(0) @ f(subsets), theta
    )
    close(mean, true)
    close(discretegrad.exact_gradient(theta, f, family=family), true)


# of torch itself, where it makes rules for forward mode
@pytest.mark.filterwarnings("ignore:.torch.jit.script(_method)?. is deprecated:DeprecationWarning")
def test_exact_expectation_has_all_derivatives():
    family, theta, matrix = Subset(2), normal(5, seed=8), normal(5, 5, seed=9)
    subsets = every_subset(5, 2)

    def expected(x):
        f = lambda z: (z @ matrix).tanh().sum(-1)  # noqa: E731
        return discretegrad.exact_expectation(x, f, family=family)

    def oracle(x):
        return (subsets @ x).softmax(0) @ (subsets @ matrix).tanh().sum(-1)

    close(expected(theta), oracle(theta))
    hessian = torch.autograd.functional.hessian(oracle, theta)
    close(torch.autograd.functional.hessian(expected, theta), hessian)
    for first, second in itertools.product((torch.func.jacrev, torch.func.jacfwd), repeat=2):
        close(second(first(expected))(theta), hessian)


@pytest.mark.parametrize("tau", [1.0, 0.7, 2.0])
@each(SUBSETS)
def test_a_subset_of_one_item_is_a_category(case, tau):
    logits = (2 * normal(30, 6)).requires_grad_()
    index = torch.arange(30) % 6
    given = torch.nn.functional.one_hot(index, 6)
    ours = case.row.function(logits, tau, family=Subset(1), given=given)
    category = case.row.function(logits, tau, given=index)
    assert torch.equal(ours, category)
    close(gradient(ours, logits), gradient(category, logits))


@pytest.mark.parametrize("k", [2, 5])
def test_the_fused_form_is_the_formula(k):
    family, logits, g = Subset(k), 2 * normal(20, 7), normal(20, 7, seed=1)
    point, tempered = family.point(logits), family.point(logits / 1.3)
    drawn = counting.draw(point, k, torch.rand(1, 20, 6, generator=seeded(2)).double())[0]
    for points in ((point,), (point, tempered)):
        close(
            family.fused["reinmax"](g, drawn, *points), reinmax_formula(family, g, drawn, *points)
        )


# --- where subsets are too many to enumerate


def mean_by_recursion(logits, k):
    """Item after item in logarithms, from both ends: another derivation."""

    def sizes(x):
        table = [torch.full((k + 1,), -math.inf, dtype=x.dtype).index_fill(0, torch.tensor(0), 0.0)]
        for value in x:
            taken = torch.cat([torch.tensor([-math.inf]), table[-1][:-1] + value])
            table.append(torch.logaddexp(table[-1], taken))
        return torch.stack(table)

    before, after = sizes(logits), sizes(logits.flip(0)).flip(0)
    total = before[-1, k]
    ways = torch.stack(
        [
            torch.logsumexp(b[:k] + a[:k].flip(0), 0)
            for b, a in zip(before[:-1], after[1:], strict=True)
        ]
    )
    return (ways + logits - total).exp()


@pytest.mark.parametrize(("n", "k"), [(150, 1), (150, 40), (301, 150), (301, 290)])
def test_many_items_equal_a_recursion_in_logarithms(n, k):
    for logits in (normal(n), 40 * normal(n)):
        mean = mean_by_recursion(logits, k)
        ours = Subset(k).relaxed(logits)
        close(ours, mean, 1e-11)


HARD = {
    "flat": lambda n: torch.zeros(2, n),
    "normal": lambda n: normal(2, n, dtype=torch.float32),
    "plus or minus 80": lambda n: 160.0 * (normal(2, n) > 0.3).float() - 80,
    "uniform in -80 to 80": lambda n: 160 * torch.rand(2, n, generator=seeded(1)) - 80,
    "-1e9 as a mask": lambda n: normal(2, n).float().masked_fill(torch.arange(n) % 2 == 1, -1e9),
    "as large as can be": lambda n: torch.finfo(torch.float32).max * normal(2, n).sign().float(),
}


@pytest.mark.parametrize("logits", HARD.values(), ids=HARD)
@pytest.mark.parametrize("k", [1, 600, 1990])
def test_float32_is_enough_for_thousands_of_items(logits, k):
    logits, family = logits(2000), Subset(k)
    # the covariance does not feel a constant, but a sum that is not centred does
    g = normal(*logits.shape, seed=1, dtype=torch.float32) + 100
    point, wide = family.point(logits), family.point(logits.double())
    ours, theirs = counting.inclusion(point, k), counting.inclusion(wide, k)
    for x, y in zip(ours, theirs, strict=True):
        # each to a rounding of itself and of its logit, as far as float32 reaches
        assert ((x - y).abs() <= 2e-5 * y + 1e-30).all()
    covariance = family.covariance(wide, g.double())
    error = (family.covariance(point, g) - covariance).abs().amax(-1)
    assert (error <= 2e-6 * covariance.abs().amax(-1) + 1e-30).all()
    sample = reinmax(logits.requires_grad_(), 1.3, family=family, generator=seeded(3))
    assert_discrete(sample, family)
    assert gradient(sample, logits).isfinite().all()


def test_nothing_cancels_where_a_subset_is_nearly_certain():
    """One of the first two is swapped with one of the last two, by chances of about e^-2x."""
    for dtype, x in ((torch.float32, 18.0), (torch.float64, 40.0)):
        logits = torch.tensor([x, x, -x, -x], dtype=dtype, requires_grad=True)
        chance, family = 2 * math.exp(-2 * x), Subset(2)
        likeliest = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=dtype)
        expected = chance * torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=dtype)
        score = family.residual(likeliest > 0, family.point(logits.detach()))
        (slope,) = torch.autograd.grad(family.log_prob(logits, likeliest), logits)
        for ours in (score, slope):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)
        covariance = family.covariance(family.point(logits.detach()), likeliest)
        torch.testing.assert_close(covariance, expected, rtol=1e-5, atol=0)


# --- draws


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 2), (7, 3), (6, 5)])
def test_frequencies(n, k, dtype):
    family, logits = Subset(k), (1.5 * normal(n, seed=n)).to(dtype)
    call, count = Call("draw", logits, generator=seeded(k)), 100_000
    drawn = family.draw(call, family.prepare(call), count)
    subsets, probs, _, _ = moments(logits.double(), k)
    bits = 2 ** torch.arange(n)
    number = torch.searchsorted((subsets.long() @ bits).sort().values, drawn.long() @ bits)
    counts = torch.bincount(number, minlength=len(subsets))
    expected = count * probs[(subsets.long() @ bits).argsort()]
    rare = expected < 50
    if rare.any():
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def test_frequencies_of_many_items():
    """The mean, and one swap of items, of subsets that cannot be enumerated."""
    family, logits, count = Subset(20), normal(300, dtype=torch.float32), 20_000
    sample = reinmax(logits.expand(count, 300), family=family, generator=seeded(4)).double()
    mean = family.relaxed(logits.double())
    z = (sample.mean(0) - mean) / (mean * (1 - mean) / count).sqrt()
    assert 2 * stats.norm.sf(z.abs().max()) * 300 > LEVEL
    weights = normal(300, seed=5)
    variance = weights @ family.covariance(family.point(logits.double()), weights)
    spread = (sample @ weights - mean @ weights).square() / variance
    assert 2 * stats.norm.sf((spread.mean() - 1).abs() / (spread.var() / count).sqrt()) > LEVEL


def test_a_block_of_rows_changes_nothing(monkeypatch):
    logits = normal(37, 50).requires_grad_()
    results = []
    for size in (1, 400, 10**9):
        monkeypatch.setattr(counting, "_BLOCK", size)
        sample = reinmax(logits, family=Subset(5), generator=seeded(6))
        results.append(torch.cat([sample, gradient(sample, logits)]))
    for other in results[1:]:
        close(other, results[0], 1e-14)


def test_one_step_and_many_give_the_same(monkeypatch):
    point, g = Subset(7).point(normal(3, 40)), normal(3, 40, seed=1)
    results = []
    for size in (0, 10**9):
        monkeypatch.setattr(counting, "_SHORT", size)
        results.append(torch.stack([Subset(7).mean(point), Subset(7).covariance(point, g)]))
    close(*results, 1e-15)


@pytest.mark.filterwarnings("error")
def test_transforms():
    logits, family, g = normal(4, 6), Subset(3), normal(6, seed=1)
    draws = torch.vmap(lambda x: reinmax(x, family=family), randomness="different")(logits)
    assert_discrete(draws, family)
    given = every_subset(6, 3)[:4]

    def loss(x, z):
        return (reinmax(x, 1.3, family=family, given=z) * g).sum()

    leaves = logits.clone().requires_grad_()
    expected = gradient(reinmax(leaves, 1.3, family=family, given=given), leaves, g.expand(4, 6))
    close(torch.vmap(torch.func.grad(loss))(logits, given), expected)


@pytest.mark.slow
def test_compiled(compiler):
    logits, g = normal(5, 6, dtype=torch.float32), normal(5, 6, seed=1, dtype=torch.float32)
    compiled = torch.compile(lambda x: reinmax(x, family=Subset(3)), fullgraph=True)
    ours = logits.clone().requires_grad_()
    sample = compiled(ours)
    assert_discrete(sample.detach(), Subset(3))
    given = reinmax(ours, family=Subset(3), given=sample.detach())
    close(gradient(sample, ours, g), gradient(given, ours, g), 1e-5)


def test_the_exact_expectation_compiled(compiler):
    logits, matrix = normal(3, 4).requires_grad_(), normal(4, 4, seed=1)

    def expected(x):
        return discretegrad.exact_expectation(
            x, lambda z: (z @ matrix).tanh().sum(-1), family=Subset(2)
        )

    compiled = torch.compile(expected, fullgraph=True, backend="aot_eager")
    results = [f(logits) for f in (compiled, expected)]
    close(*results)
    close(*(gradient(x, logits, torch.ones(3)) for x in results))


# --- the front


def test_the_one_front():
    family, logits = Subset(2), normal(3, 5, seed=1).requires_grad_()

    def f(z):
        return (z * torch.arange(5.0)).sum(-1).square()

    for row in (*SAMPLERS, *SCORES):
        loss = discretegrad.expectation(logits, f, row.name, family=family, generator=seeded(1))
        assert torch.autograd.grad(loss.sum(), logits)[0].isfinite().all()
    result = discretegrad.diagnose(
        logits.detach(), f, family=family, num_draws=200, generator=seeded(2), progress=False
    )
    labels = {row.label.split()[0] for row in result.rows}
    assert labels == {row.name for row in (*SAMPLERS, *SCORES)} - {"exact"}
    assert result.family == "Subset(k=2)"
    assert str(result).startswith("diagnose: Subset(k=2) logits (3, 5), batch (3,)")


def test_a_family_is_a_value():
    assert Subset(3) == Subset(3) != Subset(4)
    assert pickle.loads(pickle.dumps(Subset(3))) == Subset(3)
    assert len({Subset(3), Subset(3)}) == 1
    with pytest.raises(AttributeError):
        Subset(3).k = 4
    assert "subset" not in FAMILIES


def mask_of(*allowed):
    return torch.tensor([[i in allowed for i in range(5)]] * 2)


REFUSED = {
    "k": (lambda x: Subset(0), ValueError, "k of at least 1, got 0"),
    "k is no number": (lambda x: Subset(True), TypeError, "k to be an int, got bool"),
    "too few items": (
        lambda x: reinmax(x, family=Subset(6)),
        ValueError,
        r"at least 6 items .* got 5 along dim -1",
    ),
    "too few allowed": (
        lambda x: reinmax(x, family=Subset(2), mask=mask_of(3)),
        ValueError,
        r"at least 2 allowed items .* leave 1",
    ),
    "NaN": (lambda x: reinmax(x * math.nan, family=Subset(2)), ValueError, "without NaN"),
    "infinite": (lambda x: reinmax(x + math.inf, family=Subset(2)), ValueError, r"got \+inf"),
    "given too many": (
        lambda x: reinmax(x, family=Subset(2), given=torch.ones(2, 5)),
        ValueError,
        "exactly 2 ones .* got from 5 to 5",
    ),
    "given an index": (
        lambda x: reinmax(x, family=Subset(2), given=torch.zeros(2).long()),
        ValueError,
        "shape",
    ),
    "given what is masked": (
        lambda x: reinmax(x, family=Subset(2), mask=mask_of(2, 3), given=mask_of(1, 2)),
        ValueError,
        "possible",
    ),
    "given to a score function": (
        lambda x: reinforce(x, lambda z: z.sum(-1), family=Subset(2), given=torch.ones(1, 2, 5)),
        ValueError,
        "exactly 2 ones",
    ),
    "an index of subsets": (
        lambda x: sample_index(x, family=Subset(2)),
        ValueError,
        "an index stands for one category, got Subset",
    ),
    "a kernel": (
        lambda x: reinmax(x.double(), family=Subset(2), backend="triton"),
        BackendUnavailable,
        r"the logits are torch\.float64",
    ),
    "too many to enumerate": (
        lambda x: discretegrad.exact_gradient(
            torch.zeros(60), lambda z: z.sum(-1), family=Subset(30)
        ),
        ValueError,
        "max_outcomes",
    ),
    "no logits": (lambda x: Subset(2).relaxed(x.long()), TypeError, "floating-point logits"),
    "fewer items than its size": (lambda x: Subset(6).entropy(x), ValueError, "at least 6 items"),
    "fewer allowed than its size": (
        lambda x: Subset(2).log_prob(x.masked_fill(~mask_of(3), -math.inf), mask_of(2, 3)),
        ValueError,
        r"Subset\(2\)\.log_prob: expected at least 2 allowed items",
    ),
    "the likeliest of too few": (
        lambda x: Subset(6).likeliest(x),
        ValueError,
        r"Subset\(6\)\.likeliest: expected at least 6 items",
    ),
    "log-probability of another size": (
        lambda x: Subset(2).log_prob(x, torch.ones(2, 5)),
        ValueError,
        "zeros and exactly 2 ones .* from 5 to 5",
    ),
    "log-probability of no subset": (
        lambda x: Subset(2).log_prob(x, torch.full((2, 5), 0.4)),
        ValueError,
        "zeros and exactly 2 ones",
    ),
    "log-probability of fewer items": (
        lambda x: Subset(2).log_prob(x, torch.ones(2, 2)),
        ValueError,
        r"of shape \(\.\.\., 5\).*got \(2, 2\)",
    ),
    "log-probability of a list": (
        lambda x: Subset(2).log_prob(x, [1, 1, 0, 0, 0]),
        TypeError,
        "sample to be a 0/1 tensor, got list",
    ),
    "the name alone": (
        lambda x: reinmax(x, family="subset"),
        ValueError,
        r"discretegrad\.Subset\(k\)",
    ),
    **{
        row.name: (
            lambda x, row=row: row.function(
                x, *([lambda z: z.sum(-1)] if row.kind == "score" else []), family=Subset(2)
            ),
            ValueError,
            rf"{row.name}: expected family=.* got 'subset'. For that family use one of .*reinmax",
        )
        for row in discretegrad.ESTIMATORS.values()
        if not row.any_family and row.name not in ("relax",)
    },
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_said(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.zeros(2, 5))
