"""The page writer: the generated parts of pages and their pictures, from files of results.

A generated part stands between ``<!-- begin generated: name -->`` and ``<!-- end generated: name
-->``; the words around it are written by hand.
"""

import hashlib
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from files import ROOT, SPREAD, STORED, read_csv

if TYPE_CHECKING:
    from discretegrad_lab.report.document import Figure

DOCS = ROOT / "docs"
PICTURES = DOCS / "assets"
ON_THE_PAPER = DOCS / "reproduction"
NOT_MEASURED = "Not measured yet."
_LABELS = {
    "torch gumbel_softmax(hard=True)": "`F.gumbel_softmax`",
    "PyPI reinmax": "PyPI `reinmax`",
}
_MORE = 1.01  # less than this is no difference of memory
_MARKER = re.compile(r"<!-- (begin|end) generated: ([\w ]+) -->\n?")

Row = Mapping[str, Any]
Cell = Callable[[Row], str]


# pages and their files


class Results(NamedTuple):
    """What is stored."""

    rows: Sequence[Row]

    def of(self, **columns: object) -> list[Row]:
        """The rows with these values, in the order they are stored."""
        return [row for row in self.rows if matches(row, columns)]


def matches(row: Row, columns: Mapping[str, object]) -> bool:
    return all(row.get(column) == str(value) for column, value in columns.items())


@dataclass(frozen=True)
class Page:
    """A page of the documentation with parts that follow from files of results."""

    path: Path
    sources: Sequence[str]
    blocks: Callable[[Results], Mapping[str, str]]
    """Its generated parts by name."""
    targets: "Sequence[Target]" = ()
    pictures: "Callable[[Results], Mapping[str, Sequence[Figure]]]" = lambda results: {}
    """What its pictures show, by name of the file."""

    def read(self, folder: Path = STORED) -> Results:
        """All files, or as much of them as there is."""
        paths = [folder / name for name in self.sources if (folder / name).exists()]
        return Results([row for path in paths for row in read_csv(path)])

    def text(self, results: Results) -> str:
        """The page with its generated parts as they should be."""
        blocks = head(results, self.targets) | self.blocks(results)
        blocks = {name: f"\n{block}\n\n" for name, block in blocks.items()}
        return filled(self.path.read_text(encoding="utf-8"), blocks, self.path.name)


def head(results: Results, targets: "Sequence[Target]") -> dict[str, str]:
    """What nearly every page begins with."""
    parts = {"provenance": provenance(results.rows)}
    return parts | ({"targets": targets_table(targets, results.rows)} if targets else {})


def of_devices(
    results: Results,
    blocks: Callable[[Results], Mapping[str, str]],
    targets: "Callable[[str], Sequence[Target]]" = lambda device: (),
) -> dict[str, str]:
    """The parts of a page that has the same ones for each device."""
    parts = {}
    for device, prefix in (("cpu", "cpu"), ("cuda", "gpu")):
        own = Results(results.of(device=device))
        named = head(own, targets(device)) | blocks(own)
        parts |= {f"{prefix} {name}": block for name, block in named.items()}
    return parts


def shows(path: Path, figures: "Sequence[Figure]") -> bool:
    """Whether a picture shows these curves, colours and titles; its file says which it shows."""
    return path.exists() and fingerprint(figures).encode() in path.read_bytes()


def draw(path: Path, figures: "Sequence[Figure]", *, as_map: bool = False) -> None:
    """Write a picture that says what it shows."""
    from discretegrad_lab.report import plots

    path.parent.mkdir(parents=True, exist_ok=True)
    write = plots.draw_map if as_map else plots.draw
    write(figures, path, metadata={"Source": fingerprint(figures)})


def fingerprint(figures: "Sequence[Figure]") -> str:
    """The same for the same curves, colours and titles."""
    return hashlib.sha256(repr([astuple(figure) for figure in figures]).encode()).hexdigest()


def filled(text: str, blocks: Mapping[str, str], name: str) -> str:
    """A text with its generated parts as they should be; it need not show all of them."""
    parts, rest = [], text
    while marker := _MARKER.search(rest):
        end = f"<!-- end generated: {marker[2]} -->"
        if marker[1] == "end" or end not in rest or marker[2] not in blocks:
            known = ", ".join(blocks)
            raise ValueError(
                f"expected pairs of markers in {name} around parts of {known}; "
                f"got {marker[0].strip()!r}: correct the marker"
            )
        parts += [rest[: marker.end()], blocks[marker[2]], end]
        rest = rest[rest.index(end) + len(end) :]
    return "".join([*parts, rest])


def link(heading: str, folder: Path) -> str:
    """To the only page of a folder that has this heading, from its other pages."""
    line = re.compile(rf"^#+ {re.escape(heading)}$", re.MULTILINE)
    pages = [path for path in folder.glob("*.md") if line.search(path.read_text(encoding="utf-8"))]
    if len(pages) != 1:
        raise ValueError(f"expected one page in {relative(folder)} with the heading {heading!r}")
    anchor = re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))
    return f"[{heading}]({pages[0].name}#{anchor})"


def relative(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


# targets


class Target(NamedTuple):
    """A promise about one number of the results."""

    where: Mapping[str, str]
    """Columns of the row that it is about."""
    label: str
    column: str
    limit: float
    says: str
    """The promise in words, with the limit in place of {}, if it is there."""
    unit: float = 1.0
    """What a limit of 1 is in the results."""
    shown: Cell | None = None
    """How the number is written, if not with two or three digits; a speed always has its spread."""

    @property
    def is_least(self) -> bool:
        """Whether more is better."""
        return self.column.startswith("speedup")

    def is_met(self, value: float) -> bool:
        """Whether the number keeps the promise."""
        value /= self.unit
        return value >= self.limit if self.is_least else value <= self.limit

    def judged(self, rows: Iterable[Row]) -> tuple[str, str]:
        """What was measured, and whether that is enough."""
        row = next((row for row in rows if matches(row, self.where)), None)
        if row is None or (is_ok(row) and not row[self.column]):
            return "", "not measured"
        if not is_ok(row):
            return row["status"], "**missed**"
        verdict = "met" if self.is_met(float(row[self.column])) else "**missed**"
        if self.is_least:
            return ratio(row, self.column), verdict
        if self.shown:
            return self.shown(row), verdict
        return short(float(row[self.column]) / self.unit), verdict


def targets_table(targets: Sequence[Target], rows: Sequence[Row]) -> str:
    """A line for each target, with whether it is met at the end."""
    lines = [[x.label, x.says.format(f"{x.limit:g}"), *x.judged(rows)] for x in targets]
    met = sum(line[-1] == "met" for line in lines)
    return f"{met} of {len(lines)} met.\n\n" + markdown(["", "target", "measured", ""], lines)


# tables


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *lines])


def table(rows: Sequence[Row], first: str, columns: Mapping[str, Cell]) -> str:
    """A line for each row; the first column is its name, or why it was not measured."""
    lines = []
    for row in rows:
        name, *cells = columns.values()
        if is_ok(row):
            lines.append([name(row), *(cell(row) for cell in cells)])
        else:
            lines.append([name(row), row["status"], *[""] * (len(cells) - 1)])
    return markdown([first, *list(columns)[1:]], lines) if rows else NOT_MEASURED


def joined(tables: Sequence[str]) -> str:
    return "\n\n".join(tables) or NOT_MEASURED


def crossed(rows: Sequence[Row], first: str, line: Cell, column: Cell, cell: Cell) -> str:
    """A table with a line for each value of one thing and a column for each of another."""
    cells = {(line(row), column(row)): cell(row) for row in rows}
    columns = list(dict.fromkeys(column for _, column in cells))
    lines = [
        [name, *(cells.get((name, column), "") for column in columns)]
        for name in dict.fromkeys(name for name, _ in cells)
    ]
    return markdown([first, *columns], lines) if rows else NOT_MEASURED


def provenance(rows: Iterable[Row]) -> str:
    """A table for each run of the benchmark, since sections may come from several."""
    runs: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in rows:
        changes = " with uncommitted changes" if row["uncommitted_changes"] == "yes" else ""
        packages = [name for name in ("python", "torch", "triton") if name in row]
        about = {"date": row["date"], "GPU": row.get("gpu")}
        if "cpu" in row:
            machines = dict.fromkeys((row.get("machine", row["cpu"]), row["cpu"]))
            host = f"{row['cores']} cores, {row['threads']} threads"
            about["machine"] = ", ".join([*machines, host])
        if "copy_bandwidth" in row:
            start, end = tera(row["copy_bandwidth"]), tera(row["copy_bandwidth_end"])
            about["copy bandwidth"] = f"{start}, at the end {end}"
        about |= {
            ", ".join(x.capitalize() if x != "torch" else x for x in packages): ", ".join(
                row[x] for x in packages
            ),
            "PyPI `reinmax`": row.get("reinmax"),
            "discretegrad": f"{row['discretegrad']}, commit {row['commit']}{changes}",
            "images": row.get("images"),
            "command": f"`{row['command']}`",
        }
        sections = runs.setdefault(tuple((k, v) for k, v in about.items() if v), [])
        section = row.get("section") or row.get("shape", "")
        sections += [section] if section not in sections else []
    tables = []
    for about_run, sections in runs.items():
        which = [] if len(runs) == 1 else [["sections", ", ".join(sections)]]
        tables.append(markdown(["", ""], [*which, *map(list, about_run)]))
    return joined(tables)


def cases(rows: Sequence[Row], *columns: str) -> list[list[Row]]:
    """Rows of the same case together."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return list(groups.values())


def losses(
    groups: Iterable[Sequence[Row]],
    rivals: Mapping[str, Sequence[str]],
    place: Cell,
    memory: str,
    speed: Callable[[Row, Row], float] = lambda row, rival: (
        float(rival["seconds"]) / float(row["seconds"])
    ),
) -> list[str]:
    """Sentences about a provider that is slower, or needs more memory, than one of its rivals.

    Args:
        groups: The rows of each case.
        rivals: The providers that compute the same, or something for the same purpose.
        place: Where a row was measured, in words.
        memory: The column of the memory.
        speed: How many times as fast as a rival; by default the ratio of median times.
    """
    places: dict[str, list[str]] = {}
    for rows in groups:
        by_name = {row["provider"]: row for row in rows if is_ok(row)}
        pairs = [
            (by_name[x], by_name[y]) for x in by_name for y in rivals.get(x, ()) if y in by_name
        ]
        for row, rival in pairs:
            factors = {"is slower": 1 / speed(row, rival)}
            if row[memory] and rival[memory]:
                factors["needs more memory"] = float(row[memory]) / float(rival[memory])
            for what, factor in factors.items():
                if factor > (1 if what == "is slower" else _MORE):
                    claim = f"{label(row)} {what} than {label(rival)}"
                    shown = short(1 / factor if what == "is slower" else factor)
                    places.setdefault(claim, []).append(f"{place(row)} ({shown}x)")
    return [f"{claim} at {', '.join(where)}." for claim, where in places.items()]


def losses_list(sentences: Sequence[str], results: Results) -> str:
    return bullets(sentences) or ("Nowhere." if results.rows else NOT_MEASURED)


# words and numbers


def is_ok(row: Row) -> bool:
    return row.get("status", "ok") == "ok"


def label(row: Row) -> str:
    """The provider as code; what stands for other libraries has a shorter name."""
    return _LABELS.get(row["provider"], f"`{row['provider']}`")


def bullets(items: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(f"- {item}", 100, subsequent_indent="  ") for item in items)


def wrapped(text: str) -> str:
    """Paragraphs in lines of at most 100 characters."""
    return "\n\n".join(
        textwrap.fill(part, 100, break_on_hyphens=False) for part in text.split("\n\n")
    )


def seconds(row: Row) -> str:
    """The median time in the unit that suits it."""
    if not is_ok(row):
        return row["status"]
    value = float(row["seconds"])
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit or name == "µs":
            break
    return f"{three_digits(value / unit)} {name}"


def ratio(row: Row, quantity: str) -> str:
    """Median with its spread, as in ``6.81x (6.52-7.13)``; nothing if it was not measured."""
    if row[quantity] == "":
        return ""
    median, low, high = (short(row[quantity + suffix]) for suffix in SPREAD)
    return f"{median}x ({low}-{high})"


def interval(row: Row, quantity: str, unit: float) -> str:
    """Median with its spread, as in ``16.1 (16.0-16.3)``."""
    median, low, high = (short(float(row[quantity + suffix]) / unit) for suffix in SPREAD)
    return f"{median} ({low}-{high})" if "-" not in low else f"{median} ({low} to {high})"


def share(row: Row, quantity: str) -> str:
    """Median with its spread, as in ``12 % (10 to 14)``."""
    values = (float(row[quantity + suffix]) * 100 for suffix in SPREAD)
    median, low, high = (f"{value:.0f}".replace("-0", "0") for value in values)
    return f"{median} % ({low} to {high})"


def short(value: object) -> str:
    """Two or three digits; nothing if it was not measured."""
    if value == "":
        return ""
    number = float(str(value))
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


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


def plural(number: int | str, what: str) -> str:
    return f"{number} {what}{'' if str(number) == '1' else 's'}"


def tera(value: str) -> str:
    return f"{float(value) / 1e12:.3f} TB/s" if value else "not measured"
