"""What finished models are measured by, and the command that does it for many of them."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torch.nn.functional import one_hot
from typer.testing import CliRunner

import oracles
from discretegrad_lab import tasks
from discretegrad_lab.cli import app
from discretegrad_lab.report.measures import measured_tables
from discretegrad_lab.report.reading import of_recipe
from discretegrad_lab.report.results import MEASURES, configuration, keep_measured, read, write
from discretegrad_lab.runs import measure as measuring
from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.store import Store
from discretegrad_lab.stack.layers import generators, mlp
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.tasks import pixels
from discretegrad_lab.tasks.evidence import Measured, Results, Row
from discretegrad_lab.tasks.vae import measures
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.config import Vae
from discretegrad_lab.tasks.vae.measures import Bounds, log_weights, measure
from discretegrad_lab.tasks.vae.model import VaeModel
from lab_tiny import TINY
from test_lab_pictures import IMAGES, RECIPE
from watched_memory import Memory

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)
CPU = torch.device("cpu")
MEMBERS, COUNT, LATENTS, CATEGORIES, PIXELS = 2, 3, 2, 3, 6
CODES = torch.tensor(list(itertools.product(range(CATEGORIES), repeat=LATENTS)))


def run(estimator="st", **fields):
    sizes = {"categories": CATEGORIES, "latents": LATENTS, "batch": 20, "epochs": 1}
    return Vae(estimator=estimator, **(sizes | fields))


class Tiny:
    """Decoders of six pixels, images and the logits of their codes, in float64."""

    def __init__(self):
        generator = torch.Generator().manual_seed(4)
        self.decoder = mlp(generators(range(MEMBERS)), (LATENTS * CATEGORIES, 9, PIXELS)).double()
        for layer in self.decoder.children():
            for parameter in layer.parameters():
                parameter.data *= 5
        shape = (MEMBERS, COUNT, LATENTS, CATEGORIES)
        self.logits = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
        self.x = torch.rand(MEMBERS, COUNT, PIXELS, generator=generator, dtype=torch.float64)
        self.x = self.x.round()

    def weights(self, index):
        return log_weights(
            lambda z: self.decoder(z.flatten(-2)), self.x, self.logits, index
        ).detach()

    def of_all_codes(self):
        """log w and q of every code, (members, codes, images) both."""
        index = CODES[None, :, None].expand(MEMBERS, -1, COUNT, -1)
        return self.weights(index), self.log_q(index).exp()

    def log_q(self, index):
        q = Categorical(logits=self.logits.unsqueeze(1))
        return q.log_prob(index).sum(-1)


def test_weights_are_those_of_the_model():
    tiny = Tiny()
    found, q = tiny.of_all_codes()
    assert q.sum(1).allclose(torch.ones(()).double())
    for number, code in enumerate(CODES):
        z = one_hot(code, CATEGORIES).double().flatten().expand(MEMBERS, COUNT, -1)
        pixels = Bernoulli(logits=tiny.decoder(z)).log_prob(tiny.x).sum(-1)
        joint = pixels - LATENTS * math.log(CATEGORIES)
        torch.testing.assert_close(found[:, number], joint - q[:, number].log())
    # the expectation of one weight is the ELBO, with the divergence in closed form
    prior = Categorical(logits=torch.zeros_like(tiny.logits))
    divergence = kl_divergence(Categorical(logits=tiny.logits), prior).sum(-1)
    reconstruction = (q * (found + q.log() + LATENTS * math.log(CATEGORIES))).sum(1)
    torch.testing.assert_close((q * found).sum(1), reconstruction - divergence)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_expectation_of_the_bound_by_enumeration_of_tuples(count):
    """The mean of 4,000 bounds is within 4.5 deviations of what all tuples of codes give."""
    tiny, repeats = Tiny(), 4000
    found, q = tiny.of_all_codes()
    mean = square = torch.zeros(MEMBERS, COUNT, dtype=torch.float64)
    for codes in itertools.product(range(len(CODES)), repeat=count):
        bounds = Bounds()
        for code in codes:
            bounds.add(found[:, [code]])
        chance = q[:, list(codes)].prod(1)
        mean = mean + chance * bounds.importance_weighted
        square = square + chance * bounds.importance_weighted.square()
    noise = Noise([1, 2], CPU)
    noise.begin(0)
    index = noise.categories(tiny.logits.float(), repeats=count * repeats)
    drawn = Bounds()
    # a tuple is a member of a larger stack
    drawn.add(tiny.weights(index).unflatten(1, (repeats, count)).flatten(0, 1))
    sampled = drawn.importance_weighted.unflatten(0, (MEMBERS, repeats)).mean(1)
    deviation = ((square - mean.square()) / repeats).sqrt()
    assert ((sampled - mean).abs() < 4.5 * deviation + 1e-6).all()
    elbo, evidence = (q * found).sum(1), (found + q.log()).logsumexp(1)
    if count == 1:
        torch.testing.assert_close(mean, elbo)
    else:
        assert (elbo + 0.01 < mean).all()
    assert (mean < evidence - 0.01).all()


def test_bounds_do_not_overflow_and_do_not_depend_on_the_parts():
    weights = torch.tensor([-4000.0, -3000.0, -3001.0, 2000.0]).view(1, 4, 1)
    whole, parts = Bounds(), Bounds()
    whole.add(weights)
    for part in weights.split(1, dim=1):
        parts.add(part)
    assert whole.importance_weighted.item() == pytest.approx(2000 - math.log(4))
    torch.testing.assert_close(whole.importance_weighted, parts.importance_weighted)
    assert whole.elbo.item() == parts.elbo.item() == -2000.25


def scaled(monkeypatch, *runs, test=IMAGES.test):
    """A model whose codes matter, in float64."""
    monkeypatch.setattr(pixels, "grey", lambda images: images.double() / 255)
    model = VaeModel(runs, CPU, images=IMAGES._replace(test=test))
    model._encoder.double()
    model._decoder.double()
    with torch.no_grad():
        model.parameters["encoder.4.weight"] *= 30
        model.parameters["decoder.0.weight"] *= 10
    return model


def test_many_samples_come_to_the_evidence(monkeypatch):
    """Within five deviations, by the exact moments of the weights."""
    count = 2030
    # parts of images and samples that do not divide them
    for name, value in (("SAMPLES", count), ("_IMAGES", 4), ("_DRAWN", 400)):
        monkeypatch.setattr(measures, name, value)
    model = scaled(monkeypatch, run(seed=1), run(seed=2), test=IMAGES.test[:7])
    with torch.no_grad():
        found = measure(model)
        ((x, logits),) = model.test_batches(7)
        index = CODES[None, :, None].expand(2, -1, 7, -1)
        weights = log_weights(model.decode, x, logits, index)
    q = Categorical(logits=logits.unsqueeze(1)).log_prob(index).sum(-1).exp()
    elbo, evidence = (q * weights).sum(1), (weights + q.log()).logsumexp(1)
    assert (elbo + 0.1 < evidence).any()
    spread = (q * (weights - elbo.unsqueeze(1)).square()).sum(1)
    error = (spread.sum(1) / count).sqrt() / 7
    assert ((found["test_mean_elbo"] + elbo.mean(1)).abs() < 5 * error).all()
    relative = (q * ((weights - evidence.unsqueeze(1)).exp() - 1).square()).sum(1)
    error = (relative.sum(1) / count).sqrt() / 7 + relative.mean(1) / count
    assert ((found["test_bound"] + evidence.mean(1)).abs() < 5 * error).all()
    assert (found["test_bound"] < found["test_mean_elbo"]).all()


def test_use_of_the_code(monkeypatch):
    """A variable that is always uniform, one that names the image, one that moves a little."""
    rows = torch.full((4, 3, 4), 1e-30)
    rows[:, 0] = 1
    rows[range(4), 1, [0, 1, 0, 1]] = 1
    rows[:, 2] = torch.tensor([0.7, 0.1, 0.1, 0.1])
    # each of two probabilities has a variance of 0.0061, and both together more than 0.01
    rows[0, 2] = torch.tensor([0.52, 0.28, 0.1, 0.1])
    model = VaeModel([run(latents=3, categories=4)], CPU, images=IMAGES)
    parts = [(None, part.log().unsqueeze(0)) for part in rows.split(3)]
    monkeypatch.setattr(model, "test_batches", lambda size: iter(parts))
    found = {name: x.item() for name, x in measures._use_of_the_code(model).items()}
    assert (found["active_units"], found["informative_units"]) == (2, 2)
    assert found["distinct_codes"] == 2

    def entropy(*q):
        return -sum(x * math.log(x) for x in q)

    mean = entropy(0.655, 0.145, 0.1, 0.1)
    moved = mean - (3 * entropy(0.7, 0.1, 0.1, 0.1) + entropy(0.52, 0.28, 0.1, 0.1)) / 4
    assert 0.01 < moved < 0.03
    assert found["information"] == pytest.approx(math.log(2) + moved, rel=1e-5)
    assert found["code_entropy"] == pytest.approx((math.log(4) + math.log(2) + mean) / 3)


def test_a_model_has_the_same_numbers_alone_and_with_others(monkeypatch):
    for name, value in (("SAMPLES", 30), ("_DRAWN", 8), ("_IMAGES", 15)):
        monkeypatch.setattr(measures, name, value)
    runs = [run("st", seed=1), run("reinmax", seed=1, tau=1.3), run("stgs", seed=5)]
    steps, draw = [], Noise.categories

    def counted(self, logits, repeats):
        steps.append((int(self.counter), repeats))
        return draw(self, logits, repeats=repeats)

    with monkeypatch.context() as patch:
        patch.setattr(Noise, "categories", counted)
        together = measure(scaled(monkeypatch, *runs))
    # on a GPU the numbers are those of the step
    assert steps == [(n, 6 if n % 4 == 3 else 8) for n in range(8)]
    assert list(together) == [metric.name for metric in measures.MEASURES.metrics]
    for member, one in enumerate(runs):
        for name, values in measure(scaled(monkeypatch, one)).items():
            torch.testing.assert_close(values[0], together[name][member], rtol=1e-5, atol=1e-9)
    # the same weights and the same seed, whatever trained them
    assert together["test_bound"][0].item() == pytest.approx(together["test_bound"][1].item())
    assert together["test_bound"][0] != together["test_bound"][2]


def test_prior_samples_are_means_of_uniform_codes(monkeypatch):
    model = VaeModel([run(seed=1), run(seed=2)], CPU, images=IMAGES)
    codes = []
    monkeypatch.setattr(
        vae, "_pixels", lambda decoder, z: codes.append(z) or decoder(z.flatten(-2))
    )
    means = model.prior_samples(3000)
    assert means.shape == (2, 3000, 784)
    assert ((means >= 0) & (means <= 1)).all()
    shares = codes[0].mean(1)
    assert (shares - 1 / CATEGORIES).abs().max() < 5 * (2 / 9 / 3000) ** 0.5
    assert torch.equal(model.prior_samples(3000), means)


# many models, from the store


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Four finished runs of a VAE, and two that were never trained."""
    monkeypatch.setattr(vae, "load_mnist", lambda data: IMAGES)
    monkeypatch.setattr(tasks, "_extra", {RECIPE.name: RECIPE, TINY.name: TINY})
    monkeypatch.setattr(measures, "SAMPLES", 20)
    monkeypatch.chdir(tmp_path)
    trained = execute(RECIPE.runs(estimators=["st", "reinmax"]), Store("runs"), device="cpu")
    assert trained.complete
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, [*arguments])


CHOSEN = ("measure", RECIPE.name, "--estimators", "st,reinmax", "--device", "cpu")


def numbers():
    rows = read(Path("results") / RECIPE.name).rows
    return {row.identity: row.measured.values for row in rows if row.measured}


def test_a_command_that_was_cut_off_goes_on(place, monkeypatch):
    assert call(*CHOSEN).exit_code == 0
    whole = numbers()
    assert len(whole) == 4
    folder = place / "results" / RECIPE.name
    (folder / MEASURES).rename(place / "old.csv")
    (folder / "checksums.json").unlink()
    measured, most, stack = [], 2, measuring._measure_stack

    def counted(runs, *others):
        if len(measured) == most:
            raise KeyboardInterrupt
        measured.extend(runs)
        return stack(runs, *others)

    monkeypatch.setattr(measuring, "_measure_stack", counted)
    assert call(*CHOSEN, "--largest-stack", "1").exit_code == 130
    assert set(numbers()) == {one.identity for one in measured}
    most = None
    assert call(*CHOSEN).exit_code == 0
    # each of them once
    assert len(measured) == len(set(measured)) == 4
    for identity, values in numbers().items():
        # six digits are kept, and sizes of stacks round products differently
        assert values == pytest.approx(whole[identity], rel=1e-4)
    # nothing is left, and a report keeps what there is
    assert "0 models to measure, 4 measured before" in call(*CHOSEN).stdout
    assert call("report", RECIPE.name, "-q").exit_code == 0
    assert len(numbers()) == 4
    assert call("report", "--check").exit_code == 0
    report = (folder / "report.md").read_text()
    assert "| test bound, 1,000 samples |" in report
    assert "no likelihood" in report
    content = bytearray((folder / MEASURES).read_bytes())
    content[-30] ^= 1
    (folder / MEASURES).write_bytes(content)
    checked = call("report", "--check")
    assert checked.exit_code == 1
    assert MEASURES in checked.stderr


def test_a_part_keeps_what_was_measured_of_the_others(place):
    whole = [*CHOSEN[:2], "--device", "cpu"]
    for key in ("st", "reinmax"):
        assert call(*whole, "--estimators", key).exit_code == 0
    before = numbers()
    assert len(before) == 4
    for options in (["--seeds", "1"], ["--estimators", "stgs"]):
        assert call("report", RECIPE.name, *options, "-q").exit_code == 0
        assert numbers() == before
    assert call("report", "--check").exit_code == 0


@pytest.mark.parametrize("options", [(), CHOSEN[2:4]])
def test_what_others_report_meanwhile_stays(place, monkeypatch, options):
    """Runs of STGS are trained and reported while the first model is measured."""
    stack, measured = measuring._measure_stack, []

    def slow(runs, *others):
        if not measured:
            assert execute(RECIPE.runs(estimators=["stgs"]), Store("runs"), device="cpu").complete
            assert call("report", RECIPE.name, "-q").exit_code == 0
        measured.extend(runs)
        return stack(runs, *others)

    monkeypatch.setattr(measuring, "_measure_stack", slow)
    call("measure", RECIPE.name, *options, "--device", "cpu", "--largest-stack", "1")
    assert len(measured) == len(numbers()) == 4
    rows = read(Path("results") / RECIPE.name).rows
    assert [row.state for row in rows] == ["finished"] * 6
    assert call("report", "--check").exit_code == 0


def test_what_cannot_be_measured_is_named(place):
    first = next(one for one in RECIPE.runs() if one.estimator == "st")
    (checkpoint,) = Store("runs").directory(first).glob("checkpoint-*")
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    result = call(*CHOSEN)
    assert result.exit_code == 1
    assert checkpoint.name in result.stderr
    assert len(numbers()) == 3
    checkpoint.write_bytes(whole)
    # those of STGS were never trained
    result = call("measure", RECIPE.name, "--device", "cpu")
    assert result.exit_code == 3
    assert "got 2 runs without a final checkpoint" in result.stderr.replace("\n", " ")
    assert len(numbers()) == 4
    result = call("measure", RECIPE.name, "--estimators", "stgs")
    assert result.exit_code == 2
    assert "expected finished runs of digits in runs, got none" in result.stderr
    result = call("measure", TINY.name)
    assert result.exit_code == 2
    assert "measures finished models (vae, listops), got runs of polynomial" in result.stderr
    assert call("measure", RECIPE.name, "--budget", "soon").exit_code == 2


SEARCH = """
from dataclasses import replace

from discretegrad_lab import Halving, Rung
from test_lab_pictures import RECIPE, built


def build(estimator, seed):
    for tau in (0.7, 1.0):
        yield from (replace(run, tau=tau, epochs=2) for run in built(estimator, seed))


RECIPE = replace(
    RECIPE,
    name="taus",
    build=build,
    data=(),
    estimators=("reinmax", "stgs"),
    halving=Halving("train", ("tau",), (Rung(1),)),
)
"""


def test_runs_that_a_search_dropped_have_no_model_to_measure(place, monkeypatch):
    monkeypatch.setattr(tasks, "_extra", {})
    Path("my_search.py").write_text(SEARCH)
    assert call("run", "my_search.py", "--device", "cpu", "--seeds", "1-1").exit_code == 0
    result = call("measure", "my_search.py", "--seeds", "1-1", "--device", "cpu")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = read(Path("results") / "taus").rows
    assert sorted(row.state for row in rows) == ["dropped"] * 2 + ["finished"] * 2
    assert all((row.measured is None) == (row.state == "dropped") for row in rows)
    # those of another seed were never begun
    result = call("measure", "my_search.py", "--seeds", "1-2", "--device", "cpu")
    assert result.exit_code == 3
    result = call("measure", "my_search.py", "--seeds", "2-2", "--device", "cpu")
    assert result.exit_code == 2
    assert "train them with `discretegrad run my_search.py --seeds 2-2`" in result.stderr


def test_a_budget_leaves_models_for_later(place):
    result = call(*CHOSEN, "--budget", "0.000001s")
    assert result.exit_code == 3
    assert "the budget ended with 4 models left" in result.stderr
    assert not Path("results").exists()


def test_nothing_is_written_without_the_images(place, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(place)
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    monkeypatch.setattr(tasks, "_extra", {RECIPE.name: RECIPE})
    result = call(*CHOSEN)
    assert result.exit_code == 2
    assert "discretegrad data fetch mnist" in result.stderr
    assert not Path("results").exists()


def test_a_stored_model_of_other_sizes_is_refused():
    model = VaeModel([run()], CPU, images=IMAGES)
    other = VaeModel([run(latents=5)], CPU, images=IMAGES)
    state = {f"parameters/{name}": x[0].detach() for name, x in other.parameters.items()}
    before = model.parameters["encoder.0.weight"].clone()
    with pytest.raises(ValueError, match=r"parameters encoder\.4\.weight of the shape \(6, 256\)"):
        model.load_parameters(0, state)
    with pytest.raises(ValueError, match="got none; move the run away"):
        model.load_parameters(0, {})
    assert torch.equal(model.parameters["encoder.0.weight"], before)


def test_numbers_of_a_model_that_was_trained_again_are_left_out(tmp_path):
    rows = [
        Row(
            one.identity,
            configuration(one),
            "finished",
            1,
            {"train": 100 + one.seed},
            measured=Measured({"test_bound": 99.0 - one.seed, "mine": 2.5}, "abc", "", "GPU", "2"),
        )
        for one in (run(seed=0), run(seed=1))
    ]
    results = Results("digits", tuple(rows))
    write(results, tmp_path / "digits")
    assert read(tmp_path / "digits").rows == results.rows
    again = dataclasses.replace(rows[0], metrics={"train": 100.01}, measured=None)
    same = dataclasses.replace(rows[1], measured=None)
    kept = keep_measured(Results("digits", (again, same)), read(tmp_path / "digits"))
    assert [row.measured is None for row in kept.rows] == [True, False]
    # a metric that no task here knows is shown by its name
    (table,) = measured_tables(of_recipe(RECIPE), results)
    assert table.headings == ("", "test bound, 1,000 samples", "mine", "models")
    assert table.rows[0][0] == "ST"
    assert table.rows[0][-1] == "2"
    write(Results("digits", (again,)), tmp_path / "digits")
    assert [row.measured for row in read(tmp_path / "digits").rows] == [None]


def test_the_guess_of_the_memory():
    one = run(latents=30, categories=10)
    model = VaeModel([one], CPU, images=IMAGES)
    ((x, logits),) = model.test_batches(measures._IMAGES)
    assert x.shape[1] == 20
    with torch.no_grad(), Memory() as step:
        index = model.begin_aside(6).categories(logits, repeats=500)
        log_weights(model.decode, x, logits, index)
    weights = sum(x.nbytes for x in model.parameters.values())
    assert step.peak + weights < measures.memory(one) < 2 * (step.peak + weights)
