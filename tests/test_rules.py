"""Rules of optimizers: what they are made of, the refusals, and their kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import optim
from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import native, update
from alpha.errors import AlphaError, ArgumentError, CheckpointError, ConfigError
from alpha.ops.update import rules, step_of
from alpha.ops.update.rule import Rule, Variant

SIZES = (1, 37, 20_011)
VARIANTS = [variant for rule in rules.RULES for variant in rule.variants()]
pytestmark = pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")


def settings_of(rule: Rule, step: int = 7) -> dict[str, float]:
    return {name: 0.9 - 0.05 * k for k, name in enumerate(rule.settings)} | {"step": step}


def lists_of(variant: Variant, dtype: type = np.float32, sizes: tuple[int, ...] = SIZES) -> list[list[np.ndarray]]:
    """Returns arrays for a step: states are positive, as averages of squares are."""
    rng = np.random.default_rng(0)
    found = [[rng.standard_normal(n).astype(np.float32).astype(dtype) for n in sizes] for _ in variant.lists]
    return [found[0], *[[np.abs(a) + dtype(0.1) for a in arrays] for arrays in found[1:-1]], found[-1]]


# ---- kernels ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels():
    if not compilers():
        pytest.skip("there is no C++ compiler here")
    with config(cpu_kernels=True):
        assert native.library() is not None
        yield


@pytest.mark.parametrize("factor", [1.0, 0.3])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_compiled_steps_are_numpys(kernels, variant: Variant, factor: float) -> None:
    """Those that are not contracted have its bits; the others are near what it computes in float64."""
    numbers = variant.numbers(settings_of(variant.rule))
    lists = lists_of(variant)
    expected = lists_of(variant, np.float32 if not variant.rule.contracted else np.float64)
    for _ in range(2):
        update.compiled(variant, lists, numbers, np.float32(factor))
        update.computed(variant, expected, numbers, np.float32(factor))
    for arrays, right in zip(lists, expected):
        for a, b in zip(arrays, right):
            if variant.rule.contracted:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
            else:
                np.testing.assert_array_equal(a, b)


def test_steps_do_not_depend_on_threads(kernels) -> None:
    variant = rules.ADAM.variant(["m", "v"])
    numbers, found = variant.numbers(settings_of(rules.ADAM)), []
    for threads in (1, 3):
        with config(num_threads=threads):
            assert native.library() is not None
            lists = lists_of(variant, sizes=(0, 8191, 70_001, 5))
            update.compiled(variant, lists, numbers)
            found.append(b"".join(a.tobytes() for arrays in lists for a in arrays))
    assert found[0] == found[1]


def test_a_rule_has_a_kernel_of_its_own_from_the_first_step_on(kernels) -> None:
    """And NumPy's bits, in float32 and in float16 with float32 states."""
    rule = Rule("tried", "u = tanh(mu * u + g)\nw = w - lr / t * u * (abs(u) if u > 0.5 or u < -1 else 1)")
    for dtype in ("float32", "float16"):
        found = []
        for compiled in (True, False):
            rng = np.random.default_rng(0)
            w, g, u = ([alpha.tensor(rng.standard_normal(n).astype(dtype)) for n in (3, 50)] for _ in range(3))
            u = [t.float() for t in u]
            with config(cpu_kernels=compiled):
                step_of(rule)(w, g, u, alpha.tensor(np.float32(0.5)), lr=0.1, mu=0.5, step=3)
            found.append([t.numpy() for t in (*w, *u)])
        for a, b in zip(*found):
            np.testing.assert_allclose(a, b, rtol=1e-6 if dtype == "float32" else 1e-3)


# ---- what a rule is made of ------------------------------------------------------------------------------------------

HEAVY = """
    ahead = momentum if nesterov else 1
    d = g + weight_decay * w
    v = d if t == 1 else momentum * v + d
    w = w - lr / (1 + t) * (ahead * v if v else d)
"""


def test_names_are_states_settings_or_neither() -> None:
    rule = Rule("heavy", HEAVY, optional={"v": "momentum"})
    assert rule.states == ("v",)
    assert set(rule.settings) == {"momentum", "nesterov", "weight_decay", "step", "lr"}
    assert rule.wanted({"momentum": 0.0}) == () and rule.wanted({"momentum": 0.5}) == ("v",)
    assert rules.ADAM.states == ("m", "v", "vmax") and rules.RMSPROP.states == ("v", "a", "b")


def test_numbers_are_computed_in_double_by_the_host() -> None:
    rule = Rule("heavy", HEAVY, optional={"v": "momentum"})
    given = dict(momentum=0.9, nesterov=True, weight_decay=0.1, lr=0.3, step=1)
    bare, whole = rule.variant([]), rule.variant(["v"])
    assert dict(zip(bare.expressions, bare.numbers(given))) == {"weight_decay": 0.1, "lr / (1 + t)": 0.15}
    assert dict(zip(whole.expressions, whole.numbers(given))) == {
        "weight_decay": 0.1, "t == 1": 1.0, "momentum": 0.9, "lr / (1 + t)": 0.15, "ahead": 0.9}
    assert (bare.name, whole.name, whole.lists) == ("heavy", "heavy_v", ("w", "v", "g"))


def test_a_state_is_on_the_left_and_is_read_before() -> None:
    """What is assigned first is none, and a state that is assigned last is."""
    assert rules.ADAN.states == ("before", "m", "v", "n")
    assert Rule("r", "d = g\nd = d * lr\nw = w - d").states == ()


class Signs(optim.Optimizer):
    rule = Rule("signs_of_mine", """
        c = beta1 * m + (1 - beta1) * g
        w = w - lr * (1 if c > 0 else -1 if c < 0 else 0)
        m = beta2 * m + (1 - beta2) * g
    """)

    def __init__(self, params, lr=0.1, betas=(0.5, 0.75)):
        super().__init__(params, lr=lr, betas=betas)


def test_an_optimizer_is_its_rule(cpu_kernels) -> None:
    w = alpha.tensor([1.0, 2.0, 3.0], requires_grad=True)
    optimizer = Signs([w])
    for g, factor in (([1.0, -1.0, 0.0], None), ([-4.0, 4.0, 0.0], 0.5), ([9.0, 9.0, 9.0], 0.0)):
        w.grad = alpha.tensor(g)
        optimizer.step(None if factor is None else alpha.tensor(np.float32(factor)))
    np.testing.assert_allclose(w.detach().numpy(), [1.0, 2.0, 3.0], rtol=1e-6)     # there and back; the last is skipped
    np.testing.assert_allclose(optimizer.state_dict()["tensors"]["0/m"].numpy(), [-0.3125, 0.3125, 0])
    assert optimizer.numbers(optimizer.param_groups[0], 0.1, 1) == (0.5, 0.5, 0.1, 0.75, 0.25)


def test_checkpoints_of_sgd_that_say_momentum_are_read() -> None:
    w = alpha.tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
    w.grad = alpha.tensor([2.0])
    optimizer.step()
    state = optimizer.state_dict()
    state["tensors"] = {"0/momentum": np.array([5.0], np.float32)}
    optimizer.load_state_dict(state)
    assert optimizer.state_dict()["tensors"]["0/v"].tolist() == [5.0]
    state["tensors"] = {"0/speed": np.array([5.0], np.float32)}
    with pytest.raises(CheckpointError, match="tensors of the state do not fit: 0/speed, 0/v"):
        optimizer.load_state_dict(state)


class Reads(optim.Optimizer):
    rule = Rule("reads", "w = w - lr * speed * g")

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)


@pytest.mark.parametrize("make, error, said", [
    (lambda: Rule("r", "w = w -"), ConfigError, "rule r: its equation 'w = w -' cannot be compiled: it is no"),
    (lambda: Rule("r", "w = w - lr * g\ng + w"), ConfigError, "a line is not `name = expression`"),
    (lambda: Rule("r", "v = w - lr * g"), ConfigError, "it assigns no w"),
    (lambda: Rule("r", "g = lr * g\nw = w - g"), ConfigError, "it assigns g, which it may only read"),
    (lambda: Rule("r", "w = w - g"), ConfigError, "it reads no number, such as lr"),
    (lambda: Rule("r", "w = w - lr * g ** 2"), ConfigError, r"'g \*\* 2' is unknown"),
    (lambda: Rule("r", "w = w - lr * g * (1 / 0)"), ConfigError, "1 / 0 cannot be computed: division"),
    (lambda: Rule("r", "w = w - lr * g.x"), ConfigError, "'g.x' is unknown"),
    (lambda: Rule("r", "w = w - lr * sin(t) * g"), ConfigError, r"'lr \* sin\(t\)' is unknown"),
    (lambda: Rule("r", "w = w - lr * (g > 0)"), ConfigError, "g > 0 is a condition, a number is needed"),
    (lambda: Rule("r", "w = w - lr / step * g"), ConfigError, "step is unknown; the number of the step is t"),
    (lambda: Rule("r", "n1 = g\nw = w - lr * n1"), ConfigError, "the name n1 is taken by its kernels"),
    (lambda: Rule("r", "\u03b2 = g\nw = w - lr * \u03b2"), ConfigError, "is not of ASCII letters"),
    (lambda: Rule("r", "w = w - lr * g", optional={"v": "momentum"}), ConfigError, "v is optional, and no state"),
    (lambda: Rule("r", "\n".join(f"s{k} = s{k} + g" for k in range(13)) + "\nw = w - lr * s0"), ConfigError,
     "it has 13 states, kernels have room for 12"),
    (lambda: Rule("my rule", "w = w - lr * g"), ArgumentError,
     r'Rule: its name is "my rule" \(str\), letters and digits are'),
    (lambda: Rule("r", 3), ArgumentError, "Rule: the text of r is 3, equations are needed"),
    (lambda: Rule("r", "w = w - lr / decay * g").variant([]).numbers(dict(lr=0.1, decay=0.0)), ConfigError,
     "one of its numbers lr / decay cannot be computed: float division by zero"),
    (lambda: Reads([alpha.tensor([1.0], requires_grad=True)]), ConfigError,
     "Reads: its rule reads speed, which is none of its settings"),
])
def test_what_is_no_rule_is_refused(make, error: type[AlphaError], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        make()
    assert "\nhelp: " in str(raised.value)
