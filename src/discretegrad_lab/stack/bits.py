"""Bernoulli variables of stacks: the mean of a loss over samples, with any estimator of bits.

All of it is ``discretegrad.expectation``: here are the draws, which are those of each member alone,
and what members may differ in. Random numbers are made first, so that the rest is a function of
them that can be compiled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from discretegrad import ESTIMATORS, expectation
from discretegrad._types import Backend, Objective
from discretegrad.estimators.arms import make_together
from discretegrad.estimators.disarm import make_pairs
from discretegrad.families.bernoulli import take_less_likely

from .config import Run
from .learned import Learned
from .lines import Line
from .noise import Noise

ROWS = tuple(
    name
    for name, row in ESTIMATORS.items()
    if "bernoulli" in row.families and row.evaluations is not None and name != "muprop"
)
"""Estimators that a stack can have for bits."""


def sample_count(line: Line, evaluations: int) -> int:
    """How many samples of each variable so many evaluations of the loss admit.

    Raises:
        ValueError: If the line has no estimator of ``ROWS``, or cannot use just so many.
    """
    if line.row not in ROWS:
        raise ValueError(
            f"expected an estimator of {', '.join(ROWS)} for bits, got {line.row!r}; make a Line "
            "of one of them"
        )
    row = ESTIMATORS[line.row]
    for_each = row.evaluations or 1
    if "tied" in row.options:
        # z and z given b are one relaxed sample or two
        for_each = 2 if dict(line.options).get("tied", row.options["tied"]) else 3
    count, rest = divmod(evaluations, for_each)
    if rest or count < row.min_samples or (line.row == "disarm" and count % 2):
        least = max(row.min_samples, 1) * for_each
        every = 2 if line.row == "disarm" else for_each
        raise ValueError(
            f"expected a multiple of {every} from {least} on as the evaluations of the loss that "
            f"{line.label} makes, got {evaluations}"
        )
    return count


class Numbers(NamedTuple):
    """The random numbers of a step, (samples, members, ...) each."""

    uniform: Tensor
    """What the samples are drawn with; one for both samples of a pair."""
    further: dict[str, Tensor]
    """What the estimator takes besides: ``noise`` or ``seed``, if any."""


class Bits:
    """The estimator of a line, for all members of a stack.

    Args:
        runs: One for each member, all with one line.
        noise: The random numbers of the members.
        evaluations: How often the loss of a batch element is evaluated.
        learned: What the estimator learns, if it does.
        backend: Of samplers; ``"torch"`` where a compiler is to fuse their formulas with the rest.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        noise: Noise,
        evaluations: int,
        learned: Learned | None = None,
        backend: Backend = "auto",
    ) -> None:
        self.line = runs[0].line
        self.count = sample_count(self.line, evaluations)
        self._noise, self._learned, self._draws = noise, learned, runs[0].draws
        self._backend = backend
        self._pairs = self.line.row == "disarm"
        self._takes = {name: self.line.takes(name) for name in ("noise", "seed", "num_draws")}
        numbers = [run.tau for run in runs]
        # kernels are faster for one number
        self._tau = numbers[0] if len(set(numbers)) == 1 else None
        self._taus = torch.tensor(numbers, dtype=torch.float64, device=noise.device)

    def numbers(self, *shape: int) -> Numbers:
        """The random numbers of the next ``mean``, for logits of the shape (members, *shape)."""
        count = self.count // 2 if self._pairs else self.count
        uniform = self._noise.uniform(count, *shape).movedim(1, 0)
        further: dict[str, Tensor] = {}
        if self._takes["seed"]:
            further["seed"] = self._noise.seeds(self.count).movedim(1, 0).contiguous()
        elif self._takes["noise"]:
            defaults, options = ESTIMATORS[self.line.row].options, dict(self.line.options)
            if options.get("tied", defaults.get("tied", True)):
                noise = self._noise.logistic(self.count, *shape).movedim(1, 0)
            else:
                noise = self._noise.logistic(2, self.count, *shape).movedim(0, 2)
            further["noise"] = noise
        self._noise.next_step()
        return Numbers(uniform, further)

    def mean(self, logits: Tensor, f: Objective, numbers: Numbers) -> Tensor:
        """The mean of f over samples, (members, batch), with the gradient of the estimator.

        Args:
            logits: (members, batch, variables).
            f: From several samples, (samples, members, batch, variables), to (samples, members,
                batch). What it depends on besides gets its ordinary gradient.
            numbers: See there.
        """
        drawn = self.draw(logits, numbers.uniform)
        if self._takes["seed"]:
            # as two categories each: the kernels have seeds for each member for those alone
            two = torch.stack([logits, torch.zeros_like(logits)], -1)
            first, drawn = (lambda z: f(z[..., 0])), (~drawn).long()
            return self._expectation(two, first, "categorical", drawn, numbers.further)
        return self._expectation(logits, f, "bernoulli", drawn, numbers.further)

    def _expectation(
        self, logits: Tensor, f: Objective, family: str, drawn: Tensor, further: dict[str, Tensor]
    ) -> Tensor:
        line, options = self.line, dict(self.line.options) | further
        if self._learned is not None:
            options |= self._learned.options()
        elif line.has_tau:
            each = self._taus.view(-1, *[1] * (logits.ndim - 1))
            options["tau"] = each if self._tau is None else self._tau
        if self._takes["num_draws"]:
            options["num_draws"] = self._draws
        if line.kind == "sampler":
            options["backend"] = self._backend
        return expectation(
            logits,
            f,
            line.row,
            num_samples=self.count,
            family=family,
            given=drawn,
            vectorize="stacked",
            **options,
        )

    @torch.no_grad()
    def draw(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Booleans, (samples, members, ...), as the estimator wants them drawn."""
        point = logits.detach()
        makers = {"disarm": make_pairs, "arms": make_together}
        drawn = makers.get(self.line.row, take_less_likely)(point, uniform)
        # in one piece, as kernels want what is given
        return drawn.contiguous()


def draw_bits(logits: Tensor, noise: Noise, count: int) -> Tensor:
    """Samples without a gradient, (count, members, batch, ...); no estimator matters to them.

    Those of a batch element depend on its place, and not on how many come after it.
    """
    _, batch, *variables = logits.shape
    uniform = noise.uniform(batch, count, *variables).movedim(2, 0)
    noise.next_step()
    return take_less_likely(logits, uniform).to(logits.dtype)
