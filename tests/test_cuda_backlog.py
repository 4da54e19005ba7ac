"""Launches that wait for their modules: what is compiled, when, and that all work is done in its order."""
# ruff: noqa: F811  fixtures are named by their import and by who takes them

from __future__ import annotations

import io
import sys
import threading
from functools import partial

import pytest

from alpha.core.config import config
from alpha.cuda.runtime import backlog
from alpha.cuda.runtime import toolchain as chain
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.errors import CompileError, DeviceError
from tests.fake_cuda import DriverError, Function, declared, toolchain  # noqa: F401  fixtures

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


@pytest.fixture
def order(monkeypatch) -> list:
    """What has been launched, in order: (entry, arguments)."""
    made: list = []

    def launch(self, grid, block, buffer, shared, stream):
        if self.error:
            raise self.error
        made.append(int.from_bytes(buffer, "little"))
    monkeypatch.setattr(Function, "_launch_kernel", launch)
    return made


@pytest.fixture
def own(toolchain):
    """Kernels of alpha itself, none of which is compiled; nothing is until `toolchain.may_compile` is set."""
    chain._workers.cache_clear()  # a test may say how many there are
    toolchain.may_compile.clear()
    yield [Kernel(name, "relu", "i32 n") for name in ("pool.cu", "loss.cu", "reduce.cu")]
    toolchain.may_compile.set()
    backlog.waiting.clear()
    chain._workers().shutdown()
    chain._workers.cache_clear()


def test_nothing_is_compiled_that_is_not_launched(own, toolchain, order):
    toolchain.may_compile.set()
    own[1](1, 7)
    backlog.run()
    assert toolchain.asked == ["loss.cu"] and order == [7] and not backlog.waiting
    own[1](1, 8)
    assert order == [7, 8], "a module that is there is launched at once"


def test_modules_are_compiled_beside_each_other_and_launched_in_order(own, toolchain, order, monkeypatch):
    together = threading.Barrier(4, timeout=60)  # of three workers and this thread, which comes when all is launched
    monkeypatch.setattr(chain, "cores", lambda: 3)
    monkeypatch.setattr(toolchain, "may_compile", type("All", (), {"wait": together.wait, "set": lambda: None}))
    for k, kernel in enumerate([own[0], own[1], own[0], own[2], own[1]]):
        kernel(1, k)
    assert order == [] and len(backlog.waiting) == 5
    together.wait()
    backlog.run()
    assert order == [0, 1, 2, 3, 4] and sorted(toolchain.asked) == ["loss.cu", "pool.cu", "reduce.cu"]


def test_what_is_there_lines_up_behind_what_is_not(own, toolchain, order):
    toolchain.cached.add("loss.cu")
    (toolchain.folder / "loss.cu").write_bytes(b"relu")
    own[1](1, 1)
    assert order == [1] and toolchain.asked == [], "one from the cache waits for nobody"
    own[0](1, 2)
    own[1](1, 3)
    backlog.add(partial(order.append, "copy"))
    assert order == [1]
    toolchain.may_compile.set()
    backlog.run()
    assert order == [1, 2, 3, "copy"]


def test_the_next_launch_ends_the_wait_when_all_is_compiled(own, toolchain, order):
    own[0](1, 1)
    toolchain.may_compile.set()
    chain._jobs[own[0].unit].result()
    own[0](1, 2)
    assert order == [1, 2] and not backlog.waiting


def test_a_kernel_of_ones_own_is_compiled_at_once_and_alone(own, toolchain, order, tmp_path):
    mine = Kernel(tmp_path / "mine.cu", "relu", "i32 n")
    toolchain.may_compile.set()
    mine(1, 5)
    assert toolchain.asked == ["mine.cu"] and order == [5]


def test_a_bad_kernel_of_ones_own_fails_where_it_is_launched(own, toolchain, tmp_path):
    toolchain.may_compile.set()
    with pytest.raises(CompileError, match=r"compiling bad\.cu"):
        Kernel(tmp_path / "bad.cu", "relu", "i32 n")(1, 5)


@pytest.mark.parametrize("setting", [dict(sync=True), dict(debug=2)], ids=str)
def test_no_launch_waits_that_is_watched(own, toolchain, order, setting, monkeypatch):
    monkeypatch.setattr(Kernel, "_watched", lambda self, grid, buffer: order.append("watched"))
    own[0](1, 1)
    toolchain.may_compile.set()
    with config(**setting):
        own[1](1, 2)
    assert order == [1, "watched"]


def test_an_error_ends_the_wait_and_is_kept(own, toolchain, order):
    bad = Kernel(chain.HOME / "bad.cu", "relu", "i32 n")
    bad(1, 1)
    backlog.add(partial(order.append, "behind"))
    toolchain.may_compile.set()
    with pytest.raises(CompileError, match=r"compiling bad\.cu"):
        backlog.run()
    assert order == [] and not backlog.waiting
    with pytest.raises(CompileError, match=r"compiling bad\.cu"):
        bad(1, 1)
    assert toolchain.asked == ["bad.cu"]


def test_a_launch_that_fails_late_names_its_kernel(own, toolchain):
    own[0](1, 1)
    own[0](1, 2)
    toolchain.may_compile.set()
    own[0]._load()
    own[0].function.error = DriverError("an illegal memory access was encountered")
    with pytest.raises(DeviceError, match=r"relu of pool\.cu failed: an illegal"):
        backlog.run()


def test_a_synchronization_works_it_off(own, toolchain, order, monkeypatch):
    stream = type("Stream", (), {"synchronize": lambda self: order.append("synchronized")})()
    monkeypatch.setattr(context, "stream", stream)
    monkeypatch.setattr(context, "copy_stream", stream)
    own[0](1, 1)
    toolchain.may_compile.set()
    context.synchronize()
    assert order == [1, "synchronized", "synchronized"]


def test_the_wait_has_an_end(own, toolchain, order, monkeypatch):
    monkeypatch.setattr(backlog, "MOST", 3)
    own[0](1, 1)
    own[1](1, 2)
    toolchain.may_compile.set()
    backlog.add(partial(order.append, 3))
    assert order == [1, 2, 3]


def test_nothing_waits_where_another_library_shares_memory(own, toolchain, order):
    own[0](1, 1)
    toolchain.may_compile.set()
    backlog.close()
    own[1](1, 2)
    assert order == [1, 2] and not backlog.waiting


def test_progress_is_shown_while_a_step_waits(own, toolchain, order, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(chain, "PROGRESS_AFTER", 0)
    own[0](1, 1)
    own[1](1, 1)
    threading.Timer(0.2, toolchain.may_compile.set).start()
    backlog.run()
    assert "compiling CUDA kernels, once" in screen.getvalue() and "2" in screen.getvalue()
