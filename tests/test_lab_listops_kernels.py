"""The kernels of the stacked Tree-LSTM in Triton's interpreter, against the torch path.

Both paths get the same draws, those of the kernels. Fresh memory is poisoned, and what lies around
it must stay as it was. What only a GPU can show is in test_gpu_lab.py.
"""

import dataclasses
import itertools
from collections import Counter

import pytest
import torch

import oracles
from discretegrad.kernels import categorical, dispatch, gumbel_rao, quick, uniform
from discretegrad_lab.stack import trainer
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.stack.sampler import Sampler
from discretegrad_lab.tasks.listops import kernels, recipes, scored
from discretegrad_lab.tasks.listops import model as model_module
from discretegrad_lab.tasks.listops.batches import Batch
from discretegrad_lab.tasks.listops.config import Parsing
from discretegrad_lab.tasks.listops.model import greatest
from discretegrad_lab.tasks.listops.parse import Way
from discretegrad_lab.tasks.listops.scored import make_model
from lab_cases import make_stack
from listops_kernel_cases import (
    assert_near,
    check_parse,
    inputs,
    later,
    noise_of,
    parsed,
    replay,
)
from test_lab_capture import Watch, without_values  # noqa: F401

triton = pytest.importorskip("triton")
if not dispatch._INTERPRETED:
    pytest.skip("runs in Triton's interpreter, where there is no GPU", allow_module_level=True)

# the interpreter looks for it here
import triton.language as tl  # noqa: E402, F401

from discretegrad_lab.tasks.listops.kernels import cells, chart  # noqa: E402

SAMPLERS = [key for key, one in LINES.items() if one.kind == "sampler"]
CPU = torch.device("cpu")
SMALL = {
    "data": "generated", "examples": 48, "longest": 8, "batch": 3, "embedding": 4, "hidden": 5,
    "epochs": 3, "draws": 3,
}  # fmt: skip

# NumPy tells of infinities that a GPU makes silently
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


@pytest.fixture
def use(monkeypatch):
    """A function that says which path is taken."""

    def switch(backend):
        monkeypatch.setattr(kernels, "backend", backend)

    return switch


# cells and parses


SHAPES = [(2, 5, 7, 6), (1, 3, 2, 1), (2, 3, 3, 4), (1, 4, 13, 17), (1, 1, 1, 3), (1, 2, 36, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_parse_is_that_of_the_torch_path(shape, use, poison):
    use("triton")
    check_parse(shape)


def test_two_places_at_a_time_are_as_good(use, poison, monkeypatch):
    """As for the states of the paper's network."""
    use("triton")
    chart._undo_plan.cache_clear()
    monkeypatch.setattr(chart, "NUMBERS", 16)
    check_parse((1, 4, 8, 7))
    chart._undo_plan.cache_clear()


@pytest.mark.parametrize(
    ("shape", "learns"),
    # trained sentences are short
    [((2, 3, 9, 5), False), ((2, 3, 9, 5), True), ((1, 1, 130, 2), False)],
    ids=str,
)
def test_the_greatest_scores_are_those_of_the_torch_path(shape, learns, use, poison):
    tensors, lengths, _ = inputs(*shape)
    found = []
    for backend in ("triton", "torch"):
        use(backend)
        with torch.set_grad_enabled(learns):
            found.append(parsed(tensors, lengths, Way(greatest))[0])
    ours, expected = found
    assert torch.equal(ours.merges, expected.merges)
    assert_near(ours.root, expected.root)


@pytest.mark.parametrize("estimator", [None, later], ids=["alone", "beside an estimator"])
@pytest.mark.parametrize("of_root", [0.0, 1.0])
def test_scores_have_a_gradient_of_their_own(estimator, of_root, use, poison):
    """As score functions use it."""
    tensors, lengths, at_root = inputs(2, 4, 6, 5)
    at_scores = torch.randn(5, 2, 4, 5, generator=torch.Generator().manual_seed(5))
    # the torch path shows nobody a single pair, which is no choice; and what is shown of sentences
    # that are one node does not matter
    at_scores[-1] = 0
    at_scores *= (lengths - 1 - torch.arange(5).view(-1, 1, 1) >= 1).unsqueeze(-1)

    def part(scores, step):
        weights = at_scores[step, ..., : scores.shape[-1]]
        return (scores.masked_fill(scores == -torch.inf, 0) * weights).sum()

    use("triton")
    ours, _, own = parsed(tensors, lengths, Way(None, noise_of((1, 2)), estimator))
    value = sum(part(scores, step) for step, scores in enumerate(ours.scores))
    if of_root:
        value = value + (ours.root * at_root).sum()
    gradients = torch.autograd.grad(value, list(own.values()))
    use("torch")
    none = lambda step, scores, index, g: torch.zeros_like(g)  # noqa: E731
    choose, _ = replay(ours.merges, later(0) if estimator else none)
    parts = []

    def shown(scores):
        parts.append(part(scores, len(parts)))
        return choose(scores)

    expected, _, theirs = parsed(tensors, lengths, shown)
    value = sum(parts) + of_root * (expected.root * at_root).sum()
    right = torch.autograd.grad(value, list(theirs.values()))
    for name, one, other in zip(own, gradients, right, strict=True):
        assert_near(one, other, name=name)


def test_draws_are_those_of_the_counter(use):
    """A member's are a function of its own key, the step and the place in the batch."""
    tensors, lengths, _ = inputs(3, 5, 6, 2)
    noise = noise_of((7, 8, 9), epoch=4)
    noise.next_step(11)
    use("triton")
    ours, _, _ = parsed(tensors, lengths, Way(None, noise))
    for step, scores in enumerate(ours.scores.detach()):
        numbers = torch.empty(3, 5)
        uniform.fill(numbers, noise.keys, torch.tensor([11 + step]), 0)
        cumulative = scores.softmax(-1).cumsum(-1)
        expected = (cumulative[..., :-1] <= numbers.unsqueeze(-1)).sum(-1)
        expected = expected.minimum((lengths - 2 - step).clamp(min=0))
        over = lengths - 1 - step < 1
        assert torch.equal(ours.merges[..., step], expected.masked_fill(over, -1))
    alone = noise_of((8,), epoch=4)
    alone.next_step(11)
    part = {name: x[1:2] for name, x in tensors.items()}
    own, _, _ = parsed(part, lengths[1:2], Way(None, alone))
    assert torch.equal(own.merges[0], ours.merges[1])
    assert torch.equal(own.root[0], ours.root[1])


@pytest.mark.parametrize("noise", [None, noise_of((3,))], ids=["greatest", "drawn"])
def test_no_choice_leaves_the_sentence(noise, use):
    """Not even among scores that are not numbers, and numbers next to 1."""
    tensors, lengths, at_root = inputs(1, 4, 6, 3)
    tensors["query"] *= torch.nan
    use("triton")
    zeros = lambda *_: lambda step, scores, index, g: torch.zeros_like(g)  # noqa: E731
    ours, _, own = parsed(tensors, lengths, Way(None, noise, zeros))
    step = torch.arange(5)
    real = (lengths.unsqueeze(-1) - 1 - step).clamp(min=0)
    assert ((ours.merges >= 0) == (real > 0)).all()
    assert (ours.merges < real.clamp(min=1)).all()
    # and the gradient finds its way back
    torch.autograd.grad((ours.root * at_root).sum(), list(own.values()))


def test_a_random_number_next_to_one_stays_within_the_sentence(use, monkeypatch):
    tensors, lengths, _ = inputs(1, 4, 6, 3)
    use("triton")

    @triton.jit
    def one(keys, counter, member, sentence, step):
        return 1.0

    monkeypatch.setattr(chart, "_uniform", one)
    ours, _, _ = parsed(tensors, lengths, Way(None, noise_of((3,))))
    last = (lengths.unsqueeze(-1) - 2 - torch.arange(5)).clamp(min=-1)
    assert torch.equal(ours.merges, last)


def test_a_second_backward_pass_is_refused(use):
    tensors, lengths, _ = inputs(1, 2, 4, 3)
    use("triton")
    ours, _, _ = parsed(tensors, lengths, Way(None, noise_of((3,)), later))
    ours.root.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="parse again"):
        ours.root.sum().backward()


def test_where_kernels_run(use):
    x = torch.zeros(2, 3)
    assert not kernels.serve(x, 5, 3)
    use("triton")
    assert kernels.serve(x, 5, 3)
    assert not kernels.serve(x.double(), 5, 3)
    assert not kernels.serve(x, kernels.LONGEST + 1, 3)
    assert not kernels.serve(x, 5, kernels.WIDEST + 1)
    use("torch")
    assert not kernels.serve(x.to("meta"), 5, 3)


# estimators


def run(estimator="reinmax", **fields):
    return Parsing(estimator=estimator, **SMALL | fields)


def sampler_of(runs, epoch=0):
    return Sampler(runs, noise_of([own.seed for own in runs], epoch))


RUNS = [run(key, seed=seed, tau=0.7 + 0.2 * seed) for key in SAMPLERS for seed in (3, 4)]


def test_gradients_that_are_asked_for_later_are_those_of_samples():
    """Without noise the same numbers; with noise the same on average, see the next test."""
    sampler = sampler_of(RUNS)
    logits, g = (torch.randn(len(RUNS), 5, 6) for _ in range(2))
    logits[..., 4:] = -torch.inf
    index = logits.argmax(-1)
    gradient = sampler.later(3, 5, 9)
    found = gradient(1, logits, index, g)
    leaf = logits.clone().requires_grad_()
    expected = torch.autograd.grad(sampler.at(leaf, index), leaf, g)[0]
    for member, own in enumerate(RUNS):
        if own.line.takes("noise"):
            assert not torch.allclose(found[member], expected[member])
        else:
            torch.testing.assert_close(found[member], expected[member])
    # in any order, and others at every step
    assert torch.equal(gradient(1, logits, index, g), found)
    for member, own in enumerate(RUNS):
        same = torch.equal(gradient(2, logits, index, g)[member], found[member])
        assert same != own.line.takes("noise")


@pytest.mark.parametrize("key", ["stgs", "gr-mck"])
def test_noise_that_is_made_before_has_the_right_mean(key):
    steps = 4000
    sampler = sampler_of([run(key, tau=0.7, seed=2)])
    logits, g = (torch.randn(1, 1, 4) for _ in range(2))
    index = torch.zeros(1, 1, dtype=torch.int64)
    gradient = sampler.later(steps, 1, 4)
    found = torch.cat([gradient(step, logits, index, g) for step in range(steps)])
    many = logits.expand(1, 40_000, 4).clone().requires_grad_()
    sample = sampler.at(many, index.expand(1, 40_000))
    expected = torch.autograd.grad(sample, many, g.expand_as(many))[0].squeeze(0)
    deviation = (found.var(0) / steps + expected.var(0) / len(expected)).sqrt()
    assert ((found.mean(0) - expected.mean(0)).abs() < 4.5 * deviation).all()
    # one draw has the variance of one draw
    ratio = found.squeeze(1).var(0) / expected.var(0)
    assert ((ratio > 0.8) & (ratio < 1.25)).all()


def test_what_is_asked_later_does_not_depend_on_other_members():
    logits, g = (torch.randn(len(RUNS), 5, 6) for _ in range(2))
    index = logits.argmax(-1)
    together = sampler_of(RUNS).later(3, 5, 9)(2, logits, index, g)
    for member, own in enumerate(RUNS):
        part = slice(member, member + 1)
        alone = sampler_of([own]).later(3, 5, 9)(2, logits[part], index[part], g[part])
        torch.testing.assert_close(alone[0], together[member])


# the model


def model_at_work(runs):
    """A model whose every part matters, with expressions of all kinds."""
    model = make_model(runs, CPU)
    with torch.no_grad():
        for name, x in model.network.parameters.items():
            x *= 30 if name in ("embedding", "query", "values.weight") else 1
    model.begin_epoch(0)
    model.prepare(0)
    members, batch, width = model._batch.tokens.shape
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, width + 1, (members, batch), generator=generator)
    lengths[:, 0], lengths[:, 1], lengths[:, 2] = width, 1, 2
    tokens = torch.randint(1, model.network.words, (members, batch, width), generator=generator)
    labels = torch.randint(10, (members, batch), generator=generator)
    model._batch = Batch(tokens, lengths, labels)
    return model


def loss_and_gradients(model):
    model._noise.begin(0)
    model._drop_noise.begin(0, 2)
    losses = model.losses()["train_loss"]
    return losses, torch.autograd.grad(losses.sum(), list(model.parameters.values()))


KINDS = {
    "samplers": [run(tau=1.1, seed=1), *(run(key, tau=0.9) for key in SAMPLERS)],
    "score": [run(recipes.SCORES[0], seed=seed) for seed in (0, 1)],
}


@pytest.mark.parametrize("runs", KINDS.values(), ids=KINDS)
def test_a_step_is_that_of_the_torch_path(runs, use, monkeypatch, poison):
    model = model_at_work(runs)
    module = scored if runs is KINDS["score"] else model_module
    made, whole = [], module.parse
    monkeypatch.setattr(module, "parse", lambda *a: made.append(whole(*a)) or made[-1])
    use("triton")
    losses, gradients = loss_and_gradients(model)
    steps, merges = itertools.count(), made[0].merges
    assert made[0].scores is not None
    if module is scored:
        draw = lambda scores: merges[..., next(steps)].clamp(min=0)  # noqa: E731
        monkeypatch.setattr(model, "_draw", draw)
    else:
        model._noise.begin(0)
        gradient = model._sampler.later(merges.shape[-1], merges.shape[1], merges.shape[-1])
        monkeypatch.setattr(model, "_choose", replay(merges, gradient)[0])
    use("torch")
    expected, right = loss_and_gradients(model)
    assert_near(losses, expected)
    for name, one, other in zip(model.parameters, gradients, right, strict=True):
        assert other.abs().max() > 0
        # another one for every member
        for member, (own, its) in enumerate(zip(one, other, strict=True)):
            assert_near(own, its, 2e-5, f"{name} of {runs[member].estimator}")


# what a GPU would do, on a device without values


class Launches(Watch):
    """Counts what starts a kernel: operations of torch that are no views, and kernels."""

    VIEWS = ("empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "lift_fresh")

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        name = operation.overloadpacket.__name__
        is_view = operation.is_view or name in (*self.VIEWS, "_unsafe_view", "_reshape_alias")
        self.launched[name] += not is_view and operation.namespace == "aten"
        return result

    def __init__(self):
        super().__init__()
        self.launched = Counter()

    def kernel(self, plan, operands, numbers=()):
        assert {x.device.type for x in operands} == {"meta"}
        self.launched[plan.kernel.fn.__name__] += 1


def work_of_a_step(runs, longest, monkeypatch):
    """What starts a kernel in a step at this width, and what cannot be captured."""
    runs = [dataclasses.replace(own, longest=longest, bucketed=False) for own in runs]
    stack = make_stack(runs, "meta", graph=False)
    stack.model.begin_epoch(0)
    assert stack.model.prepare(0) == longest
    counter = Launches()
    for module in (categorical, gumbel_rao, quick, cells, chart):
        monkeypatch.setattr(module, "launch", counter.kernel)
    with trainer._settings(tf32=True, one_thread=True):
        stack._train()
        counter.launched.clear()
        with counter:
            stack._train()
    assert counter.faults == []
    return counter.launched


# the five estimators of the paper, in the order of a stack; RLOO
FIVE = ("reinmax", "st", "stgs", "gr-mck", "gst-1.0")
OF_A_PLACE = {
    "samplers": {
        "bmm": 4, "_word_kernel": 1, "_advance_kernel": 1, "_undo_kernel": 1,
        "_word_back_kernel": 1, "_draw_kernel": 5, "_gradient_kernel": 5, "cat": 1,
    },
    "score": {
        "bmm": 4, "_word_kernel": 1, "_advance_kernel": 1, "_undo_kernel": 1,
        "_word_back_kernel": 1,
    },
}  # fmt: skip
ON_META = {
    "samplers": [run(key, seed=seed) for key in FIVE for seed in (0, 1)],
    "score": KINDS["score"],
}


@pytest.mark.parametrize("kind", ON_META)
def test_a_place_takes_few_launches(kind, monkeypatch, without_values):  # noqa: F811
    """Forward and backward together: what a wider step does more."""
    narrow, wide = (work_of_a_step(ON_META[kind], width, monkeypatch) for width in (8, 13))
    of_a_place = {name: (wide[name] - narrow[name]) / 5 for name in wide}
    assert {name: n for name, n in of_a_place.items() if n} == OF_A_PLACE[kind]
    # and once for all places
    assert sum(narrow.values()) - 8 * sum(OF_A_PLACE[kind].values()) < 300


@pytest.mark.parametrize(("kind", "launches"), [("samplers", 161), ("score", 110)])
def test_a_place_would_take_many(kind, launches, use, monkeypatch, without_values):  # noqa: F811
    """Without kernels, as the page says."""

    def categories(noise, logits, members=slice(None), repeats=None):
        # one kernel on a GPU
        return torch.zeros(logits.shape[:-1], dtype=torch.int64, device="meta")

    monkeypatch.setattr(Noise, "categories", categories)
    use("torch")
    narrow, wide = (work_of_a_step(ON_META[kind], width, monkeypatch) for width in (8, 13))
    assert (sum(wide.values()) - sum(narrow.values())) / 5 == launches


def test_a_stack_trains_and_is_tested_with_kernels(use):
    """As the torch path does: with other draws, to about the same loss."""
    found = []
    for backend in ("triton", "torch"):
        use(backend)
        stack = make_stack([run(key, seed=1, examples=12) for key in ("reinmax", "stgs")])
        found.append(stack.advance())
        assert (stack.diverged < 0).all()
    assert found[0].keys() == found[1].keys()
    assert found[0]["train_loss"] == pytest.approx(found[1]["train_loss"], rel=0.05)
    assert found[0]["train_loss"] != found[1]["train_loss"]
