"""When the compiled CPU kernels are used, and what happens where they cannot be: one notice, then NumPy."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import library, native, native_check

pytestmark = [pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]


@pytest.fixture(autouse=True)
def kernels():
    with config(cpu_kernels=True):
        assert native.library() is not None
        yield


def test_usable_asks_for_contiguous_float32():
    a = np.zeros((4, 4), np.float32)
    assert native.usable(a, None)
    assert not native.usable(a.T) and not native.usable(a, a.astype(np.float64))
    with config(cpu_kernels=False):
        assert native.library() is None and not native.usable(a)


def linear_of_ones(send=print):
    y = np.empty((512, 512), np.float32)
    native.library()
    native.linear_fwd(np.ones((512, 64), np.float32), np.ones((512, 64), np.float32), y)
    send(float(y.sum()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
def test_a_forked_process_computes_too():
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    with config(num_threads=2):
        linear_of_ones()                    # makes the threads that the child will not have
        child = context.Process(target=linear_of_ones, args=(send.send,))
        child.start()
        try:
            assert receive.poll(30), "the forked process hangs"
            assert receive.recv() == 512 * 512 * 64
        finally:
            child.kill()
            child.join()


@pytest.fixture
def unloaded(monkeypatch):
    monkeypatch.setattr(native, "_tried", False)
    monkeypatch.setattr(native, "_lib", None)


def check_notice(capsys, reason):
    capsys.readouterr()
    assert native.library() is None
    out, notice = capsys.readouterr()
    assert out == "" and notice.count("\n") == 1
    assert notice.startswith("alpha computes with NumPy alone, several times slower: ") and reason in notice
    assert not native.usable(np.zeros(1, np.float32))       # for good, and silently
    assert capsys.readouterr() == ("", "")


def test_without_a_compiler_there_is_one_notice(unloaded, monkeypatch, capsys):
    monkeypatch.setattr(library, "compilers", list)
    check_notice(capsys, "no C++ compiler was found")


def test_a_compiler_that_fails_gives_one_notice(unloaded, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(library, "compilers", lambda: [("false",)])
    with config(cache_dir=str(tmp_path)):
        check_notice(capsys, "false failed with status 1")


@pytest.mark.parametrize("kernel, family", [
    ("conv_fprop", "conv"), ("conv_dgrad", "conv"), ("conv_wgrad", "conv"), ("linear_fwd", "linear"),
    ("batch_norm_bwd", "norm"), ("sum_middle", "reduce"), ("extreme", "rows"),
    ("layer_norm_fwd", "sample_norm"), ("group_norm_bwd", "sample_norm"),
    ("max_pool_bwd", "pool"), ("cross_entropy_bwd", "loss"),
    ("shape.copy_box", "copy"), ("pointwise.compiled", "pointwise"),
    ("update.compiled", "optim"), ("random_bits", "random")])
def test_a_kernel_that_does_nothing_fails_the_self_test(unloaded, monkeypatch, capsys, kernel, family):
    room, _, name = kernel.rpartition(".")
    monkeypatch.setattr(getattr(native_check, room or "native"), name, lambda *_, **__: 0)
    check_notice(capsys, f"the compiled kernels fail their self-test in {family}\n")


@pytest.mark.parametrize("given, expected", [({}, native.SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"),
                                             ({"OMP_WAIT_POLICY": "active"}, "None")])
def test_waiting_threads_spin_briefly_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_", "ALPHA_"))} | given
    code = "import os; from alpha.cpu import native; native.library(); print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True,
                          cwd=Path(__file__).parent.parent)
    assert done.stdout.strip() == expected, done.stderr
