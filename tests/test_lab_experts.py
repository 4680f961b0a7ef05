"""The mixture of experts: plain code beside the stack, and the gradients of its routers."""

import math

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

import discretegrad
import oracles
from discretegrad.testing import assert_close, normal
from discretegrad_lab import tasks
from discretegrad_lab.stack import trainer
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.tasks.data import Images, Labels
from discretegrad_lab.tasks.experts.config import Experts
from discretegrad_lab.tasks.experts.model import Examples, ExpertsModel
from discretegrad_lab.tasks.experts.recipes import ROUTED
from discretegrad_lab.tasks.experts.routers import Router
from test_lab_capture import faults

CPU = torch.device("cpu")
EXPERTS, HIDDEN, BATCH, STEPS = 4, 3, 10, 3
SIZES = {"experts": EXPERTS, "hidden": HIDDEN, "batch": BATCH, "epochs": 2}
LINES = {line.key: line for line in ROUTED}
one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)
each_line = pytest.mark.parametrize("key", LINES)


def run(key, **fields):
    return Experts(estimator=LINES[key], **SIZES | ROUTED[LINES[key]] | fields)


def examples():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (55, 784), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (55,), generator=generator, dtype=torch.uint8)
    return Examples(Images(images[:35], images[35:]), Labels(labels[:35], labels[35:]))


def make_model(runs, device, data=None):
    return ExpertsModel(runs, device, examples=examples())


def grey(images):
    return images.double() / 255


def make_double(runs, monkeypatch):
    """The model in float64, but for its random numbers."""
    model = make_model(runs, CPU)
    # large scores, so that experts are likely and unlikely
    model.network.scores.weight.data *= 3
    model.network.double()
    monkeypatch.setattr("discretegrad_lab.tasks.experts.model.grey", grey)
    monkeypatch.setattr(model._batches, "pixels", lambda index: grey(model._batches.images[index]))
    return model


# a plain mixture of experts, image by image


class Plain(nn.Module):
    """Only experts that a router asks for run."""

    def __init__(self, network, member):
        super().__init__()
        self.router = nn.Linear(784, EXPERTS).double()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)).double()
            for _ in range(EXPERTS)
        )
        with torch.no_grad():
            for own, stacked in zip(self.parameters(), self.of_stack(network, member), strict=True):
                own.copy_(stacked)

    def of_stack(self, network, member):
        """The parameters of a member, in the order of those here."""
        yield from (network.scores.weight[member], network.scores.bias[member])
        for expert in range(EXPERTS):
            for layer in (network.inner, network.outer):
                yield from (layer.weight[member, expert], layer.bias[member, expert])

    def weighted(self, x, weights):
        """The sum over experts that have a weight."""
        rows = []
        for image, row in zip(x, weights, strict=True):
            used = [expert for expert in range(EXPERTS) if row[expert] != 0 or row.requires_grad]
            rows.append(sum(row[expert] * self.experts[expert](image) for expert in used))
        return torch.stack(rows)


def drawn(scores, uniform):
    """The first expert at which the running sum of probabilities is above the number."""
    total = scores.softmax(-1).cumsum(-1)
    return torch.tensor(
        [
            next(i for i in range(EXPERTS) if row[i] > u * row[-1])
            for row, u in zip(total.tolist(), uniform.flatten().tolist(), strict=True)
        ]
    )


def within_threshold(scores):
    """-inf for experts that are too far behind."""
    kept = scores.clone()
    for row in kept:
        most = float(row.max())
        for place, score in enumerate(row.tolist()):
            if most - score > 0.2 * max(abs(score), most):
                row[place] = -math.inf
    return kept


def plain_costs(plain, member, x, labels, noise):
    """The loss of each image, by the router of the run."""
    scores = plain.router(x)
    p = scores.softmax(-1)
    factor = p if member.gated else torch.ones_like(p)

    def cost(weights):
        return cross_entropy(plain.weighted(x, weights), labels, reduction="none")

    if member.line.row == "leave_one_out":
        index = [drawn(scores, u) for u in noise.uniform(2, BATCH, 1)[0]]
        given = torch.stack(index)
        return discretegrad.leave_one_out(scores, lambda z: cost(z * factor), given=given)
    if member.router == "soft":
        return cost(p)
    if member.router == "gate":
        best = p.argmax(-1)
        outputs = [p[i, k] * plain.experts[k](x[i]) for i, k in enumerate(best.tolist())]
        return cross_entropy(torch.stack(outputs), labels, reduction="none")
    if member.has_estimator:
        sampler = {
            "reinmax": discretegrad.reinmax,
            "straight_through": discretegrad.straight_through,
        }
        index = scores.argmax(-1)
        if member.router == "drawn":
            index = drawn(scores, noise.uniform(BATCH, 1))
        return cost(sampler[member.line.row](scores, given=index) * factor)
    index = drawn(within_threshold(scores.detach()), noise.uniform(BATCH, 1))
    weights, experts = discretegrad.sparse_mixer(
        scores,
        version=int(member.router[-1]),
        given=index.unsqueeze(-1),
        noise=noise.uniform(BATCH, 1)[0],
    )
    outputs = [w * plain.experts[k](image) for w, k, image in zip(weights, experts, x, strict=True)]
    return cross_entropy(torch.stack(outputs), labels, reduction="none")


@torch.no_grad()
def plain_test(plain, member, images, labels):
    """Loss, accuracy and the experts in use."""
    x = grey(images)
    scores = plain.router(x)
    best = scores.argmax(-1)
    p = scores.softmax(-1)
    if member.router.startswith("sparse"):
        p = within_threshold(scores).softmax(-1)
    if member.router == "soft":
        out = sum(p[:, i, None] * plain.experts[i](x) for i in range(EXPERTS))
    else:
        out = torch.stack([plain.experts[k](image) for k, image in zip(best, x, strict=True)])
        if member.gated or not member.has_estimator:
            out = out * p.gather(-1, best.unsqueeze(-1))
    shares = [float((best == i).double().mean()) for i in range(EXPERTS)]
    return {
        "test": float(cross_entropy(out, labels)),
        "accuracy": 100 * float((out.argmax(-1) == labels).double().mean()),
        "usage": math.exp(-sum(s * math.log(s) for s in shares if s)),
    }


def plain_imbalance(scores):
    best = torch.bincount(scores.argmax(-1), minlength=EXPERTS).double() / len(scores)
    return EXPERTS * sum(best[i] * scores.softmax(-1)[:, i].mean() for i in range(EXPERTS))


@each_line
def test_steps_are_those_of_plain_code(key, monkeypatch):
    """In float64, for both members of a stack: losses, weights and test after each epoch."""
    members = [run(key, seed=seed, balance=balance) for seed, balance in ((1, 0.0), (2, 0.25))]
    model, (images, labels) = make_double(members, monkeypatch), examples()
    plains = [Plain(model.network, number) for number in range(2)]
    optimisers = [torch.optim.SGD(x.parameters(), lr=0.1) for x in (model.network, *plains)]
    for epoch in range(2):
        noises = [Noise([member.seed], CPU) for member in members]
        model.begin_epoch(epoch)
        for noise in noises:
            noise.begin(epoch)
        for step in range(STEPS):
            losses = model.losses()
            # or a GPU would draw the same numbers again
            assert model._noise.counter.item() == step + 1
            update(optimisers[0], losses["objective"].sum())
            for number, (plain, member) in enumerate(zip(plains, members, strict=True)):
                chosen = model._batches.order[number, step]
                x, shown = grey(images.train[chosen]), labels.train[chosen].long()
                loss = plain_costs(plain, member, x, shown, noises[number]).mean()
                imbalance = plain_imbalance(plain.router(x))
                update(optimisers[1 + number], loss + member.balance * imbalance)
                assert_close(losses["train"][number], loss)
        metrics = model.evaluate(epoch)
        for number, (plain, member) in enumerate(zip(plains, members, strict=True)):
            for own, stacked in zip(
                plain.parameters(), plain.of_stack(model.network, number), strict=True
            ):
                torch.testing.assert_close(stacked, own, rtol=1e-10, atol=1e-12)
            for name, value in plain_test(plain, member, images.test, labels.test.long()).items():
                assert metrics[name][number] == pytest.approx(value, rel=1e-6), name


def update(optimiser, loss):
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


# the gradient of the scores, in expectation over all draws

SCORES = torch.tensor([2.0, 1.85, 0.6, 1.62], dtype=torch.float64)
OUTPUTS = 3 * normal(EXPERTS, 10, seed=5)


def loss_of(weights):
    """Of an image of class 7."""
    logits = weights @ OUTPUTS
    return logits.logsumexp(-1) - logits[..., 7]


class Draws:
    """In place of random numbers: all that can be drawn, one after the other."""

    device = CPU

    def __init__(self, index, uniform=None):
        self.index, self.numbers = index.unsqueeze(0), uniform

    def categories(self, scores, members=slice(None), repeats=None):
        assert repeats == (self.index.shape[1] if self.index.ndim == 3 else None)
        return self.index

    def uniform(self, *shape, purpose):
        assert shape == self.numbers.shape
        return self.numbers.unsqueeze(0)


def outcomes(member, p):
    """All draws and their probabilities."""
    each = torch.arange(EXPERTS)
    if member.router.startswith("sparse"):
        whole = {1: 1 / 2, 2: 1 / 4}[int(member.router[-1])]
        numbers = torch.tensor([0.0, 0.99]).repeat_interleave(EXPERTS).unsqueeze(-1)
        return Draws(each.repeat(2), numbers), torch.cat([(1 - whole) * p, whole * p])
    if member.line.kind == "score":
        pairs = torch.cartesian_prod(each, each)
        return Draws(pairs.T), p[pairs].prod(-1)
    if member.router == "drawn":
        return Draws(each), p
    return Draws(each[:1]), torch.ones(1).double()


def expected_gradient(member, p):
    draws, probability = outcomes(member, p)
    scores = SCORES.expand(1, len(probability), -1).clone().requires_grad_()
    costs = Router([member], draws).costs(scores, loss_of)
    return probability @ torch.autograd.grad(costs.sum(), scores)[0][0]


def formula(member, p):
    """What the pages of the library and the papers say it is."""
    best, identity = int(p.argmax()), torch.eye(EXPERTS).double()
    jacobian = torch.diag(p) - torch.outer(p, p)

    def slope(weights):
        """The derivative of the loss of each expert by its weight."""
        return vmap(grad(lambda w, e: loss_of(w * e)))(weights, identity)

    if member.router == "soft":
        return jacobian @ grad(loss_of)(p)
    if member.router == "gate":
        return slope(p)[best] * jacobian[best]
    if member.router.startswith("sparse"):
        if member.router.endswith("1"):
            others, at_best = slope(p) + slope(p / 2), 2 * slope(p)
        else:
            others, at_best = slope(p) / 4 + slope(p / 3) * 3 / 4, slope(p)
        others[best] = at_best[best]
        return (p * others) @ jacobian
    factor = p if member.gated else torch.ones_like(p)
    # of the loss as a function of the choice, at each choice
    slopes = vmap(grad(lambda z: loss_of(z * factor)))(identity)
    gating = slope(p) if member.gated else torch.zeros_like(p)
    if member.router == "best":
        return jacobian @ slopes[best] + gating[best] * jacobian[best]
    gating = (p * gating) @ jacobian
    if member.line.kind == "score":
        return loss_of(factor * identity) @ jacobian + gating
    # Heun's rule for the difference of the losses of two experts
    between = (slopes.unsqueeze(1) + slopes.unsqueeze(0)) / 2
    differences = identity.unsqueeze(1) - identity.unsqueeze(0)
    return ((between * differences).sum(-1) @ p) @ jacobian + gating


OPEN = {"jitter_eps": 100.0}
# whom the thresholds leave out
CLOSED = {"phimoe": [2], "shift-invariant": [2, 3]}


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        *((key, OPEN) for key in LINES),
        *(
            (key, {"jitter_eps": 0.1, "threshold": threshold})
            for key in ("sparse-mixer-1", "sparse-mixer-2")
            for threshold in CLOSED
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else x.get("threshold", "open"),
)
def test_expected_gradients_are_the_formulas(key, fields):
    member, allowed = run(key, **fields), SCORES.clone()
    allowed[CLOSED.get(fields.get("threshold"), [])] = -math.inf
    p = allowed.softmax(-1)
    assert_close(expected_gradient(member, p), formula(member, p))


@each_line
def test_a_step_can_be_captured(key):
    stack = trainer.Stack(make_model, [run(key, seed=1), run(key, seed=2, balance=0.1)])
    stack.model.begin_epoch(0)
    assert faults(stack) == []


def test_experts_in_use_are_those_of_the_test_images():
    model = make_model([run("top-1-gate")], CPU)
    scores = model.network.scores
    with torch.no_grad():
        scores.weight.zero_()
        scores.bias.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    assert model.evaluate(1)["usage"].item() == pytest.approx(1.0)
    with torch.no_grad():
        # 14 of the 20 test images are brighter there than the weight asks for
        pixel = model._test[:, 0].float() / 255
        scores.weight[0, 0, 0] = 1 / pixel.sort().values[5:7].mean()
    entropy = -(0.3 * math.log(0.3) + 0.7 * math.log(0.7))
    assert model.evaluate(1)["usage"].item() == pytest.approx(math.exp(entropy))


def test_recipes_have_every_router_in_few_stacks():
    runs = tasks.recipe("experts-mnist").runs()
    assert len(runs) == 10 * 10 * 3
    assert len({member.stack_key for member in runs}) == len(ROUTED)
    assert {member.router for member in runs} == {
        "drawn", "best", "gate", "sparse-mixer-1", "sparse-mixer-2", "soft",
    }  # fmt: skip
    assert {member.data for member in tasks.recipe("experts-fashion").runs()} == {"fashion-mnist"}
    rates = tasks.recipe("experts-rates").runs()
    assert not {member.seed for member in rates} & {member.seed for member in runs}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"router": "first"}, "expected drawn or best or gate .* as router, got 'first'"),
        ({"data": "omniglot"}, "expected mnist or fashion-mnist as data"),
        ({"threshold": "none"}, "expected phimoe or .* as threshold"),
        ({"gated": 1}, "expected True or False as gated"),
        ({"router": "gate", "gated": True}, "gated=True with the routers drawn and best alone"),
        ({"balance": -1.0}, "at least 0 as balance, got -1.0"),
        ({"jitter_eps": math.inf}, "a finite number as jitter_eps, got inf"),
        ({"experts": 0}, "positive whole number as experts"),
        ({"estimator": "exact"}, "expected an estimator that makes a sample"),
        ({"estimator": LINES["rloo"], "router": "best"}, "for the router best, got 'rloo'"),
        ({"estimator": "rodeo"}, "a score function of reinforce, leave_one_out"),
    ],
)
def test_bad_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        Experts(**{"estimator": "reinmax", **fields})
