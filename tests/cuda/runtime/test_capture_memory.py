"""What a recording of alpha.capture holds, and that all of it comes back."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.cuda.runtime import memory
from tests.cuda.process import COUNTS_LIVE

pytestmark = [pytest.mark.cuda, COUNTS_LIVE, pytest.mark.long]


def _backward(loss):
    loss.backward()
    return loss.detach()


def test_memory_is_counted_and_comes_back():
    x = alpha.tensor(np.ones(1 << 16, np.float32), device="cuda")
    gc.collect()
    before = memory.pool.live
    chain = alpha.capture(lambda x: ((x + 1) * 2 + x).sum())
    for _ in range(4):
        assert chain(x).item() == 5 << 16
    assert memory.pool.live - before >= memory.pool.reserved >= 2 * x.array.nbytes
    del chain
    gc.collect()
    assert memory.pool.reserved == 0 and memory.pool.live <= before


def test_neighbours_that_are_freed_serve_larger_tensors():
    """As in a training step: small tensors go, and larger ones come. A pool would have both."""
    def growing(x):
        halves = [x * k for k in range(1, 5)]   # four times x
        total = ops.concat(halves).sum()        # twice that
        del halves
        return total + ops.concat([x + k for k in range(4)]).sum()

    x = alpha.tensor(np.ones(1 << 20, np.float32), device="cuda")
    captured = alpha.capture(growing)
    found = [captured(x).item() for _ in range(4)]
    assert found == [(10 + 10) << 20] * 4
    assert memory.pool.reserved < 10 * x.array.nbytes


def test_gradients_outlive_their_recording_and_all_memory_comes_back():
    model = nn.Linear(4, 1 << 14).to("cuda")
    x = alpha.tensor(np.ones((128, 4), np.float32), device="cuda")
    losses = alpha.capture(lambda x: _backward(model(x).sum()), model)
    for _ in range(4):
        model.zero_grad()
        losses(x)
    arena, grad = losses.found.recording._arena, model.weight.grad
    held = arena.managed_bytes
    assert memory.pool.reserved == held > 128 << 16
    del losses
    model.zero_grad()
    assert memory.pool.reserved == 0 < arena.managed_bytes < held
    assert (grad.numpy() == 128).all(), "its memory is not given away"
    del grad
    gc.collect()
    assert arena.managed_bytes == 0


def test_a_gradient_of_an_ended_recording_may_go_while_another_one_is_made():
    model = nn.Linear(4, 8).to("cuda")
    x = alpha.tensor(np.ones((2, 4), np.float32), device="cuda")
    losses = alpha.capture(lambda x: _backward(model(x).sum()), model)
    for _ in range(3):
        model.zero_grad()
        losses(x)
    arena, held = losses.found.recording._arena, [model.weight.grad]
    del losses
    model.zero_grad()
    assert arena.managed_bytes

    def forgetting(x):
        if memory.recorder:
            held.clear()
        return (x + 1).sum()

    captured = alpha.capture(forgetting)
    assert [captured(x).item() for _ in range(4)] == [16] * 4
    assert not held and captured.found and arena.managed_bytes == 0
