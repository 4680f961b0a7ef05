"""Write every generated page, table and picture again from what is stored, or check them.

    python benchmarks/table.py                  write all of them
    python benchmarks/table.py --check          change nothing; fail if one of them is not current
    python benchmarks/table.py --preview DIR    the pages of the benchmarks from the CSV files in a
                                                folder, into the same folder

Sources: the CSV files in benchmarks/ (run.py, steps.py, kernels.py, stacks.py, subsets.py,
listops.py, search.py, and make soak), the folders below results/ (discretegrad run RECIPE, then
discretegrad report RECIPE) and the registry.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import kernels
import listops
import pictures
import readme
import reliability
import reproduction
import run
import search
import stacks
import steps
import subsets
from files import STORED
from pages import PICTURES, draw, relative, shows

from discretegrad_lab.report.document import Figure

PAGES = (
    *(run.PAGE, steps.PAGE, kernels.PAGE, stacks.PAGE, subsets.PAGE, listops.PAGE),
    search.PAGE,
    reliability.PAGE,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    parser.add_argument("--preview", type=Path, metavar="DIR", help="read and write there instead")
    options = parser.parse_args(arguments)
    texts, figures = benchmark_pages(options.preview)
    maps: dict[Path, list[Figure]] = {}
    if not options.preview:
        texts |= {page.path: page.text(page.read()) for page in reproduction.PAGES}
        texts |= {readme.README: readme.text()}
        texts |= pictures.drawings()
        maps = pictures.maps()
        figures |= pictures.of_curves() | maps
    stale = [path for path, text in texts.items() if not is_current(path, text)]
    stale += [path for path, shown in figures.items() if not shows(path, shown)]
    for path in stale:
        if options.check:
            print(f"{relative(path)} is not current: run python benchmarks/table.py")
            continue
        if path in texts:
            path.write_text(texts[path], encoding="utf-8")
        else:
            draw(path, figures[path], as_map=path in maps)
        print(f"written: {relative(path)}")
    return 1 if options.check and stale else 0


def benchmark_pages(
    folder: Path | None = None,
) -> tuple[dict[Path, str], dict[Path, Sequence[Figure]]]:
    """The texts of all pages, and what their pictures show."""
    texts, figures = {}, {}
    assets = folder / "assets" if folder else PICTURES
    for page in PAGES:
        results = page.read(folder or STORED)
        texts[folder / page.path.name if folder else page.path] = page.text(results)
        figures |= {assets / name: x for name, x in page.pictures(results).items()}
    return texts, figures


def is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())
