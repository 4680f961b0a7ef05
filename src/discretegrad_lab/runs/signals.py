"""Signals that ask to stop."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

STOP = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""Those that ask to save and stop; the last one says that the terminal is gone."""
_AT_ONCE = (signal.SIGINT, signal.SIGTERM)
"""Those whose coming second is meant: a terminal that is closed sends its signal twice."""


@contextlib.contextmanager
def stop_signals(announce: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """Names of signals that ask to stop, the first one announced; a second one stops at once."""
    caught: list[str] = []

    def note(number: int, _: object) -> None:
        if caught:
            if number in _AT_ONCE:
                raise KeyboardInterrupt
            return
        caught.append(signal.Signals(number).name)
        if announce is not None:
            # a terminal that is gone must not cost the epoch
            with contextlib.suppress(OSError):
                announce(caught[0])

    # Python allows it nowhere else
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.getsignal(number) for number in STOP}
    for number, handler in before.items():
        # what nohup has started outlives its terminal
        if number in _AT_ONCE or handler != signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
