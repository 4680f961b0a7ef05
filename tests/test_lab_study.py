"""The study of docs/diagnosing.md: it runs, and page and pictures show what is stored."""

import math
import re

import pytest
import torch
from PIL import Image

import discretegrad
import oracles
from discretegrad import diagnose
from discretegrad_lab.tasks.vae.study import __main__ as program
from discretegrad_lab.tasks.vae.study import measure, page, rows

pytestmark = pytest.mark.filterwarnings("ignore:.*is unusual")  # small temperatures on purpose
CLOSE = {"rtol": 1e-4, "atol": 1e-3}
SETTINGS = measure.MINIATURE


# as the workers of the study: sums in another order would show in a bias near zero
one_thread = pytest.fixture(autouse=True)(oracles.one_thread)


@pytest.fixture(scope="module")
def stored():
    return rows.read(page.STORED)


@pytest.fixture(scope="module")
def text():
    return page.PAGE.read_text(encoding="utf-8")


def pixels():
    generator = torch.Generator().manual_seed(0)
    train, test = (
        torch.randint(256, (count, 784), generator=generator, dtype=torch.uint8)
        for count in (40, 20)
    )
    return measure.Pixels(train, torch.arange(40) % 10, test)


# the study


@pytest.fixture(scope="module")
def quick():
    """The whole study in miniature."""
    return measure.measure(pixels(), SETTINGS, workers=2)


def test_a_miniature_measures_every_candidate_at_every_stop(quick):
    labels = [choice.label for choice in measure.candidates()]
    for step in (0, 20):
        assert [row.label for row in quick.gradients if row.step == step] == labels
    assert {row.step for row in quick.gradients} == {0, 20}
    decided = rows.decide(quick.gradients).label
    trained = {row.label for row in quick.training}
    assert trained == {decided, *(choice.label for choice in measure.ALTERNATIVES)}
    assert {row.seed for row in quick.training} == {0, 1}
    # at the start all pixels are likely to be wrong; noise of 40 images is learned fast
    assert all(400 < row.train < 560 for row in quick.training)
    known = {"command", "date", "discretegrad", "torch", "machine", "workers", "data", "seeds"}
    assert known <= set(quick.about)


def test_training_does_not_depend_on_the_number_of_workers(monkeypatch, quick):
    # diagnosing takes most of the time and has its own test
    monkeypatch.setattr(measure, "diagnosed", lambda *_: quick.gradients)
    assert measure.measure(pixels(), SETTINGS, workers=1).training == quick.training


def test_the_rows_are_those_of_diagnose(quick):
    x = pixels().train[:10] / 255  # the first image of each digit
    model = measure.SmallVae(measure.SEED)
    result = diagnose(
        model.logits(x).detach(),
        model.reconstruction(x),
        [("reinmax", {"tau": 1.3}), ("leave_one_out", {"num_samples": 4})],
        num_draws=32,
        generator=torch.Generator().manual_seed(measure.SEED),
        chunk_size=256,
    )
    norm = result.gradient_norm
    for expected in result.rows:
        (row,) = [r for r in quick.gradients if r.step == 0 and r.label == expected.label]
        for found, value in (
            (row.gradient_norm, norm),
            (row.bias, expected.bias / norm),
            (row.bias_bound, expected.bias_bound / norm),
            (row.deviation, math.sqrt(expected.variance) / norm),
            (row.cosine, expected.cosine),
            (row.cosine_of_mean, expected.cosine_of_mean),
            (row.evaluations, expected.evaluations),
            (row.slopes, expected.slopes),
        ):
            assert found == pytest.approx(value, rel=1e-3, abs=1e-6), expected.label
        assert row.bias_detected is expected.bias_detected


def test_the_negative_elbo_is_exact(generator):
    model = measure.SmallVae(0)
    # far from the start, where all outcomes are alike
    for parameter in model.parameters():
        parameter.data.mul_(3)
    pixels = torch.randint(256, (3, 784), dtype=torch.uint8, generator=generator)
    images = pixels / 255
    with torch.no_grad():
        logits = model.logits(images)
        f = model.reconstruction(images)
        expected = discretegrad.exact_expectation(logits, f, vectorize=True) + measure.divergence(
            logits
        )
        z = discretegrad.reinmax(logits, generator=generator)
        bernoulli = torch.nn.functional.binary_cross_entropy_with_logits(
            model.decoder(z.flatten(-2)), images, reduction="none"
        ).sum(-1)
        found = measure.negative_elbo(model, pixels)
    torch.testing.assert_close(f(z), bernoulli, **CLOSE)
    assert found == pytest.approx(expected.mean().item(), rel=1e-5)
    uniform = torch.distributions.Categorical(logits=torch.zeros_like(logits))
    kl = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits), uniform
    ).sum(-1)
    torch.testing.assert_close(measure.divergence(logits), kl, **CLOSE)


def row(label, step=0, bias=0.0, deviation=1.0, evaluations=1, detected=True, samples=1):
    return rows.GradientRow(
        step, 1.0, 1.0, label, label.split()[0], None, samples, evaluations, 0,
        bias, 2 * bias, detected, deviation, 0.5, 0.1, 0.9, 0.1,
    )  # fmt: skip


def test_the_error_for_a_budget():
    biased = row("a", bias=0.3, deviation=4.0, evaluations=2)
    assert biased.error(200) == pytest.approx(math.sqrt(0.3**2 + 4.0**2 * 2 / 200))
    assert biased._replace(bias_detected=False).error(200) == pytest.approx(0.4)
    both = [row("a", 0, bias=0.3, deviation=0.0), row("a", 9, bias=0.4, deviation=0.0)]
    assert rows.errors(both) == {"a": pytest.approx(math.sqrt((0.09 + 0.16) / 2))}


def test_the_decision_weighs_bias_and_noise_and_prefers_few_samples():
    steady = row("steady", bias=0.5, deviation=1.0)
    noisy = row("noisy", bias=0.0, deviation=5.0)
    assert rows.decide([steady, noisy], budget=1) == steady
    assert rows.decide([steady, noisy], budget=1000) == noisy
    # the same for the same price: one sample is enough
    four = row("noisy K=4", deviation=2.49, evaluations=4, samples=4)
    assert rows.decide([noisy, four], budget=1000) == noisy
    better = four._replace(deviation=2.4)
    assert rows.decide([noisy, better], budget=1000) == better
    # another estimator that is a little worse does not win for having fewer samples
    assert rows.decide([row("other", deviation=4.81), better], budget=1000) == better


# the stored study, the page and the pictures


def test_the_stored_study_is_whole(stored):
    steps = int(stored.about["steps"])
    stops = sorted({round(share * steps) for share in measure.Settings().stops})
    labels = [choice.label for choice in measure.candidates()]
    assert [(row.step, row.label) for row in stored.gradients] == [
        (step, label) for step in stops for label in labels
    ]
    assert stored.about["draws"] == "1024"
    runs = [row.label for row in stored.training]
    assert {runs.count(label) for label in runs} == {int(stored.about["seeds"])}
    assert int(stored.about["seeds"]) >= 5
    decided = rows.decide(stored.gradients).label
    assert set(runs) == {decided, *(choice.label for choice in measure.ALTERNATIVES)}
    # what is unbiased was found so: 1 in 1000 would be a false alarm
    for row in stored.gradients:
        if discretegrad.get(row.estimator).unbiased:
            assert not row.bias_detected, (row.step, row.label)


def test_files_tables_and_pictures_are_those_of_the_stored_study(stored, text, tmp_path):
    rows.write(tmp_path, stored)
    for name in (rows.GRADIENTS, rows.TRAINING):
        assert (tmp_path / name).read_text() == (page.STORED / name).read_text()
    remedy = "python -m discretegrad_lab.tasks.vae.study --render"
    assert sorted(re.findall(r"begin generated: (\w+)", text)) == sorted(page.tables(stored))
    assert text == page.updated(stored, text), remedy
    for name in (page.COSINE_PICTURE, page.TRADE_OFF_PICTURE):
        assert Image.open(page.PICTURES / name).text["Source"] == page.digest(stored), remedy


def test_showing_the_stored_study_again_runs_nothing(tmp_path, monkeypatch, text, capsys):
    copied = tmp_path / "page.md"
    copied.write_text(text, encoding="utf-8")
    monkeypatch.setattr(page, "PAGE", copied)
    monkeypatch.setattr(page, "PICTURES", tmp_path)
    monkeypatch.setattr(program, "measure", lambda *_: pytest.fail("it ran"))
    assert program.main(["--render"]) == 0
    assert "Decision" in capsys.readouterr().out
    assert copied.read_text(encoding="utf-8") == text
    assert (tmp_path / page.COSINE_PICTURE).stat().st_size > 10_000


def test_without_data_it_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    assert program.main(["--data", str(tmp_path), "--quick"]) == 2
    assert "run `discretegrad data fetch mnist`" in capsys.readouterr().err


def test_the_figures_show_the_rows(stored):
    for ax, name in zip(page.draw_cosine(stored).axes, ("cosine_of_mean", "cosine"), strict=True):
        shown = {bar.get_label(): bar.lines[0] for bar in ax.containers}
        assert tuple(shown) == page.CURVES
        for label, line in shown.items():
            points = [(r.step, getattr(r, name)) for r in stored.gradients if r.label == label]
            assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == points
    (ax,) = page.draw_trade_off(stored).axes
    markers = [line for line in ax.lines if line.get_marker() in ("o", "<")]
    drawn = {xy for m in markers for xy in zip(m.get_xdata(), m.get_ydata(), strict=True)}
    last = rows.at_last_stop(stored.gradients)
    assert drawn == {(r.bias if r.bias_detected else r.bias_bound, price(r)) for r in last}


def price(row):
    return row.deviation * math.sqrt(row.evaluations)


# what the page says in words


def test_the_rule_of_the_page_is_the_one_that_decides(stored, text):
    words = re.sub(r"\s+", " ", text)
    assert "root mean square, over the six stops, of the error for n = 1000 evaluations" in words
    assert "fewer samples unless more are better by 2 %" in words
    assert (rows.BUDGET, rows.TIE, len(measure.Settings().stops)) == (1000, 0.02, 6)
    decided = rows.decide(stored.gradients)
    assert f"**Decision: `{decided.estimator}`, which has no temperature, 8 samples" in words
    assert (decided.label, decided.tau) == ("leave_one_out K=8", None)
    assert rows.decide(stored.gradients, 100).label == "reinmax tau=1.0"
    assert rows.decide(stored.gradients, 1).estimator == "straight_through"


def test_what_the_page_says_of_the_gradients_is_true(stored):
    last = {row.label: row for row in rows.at_last_stop(stored.gradients)}
    kinds = {label: discretegrad.get(row.estimator).kind for label, row in last.items()}
    samplers = [last[label] for label in page.CURVES if kinds[label] == "sampler"]
    assert max(samplers, key=lambda row: row.cosine_of_mean).label == "reinmax tau=1.0"
    assert max(row.cosine for row in samplers) < 0.01
    for name in ("leave_one_out", "disarm_tree"):
        assert last[f"{name} K=2"].cosine_of_mean > 0.98
    at = {(row.step, row.label): row for row in stored.gradients}
    assert at[200, "straight_through tau=1.0"].cosine_of_mean < 0.5
    best_of_one = min(samplers, key=lambda row: math.hypot(row.bias, row.deviation))
    assert best_of_one.label == "straight_through tau=1.0"
    error, noise = rows.errors(stored.gradients), rows.errors(stored.gradients, 1)
    assert min((x for x in last if last[x].evaluations == 1), key=error.get) == "reinmax tau=1.0"
    assert noise["leave_one_out K=8"] == pytest.approx(noise["reinmax tau=1.0"], rel=0.1)


def test_what_the_page_says_of_temperatures_and_samples_is_true(stored):
    error = rows.errors(stored.gradients)
    _, *lines = page.temperatures(stored)
    bold = {line[0]: [cell.startswith("**") for cell in line[1:]].index(True) for line in lines}
    best = {name.strip("`"): measure.TAUS[place] for name, place in bold.items()}
    assert best["reinmax"] == 1.0
    assert best["gumbel_softmax"] == best["gumbel_rao"] == min(measure.TAUS)
    flat = [error[f"straight_through tau={tau}"] for tau in measure.TAUS if tau >= 0.7]
    assert max(flat) < 1.2 * min(flat)
    prices = {row.label: price(row) for row in rows.at_last_stop(stored.gradients)}
    reinmax, tree = "reinmax tau=1.0", "disarm_tree"
    assert prices[f"{reinmax} K=8"] == pytest.approx(prices[reinmax], rel=0.05)
    assert prices[f"{tree} K=8"] == pytest.approx(prices[f"{tree} K=2"], rel=0.05)
    out = [prices[f"leave_one_out K={k}"] for k in (8, 4, 2)]
    assert out == sorted(out)
    assert out[1] < prices[f"{tree} K=4"]
    assert prices[f"{tree} K=2"] < out[2]


def test_what_the_page_says_of_the_training_is_true(stored):
    runs = {}
    for row in stored.training:
        runs.setdefault(row.label, []).append(row.test)
    mean = {label: sum(tests) / len(tests) for label, tests in runs.items()}
    error = rows.errors(stored.gradients)
    assert sorted(mean, key=mean.get) == sorted(mean, key=error.get)

    def difference(label, other):
        """Of runs with the same seed: the mean, in standard errors."""
        pairs = torch.tensor(runs[label]) - torch.tensor(runs[other])
        return (pairs.mean() / (pairs.std() / len(pairs) ** 0.5)).item()

    for label in ("leave_one_out K=8", "leave_one_out K=4"):
        assert -2.5 < difference(label, "reinmax tau=1.0") < -1.5
    assert -2 < difference("leave_one_out K=4", "reinmax tau=1.0 K=4") < 0
    assert abs(difference("leave_one_out K=8", "leave_one_out K=4")) < 1
    assert difference("gumbel_softmax tau=0.5", "reinmax tau=1.0") > 2.5
    worst = runs.pop("straight_through tau=1.0")
    assert min(worst) > max(runs["reinmax tau=1.0"])
    assert max(worst) > 30 + max(map(max, runs.values()))
