"""The command line ``discretegrad``, one file for each command.

What takes long to import is imported where it is used: torch takes seconds, and help should not.
"""

# each adds its command
from . import choose, data, doctor, list, measure, own, plot, report, run  # noqa: F401
from .common import app

__all__ = ["app"]
