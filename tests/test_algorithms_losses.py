"""Training with the algorithms that are chosen freely, beside training with the direct loops alone.

Roundings grow from step to step, so that losses of many steps say little of an algorithm by themselves: direct with
weights that differ by a unit in their last place goes as far from direct, in half of such runs. Those are the measure.
"""

from __future__ import annotations

import numpy as np
import pytest

import alpha
import models
from alpha import ops
from alpha.cpu import native
from benchmarks.algorithm_losses import BOUND, apart, losses
from benchmarks.sides import image_batches

pytestmark = pytest.mark.skipif(native.library() is None, reason="auto takes direct alone without compiled kernels")
BATCH, STEPS, LR, NUDGES = 8, 20, 1e-4, 6


def gradients(algorithm: str, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Returns the gradients of VGG-11's weights in its first step."""
    alpha.manual_seed(0)
    with alpha.config(conv_algorithm=algorithm):
        net, (x, labels) = models.create("vgg11").to(dtype=dtype), image_batches(BATCH)[0]
        ops.cross_entropy(net(alpha.tensor(x.astype(dtype))), alpha.tensor(labels)).backward()
    return {name: p.grad.numpy() for name, p in net.named_parameters() if p.grad is not None}


def test_losses_of_20_steps_are_as_near_to_direct_as_roundings_of_weights_leave_them():
    auto, direct = (losses("vgg11", BATCH, STEPS, LR, "cpu", name) for name in ("auto", "direct"))
    assert auto != direct                                   # other algorithms are at work
    assert apart(auto[:5], direct[:5]) <= BOUND / 5         # before roundings have grown
    if apart(auto, direct) > BOUND:
        nudged = (losses("vgg11", BATCH, STEPS, LR, "cpu", "direct", nudged=seed) for seed in range(NUDGES))
        assert any(apart(auto, direct) <= 2 * apart(run, direct) for run in nudged)
    assert direct[-1] < direct[0] / 4                       # it does learn


def test_gradients_of_a_network_are_as_near_to_exact_ones_as_those_of_direct():
    exact = gradients("direct", "float64")
    auto, direct = ({key: float(np.linalg.norm(g - exact[key]) / np.linalg.norm(exact[key]))
                     for key, g in gradients(name).items() if g.ndim == 4} for name in ("auto", "direct"))
    assert len(auto) == 8 and auto != direct
    assert all(auto[key] <= 1.5 * direct[key] + 1e-6 for key in auto), (auto, direct)
