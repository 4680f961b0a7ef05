"""The command line ``discretegrad``, one file for each command.

What takes long to import is imported where it is used: torch takes seconds, and help should not.
"""

from . import data, doctor, list, own, plot, report, run  # noqa: F401  (each adds its command)
from .common import app

__all__ = ["app"]
