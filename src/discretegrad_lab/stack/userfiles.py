"""Python files of users: estimators, tasks and sweeps that are in no package."""

import hashlib
import sys
from pathlib import Path
from types import ModuleType


def digest_of(file: Path) -> str:
    """The hash of a file's content, 16 hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def load_file(file: Path, digest: str | None = None) -> ModuleType:
    """The module that a file defines; it is executed once for each content.

    Args:
        file: A Python file.
        digest: Of the content that is expected, see ``digest_of``.

    Raises:
        ValueError: If the file cannot be read or run, or has changed.
    """
    file = file.expanduser().absolute()
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"expected a Python file, got {file}, which cannot be read: {error.strerror}"
        ) from error
    actual = hashlib.sha256(content).hexdigest()[:16]
    if digest not in (None, actual):
        raise ValueError(
            f"expected {file} as it was when its runs were made, got a file that has changed "
            "since; start again"
        )
    # found again by its name where objects are unpickled, so the folder is part of it
    place = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    name = f"discretegrad_user_{file.stem}_{place}"
    present = sys.modules.get(name)
    if present is not None and present.__dict__.get("__digest__") == actual:
        return present
    module = ModuleType(name)
    module.__dict__.update(__file__=str(file), __digest__=actual)
    sys.modules[name] = module
    try:
        exec(compile(content, str(file), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"expected {file} to run, got {type(error).__name__}: {error}") from error
    return module
