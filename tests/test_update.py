"""Optimizer steps: against torch.optim, against the equations in float64, and the refusals."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

import alpha
from alpha.errors import DTypeError, ShapeError
from alpha.gradcheck import assert_equal_at
from alpha.ops import update

SHAPES = [(3, 5), (1,), (), (2, 3, 3, 7), (97,)]
STEPS = 7  # past the step at which RAdam starts to rectify


def tensors(rng, dtype="float32"):
    return [alpha.tensor(rng.standard_normal(s), dtype) for s in SHAPES]


def zeros(count, dtype="float32"):
    return [[alpha.tensor(np.zeros(s), dtype) for s in SHAPES] for _ in range(count)]


def sgd(momentum=0.0, **kw):
    v, = zeros(1)
    return lambda w, g, t: update.sgd_step(w, g, v if momentum else [], momentum=momentum, first=t == 1, **kw)


def adam(amsgrad=False, **kw):
    m, v, vmax = zeros(3)
    return lambda w, g, t: update.adam_step(w, g, m, v, vmax if amsgrad else [], step=t, **kw)


def rmsprop(centered=False, momentum=0.0, **kw):
    v, a, b = zeros(3)
    return lambda w, g, t: update.rmsprop_step(w, g, v, a if centered else [], b if momentum else [],
                                               momentum=momentum, **kw)


def adamax(**kw):
    m, u = zeros(2)
    return lambda w, g, t: update.adamax_step(w, g, m, u, step=t, **kw)


def radam(decoupled=False, **kw):
    m, v = zeros(2)
    return lambda w, g, t: update.radam_step(w, g, m, v, step=t, decoupled=decoupled, **kw)


BETAS = dict(beta1=0.8, beta2=0.95)
CASES = [
    ("SGD", sgd, dict(lr=0.1), {}),
    ("SGD", sgd, dict(lr=0.1, weight_decay=0.2), {}),
    ("SGD", sgd, dict(lr=0.1, momentum=0.9), {}),
    ("SGD", sgd, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.2), {}),
    ("SGD", sgd, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2), {}),
    ("Adam", adam, dict(lr=0.1, eps=1e-3, **BETAS), {}),
    ("Adam", adam, dict(lr=0.1, weight_decay=0.2, amsgrad=True, **BETAS), {}),
    ("AdamW", adam, dict(lr=0.1, weight_decay=0.2, **BETAS), dict(decoupled=True)),
    ("AdamW", adam, dict(lr=0.1, weight_decay=0.2, amsgrad=True, **BETAS), dict(decoupled=True)),
    ("RMSprop", rmsprop, dict(lr=0.1, alpha=0.9, eps=1e-3), {}),
    ("RMSprop", rmsprop, dict(lr=0.1, alpha=0.9, weight_decay=0.2, momentum=0.8), {}),
    ("RMSprop", rmsprop, dict(lr=0.1, alpha=0.9, eps=1e-2, weight_decay=0.2, centered=True), {}),
    ("RMSprop", rmsprop, dict(lr=0.1, alpha=0.9, eps=1e-2, momentum=0.8, centered=True), {}),
    ("Adamax", adamax, dict(lr=0.1, weight_decay=0.2, eps=1e-3, **BETAS), {}),
    ("RAdam", radam, dict(lr=0.1, eps=1e-3, weight_decay=0.2, **BETAS), {}),
    ("RAdam", radam, dict(lr=0.1, weight_decay=0.2, **BETAS), dict(decoupled=True)),
]


@pytest.mark.torch
@pytest.mark.parametrize("name, make, settings, ours_only", CASES, ids=[f"{c[0]}{k}" for k, c in enumerate(CASES)])
def test_steps_are_pytorchs(cpu_kernels, name, make, settings, ours_only):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    params = tensors(rng)
    twins = [torch.tensor(w.numpy(), dtype=torch.float64, requires_grad=True) for w in params]
    theirs = {k: v for k, v in settings.items() if k not in BETAS}
    if "beta1" in settings:
        theirs["betas"] = settings["beta1"], settings["beta2"]
    if name == "RAdam":
        theirs["decoupled_weight_decay"] = ours_only.get("decoupled", False)
    optimizer = getattr(torch.optim, name)(twins, **theirs)
    step = make(**settings, **ours_only)
    for t in range(1, STEPS + 1):
        grads = tensors(rng)
        step(params, grads, t)
        for twin, g in zip(twins, grads):
            twin.grad = torch.tensor(g.numpy(), dtype=torch.float64)
        optimizer.step()
        for k, (w, twin) in enumerate(zip(params, twins)):
            assert_equal_at(w, twin.detach().numpy(), rtol=2e-5, atol=2e-5, name=f"step {t}, parameter {k}")


def test_integers_move_exactly(cpu_kernels):
    """v = d at first, then v = 2 v + d; nesterov adds d + 2 v: all in small integers."""
    w, v = [alpha.tensor([8.0, -8.0])], [alpha.tensor([5.0, 5.0])]
    for first, velocity, after in ((True, [1, 2], [5, -14]), (False, [3, 6], [-2, -28])):
        update.sgd_step(w, [alpha.tensor([1.0, 2.0])], v, lr=1.0, momentum=2.0, nesterov=True, first=first)
        assert_equal_at(v[0], velocity)
        assert_equal_at(w[0], after)


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-12), ("float32", 1e-5)])
def test_adamod_is_the_equation(cpu_kernels, dtype, rtol):
    rng = np.random.default_rng(2)
    params, (m, v, s) = tensors(rng, dtype), zeros(3, dtype)
    lr, b1, b2, b3, eps, decay = 0.1, 0.8, 0.95, 0.7, 1e-3, 0.2
    expected = [[w.numpy().astype(np.float64), 0.0, 0.0, 0.0] for w in params]
    bounded = 0
    for t in range(1, 5):
        grads = tensors(rng, dtype)
        update.adamod_step(params, grads, m, v, s, lr=lr, step=t, beta1=b1, beta2=b2, beta3=b3, eps=eps,
                           weight_decay=decay)
        for state, g in zip(expected, grads):
            w, mk, vk, sk = state
            g = g.numpy().astype(np.float64)
            mk, vk = b1 * mk + (1 - b1) * g, b2 * vk + (1 - b2) * g * g
            rate = lr / (np.sqrt(vk / (1 - b2 ** t)) + eps)
            sk = b3 * sk + (1 - b3) * rate
            bounded += np.sum(sk < rate)
            state[:] = w * (1 - lr * decay) - np.minimum(rate, sk) * mk / (1 - b1 ** t), mk, vk, sk
    assert 0 < bounded < 4 * sum(w.size for w in params)
    for w, sk, state in zip(params, s, expected):
        assert_equal_at(w, state[0], rtol=rtol, atol=rtol)
        assert_equal_at(sk, state[3], rtol=rtol, atol=rtol)


def test_ema_is_the_equation():
    averages, params = [alpha.tensor([8.0, 4.0])], [alpha.tensor([0.0, 8.0], requires_grad=True)]
    update.ema_step(averages, params, decay=0.75)
    assert_equal_at(averages[0], [6, 5])
    assert_equal_at(params[0].detach(), [0, 8])
    assert (averages[0]._version, params[0]._version) == (1, 0)


def test_sums_of_squares_name_each_tensor(cpu_kernels):
    """Integers exactly, in float64 beyond float32's integers; one number per tensor; an infinity stays where it is."""
    big = alpha.tensor(np.full(4097, 3.0, np.float32))
    odd = alpha.tensor(np.array([[4097.0]], np.float32))
    y = update.sums_of_squares([big, odd, alpha.tensor([np.inf, 1.0])])
    assert y.dtype == "float64"
    assert_equal_at(y, [4097 * 9, 4097 ** 2, np.inf])
    rng = np.random.default_rng(3)
    grads = tensors(rng)
    expected = [np.sum(g.numpy().astype(np.float64) ** 2) for g in grads]
    assert_equal_at(update.sums_of_squares(grads), expected, rtol=1e-6)
    assert sqrt(update.sums_of_squares(grads).sum().item()) == pytest.approx(sqrt(sum(expected)), rel=1e-6)


def w(*shapes):
    return [alpha.tensor(np.ones(s, np.float32)) for s in shapes]


STATES = {"sgd_step": ["v"], "adam_step": ["m", "v", "vmax"],
          "rmsprop_step": ["v", "a", "b"], "adamax_step": ["m", "u"],
          "radam_step": ["m", "v"], "adamod_step": ["m", "v", "s"]}
ATTRS = {name: dict(lr=0.1, **({"momentum": 0.9} if name in ("sgd_step", "rmsprop_step") else {"step": 1}))
         for name, states in STATES.items()}


@pytest.mark.parametrize("name", STATES)
def test_steps_change_parameters_and_states_in_place_but_no_gradient(cpu_kernels, name):
    rng = np.random.default_rng(1)
    grads, lists = tensors(rng), {k: tensors(rng) for k in ["params", *STATES[name]]}
    for state in STATES[name]:
        lists[state], = zeros(1)
    before, data = [g.numpy() for g in grads], {k: [t.array for t in ts] for k, ts in lists.items()}
    getattr(update, name)(grads=grads, **lists, **ATTRS[name], weight_decay=0.1)
    for k, changed in lists.items():
        assert all(t.array is d and t._version == 1 for t, d in zip(changed, data[k])), k
        assert all(np.abs(t.numpy()).min() > 0 for t in changed), k
    for g, b in zip(grads, before):
        assert g._version == 0
        assert_equal_at(g, b)


@pytest.mark.parametrize("name, wrong", [(n, k) for n in STATES for k in ["grads", *STATES[n]]])
def test_lists_that_do_not_match_are_refused(name, wrong):
    lists = {k: w((2, 3), (4,)) for k in ["params", "grads", *STATES[name]]}
    getattr(update, name)(**lists, **ATTRS[name])
    with pytest.raises(ShapeError) as error:
        getattr(update, name)(**{**lists, wrong: w((2, 3), (5,))}, **ATTRS[name])
    assert f"{name}: {wrong}[1] has shape (5,), params[1] has (4,)" in str(error.value)
    with pytest.raises(ShapeError) as error:
        getattr(update, name)(**{**lists, wrong: w((2, 3))}, **ATTRS[name])
    assert f"{name}: {wrong} has 1 tensors, params has 2" in str(error.value)


def test_only_lists_of_unwanted_variants_may_be_empty():
    with pytest.raises(ShapeError, match="v has 0 tensors, params has 1"):
        update.sgd_step(w((2,)), w((2,)), [], lr=0.1, momentum=0.9)
    with pytest.raises(ShapeError, match="v has 0 tensors, params has 1"):
        update.adam_step(w((2,)), w((2,)), w((2,)), [], [], lr=0.1, step=1)
    with pytest.raises(ShapeError, match="params has 1 tensors, averages has 2"):
        update.ema_step(w((2,), (2,)), w((2,)), decay=0.5)
    with pytest.raises(DTypeError, match="float32 and float64"):
        update.sgd_step(w((2,)), [alpha.tensor(np.ones(2))], [], lr=0.1)
