"""The one path of every sampler: check, draw or take the given draw, attach the gradient.

What differs between samplers is a ``Rule``: the formula of the gradient, and what a kernel calls
it. ``sample`` makes the dense sample of it, ``sample_index`` the index form.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ._attach import Vjp, attach_sample
from ._checks import check_generator, check_noise, is_word, warn_of_small_tau
from ._types import Backend, Call, Method, Temperature
from .families import FAMILIES, Family, FamilyLike, Variables, get_family
from .kernels import samplers
from .kernels.dispatch import choose_backend
from .select import Handle


class Gradient(NamedTuple):
    """How a draw gets its gradient: ``vjp(g, drawn, *saved)`` for the gradient g at the sample."""

    vjp: Vjp
    """The formula; numbers are bound to it with ``functools.partial``."""
    saved: tuple[Tensor, ...]
    """Constant tensors with the leading axes of the logits."""


class Draw(NamedTuple):
    """What a formula is given: variables of a family and a draw of them."""

    family: Family
    variables: Variables
    drawn: Tensor
    noise: Tensor | None = None
    """What the rule's ``draw_noise`` or ``accept_noise`` made, for rules that have them."""


class Rule(NamedTuple):
    """What is special to one sampler."""

    name: str
    formula: Callable[[Draw], Gradient]
    kernel: Method | None = None
    """What the kernels call the same formula; None if they do not have it."""
    draw_noise: Callable[[Draw, torch.Generator | None], Tensor] | None = None
    """For formulas with noise besides the draw: new noise, given the draw."""
    accept_noise: Callable[[Draw, "Request"], Tensor] | None = None
    """The same from the user's ``noise`` or ``seed``."""
    least_tau: float = 0.0
    """A temperature below this is unusual enough for a warning."""


class Request(NamedTuple):
    """A user's call of a sampler."""

    logits: Tensor
    tau: Temperature = 1.0
    family: FamilyLike = "categorical"
    given: Tensor | None = None
    noise: Tensor | None = None
    seed: Tensor | None = None
    dim: int = -1
    mask: Tensor | None = None
    generator: torch.Generator | None = None
    backend: Backend = "auto"


def sample(rule: Rule, request: Request) -> Tensor:
    """Samples of the shape of the logits with the gradient of the rule."""
    if _uses_kernel(rule, request):
        family = get_family(rule.name, request.family)
        if not family.steps_in_kernels:
            assert rule.kernel is not None
            launch = getattr(samplers, str(family.kernel))
            launched: Tensor = launch(
                _call(rule, request), rule.kernel, request.given, request.seed
            )
            return launched
        draw = draw_for(rule, request, family=family.with_kernels())
    else:
        draw = draw_for(rule, request)
    family, variables, drawn, _ = draw
    vjp, saved = rule.formula(draw)
    attached = attach_sample(family.sample, vjp, variables.logits, drawn, *saved)
    return family.restore(attached, variables.dim)


def index_form(rule: Rule, request: Request) -> tuple[Tensor, Handle]:
    """The drawn categories, and a handle that carries their gradient to ``select``."""
    if _uses_kernel(rule, request):
        assert rule.kernel is not None
        return samplers.index_form(_call(rule, request), rule.kernel)
    draw = draw_for(rule, request)
    vjp, saved = rule.formula(draw)
    logits, index = draw.variables.logits, draw.drawn.squeeze(-1)
    # the user's own copy: what he does to it does not change the draw
    return index.clone(), Handle(logits, index, vjp, logits.dtype, (draw.drawn, *saved))


def draw_for(
    rule: Rule, request: Request, *, learnable_tau: bool = False, family: Family | None = None
) -> Draw:
    """A new draw, or the one that the user gave, with the noise that the rule needs.

    ``family`` may be given as another form of that of the request.
    """
    family, call = family or get_family(rule.name, request.family), _call(rule, request)
    if family.name not in FAMILIES:
        _check_works_on(rule.name, family)
    variables = family.prepare(call, learnable_tau=learnable_tau)
    if request.given is not None:
        check_generator(rule.name, request.generator, request.logits)
        drawn = family.accept(rule.name, variables, request.given)
    elif request.noise is None and request.seed is None:
        drawn = family.draw(call, variables)
    else:
        raise ValueError(
            f"{rule.name}: expected given= beside noise= or seed=, which belong to a draw, got "
            "none. Pass the draw, or leave them out to draw everything here."
        )
    draw = Draw(family, variables, drawn)
    if rule.draw_noise is None:
        return draw
    if request.noise is None and request.seed is None:
        noise = rule.draw_noise(draw, request.generator)
    else:
        assert rule.accept_noise is not None
        noise = rule.accept_noise(draw, request)
    return Draw(family, variables, drawn, noise)  # torch 2.6 cannot compile draw._replace


def _check_works_on(name: str, family: Family) -> None:
    """A sampler of the library is defined for this kind of variable; of others nothing is known."""
    # these import this file
    from ._score import check_works_on
    from .registry import ROWS

    if name in ROWS:
        check_works_on(ROWS[name], family)


def jacobian_at(draw: Draw, natural: Tensor | None = None) -> Gradient:
    """The gradient of the mean at ``natural / tau``: ``C(natural / tau) g / tau``.

    Without ``natural``, at the logits themselves; the largest of ``natural`` is at the draw.
    """
    family, variables = draw.family, draw.variables
    tau = variables.tau
    point = family.tempered(variables) if natural is None else family.point(natural / tau)
    # noise or a gap makes the drawn category the largest; the logits need not
    vjp = partial(_jacobian, family, natural is not None)
    if isinstance(tau, Tensor):
        return Gradient(vjp, (point, tau))
    return Gradient(partial(vjp, tau=tau), (point,))


def _jacobian(
    family: Family, largest: bool, g: Tensor, drawn: Tensor, point: Tensor, tau: Temperature
) -> Tensor:
    g = family.centre(g, drawn) if largest else g
    gradient = family.covariance(point, g, centred=largest)
    return gradient if not isinstance(tau, Tensor) and tau == 1 else gradient.div_(tau)


def given_noise(name: str, draw: Draw, noise: Tensor | None, *, draws: bool = False) -> Tensor:
    """A user's noise with the axes of a variable last, and the axis of draws, if any, first."""
    family, variables = draw.family, draw.variables
    dim = variables.dim
    shape = family.restore(variables.point, dim).shape
    assert noise is not None
    check_noise(name, noise, (-1, *shape) if draws else tuple(shape), family.noise)
    noise = family.accept_noise(name, noise, variables.point)
    return noise if dim == -1 else noise.movedim(dim if dim < 0 else dim + draws, -1)


def _call(rule: Rule, request: Request) -> Call:
    return Call(
        rule.name, request.logits, request.tau, request.dim, request.mask, request.generator
    )


def _uses_kernel(rule: Rule, request: Request) -> bool:
    backend, logits = request.backend, request.logits
    if rule.least_tau and not isinstance(request.tau, Tensor):
        # from here it is the same number of calls back to the user's line, on every path
        warn_of_small_tau(rule.name, request.tau, rule.least_tau)
    # first what is true of nearly every call on a CPU, where a call takes microseconds
    if is_word(backend, "auto") and not (isinstance(logits, Tensor) and logits.is_cuda):
        return False
    return choose_backend(rule.name, logits, backend, _lacking(rule, request)) == "triton"


def _lacking(rule: Rule, request: Request) -> str:
    """What the call asks for and no kernel does."""
    family = get_family(rule.name, request.family)
    if family.steps_in_kernels:
        return ""
    if rule.kernel is None:
        return f"the formula of {rule.name}"
    if family.kernel is None:
        return f"the family {family.name}"
    if request.noise is not None:
        return "noise that is given"
    if request.seed is not None:
        if request.given is None:
            return "seeds without a draw"
        if family.name != "categorical":
            return "seeds for each member but for categories"
        if request.dim not in (-1, request.logits.ndim - 1):
            return "seeds with a category axis that is not the last"
    return ""
