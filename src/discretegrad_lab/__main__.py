"""The command ``discretegrad``, also as ``python -m discretegrad_lab``."""

import importlib.util
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
    from .cli import app

    app(prog_name="discretegrad")


if __name__ == "__main__":
    main()
