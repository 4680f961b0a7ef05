"""Every example is short, runs by itself in a minute on a CPU, and what it claims holds."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_its_claims_hold(path, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    claims = [line for line in done.stdout.splitlines() if line.startswith("claim: ")]
    assert claims, "an example prints lines that begin with 'claim: ' and end with 'holds'"
    assert all(claim.endswith(": holds") for claim in claims), done.stdout
    assert list(tmp_path.iterdir()) == []


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
