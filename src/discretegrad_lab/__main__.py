"""The command ``discretegrad``, also as ``python -m discretegrad_lab``."""

import importlib.util
import sys

from .watch import streams

NEEDED = ("rich", "safetensors", "typer")


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    streams.guard()
    try:
        _run()
        code: object = 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as error:
        code = error.code
    sys.exit(streams.end(code if isinstance(code, int) else int(bool(code))))


def _run() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and sys.argv[1:] == ["--version"]:
        from discretegrad import __version__

        print(__version__)
        return
    if missing:
        print(
            f"discretegrad: the command line needs {' and '.join(missing)}; install what it needs "
            'with `pip install "discretegrad[lab]"`',
            file=sys.stderr,
        )
        sys.exit(1)
    from .cli import app

    app(prog_name="discretegrad")


if __name__ == "__main__":
    main()
