"""Training steps whose launches wait for their modules: the results have the bits of those that do not."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.cuda.runtime import backlog, memory, toolchain
from alpha.cuda.runtime.kernel import Kernel

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]


@pytest.fixture
def cold(monkeypatch):
    """Nothing is loaded, or known to be in the cache; what is compiled comes when the event is set."""
    may_compile, compile_one = threading.Event(), toolchain.current.compile
    gc.unfreeze()  # tests/conftest.py freezes what is there, which get_objects then leaves out
    for kernel in [thing for thing in gc.get_objects() if type(thing) is Kernel]:
        monkeypatch.setattr(kernel, "_launch", None)
    for name in ("_modules", "_jobs"):
        monkeypatch.setattr(toolchain, name, {})
    monkeypatch.setattr(type(toolchain.current), "find", lambda *args: None)
    monkeypatch.setattr(type(toolchain.current), "compile",
                        lambda self, *args: may_compile.wait(100) and compile_one(*args))
    monkeypatch.setattr(backlog, "open", True)
    monkeypatch.setattr(memory, "on_allocate", None)  # the emulated driver checks the blocks as they are by then:
    gc.collect()
    memory.free_cached()  # none of them as a test before has claimed it
    yield may_compile
    may_compile.set()


def steps(count: int = 2) -> list[np.ndarray]:
    """Trains a small network on fresh data and returns all its parameters."""
    alpha.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(8 * 4 * 4, 10)).to("cuda")
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    rng = np.random.default_rng(0)
    for _ in range(count):
        host = rng.standard_normal((4, 8, 8, 3)).astype(np.float32)
        x = alpha.tensor(host, device="cuda")
        host[:] = np.nan  # the tensor has a copy
        loss = ops.cross_entropy(net(x), alpha.tensor(np.arange(4), device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.array for p in net.parameters()]


def test_two_steps_have_the_same_bits(cold):
    waiting = steps()
    assert len(backlog.waiting) > 40 and len(toolchain._jobs) > 10, "the host has found out what both steps need"
    cold.set()
    got = [memory.download(p, p.dtype) for p in waiting]
    assert not backlog.waiting
    for a, b in zip(got, [memory.download(p, p.dtype) for p in steps()]):
        assert a.tobytes() == b.tobytes() and np.isfinite(a).all()


def test_memory_runs_short(cold, monkeypatch):
    """Blocks that launches in the backlog use stay with the pool as long as these wait."""
    monkeypatch.setattr(memory, "RESERVE", 1 << 60)
    cold.set()
    x = alpha.tensor(np.arange(6, dtype=np.float32), device="cuda")
    y = x + 1
    assert y.numpy().tolist() == [1, 2, 3, 4, 5, 6] and not backlog.waiting


def test_a_replay_comes_after_what_waits(cold):
    """The first replay that draws numbers needs a kernel that nothing before it has needed."""
    cold.set()

    def draws(captured: bool) -> list[np.ndarray]:
        alpha.manual_seed(5)
        x = alpha.tensor(np.ones((3, 7), np.float32), device="cuda")
        function = alpha.capture(lambda x: ops.dropout(x, 0.5)) if captured else lambda x: ops.dropout(x, 0.5)
        with alpha.no_grad():
            return [function(x).numpy() for _ in range(4)]

    for a, b in zip(draws(False), draws(True)):
        np.testing.assert_array_equal(a, b)
