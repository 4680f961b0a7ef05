"""Stacks on a CUDA device: graphs, and what must not depend on them or on other members."""

import pytest
import torch

import discretegrad
import lab_toy as toy
import stein_cases
from discretegrad.kernels.uniform import fill
from discretegrad_lab.stack import compilation, trainer
from discretegrad_lab.stack.lines import LINES, Line
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.stack.trainer import Stack
from discretegrad_lab.tasks.bernoulli_vae import gradients as bits_gradients
from discretegrad_lab.tasks.bernoulli_vae import model as bernoulli
from discretegrad_lab.tasks.bernoulli_vae import recipes
from discretegrad_lab.tasks.bernoulli_vae.images import Split
from discretegrad_lab.tasks.codebook import model as codebook
from discretegrad_lab.tasks.codebook.config import Codebook
from discretegrad_lab.tasks.codebook.recipes import COPIED
from discretegrad_lab.tasks.data import Images, Labels
from discretegrad_lab.tasks.experts import model as experts
from discretegrad_lab.tasks.experts.config import Experts
from discretegrad_lab.tasks.experts.recipes import ROUTED
from discretegrad_lab.tasks.listops.config import Parsing
from discretegrad_lab.tasks.listops.measures import measure as measure_parses
from discretegrad_lab.tasks.listops.model import greatest
from discretegrad_lab.tasks.listops.parse import Way
from discretegrad_lab.tasks.listops.recipes import SCORES
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.vae import gradients, measures
from discretegrad_lab.tasks.vae.config import Vae
from discretegrad_lab.tasks.vae.enumerated import ENCODER
from discretegrad_lab.tasks.vae.sample_recipes import RLOO
from lab_cases import make_stack, use_small_images
from listops_kernel_cases import (
    by_kernels,
    check_parse,
    gradients_of,
    inputs,
    later,
    noise_of,
    parsed,
)

pytestmark = [
    pytest.mark.gpu,
    # of torch's own compiler
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

SAMPLERS = [name for name, one in LINES.items() if one.kind == "sampler"]


@pytest.fixture(autouse=True)
def short_graphs(monkeypatch):
    """Several replays in an epoch."""
    monkeypatch.setattr(trainer, "_STEPS_OF_A_GRAPH", 4)


def polynomial(estimator, **fields):
    small = {"latents": 6, "batch": 8, "steps_per_epoch": 8, "epochs": 4, "draws": 3}
    return Polynomial(estimator=estimator, **(small | fields))


@pytest.fixture
def images(monkeypatch):
    """A small data set instead of MNIST."""
    use_small_images(monkeypatch, 400, 100)


def vae(estimator, **fields):
    fields = {"categories": 4, "latents": 3, "batch": 20, "epochs": 4, "draws": 3} | fields
    return Vae(estimator=estimator, **fields)


def trained(runs, epochs=2, graph=None):
    stack = make_stack(runs, "cuda", graph=graph)
    return stack, [stack.advance() for _ in range(epochs)]


def assert_same(stack, other, run, tolerance=1e-5):
    one, two = (s.state(s.runs.index(run)) for s in (stack, other))
    for name, x in one.items():
        torch.testing.assert_close(two[name], x, rtol=tolerance, atol=tolerance, msg=name)


def assert_near(stack, other, run, limit=1e-3):
    """On average: products of other sizes round differently, and Adam makes a whole step of the
    rounding of a gradient near zero. Other random numbers would make it 4e-3."""
    one, two = (s.state(s.runs.index(run)) for s in (stack, other))
    for name, x in one.items():
        if name.startswith(("parameters/", "task/network/")):
            assert (two[name] - x).abs().mean() < limit, name


def test_the_kernel_gives_the_numbers_of_another_device():
    """Those of the interpreter, frozen."""
    numbers = torch.empty(2, 5, device="cuda")
    seeds = torch.tensor([5, 2**62 + 3], device="cuda")
    fill(numbers, seeds, torch.tensor([9], device="cuda"), 2)
    torch.testing.assert_close(numbers.cpu(), torch.tensor(FROZEN), rtol=0, atol=0)


FROZEN = [
    [0.6578639149665833, 0.8486143946647644, 0.058899641036987305, 0.2773810625076294,
     0.6194037199020386],
    [0.8379082083702087, 0.8863314390182495, 0.025615453720092773, 0.11855769157409668,
     0.8999399542808533],
]  # fmt: skip


@pytest.mark.parametrize("shape", [(5, 64, 40, 2), (3, 100, 30, 10), (2, 3, 9000)])
def test_noise_of_a_seed_does_not_depend_on_the_batch(shape):
    generator = torch.Generator("cuda").manual_seed(0)
    logits, g = (torch.randn(shape, device="cuda", generator=generator) for _ in range(2))
    index = logits.argmax(-1)
    seed = torch.randint(2**63 - 1, shape[:1], device="cuda", generator=generator)

    def gradient(members):
        leaf = logits[members].clone().requires_grad_()
        z = discretegrad.gumbel_rao(
            leaf, 0.7, given=index[members], seed=seed[members], num_draws=200
        )
        return torch.autograd.grad(z, leaf, g[members])[0]

    together = gradient(slice(None))
    for member in range(shape[0]):
        torch.testing.assert_close(gradient(member), together[member], rtol=1e-4, atol=1e-6)
    # the torch path has other noise: on average they agree
    leaf = logits.clone().requires_grad_()
    z = discretegrad.gumbel_rao(leaf, 0.7, given=index, seed=seed, num_draws=200, backend="torch")
    expected = torch.autograd.grad(z, leaf, g)[0]
    error = (together - expected).norm() / expected.norm()
    assert error < 0.25
    assert error > 1e-3


def test_numbers_of_a_member_do_not_depend_on_others():
    alone, together = Noise([7], "cuda"), Noise([3, 7, 9], "cuda")
    for noise in (alone, together):
        noise.begin(4)
    for _ in range(3):
        assert torch.equal(alone.uniform(5, 2)[0], together.uniform(5, 2)[1])
        assert torch.equal(alone.exponential(5)[0], together.exponential(5, members=slice(1, 2))[0])
        assert alone.seeds()[0] == together.seeds()[1]
        alone.next_step()
        together.next_step()


@pytest.mark.parametrize(("shape", "repeats"), [((3, 128, 2), 256), ((5, 100, 30, 10), None)])
def test_categories_are_those_of_the_numbers(shape, repeats):
    noise = Noise(range(shape[0]), "cuda")
    noise.begin(2)
    generator = torch.Generator("cuda").manual_seed(0)
    logits = 2 * torch.randn(shape, device="cuda", generator=generator)
    index = noise.categories(logits, repeats=repeats)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    if repeats is not None:
        cumulative = cumulative.unsqueeze(1)
    uniform = noise.uniform(*index.shape[1:], 1)
    # up to the rounding of a sum in float32
    low, high = ((cumulative[..., :-1] <= uniform + side).sum(-1) for side in (-1e-6, 1e-6))
    assert (low <= index).all()
    assert (index <= high).all()
    assert (low == high).float().mean() > 0.999


def test_draws_noise_and_seeds_have_their_own_numbers():
    noise = Noise([7], "cuda")
    noise.begin(0)
    uniform = noise.uniform(3)
    assert not torch.isclose(noise.exponential(3), -torch.log1p(-uniform)).any()
    a, b, c = (uniform[0] * 2**21).long().tolist()
    assert noise.seeds().item() not in (0, a | b << 21 | c << 42)


@pytest.mark.parametrize("make", [polynomial, vae])
def test_a_graph_trains_as_single_steps_do(make, images):
    names = LINES if make is polynomial else SAMPLERS
    runs = [make(name, seed=seed, tau=0.8 + 0.3 * seed) for name in names for seed in (0, 1)]
    captured, metrics = trained(runs)
    eager, same = trained(runs, graph=False)
    assert captured._graphs
    assert not eager._graphs
    for run in runs:
        assert_same(captured, eager, run)
    for row, other in zip(metrics, same, strict=True):
        for name, values in row.items():
            assert values == pytest.approx(other[name], rel=1e-4, nan_ok=True)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((polynomial, name) for name in ("reinmax", "stgs", "gr-mck", "reinforce", "rodeo")),
        *((vae, name) for name in ("reinmax", "stgs", "gr-mck")),
    ],
)
def test_a_member_alone_and_in_a_stack(make, name, images):
    fields = {"power": 1.5, "target": "spread"} if make is polynomial else {}
    one = make(name, seed=3, tau=0.9, **fields)
    names = LINES if make is polynomial else SAMPLERS
    others = [make(other, seed=seed, tau=1.2) for other in names for seed in (3, 4)]
    assert_near(trained([one])[0], trained([*others, one])[0], one)


def test_compiled_parts_train_as_plain_ones(images, monkeypatch):
    runs = [vae(name, seed=seed, tau=0.8) for name in SAMPLERS for seed in (0, 1)]
    plain, _ = trained(runs)
    monkeypatch.setattr(compilation, "FROM_ELEMENTS", 1)
    fused, _ = trained(runs)
    for run in runs:
        assert_near(plain, fused, run)


@pytest.mark.parametrize("line", ["exact", ENCODER], ids=["exact", "encoder only"])
def test_the_exact_gradient_in_graphs_and_compiled(line, images, monkeypatch):
    runs = [vae(line, seed=seed) for seed in (0, 1)]
    captured, _ = trained(runs)
    eager, _ = trained(runs, graph=False)
    assert captured._graphs
    for run in runs:
        assert_same(captured, eager, run)
    # of one step: without noise training is a slide from a saddle, which multiplies rounding
    plain = gradients_of_a_step(runs)
    monkeypatch.setattr(compilation, "FROM_ELEMENTS", 1)
    fused = gradients_of_a_step(runs)
    for name, g in plain.items():
        assert (fused[name] - g).norm() < 1e-3 * g.norm(), name  # 2e-4 measured


def gradients_of_a_step(runs):
    model = make_stack(runs, "cuda").model
    model.begin_epoch(1)
    model.losses()["train"].sum().backward()
    return {name: parameter.grad for name, parameter in model.parameters.items()}


@pytest.mark.parametrize(
    "lines",
    [SAMPLERS, [RLOO], [Line("Tree", "disarm_tree")]],
    ids=["samplers", "rloo", "tree"],
)
def test_several_samples_in_graphs_and_compiled(lines, images, monkeypatch):
    runs = [vae(line, seed=seed, samples=4) for line in lines for seed in (0, 1)]
    captured, _ = trained(runs)
    eager, _ = trained(runs, graph=False)
    assert captured._graphs
    for run in runs:
        assert_same(captured, eager, run)
    assert_near(captured, trained(runs[:1])[0], runs[0])
    monkeypatch.setattr(compilation, "FROM_ELEMENTS", 1)
    fused, _ = trained(runs)
    for run in runs:
        assert_near(captured, fused, run)


def test_finished_models_are_measured(images, monkeypatch):
    """The bound comes to the evidence that all 64 codes give, and does not depend on others."""
    monkeypatch.setattr(measures, "SAMPLES", 4000)
    runs = [vae(name, seed=seed) for name in ("st", "reinmax") for seed in (0, 1)]
    stack, _ = trained(runs)
    model = stack.model
    with torch.no_grad():
        found = measures.measure(model)
        ((x, logits),) = model.test_batches(100)
        codes = torch.cartesian_prod(*[torch.arange(4, device="cuda")] * 3)
        index = codes[None, :, None].expand(len(runs), -1, 100, -1)
        weights = measures.log_weights(model.decode, x, logits, index).double()
    log_q = logits.double().log_softmax(-1).unsqueeze(1).expand(-1, 64, -1, -1, -1)
    of_codes = log_q.gather(-1, index.unsqueeze(-1)).sum((-2, -1))
    evidence = -(weights + of_codes).logsumexp(1).mean(1)
    torch.testing.assert_close(found["test_bound"], evidence, rtol=0, atol=0.02)
    assert (found["test_bound"] <= found["test_mean_elbo"]).all()
    alone = make_stack(runs[2:3], "cuda").model
    member = stack.runs.index(runs[2])
    state = {f"parameters/{name}": p[member] for name, p in model.parameters.items()}
    alone.load_parameters(0, state)
    with torch.no_grad():
        same = measures.measure(alone)
    for name, values in same.items():
        torch.testing.assert_close(values[0], found[name][member], rtol=1e-4, atol=1e-4)


def test_gradients_are_compared_between_epochs_of_graphs(images, monkeypatch):
    monkeypatch.setattr(gradients, "DRAWS", 64)
    runs = [vae(name, along="own") for name in SAMPLERS]
    stack, metrics = trained(runs)
    plain, _ = trained([vae(name) for name in SAMPLERS])
    for name in gradients.NAMES:
        assert all(value == value for row in metrics for value in row[name])
    # and training does not notice
    for run, same in zip(stack.runs, plain.runs, strict=True):
        assert run.estimator == same.estimator
        one, two = stack.state(stack.runs.index(run)), plain.state(plain.runs.index(same))
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_a_stack_goes_on_where_it_was(images):
    runs = [vae(name, seed=seed) for name in SAMPLERS for seed in (0, 1)]
    whole, metrics = trained(runs, 4)
    half, _ = trained(runs, 2)
    again = make_stack(runs, "cuda")
    for member in range(len(runs)):
        again.load_state(member, half.state(member))
    again.epoch = 2
    later = [again.advance() for _ in range(2)]
    for run in runs:
        assert_same(whole, again, run)
    for row, other in zip(later, metrics[2:], strict=True):
        for name, values in row.items():
            assert values == pytest.approx(other[name], rel=1e-4, nan_ok=True)


def test_a_member_that_diverges_in_a_graph():
    runs = [polynomial("reinmax", seed=seed) for seed in range(3)]
    clean, _ = trained(runs)
    stack = make_stack(runs, "cuda")
    with torch.no_grad():
        stack.model.logits[1] = torch.nan
    metrics = [stack.advance() for _ in range(2)]
    assert stack.diverged.tolist() == [-1, 1, -1]
    for member in (0, 2):
        assert_same(clean, stack, stack.runs[member])
    assert all(row["loss"][1] != row["loss"][1] for row in metrics)


def test_graphs_of_several_shapes_train_as_steps_do():
    runs = [toy.Toy(estimator=name, seed=3, clip_norm=0.5, schedule="cosine") for name in SAMPLERS]
    graphs, eager = (Stack(toy.ToyModel, runs, "cuda", graph=graph) for graph in (True, False))
    for _ in range(3):
        found, expected = graphs.advance(), eager.advance()
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-4), name
    assert len(graphs._graphs) == len(set(toy.SIZES))
    for run in runs:
        assert_same(graphs, eager, run)


BITS = [(key, k) for k in recipes.SCORES for key in (*recipes.SAMPLERS, *recipes.SCORES[k])]


def bits_of(key, evaluations, seed, name="mnist", **fields):
    small = {"batch": 20, "latents": 30, "steps_per_epoch": 8, "epochs": 4, "draws": 5}
    return recipes._run(key, seed, name, evaluations, **{"tf32": False} | small | fields)


@pytest.fixture
def splits(monkeypatch):
    """Small data sets in place of the three."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"mnist": (110, 30, 40), "fashion-mnist": (90, 20, 30), "omniglot": (70, 20, 50)}
    images = {
        name: Split(
            *(torch.randint(256, (n, 784), generator=generator, dtype=torch.uint8) for n in counts)
        )
        for name, counts in sizes.items()
    }
    monkeypatch.setattr(bernoulli, "load_split", lambda name, data=None: images[name])
    monkeypatch.setattr(bernoulli, "IMPORTANCE", 5)


@pytest.mark.parametrize(("key", "evaluations"), BITS, ids=str)
def test_bits_in_graphs_and_alone(key, evaluations, splits):
    runs = three_runs(key, evaluations)
    captured, metrics = trained(runs)
    assert captured._graphs
    _, same = trained(runs, graph=False)
    # of a few steps: a bit that falls the other way by rounding sends a run elsewhere
    for name in ("train", "test"):
        for row, other in zip(metrics, same, strict=True):
            assert row[name] == pytest.approx(other[name], rel=1e-2, nan_ok=True)
    assert metrics[-1]["loss_evaluations"] == [evaluations] * 3
    assert all(x > 0 for x in metrics[-1]["gpu_seconds"])
    # the pixels and the order of a member do not depend on the others
    first, alone = make_stack(runs, "cuda"), make_stack(runs[1:2], "cuda")
    for stack in (first, alone):
        stack.model.begin_epoch(3)
    member = first.runs.index(runs[1])
    for _ in range(3):
        batch = first.model._next_batch()[member]
        assert torch.equal(batch, alone.model._next_batch()[0])


def three_runs(key, evaluations):
    places = ((0, "mnist"), (1, "omniglot"), (1, "fashion-mnist"))
    return [bits_of(key, evaluations, seed, name, tau=0.7 + seed / 4) for seed, name in places]


@pytest.mark.parametrize(
    ("key", "evaluations"), [(key, k) for k in recipes.SCORES for key in recipes.lines(k)], ids=str
)
def test_bits_compiled(key, evaluations, splits, monkeypatch):
    runs = three_runs(key, evaluations)
    plain = gradients_of_bits(runs)
    monkeypatch.setattr(compilation, "FROM_ELEMENTS", 1)
    for (name, g), fused in zip(plain.items(), gradients_of_bits(runs).values(), strict=True):
        assert (fused - g).norm() <= 2e-3 * g.norm() + 1e-6, name
    trained(runs, 1)


def gradients_of_bits(runs):
    model = make_stack(runs, "cuda").model
    model.begin_epoch(1)
    leaves = {
        f"{group}/{name}": x
        for group, each in model.groups.items()
        for name, x in each.parameters.items()
    }
    with torch.no_grad():
        for name in ("estimator/alpha", "estimator/beta"):
            # weights that are not where they start, at which networks would get no gradient
            if name in leaves:
                leaves[name] += 0.3
    ordered = list(leaves.values())
    gradients = model.gradients(model.losses()["train"], ordered, keep=False)
    return dict(zip(leaves, gradients, strict=True))


def test_gradients_of_bits_are_compared(splits, monkeypatch):
    monkeypatch.setattr(bits_gradients, "FIRST", 6)
    monkeypatch.setattr(bits_gradients, "DRAWS", 64)
    monkeypatch.setattr(bits_gradients, "REFERENCE_DRAWS", 1000)
    for key, evaluations in (("reinmax", 2), ("rodeo", 2), (recipes.SCORES[3][-1], 3)):
        _, metrics = trained([bits_of(key, evaluations, 0, compared=True)])
        for name in bits_gradients.NAMES:
            assert metrics[0][name][0] == metrics[0][name][0]


def test_the_network_of_rodeo_at_its_real_size():
    """Two samples of 100 images with 200 variables; and each member as if it were alone."""
    given = stein_cases.inputs(5, 2 * 100 * 201, 100, "cuda")
    expected = stein_cases.by_torch(*given)
    for found, right in zip(stein_cases.by_kernels(*given), expected, strict=True):
        stein_cases.assert_near(found, right)
    stein_cases.assert_members_are_alone(*given)


def parsing(estimator, **fields):
    small = {"examples": 96, "longest": 20, "batch": 8, "embedding": 12, "hidden": 16, "epochs": 4}
    return Parsing(estimator=estimator, data="generated", draws=3, **small | fields)


SCORED = SCORES[0]
"""RLOO with two parses."""


@pytest.mark.parametrize(
    ("lines", "widths"),
    [(SAMPLERS, {8, 13, 20}), ([SCORED], {8, 13, 20}), (["reinmax"], {20})],
    ids=["samplers", "score", "as released"],
)
def test_parses_in_graphs_are_those_of_steps_and_of_members_alone(lines, widths):
    fields = {"tau": 0.9, "bucketed": len(widths) > 1}
    runs = [parsing(line, seed=seed, **fields) for line in lines for seed in (0, 1)]
    captured, metrics = trained(runs)
    eager, same = trained(runs, graph=False)
    # a graph for each width
    assert len(captured._graphs) == len(widths)
    for run in runs:
        assert_same(captured, eager, run)
    for row, other in zip(metrics, same, strict=True):
        for name, values in row.items():
            assert values == pytest.approx(other[name], rel=1e-4, nan_ok=True)
    assert_near(trained([runs[-1]])[0], captured, runs[-1])


def test_a_parse_on_the_gpu_is_that_of_the_cpu():
    """With the same weights and the greatest scores."""
    run = parsing("reinmax")
    stack = make_stack([run], "cuda")
    stack.advance()
    other = make_stack([run])
    other.load_state(0, stack.state(0))
    for examples in (other.model._valid, other.model._test):
        merges, values = stack.model.parses(examples)
        expected, right = other.model.parses(examples)
        # a tie may be broken by rounding
        assert (merges.cpu() == expected).all(-1).float().mean() > 0.95
        assert (values.cpu() == right).float().mean() > 0.95
    measured, same = (measure_parses(x.model) for x in (stack, other))
    assert measured.keys() == same.keys()
    # of 19 expressions, one may have another tree
    assert measured["test_tree_f1"].item() == pytest.approx(same["test_tree_f1"].item(), abs=6)
    assert measured["random_f1"].item() == pytest.approx(same["random_f1"].item())


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 2, 3), (2, 5, 9, 7), (3, 8, 40, 33), (5, 16, 29, 300), (1, 4, 99, 300), (2, 3, 8, 600)],
    ids=str,
)
def test_the_kernels_of_a_parse_do_what_torch_does(shape):
    """Roots, scores and all gradients, on the same draws, against float64."""
    check_parse(shape, "cuda", limit=1e-4 if shape[2] > 90 else 2e-5)


def test_parses_have_the_same_bits_whoever_else_is_there():
    shape = (3, 16, 29, 300)
    (one, words, gradients), (two, same, again) = (by_kernels(shape, "cuda") for _ in range(2))
    assert torch.equal(words, same)
    for x, y in zip(one, two, strict=True):
        assert torch.equal(x, y)
    for name, x in gradients.items():
        assert torch.equal(x, again[name]), name
    # other members that are others
    tensors, lengths, at_root = inputs(*shape, "cuda")
    for x in tensors.values():
        x[1:] *= 0.5
    way = Way(None, noise_of(range(3), device="cuda"), later)
    other, _, own = parsed(tensors, lengths, way)
    assert torch.equal(other.root[0], one.root[0])
    assert torch.equal(other.merges[0], one.merges[0])
    found = gradients_of(other.root, at_root, own)
    for (name, x), y in zip(gradients.items(), found, strict=True):
        assert torch.equal(x[0], y[0]), name


@pytest.mark.parametrize("longest", [29, 300])
def test_the_kernels_choose_the_greatest_scores(longest):
    tensors, lengths, _ = inputs(4, 16, longest, 40, "cuda")
    with torch.no_grad():
        ours = parsed(tensors, lengths, Way(greatest))[0]
        double = {name: x.double() for name, x in tensors.items()}
        expected = parsed(double, lengths, Way(greatest))[0]
    # rounding may break a tie, and then all that follows is another parse
    same = (ours.merges == expected.merges).all(-1)
    assert same.float().mean() > 0.9
    torch.testing.assert_close(ours.root[same].double(), expected.root[same], rtol=0, atol=1e-5)


def noise_of_bytes(*shape, most=256):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(most, shape, generator=generator, dtype=torch.uint8)


def assert_graphs_change_nothing(runs):
    """Returns the stack that was trained by graphs."""
    captured, metrics = trained(runs)
    eager, same = trained(runs, graph=False)
    assert captured._graphs
    for run in runs:
        assert_same(captured, eager, run)
    for row, other in zip(metrics, same, strict=True):
        for name, values in row.items():
            assert values == pytest.approx(other[name], rel=1e-4, nan_ok=True), name
    return captured


@pytest.mark.parametrize("line", ["reinmax", COPIED], ids=["drawn", "copied"])
def test_codebooks_in_graphs(line, monkeypatch):
    images = noise_of_bytes(500, 784)
    parts = Images(images[:400], images[400:])
    monkeypatch.setattr(codebook, "load_mnist", lambda data: parts)
    small = {"codes": 12, "latents": 3, "width": 4, "batch": 20, "epochs": 2}
    assert_graphs_change_nothing(
        [Codebook(estimator=line, copied=line == COPIED, seed=seed, **small) for seed in (0, 1)]
    )


@pytest.mark.parametrize("line", ROUTED, ids=lambda line: line.key)
def test_routers_in_graphs_and_alone(line, monkeypatch):
    images, labels = noise_of_bytes(500, 784), noise_of_bytes(500, most=10)
    for name, kind, values in (("images", Images, images), ("labels", Labels, labels)):
        parts = kind(values[:400], values[400:])
        monkeypatch.setattr(experts, f"load_{name}", lambda name, data, parts=parts: parts)
    small = {"experts": 4, "hidden": 3, "batch": 20, "epochs": 2, **ROUTED[line]}
    runs = [Experts(estimator=line, seed=seed, balance=seed / 10, **small) for seed in (0, 1)]
    captured = assert_graphs_change_nothing(runs)
    assert_near(captured, trained(runs[:1])[0], runs[0])
