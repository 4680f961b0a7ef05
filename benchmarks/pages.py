"""What the pages of the benchmarks share: reading results, writing or checking, words, numbers."""

import argparse
import hashlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from measure import ROOT, STORED, Promise, read_csv

PICTURES = ROOT / "docs" / "assets"
NOT_MEASURED = "Not measured yet."

Row = Mapping[str, str]


# the page and its files


class Results(NamedTuple):
    """What is stored."""

    rows: list[Row]
    digest: str

    def of(self, section: str) -> list[Row]:
        """The rows of a section, in the order they are stored."""
        return [row for row in self.rows if row["section"] == section]


@dataclass(frozen=True)
class Page:
    """A page of the documentation that follows from files of results, with its pictures."""

    script: str
    """What writes it."""
    path: Path
    sources: Sequence[str]
    text: Callable[[Results], str]
    pictures: Callable[[Results], Sequence[str]]
    """The names of those that belong to it."""
    draw: Callable[[Results, Path], Sequence[Path]]
    """Draw them into a folder."""

    def read(self, folder: Path) -> Results:
        """All files, or as much of them as there is."""
        rows: list[Row] = []
        digest = hashlib.sha256()
        for name in self.sources:
            if (path := folder / name).exists():
                digest.update(path.read_bytes())
                rows += read_csv(path)
        return Results(rows, digest.hexdigest())

    def main(self, description: str | None, arguments: Sequence[str] | None) -> int:
        """What the script does."""
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
        parser.add_argument(
            "--preview", type=Path, metavar="DIR", help="read and write there instead"
        )
        options = parser.parse_args(arguments)
        results = self.read(options.preview or STORED)
        page_path, pictures = self.path, PICTURES
        if options.preview:
            page_path, pictures = options.preview / self.path.name, options.preview / "assets"
        if options.check:
            stale = self.stale_files(results, page_path, pictures)
            for path in stale:
                print(f"{relative(path)} is not current: run python {self.script}")
            return 1 if stale else 0
        page_path.write_text(self.text(results), encoding="utf-8")
        for path in (page_path, *self.draw(results, pictures)):
            print(f"written: {relative(path)}")
        return 0

    def stale_files(self, results: Results, page_path: Path, pictures: Path) -> list[Path]:
        """What does not follow from the results. A picture says which numbers it shows."""
        text = self.text(results)
        current = page_path.exists() and page_path.read_text(encoding="utf-8") == text
        stale = [] if current else [page_path]
        for path in (pictures / name for name in self.pictures(results)):
            if not path.exists() or results.digest.encode() not in path.read_bytes():
                stale.append(path)
        return stale


def relative(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


# tables


def provenance_table(rows: Iterable[Row]) -> str:
    """One table for each run of the benchmark; sections may come from several."""
    runs: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in rows:
        changes = " with uncommitted changes" if row["uncommitted_changes"] == "yes" else ""
        bandwidth = f"{tera(row['copy_bandwidth'])}, at the end {tera(row['copy_bandwidth_end'])}"
        about = {
            "date": row["date"],
            "GPU": row["gpu"],
            "copy bandwidth": bandwidth,
            "Python, torch, Triton": f"{row['python']}, {row['torch']}, {row['triton']}",
            "PyPI `reinmax`": row.get("reinmax"),
            "discretegrad": f"{row['discretegrad']}, commit {row['commit']}{changes}",
            "images": row.get("images"),
            "command": f"`{row['command']}`",
        }
        sections = runs.setdefault(tuple((k, v) for k, v in about.items() if v), [])
        if row["section"] not in sections:
            sections.append(row["section"])
    tables = []
    for found, sections in runs.items():
        which = [] if len(runs) == 1 else [["sections", ", ".join(sections)]]
        tables.append(markdown(["", ""], [*which, *map(list, found)]))
    return "\n\n".join(tables) or NOT_MEASURED


def targets_table(lines: Sequence[Sequence[str]]) -> str:
    """A line for each target, with whether it is met at the end."""
    met = sum(line[-1] == "met" for line in lines)
    return f"{met} of {len(lines)} met.\n\n" + markdown(["", "target", "measured", ""], lines)


def judged(target: Promise, row: Row | None, shown: Callable[[Row], str]) -> tuple[str, str]:
    """What was measured, and whether that is enough."""
    if row is None or (row["status"] == "ok" and not row[target.column]):
        return "", "not measured"
    if row["status"] != "ok":
        return row["status"], "**missed**"
    verdict = "met" if target.is_met(float(row[target.column])) else "**missed**"
    return ratio(row, target.column) if target.is_least else shown(row), verdict


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *lines])


# words and numbers


def bullets(items: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(f"- {item}", 100, subsequent_indent="  ") for item in items)


def wrapped(text: str) -> str:
    """Paragraphs in lines of at most 100 characters."""
    return "\n\n".join(
        textwrap.fill(part, 100, break_on_hyphens=False) for part in text.split("\n\n")
    )


def seconds(row: Row) -> str:
    """The median time in the unit that suits it."""
    if row["status"] != "ok":
        return row["status"]
    value = float(row["seconds"])
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit or name == "µs":
            break
    return f"{three_digits(value / unit)} {name}"


def ratio(row: Mapping[str, object], quantity: str) -> str:
    """Median with its spread, as in ``6.81x (6.52-7.13)``; nothing if it was not measured."""
    if row[quantity] == "":
        return ""
    median, low, high = (short(row[quantity + suffix]) for suffix in ("", "_p20", "_p80"))
    return f"{median}x ({low}-{high})"


def short(value: object) -> str:
    """Two or three digits; nothing if it was not measured."""
    if value == "":
        return ""
    number = float(str(value))
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def size(value: object) -> str:
    """Bytes in the unit that suits them; nothing if they were not measured."""
    if value == "":
        return ""
    number = float(str(value))
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= unit:
            return f"{three_digits(number / unit)} {name}"
    return f"{number:.0f} bytes"


def three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def tera(value: str) -> str:
    return f"{float(value) / 1e12:.3f} TB/s" if value else "not measured"
