"""``make soak``: it finds planted errors, makes their cases smaller, and counts what it did."""

import csv
import itertools
import multiprocessing
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import discretegrad
from benchmark_cases import files, pages, table
from conftest import has_triton

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
kinds, run = (pytest.importorskip(f"soak.{name}") for name in ("kinds", "run"))


def test_a_case_is_picked_by_its_number_and_said_in_words():
    for kind in run.KINDS.values():
        configs = [kind.pick(number) for number in range(8)]
        assert configs == [kind.pick(number) for number in range(8)]
        assert len({str(config) for config in configs}) > 4
        for config in configs:
            command = shlex.split(kind.command(config))
            assert kind.parse(command[5:]) == config
            assert run.parse(command[3:]).single == (kind, config)
    with pytest.raises(ValueError, match="expected FIELD=VALUE with a field of case, dtype"):
        run.KINDS["sampler"].parse(["gap=81"])


def test_a_planted_error_is_found_and_its_case_is_made_smaller(monkeypatch):
    """A sampler whose gradient is a tenth too large where there is a mask."""
    kind = run.KINDS["sampler"]
    config = kind.parse(
        ["case=categorical-straight_through", "dtype=float32", "batch=2x3", "n=5", "mask=true",
         "gap=1", "tau=0.7", "axis=middle", "strides=spread", "seed=77"]
    )  # fmt: skip
    assert kind.failure(config) is None
    row = discretegrad.get("straight_through")
    plain = row.function

    def wrong(logits, *arguments, mask=None, **options):
        z = plain(logits, *arguments, mask=mask, **options)
        if mask is not None and z.requires_grad:
            z.register_hook(lambda g: 1.1 * g)
        return z

    monkeypatch.setitem(row.__dict__, "function", wrong)
    known = set()
    monkeypatch.setattr(kinds.Kind, "pick", lambda kind, number: config)
    report = run.attempt(kind, 5, known)
    expected = "python -m soak --check sampler case=categorical-straight_through mask=true"
    assert report.command in (expected, f"{expected} n=2")
    assert "times what is allowed" in report.problem
    # the same once more is only counted
    again = run.attempt(kind, 6, known)
    assert again.problem
    assert not again.command


def test_a_store_that_skips_a_checksum_is_found(monkeypatch, tmp_path):
    from discretegrad_lab.runs import disk, files
    from discretegrad_lab.runs.store import Saved, Status, Store

    lab = run.lab
    store = Store(tmp_path / "runs")
    for place, one in enumerate(lab.RUNS):
        metrics = [{"epoch": 1, "expected_loss": 0.5 + place}]
        assert store.claim(one)
        state = {"x": discretegrad.testing.normal(3)}
        store.save(one, Saved(Status("started", 1), metrics, [{"device": "cpu"}], state))
        store.release(one)
    monkeypatch.setattr(lab, "whole", lambda: lab.Whole(tmp_path, {}, 1.0))
    kind = run.KINDS["damage"]
    fields = {**kind.parse(["how=flip", "file=metrics"]), "seed": 3}
    assert kind.run(fields) == 1
    for module, name in itertools.product((disk, files), ("_sha256", "sha256")):
        monkeypatch.setattr(module, name, lambda content: "0" * 64, raising=False)
    error = kind.failure(fields)
    smaller, again = kind.shrink(fields, error, 5.0)
    assert kind.command(smaller).startswith("python -m soak --check damage")
    assert isinstance(again, AssertionError)


def test_a_short_soak_passes_and_writes_its_counts(tmp_path, capsys):
    only = ["rule", "unbiased"]
    arguments = ["--seconds", "5", "--only", *only, "--first", "0", "--output", str(tmp_path)]
    assert run.main(arguments) == 0
    with (tmp_path / "soak.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == only
    assert all(int(row["cases"]) > 0 and row["failed"] == "0" for row in rows)
    assert "--first 0" in rows[0]["command"]
    out = capsys.readouterr().out
    assert "comparisons; 0 failed" in out
    # and the page shows them
    page = table.reliability.PAGE
    text = page.text(pages.Results(files.read_csv(tmp_path / "soak.csv")))
    assert f"| {int(rows[0]['cases']):,} |" in text
    assert "Nothing was found." in text
    found = [{**rows[0], "failed": "2", "reproductions": "python -m soak --check rule seed=3"}]
    assert "python -m soak --check rule seed=3" in page.text(pages.Results(found))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_worker_that_dies_is_a_finding_and_another_one_goes_on(tmp_path, monkeypatch, capsys):
    # a copy of this process, where the kind is another one
    monkeypatch.setattr(run, "CONTEXT", multiprocessing.get_context("fork"))
    dies = kinds.Kind("rule", "library", "", {"seed": range(9)}, lambda c: os._exit(7))
    monkeypatch.setitem(run.KINDS, "rule", dies)
    options = ["--seconds", "1", "--only", "rule", "--first", "0", "--output", str(tmp_path)]
    assert run.main(options) == 1
    out = capsys.readouterr().out
    for number in range(2):
        assert f"python -m soak --case rule-{number}" in out
    assert "died with the exit code 7" in out


@pytest.mark.skipif(not has_triton, reason="needs Triton")
def test_a_found_case_with_kernels_runs_again_by_its_command():
    """In a process of its own, where nobody has told Triton to run without a GPU before."""
    case = {"case": "categorical-reinmax", "dtype": "float32", "backend": "triton"}
    command = run.KINDS["index"].command(case)
    words = [sys.executable, *shlex.split(command)[1:]]
    environ = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(words, cwd=run.ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("nothing is wrong\n")
