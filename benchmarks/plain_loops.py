"""The released algorithm in plain PyTorch, for the benchmark of stacks: each trains one run."""

import math
from functools import partial

import plain
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import discretegrad
from discretegrad_lab.tasks.bernoulli_vae import model as bernoulli
from discretegrad_lab.tasks.bernoulli_vae.config import BernoulliVae
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.config import Vae


def update(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


class PlainVae:
    """The VAE as anybody would write it, with the images on the device."""

    def __init__(self, run: Vae, images: Tensor, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.encoder, self.decoder = (x.to(device) for x in plain.coders(widths(run)))
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=run.learning_rate)
        self.run, self.images = run, images.to(device)
        self.batches: list[Tensor] = []
        # on the device: no step waits for its loss
        self.total = torch.zeros((), device=device)

    def step(self) -> None:
        """A step, with its update."""
        if not self.batches:
            order = torch.randperm(len(self.images), device=self.images.device)
            self.batches = [x for x in order.split(self.run.batch) if len(x) == self.run.batch]
        loss = self.loss(self.images[self.batches.pop()].float() / 255)
        update(self.optimiser, loss)
        self.total += loss.detach()

    def loss(self, x: Tensor) -> Tensor:
        """The mean negative ELBO, with one sample for each image."""
        sample = partial(plain.reinmax, tau=self.run.tau)
        return plain.negative_elbo(self.encoder, self.decoder, x, sample, self.run.categories)


class PlainPolynomial:
    """Polynomial programming likewise."""

    def __init__(self, run: Polynomial, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.run = run
        self.theta = torch.empty(run.latents, 2, device=device).uniform_(-0.01, 0.01)
        self.optimiser = torch.optim.Adam([self.theta.requires_grad_()], lr=run.learning_rate)

    def step(self) -> None:
        """A step, with its update."""
        z = plain.reinmax(self.theta.expand(self.run.batch, -1, -1), self.run.tau)
        loss = distance(self.run, z[..., 0]).mean()
        update(self.optimiser, loss)

    @torch.no_grad()
    def expected(self) -> float:
        """The expected loss, exactly."""
        of_one, of_zero = self.theta.softmax(-1).unbind(-1)
        zero, one = distance(self.run, torch.tensor([0.0, 1.0])).tolist()
        return (of_zero * zero + of_one * one).mean().item()


class PlainBernoulli:
    """The Bernoulli VAE likewise; its estimator is ReinMax, or an object of the library."""

    def __init__(self, run: BernoulliVae, images: Tensor, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        sizes = widths(run)
        self.encoder, self.decoder = (x.to(device) for x in plain.coders(sizes, run.slope))
        for layer in (*self.encoder, *self.decoder):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        self.estimator: nn.Module | None = None
        if run.line.row == "rodeo":
            self.estimator = discretegrad.Rodeo().to(device)
        elif run.line.row == "relax":
            self.estimator = discretegrad.Relax(run.latents, tau=run.tau).to(device)
        learned = [] if self.estimator is None else [*self.estimator.parameters()]
        parameters = [*self.encoder.parameters(), *self.decoder.parameters(), *learned]
        self.optimiser = torch.optim.Adam(parameters, lr=run.learning_rate)
        self.run, self.images = run, images.to(device)
        self.total = torch.zeros((), device=device)

    def step(self) -> None:
        """A step, with its update."""
        index = torch.randint(len(self.images), (self.run.batch,), device=self.images.device)
        grey = self.images[index].float() / 255
        x = (torch.rand_like(grey) < grey).float()
        loss = self.loss(x)
        update(self.optimiser, loss)
        self.total += loss.detach()

    def loss(self, x: Tensor) -> Tensor:
        """The mean negative ELBO, with a uniform prior."""
        logits = self.encoder(x)

        def f(z: Tensor) -> Tensor:
            pixels = self.decoder(z)
            costs = binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(-1)
            of_q = z * logits.detach() - softplus(logits.detach())
            return costs + of_q.sum(-1) + logits.shape[-1] * math.log(2)

        if self.estimator is not None:
            samples = 1 if self.run.line.row == "relax" else self.run.evaluations
            arguments = {"family": "bernoulli", "num_samples": samples}
            return discretegrad.expectation(logits, f, self.estimator, **arguments).mean()
        two = torch.stack([logits, torch.zeros_like(logits)], -1)
        samples = [plain.reinmax(two, self.run.tau)[..., 0] for _ in range(self.run.evaluations)]
        return torch.stack([f(z) for z in samples]).mean()


def widths(run: Vae | BernoulliVae) -> tuple[int, ...]:
    """Of the encoder's layers; the decoder has them in reverse."""
    if isinstance(run, BernoulliVae):
        return (bernoulli.PIXELS, *bernoulli.HIDDEN, run.latents)
    return (vae.PIXELS, *vae.HIDDEN, run.latents * run.categories)


def distance(run: Polynomial, x: Tensor) -> Tensor:
    return (x - 0.45).abs().pow(run.power)
