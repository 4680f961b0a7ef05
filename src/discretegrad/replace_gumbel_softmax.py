"""Other gradients for models that call ``torch.nn.functional.gumbel_softmax``."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import gumbel_softmax as torchs_gumbel_softmax
from torch.overrides import TorchFunctionMode

from ._checks import check_tau, is_word
from .registry import EstimatorLike, sampler_rule

_NAME = "replace_gumbel_softmax"


def replace_gumbel_softmax(
    estimator: EstimatorLike = "reinmax",
    *,
    tau: float | Literal["model"] = 1.0,
    hard: bool | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> AbstractContextManager[Any]:
    """Serve calls of ``torch.nn.functional.gumbel_softmax`` by another sampler, in a ``with``.

    The model is not changed, and it does not matter how it imported the function. Only the thread
    that enters is served, and only until it leaves. Of two that are nested the inner one serves,
    and the outer one is asked about what the inner one leaves to torch.

    Args:
        estimator: The name of a sampler, its row, or its function.
        tau: The temperature of the estimator. That of the model is not used, because for most
            samplers it means something else: a model lowers it to come closer to discrete samples,
            which these are at once. ``"model"`` uses it, for ``gumbel_softmax``, ``gumbel_rao`` and
            ``gapped``.
        hard: With None, calls with ``hard=True`` are served, and calls with ``hard=False``, which
            ask for a relaxed sample, are left to torch. With True, these get a discrete sample too.
        generator: Source of randomness on the device of the logits; the global one by default.
        **options: The sampler's own options, such as ``gap`` or ``num_draws``.

    Returns:
        A context manager; it may be entered again after it was left.

    Raises:
        TypeError: If an argument has the wrong type, or the sampler does not have an option.
        ValueError: If the estimator is no sampler of categories, or an option has no such value.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> with discretegrad.replace_gumbel_softmax("reinmax"):
        ...     z = torch.nn.functional.gumbel_softmax(logits, tau=0.5, hard=True)
        >>> z.sum(-1).detach()
        tensor([1., 1.])
    """
    row, _ = sampler_rule(_NAME, estimator, options)
    if hard is not None and hard is not True:
        raise ValueError(
            f"{_NAME}: expected hard to be None or True, got {hard!r}. A relaxed sample is what "
            "torch's own function makes of hard=False."
        )
    if not is_word(tau, "model"):
        if isinstance(tau, bool) or not isinstance(tau, (int, float)):
            came = "a tensor" if isinstance(tau, Tensor) else repr(tau)
            raise TypeError(f'{_NAME}: expected tau to be a number or "model", got {came}')
        check_tau(_NAME, tau, torch.zeros(1), None)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"{_NAME}: expected generator to be a torch.Generator, got {type(generator).__name__}"
        )
    return _Replacement(row.function, tau, hard, {"generator": generator, **options})


class _Replacement(TorchFunctionMode):
    """Torch asks a mode before it runs a function; modes belong to a thread."""

    def __init__(
        self,
        sampler: Callable[..., Tensor],
        tau: float | Literal["model"],
        hard: bool | None,
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.sampler, self.tau, self.hard, self.arguments = sampler, tau, hard, arguments

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torchs_gumbel_softmax:
            return self._serve(*args, **kwargs)
        return func(*args, **kwargs)

    def _serve(
        self, logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
    ) -> Tensor:
        """What a call gets; the arguments are those of torch's function."""
        if not (hard or self.hard):
            return torchs_gumbel_softmax(logits, tau, hard, eps, dim)
        own_tau = tau if isinstance(self.tau, str) else self.tau
        return self.sampler(logits, own_tau, dim=dim, **self.arguments)
