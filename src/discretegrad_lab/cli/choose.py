"""The command ``discretegrad choose``."""

from pathlib import Path
from typing import Annotated

import typer

from ..tasks import EXAMPLE_SEARCH
from ..watch.words import many
from . import common
from .selection import Selection


@common.command(
    common.app,
    "choose",
    f"discretegrad choose {EXAMPLE_SEARCH}",
    f"discretegrad choose {EXAMPLE_SEARCH} --results results",
)
def choose(
    searches: Annotated[
        list[str], typer.Argument(metavar="SEARCH", help="A recipe that is a search.")
    ],
    results: common.ResultsDirectory = Path("results"),
) -> None:
    """Take over the settings that a search found to be best.

    Reads what `discretegrad report SEARCH` has written and writes the table that other recipes read
    their settings from. It is a file of the lab itself: commit it with the results. Estimators that
    were not searched keep what the table has; a search that was begun has to be at its end.
    """
    from ..report.results import read

    with common.explaining():
        with common.checking_input(), common.files_in(results):
            # all of them before the first is written
            chosen = []
            for recipe in Selection(searches).find():
                choice = recipe.choice
                if choice is None:
                    raise ValueError(
                        f"expected a search that settings are chosen from, got {recipe.name}; "
                        f"take one of {', '.join(_searches())}"
                    )
                chosen.append((recipe, choice, choice.lines(recipe, read(results / recipe.name))))
        for recipe, choice, lines in chosen:
            choice.write(lines)
            words = " and by ".join(recipe.task.metric(name).label for name in choice.by)
            without = [x for x, candidates in lines.items() if not choice.is_chosen(candidates)]
            typer.echo(
                f"{recipe.name}: settings of {many(len(lines) - len(without), 'line')} chosen by "
                f"{words}. Wrote {choice.path}"
            )
            for problem in without:
                typer.echo(
                    f"{recipe.name}: nothing was chosen for {choice.describe(recipe, problem)}, "
                    "all of whose candidates diverged. The table has no setting for it any more."
                )


def _searches() -> list[str]:
    from ..tasks import recipes

    return [name for name, recipe in recipes().items() if recipe.choice is not None]
