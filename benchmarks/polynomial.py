"""Tables of polynomial programming."""

import stored
from pages import markdown
from reports import claims_table
from stored import reading, section

from discretegrad_lab.report.entries import Entry, entries
from discretegrad_lab.report.tables import from_optimum
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.tasks.evidence import Results
from discretegrad_lab.tasks.polynomial import temperature


def temperatures_table() -> str:
    """The best of the search."""
    settings = stored.read(stored.SEARCH).settings(("power", "target"))
    headings = [reading(stored.read(stored.SEARCH)).describe(setting) for setting in settings]
    lines = [
        [line.label, *(f"{temperature(x['power'], x['target'], key):g}" for x in settings)]
        for key, line in LINES.items()
        if line.has_tau
    ]
    return markdown(["", *headings], lines)


def search_claims() -> str:
    """What the paper says of the temperature, with what the search says."""
    return claims_table(section(stored.read(stored.SEARCH)).verdicts)


def at_one_table() -> str:
    """ReinMax in the search at 1, at its best, and RODEO."""
    lines = []
    for power in (1.5, 2.0, 3.0):
        where = {"power": power, "target": "constant", "latents": 128, "batch": 256}
        rows = [
            _entry(stored.read(stored.SEARCH).part(tau=1.0, **where), "reinmax"),
            _entry(stored.read(stored.SETTINGS).part(**where), "reinmax"),
            _entry(stored.read(stored.SETTINGS).part(**where), "rodeo"),
        ]
        cells = [f"{from_optimum(entry)} ({entry.ours.count} runs)" for entry in rows]
        lines.append([reading(stored.read(stored.SEARCH)).describe({"power": power}), *cells])
    return markdown(["% above the optimum", "ReinMax, τ = 1", "ReinMax, tuned", "RODEO"], lines)


def _entry(results: Results, estimator: str) -> Entry:
    (entry,) = (x for x in entries(reading(results), results) if x.estimator == estimator)
    return entry
