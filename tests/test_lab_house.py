"""How the lab is laid out: imports point one way, and only a task's folder has its name."""

import ast
import re
from pathlib import Path

import pytest

import discretegrad_lab
from discretegrad_lab import tasks
from discretegrad_lab.tasks.data import DATA_SETS

LAB = Path(discretegrad_lab.__file__).parent
# a package may import itself and what comes after it
ORDER = ("cli", "report", "watch", "runs", "tasks", "stack")
BESIDE = {"report": {"watch"}, "watch": {"report"}}
FILES = sorted(LAB.rglob("*.py"))


def parts_imported(file):
    """The packages of the lab that a file imports from, also within functions."""
    package = file.relative_to(LAB).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = (node.module or "").split(".") if node.module else []
            if node.level:
                names = [*package[: len(package) - node.level + 1], *names]
            elif names[:1] == ["discretegrad_lab"]:
                names = names[1:]
            else:
                continue
            found |= {names[0]} if names else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first, _, rest = alias.name.partition(".")
                found |= {rest.split(".")[0]} if first == "discretegrad_lab" else set()
    return found & set(ORDER)


def wrong_imports(file):
    part = file.relative_to(LAB).parts[0]
    if part not in ORDER:
        return set()
    allowed = set(ORDER[ORDER.index(part) :]) - BESIDE.get(part, set())
    return parts_imported(file) - allowed


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(LAB)))
def test_imports_point_one_way(file):
    assert wrong_imports(file) == set()


def test_an_import_the_other_way_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "LAB", tmp_path)
    for name, text, wrong in (
        ("stack/one.py", "from ..tasks.base import Task", {"tasks"}),
        ("stack/two.py", "def f():\n    import discretegrad_lab.runs.store", {"runs"}),
        ("tasks/vae/three.py", "from ... import cli\nfrom ..base import Task", {"cli"}),
        ("report/four.py", "from ..watch import words", {"watch"}),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        assert wrong_imports(tmp_path / name) == wrong, name


WORDS = re.compile(
    rf"(?<![A-Za-z])({'|'.join([*tasks.FOLDERS, *DATA_SETS])})(?![A-Za-z])", re.IGNORECASE
)
METRICS = {
    metric.name
    for task in map(tasks.task, tasks.FOLDERS)
    for metric in (*task.metrics, *(task.measures.metrics if task.measures else ()))
}


def names_of_tasks(file):
    """Tasks and data sets anywhere in a file, and metrics as texts of the program."""
    text = file.read_text(encoding="utf-8")
    found = {match[0].lower() for match in WORDS.finditer(text)}
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} & METRICS
    return found


OUTSIDE = [
    file
    for file in sorted(LAB.rglob("*"))
    if file.suffix in (".py", ".html", ".csv") and file.relative_to(LAB).parts[0] != "tasks"
]


@pytest.mark.parametrize("file", OUTSIDE, ids=lambda file: str(file.relative_to(LAB)))
def test_nothing_outside_of_tasks_names_one(file):
    assert names_of_tasks(file) == set()


def test_a_task_is_a_folder_and_a_line():
    folders = {path.parent.name for path in LAB.glob("tasks/*/__init__.py")}
    assert folders == set(tasks.FOLDERS)
    for name in tasks.FOLDERS:
        naming = [file for file in FILES if re.search(rf"\b{name}\b", file.read_text().lower())]
        outside = {file.name for file in naming if "tasks" not in file.relative_to(LAB).parts[:-2]}
        assert outside == {"__init__.py"}, name
