"""Adam and RAdam of stacks against torch.optim, bit for bit, member by member."""

import pytest
import torch

from discretegrad_lab.stack.optimisers import Optimiser

KINDS = {
    "adam": ["adam"] * 5,
    "radam": ["radam"] * 5,
    "mixed": ["adam", "radam", "radam", "adam", "radam"],
}
RATES = [1e-3, 7e-4, 5e-4, 3e-2, 1e-5]
MEMBERS = len(RATES)
# whole vectors, vectors with a rest, less than a vector, one number
SHAPES = {"logits": (128, 2), "weight": (7, 9), "bias": (5,), "scale": ()}
TORCH = {"adam": torch.optim.Adam, "radam": torch.optim.RAdam}

each_kind = pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(MEMBERS, *s, generator=generator) for name, s in SHAPES.items()}


def gradients(step, seed=1):
    """Of very different sizes, some zero."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    found = {}
    for name, shape in SHAPES.items():
        size = torch.empty(MEMBERS, *shape).uniform_(-7, 3, generator=generator)
        found[name] = torch.randn(size.shape, generator=generator) * 10**size * (size < 2.5)
    return found


def everyone():
    return torch.ones(MEMBERS, dtype=torch.bool)


class Alone:
    """A member that torch.optim trains."""

    def __init__(self, kind, rate, start, member):
        self.member = member
        self.parameters = {name: x[member].clone() for name, x in start.items()}
        self.optimiser = TORCH[kind](
            self.parameters.values(), lr=rate, foreach=False, capturable=False
        )

    def step(self, gradients):
        for name, x in self.parameters.items():
            x.grad = gradients[name][self.member].clone()
        self.optimiser.step()

    def state(self):
        found = {}
        for name, x in self.parameters.items():
            own = self.optimiser.state[x]
            found["steps"] = own["step"].to(torch.int64)
            found[f"mean/{name}"] = own["exp_avg"]
            found[f"square/{name}"] = own["exp_avg_sq"]
        return found


def state_of(optimiser, member):
    return {name: x[member].clone() for name, x in optimiser.stacked_state().items()}


def load(optimiser, member, state):
    for name, x in optimiser.stacked_state().items():
        x[member] = state[name]


def bits(x):
    return x.contiguous().view(torch.int32) if x.dtype == torch.float32 else x


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].shape == x.shape, name
        assert torch.equal(bits(found[name]), bits(x)), name


def assert_member(stack, optimiser, one):
    assert_same_bits({name: x[one.member] for name, x in stack.items()}, one.parameters)
    assert_same_bits(state_of(optimiser, one.member), one.state())


@each_kind
def test_every_step_is_that_of_torch(kinds):
    stack = parameters()
    alone = [Alone(kind, RATES[m], stack, m) for m, kind in enumerate(kinds)]
    optimiser = Optimiser(stack, kinds, RATES)
    # radam changes its rule at step 6
    for step in range(220):
        found = gradients(step)
        optimiser.step(found, everyone())
        for one in alone:
            one.step(found)
            assert_member(stack, optimiser, one)


@each_kind
@pytest.mark.parametrize("steps", [352, 36_700, 41_096, 5_000_000])
def test_late_steps_are_those_of_torch(kinds, steps):
    stack = parameters()
    alone = [Alone(kind, RATES[m], stack, m) for m, kind in enumerate(kinds)]
    optimiser = Optimiser(stack, kinds, RATES)
    optimiser.step(gradients(0), everyone())
    for one in alone:
        one.step(gradients(0))
        for own in one.optimiser.state.values():
            own["step"].fill_(steps)
        load(optimiser, one.member, one.state())
    for step in range(1, 11):
        optimiser.step(gradients(step), everyone())
        for one in alone:
            one.step(gradients(step))
            assert_member(stack, optimiser, one)


@each_kind
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1.0])
def test_a_member_that_is_not_alive_stays_as_it_is(kinds, bad):
    stack = parameters()
    # what a careless form of "no change" would turn into something else
    stack["bias"][2] = torch.tensor([-0.0, torch.inf, torch.nan, -torch.inf, 1e-45])
    alone = [Alone(kind, RATES[m], stack, m) for m, kind in enumerate(kinds)]
    optimiser = Optimiser(stack, kinds, RATES)
    dead = {0: range(3, 5), 2: range(12), 4: range(5, 8)}
    for step in range(12):
        found = gradients(step)
        alive = everyone()
        for member, steps in dead.items():
            if step in steps:
                alive[member] = False
                for x in found.values():
                    x[member] = bad
        optimiser.step(found, alive)
        for one in alone:
            if alive[one.member]:
                one.step(found)
            if one.member != 2:
                assert_member(stack, optimiser, one)
    assert_same_bits({name: x[2] for name, x in stack.items()}, alone[2].parameters)
    for x in state_of(optimiser, 2).values():
        assert x.count_nonzero() == 0


@each_kind
def test_a_member_goes_on_from_its_state_in_another_stack(kinds):
    stack = parameters()
    optimiser = Optimiser(stack, kinds, RATES)
    for step in range(8):
        optimiser.step(gradients(step), everyone())
    member = 2
    alone = {name: x[member : member + 1].clone() for name, x in stack.items()}
    other = Optimiser(alone, [kinds[member]], [RATES[member]])
    saved = state_of(optimiser, member)
    load(other, 0, saved)
    for step in range(8, 12):
        found = gradients(step)
        optimiser.step(found, everyone())
        own = {name: x[member : member + 1] for name, x in found.items()}
        # which may lie in memory in any way
        own["weight"] = own["weight"].mT.contiguous().mT
        own["logits"] = own["logits"].repeat(2, 1, 1)[:1]
        other.step(own, torch.ones(1, dtype=torch.bool))
    assert_same_bits({name: x[0] for name, x in alone.items()}, {n: x[2] for n, x in stack.items()})
    assert_same_bits(state_of(other, 0), state_of(optimiser, member))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ["adam"] * 4 + ["sgd"]}, "adam or radam, got 'sgd'"),
        ({"kinds": ["adam"] * 4, "rates": RATES[:4]}, r"shape \(4, ...\).* got \(5, 128, 2\)"),
        ({"rates": RATES[:4]}, "a learning rate for each of 5 members, got 4"),
        ({"rates": [*RATES[:4], 0.0]}, "positive learning rates, got 0.0"),
        ({"rates": [*RATES[:4], float("nan")]}, "positive learning rates, got nan"),
        ({"stack": {}}, "at least one parameter"),
        ({"kinds": [], "rates": []}, "at least one parameter and one member"),
        ({"stack": {"x": torch.zeros(5, 2, dtype=torch.float64)}}, "expected x .*float64"),
        ({"stack": {"x": torch.zeros(2, 5).T}}, "expected x contiguous"),
        ({"stack": {"x": torch.zeros(())}}, "expected x of shape"),
        (
            {"stack": {"y": torch.zeros(5), "x": torch.zeros(5, device="meta")}},
            "expected x .* on cpu, got .* on meta; move the model",
        ),
    ],
)
def test_bad_input(changes, message):
    given = {"stack": parameters(), "kinds": KINDS["adam"], "rates": RATES} | changes
    with pytest.raises(ValueError, match=message):
        Optimiser(given["stack"], given["kinds"], given["rates"])


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    # as if compiled too often, where two stacks shared what Dynamo counts
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script(_method)?. is deprecated:DeprecationWarning")
def test_compiled_steps_agree_for_stack_after_stack(compiler):
    for kinds in KINDS.values():
        stack, expected = parameters(), parameters()
        compiled = Optimiser(stack, kinds, RATES, compile=True)
        eager = Optimiser(expected, kinds, RATES, compile=False)
        alive = everyone()
        for step in range(20):
            found = gradients(step)
            alive[3] = step < 10
            if step >= 10:
                found["weight"][3] = torch.nan
            compiled.step(found, alive)
            eager.step(found, alive)
            if step == 9:
                frozen = {name: x[3].clone() for name, x in stack.items()}
        # the compiler adds and multiplies where torch does both at once
        for name, x in expected.items():
            torch.testing.assert_close(stack[name], x, rtol=1e-6, atol=1e-6, msg=name)
        assert_same_bits({name: x[3] for name, x in stack.items()}, frozen)
        assert state_of(compiled, 3)["steps"] == 10
