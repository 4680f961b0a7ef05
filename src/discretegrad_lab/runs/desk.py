"""Where the workers of a cluster report and hear whether to stop; an actor of Ray.

It has a process of its own, so this file imports next to nothing, and what is reported stays
pickled.
"""

from collections.abc import Sequence

Reports = list[tuple[int, bytes]]
"""Numbers of stacks with what their workers have to say, in the order it came."""


class Desk:
    """Between workers and driver.

    Args:
        left: Seconds of the budget.
    """

    def __init__(self, left: float) -> None:
        self._reports: Reports = []
        self._stop: str | None = None
        self._shut: str | None = None
        self._left = left

    def begin(self, stack: int, report: bytes) -> tuple[str | None, float]:
        """Why a stack must not begin, if so, and the seconds it has."""
        self._reports.append((stack, report))
        why = self._stop or self._shut or ("budget" if self._left <= 0 else None)
        return why, self._left

    def report(self, stack: int, reports: Sequence[bytes]) -> str | None:
        """Take what the worker of a stack has to say; why it must stop, if so."""
        self._reports.extend((stack, report) for report in reports)
        return self._stop

    def shut(self, why: str) -> None:
        """Let no other stack begin: a worker has stopped."""
        self._shut = self._shut or why

    def take(self, stop: str | None, left: float) -> Reports:
        """Hand it all over to the driver, who says whether to stop."""
        self._stop, self._left = stop, left
        reports, self._reports = self._reports, []
        return reports
