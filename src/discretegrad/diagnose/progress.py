"""A progress bar on stderr: that of rich where it is installed, else one line of text."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """Shows nothing; what is being measured and how far it has come goes through it."""

    def start(self, label: str, total: int) -> None:
        """Begin with another estimator."""

    def advance(self, draws: int) -> None:
        """So many more draws are done."""


class _PlainBar(Bar):
    """One line on stderr, written over and over."""

    def start(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self._show()

    def advance(self, draws: int) -> None:
        self.done += draws
        self._show()

    def _show(self) -> None:
        share = 100 * self.done // self.total
        sys.stderr.write(f"\r\x1b[Kdiagnose: {self.label} {share} %")
        sys.stderr.flush()


class _RichBar(Bar):
    """A bar of rich."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.task = bar, bar.add_task("", total=1)

    def start(self, label: str, total: int) -> None:
        self.bar.reset(self.task, total=total, description=label)

    def advance(self, draws: int) -> None:
        self.bar.advance(self.task, draws)


@contextmanager
def shown(progress: bool | None) -> Iterator[Bar]:
    """A bar for the time of the ``with``: by default on terminals only."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield Bar()
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield _PlainBar()
        sys.stderr.write("\r\x1b[K")
        return
    console = Console(stderr=True, force_terminal=progress)
    with Progress(console=console, transient=True) as bar:
        yield _RichBar(bar)
