"""The compiled optimizer steps against the update equations in float64, over several tensors and steps."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import native, native_update

pytestmark = [pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]
SIZES = (1, 37, 20_011)
STEPS = 4


@pytest.fixture(autouse=True)
def kernels():
    with config(cpu_kernels=True):
        assert native.library() is not None
        yield


class Run:
    """float32 tensors for the kernels beside the same in float64 for the equations."""

    def __init__(self, states: int) -> None:
        self.rng = np.random.default_rng(0)
        self.w = [self.rng.standard_normal(n, dtype=np.float32) for n in SIZES]
        self.states = [[np.zeros(n, np.float32) for n in SIZES] for _ in range(states)]
        self.wide = np.concatenate(self.w).astype(np.float64)
        self.wide_states = [np.zeros(sum(SIZES)) for _ in range(states)]

    def gradients(self) -> tuple[list[np.ndarray], np.ndarray]:
        g = [self.rng.standard_normal(n, dtype=np.float32) for n in SIZES]
        return g, np.concatenate(g).astype(np.float64)

    def check(self) -> None:
        np.testing.assert_allclose(np.concatenate(self.w), self.wide, rtol=1e-4, atol=2e-6)
        for state, wide in zip(self.states, self.wide_states):
            np.testing.assert_allclose(np.concatenate(state), wide, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("momentum, dampening, nesterov", [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.25, False),
                                                            (0.9, 0.0, True)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd(momentum, dampening, nesterov, weight_decay):
    run = Run(1)
    for step in range(STEPS):
        g, wide_g = run.gradients()
        native_update.sgd_step(run.w, g, run.states[0] if momentum else None, lr=0.1, momentum=momentum,
                               dampening=dampening, weight_decay=weight_decay, nesterov=nesterov, first_step=step == 0)
        d = wide_g + weight_decay * run.wide
        if momentum:
            velocity = d if step == 0 else momentum * run.wide_states[0] + (1 - dampening) * d
            run.wide_states[0] = velocity
            d = d + momentum * velocity if nesterov else velocity
        run.wide -= 0.1 * d
        run.check()


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("weight_decay, decoupled", [(0.0, False), (0.1, False), (0.1, True)])
def test_adam(amsgrad, weight_decay, decoupled):
    run = Run(3 if amsgrad else 2)
    for step in range(1, STEPS + 1):
        g, d = run.gradients()
        g, d = ([a / step for a in g], d / step)        # shrinking: AMSGrad's maximum lags behind
        native_update.adam_step(run.w, g, *run.states, step=step, lr=0.01, beta1=0.8, beta2=0.9, eps=1e-6,
                                weight_decay=weight_decay, decoupled=decoupled)
        if decoupled:
            run.wide *= 1 - 0.01 * weight_decay
        else:
            d = d + weight_decay * run.wide
        m, v = 0.8 * run.wide_states[0] + 0.2 * d, 0.9 * run.wide_states[1] + 0.1 * d * d
        u = np.maximum(run.wide_states[2], v) if amsgrad else v
        run.wide_states = [m, v, u] if amsgrad else [m, v]
        run.wide -= 0.01 / (1 - 0.8 ** step) * m / (np.sqrt(u / (1 - 0.9 ** step)) + 1e-6)
        run.check()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop(momentum):
    run = Run(2)
    for _ in range(STEPS):
        g, wide_g = run.gradients()
        native_update.rmsprop_step(run.w, g, run.states[0], run.states[1] if momentum else None, lr=0.01, alpha=0.9,
                                   eps=1e-2, weight_decay=0.1, momentum=momentum)
        d = wide_g + 0.1 * run.wide
        run.wide_states[0] = 0.9 * run.wide_states[0] + 0.1 * d * d
        q = d / (np.sqrt(run.wide_states[0]) + 1e-2)
        if momentum:
            q = run.wide_states[1] = momentum * run.wide_states[1] + q
        run.wide -= 0.01 * q
        run.check()


def test_adamax():
    run = Run(2)
    for step in range(1, STEPS + 1):
        g, wide_g = run.gradients()
        native_update.adamax_step(run.w, g, *run.states, step=step, lr=0.01, beta1=0.8, beta2=0.9, eps=1e-6,
                                  weight_decay=0.1)
        d = wide_g + 0.1 * run.wide
        m, u = 0.8 * run.wide_states[0] + 0.2 * d, np.maximum(0.9 * run.wide_states[1], np.abs(d) + 1e-6)
        run.wide_states = [m, u]
        run.wide -= 0.01 / (1 - 0.8 ** step) * m / u
        run.check()
