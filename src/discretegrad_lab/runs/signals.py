"""Signals that ask to stop."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stop_signals(announce: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """Names of signals that ask to stop, the first one announced; a second one stops at once."""
    caught: list[str] = []

    def note(number: int, _: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(signal.Signals(number).name)
        if announce is not None:
            # a terminal that is gone must not cost the epoch
            with contextlib.suppress(OSError):
                announce(caught[0])

    # Python allows it nowhere else
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
