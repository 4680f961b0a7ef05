"""The files of a report in the folder of its results, and whether they follow from those."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from ..runs.files import UnusableFile, read_file
from ..runs.store import Store
from ..stack.config import Run
from ..tasks.base import Recipe
from ..tasks.chosen import NotChosen
from ..tasks.evidence import Results
from ..tasks.halving import OtherSearch
from .document import Section
from .entries import entries, entries_csv
from .html import to_html
from .markdown import to_markdown, verdicts_csv
from .reading import READING, Reading, of_configs, of_recipe, of_results
from .results import RUNS, collect, irreplaceable, mark_dropped, merge, read, worth
from .results import write as write_files
from .section import page, section
from .sources import CHECKSUMS, lack, write_derived, writer

REPORT, TABLE, CLAIMS, PAGE = "report.md", "table.csv", "claims.csv", "report.html"
_LARGEST = 1 << 30
"""Bytes that a file may have to be read at all."""


def read_section(folder: Path) -> tuple[Results, Section]:
    """The results in a folder, and the report on them."""
    results = read(folder)
    return results, section(of_results(results, folder), results)


def contents(folder: Path) -> dict[str, str]:
    """What the files of a report should have in them, by name."""
    results, whole = read_section(folder)
    return {
        **{drawing.file: drawing.svg for drawing in whole.drawings},
        REPORT: to_markdown(whole),
        TABLE: entries_csv(entries(of_results(results, folder), results)),
        CLAIMS: verdicts_csv(whole),
        PAGE: to_html(page(whole)),
    }


def write(folder: Path) -> None:
    """Write the report on the results in a folder beside them: Markdown, CSV and a page."""
    write_derived(folder, lambda: contents(folder))


def gather(
    reading: Reading,
    runs: Sequence[Run],
    store: Store,
    results: Path,
    damaged: list[str],
    *,
    keep_all: bool = False,
) -> Results:
    """What a store has of some runs, and what only the folders below ``results`` have.

    Recipes share runs, so the folders of others count where that of the recipe has none.
    ``damaged`` takes the reasons why runs cannot be read. With ``keep_all`` all runs stay that the
    folder of the recipe has, also those that a store has and nobody asked for.

    Raises:
        ValueError: If results cannot be read, or have what is of other settings than the recipe
            has now and would be averaged with its runs.
    """
    curves_of = [metric.name for metric in reading.metrics] if reading.curves else []
    curves_of += reading.traced
    stored = collect(reading.name, runs, store, curves_of, damaged)
    own = _as_now(reading, read(results / reading.name), store, results)
    try:
        goals = reading.goals(runs, store, own.rows)
    except OtherSearch:
        # of other seeds, for instance: they stay, but decide nothing here
        goals = reading.goals(runs, store, ())
    stored = mark_dropped(stored, goals, store)
    try:
        everything = reading.runs()
    except NotChosen:
        # of a search that was trained for some estimators
        everything = runs
    rows, curves = {row.identity: row for row in own.rows}, dict(own.curves)
    wanted = {x.identity for x in (*everything, *runs) if not worth(rows.get(x.identity))}
    for folder in folders(results) if wanted else ():
        if folder.name == reading.name:
            continue
        others = read(folder)
        better = {
            row.identity: row
            for row in others.rows
            if row.identity in wanted and worth(row) > worth(rows.get(row.identity))
        }
        rows |= better
        curves |= {
            key: x for key, x in others.curves.items() if key[0] in better and key[1] in curves_of
        }
    before = replace(own, rows=tuple(rows.values()), curves=curves)
    return merge(stored, store, before, everything, keep_all=keep_all)


def _as_now(reading: Reading, own: Results, store: Store, results: Path) -> Results:
    """The results of a recipe without what is of settings that it has not any more."""
    outdated = {row.identity: row for row in reading.outdated(own.rows)}
    lost = [row for row in outdated.values() if irreplaceable(row, store)]
    if lost:
        first, folder = lost[0], results / reading.name
        raise ValueError(
            f"expected results of the runs that {reading.name} has now in {folder}, got "
            f"{len(lost):,} with other settings, such as {first.identity} "
            f"({first.config['estimator']}, seed {first.config.get('seed')}), which would be "
            f"averaged with them and are not in {store.root}; rename {folder} and give the same "
            "command again, which takes over from there what is still of the recipe, then move "
            f"the renamed folder out of {results}"
        )
    return replace(own, rows=tuple(row for row in own.rows if row.identity not in outdated))


def write_results(reading: Reading, rows: Results, results: Path) -> Path:
    """Write what was gathered and the report on it; the folder."""
    folder = results / reading.name
    if reading.varying:
        # more may vary than among the runs that were selected
        reading = of_configs(reading.name, [row.config for row in rows.rows])
    how = {} if reading.shipped else {READING: reading.to_json(rows.estimators())}
    write_files(rows, folder, how)
    write(folder)
    return folder


def write_report(recipe: Recipe, store: Store, results: Path | str = "results") -> Path:
    """Write the results of a recipe and the report on them into a folder of its name.

    Args:
        recipe: Whose runs.
        store: Where they are.
        results: Where the folder is.

    Returns:
        The folder, with ``report.html``, ``report.md`` and CSV files.

    Raises:
        ValueError: If there are results of other settings, or none that can be read.
    """
    reading, place = of_recipe(recipe), Path(results)
    return write_results(reading, gather(reading, recipe.runs(), store, place, []), place)


def folders(root: Path) -> list[Path]:
    """Those below ``root`` that have results."""
    return sorted({path.parent for name in (RUNS, CHECKSUMS) for path in root.glob(f"*/{name}")})


def check(root: Path) -> str | None:
    """The first report below ``root`` that does not follow from the results beside it.

    So are results that are damaged, or lack their checksums. The page is optional, since it is too
    large to be committed.

    Returns:
        What differs and where, or None.
    """
    for folder in folders(root):
        try:
            problem = lack(folder, RUNS) or _difference(folder)
        except ValueError as error:
            problem = str(error)
        if problem:
            return problem
    return None


def _difference(folder: Path) -> str | None:
    """Where the report in a folder is not what it should be."""
    remedy = f"write it again with {writer(folder)}"
    for name, text in contents(folder).items():
        place = f"{folder.name}/{name}"
        try:
            there = read_file(folder / name, _LARGEST).decode(errors="replace")
        except UnusableFile as error:
            if name == PAGE and error.missing:
                continue
            return f"expected {place}, got {error.reason}; {remedy}"
        lines = zip_longest(there.splitlines(), text.splitlines(), fillvalue="end of file")
        for number, (old, new) in enumerate(lines, 1):
            if old != new:
                old, new = (x if len(x) < 500 else f"{x[:500]}..." for x in (old, new))
                return f"expected {new!r} in line {number} of {place}, got {old!r}; {remedy}"
    return None
