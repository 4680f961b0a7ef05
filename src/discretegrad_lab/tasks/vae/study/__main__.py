"""Run the study of gradients, or make its page from what is stored."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from ...data import DataError, load_labels, load_mnist
from . import page
from .measure import MINIATURE, Pixels, Settings, measure
from .rows import read, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, or show the stored one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="directory of the data sets")
    parser.add_argument("--quick", action="store_true", help="a miniature, to see it work")
    parser.add_argument("--output", type=Path, default=Path("output/diagnose"), help="folder")
    parser.add_argument("--store", action="store_true", help="write results/, docs/ instead")
    parser.add_argument("--render", action="store_true", help="run nothing; write docs/ again")
    options = parser.parse_args(arguments)
    settings = MINIATURE if options.quick else Settings()
    stored = options.store or options.render
    folder = page.STORED if stored else options.output
    if not options.render:
        try:
            images = load_mnist(options.data)
            pixels = Pixels(images.train, load_labels("mnist", options.data).train, images.test)
        except DataError as error:
            print(error, file=sys.stderr)
            return 2
        # small temperatures are among the candidates
        warnings.filterwarnings("ignore", message=".*is unusual")
        write(folder, measure(pixels, settings, os.cpu_count() or 1))
    # rounded, so that figures and tables follow from the files
    study = read(folder)
    page.draw(study, page.PICTURES if stored else options.output)
    if stored:
        page.PAGE.write_text(page.updated(study, page.PAGE.read_text("utf-8")), "utf-8")
    print("\n".join(f"{name}\n\n{text}" for name, text in page.tables(study).items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
