"""Optimizers on parameters of 16 bits: states and arithmetic are float32, as in PyTorch; old states are widened."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.errors import ConfigError, DTypeError
from alpha.ops import update

ADAPTIVE: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {}), ("Adam", dict(amsgrad=True, weight_decay=1e-4)), ("AdamW", {}), ("Adamax", {}), ("RAdam", {}),
    ("NAdam", {}), ("RMSprop", {}), ("RMSprop", dict(momentum=0.5, weight_decay=1e-4)),
    ("RMSprop", dict(centered=True, eps=1e-4)), ("Adagrad", {}), ("Adagrad", dict(initial_accumulator_value=0.5)),
    ("Adadelta", dict(lr=100.0))]
OTHERS: list[tuple[str, dict[str, Any]]] = [("Lion", {}), ("LAMB", {}), ("Muon", {})]
IDS = [f"{name}{k}" for k, (name, _) in enumerate(ADAPTIVE)]


def half(seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((3, 5)) * scale).astype(np.float16)


def made(name: str, settings: dict[str, Any], p: nn.Parameter) -> optim.Optimizer:
    return getattr(optim, name)([p], **{"lr": 0.01, **settings})


@pytest.mark.torch
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
@pytest.mark.parametrize("name, settings", ADAPTIVE, ids=IDS)
def test_steps_of_float16_are_those_of_pytorch_in_float32(cpu_kernels, name, settings, scale) -> None:
    """Each step begins at the parameter that is stored: PyTorch's is rounded after each step, its states are not."""
    torch = pytest.importorskip("torch")
    p = nn.Parameter(alpha.tensor(half()))
    twin = torch.tensor(half().astype(np.float32), requires_grad=True)
    ours = made(name, settings, p)
    theirs = getattr(torch.optim, name)([twin], **{"lr": 0.01, **settings})
    for step in range(8):
        g = half(step + 1, scale)
        p.grad, twin.grad = alpha.tensor(g), torch.tensor(g.astype(np.float32))
        ours.step()
        theirs.step()
        with torch.no_grad():
            twin.copy_(twin.half().float())
            np.testing.assert_allclose(p.numpy().astype(np.float32), twin.numpy(), rtol=1.5e-3, atol=1e-6)
            twin.copy_(torch.tensor(p.numpy().astype(np.float32)))      # a rounding to the other side stays one
    assert p.dtype == "float16" and {t.dtype for t in ours.state_dict()["tensors"].values()} == {"float32"}
    assert scale < 1 or (p.numpy() != half()).any()


@pytest.mark.parametrize("gradient", [0.0, 1e-7, 6e4])
@pytest.mark.parametrize("name, settings", ADAPTIVE + OTHERS)
def test_no_gradient_that_float16_holds_makes_a_parameter_infinite(cpu_kernels, name, settings, gradient) -> None:
    p = nn.Parameter(alpha.ones((2, 2)).half())
    optimizer = made(name, settings, p)
    for _ in range(4):
        p.grad = alpha.full((2, 2), gradient).half()
        optimizer.step()
    assert np.isfinite(p.numpy()).all()
    assert all(np.isfinite(t.numpy()).all() for t in optimizer.state_dict()["tensors"].values())
    if gradient == 0 and "weight_decay" not in settings and name not in ("LAMB", "Muon", "AdamW"):
        assert (p.numpy() == 1).all()


def test_a_scaled_gradient_is_unscaled_in_float32(cpu_kernels) -> None:
    """2^-14 / 2^16 is nothing in float16, and a step of Adam all the same."""
    p = nn.Parameter(alpha.ones((2,)).half())
    optimizer = optim.Adam([p], lr=0.1, eps=1e-12)
    p.grad = alpha.full((2,), 2.0 ** -14).half()
    optimizer.step(alpha.tensor(2.0 ** -16))
    np.testing.assert_allclose(p.numpy(), 0.9, rtol=1e-3)
    before = p.numpy(), {k: t.numpy() for k, t in optimizer.state_dict()["tensors"].items()}
    optimizer.step(alpha.tensor(0.0))
    assert (p.numpy() == before[0]).all()
    assert all((t.numpy() == before[1][k]).all() for k, t in optimizer.state_dict()["tensors"].items())


@pytest.mark.parametrize("name, settings", [*ADAPTIVE[:1], ADAPTIVE[8], ADAPTIVE[10], *OTHERS])
def test_states_of_float16_parameters_go_through_checkpoints(tmp_path, name, settings) -> None:
    def run(optimizer: optim.Optimizer, p: nn.Parameter, steps: range) -> None:
        for step in steps:
            p.grad = alpha.tensor(half(step + 1))
            optimizer.step()

    straight, resumed = nn.Parameter(alpha.tensor(half())), nn.Parameter(alpha.tensor(half()))
    a, b = made(name, settings, straight), made(name, settings, resumed)
    run(a, straight, range(6))
    run(b, resumed, range(3))
    alpha.save({"optimizer": b}, tmp_path / "state.safetensors")
    c = made(name, settings, resumed)
    c.load_state_dict(alpha.load(tmp_path / "state.safetensors")["optimizer"])
    twin_p, twin = copy.deepcopy((resumed, c))
    pickled_p, pickled = pickle.loads(pickle.dumps((resumed, c)))
    for optimizer, p in ((c, resumed), (twin, twin_p), (pickled, pickled_p)):
        run(optimizer, p, range(3, 6))
        assert (p.numpy() == straight.numpy()).all()


def test_an_older_state_of_16_bits_is_widened() -> None:
    p = nn.Parameter(alpha.tensor(half()))
    optimizer = optim.Adam([p])
    p.grad = alpha.tensor(half(1))
    optimizer.step()
    state = optimizer.state_dict()
    old = {name: alpha.tensor(t.numpy().astype(np.float16)) for name, t in state["tensors"].items()}
    loaded = optim.Adam([p])
    loaded.load_state_dict({"tensors": old, "scalars": state["scalars"]})
    for name, t in loaded.state_dict()["tensors"].items():
        assert t.dtype == "float32" and (t.numpy() == old[name].numpy()).all()
    loaded.step()


def test_a_step_refuses_states_of_16_bits() -> None:
    w, g = [alpha.ones((2,)).half()], [alpha.ones((2,)).half()]
    m, v = [alpha.zeros((2,)).half()], [alpha.zeros((2,))]
    with pytest.raises(DTypeError, match=r'adam_step: m\[0\] is float16, params\[0\] is float16: the state must be '
                                         r'float32\nhelp: convert the state: m\[0\].astype\("float32"\)'):
        update.adam_step(w, g, m, v, [], None, lr=0.1, step=1)
    with pytest.raises(DTypeError, match=r"radam_step: v\[0\] is float32, params\[0\] is float64: the state must be"):
        update.radam_step([w[0].double()], [g[0].double()], [w[0].double()], v, None, lr=0.1, step=1)


def test_adamod_refuses_parameters_that_it_would_not_move() -> None:
    with pytest.raises(ConfigError, match=r"AdaMod: parameter 0 is float16, and the first step sizes are 1 - "):
        optim.AdaMod([nn.Parameter(alpha.ones((2,)).half())])


def test_lookahead_keeps_its_slow_weights_in_float32() -> None:
    """A twentieth of one unit in the last place, twenty times, is a unit."""
    p = nn.Parameter(alpha.ones((1,)).half())
    outer = optim.Lookahead(optim.SGD([p], lr=1.0), k=1, alpha=0.1)
    for _ in range(20):
        p.grad = alpha.full((1,), -2.0 ** -10).half()
        outer.step()
    assert outer.state_dict()["tensors"]["lookahead/0"].dtype == "float32" and p.item() > 1


def test_a_clipped_gradient_of_float16_is_not_lost() -> None:
    p = nn.Parameter(alpha.ones((1,)).half())
    p.grad = alpha.full((1,), 60000.0).half()
    optim.clip_grad_norm([p], 6e-4)     # a factor of 1e-8
    np.testing.assert_allclose(p.grad.numpy(), 6e-4, rtol=1e-3)


def test_the_variance_of_a_centred_rmsprop_is_never_below_zero(cpu_kernels) -> None:
    """The same gradient again and again: v - a^2 is 0 but for rounding, which may make it negative."""
    values = np.linspace(0.1, 3, 997).astype(np.float32)
    p = nn.Parameter(alpha.zeros((997,)))
    optimizer = optim.RMSprop([p], lr=1e-3, alpha=0.5, centered=True, momentum=0.5)
    for _ in range(60):
        p.grad = alpha.tensor(values)
        optimizer.step()
    states = optimizer.state_dict()["tensors"]
    assert (states["0/v"].numpy() < states["0/a"].numpy() ** 2).any(), "nothing was negative, so nothing was tested"
    assert np.isfinite(p.numpy()).all()
