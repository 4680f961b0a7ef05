"""The pages on the paper: which of them has which generated part, and who writes it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import efficiency
import kernels
import several
import stored
from collapses import beginnings_table, collapse_table, weights_table
from overview import in_short, runs
from pages import ON_THE_PAPER, Page, Results, wrapped
from pictures import drawn
from polynomial import at_one_table, search_claims, temperatures_table
from reports import if_stored, model_pictures, parts_if_stored, shown_picture, tables_and_claims
from sizes import all_sizes, chosen_tables, main_tables, measures_tables, precision_table
from stored import is_drawn, reading

from discretegrad_lab import tasks
from discretegrad_lab.report.verdicts import RULE

Part = Callable[[], str]

# of the pictures of large experiments
BANDS = "Lines are means over seeds, with bands that are 95 % intervals."
WITHOUT_TENTH = (
    "The first tenth of each line is left out, since nothing else could be seen beside it."
)


def beginnings() -> str:
    """What decides whether a run collapses."""
    return f"{weights_table()}\n\n{beginnings_table()}"


def other_sizes() -> str:
    """The tables of each size that has no section of its own, to be opened one by one."""
    return "\n\n".join(tables_and_claims(name, folded=True) for name in stored.OTHER_SIZES)


def samples() -> str:
    """More samples of each image, at equal steps and in equal time."""
    results = stored.read(stored.SAMPLES)
    if not is_drawn(stored.SAMPLES):
        return if_stored(stored.SAMPLES)
    picture = shown_picture("The loss against the GPU time of a run", f"{stored.SAMPLES}.png")
    return "\n\n".join([several.equal_table(reading(results), results), picture])


def architectures() -> str:
    """What the report on the searches says, with its drawings before it."""
    shown = [
        f"{shown_picture(x.title, f'{stored.SEARCHED}-{x.file}')}\n\n{wrapped(x.caption)}"
        for x in drawn(stored.SEARCHED)
    ]
    shown += [wrapped(f"{BANDS} {WITHOUT_TENTH}")] if is_drawn(stored.SEARCHED) else []
    return "\n\n".join([*shown, if_stored(stored.SEARCHED, "Searches against the epoch")])


def large() -> str:
    """Both models of Table 5."""
    return parts_if_stored(_titles(stored.LARGE))


def bits() -> str:
    """Table 6: each data set with each K."""
    return parts_if_stored(
        _titles(stored.BITS),
        "The loss against the step, and against the GPU time of a run",
        f"{BANDS} {WITHOUT_TENTH}",
    )


def bit_gradients() -> str:
    """The gradients of that along training."""
    return parts_if_stored(
        _titles(stored.BIT_GRADIENTS),
        "Standard deviation of the gradients, and their largest bias, against the step",
        f"{BANDS} The bias has two standard errors added, so it is how large it may be.",
    )


def _titles(names: Sequence[str]) -> dict[str, str]:
    return {name: tasks.recipe(name).title for name in names}


def time_and_memory() -> str:
    """Table 3, from the benchmark of the kernels."""
    return efficiency.table_of_the_paper(kernels.PAGE.read().of(section="efficiency"))


_GRADIENTS = "Gradients beside the exact one, against the epoch"
# by page, a file in docs/reproduction that has the words around these parts; in their order there
PARTS: Mapping[str, Mapping[str, Part]] = {
    "index": {
        "in short": in_short,
        "architectures": architectures,
        "bits": bits,
        "bit gradients": bit_gradients,
        "rule": partial(wrapped, RULE),
        "runs": runs,
    },
    "vae": {
        "main table": main_tables,
        "all sizes": all_sizes,
        "precision": precision_table,
        "vae": partial(tables_and_claims, stored.VAE),
        "prior samples": partial(model_pictures, "prior-samples", "makes of random codes"),
        "measures": measures_tables,
        "efficiency": time_and_memory,
    },
    "vae-sizes": {
        "other sizes": other_sizes,
        "other reconstructions": partial(
            model_pictures, "reconstructions", "makes of test images", stored.OTHER_SIZES
        ),
    },
    "collapse": {"collapse": collapse_table, "beginnings": beginnings},
    "gradients": {
        "exact": partial(if_stored, stored.EXACT),
        "gradients": partial(if_stored, stored.GRADIENTS, _GRADIENTS),
    },
    "samples": {"samples": samples},
    "temperature-of-1": {
        "small samples": partial(
            if_stored, stored.SMALL_SAMPLES, "The loss against the epoch, from the tenth on"
        ),
        "by temperature": partial(if_stored, stored.BY_TEMPERATURE, _GRADIENTS),
    },
    "temperature": {
        "heat map": partial(
            if_stored, stored.TEMPERATURES, "Train loss of each estimator at each temperature"
        ),
    },
    "search": {
        "searches": partial(parts_if_stored, {x: x[11:] for x in stored.SEARCHES}),
        "chosen": chosen_tables,
    },
    "baseline": {"baselines": partial(if_stored, stored.BASELINES)},
    "large-vae": {"large": large},
    "polynomial": {
        "temperatures": temperatures_table,
        "search claims": search_claims,
        "curves": partial(tables_and_claims, stored.CURVES),
        "settings": partial(tables_and_claims, stored.SETTINGS, folded=True),
        "at one": at_one_table,
    },
    "listops": {
        "listops": partial(if_stored, stored.PARSING, "Accuracy and loss against the epoch"),
    },
}


def _page(name: str, parts: Mapping[str, Part]) -> Page:
    def blocks(results: Results) -> dict[str, str]:
        return {part: write() for part, write in parts.items()}

    return Page(ON_THE_PAPER / f"{name}.md", (), blocks)


PAGES = tuple(_page(name, parts) for name, parts in PARTS.items())
