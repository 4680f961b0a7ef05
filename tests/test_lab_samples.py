"""The VAE with several samples of each image, and its recipes."""

import dataclasses

import pytest
import torch
from torch.nn.functional import one_hot

import oracles
from discretegrad_lab import tasks
from discretegrad_lab.report.entries import DASH, entries
from discretegrad_lab.report.figures import figures
from discretegrad_lab.report.reading import of_recipe
from discretegrad_lab.report.results import configuration, read, write
from discretegrad_lab.report.tables import tables
from discretegrad_lab.stack.lines import Line
from discretegrad_lab.tasks.evidence import Results, Row
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae import several
from discretegrad_lab.tasks.vae.large_recipes import SCORES
from discretegrad_lab.tasks.vae.sample_recipes import RLOO
from discretegrad_lab.tasks.vae.scored import ScoredVae
from discretegrad_lab.tasks.vae.several import SeveralVae
from lab_cases import make_stack
from test_lab_capture import faults
from test_lab_large_vae import CPU, STEPS, Plain, divergence, in_double, log_q
from test_lab_vae import CLOSE, IMAGES, run, train

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)
SAMPLES = 3


def by_leaving_one_out(logits, index, values):
    others = (values.sum(0) - values) / (len(values) - 1)
    scores = torch.stack([log_q(logits, x) for x in index])
    return ((values - others) * scores).mean(0)


@pytest.mark.parametrize("line", ["reinmax", RLOO], ids=["reinmax", "rloo"])
def test_several_samples_train_as_a_plain_model(line, monkeypatch):
    one = run(line, seed=3, tau=1.1, samples=SAMPLES)
    kind = SeveralVae if line == "reinmax" else ScoredVae
    task = in_double(monkeypatch, dataclasses.replace(one, seed=8), one, kind=kind)
    drawn, categories = [], task._noise.categories

    def recorded(*arguments, **options):
        drawn.append(categories(*arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(task._noise, "categories", recorded)
    losses = train(task, STEPS, epoch=2)[:, 1]
    assert drawn[0].shape == (2, SAMPLES, one.batch, one.latents)
    model = Plain(one)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, batch in enumerate(IMAGES.train[task._batches.order[1]][:STEPS]):
        x, index = batch.double() / 255, drawn[step][1]
        logits = model.logits(x)
        term = 0.0
        if line == "reinmax":
            values = [model.reconstruction(oracles.reinmax(logits, i, one.tau), x) for i in index]
        else:
            codes = one_hot(index, one.categories).double()
            values = [model.reconstruction(z, x) for z in codes]
            term = by_leaving_one_out(logits, index, torch.stack(values).detach())
            term = term - term.detach()
        loss = (torch.stack(values).mean(0) + divergence(logits) + term).mean()
        torch.testing.assert_close(losses[step], loss.detach(), rtol=1e-9, atol=0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, parameter in model.named_parameters():
        found = task.parameters[name][1]
        torch.testing.assert_close(found, parameter, rtol=1e-5, atol=1e-7, msg=name)


def test_several_samples_alone_and_in_a_stack_agree():
    names = ("st", 3), ("reinmax", 5), ("stgs", 3), ("gr-mck", 4)
    runs = [run(name, seed=seed, samples=SAMPLES, draws=3) for name, seed in names]
    together = train(SeveralVae(runs, CPU, images=IMAGES), 5)
    for member, one in enumerate(runs):
        alone = train(SeveralVae([one], CPU, images=IMAGES), 5)[:, 0]
        torch.testing.assert_close(alone, together[:, member], **CLOSE)


def test_steps_with_several_samples_can_be_captured(monkeypatch):
    monkeypatch.setattr(vae, "load_mnist", lambda data: IMAGES)
    for lines in (("reinmax", "stgs"), (RLOO,)):
        stack = make_stack([run(line, samples=SAMPLES) for line in lines])
        stack.model.begin_epoch(0)
        assert faults(stack) == []


def test_the_number_of_samples_is_part_of_the_identity_where_it_is_used():
    assert "samples" not in run().document()
    others = [run(samples=4), run(RLOO), run(RLOO, samples=4), run(SCORES[0])]
    assert len({one.identity for one in (run(), *others)}) == 5
    assert len({one.stack_key for one in (run(), *others)}) == 5
    for one in others:
        assert tasks.load_run(one.document()) == one


@pytest.mark.parametrize(
    ("line", "fields", "message"),
    [
        ("st", {"samples": 0}, "positive whole number as samples, got 0"),
        (SCORES[0], {"samples": 4}, "once, got num_samples=2 in its line and samples=4"),
        (Line("x", "disarm_tree"), {"samples": 3}, "an even number of at least 2 .* got 3"),
        ("exact", {"samples": 4}, "samples=1 where all codes are enumerated, got samples=4"),
        ("st", {"samples": 2, "along": "own"}, "and leave along out"),
    ],
)
def test_numbers_of_samples_that_cannot_be_are_refused(line, fields, message):
    with pytest.raises(ValueError, match=message):
        run(line, **fields)


def test_recipes_have_all_temperatures_with_all_numbers_of_samples():
    assert len(tasks.recipe("vae-10x30-samples").runs()) == 60
    assert len(tasks.recipe("vae-8x4-samples").runs()) == 80


def test_recipes_share_the_runs_of_others():
    small = {one.identity for one in tasks.recipe("vae-8x4-samples").runs()}
    exact = {one.identity for one in tasks.recipe("vae-8x4-exact").runs()}
    # ReinMax with one sample at 1.3, and both exact lines
    assert len(small & exact) == 30
    large = {one.identity for one in tasks.recipe("vae-10x30-samples").runs()}
    assert not large & {one.identity for one in tasks.recipe("vae-10x30").runs()}


@pytest.fixture
def stored(tmp_path):
    """Results of a recipe whose loss follows from its settings, after a trip to the disk."""
    recipe = tasks.recipe("vae-8x4-samples")
    rows, curves = [], {}
    for one in recipe.runs():
        loss = 100 + one.seed / 10 + one.samples + one.tau
        rows.append(Row(one.identity, configuration(one), "finished", 160, {"train": loss}))
        curves[one.identity, "train"] = {1: 200.0, 160: loss}
    write(Results(recipe.name, tuple(rows), curves), tmp_path / recipe.name)
    return read(tmp_path / recipe.name)


def test_each_variant_of_an_estimator_is_a_row_and_a_curve(stored):
    reading = of_recipe(tasks.recipe("vae-8x4-samples"))
    table = next(iter(tables(reading, entries(reading, stored))))
    tau = table.headings.index("τ")
    assert [(row[0], row[tau]) for row in table.rows] == [
        ("ReinMax", "1"), ("ReinMax", "1.3"), ("ReinMax, 16 samples", "1"),
        ("ReinMax, 16 samples", "1.3"), ("RLOO, 2 samples", DASH), ("RLOO, 16 samples", DASH),
        ("exact gradient", DASH), ("exact gradient, encoder only", DASH),
    ]  # fmt: skip
    assert table.rows[2][1].startswith("117.45")
    # less the exact gradient, whose runs have one sample and the temperature of ReinMax
    assert table.rows[2][table.headings.index("less exact gradient")].startswith("+14.70")
    figure = next(iter(figures(reading, stored)))
    assert [curve.name for curve in figure.curves][:3] == [
        "ReinMax, τ = 1", "ReinMax, τ = 1.3", "ReinMax, 16 samples, τ = 1",
    ]  # fmt: skip
    assert len({(curve.colour, curve.dash, curve.mark) for curve in figure.curves}) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_a_compiled_task_with_several_samples_trains_as_a_plain_one(monkeypatch):
    torch._dynamo.reset()
    runs = [run(name, seed=1, samples=SAMPLES) for name in ("st", "reinmax")]
    for module in (vae, several):
        monkeypatch.setattr(module, "worth_compiling", lambda *_: True)
    fused = SeveralVae(runs, CPU, images=IMAGES)
    monkeypatch.undo()
    plain = SeveralVae(runs, CPU, images=IMAGES)
    assert fused._mean_loss is not plain._mean_loss is several.loss_of_samples
    torch.testing.assert_close(train(fused, 3), train(plain, 3), **CLOSE)
    torch._dynamo.reset()
