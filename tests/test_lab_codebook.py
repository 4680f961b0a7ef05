"""The vector-quantised autoencoder: members alone, plain code and a peer beside the stack."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import discretegrad
import oracles
from discretegrad.nn import VectorQuantize
from discretegrad.testing import normal
from discretegrad_lab import tasks
from discretegrad_lab.cli.plan import _label
from discretegrad_lab.stack import trainer
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.tasks.codebook.config import Codebook
from discretegrad_lab.tasks.codebook.model import CodebookModel
from discretegrad_lab.tasks.codebook.quantiser import _step
from discretegrad_lab.tasks.codebook.recipes import COPIED
from discretegrad_lab.tasks.data import Images
from test_lab_capture import faults

CPU = torch.device("cpu")
SIZES = {"codes": 12, "latents": 3, "width": 4, "batch": 10, "epochs": 2}
one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def images():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (75, 784), generator=generator, dtype=torch.uint8)
    return Images(noise[:45], noise[45:])


def run(estimator, **fields):
    return Codebook(estimator=estimator, copied=estimator == COPIED, **SIZES | fields)


def model_of(*runs):
    return CodebookModel(runs, CPU, images=images())


def train(model, steps):
    """Losses of the first steps downhill, (steps, members), and what the model becomes."""
    model.begin_epoch(0)
    losses = []
    for _ in range(steps):
        loss = model.losses()["train"]
        weights = list(model.parameters.values())
        slopes = torch.autograd.grad(loss.sum(), weights)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                weight -= 1e-3 * slope
        losses.append(loss.detach())
    return torch.stack(losses), {**model.parameters, **model.buffers, **model.evaluate(2)}


@pytest.mark.parametrize(
    "runs",
    [
        [run("reinmax", seed=1), run("reinmax", seed=2, scale=3.0), run("st", seed=1, tau=1.3)],
        [run(COPIED, seed=1), run(COPIED, seed=2, commitment=1.0)],
    ],
    ids=["drawn", "copied"],
)
def test_a_member_of_a_stack_trains_as_alone(runs):
    losses, state = train(model_of(*runs), 4)
    assert losses.isfinite().all()
    for number, member in enumerate(runs):
        alone, own = train(model_of(member), 4)
        torch.testing.assert_close(losses[:, number : number + 1], alone)
        for name, tensor in own.items():
            torch.testing.assert_close(state[name][number], tensor[0])


def plain_vectors(model):
    """The next batch of a model with one member, and the encoder's vectors, as anybody would."""
    pixels = model._batches.next()[0]
    encoder = nn.Sequential(*(nn.Linear(*x) for x in ((784, 512), (512, 256), (256, 12))))
    for layer, (weight, bias) in zip(encoder, _pairs(model.parameters, "encoder"), strict=True):
        layer.load_state_dict({"weight": weight, "bias": bias})
    hidden = encoder[1](encoder[0](pixels).relu()).relu()
    return pixels, encoder[2](hidden).view(-1, 4).detach().requires_grad_()


def _pairs(parameters, network):
    tensors = [x[0].detach() for name, x in parameters.items() if name.startswith(network)]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def plain_loss(model, pixels, codes, vectors, taken, commitment):
    first, second, third = _pairs(model.parameters, "decoder")
    hidden = codes.reshape(len(pixels), -1)
    hidden = nn.functional.linear(nn.functional.linear(hidden, *first).relu(), *second).relu()
    out = nn.functional.linear(hidden, *third)
    reconstruction = binary_cross_entropy_with_logits(out, pixels, reduction="sum")
    return (reconstruction + commitment * (vectors - taken).square().sum()) / len(pixels)


def peer_layer():
    package = pytest.importorskip("vector_quantize_pytorch", reason="needs the extra [peers]")
    theirs = package.VectorQuantize(4, 12, decay=0.8, rotation_trick=False)
    return theirs, theirs._codebook.embed, theirs._codebook.embed_avg


def our_layer():
    # so small a temperature that the nearest code is drawn
    ours = VectorQuantize(4, 12, decay=0.8, sample_codebook_temp=1e-9)
    return ours, ours.codebook, ours.embed_avg


@pytest.mark.parametrize("make", [peer_layer, our_layer])
def test_nearest_codes_and_averages_are_those_of_a_layer(make):
    """Their codes, the copied gradient, the loss, and the codebook after each of three steps."""
    layer, codebook, sums = make()
    member = run(COPIED, seed=3, restart=0.0)
    model = model_of(member)
    model.begin_epoch(0)
    codebook.copy_(model.quantiser.codebook.reshape(codebook.shape))
    sums.copy_(model.quantiser.codebook.reshape(codebook.shape))
    for _ in range(3):
        pixels, vectors = plain_vectors(model)
        # the step of the model takes the same images
        model._batches.step.sub_(1)
        codes, _, _ = layer(vectors.unsqueeze(0))
        codes = codes[0].detach()
        passed = vectors + (codes - vectors).detach()
        loss = plain_loss(model, pixels, passed, vectors, codes, 0.25)
        rows = []
        original = model.quantised
        model.quantised = lambda x, rows=rows, original=original: (rows.append(x), original(x))[1]
        (actual,) = model.losses()["train"]
        model.quantised = original
        torch.testing.assert_close(actual, loss)
        torch.testing.assert_close(
            torch.autograd.grad(actual, rows[0])[0][0], torch.autograd.grad(loss, vectors)[0]
        )
        torch.testing.assert_close(model.quantiser.codebook, codebook.reshape(1, 12, 4))


def test_drawn_codes_are_those_of_the_library_at_plain_distances():
    """Which codes are drawn, and the gradient of the encoder's vectors, for each line."""
    members = [run(key, seed=seed, scale=0.3) for seed, key in enumerate(("reinmax", "st"))]
    model = model_of(*members)
    rows = normal(2, 30, 4, dtype=torch.float32).requires_grad_()
    model.begin_epoch(0)
    codes, taken = model.quantised(rows)
    slopes = normal(2, 30, 4, seed=1, dtype=torch.float32)
    (actual,) = torch.autograd.grad(codes.tanh(), rows, slopes)
    for number, member in enumerate(members):
        vectors, codebook = rows[number], model.quantiser.codebook[number]
        logits = -torch.cdist(vectors, codebook).square() / 0.3
        noise = Noise([member.seed], CPU)
        noise.begin(0)
        index = noise.categories(logits.unsqueeze(0))[0]
        assert torch.equal(taken[number].argmax(-1), index)
        sampled = getattr(discretegrad, member.line.row)(logits, given=index) @ codebook
        torch.testing.assert_close(codes[number], sampled)
        (wanted,) = torch.autograd.grad(sampled.tanh(), rows, slopes[number])
        torch.testing.assert_close(actual[number], wanted[number], rtol=1e-4, atol=1e-5)


def test_codes_that_are_not_taken_restart_at_vectors_each_at_another():
    model = model_of(run(COPIED, restart=0.9, decay=0.5))
    quantiser, rows = model.quantiser, torch.randn(1, 9, 4)
    taken = torch.zeros(1, 9, 12)
    taken[..., 5] = 1
    model.begin_epoch(0)
    quantiser.update(rows, taken, model._noise)
    matches = (quantiser.codebook[0].unsqueeze(1) == rows[0]).all(-1)
    # eleven codes have half a count each, and there are nine vectors
    assert matches.any(1).sum() == 9
    assert (matches.sum(0) == 1).all()
    assert not matches[5].any()
    assert torch.equal(quantiser.counts[0] == 0.9, matches.any(1))
    assert all(
        torch.arange(n).mul(_step(n)).remainder(n).unique().numel() == n for n in range(1, 99)
    )


@pytest.mark.parametrize("line", ["reinmax", COPIED], ids=["drawn", "copied"])
def test_a_step_can_be_captured(line):
    def make(runs, device, data):
        return CodebookModel(runs, device, images=images())

    stack = trainer.Stack(make, [run(line, seed=1), run(line, seed=2)])
    stack.model.begin_epoch(0)
    assert faults(stack) == []


def test_usage_counts_the_codes_of_the_test_images():
    model = model_of(run("reinmax"))
    with torch.no_grad():
        model.quantiser.codebook.fill_(100.0)
        model.quantiser.codebook[0, 7] = 0.0
    result = model.evaluate(2)
    assert result["usage"].item() == pytest.approx(1.0)
    assert model.evaluate(1)["test"].isnan().all()


def test_recipes_take_the_nearest_code_once():
    scales = tasks.recipe("codebook-scales").runs(seeds=[100])
    assert [member.scale for member in scales if member.copied] == [0.01]
    assert {member.estimator for member in scales if not member.copied} == {"reinmax", "st", "stgs"}
    stacks = {member.stack_key for member in tasks.recipe("codebook-mnist").runs()}
    assert len(stacks) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"estimator": "reinforce"}, "expected an estimator that makes a sample"),
        ({"scale": 0.0}, "expected a positive number .* as scale"),
        ({"decay": 1.5}, r"expected a number \(float\) from 0 to 1 as decay"),
        ({"restart": 1}, "of at least 0 as restart, got 1"),
        ({"copied": 1}, "expected True or False as copied"),
        ({"codes": 0}, "positive whole number as codes"),
    ],
)
def test_bad_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        Codebook(**{"estimator": "reinmax", **fields})


def test_a_plan_names_a_stack_by_what_its_members_share():
    member = Codebook(estimator=COPIED, copied=True)
    assert _label(member) == "codebook, copied True"
