"""Distributions: gradients by enumeration in float64, torch's own classes beside them, shapes."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import distributions as plain
from torch.distributions import Independent, kl_divergence

import discretegrad
from cases import SAMPLERS
from discretegrad.distributions import Bernoulli, OneHotCategorical
from discretegrad.testing import assert_discrete, normal, seeded

INF = math.inf
PAIRS = {
    "categorical": (OneHotCategorical, plain.OneHotCategorical),
    "bernoulli": (Bernoulli, plain.Bernoulli),
}
LINEAR = [name for name, row in SAMPLERS.items() if row.exact_for in ("linear", "quadratic")]
QUADRATIC = [name for name, row in SAMPLERS.items() if row.exact_for == "quadratic"]

both = pytest.mark.parametrize("family", PAIRS)
pytestmark = pytest.mark.usefixtures("global_seed")


def close(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol, check_dtype=False)


def mean_gradient(family, logits, loss, estimator, **arguments):
    """The expected gradient of ``loss(q, sample)`` by enumeration of all joint outcomes."""
    ours = PAIRS[family][0]
    q = ours(logits=logits, **arguments)
    count, variables = len(q.enumerate_support()), math.prod(q.batch_shape)
    total = torch.zeros_like(logits)
    row = SAMPLERS[estimator]
    for outcome in torch.cartesian_prod(*[torch.arange(count)] * variables).view(-1, variables):
        given = outcome.view(q.batch_shape)
        given = given if family == "categorical" else given.double()
        fixed = replace(row, function=partial(row.function, given=given))
        q = ours(logits=logits, estimator=fixed, **arguments)
        z = q.rsample()
        weight = q.log_prob(z).detach().sum().exp()
        total += weight * torch.autograd.grad(loss(q, z), logits)[0]
    return total


@both
@pytest.mark.parametrize("estimator", LINEAR)
@pytest.mark.parametrize("unimix", [0.0, 0.2])
def test_a_sampled_kl_has_the_gradient_of_the_kl(family, estimator, unimix):
    ours, torchs = PAIRS[family]
    shape = (2, 3) if family == "categorical" else (3,)
    logits = normal(*shape).requires_grad_()
    for prior in (ours(logits=normal(*shape, seed=1)), torchs(logits=normal(*shape, seed=1))):
        q = ours(logits=logits, unimix=unimix)
        expected = torch.autograd.grad(kl_divergence(q, prior).sum(), logits)[0]

        def loss(q, z, prior=prior):
            # that of torch takes an argmax and has no gradient for the sample
            p = ours(logits=prior.logits)
            return (q.log_prob(z) - p.log_prob(z)).sum()

        close(mean_gradient(family, logits, loss, estimator, unimix=unimix), expected)


def test_the_log_prob_of_torch_loses_the_gradient_of_a_sampled_kl():
    # why ours is linear: torch's leaves the mean gradient at zero, and here it is not
    logits, prior = normal(3).requires_grad_(), plain.OneHotCategorical(logits=normal(3, seed=1))

    def loss(q, z):
        return plain.OneHotCategorical(logits=logits).log_prob(z) - prior.log_prob(z)

    lost = mean_gradient("categorical", logits, loss, "straight_through")
    exact = torch.autograd.grad(kl_divergence(OneHotCategorical(logits=logits), prior), logits)[0]
    close(lost, torch.zeros(3))
    assert exact.abs().max() > 0.1


@both
@pytest.mark.parametrize("estimator", QUADRATIC)
def test_unimix_stays_exact_on_quadratics(family, estimator):
    shape = (2, 3) if family == "categorical" else (3,)
    logits = normal(*shape).requires_grad_()
    square, linear = normal(6, 6, seed=2), normal(6, seed=3)
    size = math.prod(shape)

    def f(z):
        x = z.flatten()
        if family == "bernoulli":  # quadratic in each bit, and in all of them
            return x @ square[:size, :size] @ x + linear[:size] @ x
        return x @ square @ x + linear @ x

    def expected_value():
        mixed = PAIRS[family][0](logits=logits, unimix=0.3)
        return discretegrad.exact_expectation(mixed.logits, f, family=family)

    expected = torch.autograd.grad(expected_value(), logits)[0]
    mean = mean_gradient(family, logits, lambda q, z: f(z), estimator, unimix=0.3)
    close(mean, expected)


def test_straight_through_with_unimix_is_that_of_dreamer():
    logits, weights = normal(4, 5).requires_grad_(), normal(4, 5, seed=1)
    mixed = 0.99 * logits.softmax(-1) + 0.01 / 5
    dreamer = torch.autograd.grad((mixed * weights).sum(), logits)[0]
    q = OneHotCategorical(logits=logits, estimator="straight_through", unimix=0.01)
    close(q.probs, mixed)
    close(torch.autograd.grad((q.rsample() * weights).sum(), logits)[0], dreamer)
    mask = torch.tensor([True, True, False])
    q = OneHotCategorical(logits=torch.tensor([9.0, -9.0, 0.0]), mask=mask, unimix=0.5)
    close(q.probs, torch.tensor([0.75, 0.25, 0.0]), atol=1e-4)


@both
@pytest.mark.parametrize("parameter", ["logits", "probs"])
def test_agrees_with_torch(family, parameter):
    ours, torchs = PAIRS[family]
    logits = normal(2, 3, 4)
    probs = logits.softmax(-1) if family == "categorical" else logits.sigmoid()
    values = {"logits": logits, "probs": probs}[parameter].requires_grad_()
    other = normal(2, 3, 4, seed=1)
    sample = torchs(**{parameter: values}).sample((5,))
    for measure in (
        lambda d: d.log_prob(sample),
        lambda d: d.entropy(),
        lambda d: d.probs,
        lambda d: d.logits,
        lambda d: d.variance,
        lambda d: kl_divergence(d, torchs(logits=other)),
        lambda d: kl_divergence(ours(logits=other), d),
        lambda d: kl_divergence(d, ours(logits=other)),
    ):
        # torch's keeps what it has computed, and its graph with it
        a, b = ours(**{parameter: values}), torchs(**{parameter: values})
        ours_value, theirs = measure(a), measure(b)
        close(ours_value, theirs)
        weights = normal(*theirs.shape, seed=7)
        gradients = [
            torch.autograd.grad((x * weights).sum(), values)[0] for x in (ours_value, theirs)
        ]
        close(*gradients)
    for name in ("batch_shape", "event_shape", "param_shape", "support", "arg_constraints"):
        assert getattr(a, name) == getattr(b, name), name
    assert (a.mode == b.mode).all()
    assert a.deterministic_sample.equal(a.mode)
    for expand in (True, False):
        assert a.enumerate_support(expand).equal(b.enumerate_support(expand))


@both
@pytest.mark.parametrize("estimator", SAMPLERS)
def test_rsample_is_the_sampler(family, estimator):
    logits, tau = normal(3, 4).requires_grad_(), torch.full((3, 1), 1.2)
    options = {"num_draws": 3} if estimator == "gumbel_rao" else {}
    ours, row = PAIRS[family][0], SAMPLERS[estimator]
    weights = normal(2, 3, 4, seed=1)
    mask = torch.tensor([True, True, False, True])
    results = []
    for way in ("distribution", "sampler"):
        random = {"generator": seeded(3)}
        if way == "sampler":
            large = logits.expand(2, 3, 4)
            z = row.function(large, tau, family=family, mask=mask, **options, **random)
        else:
            q = ours(logits=logits, estimator=estimator, tau=tau, mask=mask, **options, **random)
            z = q.rsample((2,))
        results.append((z, torch.autograd.grad((z * weights).sum(), logits)[0]))
    assert results[0][0].equal(results[1][0])
    assert results[0][1].equal(results[1][1])
    assert_discrete(z, family)
    q = ours(logits=logits, estimator=row.function, mask=mask, generator=seeded(3), **options)
    constant = q.sample((2,))
    assert constant.equal(results[0][0])
    assert not constant.requires_grad


@both
def test_shapes_expand_and_independent(family):
    ours, _ = PAIRS[family]
    logits = normal(3, 4).requires_grad_()
    q = ours(logits=logits, tau=torch.full((3, 1), 1.1), validate_args=True)
    event = q.event_shape
    large = q.expand((5, *q.batch_shape))
    assert type(large) is ours
    assert large.batch_shape == (5, *q.batch_shape)
    z = large.rsample((2,))
    assert z.shape == (2, 5, *q.batch_shape, *event)
    assert large.log_prob(z).shape == (2, 5, *q.batch_shape)
    joint = Independent(large, 1)
    assert joint.has_rsample
    assert joint.rsample().shape == (5, *q.batch_shape, *event)
    assert joint.log_prob(z).shape == (2, 5, *q.batch_shape)[:-1]
    assert joint.entropy().shape == (5, *q.batch_shape)[:-1]
    nothing = kl_divergence(joint, Independent(q.expand(large.batch_shape), 1))
    close(nothing, torch.zeros(joint.batch_shape))
    with pytest.raises(ValueError, match="support"):
        q.log_prob(z * 0.5)
    ours(logits=logits, validate_args=False).log_prob(z * 0.5)


@both
def test_impossible_outcomes_bring_no_nan(family):
    ours, torchs = PAIRS[family]
    logits = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, 2.0]], dtype=torch.float64)
    logits.requires_grad_()
    mask = torch.tensor([True, True, False]) if family == "bernoulli" else None
    probs = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]], requires_grad=True)
    for parameters, unimix in itertools.product(
        ({"logits": logits, "mask": mask}, {"probs": probs}), (0.0, 0.1)
    ):
        leaf = next(iter(parameters.values()))
        for prior in (None, ours(logits=torch.zeros(2, 3)), torchs(logits=torch.zeros(2, 3))):
            q = ours(**parameters, unimix=unimix)
            prior = q if prior is None else prior
            z = q.rsample((20,))
            sampled = q.log_prob(z) - ours(logits=prior.logits).log_prob(z)
            losses = torch.cat(
                [x.flatten() for x in (sampled, q.entropy(), kl_divergence(q, prior))]
            )
            assert losses.isfinite().all()
            assert (q.entropy() >= 0).all()
            assert torch.autograd.grad(losses.sum(), leaf)[0].isfinite().all()
    # q gives probability to what the other excludes, whoever says so
    wide = ours(logits=torch.zeros(2, 3, requires_grad=True))
    certain = torch.tensor([[1.0, 0.0, 0.0]] * 2)
    for narrow in (ours(probs=certain), torchs(probs=certain)):
        divergence = kl_divergence(wide, narrow)
        assert (divergence == INF).all()
        assert torch.autograd.grad(divergence.sum(), wide._natural)[0].isfinite().all()
    narrow = ours(probs=certain)
    value = torch.eye(3)[1].expand(2, 3)
    assert (narrow.log_prob(value) == -INF).any()
    assert not narrow.log_prob(value).isnan().any()


@both
def test_low_precision_and_extreme_logits(family):
    ours, _ = PAIRS[family]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        largest = torch.finfo(dtype).max
        logits = torch.tensor([[largest, -largest, 0.0]], dtype=dtype, requires_grad=True)
        q = ours(logits=logits)
        loss = q.log_prob(q.rsample((7,))).sum() + q.entropy().sum()
        assert torch.autograd.grad(loss, logits)[0].isfinite().all()
        logits = torch.tensor([[60.0, -60.0, 0.0], [300.0, 1.0, -300.0]], dtype=dtype)
        logits.requires_grad_()
        q = ours(logits=logits, unimix=0.01)
        z = q.rsample((7,))
        assert z.dtype == q.probs.dtype == dtype
        loss = q.log_prob(z).sum() + q.entropy().sum()
        assert torch.autograd.grad(loss, logits)[0].isfinite().all()
        least = 0.005 if family == "bernoulli" else 0.01 / 3
        assert (q.probs >= least * 0.98).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_bears_many_categories(dtype):
    n = 70_000  # more than the largest float16
    logits = torch.zeros(n, dtype=dtype)
    q, narrow = OneHotCategorical(logits=logits), OneHotCategorical(logits=logits[: n // 2])
    nats = math.log(n)
    assert float(q.log_prob(q.sample())) == pytest.approx(-nats, rel=0.004)
    assert float(q.entropy()) == pytest.approx(nats, rel=0.004)
    mask = torch.arange(n) < n // 2
    half = OneHotCategorical(logits=logits, mask=mask)
    divergence = kl_divergence(half, q)
    assert divergence.dtype == dtype
    assert float(divergence) == pytest.approx(math.log(2), rel=0.004)
    assert float(half.entropy()) == pytest.approx(float(narrow.entropy()))


@both
def test_a_divergence_from_logits_of_torch_is_finite_where_its_probs_round(family):
    ours, torchs = PAIRS[family]
    far = torch.tensor([0.0, -120.0, 20.0, 200.0])
    divergences = [kl_divergence(ours(logits=torch.zeros(4)), d(logits=far)) for d in PAIRS[family]]
    assert divergences[0].isfinite().all()
    close(divergences[1], divergences[0], atol=1e-4)
    back = [kl_divergence(d(logits=far), ours(logits=torch.zeros(4))) for d in (ours, torchs)]
    close(*back, atol=1e-4)


def test_compiled_is_eager(compiler):
    logits = normal(3, 4).requires_grad_()

    def loss(x):
        q = OneHotCategorical(logits=x, unimix=0.1, estimator="straight_through")
        z = q.rsample((2,))
        prior = OneHotCategorical(logits=torch.zeros_like(x))
        return (q.log_prob(z) - prior.log_prob(z)).sum() + kl_divergence(q, prior).sum()

    results = []
    for f in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(2)
        value = f(logits)
        results.append((value.detach(), *torch.autograd.grad(value, logits)))
    for eager, compiled in zip(*results, strict=True):
        close(eager, compiled)


def test_a_subclass_keeps_its_class_and_a_repr_says_what_it_is():
    class Mine(OneHotCategorical):
        pass

    q = Mine(logits=torch.zeros(2, 3), estimator="gapped", gap="p")
    assert type(q.expand((4, 2))) is Mine
    assert repr(q) == "Mine(logits: (2, 3), estimator: gapped)"
    assert Bernoulli(0.25).probs.item() == pytest.approx(0.25)


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "either probs or logits, got neither"),
        ({"probs": X, "logits": X}, ValueError, "got both"),
        ({"logits": [0.0]}, TypeError, "expected logits to be a torch.Tensor"),
        ({"probs": [0.0]}, TypeError, "expected probs to be a floating-point tensor, got list"),
        ({"probs": X - 1}, ValueError, "expected probs that are .*, got -1"),
        ({"probs": X * math.nan}, ValueError, "got nan"),
        ({"logits": X * math.nan}, ValueError, "expected logits without NaN"),
        ({"logits": X, "unimix": 1.0}, ValueError, r"unimix to be a number in \[0, 1\)"),
        ({"logits": X, "unimix": "0.1"}, TypeError, "unimix to be a number .*, got str"),
        ({"logits": X, "estimator": "rebar"}, ValueError, "Only samplers"),
        ({"logits": X, "estimator": "magic"}, ValueError, "expected estimator to be one of"),
        ({"logits": X, "estimator": 3}, TypeError, "name of a sampler"),
        ({"logits": X, "gap": 1.0}, TypeError, "expected no options, got 'gap'"),
        ({"logits": X, "estimator": "gapped", "gap": -1.0}, ValueError, "gap of at least 0"),
        ({"logits": X, "tau": 0.0}, ValueError, "expected tau in"),
        ({"logits": X, "mask": X}, TypeError, "expected mask to be a boolean"),
        (
            {"logits": X, "estimator": "gumbel_softmax", "hard": False},
            ValueError,
            "discrete samples only",
        ),
    ],
    ids=str,
)
@both
def test_bad_input(family, arguments, error, message):
    with pytest.raises(error, match=message):
        # torch's own default, which torch.compile sets to False
        PAIRS[family][0](**arguments, validate_args=True)


def test_more_bad_input():
    with pytest.raises(ValueError, match="a category axis, got a scalar"):
        OneHotCategorical(logits=0.0)
    with pytest.raises(ValueError, match="at least one allowed category"):
        OneHotCategorical(logits=X, mask=X > 0, validate_args=True)
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 2"):
        Bernoulli(2.0, validate_args=True)
    with pytest.raises(TypeError, match="expected a tensor of values, got float"):
        Bernoulli(0.5).log_prob(1.0)
    with pytest.raises(ValueError, match="generator on the logits' device"):
        OneHotCategorical(logits=X.to("meta"), generator=seeded(0)).rsample()
    for name in ("logits", "probs"):
        unchecked = OneHotCategorical(**{name: X * math.nan}, validate_args=False)
        assert unchecked.probs.isnan().all()
