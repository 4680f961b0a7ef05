"""How runs are put into stacks and saved, as a user may choose it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ..stack.config import Run
from ..stack.trainer import Stack
from .pending import end_of
from .plan import check_largest

MakeStack = Callable[[Sequence[Run], torch.device, Path | None], Stack]


class StackOptions(NamedTuple):
    """How runs are put into stacks, how often those are saved, and when to give up."""

    largest_stack: int | None = None
    """The most members of a stack; by default as many as fit."""
    checkpoint_every: float | None = None
    """Seconds between checkpoints; by default the first one comes soon, and then as many as keep
    their cost below 2 % of the time."""
    make_stack: MakeStack | None = None
    """Makes a stack; that of the runs' task by default."""
    bytes_per_member: Callable[[Run], int] | None = None
    """Device memory of one member; asks the task by default."""
    max_failures: int | None = None
    """Runs that cannot be read or saved before all is saved and stopped; by default any number."""
    until: int | None = None
    """The epoch at which runs are saved and left; by default they are trained to their end."""

    def end(self, run: Run) -> int:
        """The epochs that a run has done when it is left."""
        return end_of(run, self.until)

    def check(self) -> None:
        """Raise ``ValueError`` if one of them is wrong."""
        check_largest(self.largest_stack)
        if self.checkpoint_every is not None and not self.checkpoint_every >= 0:
            raise ValueError(f"expected seconds as checkpoint_every, got {self.checkpoint_every}")
        if self.max_failures is not None and not self.max_failures > 0:
            raise ValueError(f"expected a positive number as max_failures, got {self.max_failures}")
        if self.until is not None and not self.until > 0:
            raise ValueError(f"expected a positive number as until, got {self.until}")


STACK_OPTIONS = StackOptions()
