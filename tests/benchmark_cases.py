"""What the tests of the benchmarks share: the scripts as modules, rehearsals, gates, targets."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch

from oracles import one_thread

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # the scripts import each other by plain names

SCRIPTS = (
    "against claims collapses contest efficiency files kernels listops lookups machine "
    "measure memory overview pages pictures plain plain_tree polynomial pooled profiles readme "
    "reports reproduction run samplers script search several sizes stacks steps stored subsets "
    "table timing whole_runs"
)
(
    against,
    claims,
    collapses,
    contest,
    efficiency,
    files,
    kernels,
    listops,
    lookups,
    machine,
    measure,
    memory,
    overview,
    pages,
    pictures,
    plain,
    plain_tree,
    polynomial,
    pooled,
    profiles,
    readme,
    reports,
    reproduction,
    run,
    samplers,
    script,
    search,
    several,
    sizes,
    stacks,
    steps,
    stored,
    subsets,
    table,
    timing,
    whole_runs,
) = map(importlib.import_module, SCRIPTS.split())
CPU = machine.Setup(torch.device("cpu"), quick=True, bandwidth=1e9)


def lines_of(text: str) -> dict[str, list[str]]:
    """The cells of the lines of a table by the first one."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {name: cells for name, *cells in lines}


def on_the_paper() -> dict[str, str]:
    """The words of each page on the paper, in one line."""
    texts = {x.path.stem: x.path.read_text(encoding="utf-8") for x in reproduction.PAGES}
    return {name: " ".join(text.split()) for name, text in texts.items()}


def part(name: str) -> str:
    """What is written for a generated part of the pages on the paper, whichever of them has it."""
    (write,) = (parts[name] for parts in reproduction.PARTS.values() if name in parts)
    return write()


def seeded_on_one_thread() -> Iterator[None]:
    """A fixture."""
    torch.manual_seed(0)
    yield from one_thread()


def rehearse(
    benchmark: script.Benchmark, arguments: Sequence[str], folder: Path
) -> SimpleNamespace:
    """A rehearsal: its exit code, its folder, and whether it left the stored results alone."""
    stored = sorted(BENCHMARKS.glob("*.csv"))
    before = [path.read_bytes() for path in stored]
    given = ["--device", "cpu", "--quick", *arguments, "--output", str(folder)]
    code = benchmark.main([*given, "--threads", "1"])
    untouched = before == [path.read_bytes() for path in stored]
    return SimpleNamespace(code=code, folder=folder, untouched=untouched)


def check_complete(rows: Sequence[pages.Row], file: files.File) -> None:
    """Everything was measured, has the columns of what is stored, and says where and how."""
    assert list(rows[0]) == list(file.columns)
    for row in rows:
        assert row.get("status", "ok") == "ok", row
        for column in ("torch", "python", "commit", "date", "command"):
            assert row[column]
        if "copy_bandwidth" in row:
            assert float(row["copy_bandwidth_end"]) > 0
        if row.get("seconds"):
            low, middle, high = (float(row[f"seconds{x}"]) for x in ("_p20", "", "_p80"))
            assert 0 < low <= middle <= high


def check_verdicts(target: pages.Target) -> None:
    """What is as good as promised is met, what is a little worse or wrong is missed."""
    spread = (target.column, f"{target.column}_p20", f"{target.column}_p80")
    better, limit = 1.01 if target.is_least else 0.99, target.limit * target.unit
    for value, verdict in ((limit * better, "met"), (limit / better, "**missed**")):
        row = {**target.where, "status": "ok"} | dict.fromkeys(spread, str(value))
        shown, judged = target.judged([row])
        assert (bool(shown), judged) == (True, verdict)
    red = {**target.where, "status": "red gate: it is wrong"}
    assert target.judged([red]) == ("red gate: it is wrong", "**missed**")
    unmeasured = {**target.where, "status": "ok", target.column: ""}
    assert target.judged([unmeasured]) == target.judged([]) == ("", "not measured")


def check_page(page: pages.Page, results: pages.Results, label: Callable) -> str:
    """A page shows what was measured, and why something was not."""
    for rows in pages.cases([x for x in results.rows if "source" not in x], "section"):
        text = page.text(pages.Results(rows))
        assert "Not measured yet." in text
        assert all(label(row) in text for row in rows)
        lost = [row | {"status": "out of memory"} for row in rows]
        assert "| out of memory |" in page.text(pages.Results(lost))
    text = page.text(results)
    assert "Not measured yet." not in text
    assert results.rows[0]["command"] in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 100
    return text


def changed_gradient(sample: Callable, change: Callable) -> Callable:
    """A sampler whose gradient is changed on the way back."""

    def changed(logits):
        logits = logits.clone()
        logits.register_hook(change)
        return sample(logits)

    return changed
