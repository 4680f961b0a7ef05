"""The benchmark: it refuses wrong numbers, measures what it says, and its pages are current."""

import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch

import discretegrad
from benchmark_cases import scripts, seeded_and_on_one_thread
from cases import SAMPLERS
from discretegrad_lab import published
from discretegrad_lab.recipes import choose_temperatures

SMALL = ["3000x10", "400x8"]


seeded_on_one_thread = pytest.fixture(autouse=True)(seeded_and_on_one_thread)


@pytest.fixture(scope="module")
def bench():
    with scripts(cases="cases", table="table", run="run", reproduction="reproduction") as loaded:
        yield loaded


@pytest.fixture
def inputs(bench):
    return bench.cases.make_inputs((50, 7))


def provider(bench, sample, **options):
    return bench.cases.Provider("under test", sample, ours=True, **options)


def test_the_generated_pages_are_current(bench):
    for path, text in bench.table.generated().items():
        assert path.read_text(encoding="utf-8") == text, "run python benchmarks/table.py"


def test_checking_the_pages_finds_a_stale_one(bench, tmp_path, monkeypatch, capsys):
    assert bench.table.main(["--check"]) == 0
    stale = tmp_path / "benchmarks.md"
    stale.write_text("old", encoding="utf-8")
    monkeypatch.setattr(bench.table, "PAGE", stale)
    assert bench.table.main(["--check"]) == 1
    assert "benchmarks.md is not current" in capsys.readouterr().out
    assert stale.read_text(encoding="utf-8") == "old"


@pytest.fixture
def demo(bench):
    return bench.table.results.read(bench.table.DEMO)


def changed(found, **fields):
    """The results as if their runs had been configured otherwise."""
    rows = [replace(row, config={**row.config, **fields}) for row in found.rows]
    return replace(found, rows=tuple(rows))


def with_temperatures(bench, monkeypatch, found, **fields):
    """As if these were the temperatures that a table of them chose."""
    lines = [
        {**{k: str(v) for k, v in row.config.items()}, "chosen": "yes", "runs": "2", **fields}
        for row in found.rows
    ]
    kept = bench.table.published.rows
    monkeypatch.setattr(
        bench.table.published,
        "rows",
        lambda name: lines if name == "temperatures.csv" else kept(name),
    )
    return bench.table.demo_caption(found)


def test_the_demo_table_has_the_final_loss_of_every_run(bench, demo):
    headings, _, *lines = bench.table.demo_table(changed(demo, tau=1.0)).splitlines()
    assert headings == (
        "| estimator | p = 1.5, best 0.30187 | steps | p = 2, best 0.20250 | steps "
        "| p = 3, best 0.09113 | steps |"
    )
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in lines}
    for row in demo.rows:
        title = bench.table.ESTIMATORS[row.config["estimator"]].title
        column = 1 + 2 * (1.5, 2, 3).index(row.config["power"])
        assert cells[title][column] == f"{row.metrics['expected_loss']:.5f}"
    steps = [int(text) for text in cells["exact gradient"][2::2][:2]]
    assert all(0 < number < 800 for number in steps)


def test_the_demo_table_shows_runs_that_failed_and_those_that_never_arrived(bench, demo):
    first, *others = demo.rows
    lost = replace(demo, rows=(replace(first, state="diverged", metrics={}), *others))
    line = bench.table.demo_table(lost).splitlines()[2]
    assert line.startswith("| ReinMax | - | - | 0.2")
    assert "ReinMax 1" in bench.table.demo_caption(lost)
    far = {key: dict.fromkeys(curve, 1.0) for key, curve in demo.curves.items()}
    table = bench.table.demo_table(replace(demo, curves=far))
    assert all(line.split(" | ")[2] == "-" for line in table.splitlines()[2:])


def test_the_demo_caption_follows_from_the_results(bench, demo):
    caption = bench.table.demo_caption(demo)
    for words in ("after 800 steps", "rate of 0.01 (", "8,000 steps", "one seed", "has 4 draws"):
        assert words in caption
    other = changed(demo, learning_rate=0.05, steps_per_epoch=50, draws=7, latents=16, batch=32)
    caption = bench.table.demo_caption(other)
    for words in ("after 2,000 steps", "0.05 (", "has 7 draws", "over 16 binary", "with 32 joint"):
        assert words in caption
    # a second seed, lower by 0.002, gives an interval
    second = [
        replace(
            row,
            identity=f"{row.identity}-1",
            config={**row.config, "seed": 1},
            metrics={"expected_loss": row.metrics["expected_loss"] - 0.002},
        )
        for row in demo.rows
    ]
    both = replace(demo, rows=(*demo.rows, *second))
    assert "2 seeds, mean ± half" in bench.table.demo_caption(both)
    half = 12.7062 * 0.001
    assert f" ± {half:.5f} | - |" in bench.table.demo_table(both)


def test_the_demo_says_whether_temperatures_are_tuned(bench, demo, monkeypatch):
    table, default = bench.table.demo_table, changed(demo, tau=1.0)
    said = with_temperatures(bench, monkeypatch, default, runs="0")
    assert "τ is 1 everywhere and not tuned" in said
    assert "τ" not in table(default)
    said = with_temperatures(bench, monkeypatch, default)
    assert "τ is 1 everywhere: of 10 values" in said
    draws = bench.table.RECIPES["polynomial-temperatures"].runs()[0].draws
    assert f"8,000 steps of Adam at a learning rate of 0.001, {draws:,} draws" in said
    assert "seeds 1000 and 1001" in said
    rows = [replace(r, config={**r.config, "tau": r.config["power"] / 2}) for r in demo.rows]
    tuned = replace(demo, rows=tuple(rows))
    assert "τ is given for each p: of 10 values" in with_temperatures(bench, monkeypatch, tuned)
    # runs at other temperatures than those that the search chose are not tuned
    assert "not tuned" in bench.table.demo_caption(default)
    lines = table(tuned).splitlines()
    assert lines[0].endswith("| τ |")
    assert all(line.endswith("| 0.75 / 1 / 1.5 |") for line in lines[2:-1])
    assert lines[-1].endswith("| - |")


def test_the_pictures_show_the_stored_curves(bench, demo, tmp_path, monkeypatch, capsys):
    table = bench.table
    assert not table.stale_pictures(), "run python benchmarks/table.py"
    pictures = {tmp_path / path.name: path for path in table.pictures()}
    for copy, path in pictures.items():
        shutil.copy(path, copy)
    monkeypatch.setattr(table, "PICTURES", tmp_path)
    assert not table.stale_pictures()
    folder, picture = tmp_path / table.DEMO.name, tmp_path / f"{table.DEMO.name}.png"
    curves = {key: {**curve, 40: 0.1} for key, curve in demo.curves.items()}
    table.results.write(replace(demo, curves=curves), folder)
    monkeypatch.setattr(table, "DEMO", folder)
    assert table.stale_pictures() == [picture]
    assert table.main(["--check"]) == 1
    assert f"{picture.name} is not current" in capsys.readouterr().out
    table.draw_picture(picture)
    assert not table.stale_pictures()
    picture.unlink()
    assert table.stale_pictures() == [picture]


def pictures_on(bench, page):
    path = bench.table.ROOT / page
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", path.read_text(encoding="utf-8"))
    return [(path.parent / name).resolve() for name in shown]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_demo_picture_is_shown(bench, page):
    assert bench.table.PICTURES / f"{bench.table.DEMO.name}.png" in pictures_on(bench, page)


def test_the_pictures_of_the_reproduction_are_shown(bench):
    shown = pictures_on(bench, "docs/reproduction.md")
    drawn = [bench.table.PICTURES / f"{name}.png" for name in bench.reproduction.figures()]
    assert set(drawn) < set(shown)
    assert all(path.exists() for path in shown)


def test_stored_results_are_those_of_their_recipes(bench):
    reproduction = bench.reproduction
    for name in reproduction.STORED:
        found = reproduction.read(name)
        runs = {run.identity for run in bench.table.RECIPES[name].runs()}
        assert {row.identity for row in found.rows} == runs, f"run and report {name} again"


def test_the_chosen_temperatures_are_the_best_of_the_stored_search(bench, tmp_path):
    path = tmp_path / "temperatures.csv"
    choose_temperatures(bench.reproduction.read(bench.reproduction.SEARCH), path)
    stored = Path(published.__file__).parent / "tables" / path.name
    assert path.read_text(encoding="utf-8") == stored.read_text(encoding="utf-8")


@pytest.fixture
def column(bench):
    return bench.reproduction.read(bench.reproduction.VAE)


def test_the_readme_shows_the_column_as_it_is_stored(bench, column, monkeypatch):
    reproduction = bench.reproduction
    block = reproduction.readme_block()
    tests = [row.metrics["test"] for row in column.where(estimator="st")]
    # the half interval of a mean over ten runs, with Student's t at 97.5 %
    half = 2.262157 * stdev(tests) / len(tests) ** 0.5
    line = next(line for line in block.splitlines() if line.startswith("| ST |"))
    assert line.endswith(f"| 118.46 ± 0.13 | {fmean(tests):.2f} ± {half:.2f} | below |")
    assert "ours over 10" in block
    assert "11 claims" in block
    # a run less
    lost = column.where(estimator="st", seed=3)
    rows = [
        replace(row, state="diverged", metrics={}) if row in lost else row for row in column.rows
    ]
    fewer = replace(column, rows=tuple(rows))
    stored = reproduction.read
    monkeypatch.setattr(
        reproduction, "read", lambda name: fewer if name == reproduction.VAE else stored(name)
    )
    assert "49 finished, 1 diverged" in reproduction.runs_table()
    assert "9 of 10" in reproduction.page()
    assert "ours over 9 to 10" in reproduction.readme_block()


def test_shares_of_the_time_are_those_of_stacks(bench, column):
    reproduction = bench.reproduction
    assert reproduction.training_seconds(column) == column.rows[0].seconds
    settings = reproduction.read(reproduction.SETTINGS)
    seconds = {row.seconds for row in settings.rows}
    assert len(seconds) == 9
    assert reproduction.training_seconds(settings) == pytest.approx(sum(seconds))
    assert reproduction.runs_table().count(f"in {reproduction.SETTINGS}") == 2


def test_reinmax_at_one_is_that_of_the_search(bench):
    reproduction = bench.reproduction
    search = reproduction.read(reproduction.SEARCH)
    rows = search.where(estimator="reinmax", power=2.0, target="constant", tau=1.0)
    losses = [row.metrics["expected_loss"] for row in rows]
    line = next(x for x in reproduction.at_one_table().splitlines() if x.startswith("| p = 2 |"))
    # the optimum is the mean of 0.45 squared
    assert f"| {100 * (fmean(losses) / 0.45**2 - 1):.2f} ± " in line
    assert line.count("(2 runs)") == 1
    assert line.count("(5 runs)") == 2


def test_curves_from_an_epoch_on(bench):
    (train, test) = bench.reproduction.figures()[bench.reproduction.VAE]
    for figure in (train, test):
        for curve in figure.curves:
            assert curve.x[0] == 10
            assert len(curve.x) == len(curve.y) == len(curve.low) == len(curve.high)


def test_the_stored_results_cover_every_sampler_and_shape(bench):
    rows = bench.table.read_csv(bench.table.RESULTS)
    measured = {(row["provider"], row["shape"]) for row in rows}
    assert measured == {
        (provider.name, case.name)
        for provider in bench.cases.PROVIDERS
        for case in bench.cases.CASES
    }
    samplers = {name.split()[0] for name, _ in measured}
    assert set(SAMPLERS) <= samplers
    for column in ("cpu", "torch", "python", "commit", "date", "command", "threads", "rounds"):
        assert all(row[column] for row in rows)


def test_a_quick_run_measures_and_leaves_the_stored_results_alone(bench, tmp_path, capsys):
    stored = bench.table.RESULTS.read_bytes()
    output = tmp_path / "results.csv"
    arguments = ["--quick", "--shapes", "400x8", "--threads", "1", "--output", str(output)]
    assert bench.run.main(arguments) == 0
    rows = bench.table.read_csv(output)
    assert [row["provider"] for row in rows] == [p.name for p in bench.cases.PROVIDERS]
    assert list(rows[0]) == list(bench.table.read_csv(bench.table.RESULTS)[0])
    for row in rows:
        assert float(row["seconds_p20"]) <= float(row["seconds"]) <= float(row["seconds_p80"])
        assert float(row["peak_extra_tensors"]) >= 2
    baseline = bench.table.find(rows, bench.cases.TORCH, "400x8")
    assert float(baseline["speedup_torch"]) == 1
    assert "reinmax" in capsys.readouterr().out
    assert bench.table.RESULTS.read_bytes() == stored
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


@pytest.mark.parametrize(
    ("arguments", "is_stored"),
    [([], True), (["--quick"], False), (["--shapes", "400x8"], False)],
    ids=["full", "quick", "one shape"],
)
def test_only_a_full_run_replaces_the_stored_results(bench, arguments, is_stored):
    options = bench.run.parse(arguments)
    assert (options.output == bench.table.RESULTS) == is_stored
    assert bench.run.parse(["--quick"]).shapes == SMALL


def test_nothing_is_timed_or_written_on_a_red_gate(bench, tmp_path, monkeypatch, capsys):
    wrong = provider(bench, discretegrad.straight_through, reinmax_tau=1.0)
    monkeypatch.setattr(bench.run, "PROVIDERS", (*bench.cases.PROVIDERS, wrong))
    monkeypatch.setattr(bench.run, "time_case", lambda *_: pytest.fail("it was timed"))
    output = tmp_path / "results.csv"
    assert bench.run.main(["--quick", "--shapes", "400x8", "--output", str(output)]) == 1
    assert "under test at 400x8" in capsys.readouterr().out
    assert not output.exists()


@pytest.mark.parametrize(
    ("sample", "tau", "fault"),
    [
        (lambda x: discretegrad.reinmax(x, 1.1), 1.0, "off the float64 formula"),
        (discretegrad.straight_through, 1.0, "off the float64 formula"),
        (lambda x: x.softmax(-1), None, "not exactly one-hot"),
        (lambda x: discretegrad.reinmax(x) + (x - x.detach()), None, "do not sum to zero"),
        (lambda x: discretegrad.reinmax(x) + (x * 0).sqrt() * 0, None, "not finite"),
    ],
    ids=["another tau", "another estimator", "relaxed", "leaking", "not finite"],
)
def test_the_gate_finds(bench, inputs, sample, tau, fault):
    faults = bench.cases.gate(provider(bench, sample, reinmax_tau=tau), inputs)
    assert any(fault in found for found in faults), faults


def test_the_gate_passes_every_sampler(bench, inputs):
    for candidate in bench.cases.PROVIDERS:
        assert bench.cases.gate(candidate, inputs) == []


@pytest.mark.parametrize(
    ("sample", "tensors"),
    [
        (torch.exp, 2),  # its result and the gradient
        (lambda x: torch.stack([x, x, x]).sum(0), 4),  # three copies and their sum
        (lambda x: x.double().float(), 4),  # result, float64 gradient (two), and gradient
    ],
    ids=["two", "a large temporary", "another dtype"],
)
def test_memory_is_counted_in_tensors_of_the_logits_size(bench, sample, tensors):
    inputs = bench.cases.make_inputs((64, 256))
    peak = bench.run.peak_extra_tensors(provider(bench, sample), inputs)
    assert peak == pytest.approx(tensors, abs=0.01)


def test_rounds_run_in_changing_order_so_that_neighbours_change(bench, inputs, monkeypatch):
    calls = []

    def recording(name):
        def sample(logits):
            calls.append(name)
            return logits.exp()

        return bench.cases.Provider(name, sample, ours=True)

    names = "abcdef"
    monkeypatch.setattr(bench.run, "PROVIDERS", tuple(map(recording, names)))
    case = bench.cases.Case((50, 7), calls=2, warmups=1, rounds=20)
    times = bench.run.time_case(case, inputs)
    assert {len(seconds) for seconds in times.values()} == {20}
    blocks = calls[len(names) :: 3]  # after one first call each; a block is three calls
    before = {name: set() for name in names}
    for previous, name in itertools.pairwise(blocks):
        before[name].add(previous)
    assert min(map(len, before.values())) >= 4


def test_a_slow_sampler_is_compared_with_the_rounds_it_ran_in(bench):
    case = bench.cases.Case((400, 8), calls=1, warmups=0, rounds=5)
    times = {candidate.name: [1.0, 1.0, 1.0, 9.0, 9.0] for candidate in bench.cases.PROVIDERS}
    times["gumbel_rao num_draws=10"] = [4.0, 4.0, 4.0]
    peaks = {candidate.name: 4.0 for candidate in bench.cases.PROVIDERS} | {"reinmax": 1.0}
    rows = bench.run.case_rows(case, times, peaks)
    slow = next(row for row in rows if row["provider"] == "gumbel_rao num_draws=10")
    assert (slow["rounds"], slow["speedup_torch"], slow["speedup_torch_p80"]) == (3, 0.25, 0.25)
    reinmax = next(row for row in rows if row["provider"] == "reinmax")
    assert reinmax["memory_share_pypi"] == 0.25


def test_a_run_that_breaks_off_leaves_the_old_file_whole(bench, tmp_path):
    path = tmp_path / "results.csv"
    bench.run.write_csv(path, [{"provider": "old"}])
    with pytest.raises(ValueError, match="unknown"):
        bench.run.write_csv(path, [{"provider": "new"}, {"unknown": "column"}])
    assert bench.table.read_csv(path) == [{"provider": "old"}]


@pytest.fixture
def stored_rows(bench):
    return [dict(row) for row in bench.table.read_csv(bench.table.RESULTS)]


def test_a_missed_target_and_a_loss_are_shown(bench, stored_rows):
    reinmax = bench.table.find(stored_rows, "reinmax", "4096x1024")
    reinmax |= {"speedup_torch": "7", "speedup_pypi": "8", "memory_share_pypi": "0.3"}
    met = bench.table.page(stored_rows)
    reinmax |= {"speedup_torch": "0.5", "speedup_pypi": "0.4", "memory_share_pypi": "0.6"}
    missed = bench.table.page(stored_rows)
    assert missed.count("**missed**") == met.count("**missed**") + 3
    losses = bench.table.losses(stored_rows)
    for baseline in ("`F.gumbel_softmax`", "PyPI `reinmax`"):
        line = next(loss for loss in losses if f"`reinmax` is slower than {baseline}" in loss)
        assert "4096x1024 (0." in line


def test_the_targets_are_those_that_were_promised(bench):
    limits = {(t.shape, t.quantity): t.limit for t in bench.cases.TARGETS}
    assert limits == {
        ("4096x1024", "speedup_torch"): 5,
        ("64x131072", "speedup_torch"): 5,
        ("3000x10", "speedup_torch"): 1.8,
        ("400x8", "speedup_torch"): 1,
        ("4096x1024", "speedup_pypi"): 6,
        ("64x131072", "speedup_pypi"): 6,
        ("3000x10", "speedup_pypi"): 1.8,
        ("400x8", "speedup_pypi"): 1,
        ("4096x1024", "memory_share_pypi"): 0.5,
        ("64x131072", "memory_share_pypi"): 0.5,
        ("3000x10", "memory_share_pypi"): 0.5,
        ("400x8", "memory_share_pypi"): 0.5,
    }


@pytest.mark.parametrize("text", ["no markers", "<!-- begin generated: demo -->\n" * 2])
def test_a_readme_without_its_markers_is_an_error(bench, text):
    with pytest.raises(ValueError, match="markers"):
        bench.table.replace_block(text, "demo", "")


def test_help_and_wrong_arguments(bench, capsys):
    with pytest.raises(SystemExit, match="0"):
        bench.run.main(["--help"])
    assert "red gate" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        bench.run.main(["--threads", "0"])
    assert "at least 1" in capsys.readouterr().err
