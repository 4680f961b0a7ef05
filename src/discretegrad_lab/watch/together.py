"""Several listeners as one."""

from collections.abc import Callable
from typing import Any

from ..runs.listener import Listener


def _each(name: str) -> Callable[..., None]:
    """A method that calls the method of this name of every listener."""

    def tell(self: "Together", *arguments: Any) -> None:
        for listener in self.listeners:
            getattr(listener, name)(*arguments)

    return tell


class Together(Listener):
    """Tells several listeners."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    planned = _each("planned")
    run_damaged = _each("run_damaged")
    run_elsewhere = _each("run_elsewhere")
    stack_started = _each("stack_started")
    epoch_done = _each("epoch_done")
    checkpointed = _each("checkpointed")
    stack_finished = _each("stack_finished")

    def stack_again(self, *arguments: Any) -> None:
        """Tell who can tell stacks side by side apart; for others a stack has started."""
        for listener in self.listeners:
            getattr(listener, "stack_again", listener.stack_started)(*arguments)
