"""The random parts: frequencies, noise, and expectations through the sampling path.

Every test is seeded, so it always gives the same answer. Had the seeds been random, a right
library would fail somewhere in this file with a chance of at most FAMILY_WISE: each p-value is
held against LEVEL = FAMILY_WISE / P_VALUES (Bonferroni), where P_VALUES is more than all tests
together compute. The tests at the end show that the same machinery catches planted errors.
"""

import math

import pytest
import torch
from scipy import stats

import discretegrad
import oracles
from cases import FAMILIES, SAMPLERS, each_family
from discretegrad import _random, _seeded
from discretegrad._types import Call
from discretegrad.families import FAMILIES as FAMILY_OBJECTS
from discretegrad.testing import seeded

FAMILY_WISE = 1e-6
P_VALUES = 2000
LEVEL = FAMILY_WISE / P_VALUES

CATEGORIES, BITS = (FAMILY_OBJECTS[family] for family in FAMILIES)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ERROR_OF_CUMULATIVE = 2e-6
"""How far a cumulative probability, computed in float32, may lie from the true one."""

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
computed_in = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def chi_square(groups, probs, draws):
    """The p-value of counts per group; ``groups`` maps each category to its group.

    Groups expected fewer than 50 times are pooled, if need be with the smallest of the others:
    below that the tail of the test is not exact.
    """
    size = int(groups.max()) + 1
    expected = torch.zeros(size, dtype=torch.float64).scatter_add_(0, groups, probs) * len(draws)
    counts = torch.bincount(groups[draws], minlength=size).double()
    order = expected.argsort()
    expected, counts = expected[order], counts[order]
    pooled = int((expected < 50).sum())
    if expected[:pooled].sum() < 50:
        pooled += 1
    pieces = [pooled, *[1] * (size - pooled)]
    expected, counts = ([x.sum().item() for x in t.split(pieces)] for t in (expected, counts))
    assert len(expected) >= 2, "nothing to compare"
    return stats.chisquare(counts, expected).pvalue


def z_test(samples, target):
    """The p-value, corrected for the number of entries, that the mean of rows is the target.

    The target is a number for each entry, or a second set of rows with the same mean.
    """
    rows = samples.flatten(1)
    mean, variance = target.flatten(), 0.0
    if target.ndim == samples.ndim:
        mean, variance = target.flatten(1).mean(0), target.flatten(1).var(0) / len(target)
    spread = (rows.var(0) / len(rows) + variance).sqrt()
    # an entry without spread must be right to rounding
    z = ((rows.mean(0) - mean).abs() / spread.clamp_min(1e-12)).max().item()
    return min(1.0, 2 * stats.norm.sf(z) * rows.shape[1])


def binomial_test(count, draws, prob):
    """The two-sided p-value of a count."""
    law = stats.binom(draws, prob)
    return min(1.0, 2 * min(law.cdf(count), law.sf(count - 1)))


def assert_fair_bits(words, bits):
    for bit in range(bits):
        assert binomial_test(int((words >> bit & 1).sum()), len(words), 0.5) > LEVEL, bit


LOGITS = {
    "uniform": torch.zeros,
    "peaked": lambda n: torch.where(torch.arange(n) == n // 2, math.log(9.0 * max(n - 1, 1)), 0.0),
    "power law": lambda n: -torch.arange(1, n + 1).double().log(),
}


def draws_of(logits, rows, generator=None):
    """Many draws from one row of logits, without storing its probabilities once per draw."""
    call = Call("reinmax", logits, generator=generator)
    variables, per_piece = CATEGORIES.prepare(call), max(1, 2**24 // logits.shape[-1])
    counts = [min(per_piece, rows - first) for first in range(0, rows, per_piece)]
    return torch.cat([CATEGORIES.draw(call, variables, count) for count in counts]).flatten()


SIZES = {2: 1_000_000, 3: 1_000_000, 64: 500_000, 65: 500_000, 1000: 60_000}
CASES = [
    *((n, name, dtype) for n in SIZES for name in LOGITS for dtype in DTYPES),
    *((200_000, "power law", dtype) for dtype in DTYPES),
    (200_000, "uniform", torch.float32),
    (200_000, "peaked", torch.float32),
]


@pytest.mark.parametrize(("n", "shape", "dtype"), CASES, ids=str)
def test_frequencies_of_categories(n, shape, dtype):
    logits = LOGITS[shape](n).to(dtype)
    probs = logits.double().softmax(-1)
    index = draws_of(logits, SIZES.get(n, 8_000), seeded(n))
    category = torch.arange(n)
    if n <= 1000:
        assert chi_square(category, probs, index) > LEVEL
    # neighbours pooled in about 100 groups of equal probability, and every 37th pooled
    assert chi_square((probs.cumsum(0) * 100).long().clamp(max=99), probs, index) > LEVEL
    assert chi_square(category % 37, probs, index) > LEVEL


# the other samplers draw the same, which is among the rules of tests/test_contract.py
@pytest.mark.parametrize("n", [3, 65])
def test_neighbouring_rows_are_independent(n):
    logits = LOGITS["power law"](n).float()
    index = discretegrad.reinmax(logits.expand(100_000, n), generator=seeded(1)).argmax(-1)
    probs = logits.double().softmax(-1)
    pair, pairs = torch.arange(n * n), torch.outer(probs, probs).flatten()
    assert chi_square(pair, pairs, index[::2] * n + index[1::2]) > LEVEL


@every_dtype
def test_frequencies_of_bits(dtype):
    rows, logits = 500_000, torch.tensor([-6.0, -1.5, 0.0, 0.3, 4.0]).to(dtype)
    bits = discretegrad.reinmax(logits.expand(rows, 5), family="bernoulli", generator=seeded(2))
    for count, prob in zip(bits.double().sum(0), logits.double().sigmoid(), strict=True):
        assert binomial_test(int(count), rows, prob.item()) > LEVEL


# in one step; and in blocks: whole ones only, a last block of one category, and some in between
ALL_SIZES = [1, 2, 3, 31, 64, 65, 100, 128, 256, 257, 1000, 1024, 1025, 4097]


@every_dtype
@pytest.mark.parametrize("n", ALL_SIZES)
def test_draw_inverts_the_cumulative_probability(n, dtype, monkeypatch):
    """A grid of uniforms instead of random ones: each must land in its category's interval."""
    logits = (3 * torch.randn(n, generator=seeded(n), dtype=torch.float64)).to(dtype)
    grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    give_uniform(monkeypatch, grid.unsqueeze(-1))
    index = draws_of(logits, len(grid))
    end = logits.double().softmax(-1).cumsum(-1)
    begin = torch.cat([torch.zeros(1, dtype=torch.float64), end[:-1]])
    slack = ERROR_OF_CUMULATIVE if dtype != torch.float64 else 1e-12
    assert (begin[index] <= grid + slack).all()
    assert (grid <= end[index] + slack).all()


def give_uniform(monkeypatch, numbers):
    """Let the draw get these numbers instead of random ones."""
    for family in FAMILIES:
        monkeypatch.setattr(f"discretegrad.families.{family}.uniform", lambda *args: numbers)


def rows_with_zeros(rows, n, dtype, seed):
    """Random rows whose first, last and some other categories have probability zero."""
    generator = seeded(seed)
    logits = 4 * torch.randn(rows, n, generator=generator, dtype=torch.float64)
    logits[torch.rand(rows, n, generator=generator) < 0.5] = -math.inf
    # a whole run at either end, of a random length
    position = torch.arange(n)
    lengths = (torch.rand(rows, 2, generator=generator) * n / 2).long()
    logits[(position < lengths[:, :1]) | (position >= n - lengths[:, 1:])] = -math.inf
    keep = n // 2
    logits[:, keep] = torch.where(logits[:, keep].isinf(), 0.0, logits[:, keep])
    # some are possible but underflow
    underflow = torch.rand(rows, n, generator=generator) < 0.2
    underflow[:, keep] = False
    logits[underflow] -= 2000
    return logits.to(dtype)


def adversarial_uniforms(probs):
    """0, the largest number below 1, and all that fall on, or beside, a boundary."""
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    on_boundary = (cumulative / cumulative[..., -1:]).clamp(0, 1 - 2**-53)
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    yield torch.zeros_like(on_boundary[..., :1])
    yield torch.full_like(on_boundary[..., :1], 1 - 2**-53)
    yield torch.full_like(on_boundary[..., :1], 2**-53)
    for column in range(0, on_boundary.shape[-1], max(1, on_boundary.shape[-1] // 50)):
        boundary = on_boundary[..., column : column + 1]
        yield boundary
        yield torch.nextafter(boundary, zero)
        yield torch.nextafter(boundary, one).clamp(max=1 - 2**-53)


@computed_in
@pytest.mark.parametrize("n", ALL_SIZES)
def test_adversarial_uniforms_never_draw_probability_zero(n, dtype, monkeypatch):
    call = Call("reinmax", rows_with_zeros(100, n, dtype, seed=n))
    variables = CATEGORIES.prepare(call)
    for uniform in adversarial_uniforms(variables.point):
        give_uniform(monkeypatch, uniform)
        index = CATEGORIES.draw(call, variables)
        assert ((index >= 0) & (index < n)).all()
        assert (variables.point.gather(-1, index) > 0).all()


@each_family
def test_draws_use_53_fair_bits(family, monkeypatch):
    seen, uniform = [], _random.uniform
    monkeypatch.setattr(
        f"discretegrad.families.{family}.uniform",
        lambda *args: seen.append(uniform(*args)) or seen[-1],
    )
    logits = torch.zeros(2**16, 3) if family == "categorical" else torch.zeros(2**16)
    discretegrad.reinmax(logits, family=family, generator=seeded(4))
    (numbers,) = seen
    assert numbers.dtype == torch.float64
    assert numbers.numel() == 2**16
    assert_fair_bits((numbers * 2.0**53).long().flatten(), 53)


@pytest.mark.parametrize("logit", [-25.0, -16.0, -10.0, 10.0, 16.0, 25.0])
@computed_in
def test_rare_bernoulli_values_have_their_exact_share_of_the_uniforms(logit, dtype, monkeypatch):
    """The rare value must be drawn for a share of sigmoid(-|logit|), to a part in 10,000.

    At 16 the share is 1.1e-7: uniforms in float32 come in steps of 6e-8.
    """
    share, rare = 1 / (1 + math.exp(abs(logit))), logit < 0
    for factor, expected in ((0, rare), (0.9999, rare), (1.0001, not rare)):
        give_uniform(monkeypatch, torch.tensor([share * factor], dtype=torch.float64))
        bit = discretegrad.reinmax(torch.tensor([logit], dtype=dtype), family="bernoulli")
        assert bool(bit) == expected


@pytest.mark.parametrize("gap", [10.0, 16.0])
@pytest.mark.parametrize("n", [2, 64, 65, 300])
def test_rare_categories_have_their_exact_share_of_the_uniforms(n, gap, monkeypatch):
    share = 1 / (1 + math.exp(gap))
    for rare, common in ((0, n - 1), (n - 1, 0)):
        logits = torch.full((n,), -math.inf)
        logits[rare], logits[common] = -gap, 0.0
        for factor, expected in ((0.9999, rare), (1.0001, common)):
            distance = torch.tensor([[share * factor]], dtype=torch.float64)
            give_uniform(monkeypatch, distance if rare == 0 else 1 - distance)
            assert draws_of(logits, 1).item() == expected


SEEDS = (0, 1, 2**32 - 1, 2**32, 2**62 + 12345, 0x0123456789ABCDEF)


def draw_seeds(generator, *shape):
    return _random.draw_seeds(shape, torch.device("cpu"), generator)


def uniforms(seed, first, count, dtype=torch.float64):
    return _seeded._uniform(
        torch.tensor(seed, dtype=torch.int64), torch.arange(first, first + count), dtype
    )


def bit_pattern(uniform, bits):
    """The integer behind a uniform number made of so many bits."""
    return (uniform * 2.0**bits - 0.5).long()


def same_frequency(values, size):
    probs = torch.full((size,), 1 / size, dtype=torch.float64)
    return chi_square(torch.arange(size), probs, values)


@computed_in
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_uniform(seed, dtype):
    bits = 32 if dtype == torch.float64 else 23
    for first in (0, 2**31, 2**32 + 5):
        u = uniforms(seed, first, 2**17, dtype)
        assert stats.kstest(u.double().numpy(), "uniform").pvalue > LEVEL
        pattern = bit_pattern(u.double(), bits)
        assert same_frequency(pattern >> (bits - 10), 1024) > LEVEL
        assert same_frequency(pattern & 1023, 1024) > LEVEL


def test_every_bit_of_the_noise_is_fair():
    u = torch.cat([uniforms(seed, 0, 2**16) for seed in SEEDS])
    assert_fair_bits(bit_pattern(u, 32), 32)


def independence(u, v):
    """p-values of zero correlation and of a flat 32 x 32 histogram."""
    correlation = stats.pearsonr(u.numpy(), v.numpy()).pvalue
    cell = (u * 32).long() * 32 + (v * 32).long()
    return correlation, same_frequency(cell, 1024)


def assert_independent(u, v):
    assert min(independence(u.flatten(), v.flatten())) > LEVEL


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 10, 64, 1000, 2**16, 2**32])
def test_noise_of_neighbouring_counters_is_independent(lag):
    u, v = uniforms(11, 0, 2**17), uniforms(11, lag, 2**17)
    # every other counter: overlapping pairs would not be independent of each other
    keep = (torch.arange(2**17) // lag) % 2 == 0
    assert_independent(u[keep], v[keep])


@pytest.mark.parametrize("difference", [1, 2, 3, 255, 2**16, 2**31, 2**32, 2**33, 2**61])
def test_noise_of_neighbouring_seeds_is_independent(difference):
    for seed in (0, 0x0123456789ABCDEF):
        u, v = uniforms(seed, 0, 2**17), uniforms(seed + difference, 0, 2**17)
        if difference < 2**32:
            # seeds that differ in low bits share one stream in another order: do not count a pair
            # of numbers twice
            keep = torch.rand(2**17, generator=seeded(7)) < 0.5
            u, v = u[keep], v[keep]
        assert_independent(u, v)


def test_noise_of_many_seeds_is_uniform_at_every_counter():
    """Across rows, which is how it is used: one seed per row."""
    seed = draw_seeds(seeded(8), 2**17)
    for counter in (0, 1, 2, 1000, 2**32):
        u = _seeded._uniform(seed, torch.tensor(counter), torch.float64)
        assert stats.kstest(u.numpy(), "uniform").pvalue > LEVEL
        v = _seeded._uniform(seed, torch.tensor(counter + 1), torch.float64)
        assert_independent(u, v)


def test_noise_repeats_no_more_than_chance():
    numbers = 2**19
    seed = draw_seeds(seeded(9), 2**10).unsqueeze(-1)
    u = _seeded._uniform(seed, torch.arange(2**9), torch.float64)
    repeats = numbers - len(u.unique())
    # about n^2 / 2 / 2^32 pairs agree by chance
    assert stats.poisson.sf(repeats - 1, numbers**2 / 2 / 2**32) > LEVEL
    # one seed alone runs through different words
    assert len(uniforms(3, 0, numbers).unique()) == numbers


def test_seeds_are_63_random_bits():
    seed = draw_seeds(seeded(10), 2**16)
    assert seed.dtype == torch.int64
    assert (seed >= 0).all()
    assert len(seed.unique()) == len(seed)
    assert_fair_bits(seed, 63)


@computed_in
def test_seeded_noise_has_its_distribution_and_its_axes_are_independent(dtype):
    rows, n, draws = 50, 8, 400
    seed = draw_seeds(seeded(11), rows, 1)
    like = torch.zeros(rows, n, dtype=dtype)
    exponential = _seeded.seeded_exponential(seed, 0, draws, like)
    logistic = _seeded.seeded_logistic(draw_seeds(seeded(12), *like.shape), 0, draws, like)
    for noise, law in ((exponential, stats.expon), (logistic, stats.logistic)):
        mean, variance = law.stats()
        assert noise.dtype == dtype
        assert noise.shape == (draws, rows, n)
        assert noise.isfinite().all()
        values = noise.double()
        assert stats.kstest(values.flatten().numpy(), law.cdf).pvalue > LEVEL
        # a scale that is wrong by a few percent shows in the variance first
        moments = torch.stack([values, (values - mean).square()], -1).reshape(-1, 2)
        assert z_test(moments, torch.tensor([mean, variance]).double()) > LEVEL
        uniform = torch.from_numpy(law.cdf(values.numpy())).clamp(0, 1 - 1e-9)
        for axis in range(3):
            u, v = (uniform.unflatten(axis, (-1, 2)).select(axis + 1, half) for half in (0, 1))
            assert_independent(u, v)
    assert (exponential > 0).all()


def test_seeds_of_rows_are_different_and_their_noise_is_independent():
    rows = _seeded.row_seeds(torch.arange(200), torch.zeros(200, 300, 1))
    assert rows.min() >= 0
    assert len(rows.unique()) == rows.numel()
    low = torch.randint(2**32, (100_000,), generator=seeded(0))
    high = torch.arange(100_000) * 21_001
    # of the second kind the same word comes out of the first round of the mix of their halves
    for seed in ((high << 32) | low, (high << 32) | (_seeded._scramble(high) ^ 123)):
        assert len(_seeded.row_seeds(seed, torch.zeros(100_000, 2)).unique()) == 200_000
    noise = _seeded.seeded_exponential(rows, 0, 1, torch.zeros(200, 300, 2))[0]
    uniform = torch.exp(-noise.double())
    assert stats.kstest(uniform.flatten(), "uniform").pvalue > LEVEL
    assert_independent(uniform[::2], uniform[1::2])
    assert_independent(uniform[:, ::2], uniform[:, 1::2])


@computed_in
def test_noise_stays_off_its_ends(dtype):
    # with seed 0 these counters give the word of all zeros and the word of all ones; where the
    # hash has changed, find them again by inverting it
    ends = _seeded._uniform(torch.tensor(0), torch.tensor([0, 2251255942]), torch.float64)
    assert bit_pattern(ends, 32).tolist() == [0, 2**32 - 1]
    u = _seeded._uniform(torch.tensor(0), torch.tensor([0, 2251255942]), dtype)
    assert (u > 0).all()
    assert (u < 1).all()
    assert (-u.log() > 0).all()
    assert u.logit().isfinite().all()


@computed_in
def test_one_draw_of_noise_has_its_distribution(dtype):
    call = Call("gumbel_softmax", torch.zeros(2**17, 2, dtype=dtype))
    laws = ((CATEGORIES, stats.expon), (BITS, stats.logistic))
    for seed, (family, law) in enumerate(laws, start=13):
        noise = family.draw_noise(family.prepare(call), seeded(seed))
        assert noise.dtype == dtype
        assert noise.isfinite().all()
        assert (noise > 0).all() or family is BITS
        assert stats.kstest(noise.double().flatten().numpy(), law.cdf).pvalue > LEVEL


def raw_gumbel(shape, generator, dtype=torch.float64):
    uniform = torch.rand(shape, generator=generator, dtype=dtype)
    return -torch.log(-torch.log(uniform.clamp_min(torch.finfo(dtype).tiny)))


@computed_in
@pytest.mark.parametrize("tau", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("n", [2, 5, None])
def test_relaxed_sample_is_distributed_as_that_of_plain_noise(n, tau, dtype):
    """Of n categories; for None of a bit, which is the first of two categories."""
    rows = 50_000
    logits = (LOGITS["power law"](n) if n else torch.tensor([0.8, 0.0])).to(dtype)
    given = logits.expand(rows, n) if n else logits[:1].expand(rows, 1)
    common = {"hard": False, "family": "categorical" if n else "bernoulli"}
    ours = discretegrad.gumbel_softmax(given, tau, generator=seeded(15), **common).double()
    plain = ((logits.double() + raw_gumbel((rows, len(logits)), seeded(16))) / tau).softmax(-1)
    # to the precision of our dtype, so that ties near 0 and 1 agree
    plain = plain[:, : ours.shape[1]].to(dtype).double()
    for a, b in [*zip(ours.T, plain.T, strict=True), (ours.amax(-1), plain.amax(-1))]:
        assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > LEVEL


PAIR_LOGITS = torch.tensor([[0.5, -0.4, 0.1], [1.2, 0.0, -0.8]], dtype=torch.float64)
BIT_LOGITS = torch.tensor([0.7, -1.1, 0.2], dtype=torch.float64)


def gradients_of(sampler, logits, f, rows):
    """One gradient per independent sample, through the random draw."""
    repeated = logits.expand(rows, *logits.shape).clone().requires_grad_()
    values = f(sampler(repeated))
    return torch.autograd.grad(values.sum(), repeated)[0]


def plain_straight_through_gumbel(logits, tau, family, generator):
    """Straight-through Gumbel-softmax from raw noise; a bit is the first of two categories."""
    if family == "bernoulli":
        logits = torch.stack([logits, torch.zeros_like(logits)], -1)
    sample = oracles.gumbel_softmax(logits, raw_gumbel(logits.shape, generator), tau)[0]
    return sample if family == "categorical" else sample[..., 0]


def problem_of(family):
    """Logits of several variables, and the objectives on them."""
    if family == "categorical":
        return PAIR_LOGITS, oracles.objectives(*PAIR_LOGITS.shape)
    return BIT_LOGITS, oracles.objectives(len(BIT_LOGITS), None)


@each_family
@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_gumbel_softmax_and_gumbel_rao_have_the_mean_gradient_of_plain_noise(tau, family):
    (logits, ladder), rows = problem_of(family), 100_000
    plain, softmax, rao = (
        gradients_of(sampler, logits, ladder["quadratic"], rows)
        for sampler in (
            lambda x: plain_straight_through_gumbel(x, tau, family, seeded(19)),
            sampled("gumbel_softmax", family, tau, 20),
            sampled("gumbel_rao", family, tau, 21, num_draws=4),
        )
    )
    assert z_test(softmax, plain) > LEVEL
    assert z_test(rao, plain) > LEVEL


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_averaging_the_noise_lowers_the_variance(tau):
    f = problem_of("categorical")[1]["quadratic"]
    plain, few, many = (
        gradients_of(sampler, PAIR_LOGITS, f, 50_000).var(0).sum().item()
        for sampler in (
            sampled("gumbel_softmax", "categorical", tau, 22),
            sampled("gumbel_rao", "categorical", tau, 23, num_draws=2),
            sampled("gumbel_rao", "categorical", tau, 23, num_draws=10),
        )
    )
    # far outside the noise of a variance from so many samples, which is below two percent
    assert many < 0.95 * few
    assert few < 0.95 * plain


def sampled(name, family, tau, seed, **options):
    options = {"family": family, "generator": seeded(seed), **options}
    return lambda x: SAMPLERS[name].function(x, tau, **options)


def unbiasedness(sampler, family, rows=1_000_000):
    """The p-value that the mean gradient of a quadratic function is the exact gradient."""
    logits, ladder = problem_of(family)
    exact = discretegrad.exact_gradient(logits, ladder["quadratic"], family=family)
    return z_test(gradients_of(sampler, logits, ladder["quadratic"], rows), exact)


@each_family
@pytest.mark.parametrize("name", ["reinmax", "mean_baseline"])
def test_second_order_estimators_are_unbiased_on_quadratics(name, family):
    assert unbiasedness(sampled(name, family, 1.0, 26), family) > LEVEL


def scaled(sampler, factor):
    """The same sample with its gradient multiplied by a factor."""

    def wrong(x):
        z = sampler(x)
        return z.detach() + factor * (z - z.detach())

    return wrong


# what the gradient is multiplied by, of which estimator, at which temperature
PLANTED = {
    "gradient too large by 2 percent": (1.02, "reinmax", 1.0),
    "gradient too small by 2 percent": (0.98, "reinmax", 1.0),
    "gradient of the wrong sign": (-1.0, "reinmax", 1.0),
    "first order instead of second": (1.0, "straight_through", 1.0),
    "temperature of 1.05": (1.0, "reinmax", 1.05),
}


@each_family
@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_of_the_gradient_are_caught(error, family):
    factor, name, tau = PLANTED[error]
    assert unbiasedness(scaled(sampled(name, family, tau, 26), factor), family) < LEVEL


def test_planted_errors_of_the_frequencies_are_caught():
    """A draw from a temperature of 1.02, and uniforms of 8 bits."""
    logits = LOGITS["power law"](64).double()
    probs, category = logits.softmax(-1), torch.arange(64)
    tempered = draws_of(logits / 1.02, SIZES[64], seeded(27))
    assert chi_square(category, probs, tempered) < LEVEL
    coarse = torch.randint(2**8, (SIZES[64],), generator=seeded(28)).double() / 2**8
    index = torch.searchsorted(probs.cumsum(-1), coarse, right=True)
    assert chi_square(category, probs, index) < LEVEL


def test_planted_errors_of_the_noise_are_caught():
    """A counter that is only shifted, and one number used twice."""
    u = uniforms(11, 0, 2**17)
    weak = (torch.arange(2**17) * 0x7FEB352D & 0xFFFFFFFF).double() / 2**32
    assert min(independence(weak[:-1], weak[1:])) < LEVEL
    assert min(independence(u, u)) < LEVEL
