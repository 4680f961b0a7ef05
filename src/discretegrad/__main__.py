"""``python -m discretegrad --version`` and ``python -m discretegrad doctor``: the library alone.

The command ``discretegrad``, which trains and reports experiments, belongs to the lab.
"""

import argparse
import sys

from . import __version__
from .doctor import parts


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; 1 if the doctor finds something broken."""
    parser = argparse.ArgumentParser(prog="python -m discretegrad")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", choices=["doctor"], help="say what this machine can do for it")
    parser.parse_args(arguments)
    broken = False
    for part in parts():
        sign = "x" if part.broken else "!" if part.advice else " "
        print(f"{sign} {part.what:14} {part.state}")
        if part.advice:
            print(f"{'':17}{part.advice}")
        broken |= part.broken
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
