"""The VAE of the paper's Table 5: its data, its activations, and its score functions."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

import oracles
from discretegrad_lab import tasks
from discretegrad_lab.stack.lines import Line
from discretegrad_lab.stack.noise import Noise, mixed
from discretegrad_lab.stack.score import draw, sample_count
from discretegrad_lab.tasks import pixels
from discretegrad_lab.tasks.evidence import Results, Row
from discretegrad_lab.tasks.vae import enumerated, scored, several
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.large_recipes import SCORES
from discretegrad_lab.tasks.vae.model import VaeModel
from discretegrad_lab.tasks.vae.sample_recipes import RLOO
from discretegrad_lab.tasks.vae.scored import ScoredVae
from lab_cases import make_stack, stacks_of
from test_lab_capture import faults
from test_lab_vae import CATEGORIES, IMAGES, LATENTS, batches, recording, run, train
from watched_memory import Memory

CPU = torch.device("cpu")
STEPS = 20

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def plain_network(sizes, activation):
    layers = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation]
    return nn.Sequential(*layers[:-1])


class Plain(nn.Module):
    """The model as anybody would write it, in float64."""

    def __init__(self, one):
        super().__init__()
        code = one.latents * one.categories
        activation = nn.ReLU() if one.slope is None else nn.LeakyReLU(one.slope)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(one.seed)
            self.encoder = plain_network((784, 512, 256, code), activation)
            self.decoder = plain_network((code, 256, 512, 784), activation)
        self.double()

    def logits(self, x):
        return self.encoder(x).view(len(x), LATENTS, CATEGORIES)

    def reconstruction(self, z, x):
        out = self.decoder(z.flatten(1))
        return binary_cross_entropy_with_logits(out, x, reduction="none").sum(1)


def divergence(logits):
    prior = Categorical(logits=torch.zeros_like(logits))
    return kl_divergence(Categorical(logits=logits), prior).sum(1)


def in_double(monkeypatch, *runs, kind=VaeModel):
    monkeypatch.setattr(pixels, "grey", lambda images: images.double() / 255)
    task = kind(runs, CPU, images=IMAGES)
    task._encoder.double()
    task._decoder.double()
    return task


def plain_batches(one, task, member, epoch):
    """The batches of an epoch, by the order of the member and generators of torch."""
    x = IMAGES.train[task._batches.order[member]].double() / 255
    if not one.binarised:
        return x
    generator = torch.Generator().manual_seed(mixed(one.seed, epoch, 5))
    return torch.stack([(torch.rand(p.shape, generator=generator) < p).double() for p in x])


OPTIONS = ({"slope": 0.2}, {"images": 407}, {"binarised": True})


@pytest.mark.parametrize("fields", [*OPTIONS, OPTIONS[0] | OPTIONS[1] | OPTIONS[2]])
def test_every_option_trains_as_a_plain_model(fields, monkeypatch):
    one = run(seed=3, tau=1.1, **fields)
    task = in_double(monkeypatch, run("st", seed=8, **fields), one)
    samples = recording(task, "_sampler", monkeypatch)
    losses = train(task, STEPS, epoch=2)[:, 1]
    assert losses.dtype == torch.float64
    assert task._batches.order.max() < (one.images or len(IMAGES.train))
    model = Plain(one)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, x in enumerate(plain_batches(one, task, 1, 2)[:STEPS]):
        logits = model.logits(x)
        z = oracles.reinmax(logits, samples[step][1][1].argmax(-1), one.tau)
        loss = (model.reconstruction(z, x) + divergence(logits)).mean()
        # 1e-10 of the released code within the logarithm, and no more
        torch.testing.assert_close(losses[step], loss.detach(), rtol=1e-9, atol=0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, parameter in model.named_parameters():
        found = task.parameters[name][1]
        torch.testing.assert_close(found, parameter, rtol=1e-5, atol=1e-7, msg=name)


def test_pixels_depend_on_seed_epoch_and_image_alone():
    # estimators that take different amounts of random numbers
    runs = [run(name, seed=seed) for name, seed in (("st", 1), ("stgs", 1), ("gr-mck", 2))]
    runs = [dataclasses.replace(one, binarised=True, draws=3) for one in runs]
    stack = VaeModel(runs, CPU, images=IMAGES)
    stack.begin_epoch(4)
    seen, take = [], stack._next_batch
    stack._next_batch = lambda: seen.append(take()) or seen[-1]
    for _ in range(3):
        stack.losses()
    pixels = torch.stack(seen, 1)
    assert set(pixels.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(pixels[0], pixels[1])
    alone = VaeModel(runs[2:], CPU, images=IMAGES)
    first = batches(alone, 4)[0]
    assert torch.equal(first[:3], pixels[2])
    # another epoch has other pixels of the same image
    later, order = batches(alone, 5)[0], alone._batches.order[0].flatten()
    alone.begin_epoch(4)
    same = first.flatten(0, 1)[alone._batches.order[0].flatten().argsort()]
    other = later.flatten(0, 1)[order.argsort()]
    grey = IMAGES.train[: len(same)].float() / 255
    uncertain = (grey > 0.3) & (grey < 0.7)
    assert 0.3 < (same != other)[uncertain].float().mean() < 0.6
    # each with its grey value as the probability: five deviations
    deviation = (grey * (1 - grey)).sum().sqrt()
    assert abs((same - grey).sum()) < 5 * deviation


def test_binary_test_images_are_one_copy():
    one = run(binarised=True)
    task = VaeModel([one, run(binarised=True, seed=7)], CPU, images=IMAGES)
    assert torch.equal(task._test, pixels.binary_copy(IMAGES.test))
    assert set(task._test.unique().tolist()) == {0, 255}
    assert torch.equal(VaeModel([one], CPU, images=IMAGES)._test, task._test)
    first = task.evaluate(10)["test"]
    task.begin_epoch(0)
    loss = task.losses()["train"]
    task.begin_epoch(0)
    assert torch.equal(task.evaluate(10)["test"], first)
    assert torch.equal(task.losses()["train"], loss)
    shown, _ = task.reconstructions(0, IMAGES.test[:3])
    assert set(shown.unique().tolist()) == {0.0, 1.0}


def test_options_are_part_of_the_identity_where_they_are_used():
    names = {"images", "binarised", "slope"}
    assert not names & set(run().document())
    changed = [run(images=50_000), run(binarised=True), run(slope=0.2)]
    assert len({one.identity for one in (run(), *changed)}) == 4
    assert len({one.stack_key for one in (run(), *changed)}) == 4
    assert run(images=50_000, batch=200).steps_per_epoch == 250


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": 19}, "whole number as images, from the batch of 20 to 59,999, .* got 19"),
        ({"images": 60_000}, "or None for all 60,000, got 60000"),
        ({"images": 50_000.0}, "whole number as images"),
        ({"binarised": 1}, "True or False as binarised, got 1"),
        ({"slope": 0.0}, "between 0 and 1 as slope, or None for ReLU, got 0.0"),
        ({"slope": 1}, r"number \(float\) between 0 and 1 as slope"),
        ({"slope": float("nan")}, "as slope"),
    ],
)
def test_bad_options_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        run(**fields)


LARGE = {"vae-32x64": (32, 64, 500_100), "vae-64x32": (64, 32, 500_000)}


@pytest.mark.parametrize("name", LARGE)
def test_recipes_have_the_released_settings(name):
    recipe = tasks.recipe(name)
    runs = recipe.runs()
    assert len(runs) == 5 * len(recipe.estimators)
    for one in runs:
        assert (one.categories, one.latents, one.epochs * one.steps_per_epoch) == LARGE[name]
        assert (one.batch, one.draws) == (200, 100)
        assert one.tau == {"reinmax": 1.1, "rloo": 1.0, "disarm-tree": 1.0}.get(one.estimator, 0.5)
        released = (one.images, one.binarised, one.slope, one.optimiser, one.learning_rate)
        assert released == (
            (None, False, 0.01, "radam", 5e-4)
            if name == "vae-32x64"
            else (50_000, True, 0.2, "adam", 1e-3)
        )
    shown = set(recipe.published["train"].cells)
    assert shown == ({"reinmax"} if name == "vae-32x64" else set(recipe.keys()) - {"reinmax"})


@pytest.mark.parametrize("name", LARGE)
def test_the_claim_about_the_large_model(name):
    recipe = tasks.recipe(name)
    claim = recipe.task.claims["best-large"]
    for lowest, sign in (("reinmax", 1), ("st", -1)):
        rows = tuple(
            Row(
                one.identity,
                one.document(),
                "finished",
                metrics={"train": 95 + one.seed / 100 + (one.estimator != lowest)},
            )
            for one in recipe.runs()
        )
        judgement = claim.judge(Results(name, rows))
        # against each of the others once, also those whose number is in another column
        assert len(judgement.votes) == len(recipe.estimators) - 1
        assert {vote.sign for vote in judgement.votes if vote.p < 0.01} == {sign}
        assert "GST-1.0 96.02 (p" in judgement.evidence


# score functions


def score(key, **fields):
    lines = {line.key: line for line in SCORES} | {"reinforce": "reinforce"}
    return run(lines[key], **fields)


def log_q(logits, index):
    return Categorical(logits=logits).log_prob(index).sum(-1)


def by_reinforce(logits, index, values):
    return values[0] * log_q(logits, index[0])


def by_leaving_one_out(logits, index, values):
    first, second = (log_q(logits, x) for x in index)
    return ((values[0] - values[1]) * first + (values[1] - values[0]) * second) / 2


def by_tree(logits, index, values):
    """The three nodes of a tree with four leaves."""
    zero, one, two, three = logits.unbind(-1)
    root = torch.logaddexp(two, three) - torch.logaddexp(zero, one)
    nodes = [(root, 2, 0, 4), (one - zero, 1, 0, 2), (three - two, 3, 2, 4)]
    total = 0.0
    for phi, split, begin, end in nodes:
        passed, other_passed = ((begin <= x) & (x < end) for x in index)
        b, other = ((x >= split).double() for x in index)
        rho = phi.sigmoid().detach()
        both = (b - other) * torch.maximum(rho, 1 - rho)
        weight = torch.where(passed, b - rho, torch.zeros_like(rho))
        weight = torch.where(other_passed & ~passed, rho - other, weight)
        total = total + torch.where(passed & other_passed, both, weight) * phi
    return (values[0] - values[1]) / 2 * total.sum(-1)


BY_HAND = {"reinforce": by_reinforce, "rloo": by_leaving_one_out, "disarm-tree": by_tree}


@pytest.mark.parametrize("key", BY_HAND)
def test_a_score_function_trains_as_a_plain_model(key, monkeypatch):
    one = score(key, seed=3, slope=0.2, binarised=True)
    other = dataclasses.replace(one, seed=8)
    task = in_double(monkeypatch, other, one, kind=ScoredVae)
    draws, evaluations, costs = [], [], task._costs
    monkeypatch.setattr(scored, "draw", lambda *x: draws.append(draw(*x)) or draws[-1])
    task._costs = lambda *x: evaluations.append(1) or costs(*x)
    losses = train(task, STEPS, epoch=2)[:, 1]
    assert len(draws[0]) == sample_count(one.line)
    assert len(evaluations) == STEPS
    model = Plain(one)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, x in enumerate(plain_batches(one, task, 1, 2)[:STEPS]):
        logits, index = model.logits(x), draws[step][:, 1]
        samples = one_hot(index, CATEGORIES).double()
        values = torch.stack([model.reconstruction(z, x) for z in samples])
        estimate = BY_HAND[key](logits, index, values.detach())
        loss = (values.mean(0) + divergence(logits) + estimate - estimate.detach()).mean()
        torch.testing.assert_close(losses[step], loss.detach(), rtol=1e-9, atol=0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, parameter in model.named_parameters():
        found = task.parameters[name][1]
        torch.testing.assert_close(found, parameter, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("key", BY_HAND)
def test_a_score_function_alone_and_in_a_stack_agree(key):
    runs = [score(key, seed=seed) for seed in (3, 5)]
    together = train(ScoredVae(runs, CPU, images=IMAGES), 5)
    for member, one in enumerate(runs):
        alone = train(ScoredVae([one], CPU, images=IMAGES), 5)[:, 0]
        torch.testing.assert_close(alone, together[:, member], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("categories", [2, 5, 8])
def test_pairs_are_antithetic_and_each_of_them_has_the_distribution(categories, generator):
    (tree,) = (line for line in SCORES if line.row == "disarm_tree")
    row = torch.randn(categories, generator=generator)
    noise = Noise([1, 2], CPU)
    noise.begin(0)
    logits = row.expand(2, 4000, categories)
    pairs = draw(tree, logits, noise)
    assert pairs.shape == (2, 2, 4000)
    for drawn in pairs:
        share = drawn.flatten().bincount(minlength=categories) / 8000
        assert (share - row.softmax(0)).abs().max() < 5 * 0.5 / 8000**0.5
    # independent samples are refused
    tree.function(logits, lambda z: z[..., 0], given=pairs)
    independent = noise.categories(logits, repeats=2).movedim(1, 0)
    with pytest.raises(ValueError, match="antithetic samples"):
        tree.function(logits, lambda z: z[..., 0], given=independent)


@pytest.mark.parametrize("key", BY_HAND)
def test_a_step_with_a_score_function_can_be_captured(key, monkeypatch):
    monkeypatch.setattr(vae, "load_mnist", lambda data: IMAGES)
    stack = make_stack([score(key, seed=seed, binarised=True) for seed in (0, 1)])
    stack.model.begin_epoch(0)
    assert faults(stack) == []


@pytest.mark.parametrize(
    ("line", "samples"), [(RLOO, 16), (SCORES[1], 1), ("reinmax", 16), ("stgs", 16)]
)
def test_the_guess_of_the_memory_of_more_samples(line, samples, monkeypatch):
    monkeypatch.setattr(vae, "load_mnist", lambda data: IMAGES)
    large = {"latents": 32, "categories": 64, "batch": 100}
    peaks = []
    for one in (run("st", **large), run(line, samples=samples, **large)):
        task = enumerated.make_model([one], CPU)
        task.begin_epoch(0)
        with Memory() as step:
            torch.autograd.grad(task.losses()["train"].sum(), list(task.parameters.values()))
        peaks.append((step.peak, enumerated.memory(one)))
    (least, base), (most, guess) = peaks
    assert most - least < guess - base < 4 * (most - least)


def test_every_score_function_has_a_stack_of_its_own():
    runs = [run("st"), run("stgs"), score("rloo"), score("rloo", seed=1), score("disarm-tree")]
    assert [len(members) for members in stacks_of(runs)] == [2, 1, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rodeo", "a score function of reinforce, leave_one_out, disarm_tree, got 'rodeo'"),
        (Line("x", "leave_one_out", num_samples=1), "whole number of at least 2 .* of x, got 1"),
        (Line("x", "disarm_tree", num_samples=3), "an even number of at least 2 .* got 3"),
        (Line("x", "disarm_tree", num_samples=2.0), "an even number .* got 2.0"),
    ],
)
def test_score_functions_that_cannot_be_trained_are_refused(line, message):
    with pytest.raises(ValueError, match=message):
        run(line)


@pytest.mark.slow
@pytest.mark.parametrize("key", BY_HAND)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_a_compiled_task_with_a_score_function_trains_as_a_plain_one(key, monkeypatch):
    torch._dynamo.reset()
    runs = [score(key, seed=seed, binarised=True, slope=0.2) for seed in (0, 1)]
    for module in (vae, scored):
        monkeypatch.setattr(module, "worth_compiling", lambda *_: True)
    fused = ScoredVae(runs, CPU, images=IMAGES)
    monkeypatch.undo()
    plain = ScoredVae(runs, CPU, images=IMAGES)
    names = ("_costs",) if key == "reinforce" else ("_loss_at", "_pairs")
    for name in ("_costs", "_loss_at", "_pairs"):
        assert (getattr(fused, name) is getattr(plain, name)) == (name not in names)
    torch.testing.assert_close(train(fused, 5), train(plain, 5), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


def test_long_runs_of_small_stacks_are_compiled_on_a_gpu(monkeypatch):
    asked = []
    for module in (vae, scored, several):
        monkeypatch.setattr(module, "worth_compiling", lambda *x: asked.append(x) or False)
    one, other = score("rloo", epochs=7), run("st", epochs=7, samples=3)
    elements = one.batch * vae.PIXELS
    steps = 7 * ScoredVae([one], CPU, images=IMAGES).steps_per_epoch
    assert asked == [(CPU, elements, steps)] * 2
    several.SeveralVae([other], CPU, images=IMAGES)
    assert asked[2:] == [(CPU, elements, steps), (CPU, 3 * elements, steps)]
