"""ListOps expressions: reading and evaluating them, their right trees, and their grammar.

An expression is a digit, or a list such as ``[MAX 2 9 [MIN 4 7] 0]``: an operator and two or more
arguments, each of them an expression. Its value is a digit again. The published files put
parentheses around every pair of neighbours that the right tree joins, ``( ( ( [MAX 2 ) 9 ) ] )``.

Here, as in the released programs of the paper, the tokens of an expression are its digits, its
brackets and its operators in lower case, without parentheses: ``[ max 2 9 ]`` has five.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..data import DataError

OPEN, CLOSE = "[", "]"
DIGITS = tuple("0123456789")
OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "max": max,
    "min": min,
    # of an even number the mean of the two in the middle, rounded down
    "med": lambda values: (
        sum(sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]) // (2 - len(values) % 2)
    ),
    # the sum modulo 10
    "sm": lambda values: sum(values) % 10,
}
FEWEST = 2
"""Arguments of an operator."""
_LIST = 0.25
"""The probability that an argument is a list, in the published generator."""
_IN_VAIN = 20_000
"""Draws in a row without a new expression after which there are taken to be no more."""

Tokens = tuple[str, ...]
Span = tuple[int, int]
"""The first token of a part of an expression, and the first one after it."""


@dataclass(frozen=True)
class Grammar:
    """Which expressions there are; the defaults are those of the published data.

    Raises:
        ValueError: If there are no such expressions.
    """

    depth: int = 20
    """The most levels: a digit has one, a list one more than its deepest argument."""
    arguments: int = 5
    """The most arguments of an operator."""
    shortest: int = 1
    """The fewest tokens."""
    longest: int = 10_000
    """The most tokens. The published generator has no limit; the longest of its expressions that
    we have is far below this one."""

    def __post_init__(self) -> None:
        limits = {"depth": (1, 100), "arguments": (FEWEST, 100), "shortest": (1, 10_000)}
        for name, (least, most) in (limits | {"longest": (self.shortest, 10_000)}).items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(
                    f"expected a whole number from {least} to {most} as {name} of a grammar, got "
                    f"{value!r}"
                )


PUBLISHED = Grammar()
ANY = Grammar(depth=100, arguments=100)
"""The widest limits there can be."""


class Expression(NamedTuple):
    """An expression that has been read."""

    tokens: Tokens
    value: int
    depth: int
    """Its levels, see ``Grammar``."""
    lists: dict[Span, int]
    """Where its lists are, and the value of each."""


class Place(NamedTuple):
    """Where a text comes from, for error messages."""

    file: str = ""
    line: int = 1
    column: int = 1
    """Of the first character of the text within the line."""

    def __str__(self) -> str:
        return f"line {self.line} of {self.file}" if self.file else "the expression"


class _Mistake(Exception):
    """What is wrong with an expression, and where: at a token, or at a character of the text."""

    def __init__(self, expected: str, got: str, index: int, offset: int | None = None) -> None:
        self.expected, self.got, self.index, self.offset = expected, got, index, offset


def parse(text: str, grammar: Grammar = PUBLISHED, place: Place | None = None) -> Expression:
    """Read an expression, with or without parentheses, in capitals or not, and evaluate it.

    Args:
        text: Such as ``( ( ( [MAX 2 ) 9 ) ] )``, ``[MAX 2 9]`` or ``[ max 2 9 ]``.
        grammar: The limits that it must keep.
        place: Where it comes from; error messages say so.

    Raises:
        DataError: If it is no expression of the grammar, or its parentheses are not those of its
            tree. The message says where and why.
    """
    plain = text.lower().replace("(", " ").replace(")", " ")
    tokens = tuple(plain.replace(OPEN, " [ ").replace(CLOSE, " ] ").split())
    try:
        expression = _evaluate(tokens, grammar)
        if "(" in text or ")" in text:
            _check_parentheses(text, tokens)
    except _Mistake as mistake:
        raise _explain(mistake, text, place or Place()) from None
    return expression


def _evaluate(tokens: Tokens, grammar: Grammar) -> Expression:
    lists: dict[Span, int] = {}
    # of the lists that are open: first token, operator, values of the arguments so far
    starts: list[int] = []
    operators: list[str] = []
    values: list[list[int]] = [[]]
    depth = 1
    for index, token in enumerate(tokens):
        if not starts and values[0]:
            raise _Mistake("the end after a whole expression", _shown(token), index)
        # the operator of the innermost list is still to come
        if len(operators) < len(starts):
            if token not in OPERATORS:
                expected = f"an operator ({', '.join(OPERATORS)}) after ["
                raise _Mistake(expected, _shown(token), index)
            operators.append(token)
        elif token in DIGITS:
            values[-1].append(int(token))
        elif token == OPEN:
            starts.append(index)
            values.append([])
            depth = max(depth, len(starts) + 1)
        elif token == CLOSE and starts:
            arguments, operator = values.pop(), operators.pop()
            if not FEWEST <= len(arguments) <= grammar.arguments:
                expected = f"{FEWEST} to {grammar.arguments} arguments of {operator}"
                raise _Mistake(expected, str(len(arguments)), index)
            value = OPERATORS[operator](arguments)
            lists[starts.pop(), index + 1] = value
            values[-1].append(value)
        elif token in OPERATORS or token == CLOSE:
            raise _Mistake(f"[ before {token}", _shown(token), index)
        else:
            raise _Mistake("a digit, a bracket or an operator", _shown(token), index)
    if not tokens:
        raise _Mistake("an expression", "nothing", 0)
    if starts:
        raise _Mistake("] for each [", f"{len(starts)} without it", len(tokens))
    if depth > grammar.depth:
        raise _Mistake(f"at most {grammar.depth} levels", str(depth), 0)
    if not grammar.shortest <= len(tokens) <= grammar.longest:
        expected = f"an expression of {grammar.shortest} to {grammar.longest} tokens"
        raise _Mistake(expected, f"{len(tokens)} tokens", 0)
    return Expression(tokens, values[0][0], depth, lists)


def _check_parentheses(text: str, tokens: Tokens) -> None:
    right = published(tokens)
    if text == right:
        return
    given = list(re.finditer(r"[()\[\]]|[^\s()\[\]]+", text))
    pieces = re.findall(r"[()\[\]]|[^()\[\] ]+", right.lower())
    for match, piece in itertools.zip_longest(given, pieces):
        if match is None or match[0].lower() != piece:
            offset = len(text.rstrip()) if match is None else match.start()
            expected = "the end" if piece is None else repr(piece)
            got = "the end" if match is None else _shown(match[0])
            raise _Mistake(f"{expected} by the tree of the expression", got, 0, offset)


def _shown(token: str) -> str:
    """A token in a message: what it is made of, and not too much of it."""
    return repr(token[:40])


def _explain(mistake: _Mistake, text: str, place: Place) -> DataError:
    offset = mistake.offset
    if offset is None:
        starts = [match.start() for match in re.finditer(r"[\[\]]|[^\s()\[\]]+", text)]
        offset = [*starts, len(text.rstrip())][mistake.index]
    return DataError(
        f"expected {mistake.expected} at column {place.column + offset} of {place}, got "
        f"{mistake.got}; correct the expression or take it out"
    )


def gold_spans(tokens: Sequence[str]) -> list[Span]:
    """The right tree of an expression: the parts that its joins of two neighbours make.

    A list is joined from the left: its bracket and its operator, then one argument after the other
    (when all of that is joined), then the closing bracket. So the published files have it, but for
    the first join: there the opening bracket and the operator are one token.
    """
    starts: list[int] = []
    spans = []
    for index, token in enumerate(tokens):
        if token == OPEN:
            starts.append(index)
            continue
        spans += [(start, index + 1) for start in starts[-1:]]
        if token == CLOSE:
            starts.pop()
            # the list is an argument of the one around it
            spans += [(start, index + 1) for start in starts[-1:]]
    return spans


def published(tokens: Sequence[str]) -> str:
    """An expression as the published files write it, with the parentheses of its tree."""
    pieces: list[str] = []
    # of the lists that are open: the place of the first piece, the number of joins so far
    starts: list[int] = []
    joins: list[int] = []
    for token in tokens:
        if token == OPEN:
            starts.append(len(pieces))
            joins.append(0)
        elif token in OPERATORS:
            pieces.append(OPEN + token.upper())
        else:
            pieces.append(token)
            if token == CLOSE:
                start = starts.pop()
                pieces[start] = "( " * (joins.pop() + 1) + pieces[start]
                pieces.append(")")
            if starts:
                joins[-1] += 1
                pieces.append(")")
    return " ".join(pieces)


def draw(uniform: Callable[[], float], grammar: Grammar = PUBLISHED) -> Tokens | None:
    """An expression as the published generator draws one; None if it has too many or few tokens.

    Below the last level, an expression is a list with a probability of a quarter. The number of its
    arguments (two to the most there may be), its operator, and digits are uniform. Short
    expressions come often.

    Args:
        uniform: Gives random numbers in [0, 1).
        grammar: The limits.
    """
    tokens: list[str] = []
    names = tuple(OPERATORS)

    def add(level: int) -> None:
        if len(tokens) > grammar.longest:
            return
        if level == grammar.depth or uniform() >= _LIST:
            tokens.append(DIGITS[int(uniform() * 10)])
            return
        count = FEWEST + int(uniform() * (grammar.arguments - FEWEST + 1))
        tokens.extend((OPEN, names[int(uniform() * len(names))]))
        for _ in range(count):
            add(level + 1)
        tokens.append(CLOSE)

    add(1)
    return tuple(tokens) if grammar.shortest <= len(tokens) <= grammar.longest else None


def generate(uniform: Callable[[], float], grammar: Grammar = PUBLISHED) -> Iterator[Tokens]:
    """Expressions without end, each of them once, as the published generator has them.

    It throws away what it has drawn before, so that short expressions, of which there are few, come
    at the beginning: shuffle before you split.

    Args:
        uniform: Gives random numbers in [0, 1).
        grammar: The limits.

    Raises:
        ValueError: If nothing new has come for a long time: there are no more, or they are rare.
    """
    seen: set[Tokens] = set()
    in_vain = 0
    while in_vain < _IN_VAIN:
        tokens = draw(uniform, grammar)
        in_vain += 1
        if tokens is not None and tokens not in seen:
            seen.add(tokens)
            in_vain = 0
            yield tokens
    raise ValueError(
        f"expected more expressions, got {len(seen)} different ones and nothing new in "
        f"{_IN_VAIN} draws with {grammar}; ask for fewer, or allow more levels, arguments or tokens"
    )
