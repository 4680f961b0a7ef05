"""SparseMixer: its expectation by enumeration, its draws, its thresholds, and what is refused."""

import itertools
import math

import pytest
import torch
from torch.func import grad, vmap

import discretegrad
from discretegrad import sparse_mixer
from discretegrad.testing import assert_close, gradient, normal, seeded, weights_like

pytestmark = pytest.mark.usefixtures("global_seed")
each_version = pytest.mark.parametrize("version", [1, 2])
# the chance that the weight is the whole probability, and what it is multiplied by if not
WHOLE = {1: (1 / 2, 1 / 2), 2: (1 / 4, 1 / 3)}
INF = math.inf


def problem(experts=5, width=4, seed=0):
    """Logits and a loss of the weighted sum of the experts' outputs, a tanh network."""
    outputs = normal(experts, width, seed=seed + 1)
    shift, mix = normal(width, seed=seed + 2), normal(width, seed=seed + 3)

    def loss(weights, index):
        mixed = (weights.unsqueeze(-1) * outputs[index]).sum(-2)
        return (mixed + shift).tanh() @ mix

    return normal(experts, seed=seed), loss


def expectation_of(logits, loss, **options):
    """The expected gradient: every expert with either multiplier, times its probability."""
    experts, (whole, _) = len(logits), WHOLE[options["version"]]
    total = torch.zeros_like(logits)
    for noise, chance in ((0.0, 1 - whole), (0.99, whole)):
        copies = logits.expand(experts, experts).clone().requires_grad_()
        weights, index = sparse_mixer(
            copies,
            given=torch.arange(experts).unsqueeze(-1),
            noise=torch.full((experts, 1), noise),
            jitter_eps=INF,
            **options,
        )
        (gradients,) = torch.autograd.grad(loss(weights, index).sum(), copies)
        total += chance * logits.softmax(-1) @ gradients
    return total


def slopes(logits, loss):
    """The derivative of every expert's loss by its weight, as a function of all weights."""

    def value(weight, expert):
        return loss(weight.unsqueeze(-1), expert.unsqueeze(-1))

    return lambda weights: vmap(grad(value))(weights, torch.arange(len(logits)))


@pytest.mark.parametrize("reduce_best", [False, True])
@each_version
def test_expectation_is_the_formula(version, reduce_best):
    logits, loss = problem()
    slope, p = slopes(logits, loss), logits.softmax(-1)
    if version == 1:
        coefficient, at_best = slope(p) + slope(p / 2), 2 * slope(p)
    else:
        coefficient, at_best = slope(p) / 4 + slope(p / 3) * 3 / 4, slope(p)
    if not reduce_best:
        coefficient = torch.where(p == p.max(), at_best, coefficient)
    jacobian = torch.diag(p) - torch.outer(p, p)
    mean = expectation_of(logits, loss, version=version, reduce_best=reduce_best)
    assert_close(mean, (p * coefficient) @ jacobian)


def test_drawn_in_turn_without_what_was_drawn():
    """With several experts: each weight has the gradient of a single one among what was left."""
    logits, _ = problem()
    leaf = logits.clone().requires_grad_()
    index, noise = torch.tensor([3, 0, 4]), torch.tensor([0.9, 0.1, 0.1]).double()
    weights, _ = sparse_mixer(leaf, 3, given=index, noise=noise, jitter_eps=INF)
    single = []
    for place in range(3):
        here = slice(place, place + 1)
        allowed = torch.ones(5).bool().index_fill(0, index[:place], False)
        options = {"given": index[here], "noise": noise[here], "mask": allowed}
        single.append(sparse_mixer(leaf, jitter_eps=INF, **options)[0])
    expected = torch.cat(single)
    assert_close(weights, expected)
    assert_close(gradient(weights, leaf), gradient(expected, leaf))


@each_version
def test_frequencies(version):
    """Experts and multipliers come as often as they should; rate of false alarms below 1e-5."""
    logits, draws = normal(4, dtype=torch.float32), 40_000
    weights, experts = sparse_mixer(
        logits.expand(draws, 4), 2, version=version, jitter_eps=INF, generator=seeded(0)
    )
    whole, reduced = WHOLE[version]
    p = logits.double().softmax(-1)
    for pair in itertools.permutations(range(4), 2):
        rest = p.index_fill(0, torch.tensor(pair[0]), 0)
        second = rest / rest.sum()
        for large in (True, False):
            share = whole if large else 1 - whole
            if pair[1] == second.argmax():
                share = float(large)
            expected = float(p[pair[0]] * second[pair[1]] * share)
            # to know a reduced weight from a whole one, not to test it
            middle = second[pair[1]] * (1 + reduced) / 2
            met = (experts == torch.tensor(pair)).all(-1) & ((weights[:, 1] > middle) == large)
            deviation = math.sqrt(expected * (1 - expected) / draws)
            assert abs(float(met.double().mean()) - expected) <= 5.5 * deviation


def test_draws_what_every_sampler_draws():
    logits = normal(50, 6)
    _, experts = sparse_mixer(logits, jitter_eps=INF, generator=seeded(3))
    z = discretegrad.reinmax(logits, generator=seeded(3))
    assert experts.squeeze(-1).equal(z.argmax(-1))
    state = torch.get_rng_state()
    sparse_mixer(logits, 2, generator=seeded(3))
    assert torch.get_rng_state().equal(state)


@each_version
def test_evaluation_takes_the_best_with_the_gradient_of_softmax(version):
    logits = normal(7, 6).requires_grad_()
    weights, experts = sparse_mixer(logits, 3, version=version, training=False, jitter_eps=INF)
    assert experts.equal(logits.topk(3).indices)
    left, expected = logits, []
    for place in range(3):
        index = experts[:, place : place + 1]
        expected.append(left.softmax(-1).gather(-1, index))
        left = left.scatter(-1, index, -INF)
    expected = torch.cat(expected, -1)
    assert_close(weights, expected)
    assert_close(gradient(weights, logits), gradient(expected, logits))


def drawn_experts(logits, **options):
    """Which experts are drawn at all."""
    options = {"jitter_eps": 0.1, **options}
    _, experts = sparse_mixer(logits.expand(2000, -1), generator=seeded(0), **options)
    return experts.unique().tolist()


@pytest.mark.parametrize(
    ("logits", "phimoe", "invariant"),
    [
        ([1.0, 0.85, 0.7], [0, 1], [0, 1]),
        ([11.0, 10.85, 10.7], [0, 1, 2], [0, 1]),
        ([-0.5, -0.6, -0.65], [0, 1], [0, 1, 2]),
        ([0.0, -0.1, -5.0], [0], [0, 1]),
        ([0.0, 0.0, -INF], [0, 1], [0, 1]),
        ([-INF, -INF, 2.0], [2], [2]),
    ],
    ids=str,
)
def test_thresholds(logits, phimoe, invariant):
    logits = torch.tensor(logits, dtype=torch.float64)
    assert drawn_experts(logits) == phimoe
    for shift in (0.0, 7.0, -300.0):
        assert drawn_experts(logits + shift, threshold="shift-invariant") == invariant
    assert drawn_experts(logits, jitter_eps=0) == drawn_experts(
        logits, jitter_eps=0, threshold="shift-invariant"
    )


@pytest.mark.parametrize("threshold", ["phimoe", "shift-invariant"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extreme_scores(dtype, threshold):
    """No NaN, weights in [0, 1], and the gradient is finite and sums to zero."""
    huge = torch.finfo(dtype).max
    rows = [[huge, -huge, huge], [0, 0, 0], [-huge] * 3, [huge, -INF, -huge], [1e-7, 0, -INF]]
    logits = torch.tensor(rows, dtype=dtype).requires_grad_()
    for version, k, jitter_eps in itertools.product(WHOLE, (1, 2), (0.1, INF)):
        weights, experts = sparse_mixer(
            logits, k, version=version, jitter_eps=jitter_eps, threshold=threshold
        )
        assert weights.dtype == dtype
        assert ((weights > 0) & (weights <= 1)).all()
        assert (logits.detach().gather(-1, experts) > -INF).all()
        g = gradient(weights, logits, torch.ones_like(weights))
        assert g.isfinite().all()
        torch.testing.assert_close(g.sum(-1), torch.zeros(5, dtype=dtype), rtol=0, atol=2e-3)


def test_one_expert_left_has_the_weight_1_and_no_gradient():
    logits = normal(4, 3).requires_grad_()
    only = torch.tensor([False, True, False])
    weights, experts = sparse_mixer(logits, mask=only)
    assert (experts == 1).all()
    assert (weights == 1).all()
    assert (gradient(weights, logits) == 0).all()


def test_low_precision_is_computed_in_float32():
    logits = normal(64, 8, dtype=torch.bfloat16)
    given = torch.randint(8, (64, 1), generator=seeded(0))
    results = {}
    for dtype in (torch.bfloat16, torch.float32):
        leaf = logits.to(dtype).requires_grad_()
        weights, _ = sparse_mixer(leaf, given=given, noise=torch.zeros(64, 1), jitter_eps=INF)
        g = weights_like(weights.bfloat16()).to(dtype)
        results[dtype] = weights.detach(), gradient(weights, leaf, g)
    for low, high in zip(*results.values(), strict=True):
        assert low.equal(high.bfloat16())


def test_autocast():
    router = torch.nn.Linear(5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = router(normal(6, 5, dtype=torch.float32))
        weights, _ = sparse_mixer(logits, 2, jitter_eps=INF)
        weights.square().sum().backward()
    assert logits.dtype == weights.dtype == torch.bfloat16
    assert router.weight.grad.isfinite().all()
    assert router.weight.grad.any()


@pytest.mark.parametrize("training", [True, False])
def test_compiled_is_eager(training, compiler):
    def step(logits, **draws):
        weights, experts = sparse_mixer(logits, 2, training=training, jitter_eps=INF, **draws)
        return weights, experts, gradient(weights, logits)

    logits = normal(9, 4, dtype=torch.float32).requires_grad_()
    compiled = torch.compile(sparse_mixer, backend="aot_eager", fullgraph=True)
    draws = {"noise": torch.rand(9, 2, generator=seeded(0))} if training else {}
    if training:
        draws["given"] = torch.tensor([[0, 1], [2, 3], [3, 0]]).repeat(3, 1)
        assert compiled(logits, 2)[0].shape == (9, 2)
    weights, experts, expected = step(logits, **draws)
    again, same = compiled(logits, 2, training=training, jitter_eps=INF, **draws)
    assert same.equal(experts)
    assert_close(again, weights)
    assert_close(gradient(again, logits), expected)
    with torch.no_grad():
        assert_close(compiled(logits, 2, training=training, jitter_eps=INF, **draws)[0], weights)


def test_vmap_and_per_example_gradients():
    logits, noise = normal(6, 5), torch.rand(6, 2, generator=seeded(0)).double()
    given = torch.stack([torch.randperm(5, generator=seeded(x))[:2] for x in range(6)])
    mix = normal(2, seed=5)

    def loss(logits, given, noise):
        weights, _ = sparse_mixer(logits, 2, given=given, noise=noise, jitter_eps=INF)
        return (weights * mix).sum()

    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, given, noise), leaf)
    assert_close(vmap(grad(loss))(logits, given, noise), expected)
    draw = vmap(lambda x: sparse_mixer(x, 2, jitter_eps=INF), randomness="different")
    assert draw(logits)[0].shape == (6, 2)


def test_second_derivatives_are_refused():
    logits = normal(2, 3).requires_grad_()
    weights, _ = sparse_mixer(logits)
    (first,) = torch.autograd.grad(weights.square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiating it again is refused"):
        first.sum().backward()


def test_logits_are_not_changed_and_shapes_are_free():
    logits = normal(2, 3, 5)
    before = logits.clone()
    weights, experts = sparse_mixer(logits, 4, jitter_eps=INF)
    assert logits.equal(before)
    assert weights.shape == experts.shape == (2, 3, 4)
    assert (experts.sort(-1).values.diff(dim=-1) > 0).all()
    assert sparse_mixer(logits[:0])[0].shape == (0, 3, 1)


def test_refused():
    """Beside what ``test_bad_input`` tries on every function."""
    two = torch.zeros(2, 3)
    one = torch.zeros(2, 1).long()
    for options, error, *parts in [
        ({"k": 4}, ValueError, "k of at most 3", "got 4"),
        ({"version": 3}, ValueError, "version 1 or 2", "got 3"),
        ({"jitter_eps": -0.1}, ValueError, "at least 0", "got -0.1", "math.inf"),
        ({"threshold": "grin"}, ValueError, '"phimoe" or "shift-invariant"', "'grin'"),
        ({"given": one, "training": False}, ValueError, "training=False"),
        ({"given": one + 3}, ValueError, "in [0, 2]", "from 3 to 3"),
        ({"given": one, "k": 2}, ValueError, "shape (2, 2)", "got (2, 1)"),
        ({"given": one.expand(2, 2), "k": 2}, ValueError, "earlier expert"),
        ({"given": one, "mask": torch.tensor([False, True, True])}, ValueError, "the mask"),
        ({"given": one.bool()}, TypeError, "int64", "torch.bool"),
        ({"noise": torch.ones(2, 1)}, ValueError, "[0, 1)", "torch.rand"),
        ({"noise": torch.zeros(2)}, ValueError, "shape (2, 1)", "got (2,)"),
        ({"logits": torch.tensor([[0, math.nan]])}, ValueError, "without NaN"),
        ({"logits": torch.tensor([[0, INF]])}, ValueError, "finite or -inf"),
        ({"logits": torch.tensor([[-INF, -INF]])}, ValueError, "at least one allowed"),
        (
            {"logits": torch.tensor([[0.0, 0], [0, -INF]]), "k": 2},
            ValueError,
            "at least k = 2 allowed experts",
            "got 1 in row 1",
        ),
    ]:
        with pytest.raises(error) as caught:
            sparse_mixer(**{"logits": two, **options})
        assert str(caught.value).startswith("sparse_mixer: expected")
        assert all(part in str(caught.value) for part in parts), str(caught.value)
