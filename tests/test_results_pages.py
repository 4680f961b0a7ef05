"""What the README and the pages on the paper say of stored runs follows from those runs."""

import re
import shutil
import subprocess
from dataclasses import replace
from statistics import fmean, median, stdev, variance

import pytest

import discretegrad
from benchmark_cases import (
    claims,
    collapses,
    efficiency,
    files,
    kernels,
    lines_of,
    on_the_paper,
    overview,
    pages,
    part,
    pictures,
    polynomial,
    pooled,
    readme,
    reports,
    reproduction,
    several,
    sizes,
    stored,
    table,
)
from discretegrad_lab import LINES, recipe, recipes
from discretegrad_lab.report.results import configuration
from discretegrad_lab.tasks.base import read_rows
from discretegrad_lab.tasks.evidence import Measured, Results, Row
from discretegrad_lab.tasks.polynomial import temperature
from discretegrad_lab.tasks.statistics import Comparison
from lab_cases import searched, use_table, use_temperatures


@pytest.fixture
def demo():
    return stored.read(stored.DEMO)


@pytest.fixture
def column():
    return stored.read(stored.VAE)


def test_the_demo_table_has_the_final_loss_and_the_temperature_of_every_run(demo):
    cells = lines_of(readme.demo_table(demo))
    assert cells["estimator"][::3] == [
        *("p = 1.5, best 0.30187", "p = 2, best 0.20250", "p = 3, best 0.09113")
    ]
    for row in demo.rows:
        name, power, tau = (row.config[field] for field in ("estimator", "power", "tau"))
        loss, _, shown = cells[LINES[name].label][3 * (1.5, 2, 3).index(power) :][:3]
        assert loss == f"{row.metrics['expected_loss']:.5f}"
        # the caption says that the search found it best
        assert tau == temperature(power, row.config["target"], name)
        assert shown == (f"{tau:g}" if LINES[name].has_tau else "\N{EN DASH}")
    assert all(0 < int(steps) < 800 for steps in cells["exact gradient"][1::3])


def test_the_demo_shows_failures_dashes_and_intervals(demo):
    first, *others = demo.rows
    lost = replace(demo, rows=(replace(first, state="diverged", metrics={}), *others))
    assert lines_of(readme.demo_table(lost))["ReinMax"][:2] == ["-", "-"]
    assert "ReinMax 1" in readme.demo_caption(lost)
    far = {key: dict.fromkeys(curve, 1.0) for key, curve in demo.curves.items()}
    cells = lines_of(readme.demo_table(replace(demo, curves=far)))
    assert cells["ReinMax"][1::3] == ["-"] * 3
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
    assert f" ± {12.7062 * 0.001:.5f} | - |" in readme.demo_table(both)


def test_the_demo_caption_follows_from_the_runs(demo):
    caption = readme.demo_caption(demo)
    for words in ("after 800 steps", "rate of 0.01 (", "8,000 steps", "1 seed.", "has 4 draws"):
        assert words in caption


def on_paths():
    return [page.path for page in reproduction.PAGES]


def pictures_on(path):
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", path.read_text(encoding="utf-8"))
    return [(path.parent / name).resolve() for name in shown]


def test_the_pictures_show_the_stored_curves_and_are_shown(demo, tmp_path, monkeypatch, capsys):
    drawn = pictures.of_curves()
    shown = [x for path in (readme.README, *on_paths()) for x in pictures_on(path)]
    assert set(drawn) < set(shown)
    assert all(path.exists() for path in shown)
    assert all(pages.shows(path, figures) for path, figures in drawn.items())
    # a picture of other curves is found and drawn again
    copy = tmp_path / "copy.png"
    old = next(path for path in drawn if path.stem == stored.DEMO)
    shutil.copy(old, copy)
    curves = {key: {**curve, 40: 0.1} for key, curve in demo.curves.items()}
    figures = stored.section(replace(demo, curves=curves)).figures
    monkeypatch.setattr(pictures, "of_curves", lambda: {copy: figures})
    assert table.main(["--check"]) == 1
    assert "copy.png is not current" in capsys.readouterr().out
    pages.draw(copy, figures)
    assert pages.shows(copy, figures)
    assert not pages.shows(old, figures)


def test_every_page_on_the_paper_shows_its_parts_and_no_others():
    """The table of parts says which page has which; the overview and the site list the pages."""
    assert set(pages.ON_THE_PAPER.glob("*")) == set(on_paths())
    names = [name for parts in reproduction.PARTS.values() for name in parts]
    assert len(set(names)) == len(names)
    titles = {}
    for page, parts in zip(reproduction.PAGES, reproduction.PARTS.values(), strict=True):
        text = page.path.read_text(encoding="utf-8")
        assert re.findall(r"begin generated: ([\w ]+) -->", text) == list(parts), page.path.name
        titles[page.path.name] = re.search(r"^# (.+)$", text, re.MULTILINE)[1]
        # words that say what came out, before anything else
        assert re.search(r"^# .+\n\n[A-Z*`\[]", text, re.MULTILINE), page.path.name
    overview_page = (pages.ON_THE_PAPER / "index.md").read_text(encoding="utf-8")
    guide = re.findall(r"^\| \[(.+)\]\((.+\.md)\) \|", overview_page, re.MULTILINE)
    assert [(name, title) for title, name in guide] == list(titles.items())[1:]
    site = (files.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:(.+): )?reproduction/(.+\.md)$", site, re.MULTILINE)
    assert listed == [("", "index.md"), *guide]


def test_headings_of_the_pages_on_the_paper_are_unique():
    """A link from the overview goes by the heading."""
    headings = [
        heading
        for path in on_paths()
        for heading in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        # lines of commands are none
        if not heading.startswith("discretegrad ")
    ]
    assert len({x.lower() for x in headings}) == len(headings)
    for heading in stored.HEADINGS:
        assert pages.link(heading, pages.ON_THE_PAPER).startswith(f"[{heading}](")
    with pytest.raises(ValueError, match="expected one page in docs/reproduction"):
        pages.link("Nowhere", pages.ON_THE_PAPER)


def test_what_is_trained_has_a_page_of_its_own():
    """The overview holds the place of an experiment only while there are no numbers."""
    own = {"in short", "runs", "rule"}
    for name in reproduction.PARTS["index"].keys() - own:
        assert part(name).startswith("Not trained here yet"), (
            f"move the part {name!r} to a page of its own: a file in docs/reproduction, its row in "
            "PARTS of benchmarks/reproduction.py, in mkdocs.yml and in the table of the overview"
        )


def git(*words):
    """What git says of this checkout; nothing if there is none, or no git."""
    if shutil.which("git") is None:
        return ""
    asked = subprocess.run(["git", "-C", str(files.ROOT), *words], capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else ""


@pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository") != "false", reason="needs the whole history"
)
def test_the_commits_of_stored_results_are_in_the_history():
    """One that is not there says nothing about how a number came about."""
    paths = [*files.ROOT.glob("benchmarks/*.csv"), *files.ROOT.glob("results/*/runs.csv")]
    named = {
        (file.relative_to(files.ROOT).as_posix(), row["commit"].partition(" ")[0])
        for file in paths
        for row in read_rows(file)
        if row.get("commit")
    }
    ours = {commit[:7] for commit in git("rev-list", "HEAD").splitlines()}
    assert named
    assert not {(file, commit) for file, commit in named if commit[:7] not in ours}


SEARCHES = [name for name, search in recipes().items() if search.choice is not None]


@pytest.mark.parametrize("name", SEARCHES)
def test_the_chosen_settings_are_the_best_of_the_stored_search(name, tmp_path, monkeypatch):
    choice, results = recipe(name).choice, stored.read(name)
    committed = choice.path.read_text(encoding="utf-8")
    own = tmp_path / "chosen.csv"
    own.write_text(committed, encoding="utf-8")
    use_table(monkeypatch, choice, own)
    if results.rows and not any(row.state == "started" for row in results.rows):
        choice.write(choice.lines(recipe(name), results))
        assert own.read_text(encoding="utf-8") == committed, f"give `discretegrad choose {name}`"
    else:
        runs = recipe(name).runs(seeds=[1000])
        problems = {tuple(str(getattr(run, x)) for x in choice.where) for run in runs}
        rows = [row for row in read_rows(own) if tuple(row[x] for x in choice.where) in problems]
        assert {row["source"] for row in rows} <= {"default"}, f"{name} is not at its end"


def test_the_readme_shows_the_column_as_it_is_stored(column, monkeypatch):
    block = readme.column_block()
    tests = [row.metrics["test"] for row in column.where(estimator="st")]
    # the half interval of a mean over ten runs, with Student's t at 97.5 %
    half = 2.262157 * stdev(tests) / len(tests) ** 0.5
    expected = ["118.46 ± 0.13", f"{fmean(tests):.2f} ± {half:.2f}", "below"]
    assert lines_of(block)["ST"][3:] == expected
    assert "ours over 10" in block
    # a run less
    lost = column.where(estimator="st", seed=3)
    rows = [
        replace(row, state="diverged", metrics={}) if row in lost else row for row in column.rows
    ]
    fewer = replace(column, rows=tuple(rows))
    put_in_place_of(monkeypatch, fewer)
    assert "89 finished, 1 diverged" in overview.runs_table()
    assert "9 of 10" in part("vae")
    assert "ours over 9 to 10" in readme.column_block()


def test_the_summary_has_every_claim_that_a_table_of_the_page_judges(monkeypatch):
    """One fails if it does in one recipe, and holds if it does in all; it says which differ."""
    texts = "\n".join(path.read_text(encoding="utf-8") for path in on_paths())
    words = {}
    for cells in re.findall(r"^\| (.+) \| (.+) \| \*\*(.+)\*\* \| ", texts, re.MULTILINE):
        words.setdefault(cells[:2], []).append(cells[2])
    outcomes = {
        claim: found[0]
        if len(set(found)) == 1
        else "does not hold"
        if "does not hold" in found
        else "undecided"
        for claim, found in words.items()
    }
    summary = " ".join(overview.in_short().split())
    assert summary in on_the_paper()["index"]
    begins = [summary.index(f"**{word}:**") for word in ("Holds", "Does not hold", "Undecided")]
    for (text, place), word in outcomes.items():
        begin = summary.index(f"“{text}” ({place}")
        number = ("holds", "does not hold", "undecided").index(word)
        assert begin == summary.rindex(f"“{text}” ({place}")
        assert begins[number] < begin < [*begins, len(summary)][number + 1]
    held, failed = (list(outcomes.values()).count(word) for word in ("holds", "does not hold"))
    said = (
        f"{len({text for text, _ in outcomes})} sentences of the paper are judged in "
        f"{len(outcomes)} ways: {held} hold, {failed} do not and "
        f"{len(outcomes) - held - failed} are undecided"
    )
    assert said in summary
    assert said in " ".join(readme.column_block().split())
    assert "(Section 6.3, Table 2; holds in vae-8x16, vae-64x8)" in summary
    # what is stored of no run says nothing
    put_in_place_of(monkeypatch, Results(stored.PARSING))
    fewer = " ".join(overview.in_short().split())
    assert f"are judged in {len(outcomes) - 4} ways" in fewer
    assert "listops.md" not in fewer


def test_the_summary_counts_runs_and_stacks_once():
    """Recipes share runs, which have one identity and one stack; of a search all were trained."""
    names, stacks, runs, hours, recipes = stored.shown(), set(), set(), 0.0, 0
    for name in names:
        rows = stored.read(name).rows
        finished = {row.identity for row in rows if row.state == "finished"}
        runs |= finished
        recipes += bool(finished)
        if name.startswith("vae-search"):
            hours += max(row.seconds for row in rows) / 3600
        else:
            stacks |= {(row.commit, row.seconds) for row in rows}
    hours += sum(seconds for _, seconds in stacks) / 3600
    summary = " ".join(overview.in_short().split())
    assert summary.startswith(
        f"{len(runs):,} finished runs of {recipes} recipes, {hours:.1f} hours "
    )
    assert len(runs) < sum(len(stored.read(name).rows) for name in names)
    judged = [
        word
        for name in names
        for row in read_rows(stored.RESULTS / name / "table.csv")
        if (word := row.get("verdict")) in ("within", "above", "below")
    ]
    within = judged.count("within")
    # ListOps compares two checkpoints with each of its ten
    means = len(judged) - 10
    assert f"Of {len(judged)} comparisons with {means} published means {within} are" in summary


def test_the_table_of_score_functions_says_which_take_subsets():
    cells = lines_of(readme.scores_block())
    rows = [row for row in discretegrad.ESTIMATORS.values() if row.kind == "score"]
    taking = [row.works_on(discretegrad.Subset(2)) for row in rows]
    assert [cells[f"`{row.name}`"][1] == "any, also subsets" for row in rows] == taking
    assert 0 < sum(taking) < len(rows)


def test_shares_of_the_time_are_those_of_stacks(column):
    stacks = {row.commit: row.seconds for row in column.rows}
    assert stored.training_seconds(column) == sum(stacks.values())
    assert stored.training_seconds(readme.of_paper(column)) == column.rows[0].seconds
    settings = stored.read(stored.SETTINGS)
    seconds = {row.seconds for row in settings.rows}
    assert len(seconds) == 9
    assert stored.training_seconds(settings) == pytest.approx(sum(seconds))
    assert overview.runs_table().count(f"in {stored.SETTINGS}") == 2


def test_a_search_takes_as_long_as_its_longest_runs():
    """Runs that went on have the time of the rungs in theirs, and searches apart each their own."""
    search = recipe("vae-search-8x4")
    rows, taken = [], {}
    for number, run in enumerate(search.runs()):
        rung = number % 3
        first, *further = (40.0, 30.0, 20.0) if run.estimator == "gr-mck" else (400.0, 300.0, 200.0)
        seconds = first + sum(further[:rung])
        taken[run.estimator] = max(seconds, taken.get(run.estimator, 0.0))
        rows.append(row_of(run, "finished" if rung == 2 else "dropped", seconds))
    assert set(taken.values()) == {90.0, 900.0}
    assert stored.training_seconds(Results(search.name, tuple(rows))) == 990.0


def test_runs_with_two_trainings_are_named(monkeypatch):
    """What one recipe has of another's is no second training."""
    results = stored.read("vae-8x4")
    names = ("vae-8x4", stored.EXACT)
    monkeypatch.setattr(stored, "shown", lambda: list(names))
    assert overview.trained_twice() == ""
    again = {
        row.identity: row.metrics["train"] + apart
        for row, apart in zip(results.rows, (3.0, -4.0), strict=False)
    }
    rows = [
        replace(row, commit="0a1b2c", metrics={**row.metrics, "train": again[row.identity]})
        if row.identity in again
        else row
        for row in stored.read(stored.EXACT).rows
    ]
    put_in_place_of(monkeypatch, Results(stored.EXACT, tuple(rows)))
    text = " ".join(overview.trained_twice().split())
    assert text.startswith("2 runs of these recipes were trained more than once")
    assert "of its own: vae-8x4, vae-8x4-exact. " in text
    assert "half of them end at most 3.50 apart, and the farthest, of vae-8x4, 4.00." in text


def test_pictures_of_models_are_shown_where_they_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "PICTURES", tmp_path)
    assert "it takes `discretegrad plot vae-10x30`" in part("prior samples")
    assert "it takes `discretegrad plot vae-8x4`" in part("other reconstructions")
    for name in ("vae-64x8-prior-samples", "vae-64x8-reconstructions", "vae-10x30-reconstructions"):
        (tmp_path / f"{name}.png").touch()
    assert re.findall(r"assets/[^)]+", part("prior samples")) == [
        "assets/vae-64x8-prior-samples.png"
    ]
    assert re.findall(r"assets/[^)]+", part("other reconstructions")) == [
        "assets/vae-64x8-reconstructions.png"
    ]


def test_what_decides_a_collapse(monkeypatch):
    """Two initial weights that always collapse, and one run of others that did for a time."""
    put_in_place_of(monkeypatch, Results(stored.WEIGHTS))
    assert "it takes `discretegrad run vae-8x4-beginning-weights`" in collapses.weights_table()
    runs = recipe(stored.WEIGHTS).runs()
    rows, curves = [], {}
    for run in runs:
        stuck = run.weights_seed in (3, 4)
        briefly = (run.weights_seed, run.seed) == (7, 0)
        end = 214.4 if stuck else 140.0
        rows.append(row_of(run, train=end, test=end))
        # in the first epochs all are high
        curves[run.identity, "train"] = {1: 400.0, 5: 214.4 if briefly else end, 20: end}
    put_in_place_of(monkeypatch, Results(stored.WEIGHTS, tuple(rows), curves))
    cells = lines_of(collapses.weights_table())
    assert "41 of 400 runs collapsed" in cells
    collapsed, spread, by_chance, p = cells["initial weights"]
    assert collapsed == "20 (2 of them), 1 (1 of them), 0 (17 of them)"
    assert spread == f"{variance([20, 20, 1, *[0] * 17]):.2f}"
    assert float(by_chance) == pytest.approx(20 * 41 / 400 * 359 / 400, rel=0.05)
    assert float(p) < 0.001
    collapsed, spread, _, p = cells["batches and samples"]
    assert collapsed == "3 (1 of them), 2 (19 of them)"
    assert spread == f"{variance([3, *[2] * 19]):.2f}"
    # more even than by chance: every other way is as uneven
    assert float(p) == 1


def test_a_claim_fails_if_it_does_in_one_size():
    def word(*words):
        return claims.Claim("", "", "", dict(enumerate(words))).word

    assert word("holds", "holds") == "holds"
    assert word("holds", "undecided") == word("undecided") == "undecided"
    assert word("holds", "does not hold", "undecided") == "does not hold"


def test_collapses_at_each_temperature(monkeypatch):
    put_in_place_of(monkeypatch, Results(stored.FIRST_TEMPERATURES))
    assert "it takes `discretegrad run" in collapses.beginnings_table()
    rows, curves = [], {}
    for run in recipe(stored.FIRST_TEMPERATURES).runs():
        if run.estimator != "st":
            rows.append(row_of(run, "missing"))
            continue
        fallen = run.tau == 2.0 and run.seed < 5
        end = 214.4 if fallen and run.seed < 2 else 140.0
        rows.append(row_of(run, train=end, test=end))
        curves[run.identity, "train"] = {1: 400.0, 5: 214.4 if fallen else end, 20: end}
    put_in_place_of(monkeypatch, Results(stored.FIRST_TEMPERATURES, tuple(rows), curves))
    lines = [x.strip("| ").split(" | ") for x in collapses.beginnings_table().splitlines()[2:]]
    assert len(lines) == 5
    assert lines[0] == ["ST", "0.5", "50", "0", "0.0 to 7.1 %", "0", "140.00"]
    assert lines[-1] == ["ST", "2", "50", "5", "4.3 to 21.4 %", "3", "140.00"]


def test_what_tf32_changes(monkeypatch):
    put_in_place_of(monkeypatch, Results(stored.PRECISION))
    assert "it takes `discretegrad run" in sizes.precision_table()
    rows = [
        row_of(run, train=113.0 + 0.4 * run.tf32 + 0.1 * (run.seed % 2), test=114.0)
        for run in recipe(stored.PRECISION).runs(estimators=("st",))
    ]
    put_in_place_of(monkeypatch, Results(stored.PRECISION, tuple(rows)))
    tf32, float32, apart, ours, theirs = lines_of(sizes.precision_table())["ST, train"]
    assert (tf32, float32) == ("113.45 ± 0.02 (20 runs)", "113.05 ± 0.02 (20 runs)")
    assert apart == "+0.40 ± 0.03"
    # the paper has 112.94 there
    assert [x.split()[0] for x in (ours, theirs)] == ["+0.51", "+0.11"]


def test_reinmax_at_one_is_that_of_the_search():
    search = stored.read(stored.SEARCH)
    rows = search.where(estimator="reinmax", power=2.0, target="constant", tau=1.0)
    losses = [row.metrics["expected_loss"] for row in rows]
    searched, tuned, rodeo = lines_of(polynomial.at_one_table())["p = 2"]
    # the optimum is the mean of 0.45 squared
    assert searched.startswith(f"{100 * (fmean(losses) / 0.45**2 - 1):.2f} ± ")
    assert [x.partition(" (")[2] for x in (searched, tuned, rodeo)] == [
        *("2 runs)", "5 runs)", "5 runs)")
    ]


def test_curves_from_an_epoch_on(column):
    for figure in stored.section(column).figures:
        for curve in pictures.from_epoch(10, figure).curves:
            assert curve.x[0] == 10
            assert len(curve.x) == len(curve.y) == len(curve.low) == len(curve.high)


def test_curves_from_a_share_of_their_own_end_on(column):
    figure = stored.section(column).figures[0]
    curve = figure.curves[0]
    # a tenth of each end, one of them with what rounding adds
    ends = [(0.1 * end, 0.5 * end, end) for end in (3.0, 70.0)]
    made = [replace(curve, x=(0.0, *x), y=(9, 1, 2, 3), low=None, high=None) for x in ends]
    made += [replace(made[0], x=(0.0, 0.3 - 1e-16, 1.5, 3.0))]
    cut = pictures.from_share(0.1, replace(figure, curves=tuple(made)))
    assert [tuple(curve.y) for curve in cut.curves] == [(1, 2, 3)] * 3


def put_in_place_of(monkeypatch, *others):
    """Have the page read these results where it asks for theirs."""
    read, ours = stored.read, {results.recipe: results for results in others}
    monkeypatch.setattr(stored, "read", lambda name: ours.get(name) or read(name))


def row_of(run, state="finished", seconds=1.0, **metrics):
    return Row(
        run.identity, configuration(run), state, run.epochs, metrics, None, seconds, "0a1b2c"
    )


def test_equal_steps_and_equal_time(monkeypatch):
    """A stack of 15 with 4 samples takes twice as long as one with 1, and RLOO's one of 5 less."""
    rows, curves = [], {}
    stacks = {("reinmax", 1): 30.0, ("reinmax", 4): 60.0, ("leave-one-out", 4): 40.0}
    for run in recipe(stored.SAMPLES).runs():
        seconds = stacks.get((run.estimator, run.samples))
        state = "finished" if seconds else "missing"
        metrics = {"train": 100.0 - run.samples, "test": 110.0} if seconds else {}
        rows.append(row_of(run, state, seconds or 0.0, **metrics))
        if seconds:
            curves[run.identity, "train"] = {20: 220.0, 160: 100.0 - run.samples}
            curves[run.identity, "test"] = {20: 140.0, 80: 112.0, 160: 110.0}
    results = Results(stored.SAMPLES, tuple(rows), curves)
    put_in_place_of(monkeypatch, results)
    block = part("samples")
    cells = lines_of(block)
    assert cells["ReinMax, τ = 1.1"][2:4] == ["2.0 s", "160 of 160"]
    assert cells["ReinMax, 4 samples, τ = 1"] == [
        *("96.00 ± 0.00", "110.00 ± 0.00", "4.0 s", "80 of 160"),
        # halfway in time: 60 of the 140 epochs from the twentieth on
        *(f"{220 - 124 * 60 / 140:.2f} ± 0.00", "112.00 ± 0.00", "5"),
    ]
    assert cells["RLOO, 4 samples"][2:4] == ["8.0 s", "40 of 160"]
    assert len(cells) == 2 + 7
    assert f"assets/{stored.SAMPLES}.png" in block
    whole, how = stored.section(results), stored.reading(results)
    figure, _ = several.over_time(how, results, whole.figures)
    ends = {curve.name: (curve.x[0], curve.x[-1]) for curve in figure.curves}
    assert ends["ReinMax, 4 samples, τ = 1"] == pytest.approx((0.5, 4.0))
    assert several.value_at({10: 1.0}, 9) is None
    assert several.value_at({10: 1.0, 20: 3.0}, 25) == 3.0
    assert several.value_at({}, 1) is None


def bits_in_place(monkeypatch, name, epochs, **curves):
    """Made-up results of a recipe: each curve is a function of the line's number and the epoch."""
    search, rows, known = recipe(name), [], {}
    keys = list(search.keys())
    for run in search.runs():
        number = keys.index(run.estimator)
        values = {
            metric: {epoch: f(number, epoch) + 0.01 * run.seed for epoch in epochs}
            for metric, f in curves.items()
        }
        known |= {(run.identity, metric): curve for metric, curve in values.items()}
        ends = {metric: curve[epochs[-1]] for metric, curve in values.items()}
        rows.append(row_of(run, **ends))
    put_in_place_of(monkeypatch, Results(name, tuple(rows), known))


def test_curves_of_the_bernoulli_vae_over_steps_and_over_seconds(monkeypatch, tmp_path):
    use_temperatures(monkeypatch, tmp_path / "temperatures.csv")
    name, other = "bernoulli-vae-mnist-k2", "bernoulli-vae-mnist-k3"
    first = row_of(recipe(other).runs()[0], "started")
    put_in_place_of(monkeypatch, *map(Results, (*stored.BITS, *stored.BIT_GRADIENTS)))
    put_in_place_of(monkeypatch, Results(other, (first,)))
    bits_in_place(
        monkeypatch,
        name,
        (1, 100, 500, 1000),
        train=lambda number, epoch: 100.0 + number + 50 / epoch,
        test=lambda number, epoch: 105.0 + number + 50 / epoch,
        gpu_seconds=lambda number, epoch: (5 + number) * epoch / 1000,
    )
    drawn = {path.stem: figures for path, figures in pictures.of_curves().items()}
    # what has no finished run has no picture, neither here nor on the page
    assert [x for x in drawn if x.startswith("bernoulli")] == [name]
    figures = drawn[name]
    assert [(figure.y_label.split()[0], figure.x_label.split()[0]) for figure in figures] == [
        *(("Train", "step"), ("Train", "seconds"), ("Test", "step"), ("Test", "seconds"))
    ]
    for figure, start in zip(figures, (100.0, 100.0, 105.0, 105.0), strict=True):
        assert len(figure.curves) == 14
        for number, curve in enumerate(figure.curves):
            # the mean of the seeds 0 to 4, without the first tenth of each line's own axis
            ends = [start + number + 50 / epoch + 0.02 for epoch in (100, 500, 1000)]
            assert curve.y == pytest.approx(ends)
            seconds = [(5 + number) * epoch / 1000 + 0.02 for epoch in (100, 500, 1000)]
            steps = [100_000, 500_000, 1_000_000]
            assert curve.x == pytest.approx(steps if figure.x_label == "step" else seconds)
    block = part("bits")
    assert re.findall(r"assets/[^)]+", block) == [f"assets/{name}.png"]
    about, *_ = block.split("\n\n")
    assert " ".join(about.split()) == f"{reproduction.BANDS} {reproduction.WITHOUT_TENTH}"
    assert f"**{recipe(name).title}**\n\n![" in block
    assert f"it takes `discretegrad run` of `{stored.BITS[1]}`" in block
    assert '??? note "The margin of ReinMax, MNIST, K = 2"' in block
    assert name in stored.shown()


def test_gradients_of_the_bernoulli_vae_have_a_place(monkeypatch, tmp_path):
    use_temperatures(monkeypatch, tmp_path / "temperatures.csv")
    put_in_place_of(monkeypatch, *map(Results, stored.BIT_GRADIENTS))
    none = part("bit gradients")
    assert "".join(none.split()) == (
        "Nottrainedhereyet;ittakes`discretegradrun`of`bernoulli-vae-gradients-k2`,"
        "`bernoulli-vae-gradients-k3`."
    )
    name = "bernoulli-vae-gradients-k3"
    bits_in_place(
        monkeypatch,
        name,
        (1, 10, 30, 100, 300),
        gradient_deviation=lambda number, epoch: 1.0 + number,
        gradient_bias=lambda number, epoch: 0.0,
        gradient_bias_bound=lambda number, epoch: 0.1 + number,
    )
    (figures,) = (x for path, x in pictures.of_curves().items() if path.stem == name)
    assert [(figure.y_label, figure.log_y) for figure in figures] == [
        ("relative standard deviation", True),
        ("relative bias and two standard errors", True),
    ]
    for figure, start in zip(figures, (1.0, 0.1), strict=True):
        assert {curve.x for curve in figure.curves} == {(1000, 10_000, 30_000, 100_000, 300_000)}
        # the mean of the seeds 0 to 2
        found = [curve.y[-1] for curve in figure.curves]
        assert found == pytest.approx([start + number + 0.01 for number in range(11)])
    block = part("bit gradients")
    assert re.findall(r"assets/[^)]+", block) == [f"assets/{name}.png"]
    assert (
        "not trained here yet; it takes `discretegrad run` of `bernoulli-vae-gradients-k2`" in block
    )
    assert name in overview.runs_table()
    assert any("begin generated: bit gradients" in text for text in on_the_paper().values())


def test_searches_show_their_cells_probabilities_and_curves(monkeypatch):
    put_in_place_of(monkeypatch, Results(stored.SEARCHED))
    before = set(pictures.drawings())
    assert before <= set(pictures_on(pages.DOCS / "listops.md"))
    assert part("architectures") == "Not trained here yet; it takes `discretegrad run nas-cifar10`."
    rows, curves = [], {}
    for run in recipe(stored.SEARCHED).runs():
        metrics = {
            "validation": 89.0 + run.seed,
            "test": 92.0,
            "cell_number": 15_624.0,
            "entropy": 1.6,
        }
        rows.append(row_of(run, **metrics))
        curves[run.identity, "validation"] = {1: 10.0, 10: 80.0, 100: metrics["validation"]}
    results = Results(stored.SEARCHED, tuple(rows), curves)
    put_in_place_of(monkeypatch, results)
    drawn = {path.name: svg for path, svg in pictures.drawings().items() if path not in before}
    assert list(drawn) == ["nas-cifar10-cells.svg", "nas-cifar10-probabilities.svg"]
    # of 20 searches
    assert drawn["nas-cifar10-cells.svg"].count("<circle") == 4 * 20
    assert all("background:var(--page,#fff)" in svg for svg in drawn.values())
    block = " ".join(part("architectures").split())
    assert reproduction.WITHOUT_TENTH in block
    assert re.findall(r"assets/[^)]+", block) == [
        *(f"assets/{name}" for name in drawn),
        "assets/nas-cifar10.png",
    ]
    for drawing in stored.section(results).drawings:
        shown = f"![{drawing.title}](../assets/nas-cifar10-{drawing.file})"
        assert f"{shown} {drawing.caption}" in block
    (figures,) = (x for path, x in pictures.of_curves().items() if path.stem == "nas-cifar10")
    (figure,) = (x for x in figures if x.y_label.startswith("validation"))
    *arms, _, _, _ = figure.curves
    assert len(arms) == 5
    assert all(curve.y == pytest.approx((80.0, 90.5)) for curve in arms)
    assert [curve.name for curve in figure.curves[5:]] == [
        *("optimum", "all edges conv 3x3", "random, best of 8")
    ]
    assert all(tuple(curve.x) == (10, 100) for curve in figure.curves)


def test_measures_of_the_main_table(column, monkeypatch):
    assert "it takes `discretegrad measure vae-10x30`" in sizes.measures_tables()
    rows = [
        replace(row, measured=Measured({"test_bound": 90.0 + row.config["seed"]}))
        if row.config["estimator"] == "st"
        else row
        for row in column.rows
    ]
    put_in_place_of(monkeypatch, replace(column, rows=tuple(rows)))
    cells = lines_of(sizes.measures_tables())
    assert cells["ST"] == [sizes.DASH] * 5 + ["94.50 ± 2.17"]
    assert cells.keys() == {"test bound, 1,000 samples", "---", "ST"}
    assert "**Finished models**" in reports.tables_and_claims(stored.VAE)


def test_what_is_chosen_by_train_and_by_test(monkeypatch, tmp_path):
    """Ten seeds of the settings that the search found best, beside the paper's tables."""
    names = [name for columns in stored.CHOSEN.values() for name in columns]
    put_in_place_of(monkeypatch, *map(Results, names))
    assert sizes.chosen_tables().startswith("Not trained here yet")
    search = recipe("vae-search-8x4")
    use_table(monkeypatch, search.choice, tmp_path / "chosen.csv")
    results = searched(search, lambda run: {"train": 130 - run.tau, "test": 131 + run.tau})
    search.choice.write(search.choice.lines(search, results))
    left = "`discretegrad run vae-chosen-by-train-8x4` and so on for 8x4, whose settings are chosen"
    text = " ".join(sizes.chosen_tables().split())
    assert text == (
        f"Not trained here yet; it takes {left}, and the searches above for the other sizes."
    )
    for by in search.choice.by:
        name = f"vae-chosen-by-{by}-8x4"
        ends = {"train": 123, "test": 127} if by == "train" else {"train": 129, "test": 125}
        rows = [
            row_of(run, **{metric: x + 0.02 * run.seed for metric, x in ends.items()})
            for run in recipe(name).runs()
        ]
        put_in_place_of(monkeypatch, Results(name, tuple(rows)))
    tables = sizes.chosen_tables().split("\n\n")
    for text, by, mean in zip(tables[4:], ("train", "test"), (123, 125), strict=True):
        assert text.startswith(
            f"| {by} \N{MINUS SIGN}ELBO, chosen by {by}, less that of Table 8 | 8x4 |"
        )
        main = [row.metrics[by] for row in stored.read("vae-8x4").where(estimator="reinmax")]
        found, *others = lines_of(text)["ReinMax"]
        # Welch's half interval with the freedom of ten runs that hardly vary beside ten that do
        assert found.startswith(f"{mean + 0.09 - fmean(main):+.2f} ± ")
        assert float(found.rpartition(" ")[2]) == pytest.approx(
            2.26 * stdev(main) / 10**0.5, abs=0.02
        )
        assert others == [sizes.DASH] * 5
    for text, (number, metric, by, mean) in zip(
        tables[:4],
        [
            *((2, "train", "train", 123), (9, "test", "train", 127)),
            *((10, "test", "test", 125), (11, "train", "test", 129)),
        ],
        strict=True,
    ):
        assert text.startswith(
            f"| Table {number}: {metric} \N{MINUS SIGN}ELBO, chosen by {by} | 8x4"
        )
        published = sizes.published_cells()[number, "reinmax", "8x4"].value
        cells = lines_of(text)["ReinMax"]
        # half an interval of ten numbers that are 0.02 apart
        assert cells[0] == f"{mean + 0.09:.2f} ± 0.04 ({published:.2f})"
        assert cells[1:6] == [sizes.DASH] * 5
        assert "vae-chosen-by-test-8x4" in overview.runs_table()


def test_the_main_table_marks_published_numbers_in_doubt():
    assert "?" not in sizes.main_table("train", 2)
    rows = lines_of(sizes.main_table("test", 9))
    marked = {name: [cell for cell in cells if "?" in cell] for name, cells in rows.items()}
    # the number itself, and the mean that contains it
    assert [cell.split("(")[1] for cell in marked.pop("STGS")] == ["99.32?)", "106.89?)"]
    assert [cell.split("(")[1] for cell in marked.pop("ST")] == ["118.46?)", "118.85?)"]
    assert not any(marked.values())


def test_sizes_together_weigh_each_by_how_sure_it_is():
    both = pooled.pooled([Comparison(1.0, 0.5, 0.0), Comparison(4.0, 1.0, 0.0)])
    assert both.difference == pytest.approx((4 * 1.0 + 1 * 4.0) / 5)
    assert both.half == pytest.approx(1 / 5**0.5)
    # an interval that just holds 0
    assert pooled.pooled([Comparison(-0.7, 0.7, 0.0)]).p == pytest.approx(0.05)


def test_sizes_together_leave_out_numbers_in_doubt():
    read = [(stored.reading(x), x) for x in map(stored.read, stored.COLUMNS)]
    rows = lines_of(pooled.table(read, ("train", "test")))
    # ST has one at 10x30, STGS one at 8x16, both by test
    counts = {
        name: (int(cells[0]), int(cells[3])) for name, cells in rows.items() if cells[0].isdigit()
    }
    assert counts == {
        **dict.fromkeys(("GR-MCK", "GST-1.0", "ReinMax"), (6, 6)),
        **dict.fromkeys(("STGS", "ST"), (6, 5)),
        "all together": (30, 28),
    }


def test_recipes_that_nobody_trained_take_one_sentence(monkeypatch):
    none = reports.parts_if_stored({name: "Title" for name in stored.LARGE})
    assert none == (
        "Not trained here yet; it takes `discretegrad run` of `vae-32x64`, `vae-64x32`."
    )
    first, *others = recipe("vae-64x32").runs()
    rows = (row_of(first, train=90.0, test=91.0), *(row_of(x, "missing") for x in others))
    put_in_place_of(monkeypatch, Results("vae-64x32", rows))
    some = reports.parts_if_stored({"vae-32x64": "Title", "vae-64x32": "Other title"})
    assert some.startswith("**Other title**\n\n??? note")
    assert some.endswith(
        "\n\nOf these not trained here yet; it takes `discretegrad run` of `vae-32x64`."
    )


def test_a_setting_that_is_that_of_table_8_gains_nothing(monkeypatch):
    rows = stored.read("vae-8x4").where(estimator="stgs")
    put_in_place_of(monkeypatch, Results("vae-chosen-by-test-8x4", tuple(rows)))
    cells = lines_of(sizes.gained_table("test"))
    assert cells["STGS"] == ["the same", *[sizes.DASH] * 5]
    assert cells["ST"] == [sizes.DASH] * 6


def test_the_table_of_efficiency_is_that_of_the_benchmark():
    rows = kernels.PAGE.read().of(section="efficiency")
    cells = lines_of(efficiency.table_of_the_paper(rows))
    assert "| QP, this library |" in on_the_paper()["vae"]
    assert cells["QP, published"] == [
        efficiency.epoch(row) for row in rows if (row["case"], row["mode"]) == ("QP", "published")
    ]
    ours = [row for row in rows if row["mode"] == "ours" and row["provider"] == "GR-MCK 1000"]
    assert [cells[f"{row['case']}, this library"][-1] for row in ours] == [
        efficiency.epoch(row) for row in ours
    ]


def test_the_heat_map_has_the_stored_runs():
    """A panel for each size; what a cell says is the mean of its runs and how many failed."""
    results = stored.read(stored.TEMPERATURES)
    ((path, figures),) = pictures.maps().items()
    assert path.name == f"{stored.TEMPERATURES}.png"
    assert [figure.title.partition(", ")[2] for figure in figures] == [
        f"{categories} categories, {latents} latents"
        for categories, latents in ((4, 24), (8, 16), (16, 12), (64, 8))
    ]
    names = {"stgs": "STGS", "gr-mck": "GR-MCK", "gst-1.0": "GST-1.0", "st": "ST"}
    names["reinmax"] = "ReinMax"
    failed = set()
    for categories, figure in zip((4, 8, 16, 64), figures, strict=True):
        curves = {curve.name: curve for curve in figure.curves}
        assert list(curves) == list(names.values())
        for key, name in names.items():
            curve = curves[name]
            assert list(curve.x) == [0.1, 0.3, 0.5, 0.7, 1, 2, 3, 4, 5]
            for tau, value, count in zip(curve.x, curve.y, curve.failed, strict=True):
                rows = results.where(estimator=key, categories=categories, tau=tau)
                assert len(rows) == 2
                assert value == pytest.approx(fmean(row.metrics["train"] for row in rows))
                failed |= {(categories, key, tau, count)} if count else set()
    assert failed == {(categories, "gst-1.0", 0.1, 2) for categories in (4, 8, 16)}


def test_failed_runs_stand_beside_means():
    cells = lines_of(sizes.main_table("train", 2))
    small = stored.read("vae-8x4")
    failed = small.failed(stored.reading(small).metrics[0])
    assert {row.config["estimator"] for row in failed} == {"mean-2"}
    middle = median(row.metrics["train"] for row in small.where(estimator="mean-2"))
    expected = f"(median {middle:.2f}, {len(failed)} of 10 failed)"
    assert cells["1/n baseline, order 2"][0].endswith(expected)
    assert cells["ReinMax"][0].endswith(" (124.66)")


def test_published_spreads_of_the_vae_are_standard_deviations():
    """Those of our ten seeds are as large; the page on the lab says how large."""
    shares = []
    for (number, key, size), cell in sizes.published_cells().items():
        if number in (2, 9) and cell.spread is not None:
            rows = stored.read(f"vae-{size}").where(estimator=key)
            shares.append(stdev(row.metrics[cell.measure] for row in rows) / cell.deviation)
    assert len(shares) == 60
    page = (pages.DOCS / "lab.md").read_text(encoding="utf-8")
    assert f"{median(shares):.2f} times as large (the median of {len(shares)} cells)" in page
    # far from what standard errors of ten runs would make it
    assert 0.8 < median(shares) < 1.25


def test_stored_bounds_are_bounds():
    """The mean of many samples is the test loss, which had one, and the bound is no larger."""
    for name in stored.COLUMNS:
        for row in stored.read(name).rows:
            if row.measured is not None:
                values = row.measured.values
                assert values["test_bound"] <= values["test_mean_elbo"], row.identity
                assert values["test_mean_elbo"] == pytest.approx(row.metrics["test"], abs=1)
