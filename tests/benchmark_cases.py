"""What the tests of the benchmarks share: loading the scripts, rehearsals, targets, pages."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch

from oracles import one_thread

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@contextmanager
def scripts(**names: str) -> Iterator[SimpleNamespace]:
    """The scripts as modules. They import each other by plain names, which tests use too."""
    modules = list(names.values())
    path, hidden = list(sys.path), {n: sys.modules.pop(n) for n in modules if n in sys.modules}
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield SimpleNamespace(**{key: importlib.import_module(n) for key, n in names.items()})
    finally:
        sys.path[:] = path
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def seeded_and_on_one_thread() -> Iterator[None]:
    """A fixture."""
    torch.manual_seed(0)
    yield from one_thread()


def rehearse(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], folder: Path
) -> SimpleNamespace:
    """A rehearsal: its exit code, its folder, and whether it left the stored results alone."""
    stored = [path for path in BENCHMARKS.iterdir() if path.suffix == ".csv"]
    before = [path.read_bytes() for path in stored]
    code = main(["--device", "cpu", "--quick", *arguments, "--output", str(folder)])
    untouched = before == [path.read_bytes() for path in stored]
    return SimpleNamespace(code=code, folder=folder, untouched=untouched)


def check_is_complete(row: dict[str, str]) -> None:
    """It was measured, and says where and how."""
    assert row["status"] == "ok", row
    for column in ("gpu", "torch", "python", "commit", "date", "command", "copy_bandwidth"):
        assert row[column]
    assert float(row["copy_bandwidth_end"]) > 0


def check_verdicts(target, judged: Callable[[float], tuple[str, str]]) -> None:
    """What is as good as promised is met, and what is a little worse is missed."""
    better = 1.01 if target.is_least else 0.99
    limit = target.limit * target.unit
    for value, verdict in (
        (limit * better, "met"),
        (limit, "met"),
        (limit / better, "**missed**"),
    ):
        shown, found = judged(value)
        assert found == verdict
        assert shown


def written_page(table, folder: Path, picture: str, capsys) -> str:
    """The page of some results, after a check that sees it current, and then what is changed."""
    preview = ["--preview", str(folder)]
    page = folder / table.PAGE.path.name
    assert table.main([*preview]) == 0
    assert table.main([*preview, "--check"]) == 0
    text = page.read_text(encoding="utf-8")
    (folder / "assets" / picture).write_bytes(b"old")
    page.write_text("old")
    capsys.readouterr()
    assert table.main([*preview, "--check"]) == 1
    assert capsys.readouterr().out.count("is not current") == 2
    return text
