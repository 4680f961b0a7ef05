"""What the reports on stored runs say, as parts of the pages on the paper."""

from collections.abc import Mapping, Sequence

import stored
from pages import PICTURES, markdown, wrapped
from stored import is_drawn, section

from discretegrad_lab.report.document import Verdict


def tables_and_claims(recipe: str, *, folded: bool = False) -> str:
    """What the report says; with ``folded`` a reader opens the tables one by one."""
    whole = section(stored.read(recipe))
    parts = []
    for table in whole.tables:
        text = [wrapped(table.caption), markdown(table.headings, [list(row) for row in table.rows])]
        text += [wrapped(note) for note in table.notes]
        if folded:
            lines = "\n\n".join(text).splitlines()
            body = "\n".join(f"    {line}".rstrip() for line in lines)
            parts.append(f'??? note "{table.title}"\n\n{body}')
        else:
            parts += [f"**{table.title}**", *text]
    if whole.verdicts:
        parts.append(claims_table(whole.verdicts))
    return "\n\n".join(parts)


def if_stored(recipe: str, picture: str = "") -> str:
    """What the report says, with a picture if it has words; or that there is nothing to report."""
    if not stored.read(recipe).rows:
        return f"Not trained here yet; it takes `discretegrad run {recipe}`."
    shown = [shown_picture(picture, f"{recipe}.png")] if picture and is_drawn(recipe) else []
    return "\n\n".join([*shown, tables_and_claims(recipe, folded=True)])


def shown_picture(words: str, file: str) -> str:
    """A picture, as seen from the folder of these pages."""
    return f"![{words}](../assets/{file})"


def model_pictures(kind: str, what: str, names: Sequence[str] = stored.COLUMNS[::-1]) -> str:
    """The pictures of one kind that were drawn."""
    files = {name: f"{name}-{kind}.png" for name in names}
    drawn = [
        shown_picture(f"Digits that each estimator's model {what}, {name[4:]}", file)
        for name, file in files.items()
        if (PICTURES / file).exists()
    ]
    command = f"discretegrad plot {names[0]}"
    return (
        "\n\n".join(drawn) or f"Not drawn here yet; it takes `{command}` where its runs are stored."
    )


def parts_if_stored(titles: Mapping[str, str], picture: str = "", about: str = "") -> str:
    """What the report of each recipe says, under its title, and which are not trained.

    Args:
        titles: By recipe.
        picture: The words of their pictures, if they have one each.
        about: What is said of all pictures, before them.
    """
    trained = {recipe: title for recipe, title in titles.items() if stored.read(recipe).rows}
    parts = [f"**{title}**\n\n{if_stored(recipe, picture)}" for recipe, title in trained.items()]
    shown = [wrapped(about)] if about and any(map(is_drawn, trained)) else []
    missing = ", ".join(f"`{recipe}`" for recipe in titles if recipe not in trained)
    if missing:
        begin = "Of these not trained" if trained else "Not trained"
        parts.append(wrapped(f"{begin} here yet; it takes `discretegrad run` of {missing}."))
    return "\n\n".join([*shown, *parts])


def claims_table(verdicts: Sequence[Verdict]) -> str:
    """The paper's claims with what the runs say."""
    return markdown(
        ["the paper says", "where", "here", "numbers"],
        [[v.text, v.place, f"**{v.word}**", v.evidence] for v in verdicts],
    )
