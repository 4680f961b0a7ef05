"""Routers: what the outputs of the experts are multiplied by, and what the scores learn from it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from discretegrad import sparse_mixer
from discretegrad.sparse_mixer import without_those_behind

from ...stack.noise import Noise
from ...stack.sampler import Sampler
from ...stack.score import draw
from .config import VERSIONS, Experts

# what the random numbers of a step are for, besides those of the noise itself
_MULTIPLIERS = 3


class Router:
    """The router of all members, which is the same kind for all of them.

    Weights are (members, batch, experts). Most of them are 0: such an expert might as well not
    have run, since its parameters get no gradient. The gradient at a weight that is 0 says what
    another expert would have done; ReinMax and straight-through look at it, the others do not.

    Args:
        runs: One for each member.
        noise: Random numbers, which the model advances.
    """

    def __init__(self, runs: Sequence[Experts], noise: Noise) -> None:
        self._run, self._line, self._noise = runs[0], runs[0].line, noise
        if self._line.kind == "sampler":
            self._sampler = Sampler(runs, noise)

    def costs(self, scores: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """The loss of each image in training, (members, batch), with a gradient for the scores.

        Args:
            scores: (members, batch, experts).
            loss: From the weights to the loss of each image.
        """
        if self._line.kind == "sampler":
            return loss(self._weights(scores))
        return self._line.function(
            scores,
            lambda chosen: loss(self._multiplied(chosen, scores)),
            given=draw(self._line, scores, self._noise),
            **dict(self._line.options),
        )

    def test_weights(self, scores: Tensor) -> Tensor:
        """What the test multiplies by: as in training, of the expert of the highest score."""
        if self._run.router in VERSIONS:
            return self._sparse(scores, training=False)
        if self._run.has_estimator:
            best = one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)
            return self._multiplied(best, scores)
        return self._weights(scores)

    def _weights(self, scores: Tensor) -> Tensor:
        router = self._run.router
        if router == "soft":
            return scores.softmax(-1)
        if router == "gate":
            weights, best = sparse_mixer(scores, training=False, jitter_eps=math.inf)
            return _placed(weights, best, scores)
        if router in VERSIONS:
            return self._sparse(scores, training=True)
        index = scores.argmax(-1) if router == "best" else self._noise.categories(scores)
        return self._multiplied(self._sampler.at(scores, index), scores)

    def _multiplied(self, chosen: Tensor, scores: Tensor) -> Tensor:
        return chosen * scores.softmax(-1) if self._run.gated else chosen

    def _sparse(self, scores: Tensor, *, training: bool) -> Tensor:
        run = self._run
        given = noise = None
        if training:
            given = self._draw(scores.detach())
            noise = self._noise.uniform(*given.shape[1:], purpose=_MULTIPLIERS)
        weights, experts = sparse_mixer(
            scores,
            version=VERSIONS[run.router],
            training=training,
            jitter_eps=run.jitter_eps,
            threshold=run.threshold,
            given=given,
            noise=noise,
        )
        return _placed(weights, experts, scores)

    def _draw(self, scores: Tensor) -> Tensor:
        """An expert that is not too far behind the best one for each image, (..., 1)."""
        allowed = without_those_behind(scores, self._run.jitter_eps, self._run.threshold)
        index = self._noise.categories(allowed).unsqueeze(-1)
        # a random number next to 1 may pass the running sum of all probabilities by a rounding
        lost = allowed.gather(-1, index) == -math.inf
        return torch.where(lost, allowed.argmax(-1, keepdim=True), index)


def _placed(weights: Tensor, experts: Tensor, scores: Tensor) -> Tensor:
    """Weights of some experts as those of all."""
    return torch.zeros_like(scores).scatter(-1, experts, weights)
