"""The command ``discretegrad``, also as ``python -m discretegrad_lab``."""

import importlib.util
import io
import sys

NEEDED = ("rich", "safetensors", "typer")


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"discretegrad: the command line needs {' and '.join(missing)}; install what it needs "
            'with `pip install "discretegrad[lab]"`',
            file=sys.stderr,
        )
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        # a question mark is better than no table where a terminal knows only ASCII
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        from .cli import app

        app(prog_name="discretegrad")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
