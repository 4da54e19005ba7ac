"""Optimizer steps in CUDA against the CPU's: every variant, tails, many tensors, many chunks, 16-bit storage."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.cuda.runtime import tables
from alpha.ops import update as ops
from tests.cuda.agree import Case, agree, floats, ints

pytestmark = pytest.mark.cuda

# Tails of every length, empty, one element, and more than one chunk.
SHAPES = [(3, 5), (1,), (8,), (0, 4), (2, 3, 4), (2 * 4096 + 3,), (17,), (16385,)]
FLOATS = ("float32", "bfloat16", "float16")


def tensors(seed: int, low: float = -2.0, high: float = 2.0, shapes=SHAPES) -> list[np.ndarray]:
    return [floats(*shape, seed=100 * seed + k, low=low, high=high) for k, shape in enumerate(shapes)]


def positive(seed: int, shapes=SHAPES) -> list[np.ndarray]:
    """A state that is an average of squares."""
    return tensors(seed, 0.1, 2.0, shapes)


def wholes(seed: int) -> list[np.ndarray]:
    return [ints(*shape, seed=100 * seed + k) for k, shape in enumerate(SHAPES)]


W, G, M, V, X, S = tensors(1), tensors(2), tensors(3), positive(4), positive(5), positive(6)
ADAM = dict(lr=0.1, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.25)
RMSPROP = dict(lr=0.1, alpha=0.75, eps=1e-3, weight_decay=0.25)
C = tensors(7, -0.2, 0.2)
# 1e-5 where a difference of two numbers is taken; elsewhere a few roundings.
CASES = [
    Case("sgd_step", wholes(1), wholes(2), [], lr=0.5, weight_decay=2.0, exact=True, dtypes=FLOATS),
    Case("sgd_step", W, G, [], lr=0.1, weight_decay=0.25, atol=1e-6, dtypes=FLOATS),
    Case("sgd_step", wholes(1), wholes(2), wholes(3), lr=0.5, momentum=0.5, dampening=0.5, weight_decay=1.0,
         exact=True),
    Case("sgd_step", wholes(1), wholes(2), wholes(3), lr=0.5, momentum=0.5, nesterov=True, exact=True),
    Case("sgd_step", wholes(1), wholes(2), wholes(3), lr=0.5, momentum=0.5, first=True, exact=True, dtypes=FLOATS),
    Case("sgd_step", W, G, M, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.25, dtypes=FLOATS, atol=1e-6),
    Case("adam_step", W, G, M, V, [], step=1, **ADAM, dtypes=FLOATS, atol=1e-6),
    Case("adam_step", W, G, M, V, [], step=3, decoupled=True, **ADAM, atol=1e-6),
    Case("adam_step", W, G, M, V, X, step=7, **ADAM, dtypes=FLOATS, atol=1e-6),
    Case("rmsprop_step", W, G, V, [], [], **RMSPROP, dtypes=FLOATS, atol=1e-6),
    Case("rmsprop_step", W, G, V, [], M, momentum=0.5, **RMSPROP, dtypes=FLOATS, atol=1e-6),
    Case("rmsprop_step", W, G, V, C, [], **RMSPROP, rtol=1e-5),
    Case("rmsprop_step", W, G, V, C, M, momentum=0.5, **RMSPROP, rtol=1e-5),
    Case("rmsprop_step", W, G, [0 * v for v in V], C, [], lr=0.1, alpha=1 - 1e-6, eps=1.0, atol=1e-6, dtypes=FLOATS,
         label="a variance below 0"),
    Case("adamax_step", W, G, M, V, step=2, **ADAM, dtypes=FLOATS, atol=1e-6),
    Case("radam_step", W, G, M, V, step=1, **ADAM, dtypes=FLOATS, atol=1e-6),
    Case("radam_step", W, G, M, V, step=50, decoupled=True, **ADAM, dtypes=FLOATS, atol=1e-6),
    Case("adamod_step", W, G, M, V, S, step=4, beta3=0.7, **ADAM, dtypes=FLOATS, atol=1e-6),
    Case("ema_step", wholes(1), wholes(2), decay=0.75, exact=True),
    Case("ema_step", W, G, decay=0.9, dtypes=FLOATS, atol=1e-6),
    *[Case("loss_scale_step", np.array([3, 13, last], np.float32), np.array(scale, np.float32),
           np.array([good, 7], np.int32), growth_interval=3, max_norm=norm, exact=norm == 0, label=f"{last} {good}")
      for last, scale, good, norm in ((0, 8, 0, 0.0), (0, 8, 2, 0.0), (0, 2 ** 24, 2, 0.0), (np.inf, 8, 2, 0.0),
                                      (np.nan, 1, 2, 1.0), (0, 8, 0, 0.25), (0, 8, 0, 0.75))],
    Case("loss_scale_step", floats(700) ** 2, np.array(64, np.float32), np.zeros(2, np.int32), max_norm=1.0),
    *[Case(name, W, G, *states, np.array(factor, np.float32), lr=0.1, **attrs, atol=1e-6, label=f"times {factor}")
      for factor in (0.0, 0.125)
      for name, states, attrs in (("sgd_step", [[]], {}), ("sgd_step", [M], dict(momentum=0.9)),
                                  ("adam_step", [M, V, []], dict(step=3)), ("adam_step", [M, V, X], dict(step=3)),
                                  ("rmsprop_step", [V, C, M], dict(momentum=0.5, eps=1e-3)),
                                  ("adamax_step", [M, V], dict(step=2)), ("radam_step", [M, V], dict(step=50)),
                                  ("adamod_step", [M, V, S], dict(step=4)))],
    Case("sums_of_squares", wholes(4), exact=True, dtypes=("bfloat16", "float16")),  # float64 on the CPU, float32 here
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case: Case) -> None:
    agree(case)


def test_more_tensors_than_a_launch_takes() -> None:
    """Each of 300 tensors is served once, by the launch and the row that are its own."""
    count = 300
    agree(Case("adam_step", *[[ints(k % 5, seed=k + shift, low=1) for k in range(count)] for shift in (0, 1, 2, 3)],
               [], step=1, lr=0.5, atol=1e-6))
    squares = ops.sums_of_squares([alpha.tensor(np.full(k % 7, k, np.float32), device="cuda") for k in range(count)])
    assert squares.numpy().tolist() == [(k % 7) * k * k for k in range(count)]
    assert len(tables._parts(tuple(range(count)), 4)) == 4 and len(tables._parts(tuple(range(count)), 1)) == 2


def test_special_values_go_where_the_cpu_puts_them() -> None:
    special = [np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 2.0], np.float32)]
    ones = [np.ones(7, np.float32)]
    with np.errstate(invalid="ignore"):
        for case in (Case("sgd_step", ones, special, ones, lr=0.5, momentum=0.5, exact=True),
                     Case("adam_step", ones, special, ones, ones, ones, lr=0.5, step=1, atol=1e-6),
                     Case("adamax_step", ones, special, ones, ones, lr=0.5, step=1, atol=1e-6),
                     Case("adamod_step", ones, special, ones, ones, ones, lr=0.5, step=1, atol=1e-6)):
            agree(case)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name, settings", [
    ("Adam", {}), ("AdamW", dict(amsgrad=True)), ("Adamax", {}), ("RAdam", {}), ("RMSprop", dict(centered=True)),
    ("NAdam", {}), ("Adagrad", {}), ("Adadelta", {}), ("Lion", {}), ("LAMB", {})])
def test_optimizers_keep_float32_beside_16_bits(dtype: str, name: str, settings: dict) -> None:
    """Gradients whose squares float16 does not have: no parameter becomes NaN, and none moves without a gradient."""
    for g in (0.0, 1e-4, 300.0):
        p = nn.Parameter(alpha.ones((33,), device="cuda").astype(dtype))
        optimizer = getattr(optim, name)([p], lr=0.01, **settings)
        for _ in range(2):
            p.grad = alpha.full((33,), g, device="cuda").astype(dtype)
            optimizer.step()
        assert p.dtype == dtype and {t.dtype for t in optimizer.state_dict()["tensors"].values()} == {"float32"}
        assert np.isfinite(p.numpy()).all()
        assert ((p.numpy() == 1) == (g == 0)).all() or name in ("LAMB", "Adadelta", "RAdam", "AdamW")


@pytest.mark.classes
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_squares(dtype: str) -> None:
    """Whole numbers exactly, whatever the tails; infinity stays with its tensor; the result is float32."""
    arrays = [*wholes(8), np.array([np.inf, 1], np.float32), np.array([np.nan], np.float32)]
    y = ops.sums_of_squares([alpha.tensor(a, device="cuda").astype(dtype) for a in arrays])
    assert y.dtype == "float32" and y.shape == (len(arrays),)
    np.testing.assert_array_equal(y.numpy(), [np.sum(a.astype(np.float64) ** 2) for a in arrays])


def test_sums_of_squares_are_as_accurate_as_the_cpus() -> None:
    arrays = tensors(9, shapes=[(100_003,), (65_536,), (7,)])
    y = ops.sums_of_squares([alpha.tensor(a, device="cuda") for a in arrays])
    expected = [np.sum(a.astype(np.float64) ** 2) for a in arrays]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    again = ops.sums_of_squares([alpha.tensor(a, device="cuda") for a in arrays])
    assert y.numpy().tobytes() == again.numpy().tobytes()


class Own(optim.Optimizer):
    rule = optim.Rule("own", """
        u = tanh(mu * u + g)
        w = w - lr / t * u * (abs(u) if u > 0.5 or u < -1 else 1)
    """)

    def __init__(self, params: list, lr: float = 0.1, mu: float = 0.5) -> None:
        super().__init__(params, lr=lr, mu=mu)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_rule_of_ones_own_is_one_launch(dtype: str) -> None:
    """And agrees with the CPU's; a factor of 0 changes nothing."""
    found = []
    for device in ("cuda", "cpu"):
        stored = dtype if device == "cuda" or dtype != "bfloat16" else "float32"
        params = [alpha.tensor(a, device=device).astype(stored).requires_grad_() for a in tensors(1)]
        optimizer = Own(params)
        for k, factor in enumerate((1.0, 0.5, 0.0)):
            for p, g in zip(params, tensors(2 + k)):
                p.grad = alpha.tensor(g, device=device).astype(stored)
            optimizer.step(alpha.tensor(np.float32(factor), device=device))
        found.append([p.detach().numpy().astype(np.float32) for p in params])
    for a, b in zip(*found):
        error = 2e-6 if dtype == "float32" else 0.02
        np.testing.assert_allclose(a, b, rtol=error, atol=error)


def test_steps_that_are_not_contracted_have_numpys_bits() -> None:
    for name, settings in (("Lion", {}), ("NAdam", {}), ("Adagrad", {}), ("Adadelta", {}), ("Adan", {})):
        found = []
        for device in ("cuda", "cpu"):
            params = [alpha.tensor(a, device=device).requires_grad_() for a in tensors(1)]
            optimizer = getattr(optim, name)(params, lr=0.01, weight_decay=0.1, **settings)
            with alpha.config(cpu_kernels=False):
                for k in range(3):
                    for p, g in zip(params, tensors(2 + k)):
                        p.grad = alpha.tensor(g, device=device)
                    optimizer.step()
            found.append(b"".join(p.detach().numpy().tobytes() for p in params))
        assert found[0] == found[1], name
