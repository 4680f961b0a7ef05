"""The stacked VAE against a plain one of ``torch.nn``, and members alone against a stack."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence
from torch.nn.functional import binary_cross_entropy, one_hot

import oracles
from discretegrad_lab.tasks.data import Images
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.config import Vae
from discretegrad_lab.tasks.vae.model import VaeModel, negative_elbo
from lab_cases import make_stack
from watched_memory import Memory

CPU = torch.device("cpu")
LATENTS, CATEGORIES, BATCH = 3, 4, 20
CODE = LATENTS * CATEGORIES
# what sums of some hundred thousand float32 numbers in different orders may differ by
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def fake(train=500, test=230):
    """Images of a blot each, so that there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.rand(train + test, 2, 1, 1, generator=generator) * 20 + 4
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    distance = (y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2
    images = (255 * torch.exp(-distance / 20)).to(torch.uint8).flatten(1)
    return Images(images[:train], images[train:])


IMAGES = fake()


def run(estimator="reinmax", **fields):
    settings = {"latents": LATENTS, "categories": CATEGORIES, "batch": BATCH, "epochs": 12}
    return Vae(estimator=estimator, **(settings | fields))


RUNS = [
    run("reinmax", seed=3, tau=1.3),
    run("reinmax", seed=5, tau=1.0),
    run("st", seed=3, tau=1.4),
    run("stgs", seed=7, tau=0.5),
    run("gr-mck", seed=8, tau=0.5, draws=10),
    run("gst-1.0", seed=9, tau=0.7),
]
BY_HAND = {"reinmax": oracles.reinmax, "st": oracles.straight_through, "gst-1.0": oracles.gapped}


def task_of(*runs, images=IMAGES):
    return VaeModel(runs, CPU, images=images)


def train(task, steps, epoch=0, rate=1e-3):
    """The losses of the first steps of an epoch with Adam, (steps, members)."""
    optimiser = torch.optim.Adam(task.parameters.values(), lr=rate)
    task.begin_epoch(epoch)
    history = []
    for _ in range(steps):
        losses = task.losses()["train"]
        optimiser.zero_grad()
        losses.sum().backward()
        optimiser.step()
        history.append(losses.detach())
    return torch.stack(history)


class Plain(nn.Module):
    """The model as anybody would write it."""

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first, second, third = nn.Linear(784, 512), nn.Linear(512, 256), nn.Linear(256, CODE)
            self.encoder = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
            first, second, third = nn.Linear(CODE, 256), nn.Linear(256, 512), nn.Linear(512, 784)
            self.decoder = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third, nn.Sigmoid())

    def forward(self, images, index, estimator, tau):
        x = images.float() / 255
        logits = self.encoder(x).view(-1, LATENTS, CATEGORIES)
        z = BY_HAND[estimator](logits, index, tau)
        mean = self.decoder(z.flatten(1))
        reconstruction = binary_cross_entropy(mean, x, reduction="sum")
        prior = Categorical(logits=torch.zeros(CATEGORIES))
        divergence = kl_divergence(Categorical(logits=logits), prior).sum()
        return (reconstruction + divergence) / len(images)


def recording(task, name, monkeypatch):
    """The logits that a part of the task is given, and what it samples, appended to a list."""
    found, sampler = [], getattr(task, name)

    def record(logits):
        found.append((logits, sampler(logits)))
        return found[-1][1]

    monkeypatch.setattr(task, name, record)
    return found


def test_loss_and_gradient_are_those_of_a_plain_model(monkeypatch):
    runs = [one for one in RUNS if one.estimator in BY_HAND]
    task = task_of(*runs)
    samples = recording(task, "_sampler", monkeypatch)
    task.begin_epoch(0)
    # the second step, so that the batch is not the first one
    task.losses()["train"]
    losses = task.losses()["train"]
    found = torch.autograd.grad(losses.sum(), task.parameters.values())
    gradients = dict(zip(task.parameters, found, strict=True))
    for member, one in enumerate(runs):
        model = Plain(one.seed)
        images = IMAGES.train[task._batches.order[member, 1]]
        loss = model(images, samples[1][1][member].argmax(-1), one.estimator, one.tau)
        loss.backward()
        torch.testing.assert_close(losses[member], loss.detach(), **CLOSE)
        plain = dict(model.named_parameters())
        assert list(plain) == list(task.parameters)
        for name, parameter in plain.items():
            assert torch.equal(task.parameters[name][member], parameter), name
            torch.testing.assert_close(
                gradients[name][member], parameter.grad, rtol=1e-3, atol=1e-5, msg=name
            )


def test_a_member_alone_and_in_a_stack_agree():
    stack = task_of(*RUNS)
    together = train(stack, 20)
    # they are different runs, so that a mix-up would be seen
    assert torch.pdist(together.T).min() > 0.1
    for member, one in enumerate(RUNS):
        alone = task_of(one)
        torch.testing.assert_close(train(alone, 20)[:, 0], together[:, member], **CLOSE)
        for name, parameter in alone.parameters.items():
            expected = stack.parameters[name][member]
            torch.testing.assert_close(parameter[0], expected, rtol=1e-3, atol=1e-4, msg=name)


def test_weights_may_have_a_seed_of_their_own():
    """Weights are those of one seed, batches and samples those of the other."""
    runs = [run(seed=3), run(seed=5), run(seed=5, weights_seed=3), run(seed=5, weights_seed=5)]
    assert len({one.identity for one in runs}) == 4
    assert len({one.stack_key for one in runs}) == 1
    assert "weights_seed" not in runs[0].document()
    task = VaeModel(runs, CPU, images=IMAGES)
    for name, parameter in task.parameters.items():
        assert torch.equal(parameter[2], parameter[0]), name
        assert torch.equal(parameter[3], parameter[1]), name
    task.begin_epoch(4)
    assert torch.equal(task._batches.order[2], task._batches.order[1])
    assert not torch.equal(task._batches.order[2], task._batches.order[0])
    losses = train(task, 5)
    assert torch.equal(losses[:, 3], losses[:, 1])
    assert not torch.allclose(losses[0, 2], losses[0, :2])
    for bad in (-1, 1.0, True, "3"):
        with pytest.raises(ValueError, match="at least 0 as weights_seed, or None"):
            run(weights_seed=bad)


def test_divergence_by_enumeration(generator):
    logits = torch.randn(2, 5, LATENTS, CATEGORIES, dtype=torch.float64, generator=generator)
    out = torch.randn(2, 5, 6, dtype=torch.float64, generator=generator)
    x = torch.rand(2, 5, 6, dtype=torch.float64, generator=generator)
    q = logits.softmax(-1)
    expected = torch.zeros(2, 5, dtype=torch.float64)
    for code in itertools.product(range(CATEGORIES), repeat=LATENTS):
        joint = q[..., range(LATENTS), code].prod(-1)
        expected += joint * (joint.log() - math.log(CATEGORIES**-LATENTS))
    bits = -(x * out.sigmoid().log() + (1 - x) * (-out).sigmoid().log()).sum(-1)
    torch.testing.assert_close(negative_elbo(out, x, logits), (bits + expected).mean(1))


def test_a_certain_latent_variable_has_a_finite_loss_and_gradient():
    logits = torch.tensor([[[[200.0, 0.0, -200.0, 0.0]]]], requires_grad=True)
    loss = negative_elbo(torch.zeros(1, 1, 784), torch.zeros(1, 1, 784), logits)
    assert loss.item() == pytest.approx(784 * math.log(2) + math.log(4), rel=1e-6)
    assert torch.autograd.grad(loss.sum(), logits)[0].abs().max() < 1e-6


def batches(task, epoch):
    """The images of an epoch's batches, (members, steps, batch, 784), as a step sees them."""
    task.begin_epoch(epoch)
    return torch.stack([task._next_batch() for _ in range(task.steps_per_epoch)], 1)


def numbered(count):
    """Images whose first two pixels tell their number."""
    pixels = torch.zeros(count, 784, dtype=torch.uint8)
    pixels[:, 0], pixels[:, 1] = torch.arange(count) // 200, torch.arange(count) % 200
    return Images(pixels, pixels[:1])


def test_every_image_comes_once_in_an_epoch_in_an_order_of_its_own():
    task = task_of(run(seed=1), run(seed=2), images=numbered(500))
    orders = []
    for epoch in range(3):
        pixels = (batches(task, epoch) * 255).round().long()
        numbers = pixels[..., 0] * 200 + pixels[..., 1]
        assert numbers.shape == (2, 25, 20)
        orders += list(numbers.flatten(1))
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(500))
    for one, other in itertools.combinations([torch.arange(500), *orders], 2):
        assert (one == other).sum() < 20


def test_order_depends_on_seed_and_epoch_alone():
    stack = task_of(run(seed=1), run("st", seed=2), run("st", seed=1))
    later = batches(stack, 4)
    assert torch.equal(later[0], later[2])
    alone = task_of(run(seed=2))
    assert torch.equal(batches(alone, 4)[0], later[1])
    assert not torch.equal(batches(alone, 3)[0], later[1])
    assert torch.equal(batches(alone, 4)[0], later[1])


def test_images_that_fill_no_batch_are_left_out():
    task = task_of(run(), images=numbered(59))
    assert task.steps_per_epoch == 2
    assert len(batches(task, 0).flatten(0, 2).unique(dim=0)) == 40
    # what a graph does when it warms up must not leave the buffer
    for _ in range(5):
        task._next_batch()
    with pytest.raises(ValueError, match="at most the 59 training images, got 60"):
        task_of(run(batch=60), images=numbered(59))


def test_samples_are_new_in_every_step_and_epoch(monkeypatch):
    # all images are one, so whatever differs comes from the samples
    images = Images(IMAGES.train[:1].expand(60, -1), IMAGES.test)
    task = task_of(run(seed=1), run(seed=2), images=images)
    steps, next_step = [], task._noise.next_step
    monkeypatch.setattr(task._noise, "next_step", lambda: steps.append(next_step()))
    losses = []
    for epoch in range(3):
        task.begin_epoch(epoch)
        losses += [task.losses()["train"] for _ in range(3)]
    # on a GPU this alone makes the numbers of a step new
    assert len(steps) == 9
    assert len(torch.cat(losses).unique()) == 18


def test_evaluating_does_not_change_training():
    quiet, busy = task_of(RUNS[0], RUNS[3]), task_of(RUNS[0], RUNS[3])
    quiet.begin_epoch(0)
    busy.begin_epoch(0)
    for _ in range(3):
        assert torch.equal(quiet.losses()["train"], busy.losses()["train"])
        busy.evaluate(10)
        busy.reconstructions(0, IMAGES.test[:3])


def test_the_test_is_every_ten_epochs_and_at_the_end():
    task = task_of(run(epochs=12), images=fake(20, 7))
    tested = [n for n in range(1, 13) if task.evaluate(n)["test"].isfinite().all()]
    assert tested == [10, 12]


def in_small_batches(task, images, epoch):
    """The test of an epoch, with 200 images and a step of random numbers at a time."""
    task._aside.begin(epoch, vae._TEST)
    total = 0.0
    for part in images.split(200):
        x = (part.float() / 255).expand(2, -1, -1)
        logits = task._encoder(x).view(2, len(part), LATENTS, CATEGORIES)
        z = one_hot(task._aside.categories(logits), CATEGORIES).float()
        task._aside.next_step()
        total += len(part) * negative_elbo(task._decoder(z.flatten(2)), x, logits).double()
    return total / len(images)


@pytest.mark.parametrize("count", [7, 430, 1230])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_test_has_the_samples_of_small_batches(count, device, monkeypatch):
    images = Images(IMAGES.train, fake(0, count).test)
    task = task_of(run(seed=1), run(seed=2), images=images)
    with torch.no_grad():
        # samples matter little to a decoder that has learned nothing
        task.parameters["decoder.0.weight"] *= 30
    aside = task._aside

    def with_counters(logits):
        """As on a GPU: by the step, and the place within what is drawn at once."""
        index = torch.empty(logits.shape[:-1], dtype=torch.int64)
        rows = logits.reshape(2, -1, CATEGORIES).contiguous()
        uniform.choose(index.view(2, -1), rows, aside._keys, aside._step, 0)
        return index

    if device == "cuda":
        uniform = pytest.importorskip("discretegrad.kernels.uniform")
        monkeypatch.setattr(aside, "categories", with_counters)
    with torch.no_grad():
        expected = in_small_batches(task, images.test, 10)
        other = in_small_batches(task, images.test, 20)
    found = task.evaluate(10)["test"]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    # other samples would be seen
    assert not torch.isclose(found, other, rtol=1e-5, atol=0).any()


def test_the_test_does_not_depend_on_other_members_nor_on_the_estimator():
    found = task_of(*RUNS).evaluate(10)["test"]
    alone = torch.cat([task_of(one).evaluate(10)["test"] for one in RUNS])
    torch.testing.assert_close(found, alone, rtol=1e-6, atol=0)
    # members 0 and 2 have one seed: before any training they are one model
    assert found[0].item() == pytest.approx(found[2].item(), rel=1e-6)
    assert not torch.isclose(found[0], task_of(RUNS[0]).evaluate(12)["test"][0], rtol=1e-6)


def test_reconstructions_show_the_decoder(monkeypatch):
    task = task_of(RUNS[0], RUNS[4])
    train(task, 25)
    images = IMAGES.test[:40]
    draws = recording(task, "_draw", monkeypatch)
    originals, means = task.reconstructions(1, images)
    assert torch.equal(originals, images.float() / 255)
    assert means.shape == (40, 784)
    model, (logits, z) = Plain(0), draws[0]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(task.parameters[name][1])
        torch.testing.assert_close(logits[1].flatten(1), model.encoder(originals), **CLOSE)
        torch.testing.assert_close(means, model.decoder(z[1].flatten(1)), **CLOSE)
    assert torch.equal(means, task.reconstructions(1, images)[1])


def test_a_stack_trains_it(monkeypatch):
    monkeypatch.setattr(vae, "load_mnist", lambda data: IMAGES)
    names = ("st", 0), ("reinmax", 0), ("reinmax", 1)
    runs = [run(name, seed=seed, epochs=2, batch=100) for name, seed in names]
    stack = make_stack(runs)
    first, second = stack.advance(), stack.advance()
    assert set(first) == {"train", "test"}
    assert all(map(math.isnan, first["test"]))
    assert not any(map(math.isnan, second["test"]))
    assert all(b < a for a, b in zip(first["train"], second["train"], strict=True))
    # a run that goes on after an epoch
    again = make_stack(runs[:1])
    again.advance()
    resumed = make_stack(runs[:1])
    resumed.load_state(0, again.state(0))
    resumed.epoch = 1
    assert resumed.advance() == again.advance()


@pytest.mark.parametrize("estimator", ["reinmax", "stgs"])
@pytest.mark.parametrize(("categories", "latents"), [(8, 4), (10, 30), (64, 8)])
def test_the_guess_of_the_memory(estimator, categories, latents):
    one = run(estimator, categories=categories, latents=latents, batch=100)
    task = task_of(one, images=fake(test=1100))
    with Memory() as tested:
        task.evaluate(10)
    # all members see the same 1000 images
    of_test = tested.peak - 1000 * 784 * 4
    task.begin_epoch(0)
    saved = {}

    def keep(x):
        storage = x.untyped_storage()
        saved[storage.data_ptr()] = (storage.nbytes(), x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        losses = task.losses()["train"]
    weights = {x.untyped_storage().data_ptr(): x.nbytes for x in task.parameters.values()}
    kept = sum(size for place, (size, _) in saved.items() if place not in weights)
    # parameters, gradient, two moments; what backward needs; the order of 60,000 images
    least = 4 * sum(weights.values()) + kept + of_test + 60_000 * 8
    assert losses.isfinite().all()
    assert least < vae.memory(one) < 1.6 * least


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script(_method)?. is deprecated:DeprecationWarning",
    # Dynamo itself does both
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:.*Function'> should not be instantiated:DeprecationWarning",
)
def test_a_compiled_task_trains_as_a_plain_one(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(vae, "worth_compiling", lambda *_: True)
    fused = task_of(*RUNS)
    monkeypatch.undo()
    plain = task_of(*RUNS)
    assert fused._loss is not plain._loss is vae._loss
    torch.testing.assert_close(train(fused, 5), train(plain, 5), **CLOSE)
    torch._dynamo.reset()
