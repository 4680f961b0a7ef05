"""The claims of the paper, sorted by what stored runs say of them."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pages import ON_THE_PAPER, link

from discretegrad_lab.report.document import Verdict

WORDS = ("holds", "does not hold", "undecided")


class Claim(NamedTuple):
    """A statement of the paper, which may be about several recipes."""

    text: str
    place: str
    part: str
    """The heading under which one of the pages has the numbers."""
    words: Mapping[str, str]
    """The outcome in each recipe."""

    @property
    def word(self) -> str:
        """It holds if it holds in all recipes, and does not if it does not in one."""
        outcomes = set(self.words.values())
        holds, fails, undecided = WORDS
        return holds if outcomes == {holds} else fails if fails in outcomes else undecided

    @property
    def quotation(self) -> str:
        """The claim, where it stands, and which recipes have another outcome than all of them."""
        others = [
            f"; {word} in {', '.join(recipe for recipe, x in self.words.items() if x == word)}"
            for word in WORDS
            if word != self.word and word in self.words.values()
        ]
        return f"“{self.text}” ({self.place}{''.join(others)})"


def collect(verdicts: Mapping[str, Mapping[str, Sequence[Verdict]]]) -> list[Claim]:
    """The claims of all parts of the pages, from the verdicts of the recipes of each part."""
    claims = []
    for part, recipes in verdicts.items():
        words: dict[tuple[str, str], dict[str, str]] = {}
        for recipe, own in recipes.items():
            for verdict in own:
                words.setdefault((verdict.text, verdict.place), {})[recipe] = verdict.word
        claims += [Claim(*said, part, outcomes) for said, outcomes in words.items()]
    return claims


def counts(claims: Sequence[Claim]) -> str:
    """How many of them come out which way; some sentences are judged in more than one way."""
    held, failed, undecided = (sum(claim.word == word for claim in claims) for word in WORDS)
    sentences = len({claim.text for claim in claims})
    return (
        f"{sentences} sentences of the paper are judged in {len(claims)} ways: {held} hold, "
        f"{failed} do not and {undecided} are undecided"
    )


def lists(claims: Sequence[Claim]) -> str:
    """A list for each outcome, with a line for each part of the pages."""
    blocks = []
    for word in WORDS:
        quotations: dict[str, list[str]] = {}
        for claim in claims:
            if claim.word == word:
                quotations.setdefault(claim.part, []).append(claim.quotation)
        lines = [
            f"- {link(part, ON_THE_PAPER)}: {'; '.join(said)}" for part, said in quotations.items()
        ]
        if lines:
            blocks += [f"**{word.capitalize()}:**", "\n".join(map(_wrapped, lines))]
    return "\n\n".join(blocks)


def _wrapped(line: str) -> str:
    return textwrap.fill(
        line, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
