"""Problems for the score-function estimators, their randomness, and second derivations.

The randomness of most estimators falls into finitely many regions, in each of which the result is
constant. Here is one point of every region with its probability, for all variables and samples
together. The second derivations are surrogate losses, written as the papers print them, whose
gradient is the estimate. No mathematics here is the library's.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from discretegrad.testing import normal

Regions = tuple[Tensor, Tensor]
"""One point of every region, (count, ...), and the probabilities of the regions, (count,)."""


doubles = partial(torch.tensor, dtype=torch.float64)


def fixed_draws(monkeypatch):
    """Random numbers that depend on the shape only: the same in every transform and device."""

    def rand(*shape, dtype=torch.float32, device=None, generator=None):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        place = torch.arange(math.prod(shape), dtype=torch.float64, device=device)
        return ((place * 0.6180339887 + 0.37) % 1).to(dtype).reshape(shape)

    def randint(high, shape, device=None, generator=None):
        place = torch.arange(math.prod(shape), device=device)
        return (place * 2654435761 % high).reshape(shape)

    # when torch first looks up a function, it lists all of them: these must not be in the list
    torch._dynamo.trace_rules.lookup(torch.rand)
    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(torch, "randint", randint)


@dataclass(frozen=True)
class Problem:
    """One joint sample of independent variables and a function of it, with a parameter."""

    name: str
    family: str
    logits: Tensor
    mask: Tensor | None = None
    weight: Tensor = field(init=False)
    """The parameter of f."""

    def __post_init__(self):
        weight = 1.3 * normal(self.logits.numel(), 4, seed=5)
        object.__setattr__(self, "weight", weight.requires_grad_())

    def __str__(self):
        return f"{self.family}-{self.name}"

    def f(self, z: Tensor) -> Tensor:
        """The exponential of a tanh network, and a product: of no finite order, and bounded."""
        hidden = torch.tanh(z.flatten(-self.logits.ndim) @ self.weight - 0.4)
        return (hidden @ doubles([0.8, -0.6, 0.5, -0.9])).exp() + hidden.prod(-1)

    @property
    def probs(self) -> Tensor:
        """Of the categories, or of the values 0 and 1, in the last axis; one row per variable."""
        logits = self.logits
        if self.mask is not None:
            logits = logits.masked_fill(~self.mask, -math.inf)
        if self.family == "bernoulli":
            return torch.stack([torch.sigmoid(-logits), torch.sigmoid(logits)], -1)
        return logits.softmax(-1)

    def many(self, count: int) -> Tensor:
        """The logits ``count`` times, as a batch that gets a gradient each."""
        return self.logits.expand(count, *self.logits.shape).clone().requires_grad_()


PROBLEMS = [
    Problem("small", "bernoulli", doubles([0.9, -1.2, -0.3, 0.2])),
    Problem("saturated", "bernoulli", doubles([8.0, -0.4, -8.0, 5.0])),
    Problem(
        "masked", "bernoulli", doubles([0.7, 2, -1.1, 0.3, -math.inf]), doubles([1, 0, 1, 1, 1]) > 0
    ),
    Problem("small", "categorical", normal(3, 3, seed=2)),
    Problem("saturated", "categorical", doubles([[8, 0, -1], [0.3, -8, 0], [0, 1, -6]])),
    Problem(
        "masked",
        "categorical",
        doubles([[0.5, -0.2, 0.1, 1], [-math.inf, 0.4, 0, -1], [2, 0, 0.3, 0.1]]),
        doubles([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1]]) > 0,
    ),
]


def product(parts: Sequence[Regions], axis: int = 1) -> Regions:
    """The regions of independent parts, stacked along ``axis`` of the points."""
    counts = [torch.arange(len(probs)) for _, probs in parts]
    columns = torch.cartesian_prod(*counts).reshape(-1, len(parts)).unbind(1)
    points = [points[column] for (points, _), column in zip(parts, columns, strict=True)]
    probs = [probs[column] for (_, probs), column in zip(parts, columns, strict=True)]
    return torch.stack(points, axis), torch.stack(probs).prod(0)


def repeat(regions: Regions, count: int) -> Regions:
    """``count`` independent draws, as the first axis of the points, before the batch."""
    points, probs = product([regions] * count)
    return points.movedim(1, 0), probs


def possible(points: Tensor, probs: Tensor) -> Regions:
    keep = probs > 0
    return points[keep], probs[keep]


def joint_samples(problem: Problem) -> Regions:
    """Every joint sample."""
    states = problem.probs.shape[-1]
    values = doubles([0, 1]) if problem.family == "bernoulli" else torch.eye(states).double()
    points, probs = product([possible(values, row) for row in problem.probs])
    return points.reshape(-1, *problem.logits.shape), probs


def antithetic_uniform(chance: float, other: float, where: float) -> Regions:
    """A uniform number compared with ``chance`` = 1 - ``other``, and with the opposite.

    A point of each of three intervals, ``where`` of the way along it.
    """
    low = min(chance, other)
    length = doubles([low, max(chance, other) - low, low])
    return possible(doubles([0, low, 1 - low]) + where * length, length)


def pairs(problem: Problem, count: int, where: float = 0.5) -> Regions:
    """The uniforms of ``count`` antithetic pairs of bits."""
    parts = [antithetic_uniform(p.item(), q.item(), where) for q, p in problem.probs]
    return repeat(product(parts), count)


def tree_nodes(n: int, tree: str) -> list[tuple[int, int, int]]:
    """Begin, split and end of every inner node, in the order of their splits."""

    def below(begin, end):
        size = end - begin
        if size < 2:
            return []
        # of a balanced tree the left side is full: the largest power of two less than its size
        split = begin + (1 if tree == "stick_breaking" else 2 ** ((size - 1).bit_length() - 1))
        return [*below(begin, split), (begin, split, end), *below(split, end)]

    return below(0, n)


def tree_pairs(problem: Problem, count: int, tree: str, where: float = 0.5) -> Regions:
    """The uniforms of ``count`` antithetic pairs of paths, one uniform per node."""
    variables = []
    for row in problem.probs:
        parts = []
        for begin, split, end in tree_nodes(len(row), tree):
            left, right = row[begin:split].sum().item(), row[split:end].sum().item()
            total = left + right
            chances = (right / total, left / total) if total > 0 else (0.0, 1.0)
            parts.append(antithetic_uniform(*chances, where))
        variables.append(product(parts))
    return repeat(product(variables), count)


def dirichlet_uniforms(problem: Problem, count: int, where: float = 0.5) -> Regions:
    """The uniforms of ``count`` mutually antithetic samples of bits.

    For d uniform on the simplex of K numbers, those in a set S all exceed c with the probability
    ``max(1 - |S| c, 0) ** (K - 1)``; inclusion and exclusion give that of exactly the set S.
    """
    parts = []
    for unlikely in problem.probs.amin(-1).tolist():
        threshold = 1 - unlikely ** (1 / (count - 1))
        all_exceed = [max(1 - size * threshold, 0.0) ** (count - 1) for size in range(count + 1)]
        all_exceed[1] = unlikely  # without rounding
        points, probs = [], []
        for chosen in itertools.product([False, True], repeat=count):
            size = sum(chosen)
            point = simplex_point(chosen, threshold, where)
            if point is not None:
                # the uniforms whose exponential numbers are d, and so have the shares d
                points.append(-torch.expm1(-point))
                rest = range(count - size + 1)
                signed = [
                    math.comb(count - size, m) * (-1) ** m * all_exceed[size + m] for m in rest
                ]
                probs.append(sum(signed))
        parts.append(possible(torch.stack(points), doubles(probs)))
    points, probs = product(parts)
    return points.permute(2, 0, 1), probs


def simplex_point(chosen: Sequence[bool], threshold: float, where: float) -> Tensor | None:
    """A point of the simplex whose chosen numbers, and no others, exceed the threshold."""
    size, count = sum(chosen), len(chosen)
    if size == 0:
        return doubles([1 / count] * count) if count * threshold > 1 else None
    spare = 1 - size * threshold
    if spare <= 0:
        return None
    low = where * min(threshold, spare / (count - size)) if size < count else 0.0
    high = (1 - (count - size) * low) / size
    return doubles([high if is_in else low for is_in in chosen])


def logistic_grid(count: int, step: float, reach: float) -> Regions:
    """The trapezoid rule for ``count`` standard logistic numbers."""
    x = torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)
    return product([(x, step * torch.sigmoid(x) * torch.sigmoid(-x))] * count)


def exponential_grid(n: int, drawn: int, step: float, reach: float) -> Regions:
    """The trapezoid rule for n exponential numbers of which only ratios to one of them matter.

    The ratios r of the others have the density ``(n - 1)! / (1 + sum r) ** n``; the rule is for
    their logarithms.
    """
    x = torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)
    logs = torch.cartesian_prod(*[x] * (n - 1)).reshape(-1, n - 1)
    log_total = torch.cat([torch.zeros(len(logs), 1), logs], 1).logsumexp(1)
    log_density = math.lgamma(n) + logs.sum(1) - n * log_total
    ones = torch.ones(len(logs), 1, dtype=torch.float64)
    ratios = torch.cat([logs.exp()[:, :drawn], ones, logs.exp()[:, drawn:]], 1)
    return ratios, (log_density + (n - 1) * math.log(step)).exp()


def log_prob(logits: Tensor, z: Tensor, family: str) -> Tensor:
    if family == "bernoulli":
        return (z * logits - torch.nn.functional.softplus(logits)).sum()
    return (z * logits.log_softmax(-1)).sum()


def slope_of(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    return torch.func.grad(f)(z.detach())


def reinforce(problem, logits, samples, baseline) -> Tensor:
    if baseline is None:
        base = 0.0
    elif baseline == "self_critical":
        most = torch.stack([row == row.max() for row in problem.probs]).double()
        base = problem.f(most[..., 1] if problem.family == "bernoulli" else most)
    else:
        base = baseline(problem.logits.unsqueeze(0)).squeeze(0)
    terms = [(problem.f(z) - base).detach() * log_prob(logits, z, problem.family) for z in samples]
    return sum(terms) / len(terms)


def leave_one_out(problem, logits, samples) -> Tensor:
    values = torch.stack([problem.f(z) for z in samples]).detach()
    scores = torch.stack([log_prob(logits, z, problem.family) for z in samples])
    return ((values - values.mean()) * scores).sum() / (len(values) - 1)


def disarm(problem, logits, uniform) -> Tensor:
    """The paper's form. The library turns the uniform of an unlikely 1 round."""
    total, p = 0.0, torch.sigmoid(logits).detach()
    for u in torch.where(logits > 0, uniform, 1 - uniform):
        b, other = (u > 1 - p).double(), (u < p).double()
        sign = (-1) ** other * (b != other) * torch.sigmoid(logits.detach().abs())
        difference = (problem.f(b) - problem.f(other)).detach() / 2
        total = total + difference * (sign * logits).sum()
    return total / len(uniform)


def arms(problem, logits, uniform) -> Tensor:
    count, p = len(uniform), torch.sigmoid(logits).detach()
    exponential = -(1 - uniform).log()
    copula = (1 - exponential / exponential.sum(0)) ** (count - 1)
    samples = (torch.where(p < 0.5, copula, 1 - copula) < p).double()

    def both(q):
        return (2 * q ** (1 / (count - 1)) - 1).clamp(min=0) ** (count - 1)

    joint = torch.where(p < 0.5, both(p), 2 * p - 1 + both(1 - p))
    weight = p * (1 - p) / (p - joint)
    values = torch.stack([problem.f(b) for b in samples]).detach()
    centred = (values - values.mean()).unsqueeze(-1) * (samples - p)
    return (weight * centred.sum(0) / (count - 1) * logits).sum()


def disarm_tree(problem, logits, uniform, tree) -> Tensor:
    total, n = 0.0, logits.shape[-1]
    nodes = tree_nodes(n, tree)
    for pair in uniform:
        paths, values = [], []
        for antithetic in (False, True):
            walks = [walk(row, u, nodes, antithetic) for row, u in zip(logits, pair, strict=True)]
            paths.append([path for path, _ in walks])
            leaves = torch.tensor([leaf for _, leaf in walks])
            values.append(problem.f(torch.nn.functional.one_hot(leaves, n).double()))
        half = (values[0] - values[1]).detach() / 2
        for row, path, other in zip(logits, *paths, strict=True):
            for node in {*path, *other}:
                phi = node_logit(row, node)
                fixed = phi.detach()
                if node in path and node in other:
                    differ = path[node] != other[node]
                    weight = (-1) ** other[node] * differ * torch.sigmoid(fixed.abs())
                elif node in path:
                    weight = path[node] - torch.sigmoid(fixed)
                else:
                    weight = -(other[node] - torch.sigmoid(fixed))
                total = total + half * weight * phi
    return total / len(uniform)


def node_logit(row: Tensor, node: tuple[int, int, int]) -> Tensor:
    begin, split, end = node
    return row[split:end].logsumexp(0) - row[begin:split].logsumexp(0)


def walk(row, uniform, nodes, antithetic):
    """The choice at every node on the way from the root, and the category at its end."""
    path, begin, end = {}, 0, len(row)
    while end - begin > 1:
        place, node = next((i, x) for i, x in enumerate(nodes) if (x[0], x[2]) == (begin, end))
        u = 1 - uniform[place] if antithetic else uniform[place]
        path[node] = int(u < torch.sigmoid(node_logit(row, node)))
        begin, end = (node[1], end) if path[node] else (begin, node[1])
    return path, begin


def muprop(problem, logits, samples, offset, slope) -> Tensor:
    mean = torch.sigmoid(logits) if problem.family == "bernoulli" else logits.softmax(-1)
    fixed = mean.detach()
    g, level = slope_of(problem.f, fixed), problem.f(fixed)
    total = 0.0
    for z in samples:
        rest = problem.f(z) - offset * level - slope * (g * (z - fixed)).sum()
        total = total + rest.detach() * log_prob(logits, z, problem.family)
    return total / len(samples) + slope * (g.detach() * mean).sum()


def double_cv(problem, logits, samples, alpha) -> Tensor:
    count, p = len(samples), torch.sigmoid(logits).detach()
    f = torch.stack([problem.f(b) for b in samples]).detach()
    g = torch.stack([slope_of(problem.f, b) for b in samples])
    others = [[j for j in range(count) if j != k] for k in range(count)]
    linear = [(g[others[k]].mean(0) * (samples[k] - p)).sum() for k in range(count)]
    controlled = f + alpha * torch.stack(linear)
    total = -alpha * (g.mean(0) * p * (1 - p) * logits).sum()
    for k in range(count):
        rest = controlled[k] - controlled[others[k]].mean()
        total = total + rest * log_prob(logits, samples[k], "bernoulli") / count
    return total


def rodeo(problem, logits, samples, control, alpha, beta) -> Tensor:
    count, p = len(samples), torch.sigmoid(logits).detach()

    def stein(h, b):
        total = 0.0
        for i in range(len(b)):
            flipped = b.clone()
            flipped[i] = 1 - b[i]
            chance = p[i] if flipped[i] == 1 else 1 - p[i]
            total = total + chance * (h(flipped) - h(b))
        return total / len(b)

    def outputs_for(k):
        def h(y):
            found = 0.0
            for j in range(count):
                if j != k:
                    b = samples[j]
                    linear = (slope_of(problem.f, b) * (y - b)).sum()
                    inputs = torch.stack([linear, problem.f(b)]).detach()
                    found = found + control(inputs).detach() / (count - 1)
            return found

        return h

    f = torch.stack([problem.f(b) for b in samples]).detach()
    adjusted, total = f.clone(), 0.0
    h = [outputs_for(k) for k in range(count)]
    for k, b in enumerate(samples):
        adjusted[k] += alpha * stein(lambda y, k=k: h[k](y)[0], b)
    for k, b in enumerate(samples):
        rest = f[k] - (adjusted.sum() - adjusted[k]) / (count - 1)
        correction = stein(lambda y, k=k: h[k](y)[1] * (y - p), b)
        total = total + rest * log_prob(logits, b, "bernoulli") + beta * (correction * logits).sum()
    return total / count


def relaxed(problem, logits, samples, noise, scale, tau, tied, control=None) -> Tensor:
    """REBAR and RELAX, with all derivatives by autograd through the noise."""
    relax = torch.sigmoid if problem.family == "bernoulli" else lambda x: x.softmax(-1)

    def c(z):
        found = scale * problem.f(relax(z / tau))
        # a network sees samples and a batch in front
        return found if control is None else found + control(z[None, None]).squeeze()

    total = 0.0
    for k, b in enumerate(samples):
        # that of z given b first; there is no other where they are tied
        given, free = (conditional(problem, logits, b, noise[x, k]) for x in (0, -1))
        # as a free variable: the noise stays where it is when the logits move
        free = logits + (free - logits).detach()
        if problem.family == "categorical":
            drawn = b.bool()
            given = given - given[drawn].unsqueeze(-1)
            free = free - free[drawn].unsqueeze(-1)
        rest = (problem.f(b) - c(given)).detach()
        total = total + rest * log_prob(logits, b, problem.family) + c(free) - c(given)
    return total / len(samples)


def conditional(problem, logits, b, noise) -> Tensor:
    """Logits plus noise given the sample, differentiable as the logits move its distribution."""
    if problem.family == "bernoulli":
        v, p = torch.sigmoid(torch.where(b > 0, noise, -noise)), torch.sigmoid(logits)
        uniform = b * (v * p + 1 - p) + (1 - b) * v * (1 - p)
        return logits + uniform.logit()
    total = logits.exp().sum(-1, keepdim=True)
    drawn = (noise * b).sum(-1, keepdim=True) / total
    return -torch.where(b > 0, drawn, noise * (-logits).exp() + drawn).log()
