"""The demo: what ``make demo`` runs and leaves behind, and that the README shows stored results."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discretegrad_lab import cli, tasks
from discretegrad_lab.report import plots
from discretegrad_lab.report.folder import read_section
from discretegrad_lab.report.results import read, significant
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


class Demo:
    """The commands of ``make demo`` on runs of four steps, in a folder of its own."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "200")
        self.runs = [run for name in RECIPE.keys() for run in short(name, 0)]
        recipes = (replace(RECIPE, build=short), *polynomial.RECIPES[1:])
        monkeypatch.setattr(polynomial, "RECIPES", recipes)
        self.folder = folder
        lines = recipe_of_make()
        self.commands = [line[1:] for line in lines if line[0] == ".venv/bin/discretegrad"]
        self.said = " ".join(word for line in lines if line[0] == "echo" for word in line[1:])
        assert len(self.commands) + sum(line[0] == "echo" for line in lines) == len(lines)

    def make(self):
        """What it prints."""
        text = ""
        for command in self.commands:
            result = CliRunner().invoke(cli.app, command)
            assert result.exit_code == 0, result.output
            text += result.stdout
        return text

    def files(self):
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def demo(tmp_path, monkeypatch):
    return Demo(tmp_path, monkeypatch)


def test_it_trains_on_a_cpu_and_stays_in_a_folder_that_git_ignores(demo):
    assert [command[:2] for command in demo.commands] == [
        ["run", NAME],
        ["report", NAME],
        ["plot", NAME],
    ]
    training = demo.commands[0]
    assert training[training.index("--device") + 1] == "cpu"
    demo.make()
    assert all(name.startswith("output/demo/") for name in demo.files())
    assert "output/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()


def test_tables_page_and_picture_follow_from_the_runs(demo):
    shown = demo.make()
    named = re.findall(r"output/[\w./-]+\.\w+", demo.said)
    picture, page = (demo.folder / name for name in named)
    assert (picture.suffix, page.suffix) == (".png", ".html")

    store = Store(demo.folder / "output" / "demo" / "runs")
    html = page.read_text(encoding="utf-8")
    tables = re.split(r"^p = (\S+) *$", shown, flags=re.MULTILINE)
    lines = {
        float(power): [line.split() for line in text.splitlines()]
        for power, text in zip(tables[1::2], tables[2::2], strict=True)
    }
    losses = set()
    for run in demo.runs:
        stored = significant(store.load(run).metrics[-1]["expected_loss"])
        loss = decimal(float(stored), 5)
        words = [*LINES[run.estimator].label.split(), loss]
        assert words in [line[: len(words)] for line in lines[run.power]]
        assert f">{loss}<" in html
        losses.add(loss)
    assert len(losses) > len(demo.runs) / 2
    again = demo.folder / "again.png"
    figures = read_section(picture.parent)[1].figures
    assert [figure.title for figure in figures] == ["p = 1.5", "p = 2", "p = 3"]
    plots.draw(figures, again)
    assert picture.read_bytes() == again.read_bytes()


def test_the_second_time_it_only_reports(demo):
    first, before = demo.make(), demo.files()
    second = demo.make()
    assert f"{len(demo.runs)} finished" in first
    assert f"{len(demo.runs)} done before" in second
    assert demo.files() == before
    tables = slice(second.index("p = 1.5"), second.index("Wrote"))
    assert second[tables] in first
    # what it says to remove is all there is
    assert demo.said.endswith("rm -r output/demo")


def test_the_stored_results_are_those_of_the_recipe():
    found = read(ROOT / "results" / NAME)
    again = "run and report polynomial-headline again, then python benchmarks/table.py"
    assert {row.identity for row in found.rows} == {run.identity for run in RECIPE.runs()}, again
    assert {row.state for row in found.rows} == {"finished"}, again


def test_the_stored_reports_follow_from_the_stored_results():
    result = CliRunner().invoke(cli.app, ["report", "--check", "--results", str(ROOT / "results")])
    assert result.exit_code == 0, result.output
