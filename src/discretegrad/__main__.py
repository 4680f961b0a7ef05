"""``python -m discretegrad --version`` and ``python -m discretegrad doctor``: the library alone.

The command ``discretegrad``, which trains and reports experiments, belongs to the lab.
"""

import argparse
import sys

from . import __version__
from .doctor import parts


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; 1 if the doctor finds something broken."""
    parser = argparse.ArgumentParser(
        prog="python -m discretegrad",
        description="Look at the installation of the library. The command that trains and reports "
        'experiments is `discretegrad`, with the extra: pip install "discretegrad[lab]".',
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "command",
        choices=["doctor"],
        help="say what this machine can do, and what to do about what it cannot",
    )
    parser.parse_args(arguments)
    broken = False
    for part in parts():
        print(f"{part.sign} {part.what:14} {part.state}")
        if part.advice:
            print(f"{'':17}{part.advice}")
        broken |= part.broken
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
