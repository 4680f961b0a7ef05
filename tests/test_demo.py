"""The demo: what ``make demo`` runs and leaves behind, and that the README shows stored results."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from discretegrad_lab import cli, tasks
from discretegrad_lab.report import plots
from discretegrad_lab.report.folder import read_section
from discretegrad_lab.report.results import significant
from discretegrad_lab.runs.store import Store
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.tasks import polynomial
from discretegrad_lab.tasks.evidence import decimal

ROOT = Path(__file__).resolve().parents[1]
NAME = "polynomial-headline"
RECIPE = tasks.recipe(NAME)


def recipe_of_make():
    """What ``make demo`` would do once all is installed, line by line."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--dry-run", "--old-file=.venv/.lab", "demo", "VENV=.venv"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return [shlex.split(line) for line in done.stdout.splitlines()]


def short(estimator, seed):
    for run in RECIPE.build(estimator, seed):
        # at such a rate every run ends elsewhere
        yield replace(run, latents=4, batch=4, epochs=2, steps_per_epoch=2, learning_rate=0.5)


RUNS = [run for name in RECIPE.keys() for run in short(name, 0)]


def make(commands):
    """What the commands of ``make demo`` print."""
    results = [CliRunner().invoke(cli.app, command) for command in commands]
    assert all(result.exit_code == 0 for result in results), [x.output for x in results]
    return "".join(result.stdout for result in results)


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_tables_page_and_picture_follow_from_the_runs(tmp_path, monkeypatch):
    """On runs of four steps, in a folder of its own, twice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    short_recipes = (replace(RECIPE, build=short), *polynomial.RECIPES[1:])
    monkeypatch.setattr(polynomial, "RECIPES", short_recipes)
    steps = recipe_of_make()
    commands = [step[1:] for step in steps if step[0] == ".venv/bin/discretegrad"]
    said = " ".join(word for step in steps if step[0] == "echo" for word in step[1:])
    assert len(commands) + sum(step[0] == "echo" for step in steps) == len(steps)
    assert [command[:2] for command in commands] == [[x, NAME] for x in ("run", "report", "plot")]
    assert commands[0][commands[0].index("--device") + 1] == "cpu"

    shown, before = make(commands), files(tmp_path)
    picture, page = (tmp_path / name for name in re.findall(r"output/[\w./-]+\.\w+", said))
    assert (picture.suffix, page.suffix) == (".png", ".html")
    store = Store(tmp_path / "output" / "demo" / "runs")
    html = page.read_text(encoding="utf-8")
    tables = re.split(r"^p = (\S+) *$", shown, flags=re.MULTILINE)
    lines = {
        float(power): [line.split() for line in text.splitlines()]
        for power, text in zip(tables[1::2], tables[2::2], strict=True)
    }
    losses = set()
    for run in RUNS:
        stored = significant(store.load(run).metrics[-1]["expected_loss"])
        loss = decimal(float(stored), 5)
        words = [*LINES[run.estimator].label.split(), loss]
        assert words in [line[: len(words)] for line in lines[run.power]]
        assert f">{loss}<" in html
        losses.add(loss)
    assert len(losses) > len(RUNS) / 2
    figures = read_section(picture.parent)[1].figures
    assert [figure.title for figure in figures] == ["p = 1.5", "p = 2", "p = 3"]

    # the second time it only reports
    again = make(commands)
    assert f"{len(RUNS)} finished" in shown
    assert f"{len(RUNS)} done before" in again
    assert files(tmp_path) == before
    assert again[again.index("p = 1.5") : again.index("Wrote")] in shown
    # it stays in a folder that git ignores, and what it says to remove is all there is
    assert all(name.startswith("output/demo/") for name in before)
    assert "output/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert said.endswith("rm -r output/demo")
    plots.draw(figures, tmp_path / "again.png")
    assert picture.read_bytes() == (tmp_path / "again.png").read_bytes()


def test_the_stored_reports_follow_from_the_stored_results():
    result = CliRunner().invoke(cli.app, ["report", "--check", "--results", str(ROOT / "results")])
    assert result.exit_code == 0, result.output
