r"""The Bernoulli VAE of Shi et al. 2022 (RODEO), and as the paper's released code has it.

An encoder 784-200-200-D gives the log-odds l of D bits, a decoder D-200-200-784 the logits of the
pixels. The loss of a binary image x with a sample z of q = sigmoid(l) is its negative ELBO,

$$f(z) = \mathrm{BCE}(\mathrm{decoder}(z), x) + \log q(z) - \log p(z) ,$$

averaged over the samples that K evaluations admit. What depends on l within log q(z) has a gradient
of mean zero, which is left out.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from discretegrad import ESTIMATORS
from discretegrad._types import Backend

from ...stack.bits import Bits, Numbers, draw_bits
from ...stack.compilation import compiled, compiled_with_gradients, worth_compiling
from ...stack.layers import generators, mlp, of_member, parameters_of, start_as_glorot
from ...stack.learned import RATE, make_learned
from ...stack.model import Group, Model
from ...stack.noise import Noise
from ...stack.sharing import shares_gpu
from ...stack.stein import STEIN_HIDDEN
from ..pixels import binary_copy, take
from .config import BernoulliVae
from .decoder import reconstruction, sloped_reconstruction
from .divergence import exact_divergence, sampled_divergence
from .gradients import IMAGES, NAMES, STOPS, Point, compare_gradients
from .images import Split, load_split

PIXELS = 784
HIDDEN = (200, 200)
EVALUATE_EVERY = 25
"""Epochs from one pass over the images of validation and test to the next."""
IMPORTANCE = 100
"""Samples of the tighter bound, which is computed at the end."""

# evaluations of the decoder at once outside of training, for each member
_AT_ONCE = 2000
# the streams of random numbers besides the one of training
_ORDER, _VALID, _TEST, _BOUND, _PIXELS, _COPY = 1, 2, 3, 4, 5, 6


class BernoulliVaeModel(Model):
    """All members' networks with the images, which may be those of different data sets.

    Args:
        runs: One for each member, all with one line.
        device: Where everything is.
        data: The directory of the data sets, see ``discretegrad_lab.tasks.data``.
        images: Others than those of the data sets, by name.
    """

    loss_names = ("train",)

    def __init__(
        self,
        runs: Sequence[BernoulliVae],
        device: torch.device,
        data: Path | None = None,
        *,
        images: Mapping[str, Split] | None = None,
    ) -> None:
        super().__init__()
        run, seeds = runs[0], [member.seed for member in runs]
        self._run, self._runs, self._members = run, tuple(runs), len(runs)
        self._device = device
        # of their own, so that nothing else changes what training draws, and all estimators see
        # the same pixels
        self._noise, self._aside, self._pixels = (Noise(seeds, device) for _ in range(3))
        self.steps_per_epoch = run.steps_per_epoch

        self._make_networks()
        self._evaluations = 0
        self._choose_what_to_compile()

        names = dict.fromkeys(member.data for member in runs)
        self._place_images(
            {name: load_split(name, data) if images is None else images[name] for name in names}
        )
        # which images a step takes; both stay where they are, so that a graph can read them
        shape = (self._members, self.steps_per_epoch, run.batch)
        self._order = torch.zeros(shape, dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self.counters = [self._step]
        seconds = torch.zeros(self._members, dtype=torch.float64, device=device)
        self.buffers["seconds"] = seconds
        # when this epoch began, and for how many epochs its time counts
        self._began, self._epochs_measured = 0.0, 0

    def _make_networks(self) -> None:
        """The networks and the prior, and what the estimator learns, as groups of parameters."""
        run, runs, device = self._run, self._runs, self._device
        starts = generators(member.seed for member in runs)
        sizes = (PIXELS, *HIDDEN, run.latents)
        activation = partial(nn.LeakyReLU, run.slope)
        self._encoder = mlp(starts, sizes, activation)
        self._decoder = mlp(starts, sizes[::-1], activation)
        networks = {"encoder": self._encoder, "decoder": self._decoder}
        for network in networks.values():
            if run.start == "glorot":
                start_as_glorot(network, starts)
            network.to(device)
        parameters = parameters_of(**networks)
        self._prior = torch.zeros(self._members, run.latents, device=device)
        if run.prior != "uniform":
            parameters["prior"] = self._prior.requires_grad_()
        self.groups["model"] = Group.of_runs(parameters, runs)
        taus = [member.tau for member in runs]
        self._learned = make_learned(run.line, starts, taus, PIXELS + run.latents)
        if self._learned is not None:
            if run.start == "glorot":
                start_as_glorot(self._learned, starts)
            own = dict(self._learned.to(device).named_parameters())
            self.groups["estimator"] = Group.alike(own, range(self._members), RATE)

    def _choose_what_to_compile(self) -> None:
        """On a GPU, of large stacks, where a step is all memory traffic, and of all long runs."""
        run, row = self._run, ESTIMATORS[self._run.line.row]
        elements, steps = self._members * run.batch * PIXELS, run.epochs * run.steps_per_epoch
        fuse = worth_compiling(self._device, elements, steps)
        # as a whole, but for what makes noise from seeds, which is a kernel of its own
        in_parts = fuse and run.line.takes("seed")
        self._batch = compiled(batch_of) if fuse else batch_of
        self._encode = compiled(encode) if in_parts else encode
        self._reconstruct: Callable[[nn.Module, Tensor, Tensor], Tensor]
        if row.kind == "score" and row.needs_grad_f:
            self._reconstruct = partial(sloped_reconstruction, run.slope)
        else:
            self._reconstruct = compiled(reconstruction) if in_parts else reconstruction
        self._costs_with_gradients = None
        if fuse and not in_parts:
            leaves = [x for group in self.groups.values() for x in group.parameters.values()]
            self._costs_with_gradients = compiled_with_gradients(self.costs, leaves)
        self._gradients: list[Tensor] | None = None
        """Those of the latest losses, until they are asked for."""
        backend: Backend = "auto" if self._costs_with_gradients is None else "torch"
        self._bits = Bits(self._runs, self._noise, run.evaluations, self._learned, backend)

    def _place_images(self, splits: Mapping[str, Split]) -> None:
        """Bring the images of all members to the device, once for each data set."""
        for name, split in splits.items():
            if len(split.train) < self._run.batch:
                raise ValueError(
                    f"expected a batch of at most the {len(split.train)} training images of "
                    f"{name}, got {self._run.batch}"
                )
        names = [member.data for member in self._runs]
        valid = {name: binary_copy(split.valid) for name, split in splits.items()}
        test = {name: binary_copy(split.test) for name, split in splits.items()}
        self._train = _Rows.of([splits[name].train for name in names], self._device)
        self._valid = _Rows.of([valid[name] for name in names], self._device)
        self._test = _Rows.of([test[name] for name in names], self._device)
        if self._run.binarised == "once":
            self._train = self._binarised_once()

    @torch.no_grad()
    def _binarised_once(self) -> "_Rows":
        """A binary copy of the training images for each member, by its own seed."""
        rows = self._train
        copies = [
            torch.empty(n, PIXELS, dtype=torch.uint8, device=self._device) for n in rows.counts
        ]
        self._aside.begin(0, _COPY)
        for first in range(0, max(rows.counts), _AT_ONCE):
            grey = self._grey(rows, first, _AT_ONCE)[0]
            drawn = self._aside.uniform(*grey.shape[1:]) < grey
            self._aside.next_step()
            for copy, bits in zip(copies, drawn, strict=True):
                part = copy[first : first + _AT_ONCE]
                part.copy_(bits[: len(part)] * 255)
        return _Rows.of(copies, self._device)

    def begin_epoch(self, epoch: int) -> None:
        """Find the images of each step, and start the random numbers.

        Each member sees its images in an endless row of passes, each in a new order.
        """
        self._began = self._clock()
        wanted = self._order[0].numel()
        counts = torch.tensor(self._train.counts, device=self._device).unsqueeze(1)
        begin = epoch * wanted
        passes = [begin // count for count in self._train.counts]
        offset = begin - counts * torch.tensor(passes, device=self._device).unsqueeze(1)
        place = offset + torch.arange(wanted, device=self._device)
        longest, smallest = max(self._train.counts), min(self._train.counts)
        beyond = torch.arange(longest, device=self._device) >= counts
        order = self._order.view(self._members, -1)
        for number in range(-(-(wanted + smallest) // smallest)):
            self._aside.begin([first + number for first in passes], _ORDER)
            uniform = self._aside.uniform(longest).masked_fill(beyond, 2.0)
            # stable: images with equal numbers are in one order on every device
            shuffled = uniform.argsort(dim=1, stable=True)
            inside = (place >= 0) & (place < counts)
            chosen = shuffled.gather(1, place.clamp(min=0).minimum(counts - 1))
            torch.where(inside, chosen, order, out=order)
            place -= counts
        order += self._train.starts.unsqueeze(1)
        self._step.zero_()
        self._noise.begin(epoch)
        self._pixels.begin(epoch, _PIXELS)

    def losses(self) -> dict[str, Tensor]:
        """The mean negative ELBO of the next batch, over the samples of each image."""
        x = self._next_batch()
        numbers = self._bits.numbers(self._run.batch, self._run.latents)
        if self._costs_with_gradients is None:
            return {"train": self.costs(x, numbers)}
        losses, self._gradients = self._costs_with_gradients(x, numbers)
        return {"train": losses}

    def gradients(self, loss: Tensor, leaves: Sequence[Tensor], keep: bool) -> Sequence[Tensor]:
        """Those that were computed along with the losses, or by autograd."""
        if self._gradients is None:
            return super().gradients(loss, leaves, keep)
        # their memory is free once they are used
        gradients, self._gradients = self._gradients, None
        return gradients

    def costs(self, x: Tensor, numbers: Numbers) -> Tensor:
        """The losses of a batch with random numbers, (members,)."""
        self._evaluations = 0
        logits = self._encode(self._encoder, x, self._run.two_logits)
        if self._learned is not None:
            self._learned.see(x)
        costs = self._bits.mean(logits, partial(self._loss, x, logits), numbers).mean(1)
        if self._run.divergence == "exact":
            costs = costs + exact_divergence(logits, self.log_prior()).mean(1)
        return costs

    def _loss(self, x: Tensor, logits: Tensor, z: Tensor) -> Tensor:
        """What the estimator sees, (samples, members, batch)."""
        self._evaluations += len(z)
        costs = self._reconstruct(self._decoder, z, x)
        if self._run.divergence == "exact":
            return costs
        return costs + sampled_divergence(z, logits.detach(), self.log_prior())

    def _next_batch(self) -> Tensor:
        """(members, batch, 784); the step is counted on the device, where a graph can do it."""
        uniform = None
        if self._run.binarised == "anew":
            uniform = self._pixels.uniform(self._run.batch, PIXELS)
            self._pixels.next_step()
        dtype = next(self._encoder.parameters()).dtype
        x = self._batch(self._train.images, self._order, self._step, uniform, dtype)
        self._step.add_(1).remainder_(self.steps_per_epoch)
        return x

    def log_prior(self) -> tuple[Tensor, Tensor]:
        """The logarithms of the prior's masses of 1 and of 0, (members, latents) each.

        The released code has a vector of the probabilities of 1, then one of those of 0, and pairs
        it with the probabilities of q bit by bit, 1 and 0 in turn. So bit i has the entries 2 i and
        2 i + 1 of that vector, whose masses belong to other bits and need not sum to 1. Those of
        the bits i and i + D/2 multiply to a mass of at most 1, so it is still a bound.
        """
        of_one, of_zero = logsigmoid(self._prior), logsigmoid(-self._prior)
        if self._run.prior != "released":
            return of_one, of_zero
        paired = torch.cat([of_one, of_zero], -1).unflatten(-1, (-1, 2))
        first, second = paired.unbind(-1)
        return first, second

    @torch.no_grad()
    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """The mean negative ELBO of the images of validation and test, and the tighter bound.

        NaN between the epochs that have them. Where runs say so, also how their gradients compare
        with the exact ones.
        """
        self._count_seconds()
        unknown = torch.full((self._members,), torch.nan, dtype=torch.float64, device=self._device)
        last = epoch == self._run.epochs
        metrics = dict.fromkeys(("valid", "test", "test_bound"), unknown)
        if last or epoch % EVALUATE_EVERY == 0:
            metrics["valid"] = self._bound(self._valid, epoch, _VALID)
            metrics["test"] = self._bound(self._test, epoch, _TEST)
        if last:
            metrics["test_bound"] = self._bound(self._test, epoch, _BOUND, IMPORTANCE)
        metrics["gpu_seconds"] = self.buffers["seconds"].clone()
        metrics["loss_evaluations"] = torch.full_like(unknown, self._evaluations)
        if self._run.compared:
            metrics |= self._compared(epoch, unknown)
        return metrics

    def _clock(self) -> float:
        """Seconds, after all that the device has to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _count_seconds(self) -> None:
        """Add each member's share of an epoch.

        The first one of a process compiles and captures: it counts as much as the next. Where other
        processes compute on the GPU at the same time nobody knows the share, from then on.
        """
        taken = (self._clock() - self._began) / self._members
        if shares_gpu():
            taken = math.nan
        self.buffers["seconds"] += self._epochs_measured * taken
        self._epochs_measured = 1 if self._epochs_measured else 2

    def _bound(self, rows: "_Rows", epoch: int, stream: int, samples: int = 1) -> Tensor:
        """Minus the mean bound of the images, with so many samples of each; (members,)."""
        self._aside.begin(epoch, stream)
        total = torch.zeros(self._members, dtype=torch.float64, device=self._device)
        at_once = max(1, _AT_ONCE // samples)
        prior = self.log_prior()
        for first in range(0, max(rows.counts), at_once):
            x, inside = self._grey(rows, first, at_once)
            logits = encode(self._encoder, x, self._run.two_logits)
            z = draw_bits(logits, self._aside, samples)
            costs = reconstruction(self._decoder, z, x)
            if samples == 1:
                # the divergence needs no sample
                costs = costs[0] + exact_divergence(logits, prior)
            else:
                costs = costs + sampled_divergence(z, logits, prior)
                costs = math.log(samples) - torch.logsumexp(-costs, 0)
            total += (costs * inside).sum(1, dtype=torch.float64)
        return total / torch.tensor(rows.counts, device=self._device)

    def _grey(self, rows: "_Rows", first: int, count: int) -> tuple[Tensor, Tensor]:
        """Some images of each member, (members, count, 784), and which of them there are."""
        count = min(count, max(rows.counts) - first)
        index = torch.arange(first, first + count, device=self._device)
        counts = torch.tensor(rows.counts, device=self._device).unsqueeze(1)
        places = rows.starts.unsqueeze(1) + index.minimum(counts - 1)
        x = take(rows.images, places.flatten()).view(self._members, count, PIXELS)
        return x.to(next(self._encoder.parameters()).dtype), index < counts

    def _compared(self, epoch: int, unknown: Tensor) -> dict[str, Tensor]:
        """How the gradients of each member's estimator compare with the exact ones."""
        if not (epoch in STOPS or epoch == self._run.epochs):
            return dict.fromkeys(NAMES, unknown)
        numbers = [
            compare_gradients(run, self._point(n, epoch)) for n, run in enumerate(self._runs)
        ]
        return {
            name: torch.tensor([each[name] for each in numbers], device=self._device).double()
            for name in NAMES
        }

    def _point(self, member: int, epoch: int) -> Point:
        """The model of a member at its first training images."""
        first = self._train.starts[member]
        images = self._train.images[first : first + IMAGES]
        images = images if self._run.binarised == "once" else binary_copy(images)
        x = take(images, torch.arange(len(images), device=self._device))
        logits = encode(of_member(self._encoder, member), x, self._run.two_logits)
        of_one, of_zero = (masses[member] for masses in self.log_prior())
        decode = of_member(self._decoder, member)

        def f(z: Tensor) -> Tensor:
            pixels, own = decode(z), logits.to(z.dtype)
            costs = (softplus(pixels) - x.to(z.dtype) * pixels).sum(-1)
            if self._run.divergence == "exact":
                return costs
            return costs + (z * (own - of_one + of_zero) - softplus(own) - of_zero).sum(-1)

        learned = {} if self._learned is None else self._learned.of_member(member)
        return Point(logits, f, x, learned, epoch)


class _Rows:
    """Images of several members in one tensor; members with the same images share them."""

    def __init__(self, images: Tensor, starts: Tensor, counts: list[int]) -> None:
        self.images, self.starts, self.counts = images, starts, counts

    @classmethod
    def of(cls, sets: Sequence[Tensor], device: torch.device) -> "_Rows":
        """Of the images of each member."""
        distinct = {id(images): images for images in sets}
        lengths = [len(images) for images in distinct.values()]
        begins = dict(zip(distinct, [0, *torch.tensor(lengths).cumsum(0).tolist()], strict=False))
        starts = torch.tensor([begins[id(images)] for images in sets], device=device)
        together = torch.cat([images.to(device) for images in distinct.values()])
        return cls(together, starts, [len(images) for images in sets])


def batch_of(
    images: Tensor, order: Tensor, step: Tensor, uniform: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The images of a step, (members, batch, pixels), binary if there are uniform numbers.

    Args:
        images: Bytes, (images, pixels).
        order: Which of them each member takes, (members, steps, batch).
        step: One number.
        uniform: (members, batch, pixels).
        dtype: That of the networks.
    """
    index = order.index_select(1, step)
    x = take(images, index.flatten()).view(len(order), -1, images.shape[1])
    return (x if uniform is None else uniform < x).to(dtype)


def encode(encoder: Callable[[Tensor], Tensor], x: Tensor, two_logits: bool) -> Tensor:
    """The log-odds of the bits, (members, batch, latents)."""
    out = encoder(x)
    return 2 * out - 1 if two_logits else out


def memory(run: BernoulliVae) -> int:
    """An upper guess of the device memory that one more member takes."""
    sizes = (PIXELS, *HIDDEN, run.latents)
    weights = 2 * sum((a + 1) * b for a, b in pairwise(sizes))
    # parameters, gradients and two moments
    model = 4 * 4 * weights
    # what is kept of each evaluation; relaxed estimators differentiate twice
    row = ESTIMATORS[run.line.row]
    often = 3 if "tied" in row.options else 1
    activations = 4 * run.batch * (3 * sum(HIDDEN) + 8 * PIXELS + 16 * run.latents)
    activations += often * run.evaluations * 4 * run.batch * (4 * sum(HIDDEN) + 8 * PIXELS)
    if run.line.row == "rodeo":
        points = run.evaluations * run.batch * (run.latents + 1)
        # the hidden layer is there where no kernels run, for one pair of samples at a time
        activations += 4 * points * (6 * STEIN_HIDDEN + 16 + 8 * run.evaluations)
    evaluation = 4 * _AT_ONCE * (5 * PIXELS + 4 * sum(HIDDEN) + 6 * run.latents)
    # the order of the images, with what sorting takes; the largest data set
    order = 24 * run.steps_per_epoch * run.batch + 40 * 50_000
    copy = 50_000 * PIXELS if run.binarised == "once" else 0
    return model + activations + evaluation + order + copy
