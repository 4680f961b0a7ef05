"""The VAE of docs/diagnosing.md: the study runs, and page and pictures show what is stored."""

import gzip
import importlib.util
import math
import re
import struct
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import discretegrad

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "diagnose_vae.py"
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TOLERANCES = {
    "float32": {"rtol": 1e-4, "atol": 1e-3},
    "stored": 1e-5,  # six digits
}


@pytest.fixture(autouse=True)
def one_thread():
    """As the workers of the script: sums in another order would show in a bias near zero."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def vae():
    spec = importlib.util.spec_from_file_location("diagnose_vae", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stored(vae):
    return vae.read(vae.STORED)


@pytest.fixture(scope="module")
def page(vae):
    return vae.PAGE.read_text(encoding="utf-8")


# tiny files in the format of MNIST


def idx(values):
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + bytes(values.flatten().tolist()))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 40), ("t10k", 20)):
        pixels = torch.randint(256, (count, 28, 28), generator=generator)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(torch.arange(count) % 10))
    return folder


@pytest.fixture
def damaged(data, tmp_path):
    """A copy of the files to spoil."""
    for path in data.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


# the study


@pytest.fixture(scope="module")
def quick(vae, data, tmp_path_factory):
    """A run of the whole script in miniature: its folder and what it stored."""
    folder = tmp_path_factory.mktemp("quick")
    arguments = ["--data", str(data), "--quick", "--seed", "3", "--output", str(folder)]
    assert vae.main(arguments) == 0
    return folder, vae.read(folder)


def test_a_quick_run_measures_every_candidate_at_every_stop(vae, quick):
    _, study = quick
    labels = [choice.label for choice in vae.candidates()]
    for step in (0, 20):
        assert [row.label for row in study.gradients if row.step == step] == labels
    assert {row.step for row in study.gradients} == {0, 20}
    decided = vae.decide(study.gradients).label
    trained = {row.label for row in study.training}
    assert trained == {decided, *(choice.label for choice in vae.ALTERNATIVES)}
    assert {row.seed for row in study.training} == {3, 4}
    # at the start all pixels are likely to be wrong; noise of 40 images is learned fast
    assert all(400 < row.train < 560 for row in study.training)


def test_a_quick_run_draws_both_figures_and_says_how_it_was_made(vae, quick, data):
    folder, study = quick
    for name in (vae.COSINE_PICTURE, vae.TRADE_OFF_PICTURE):
        assert Image.open(folder / name).text["Source"] == vae.digest(study)
    keys = {"command", "date", "discretegrad", "torch", "machine", "workers", "data", "first seed"}
    assert keys <= set(study.about)
    assert study.about["command"].startswith("python examples/diagnose_vae.py --data DIR --quick")
    assert str(data) not in (folder / vae.GRADIENTS).read_text()
    assert not list(folder.glob("*.partial"))


def test_training_does_not_depend_on_the_number_of_workers(vae, data, tmp_path, monkeypatch, quick):
    # diagnosing takes most of the time and has its own test
    monkeypatch.setattr(vae, "diagnose_all", lambda *_: quick[1].gradients)
    arguments = ["--data", str(data), "--quick", "--seed", "3", "--output", str(tmp_path)]
    assert vae.main([*arguments, "--workers", "1"]) == 0
    assert vae.read(tmp_path).training == quick[1].training


def test_the_rows_are_those_of_diagnose(vae, data, quick):
    study = quick[1]
    images = vae.read_images(data)
    x = images.train[:10] / 255  # the first image of each digit
    model = vae.new_model(3)
    result = discretegrad.diagnose(
        model.reconstruction(x),
        model.logits(x).detach(),
        [("reinmax", {"tau": 1.3}), ("leave_one_out", {"num_samples": 4})],
        num_draws=32,
        generator=torch.Generator().manual_seed(3),
        chunk_size=256,
    )
    for expected in result.rows:
        (row,) = [r for r in study.gradients if r.step == 0 and r.label == expected.label]
        norm = result.gradient_norm
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


def test_the_negative_elbo_is_exact(vae, generator):
    model = vae.new_model(0)
    # far from the start, where all outcomes are alike
    for parameter in model.parameters():
        parameter.data.mul_(3)
    pixels = torch.randint(256, (3, 784), dtype=torch.uint8, generator=generator)
    images = pixels / 255
    with torch.no_grad():
        logits = model.logits(images)
        f = model.reconstruction(images)
        expected = discretegrad.exact_expectation(logits, f, vectorize=True) + vae.divergence(
            logits
        )
        z = discretegrad.reinmax(logits, generator=generator)
        bernoulli = torch.nn.functional.binary_cross_entropy_with_logits(
            model.decoder(z.flatten(-2)), images, reduction="none"
        ).sum(-1)
        found = vae.negative_elbo(model, pixels)
    torch.testing.assert_close(f(z), bernoulli, **TOLERANCES["float32"])
    assert found == pytest.approx(expected.mean().item(), rel=1e-5)
    uniform = torch.distributions.Categorical(logits=torch.zeros_like(logits))
    kl = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits), uniform
    ).sum(-1)
    torch.testing.assert_close(vae.divergence(logits), kl, **TOLERANCES["float32"])


def row(vae, label, step=0, bias=0.0, deviation=1.0, evaluations=1, detected=True, samples=1):
    return vae.GradientRow(
        step, 1.0, 1.0, label, label.split()[0], None, samples, evaluations, 0,
        bias, 2 * bias, detected, deviation, 0.5, 0.1, 0.9, 0.1,
    )  # fmt: skip


def test_the_error_for_a_budget(vae):
    biased = row(vae, "a", bias=0.3, deviation=4.0, evaluations=2)
    assert biased.error(200) == pytest.approx(math.sqrt(0.3**2 + 4.0**2 * 2 / 200))
    assert biased._replace(bias_detected=False).error(200) == pytest.approx(0.4)
    rows = [row(vae, "a", 0, bias=0.3, deviation=0.0), row(vae, "a", 9, bias=0.4, deviation=0.0)]
    assert vae.errors(rows) == {"a": pytest.approx(math.sqrt((0.09 + 0.16) / 2))}


def test_the_decision_weighs_bias_and_noise_and_prefers_few_samples(vae):
    steady = row(vae, "steady", bias=0.5, deviation=1.0)
    noisy = row(vae, "noisy", bias=0.0, deviation=5.0)
    assert vae.decide([steady, noisy], budget=1) == steady
    assert vae.decide([steady, noisy], budget=1000) == noisy
    # the same for the same price: one sample is enough
    four = row(vae, "noisy K=4", deviation=2.49, evaluations=4, samples=4)
    assert vae.decide([noisy, four], budget=1000) == noisy
    better = four._replace(deviation=2.4)
    assert vae.decide([noisy, better], budget=1000) == better
    # another estimator that is a little worse does not win for having fewer samples
    assert vae.decide([row(vae, "other", deviation=4.81), better], budget=1000) == better


# what a user can get wrong


def spoil(folder, name, change):
    path = folder / name
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / TRAIN_IMAGES).unlink(), r"train-images-idx3-ubyte\.gz is missing\. Put"),
        (
            lambda d: (d / TRAIN_IMAGES).write_bytes((d / TRAIN_IMAGES).read_bytes()[:2000]),
            "damaged .* get the file again.* Unpacking",
        ),
        (lambda d: (d / TRAIN_IMAGES).write_bytes(b"no gzip"), "damaged .* Unpacking"),
        (lambda d: spoil(d, TRAIN_IMAGES, lambda x: x[:-1]), r"\(40, 28, 28\), and 31359 bytes"),
        (lambda d: spoil(d, TRAIN_IMAGES, lambda x: x[:6]), "does not begin like an idx file"),
        (lambda d: spoil(d, TRAIN_LABELS, lambda x: b"\1" + x[1:]), "does not begin like an idx"),
        (
            lambda d: (d / TRAIN_IMAGES).write_bytes(idx(torch.zeros(40, 14, 56, dtype=torch.int))),
            r"expected \(images, 28, 28\)",
        ),
        (
            lambda d: (d / TRAIN_LABELS).write_bytes(idx(torch.arange(39) % 10)),
            "40 images and 39 labels",
        ),
        (
            lambda d: (d / TRAIN_LABELS).write_bytes(idx(torch.arange(40) % 8)),
            "no training image of 8, 9",
        ),
    ],
    ids=[
        "missing", "cut off", "not gzip", "too short", "no head", "wrong head", "wrong shape",
        "wrong count", "digits",
    ],
)  # fmt: skip
def test_bad_data_is_refused_with_a_remedy(vae, damaged, capsys, change, message):
    change(damaged)
    with pytest.raises(vae.DataError, match=message):
        vae.read_images(damaged)
    assert vae.main(["--data", str(damaged), "--quick"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_folder_that_does_not_exist(vae, tmp_path, capsys):
    assert vae.main(["--data", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert "there is no folder" in error
    assert TRAIN_IMAGES in error


def test_help_and_wrong_arguments(vae, capsys):
    with pytest.raises(SystemExit, match="0"):
        vae.main(["--help"])
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert "negative ELBO" in shown
    for arguments, message in (
        ([], "--data DIR is needed"),
        (["--data", "x", "--steps", "0"], "at least 1"),
        (["--data", "x", "--estimator", "relax"], "invalid choice"),
    ):
        with pytest.raises(SystemExit, match="2"):
            vae.main(arguments)
        assert message in capsys.readouterr().err


def test_the_folder_of_the_data_is_not_written_down(vae):
    for arguments in (["--data", "private", "--seed", "1"], ["--data=private", "--seed", "1"]):
        options = vae._parse(arguments)
        assert "private" not in options.command
        assert options.command.endswith("--seed 1")


# the stored study, the page and the pictures


def test_the_stored_study_is_whole(vae, stored):
    steps = int(stored.about["steps"])
    stops = sorted({round(share * steps) for share in vae.STOPS})
    labels = [choice.label for choice in vae.candidates()]
    assert [(row.step, row.label) for row in stored.gradients] == [
        (step, label) for step in stops for label in labels
    ]
    assert stored.about["draws"] == "1024"
    runs = [row.label for row in stored.training]
    assert {runs.count(label) for label in runs} == {int(stored.about["seeds"])}
    assert int(stored.about["seeds"]) >= 5
    decided = vae.decide(stored.gradients).label
    assert set(runs) == {decided, *(choice.label for choice in vae.ALTERNATIVES)}
    # what is unbiased was found so: 1 in 1000 would be a false alarm
    for row in stored.gradients:
        if discretegrad.get(row.estimator).unbiased:
            assert not row.bias_detected, (row.step, row.label)


def test_the_stored_files_are_read_and_written_without_loss(vae, stored, tmp_path):
    vae.write(tmp_path, stored)
    for name in (vae.GRADIENTS, vae.TRAINING):
        assert (tmp_path / name).read_text() == (vae.STORED / name).read_text()


def test_the_tables_of_the_page_are_current(vae, stored, page):
    names = re.findall(r"begin generated: (\w+)", page)
    assert sorted(names) == sorted(vae.tables(stored))
    assert page == vae.page(stored, page), "python examples/diagnose_vae.py --render"


def test_the_stored_pictures_show_the_stored_study(vae, stored):
    for name in (vae.COSINE_PICTURE, vae.TRADE_OFF_PICTURE):
        source = Image.open(vae.PICTURES / name).text["Source"]
        assert source == vae.digest(stored), "python examples/diagnose_vae.py --render"


def test_the_figure_over_training_shows_the_rows(vae, stored):
    figure = vae.draw_cosine(stored)
    for ax, name in zip(figure.axes, ("cosine_of_mean", "cosine"), strict=True):
        shown = {bar.get_label(): bar.lines[0] for bar in ax.containers}
        assert tuple(shown) == vae.CURVES
        for label, line in shown.items():
            rows = [row for row in stored.gradients if row.label == label]
            assert list(line.get_xdata()) == [row.step for row in rows]
            assert list(line.get_ydata()) == [getattr(row, name) for row in rows]


def test_the_figure_of_bias_and_deviation_shows_the_rows(vae, stored):
    (ax,) = vae.draw_trade_off(stored).axes
    drawn = {
        point
        for line in ax.lines
        if line.get_marker() in ("o", "<")
        for point in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    expected = {
        (
            row.bias if row.bias_detected else row.bias_bound,
            row.deviation * math.sqrt(row.evaluations),
        )
        for row in vae.at_last_stop(stored.gradients)
    }
    assert drawn == expected


def test_showing_the_stored_study_again_runs_nothing(vae, tmp_path, monkeypatch, capsys):
    text = vae.PAGE.read_text(encoding="utf-8")
    copied = tmp_path / "page.md"
    copied.write_text(text, encoding="utf-8")
    monkeypatch.setattr(vae, "PAGE", copied)
    monkeypatch.setattr(vae, "PICTURES", tmp_path)
    monkeypatch.setattr(vae, "measure", lambda *_: pytest.fail("it ran"))
    assert vae.main(["--render"]) == 0
    assert "Decision" in capsys.readouterr().out
    assert copied.read_text(encoding="utf-8") == text
    assert (tmp_path / vae.COSINE_PICTURE).stat().st_size > 10_000


# what the page says in words


def test_the_decision_is_the_best_by_the_rule_of_the_page(vae, stored, page):
    words = re.sub(r"\s+", " ", page)
    assert "root mean square, over the six stops, of the error for n = 1000 evaluations" in words
    assert "fewer samples unless more are better by 2 %" in words
    squares = {}
    for row in stored.gradients:
        bias = row.bias if row.bias_detected else 0.0
        square = bias**2 + row.deviation**2 * row.evaluations / 1000
        squares.setdefault(row.label, []).append(square)
    error = {label: math.sqrt(sum(s) / len(s)) for label, s in squares.items()}
    assert {len(s) for s in squares.values()} == {6}
    best = min(error, key=error.get)
    rows = {row.label: row for row in stored.gradients}
    alike = [
        rows[label]
        for label in error
        if label.split(" K=")[0] == best.split(" K=")[0] and error[label] <= 1.02 * error[best]
    ]
    decided = min(alike, key=lambda row: row.num_samples)
    assert vae.decide(stored.gradients).label == decided.label
    (sentence,) = re.findall(r"^\*\*Decision: (.*)\*\*$", page, re.MULTILINE)
    assert sentence.startswith(f"`{decided.estimator}`")
    assert f"{decided.num_samples} sample" in sentence
    assert ("no temperature" in sentence) == (decided.tau is None)


def test_what_the_page_says_of_the_gradients_is_true(vae, stored):
    last = {row.label: row for row in vae.at_last_stop(stored.gradients)}
    samplers = [
        row
        for row in last.values()
        if discretegrad.get(row.estimator).kind == "sampler" and row.label in vae.CURVES
    ]
    assert max(samplers, key=lambda row: row.cosine_of_mean).label == "reinmax tau=1.0"
    assert max(row.cosine for row in samplers) < 0.01
    assert (
        min(last[f"{name} K=2"].cosine_of_mean for name in ("leave_one_out", "disarm_tree")) > 0.98
    )
    (lost,) = [
        row
        for row in stored.gradients
        if row.step == 200 and row.label == "straight_through tau=1.0"
    ]
    assert lost.cosine_of_mean < 0.5
    error_of_one = {row.label: math.hypot(row.bias, row.deviation) for row in samplers}
    assert min(error_of_one, key=error_of_one.get) == "straight_through tau=1.0"


def test_what_the_page_says_of_temperatures_and_samples_is_true(vae, stored):
    error = vae.errors(stored.gradients)
    last = {row.label: row for row in vae.at_last_stop(stored.gradients)}
    _, lines = vae.temperature_table(stored)
    best = {line[0].strip("`"): vae.TAUS[bold(line)] for line in lines}
    assert best["reinmax"] == 1.0
    assert best["gumbel_softmax"] == best["gumbel_rao"] == min(vae.TAUS)
    flat = [error[f"straight_through tau={tau}"] for tau in vae.TAUS if tau >= 0.7]
    assert max(flat) < 1.2 * min(flat)

    def price(label):
        return last[label].deviation * math.sqrt(last[label].evaluations)

    assert price("reinmax tau=1.0 K=8") == pytest.approx(price("reinmax tau=1.0"), rel=0.05)
    assert price("disarm_tree K=8") == pytest.approx(price("disarm_tree K=2"), rel=0.05)
    assert price("leave_one_out K=8") < price("leave_one_out K=4") < price("leave_one_out K=2")
    assert price("disarm_tree K=2") < price("leave_one_out K=2")
    assert price("disarm_tree K=4") > price("leave_one_out K=4")


def bold(line):
    """The place of the bold number after the first cell."""
    return [cell.startswith("**") for cell in line[1:]].index(True)


def test_what_the_page_says_of_the_decision_is_true(vae, stored):
    error = vae.errors(stored.gradients)
    rows = {row.label: row for row in stored.gradients}
    of_one = [label for label, row in rows.items() if row.evaluations == 1]
    assert min(of_one, key=error.get) == "reinmax tau=1.0"
    samplers = [
        label for label in of_one if discretegrad.get(rows[label].estimator).kind == "sampler"
    ]
    assert min(samplers, key=error.get) == "reinmax tau=1.0"
    assert vae.decide(stored.gradients, 100).label == "reinmax tau=1.0"
    assert vae.decide(stored.gradients, 1).estimator == "straight_through"
    assert vae.decide(stored.gradients).label == "leave_one_out K=8"
    noise = vae.errors(stored.gradients, 1)
    assert noise["leave_one_out K=8"] == pytest.approx(noise["reinmax tau=1.0"], rel=0.1)


def test_what_the_page_says_of_the_training_is_true(vae, stored):
    runs = {}
    for row in stored.training:
        runs.setdefault(row.label, []).append(row.test)
    mean = {label: sum(tests) / len(tests) for label, tests in runs.items()}
    error = vae.errors(stored.gradients)
    assert sorted(mean, key=mean.get) == sorted(mean, key=error.get)

    def difference(label, other):
        """Of runs with the same seed: the mean, in standard errors."""
        pairs = torch.tensor(runs[label]) - torch.tensor(runs[other])
        return (pairs.mean() / (pairs.std() / len(pairs) ** 0.5)).item()

    for label in ("leave_one_out K=8", "leave_one_out K=4"):
        assert -2.5 < difference(label, "reinmax tau=1.0") < -1.5
    assert -2 < difference("leave_one_out K=4", "reinmax tau=1.0 K=4") < 0
    assert abs(difference("leave_one_out K=8", "leave_one_out K=4")) < 1
    assert min(runs["straight_through tau=1.0"]) > max(runs["reinmax tau=1.0"])
    assert difference("gumbel_softmax tau=0.5", "reinmax tau=1.0") > 2.5
    assert max(runs["straight_through tau=1.0"]) > 30 + max(
        test
        for label, tests in runs.items()
        if label != "straight_through tau=1.0"
        for test in tests
    )
