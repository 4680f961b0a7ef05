"""Categorical variables: a sample is one-hot along the category axis."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._checks import check_index_type, values_are_checked
from .._math import row_sum, sigmoid, softmax
from .._modes import compiling, transforming
from .._random import uniform, widest
from .._seeded import seeded_exponential
from .._types import Call
from .axis import AlongAxis, constant
from .base import Variables

# Above this many categories the draw first picks a block of neighbours, then one of the block:
# it then reads the probabilities once and writes nothing of their size.
_ONE_LEVEL = 64
_BELOW_ONE = 1 - 2**-53


def _reinmax(g: Tensor, drawn: Tensor, probs: Tensor, tempered: Tensor | None = None) -> Tensor:
    """The gradient of ``reinmax`` in few passes: temporaries cost the most here."""
    g = g - g.gather(-1, drawn)
    if tempered is None:
        # (p (g - g_k) + z (g_k - p.g)) / 2: the first term is 0 at the drawn category k, where
        # the second, minus the sum of the first, goes
        gradient = g.mul_(probs)
        total = row_sum(gradient)
        return gradient.scatter_(-1, drawn, total.neg_()).mul_(0.5)
    # 2 J(m) g = (q + z)(g - s) with m = (q + z) / 2 and s = m.g, and z (g - s) = -s z
    gradient = tempered * g
    s = row_sum(gradient) / 2
    gradient.addcmul_(tempered, s, value=-1)
    minus = g.mul_(probs)
    mean = row_sum(minus)
    minus.addcmul_(probs, mean, value=-1)
    return gradient.add_(minus, alpha=-0.5).scatter_add_(-1, drawn, -s)


_FUSED: Mapping[str, Callable[..., Tensor]] = {"reinmax": _reinmax}


class Categorical(AlongAxis):
    """One category of n. Drawn: an int64 index (..., 1). Point: the probabilities."""

    name = "categorical"
    noise = "exponential"
    kernel = "one_hot"

    @property
    def fused(self) -> Mapping[str, Callable[..., Tensor]]:
        """See ``Family``."""
        return _FUSED

    def check_values(self, name: str, variables: Variables) -> None:
        """No row holds NaN or +inf, and every row allows some category."""
        check_rows(name, variables.logits, variables.point)

    def draw(self, call: Call, variables: Variables, count: int | None = None) -> Tensor:
        """An index (..., 1), never of a category of probability zero.

        It takes one float64 number per variable. With 53 bits the probability of a category is met
        to the precision of the logits, also where it is one in a million, and whatever their dtype.
        """
        probs = variables.point
        if count is not None:
            probs = probs.expand(count, *probs.shape)
        place = uniform((*probs.shape[:-1], 1), widest(probs.device), call)
        if probs.shape[-1] > _ONE_LEVEL:
            return self._draw_in_blocks(call.name, variables, probs, place)
        wide = probs.to(place.dtype, copy=True)
        # in place, because two float64 copies would be the peak of memory; vmap has no rule for it
        index = _invert(wide.cumsum(-1) if transforming() else wide.cumsum_(-1), place)
        return self._no_nan(call.name, variables, index, probs.shape[-1])

    def _draw_in_blocks(
        self, name: str, variables: Variables, probs: Tensor, place: Tensor
    ) -> Tensor:
        """The same draw in two steps over blocks of about the square root of n categories."""
        n = probs.shape[-1]
        size = 1 << ((n - 1).bit_length() + 1) // 2
        whole = n // size * size
        sums = probs[..., :whole].unflatten(-1, (-1, size)).sum(-1)
        if whole < n:
            sums = torch.cat([sums, probs[..., whole:].sum(-1, keepdim=True)], -1)
        ends = sums.cumsum(-1, dtype=place.dtype)
        block = self._no_nan(name, variables, _invert(ends, place), ends.shape[-1])

        # where in its block the threshold falls, as a uniform number again
        end = ends.gather(-1, block)
        begin = torch.where(block > 0, ends.gather(-1, (block - 1).clamp(min=0)), 0)
        within = (place * ends[..., -1:] - begin) / (end - begin)

        position = block * size + torch.arange(size, device=probs.device)
        inside = probs.gather(-1, position.clamp(max=n - 1))
        inside = torch.where(position < n, inside, 0).cumsum(-1, dtype=place.dtype)
        index = block * size + _invert(inside, within.clamp(0, _BELOW_ONE))
        return index.clamp(max=n - 1)

    def _no_nan(self, name: str, variables: Variables, index: Tensor, end: int) -> Tensor:
        """An index past the end betrays a row of NaN: say so, or where nobody looks, clamp it."""
        if not values_are_checked(index):
            return index.clamp(max=end - 1)
        if index.numel() > 0 and int(index.max()) >= end:
            self.check_values(name, variables)
        return index

    def accept(
        self, name: str, variables: Variables, given: Tensor, count: int | None = None
    ) -> Tensor:
        """The categories that a user has drawn, as an index (..., 1)."""
        self.check_values(name, variables)
        check_index(name, given, variables.logits, count)
        return given.long().unsqueeze(-1)

    def sample(self, logits: Tensor, drawn: Tensor) -> Tensor:
        """The one-hot of an index."""
        if compiling() or transforming():
            # torch 2.11 compiles scatter_ of a constant to a gradient of zero, and scatter of a
            # constant to a float32 result; a comparison fuses as well
            return (torch.arange(logits.shape[-1], device=logits.device) == drawn).to(logits.dtype)
        zeros = logits.new_zeros((*drawn.shape[:-1], logits.shape[-1]))
        return zeros.scatter_(-1, drawn, 1.0)

    def natural(self, variables: Variables) -> Tensor:
        """Logits minus their row's maximum."""
        fixed = constant(variables.logits, variables.point.dtype)
        return fixed - fixed.amax(-1, keepdim=True)

    def point(self, natural: Tensor) -> Tensor:
        """The probabilities."""
        return softmax(natural)

    def mean(self, point: Tensor) -> Tensor:
        """The probabilities."""
        return point

    def covariance(self, point: Tensor, g: Tensor, *, centred: bool = False) -> Tensor:
        """``p (g - p.g)``.

        Where one p is nearly 1, the mean ``p.g`` is nearly its g, and their difference would be
        rounding. Of what remains of g after a first mean is subtracted, that g is about as small as
        the result; the mean of the remainder is then exact enough to be subtracted from it.
        """
        product = point * g
        if compiling() or transforming():  # which have no rule for the faster form, or make it
            if not centred:
                product = point * (g - row_sum(product))
            return product - point * row_sum(product)
        if not centred:
            product = (g - row_sum(product)).mul_(point)
        return product.addcmul_(point, row_sum(product), value=-1)

    def residual(self, drawn: Tensor, point: Tensor) -> Tensor:
        """``-p``, and at the drawn category the sum of the other p."""
        others = self._others(drawn, point)
        rest = row_sum(others)
        if compiling() or transforming():
            return self.sample(point, drawn) * rest - others
        return others.neg_().scatter_(-1, drawn.expand(rest.shape), rest)

    def _others(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The probabilities, 0 at the drawn category."""
        if compiling() or transforming():
            return point - self.sample(point, drawn) * point
        rows = torch.broadcast_shapes(drawn.shape[:-1], point.shape[:-1])
        zero_at = drawn.expand(*rows, 1)
        return point.expand(*rows, point.shape[-1]).scatter(-1, zero_at, 0.0)

    def centre(self, g: Tensor, drawn: Tensor) -> Tensor:
        """``g`` minus its entry at the drawn category: rounding feels a shift of ``g``."""
        return g - g.gather(-1, drawn)

    def probability(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The probability of the drawn category, (..., 1)."""
        return point.gather(-1, drawn)

    def other_probability(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The sum of the probabilities of the other categories, (..., 1)."""
        return row_sum(self._others(drawn, point))

    def draw_noise(
        self, variables: Variables, generator: torch.Generator | None, count: int | None = None
    ) -> Tensor:
        """Standard exponential noise, positive and finite."""
        point = variables.point
        shape = point.shape if count is None else (count, *point.shape)
        call = Call("", point, generator=generator)
        # not Tensor.exponential_: in place it cannot run under vmap, and it may return 0
        return (-torch.log1p(-uniform(shape, point.dtype, call))).clamp_min(2**-25)

    def seeded_noise(self, seed: Tensor, first: int, count: int, like: Tensor) -> Tensor:
        """Standard exponential noise from one seed per row, (..., 1)."""
        return seeded_exponential(seed, first, count, like)

    def accept_noise(self, name: str, noise: Tensor, like: Tensor) -> Tensor:
        """Exponential noise is positive and finite."""
        if values_are_checked(noise) and not ((noise > 0) & (noise < math.inf)).all():
            raise ValueError(
                f"{name}: expected positive, finite exponential noise, got something else. "
                "Draw it with torch.empty_like(logits).exponential_()."
            )
        return noise.detach().to(like.dtype)

    def scale(self, variables: Variables) -> Tensor:
        """The log-probabilities."""
        return variables.logits.detach().to(variables.point.dtype).log_softmax(-1)

    def perturbed(self, scale: Tensor, drawn: Tensor, noise: Tensor) -> Tensor:
        r"""How far each logit plus Gumbel noise lies below that of the drawn category.

        Let $a = l + G$ with Gumbel noise $G$, and k the largest entry, so that k is drawn from
        $p = \mathrm{softmax}(l)$. Given k, with standard exponential $E_j$ (Paulus et al. 2021),

        $$a_k = \log Z - \log E_k, \qquad a_j = -\log(E_j / e^{l_j} + E_k / Z),$$

        which subtracts to $a_j - a_k = \log \sigma(\log p_j - \log(E_j / E_k))$. Only these gaps
        enter a softmax. They lie in [-inf, 0], so no temperature makes them overflow. Drawing k
        first and the noise given k keeps the frequencies of the categories exact in every dtype,
        and from the same generator state every sampler of the library draws the same categories.
        """
        drawn = drawn.expand(*noise.shape[:-1], 1)
        log_ratio = (noise / noise.gather(-1, drawn)).log()
        return logsigmoid(scale - log_ratio).scatter(-1, drawn, 0.0)

    def relaxed(self, natural: Tensor) -> Tensor:
        """Their softmax."""
        return _below_largest(natural)[0].softmax(-1)

    def gradient_given_noise(self, drawn: Tensor, g: Tensor) -> Tensor:
        """``g``, and minus its sum at the drawn category, relative to which ``perturbed`` is."""
        others = g.scatter(-1, drawn, 0.0)
        return others.scatter(-1, drawn, -row_sum(others))

    def gradient_given_draw(self, scale: Tensor, drawn: Tensor, noise: Tensor, g: Tensor) -> Tensor:
        """``perturbed`` depends on the log-probabilities, and they on the logits."""
        log_ratio = (noise / noise.gather(-1, drawn)).log()
        g = (g * sigmoid(log_ratio - scale)).scatter(-1, drawn, 0.0)
        return g - scale.exp() * g.sum(-1, keepdim=True)

    def likeliest(self, logits: Tensor) -> Tensor:
        """The index of the largest logit."""
        return logits.argmax(-1, keepdim=True)

    def outcomes(self, logits: Tensor) -> int:
        """The number of categories."""
        return logits.shape[-1]

    def outcome(self, logits: Tensor, digits: Tensor) -> Tensor:
        """The digits as an index."""
        return digits.unsqueeze(-1)

    def log_probs(self, logits: Tensor) -> Tensor:
        """The log-probability of every category, as accurate as ``log_prob``."""
        below, is_largest = _below_largest(logits)
        rest = row_sum(torch.where(is_largest, 0, below.exp()))
        return below - torch.log1p(rest)

    def log_prob(self, logits: Tensor, sample: Tensor) -> Tensor:
        """The log-probability of the category of each variable."""
        return torch.where(sample > 0, self.log_probs(logits), 0).sum(-1)


def _below_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """How far each entry lies below the largest of its row, and which one that is.

    The largest itself is a constant zero here, so it gets minus the gradients of all others, which
    are small where it is far above them, and no gradient of its own, which would cancel with them.
    """
    top = x.detach().argmax(-1, keepdim=True)
    is_largest = torch.arange(x.shape[-1], device=x.device) == top
    return torch.where(is_largest, 0, x - x.gather(-1, top)), is_largest


def _invert(cumulative: Tensor, place: Tensor) -> Tensor:
    """The first position whose cumulative weight exceeds ``place`` times the total.

    ``place < 1`` keeps the threshold strictly below the total (also after rounding), so the
    position exists, and its own weight is positive. Only NaN runs past the end.
    """
    threshold = place * cumulative.narrow(-1, cumulative.shape[-1] - 1, 1)
    if transforming():
        # the same index; vmap hands searchsorted tensors that it warns about
        return (cumulative <= threshold).sum(-1, keepdim=True)
    return torch.searchsorted(cumulative, threshold.contiguous(), right=True)


def check_rows(name: str, logits: Tensor, probs: Tensor) -> None:
    """No row holds NaN or +inf, and every row allows some category. Categories are last."""
    # one bad entry makes its whole row of probabilities NaN: reading one column is enough
    if not values_are_checked(probs) or not math.isnan(probs.select(-1, 0).sum().item()):
        return
    row = int(probs.select(-1, 0).flatten().isnan().nonzero()[0])
    bad = logits.detach().flatten(0, -2)[row] if logits.ndim > 1 else logits.detach()
    where = f"row {row}" if logits.ndim > 1 else "the only row"
    if bad.isnan().any():
        raise ValueError(
            f"{name}: expected logits without NaN, got NaN in {where}. Find its origin with "
            "torch.autograd.set_detect_anomaly(True)."
        )
    if (bad == math.inf).any():
        raise ValueError(
            f"{name}: expected logits that are finite or -inf, got +inf in {where}. "
            "To force a category, mask out the others."
        )
    raise ValueError(
        f"{name}: expected at least one allowed category in every row, but in {where} the mask "
        "and -inf logits exclude all of them. Drop such rows, or allow a dummy category."
    )


def check_index(name: str, index: Tensor, logits: Tensor, count: int | None = None) -> None:
    """``index`` names one allowed category for each row of ``logits``, or ``count`` of them."""
    check_index_type(name, index, "categories")
    shape = logits.shape[:-1]
    wanted, words = shape, "the logits' shape without the category axis"
    if count is not None:
        wanted, words = torch.Size((count, *shape)), f"(num_samples, *{words})"
    if index.shape != wanted or index.device != logits.device:
        raise ValueError(
            f"{name}: expected given of shape {tuple(wanted)} ({words}) on {logits.device}, got "
            f"{tuple(index.shape)} on {index.device}"
            + ". Convert a one-hot sample with .argmax(dim)."
            * (index.ndim > len(wanted))
        )
    if not values_are_checked(index) or index.numel() == 0:
        return
    low, high = (int(v) for v in index.aminmax())
    if low < 0 or high >= logits.shape[-1]:
        raise ValueError(
            f"{name}: expected given categories in [0, {logits.shape[-1] - 1}], got values from "
            f"{low} to {high}"
        )
    rows = logits.detach().expand(*index.shape, logits.shape[-1])
    if (rows.gather(-1, index.long().unsqueeze(-1)) == -math.inf).any():
        raise ValueError(
            f"{name}: expected given categories that are allowed, got one that the mask or a -inf "
            "logit excludes"
        )
