"""Every example is short, runs by itself in a minute on a CPU, and what it claims holds."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


# one after the other in one process, since importing torch takes as long as an example
RUNNER = """
import runpy, sys, traceback
for path in sys.argv[1:]:
    print("example:", path)
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException:
        print("failed:", traceback.format_exc())
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each example printed."""
    folder = tmp_path_factory.mktemp("examples")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", RUNNER, *map(str, EXAMPLES)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == [], "examples leave no files"
    parts = done.stdout.split("example: ")[1:]
    return {Path(part.splitlines()[0]): part for part in parts}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_its_claims_hold(path, outputs):
    assert "failed:" not in outputs[path], outputs[path]
    claims = [line for line in outputs[path].splitlines() if line.startswith("claim: ")]
    assert claims, "an example prints lines that begin with 'claim: ' and end with 'holds'"
    assert all(claim.endswith(": holds") for claim in claims), outputs[path]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_needs_the_library_only(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    imports = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    packages = {name.split(".")[0] for name in imports} - sys.stdlib_module_names
    assert packages <= {"torch", "discretegrad"}
    assert f"python examples/{path.name}" in ast.get_docstring(ast.parse(text))


def test_gallery_and_notebooks_are_made_from_the_examples():
    script = ROOT / "docs" / "scripts" / "gallery.py"
    spec = importlib.util.spec_from_file_location("gallery", script)
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    made = gallery.files()
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"old: python {script.relative_to(ROOT)}"
    notebooks = [path for path in made if path.suffix == ".ipynb"]
    assert sorted((ROOT / "docs" / "notebooks").iterdir()) == sorted(notebooks)
    for path in EXAMPLES:
        cells = json.loads(made[ROOT / "docs" / "notebooks" / f"{path.stem}.ipynb"])["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        # all but the docstring, with the call in place of the guard around it
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [*tree.body[1:-1], *tree.body[-1].body]
        assert ast.dump(ast.parse(code)) == ast.dump(tree)
