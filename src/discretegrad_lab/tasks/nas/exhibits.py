"""Further parts of the report on a search (a stand-in for now)."""

from collections.abc import Sequence

from ..base import Exhibit
from ..evidence import Results


def exhibits(results: Results) -> Sequence[Exhibit]:
    return ()
