"""Adam and RAdam for stacks: every member with its own rule, learning rate and step count.

The rules are those of ``torch.optim.Adam`` and ``torch.optim.RAdam`` with torch's second beta and
eps. On a CPU and not compiled, they give every member bit for bit the parameters
that ``torch.optim`` would; else they round differently in places.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from .compilation import compiled, worth_compiling

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Scalars(NamedTuple):
    """What the update of a member needs besides its tensors, (members, 1) each."""

    alive: Tensor
    """bool: whether the member is updated at all."""
    is_radam: Tensor
    """bool"""
    rate: Tensor
    """Learning rate."""
    size: Tensor
    """Minus the learning rate over the first bias correction: Adam's step."""
    first: Tensor
    """Bias correction of the mean."""
    second: Tensor
    """Bias correction of the root of the mean square."""
    rectification: Tensor
    """RAdam's factor for the variance of its step; 0 as long as the step is not adaptive."""


State = tuple[Tensor, Tensor, Tensor]
"""Parameter, running mean of the gradient, running mean of its square; (members, n) each."""


# each operation rounds as the one of torch.optim that it stands for: do not simplify


def adam(p: Tensor, m: Tensor, root: Tensor, s: Scalars) -> Tensor:
    """The parameter after a step of Adam; ``root`` is that of the mean square."""
    return torch.addcdiv(p, s.size * m, root / s.second + EPS)


def radam(p: Tensor, m: Tensor, root: Tensor, s: Scalars) -> Tensor:
    """The parameter after a step of RAdam."""
    plain = m / s.first * s.rate
    adaptive = plain * ((root + EPS).reciprocal() * s.second) * s.rectification
    return p - torch.where(s.rectification > 0, adaptive, plain)


def either(p: Tensor, m: Tensor, root: Tensor, s: Scalars) -> Tensor:
    """The parameter after a step of the rule that its member follows."""
    return torch.where(s.is_radam, radam(p, m, root, s), adam(p, m, root, s))


RULES = {"adam": adam, "radam": radam, "either": either}


def updated(rule: str, state: State, g: Tensor, s: Scalars, beta1: float = BETA1) -> State:
    """The state after a step with gradient ``g``, as if all members were alive; elementwise."""
    p, m, v = state
    m = torch.lerp(m, g, 1 - beta1)
    v = torch.addcmul(v * BETA2, g, g, value=1 - BETA2)
    return RULES[rule](p, m, v.sqrt(), s), m, v


def _apply(
    rule: str,
    states: Sequence[State],
    gradients: Sequence[Tensor],
    s: Scalars,
    beta1: float = BETA1,
    decay: float = 0.0,
) -> None:
    """A step of the living members, in place; one pass over the memory where compiled."""
    for state, gradient in zip(states, gradients, strict=True):
        g = gradient.reshape(state[0].shape)
        new = updated(rule, state, g.add(state[0], alpha=decay) if decay else g, s, beta1)
        for old_part, new_part in zip(state, new, strict=True):
            torch.where(s.alive, new_part, old_part, out=old_part)


def _advance(
    steps: Tensor,
    alive: Tensor,
    is_radam: Tensor,
    rates: Tensor,
    table: Tensor,
    factors: Tensor | None = None,
    rate_factors: Tensor | None = None,
) -> Scalars:
    """Count a step of the living members; what follows from the counts."""
    if rate_factors is not None:
        rates = rates * rate_factors.unsqueeze(1)
    if factors is not None:
        # of the learning rates, (members, updates)
        rates = rates * factors.gather(1, steps.clamp(max=factors.shape[1] - 1).unsqueeze(1))
    steps += alive
    row = table[steps.clamp(max=len(table) - 1)]
    first, second, rectification = row.float().unsqueeze(-1).unbind(1)
    size = -rates / row[:, :1]
    alive = alive.unsqueeze(-1)
    return Scalars(alive, is_radam, rates.float(), size.float(), first, second, rectification)


def clipped(gradients: Sequence[Tensor], longest: Tensor) -> list[Tensor]:
    """Gradients with each member's norm over all of them limited, (members, n) each."""
    flat = [gradient.reshape(len(longest), -1) for gradient in gradients]
    norms = torch.stack([torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in flat])
    total = torch.linalg.vector_norm(norms, dim=0)
    # 1e-6 as in torch.nn.utils; a limit of infinity over any norm is no limit
    factor = (longest / (total + 1e-6)).clamp(max=1.0)
    return [x * factor for x in flat]


@lru_cache
def corrections(beta1: float = BETA1) -> Tensor:
    """``first``, ``second`` and ``rectification`` of every step until they no longer change.

    (steps, 3), float64. A table, since ``torch.optim`` has them from Python's floats: powers round
    differently in torch, and differently on every device.
    """
    rows = [(1.0, 1.0, 0.0)]  # of members that never made a step
    limit = 2 / (1 - BETA2) - 1
    for step in map(float, count(1)):
        first = 1 - beta1**step
        second = 1 - BETA2**step
        rho = limit - 2 * step * (BETA2**step) / second
        factor = 0.0
        if rho > 5.0:
            factor = ((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)) ** 0.5
        rows.append((first, second**0.5, factor))
        if first == 1 and second == 1 and rho == limit:
            break
    return torch.tensor(rows, dtype=torch.float64)


class Optimiser:
    """One step of all members at a time.

    A step asks nothing of the device, so it can be captured in a CUDA graph.

    Args:
        parameters: (members, ...) each, float32 and contiguous, on one device; updated in place.
        kinds: "adam" or "radam" for each member.
        learning_rates: One for each member.
        schedules: For each member the factor of its learning rate at each of its updates, the last
            one also for all that follow; constant by default.
        rate_factors: What each learning rate is multiplied by besides, float64, (members,); read at
            every step, so that others may change it in between.
        clip_norms: For each member the largest norm of its gradient, None for no limit; a larger
            gradient is shortened as ``torch.nn.utils.clip_grad_norm_`` does.
        beta1: Adam's first beta.
        decay: Times the parameters, this is added to the gradient.
        compile: Whether ``torch.compile`` fuses the update of a parameter; by default it does so
            for large stacks on a GPU.

    Raises:
        ValueError: If these do not fit together.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        kinds: Sequence[str],
        learning_rates: Sequence[float],
        *,
        schedules: Sequence[Sequence[float]] | None = None,
        rate_factors: Tensor | None = None,
        clip_norms: Sequence[float | None] | None = None,
        beta1: float = BETA1,
        decay: float = 0.0,
        compile: bool | None = None,
    ) -> None:
        _check(parameters, kinds, learning_rates)
        members = len(kinds)
        device = next(iter(parameters.values())).device
        self._shapes = {name: p.shape[1:] for name, p in parameters.items()}
        # with two axes, what differs between members has one shape for all parameters
        flat = {name: p.detach().view(members, -1) for name, p in parameters.items()}
        self._states: dict[str, State] = {
            name: (p, torch.zeros_like(p), torch.zeros_like(p)) for name, p in flat.items()
        }
        self._steps = torch.zeros(members, dtype=torch.int64, device=device)
        self._beta1, self._decay = beta1, decay
        self._rule = kinds[0] if len(set(kinds)) == 1 else "either"
        self._is_radam = torch.tensor([[kind == "radam"] for kind in kinds], device=device)
        self._rates = torch.tensor(
            [[rate] for rate in learning_rates], dtype=torch.float64, device=device
        )
        self._table = corrections(beta1).to(device)
        self._factors = None
        if schedules is not None:
            self._factors = torch.tensor(schedules, dtype=torch.float64, device=device)
        self._rate_factors = rate_factors
        self._longest = None
        if any(norm is not None for norm in clip_norms or ()):
            limits = [[math.inf if norm is None else norm] for norm in clip_norms or ()]
            self._longest = torch.tensor(limits, device=device)
        if compile is None:
            compile = worth_compiling(device, sum(p.numel() for p in flat.values()))
        # two functions: in one, every element would repeat the arithmetic of its member
        self._advance = compiled(_advance) if compile else _advance
        self._apply = compiled(_apply) if compile else _apply

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], alive: Tensor) -> None:
        """Update the parameters.

        Args:
            gradients: One for each parameter, of its shape.
            alive: bool, (members,). The other members keep their parameters and their state,
                whatever their gradients are.
        """
        scalars = self._advance(
            self._steps,
            alive,
            self._is_radam,
            self._rates,
            self._table,
            self._factors,
            self._rate_factors,
        )
        states = list(self._states.values())
        ordered = [gradients[name] for name in self._states]
        if self._longest is not None:
            ordered = clipped(ordered, self._longest)
        self._apply(self._rule, states, ordered, scalars, self._beta1, self._decay)

    def stacked_state(self) -> dict[str, Tensor]:
        """What members need to go on besides their parameters, (members, ...) each; not copied."""
        tensors = {"steps": self._steps}
        for name, (_, m, v) in self._states.items():
            tensors[f"mean/{name}"] = m.view(len(m), *self._shapes[name])
            tensors[f"square/{name}"] = v.view(len(v), *self._shapes[name])
        return tensors


def _check(
    parameters: Mapping[str, Tensor], kinds: Sequence[str], learning_rates: Sequence[float]
) -> None:
    members = len(kinds)
    if not (parameters and members):
        raise ValueError("expected at least one parameter and one member, got none")
    for kind in kinds:
        if kind not in ("adam", "radam"):
            raise ValueError(f"expected the optimiser adam or radam, got {kind!r}")
    if len(learning_rates) != members:
        raise ValueError(
            f"expected a learning rate for each of {members} members, got {len(learning_rates)}"
        )
    for rate in learning_rates:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"expected positive learning rates, got {rate}")
    device = next(iter(parameters.values())).device
    for name, p in parameters.items():
        if p.shape[:1] != (members,):
            raise ValueError(
                f"expected {name} of shape ({members}, ...), the members first, "
                f"got {tuple(p.shape)}"
            )
        if p.dtype != torch.float32 or p.device != device or not p.is_contiguous():
            raise ValueError(
                f"expected {name} contiguous, in float32 and on {device}, got strides "
                f"{p.stride()}, {p.dtype} on {p.device}; move the model before you make this"
            )
