"""The configuration of a Tree-LSTM that learns to parse."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...stack.config import Run
from ...stack.score import sample_count

TRAIN_EXAMPLES = {"listops": 77_202}
"""Expressions that are shorter than 100 tokens, as the released programs train on."""
SCORE = "leave_one_out"
WORDS: dict[str, Callable[[Any], str]] = {
    "data": lambda name: "generated expressions" if name == "generated" else "published grammar",
    "hidden": lambda size: f"hidden size {size}",
    "longest": lambda count: f"up to {count} tokens",
    # rows of runs with such batches do not have the field
    "bucketed": lambda yes: "uniform batches" if yes is False else "batches of similar lengths",
}
"""How fields read."""


@dataclass(frozen=True, kw_only=True)
class Parsing(Run):
    """A Gumbel Tree-LSTM that learns to evaluate expressions of ListOps."""

    task: ClassVar[str] = "listops"
    counts: ClassVar[tuple[str, ...]] = ("batch", "embedding", "hidden", "patience", "longest")
    member_fields: ClassVar[tuple[str, ...]] = (*Run.member_fields, "patience")
    later_fields: ClassVar[tuple[str, ...]] = (*Run.later_fields, "bucketed")

    epochs: int = 20
    draws: int = 100
    clip_norm: float | None = 5.0
    data: Literal["listops", "generated"] = "listops"
    examples: int | None = None
    """Of generated data, how many to train on; None for the files, of which all are taken."""
    longest: int = 99
    """The most tokens of a generated expression."""
    batch: int = 16
    embedding: int = 300
    hidden: int = 300
    """Of the tree, and of the classifier."""
    dropout: float = 0.5
    patience: int = 4
    """The learning rate is halved when the accuracy of the validation has not risen more than so
    many times in a row; there are two validations in an epoch."""
    bucketed: bool = True
    """Whether the expressions of a batch have similar lengths; otherwise they are chosen uniformly
    from all, as in the released programs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count, drawn = self.examples, self.data == "generated"
        if not (isinstance(count, int) and count >= self.batch if drawn else count is None):
            raise ValueError(
                f"expected a number of examples of at least a batch ({self.batch}) for generated "
                f"data, and None for the files, got data={self.data!r}, examples={count!r}"
            )
        if not drawn and self.longest != 99:
            raise ValueError(
                "expected 99 as longest, the limit of the released programs, got "
                f"{self.longest!r}; only generated data may have another"
            )
        if not (isinstance(self.dropout, float) and 0 <= self.dropout < 1):
            raise ValueError(
                f"expected a number (float) from 0 to below 1 as dropout, got {self.dropout!r}"
            )
        if self.line.kind == "exact" or (self.line.kind == "score" and self.line.row != SCORE):
            raise ValueError(
                f"expected an estimator that makes a sample, or {SCORE}, got {self.estimator!r}; "
                "each merge depends on those before it, which the others cannot do"
            )
        if self.line.kind == "score":
            sample_count(self.line)

    @property
    def train_examples(self) -> int:
        """How many expressions it trains on."""
        return TRAIN_EXAMPLES[self.data] if self.examples is None else self.examples

    @property
    def samples(self) -> int:
        """How many parses of an expression a step makes."""
        return sample_count(self.line) if self.line.kind == "score" else 1

    @property
    def steps_per_epoch(self) -> int:
        """Expressions that do not fill a batch are left out of an epoch, others in each."""
        return self.train_examples // self.batch

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """A score function has a stack of its own, since its steps are others."""
        own = () if self.line.kind == "sampler" else ((self.line.row, self.line.options),)
        return super().stack_key + own
