"""The ListOps data: the files as the released programs read them, files of users, generated data.

A file has a line for each example: the value of an expression, a tab, and the expression. Every
line is read as ``expressions.parse`` does it and its value is computed again. The first line that
is wrong ends the reading with its number and what is wrong; nothing is left out silently.

The training file is not the original one, which was not at hand: ``train-regenerated.tsv.gz`` was
drawn anew from the published grammar, without the expressions of the other two files.
"""

import gzip
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import DataError, read_file
from .expressions import (
    ANY,
    CLOSE,
    DIGITS,
    OPEN,
    OPERATORS,
    PUBLISHED,
    Grammar,
    Place,
    Tokens,
    generate,
    parse,
)

PAD = 0
VOCABULARY: tuple[str, ...] = ("<pad>", OPEN, CLOSE, *OPERATORS, *DIGITS)
"""The token of each number."""
CLASSES = 11
"""Of the classifier: the digits, and the class for unknown labels of the released programs, which
no example has."""
LIMIT = 100
"""The released programs leave out, of every file, what has this number of tokens or more."""
WIDTHS = (8, 13, 20, 29, 41, 56, 75, 99)
"""Lengths that batches are padded to: of eight numbers, those that pad the training set least."""
LONG_WIDTHS = (*WIDTHS, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""The same for the full test set."""
REGENERATED = (
    "The training set was regenerated from the published grammar; the original was not at hand."
)
"""To be said wherever results appear."""
TRAIN, VALID, TEST = "train-regenerated.tsv.gz", "valid.tsv", "test.tsv"
_NUMBERS = {token: number for number, token in enumerate(VOCABULARY)}


class Example(NamedTuple):
    """An expression and its value."""

    tokens: Tokens
    label: int

    @property
    def short(self) -> bool:
        """Whether the released programs use it."""
        return len(self.tokens) < LIMIT


class Examples(NamedTuple):
    """Expressions and their values."""

    tokens: Tensor
    """(count, longest) int64, padded at the end with ``PAD``."""
    lengths: Tensor
    """(count,) int64."""
    labels: Tensor
    """(count,) int64, from 0 to 9."""


class ListOps(NamedTuple):
    """The parts of a data set."""

    train: Examples
    valid: Examples
    test: Examples
    long_test: Examples
    """The full test set: that of ``test``, and what has ``LIMIT`` tokens or more."""


def load_listops(data: Path | None = None) -> ListOps:
    """The real files, as the released programs read them: only what is shorter than ``LIMIT``.

    Args:
        data: The first data directory to look at, see ``discretegrad_lab.tasks.data``.

    Raises:
        DataError: If a file is in none of the places, or damaged wherever it is.
    """
    return _parse_real(*(read_file("listops", name, data) for name in (TRAIN, VALID, TEST)))


def load_files(
    folder: Path, grammar: Grammar | None = None, *, leave_out_long: bool = False
) -> ListOps:
    """Files of your own, train.tsv, valid.tsv and test.tsv in a folder.

    Args:
        folder: Where they are.
        grammar: The limits that expressions must keep; by default those of the published data, and
            fewer tokens than ``LIMIT``.
        leave_out_long: Whether expressions of ``LIMIT`` tokens or more are allowed and left out, as
            the released programs do with the published files; ``long_test`` has them. Otherwise
            nothing is left out.

    Raises:
        DataError: If a file cannot be read, is empty, or has a line that is wrong.
    """
    limits = grammar or (PUBLISHED if leave_out_long else Grammar(longest=LIMIT - 1))
    parts = []
    for name in ("train.tsv", "valid.tsv", "test.tsv"):
        path = Path(folder) / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"expected {path} with lines of a digit, a tab and an expression, got: "
                f"{error.strerror or error}; put it there or name another folder"
            ) from error
        examples = read_lines(content, str(path), limits)
        if leave_out_long and not any(x.short for x in examples):
            raise DataError(
                f"expected an expression of fewer than {LIMIT} tokens in {path}, got only longer "
                "ones, which are left out; add shorter ones"
            )
        parts.append(examples)
    if leave_out_long:
        return _parts(*parts)
    train, valid, test = map(_encode, parts)
    return ListOps(train, valid, test, test)


def generate_listops(seed: int, counts: tuple[int, int, int], **options: Any) -> ListOps:
    """Data that need no file, drawn as the published generator does; no expression occurs twice.

    Args:
        seed: The same seed gives the same data.
        counts: How many examples to train, to validate and to test with, all of them shorter than
            ``LIMIT``. Longer ones that are drawn on the way are in ``long_test`` alone.
        options: Fields of ``Grammar``: depth, arguments, shortest, longest.

    Raises:
        ValueError: If there are not so many different expressions.
    """
    if len(counts) != 3 or not all(isinstance(x, int) and x > 0 for x in counts):
        raise ValueError(
            "expected three positive counts of examples, to train, validate and test with, got "
            f"{counts!r}"
        )
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"expected a whole number from 0 on as seed, got {seed!r}")
    grammar = Grammar(**options)
    if grammar.shortest >= LIMIT:
        raise ValueError(
            f"expected fewer than {LIMIT} tokens as the shortest expression, got "
            f"{grammar.shortest}; longer ones are not trained on"
        )
    uniform = Random(seed).random
    examples = (_example(tokens) for tokens in generate(uniform, grammar))
    drawn = _take(examples, sum(counts))
    # short ones were drawn first
    shuffled = iter(sorted(drawn, key=lambda _: uniform()))
    train, valid, test = (_take(shuffled, count) for count in counts)
    return _parts(train, valid, test)


def _example(tokens: Tokens) -> Example:
    return Example(tokens, parse(" ".join(tokens), ANY).value)


def _take(examples: Iterable[Example], count: int) -> list[Example]:
    """As many short examples, and the long ones before the last of them."""
    taken = []
    for example in examples:
        taken.append(example)
        count -= example.short
        if not count:
            break
    return taken


def _parts(train: list[Example], valid: list[Example], test: list[Example]) -> ListOps:
    short = (_encode([x for x in part if x.short]) for part in (train, valid, test))
    return ListOps(*(*short, _encode(test)))


def encode(expressions: Iterable[Tokens]) -> Examples:
    """Expressions, which are given by their tokens, with their values."""
    return _encode([_example(tokens) for tokens in expressions])


def _encode(examples: Sequence[Example]) -> Examples:
    lengths = torch.tensor([len(x.tokens) for x in examples])
    numbers = torch.tensor([_NUMBERS[token] for x in examples for token in x.tokens])
    tokens = torch.full((len(examples), int(lengths.max())), PAD)
    tokens[torch.arange(tokens.shape[1]) < lengths[:, None]] = numbers
    return Examples(tokens, lengths, torch.tensor([x.label for x in examples]))


def decode(tokens: Tensor) -> Tokens:
    """The tokens of an example from its row of numbers."""
    return tuple(VOCABULARY[number] for number in tokens.tolist() if number != PAD)


def depths(tokens: Tensor) -> Tensor:
    """The levels of each expression (see ``Grammar``), from (count, longest) numbers."""
    opened, closed = ((tokens == _NUMBERS[x]).long() for x in (OPEN, CLOSE))
    return (opened - closed).cumsum(1).amax(1) + 1


def padded_length(longest: int, widths: Sequence[int] = WIDTHS) -> int:
    """The smallest of some widths that an expression of ``longest`` tokens fits into."""
    if longest > max(widths):
        raise ValueError(
            f"expected at most {max(widths)} tokens, got {longest}; give larger widths, such as "
            "LONG_WIDTHS"
        )
    return min(width for width in widths if width >= longest)


def buckets(
    lengths: Tensor,
    batch: int,
    generator: torch.Generator,
    *,
    widths: Sequence[int] = WIDTHS,
    order: torch.Generator | None = None,
) -> list[Tensor]:
    """Batches of examples of similar lengths, for an epoch.

    The examples are shuffled and then sorted by the smallest width they fit into, which leaves
    those of one width in random order. They are cut into batches, so that all but the last, in the
    largest width, are full; where a width ends within a batch, the first examples of the next one
    fill it up. Last, the batches are shuffled. How many batches have a width depends on the lengths
    alone, so runs with the same ``order`` and generators of their own have batches of the same
    width at the same time: they can be trained together, and captured as one CUDA graph per width.

    With a single width the batches are uniformly random. So are those of the released programs:
    torchtext 0.6.0's ``BucketIterator`` sorts by length, within 100 batches, only if it is told to
    sort within batches too, and they do not tell it.

    Args:
        lengths: (count,) tokens of each example.
        batch: Examples of a batch.
        generator: Decides which examples come together, and the order of the batches too if there
            is no ``order``.
        widths: Lengths to pad to, see ``padded_length``.
        order: Decides the order of the batches.

    Returns:
        Indices of examples, one tensor for each batch, where ``lengths`` is; every example once.

    Raises:
        ValueError: If an example fits into no width, or the batch is no positive number.
    """
    if batch < 1 or not len(lengths):
        raise ValueError(
            f"expected a positive number of examples and of those in a batch, got {len(lengths)} "
            f"and {batch}"
        )
    padded_length(int(lengths.max()), widths)
    shuffled = _permutation(len(lengths), generator).to(lengths.device)
    edges = torch.tensor(sorted(widths), device=lengths.device)
    bucket = torch.searchsorted(edges, lengths[shuffled])
    batches = shuffled[bucket.argsort(stable=True)].split(batch)
    return [batches[i] for i in _permutation(len(batches), order or generator).tolist()]


def _permutation(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator, device=generator.device)


def read_lines(content: bytes, name: str, grammar: Grammar = PUBLISHED) -> list[Example]:
    """The examples of a file, whose values have been computed again.

    Args:
        content: All of the file.
        name: What error messages call it.
        grammar: The limits that expressions must keep.

    Raises:
        DataError: If it is empty, or a line is wrong; the message names the file and the line.
    """
    try:
        lines = content.decode("ascii").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"expected only ASCII characters in line {line} of {name}, got the byte "
            f"{content[error.start]:#04x}; correct the line or take it out"
        ) from error
    if lines == [""]:
        raise DataError(
            f"expected lines of a digit, a tab and an expression in {name}, got an empty file; "
            "write the examples into it"
        )
    return [_read_line(line, number, name, grammar) for number, line in enumerate(lines, 1)]


def _read_line(line: str, number: int, name: str, grammar: Grammar) -> Example:
    label, tab, text = line.partition("\t")
    if not tab or label not in DIGITS:
        raise DataError(
            f"expected a digit, a tab and an expression in line {number} of {name}, got "
            f"{line[:60]!r}; correct the line or take it out"
        )
    expression = parse(text, grammar, Place(name, number, len(label) + 2))
    if expression.value != int(label):
        raise DataError(
            f"expected the value {expression.value} at the beginning of line {number} of {name}, "
            f"got {label}; correct the line or take it out"
        )
    return Example(expression.tokens, expression.value)


# every stack reads the files, and to check 100,000 lines takes seconds in which a GPU would wait
@lru_cache(maxsize=1)
def _parse_real(train: bytes, valid: bytes, test: bytes) -> ListOps:
    """The contents of the files as examples; nobody may change them."""
    contents = {TRAIN: gzip.decompress(train), VALID: valid, TEST: test}
    return _parts(*(read_lines(content, name) for name, content in contents.items()))
