"""Ops, hooks and segments of one's own under recomputation, and what it tells of itself."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import train.report
from alpha import checkpoint, nn, ops
from alpha.core.op import op, registry
from alpha.cpu import memory
from alpha.errors import ArgumentError
from alpha.recompute.recipe import count
from tests.op_checks import refused
from tests.test_recompute import Mixed, Results, assert_same, image, made, small_results_count, step
from tests.tiny_run import flags
from train.__main__ import main

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
__all__ = ["small_results_count"]   # a fixture that all tests use


@pytest.fixture
def squash() -> Iterator[Any]:
    @op
    class squash:
        """y = x / (1 + |x|), and its sign."""

        args, saves, outs, returns, cheap = "x", "y sign", "y sign", "y", True

        def shape(x):
            return [x.shape, x.shape]

        def vjp_x(g, s):
            rest = 1.0 - s.y * s.sign
            return g * rest * rest

    calls = []

    @squash.impl("cpu")
    def squash_cpu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        calls.append(1)
        return x / (1 + np.abs(x)), np.sign(x)

    squash_cpu.calls = calls
    yield squash, calls
    del registry["squash"]


@pytest.mark.parametrize("setting", ("none", "cheap", "full"))
def test_an_op_of_ones_own_says_that_it_is_cheap(squash: Any, setting: str) -> None:
    function, calls = squash
    x = image(1, 4, 8).requires_grad_()
    with alpha.config(recompute=setting):
        function(x).sum().backward()
    assert len(calls) == 1 + (setting == "cheap" or setting == "full")
    np.testing.assert_allclose(x.grad.numpy(), 1 / (1 + np.abs(x.numpy())) ** 2, rtol=1e-5)


def test_cheap_must_name_outs() -> None:
    with refused(ArgumentError, "wrong_cheap: cheap has 'z', there is none; its args are x, its outs y"):
        op(type("wrong_cheap", (), dict(__doc__="", args="x", cheap="z", shape=lambda x: x.shape)))


def test_hooks_see_the_same(squash: Any) -> None:
    seen: dict[str, Results] = {"none": [], "full": []}
    for setting, found in seen.items():
        alpha.manual_seed(1)
        model = Mixed()
        model.bn1.register_forward_hook(lambda module, args, y, found=found: y.register_hook(
            lambda g: found.append(g.numpy())) and None)
        step(model, image(2, 4, 8, 8, 3), list(model.parameters()), setting)
    assert len(seen["none"]) == 1
    assert_same(seen["none"], seen["full"])


def test_a_segment_of_ones_own() -> None:
    """Random numbers and running statistics come out as without; only its input stays."""
    def run(wrap: Callable[..., Any]) -> tuple[Results, Results, int]:
        alpha.manual_seed(5)
        model = Mixed()
        body = wrap(model)
        x = image(2, 4, 8, 8, 3)
        loss = (body(x) ** 2.0).sum()
        gc.collect()
        live = memory.pool.live
        loss.backward()
        return ([loss.numpy(), ops.rand((3,)).numpy(), *(p.grad.numpy() for p in model.parameters())],
                [b.numpy() for _, b in model.named_buffers()], live)

    expected, before = run(lambda m: m), made()
    found = run(alpha.recompute)
    assert made() > before
    assert_same(expected[0], found[0])
    assert_same(expected[1], found[1])


def test_segments_in_a_network_keep_their_inputs_alone() -> None:
    def run(segments: bool) -> tuple[Results, int]:
        alpha.manual_seed(5)
        layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()) for _ in range(8)]
        parts = [nn.Sequential(*layers[:4]), nn.Sequential(*layers[4:])]
        y = image(2, 4, 32, 32, 8).requires_grad_()
        x = y
        gc.collect()
        before = memory.pool.live
        for part in parts:
            y = (alpha.recompute(part) if segments else part)(y)
        live = memory.pool.live - before
        y.sum().backward()
        return [x.grad.numpy(), *(p.grad.numpy() for part in parts for p in part.parameters())], live

    expected, found = run(False), run(True)
    assert_same(expected[0], found[0])
    assert found[1] < 0.4 * expected[1]


def test_a_segment_must_be_callable() -> None:
    with refused(ArgumentError, "recompute: 3 cannot be called", "pass a module or a function"):
        alpha.recompute(3)


def test_the_summary_says_what_was_made_again() -> None:
    alpha.recompute_summary(reset=True)
    x = image(1, 64, 1024).requires_grad_()
    with alpha.config(recompute="cheap"):
        ops.tanh(ops.exp(x)).sum().backward()
    told = alpha.recompute_summary(reset=True)
    assert "planned to make again 0.5 MiB, made again 0.5 MiB in 2 calls" in told
    assert "made again 0.0 MiB in 0 calls" in alpha.recompute_summary()


def test_the_training_program_takes_the_setting_and_keeps_all_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                  ) -> None:
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    last, times = [], []
    for setting in ("none", "cheap", "full", "auto"):
        alpha.recompute_summary(reset=True)
        assert main(flags(tmp_path / setting, epochs=1, recompute=setting)) == 0
        times.append(count.times)
        tensors = checkpoint.load(tmp_path / setting / "last.safetensors")[0]
        last.append({name: tensors[name].numpy().tobytes() for name in tensors})
    assert times[0] == 0 < times[1] < times[2] and all(found == last[0] for found in last)
