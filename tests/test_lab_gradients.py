"""Training with the exact gradient, and gradients compared with it along training."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

import discretegrad
import oracles
from discretegrad_lab import tasks
from discretegrad_lab.report.entries import entries
from discretegrad_lab.report.folder import gather
from discretegrad_lab.report.reading import of_recipe
from discretegrad_lab.report.results import configuration
from discretegrad_lab.report.results import write as write_results
from discretegrad_lab.report.section import section
from discretegrad_lab.report.tables import tables
from discretegrad_lab.runs.store import Store
from discretegrad_lab.stack.layers import generators, mlp
from discretegrad_lab.tasks.evidence import Results, Row
from discretegrad_lab.tasks.vae import enumerated, gradients
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.config import Vae
from discretegrad_lab.tasks.vae.enumerated import ENCODER, EnumeratedVae, all_codes, expected_loss
from discretegrad_lab.tasks.vae.gradients import NAMES, Point, compare_gradients
from discretegrad_lab.tasks.vae.model import VaeModel
from lab_cases import make_stack, use_small_images
from test_lab_vae import CLOSE, CPU, IMAGES, train
from watched_memory import Memory

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def run(estimator="exact", **fields):
    return Vae(estimator=estimator, **{"latents": 3, "categories": 4, "batch": 20} | fields)


def enumerating(*runs):
    return EnumeratedVae(runs, CPU, images=IMAGES)


def by_codes(logits, losses):
    """The expected loss of each image: ``losses`` of a code, one code after the other."""
    latents, categories = logits.shape[-2:]
    total = 0.0
    for code in itertools.product(range(categories), repeat=latents):
        probability = logits.softmax(-1)[..., range(latents), code].prod(-1)
        total = total + probability * losses(one_hot(torch.tensor(code), categories))
    return total


@pytest.mark.parametrize(("latents", "categories"), [(1, 5), (3, 4), (4, 2)])
def test_the_loss_and_every_gradient_are_those_of_the_enumerated_loss(latents, categories):
    members, batch, pixels = 2, 5, 6
    code = latents * categories
    starts = generators(range(members))
    encoder = mlp(starts, (pixels, 7, code)).double()
    decoder = mlp(starts, (code, 8, 9, pixels)).double()
    x = torch.rand(members, batch, pixels, dtype=torch.float64, generator=starts[0])

    def logits():
        # far from uniform
        return 20 * encoder(x).unflatten(-1, (latents, categories))

    def reconstruction(z):
        """(members, batch) for one code, or for a sample (members, batch, latents, categories)."""
        z = z.double().expand(members, batch, latents, categories)
        out = decoder(z.flatten(-2))
        return binary_cross_entropy_with_logits(out, x, reduction="none").sum(-1)

    def divergence(logits):
        q = logits.softmax(-1)
        return (q * (q + 1e-10).log()).sum((-2, -1)) + latents * math.log(categories)

    parameters = [*encoder.parameters(), *decoder.parameters()]
    codes = all_codes(latents, categories).double().flatten(1)
    loss = expected_loss(decoder, codes.expand(members, *codes.shape), x, logits())
    expected = (by_codes(logits(), reconstruction) + divergence(logits())).mean(1)
    torch.testing.assert_close(loss, expected)
    ours = torch.autograd.grad(loss.sum(), parameters)
    theirs = torch.autograd.grad(expected.sum(), parameters)
    torch.testing.assert_close(ours, theirs)
    # the library's own enumeration decodes every code for every image
    library = discretegrad.exact_expectation(logits(), reconstruction, vectorize=False)
    library = library + divergence(logits())
    of_library = torch.autograd.grad(library.mean(1).sum(), parameters)
    torch.testing.assert_close(ours, of_library)


class PlainVae(nn.Module):
    """The model and its loss as anybody would write them, one code after the other."""

    def __init__(self, seed, latents, categories):
        super().__init__()
        self.shape = latents, categories
        code = latents * categories
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            parts = nn.Linear(784, 512), nn.Linear(512, 256), nn.Linear(256, code)
            self.encoder = nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), parts[2])
            parts = nn.Linear(code, 256), nn.Linear(256, 512), nn.Linear(512, 784)
            self.decoder = nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), parts[2])

    def forward(self, images):
        x = images.float() / 255
        logits = self.encoder(x).unflatten(-1, self.shape)

        def reconstruction(z):
            out = self.decoder(z.float().flatten()).expand_as(x)
            return binary_cross_entropy_with_logits(out, x, reduction="none").sum(-1)

        latents, categories = self.shape
        kl = (logits.softmax(-1) * logits.log_softmax(-1)).sum((-2, -1))
        return (by_codes(logits, reconstruction) + kl + latents * math.log(categories)).mean()


def test_a_stack_trains_as_a_plain_loop_and_as_each_member_alone():
    runs = [run(seed=seed, latents=2, categories=3, batch=10) for seed in (1, 2)]
    stack = enumerating(*runs)
    history = train(stack, 20)
    for member, one in enumerate(runs):
        model = PlainVae(one.seed, one.latents, one.categories)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for step in range(20):
            loss = model(IMAGES.train[stack._batches.order[member, step]])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        torch.testing.assert_close(history[:, member], torch.stack(losses), **CLOSE)
        alone = train(enumerating(one), 20)[:, 0]
        torch.testing.assert_close(history[:, member], alone, **CLOSE)


def test_with_a_sampled_decoder_only_the_encoder_is_exact():
    models = {
        "exact": enumerating(run(seed=3)),
        "sampled": enumerating(run(ENCODER, seed=3)),
        "st": VaeModel([run("st", seed=3)], CPU, images=IMAGES),
    }
    losses, slopes = {}, {}
    for key, model in models.items():
        model.begin_epoch(2)
        for _ in range(2):
            # the second step, with its own draws
            losses[key] = model.losses()["train"]
        slopes[key] = dict(
            zip(
                model.parameters,
                torch.autograd.grad(losses[key].sum(), model.parameters.values()),
                strict=True,
            )
        )
    torch.testing.assert_close(losses["sampled"], losses["st"], rtol=1e-6, atol=0)
    for name, slope in slopes["sampled"].items():
        same, other = ("exact", "st") if name.startswith("encoder") else ("st", "exact")
        torch.testing.assert_close(slope, slopes[same][name], rtol=1e-3, atol=1e-5, msg=name)
        assert not torch.allclose(slope, slopes[other][name], rtol=1e-2, atol=1e-5), name


def test_a_run_goes_on_after_an_epoch(monkeypatch):
    use_small_images(monkeypatch, 300, 7)
    for line in ("exact", ENCODER):
        runs = [run(line, seed=seed, epochs=3, batch=100) for seed in (0, 1)]
        whole = make_stack(runs)
        whole.advance()
        resumed = make_stack(runs)
        for member in range(2):
            resumed.load_state(member, whole.state(member))
        resumed.epoch = 1
        assert resumed.advance()["train"] == whole.advance()["train"]


# gradients along training


def exact_moments(sampler, logits, f):
    """Mean and deviation of an estimator's gradients over all codes, and the true gradient."""
    images, latents, categories = logits.shape
    mean = square = torch.zeros_like(logits)
    for code in itertools.product(range(categories), repeat=latents):
        given = torch.tensor(code).expand(images, latents)
        leaf = logits.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(sampler(leaf, given=given)).sum(), leaf)
        weight = logits.softmax(-1)[:, range(latents), code].prod(-1)[:, None, None]
        mean, square = mean + weight * g, square + weight * g.square()
    return mean, (square - mean.square()).sum().sqrt(), discretegrad.exact_gradient(logits, f)


@pytest.mark.parametrize("estimator", ["st", "reinmax"])
def test_compared_gradients_are_those_of_enumeration(estimator, monkeypatch, generator):
    monkeypatch.setattr(gradients, "DRAWS", 4096)
    decoder = mlp(generators([0, 1]), (6, 30, 5)).double()
    for layer in decoder.children():
        if not isinstance(layer, nn.ReLU):
            layer.weight.data *= 4
    images = torch.rand(4, 5, dtype=torch.float64, generator=generator)
    logits = torch.randn(4, 2, 3, dtype=torch.float64, generator=generator)
    f = gradients.reconstruction(decoder, 1, images)
    z = torch.rand(1, 4, 2, 3, dtype=torch.float64, generator=generator)
    out = decoder(z.expand(2, -1, -1, -1).flatten(-2))[1]
    expected = binary_cross_entropy_with_logits(out, images, reduction="none").sum(-1)
    torch.testing.assert_close(f(z[0]), expected)
    one = run(estimator, latents=2, categories=3, tau=1.3, along="own")
    values = compare_gradients(one, Point(logits, f, 7))
    mean, deviation, truth = exact_moments(
        lambda leaf, given: one.line.function(leaf, 1.3, given=given), logits, f
    )
    assert values["gradient_deviation"] == pytest.approx(float(deviation / truth.norm()), rel=0.05)
    noise = values["gradient_deviation"] / 64
    assert values["gradient_bias"] == pytest.approx(
        float((mean - truth).norm() / truth.norm()), abs=noise
    )
    cosine = (mean * truth).sum() / (mean.norm() * truth.norm())
    assert values["gradient_cosine"] == pytest.approx(float(cosine), abs=noise)
    assert 0 < values["gradient_cosine_of_one"] < values["gradient_cosine"]
    assert compare_gradients(one, Point(logits, f, 7)) == values
    assert compare_gradients(one, Point(logits, f, 8)) != values
    # a decoder that does not listen
    constant = compare_gradients(one, Point(logits, lambda z: 0 * f(z) + 1, 7))
    assert all(map(math.isnan, constant.values()))


def test_along_another_line_that_line_trains(monkeypatch):
    monkeypatch.setattr(vae, "IMAGES", 3)
    monkeypatch.setattr(gradients, "DRAWS", 64)
    small = {"latents": 2, "categories": 3, "seed": 4, "epochs": 3}
    shared = {"along": "reinmax", "along_tau": 1.3}
    others = [run("st", **small, **shared), run("stgs", tau=0.5, **small, **shared)]
    along = VaeModel(others, CPU, images=IMAGES)
    alone = VaeModel([run("reinmax", tau=1.3, **small)], CPU, images=IMAGES)
    trained, expected = train(along, 5), train(alone, 5)
    torch.testing.assert_close(trained, expected.expand(-1, 2), **CLOSE)
    # what is compared are the gradients of each run's own estimator
    compared = along.evaluate(1)
    assert set(compared) == {"test", *NAMES}
    assert compared["gradient_deviation"][0] < 0.8 * compared["gradient_deviation"][1]
    own = VaeModel([run("st", along="own", **small)], CPU, images=IMAGES)
    with torch.no_grad():
        for name, parameter in own.parameters.items():
            parameter[0] = along.parameters[name][0]
    assert own.evaluate(1)["gradient_bias"][0] == pytest.approx(
        compared["gradient_bias"][0].item(), rel=1e-4
    )
    # after the epochs that the figure shows, and the last one
    stops = [n for n in range(1, 8) if along.evaluate(n)["gradient_cosine"].isfinite().all()]
    assert stops == [1, 2, 3, 4]
    assert set(alone.evaluate(1)) == {"test"}
    exact = run("st", **small, along="exact", along_tau=1.0)
    torch.testing.assert_close(train(enumerating(exact), 3), train(enumerating(run(**small)), 3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latents": 30, "categories": 10}, r"at most 65,536 joint codes.*got 10 \*\* 30; take"),
        ({"estimator": "st", "along": "own", "latents": 24}, r"joint codes.*got 4 \*\* 24"),
        ({"along": "own"}, "makes a sample.*got 'exact'"),
        ({"estimator": "st", "along": "reinmux", "along_tau": 1.0}, "key of a line.*'reinmux'"),
        ({"estimator": "st", "along": "reinmax"}, "as along_tau beside the key.*along_tau=None"),
        ({"estimator": "st", "along": "own", "along_tau": 1.0}, "none beside 'own'"),
    ],
)
def test_what_cannot_be_compared_or_enumerated_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        run(**fields)


def test_runs_that_enumerate_have_stacks_of_their_own():
    lines = [run(), run(ENCODER), run("st"), run("st", along="own")]
    lines.append(run("st", along="reinmax", along_tau=1.3))
    assert len({one.stack_key for one in lines}) == 5
    assert run().stack_key == run(seed=7, learning_rate=0.1).stack_key
    assert "along" not in run().document()
    assert tasks.load_run(lines[-1].document()) == lines[-1]
    assert tasks.load_run(lines[1].document()).line is ENCODER


def test_the_guess_of_the_memory_of_all_codes():
    one = run(latents=4, categories=8, batch=100)
    task = enumerating(one)
    task.begin_epoch(0)
    with Memory() as step:
        torch.autograd.grad(task.losses()["train"].sum(), list(task.parameters.values()))
    assert step.peak < enumerated.memory(one) < 2.5 * step.peak
    assert enumerated.memory(run("st")) == vae.memory(run("st"))


# reports and claims


def results_of(name, number):
    """Results of all runs of a recipe: the end of every metric is ``number(run, metric)``."""
    recipe, rows, curves = tasks.recipe(name), [], {}
    for one in recipe.runs():
        noise = 1e-3 * one.seed
        metrics = {metric: number(one, metric) + noise for metric in recipe.metrics}
        rows.append(Row(one.identity, configuration(one), "finished", 160, metrics))
        for metric, value in metrics.items():
            curves[one.identity, metric] = {1: value + 1e-3, 160: value}
    return recipe, Results(name, tuple(rows), curves)


def verdicts(name, number):
    recipe, results = results_of(name, number)
    return [(x.word, x.evidence) for x in section(of_recipe(recipe), results).verdicts]


def test_the_report_says_what_each_estimator_leaves_to_the_exact_gradient():
    levels = {"exact": 120.0, "exact-encoder": 121.0, "st": 135.5}
    recipe, results = results_of(
        "vae-8x4-exact", lambda one, metric: levels.get(one.estimator, 125.25)
    )
    reading = of_recipe(recipe)
    train_table, _ = tables(reading, entries(reading, results))
    place = train_table.headings.index("less exact gradient")
    assert train_table.headings[place + 1] == "less exact gradient, encoder only"
    cells = {row[0]: row[place : place + 2] for row in train_table.rows}
    assert cells["ST"] == ("+15.50 ± 0.00", "+14.50 ± 0.00")
    assert cells["ReinMax"] == ("+5.25 ± 0.00", "+4.25 ± 0.00")
    assert cells["exact gradient"] == ("\N{EN DASH}", "-1.00 ± 0.00")
    assert "joint 95 % interval" in train_table.caption


def test_the_claim_about_accurate_gradients():
    def as_claimed(one, metric):
        better = one.estimator == "reinmax"
        return {"gradient_cosine": 0.9 + 0.05 * better, "train": 130.0 - better}.get(metric, 1.0)

    (own, text), (alike, _) = verdicts("vae-8x4-gradients", as_claimed)
    assert (own, alike) == ("holds", "holds")
    assert "Of 2 epochs the cosine of ReinMax is higher than that of ST in 2" in text
    assert "ReinMax 129.00, ST 130.00" in text

    def slower(one, metric):
        if metric == "train" and one.estimator == "gr-mck":
            return 125.0
        return as_claimed(one, metric)

    assert [x for x, _ in verdicts("vae-8x4-gradients", slower)] == ["does not hold", "holds"]

    def only_on_its_own_path(one, metric):
        worse = (
            one.along == "reinmax" and one.estimator == "reinmax" and metric == "gradient_cosine"
        )
        return as_claimed(one, metric) - 0.2 * worse

    words = [x for x, _ in verdicts("vae-8x4-gradients", only_on_its_own_path)]
    assert words == ["holds", "does not hold"]

    def mostly_decided_by_the_seed(one, metric):
        if metric != "gradient_cosine":
            return as_claimed(one, metric)
        return 0.1 * one.seed + 0.02 * (one.estimator == "reinmax")

    # along the same trainings each seed is compared with itself
    words = [x for x, _ in verdicts("vae-8x4-gradients", mostly_decided_by_the_seed)]
    assert words == ["undecided", "holds"]


def test_the_claims_about_the_baseline():
    def loss(one, metric):
        # released: always worse; corrected: as good at its better temperature in one column
        if one.estimator == "mean-2-released":
            return 130.0
        if one.estimator == "mean-2":
            return 124.0 if one.tau == 1.0 and one.latents == 30 else 127.0
        return 125.0 if one.tau > 1 else 126.0

    (released, text), (corrected, other) = verdicts("vae-baselines", loss)
    assert (released, corrected) == ("holds", "does not hold")
    first, second = "1/n baseline, order 2, as released 130.00", "1/n baseline, order 2 124.00"
    assert f"8 categories, 4 latents: ReinMax 125.00 (τ = 1.3) against {first}" in text
    assert f"10 categories, 30 latents: ReinMax 125.00 (τ = 1.3) against {second} (τ = 1)" in other


def test_a_report_takes_shared_runs_from_the_results_of_other_recipes(tmp_path):
    _, column = results_of("vae-8x4", lambda one, metric: 125.0)
    write_results(column, tmp_path / "vae-8x4")
    recipe = tasks.recipe("vae-8x4-exact")
    store, damaged = Store(tmp_path / "runs"), []
    gathered = gather(of_recipe(recipe), recipe.runs(), store, tmp_path, damaged)
    states = {row.identity: row.state for row in gathered.rows}
    assert list(states) == [one.identity for one in recipe.runs()]
    for one in recipe.runs():
        exact = one.line.kind == "exact"
        assert states[one.identity] == ("missing" if exact else "finished")
    assert set(gathered.curves) == set(column.curves)
    assert not damaged
    # a folder that knows of no end of a run, its own or another's, takes no end from others
    ends = {row.identity: row for row in column.rows}
    unknown = [
        dataclasses.replace(row, state=state, metrics={})
        for row, state in zip(column.rows, itertools.cycle(("missing", "started")), strict=False)
    ]
    for name in ("vae-8x4-exact", "vae-8x4-later"):
        write_results(Results(name, tuple(unknown)), tmp_path / name)
    gathered = gather(of_recipe(recipe), recipe.runs(), store, tmp_path, damaged)
    for row in gathered.rows:
        if row.identity in ends:
            assert (row.state, row.metrics) == ("finished", ends[row.identity].metrics)
    assert set(gathered.curves) == set(column.curves)
    # its own folder comes first
    row = dataclasses.replace(column.rows[0], metrics={"train": 99.0, "test": 99.0})
    write_results(Results("vae-8x4-exact", (row,)), tmp_path / "vae-8x4-exact")
    gathered = gather(of_recipe(recipe), recipe.runs(), store, tmp_path, damaged)
    assert gathered.rows[0].metrics["train"] == 99.0
    assert gathered.rows[1].metrics["train"] == column.rows[1].metrics["train"]


def test_recipes_share_the_runs_of_the_tables():
    def identities(name, **options):
        return {one.identity for one in tasks.recipe(name).runs(**options)}

    assert identities("vae-8x4") < identities("vae-8x4-exact")
    tuned = identities("vae-8x4", seeds=range(5), estimators=["reinmax"])
    assert tuned < identities("vae-baselines")
