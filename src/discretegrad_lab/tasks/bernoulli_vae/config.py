"""The configuration of the Bernoulli VAE."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...stack.bits import sample_count
from ...stack.config import Run

DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "omniglot": "Omniglot"}
WORDS: dict[str, Callable[[Any], str]] = {
    "data": lambda name: DATA[name],
    "evaluations": lambda n: f"K = {n}",
    "binarised": lambda when: f"binarised {when}",
    "prior": lambda kind: (
        "learned prior, paired as released" if kind == "released" else f"{kind} prior"
    ),
    "divergence": lambda kind: f"{kind} divergence",
}
"""How fields read."""


@dataclass(frozen=True, kw_only=True)
class BernoulliVae(Run):
    """The VAE with 200 Bernoulli variables, on binary images of 784 pixels.

    The defaults are those of the baseline papers, the protocol that is alike for all estimators.
    """

    task: ClassVar[str] = "bernoulli_vae"
    counts: ClassVar[tuple[str, ...]] = ("evaluations", "latents", "batch", "steps_per_epoch")
    member_fields: ClassVar[tuple[str, ...]] = (*Run.member_fields, "data")

    epochs: int = 1000
    steps_per_epoch: int = 1000
    """An epoch is so many steps, whatever the number of images."""
    data: Literal["mnist", "fashion-mnist", "omniglot"]
    evaluations: int = 2
    """K: how often the loss of an image is evaluated in a step, without relaxed estimators' own
    gradients."""
    latents: int = 200
    batch: int = 100
    draws: int = 100
    slope: float = 0.3
    """Of the activations where they are negative (LeakyReLU)."""
    binarised: Literal["anew", "once"] = "anew"
    """Whether the pixels of a training image are drawn whenever it is seen, or once for all of
    them before training; those of validation and test are drawn once, alike for all runs."""
    prior: Literal["uniform", "learned", "released"] = "uniform"
    """``"learned"`` has a logit for each variable. ``"released"`` is the same with the pairing of
    the released code, see ``log_prior``."""
    divergence: Literal["sampled", "exact"] = "sampled"
    """Whether log q(z) - log p(z) of the sample is part of the loss that the estimator sees, as in
    the baseline papers, or its expectation is added to it, as in the released code."""
    start: Literal["glorot", "torch"] = "glorot"
    """Where the weights start: as those of Keras, or of torch."""
    two_logits: bool = False
    """Whether the encoder's output l stands for the logits l and 1 - l of two categories, as in the
    released code, which is a bit with the log-odds 2 l - 1."""
    compared: bool = False
    """Whether the gradients of the estimator are compared with the exact ones along training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.slope, float) and 0 < self.slope < 1):
            raise ValueError(f"expected a number (float) in (0, 1) as slope, got {self.slope!r}")
        if self.prior == "released" and self.latents % 2:
            raise ValueError(
                "expected an even number of latents for the released pairing of the prior, got "
                f"{self.latents}"
            )
        sample_count(self.line, self.evaluations)

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """Each line has a stack of its own, so that the time of its runs is its own."""
        return (*super().stack_key, self.line.row, self.line.options)
