"""Kernels on the device: arguments, dynamic shared memory, users' own sources, and what goes wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha.core.config import config
from alpha.cuda.runtime import memory, toolchain
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.errors import CompileError, DeviceError

pytestmark = pytest.mark.cuda

SOURCE = """
#include "storage.cuh"

struct Pair { long long a, b; };

extern "C" __global__ void echo(double* out, const float* x, int i, Pair pair, float f, long long l, unsigned u,
                                unsigned long long w, const float* none) {
  if (threadIdx.x + blockIdx.x == 0) {
    out[0] = x[1]; out[1] = i; out[2] = pair.a; out[3] = pair.b; out[4] = f; out[5] = l; out[6] = u;
    out[7] = w; out[8] = none == nullptr;
  }
}
ALPHA_KERNEL(echo)

extern "C" __global__ void reverse(const float* x, float* y, int n) {
  DYNAMIC_SHARED(float, buffer);
  for (int k = threadIdx.x; k < n; k += blockDim.x) buffer[k] = x[k] * SCALE;
  __syncthreads();
  for (int k = threadIdx.x; k < n; k += blockDim.x) y[k] = buffer[n - 1 - k];
}
ALPHA_KERNEL(reverse)
"""


@pytest.fixture
def source(device, tmp_path) -> Path:
    """A source of the user's own, outside of the package."""
    path = tmp_path / "mine.cu"
    path.write_text(SOURCE)
    return path


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Declarations of a test do not stay for the next."""
    monkeypatch.setattr(toolchain, "_declared", dict(toolchain._declared))
    monkeypatch.setattr(toolchain, "_jobs", dict(toolchain._jobs))


def test_every_type_of_argument_arrives(source):
    echo = Kernel(source, "echo", "ptr out, ptr x, i32 i, block[16] pair, f32 f, i64 l, u32 u, u64 w, ptr none",
                  threads=32, defines={"SCALE": 1})
    out, x = memory.empty((18,), "int32"), memory.upload(np.array([1, 2.5], np.float32))
    echo(1, out, x, -7, np.array([1 << 40, -3]).tobytes(), 0.25, -(1 << 50), 4_000_000_000, 1 << 52, None)
    assert memory.download(out, "int32").view(np.float64).tolist() == [
        2.5, -7, 1 << 40, -3, 0.25, -(1 << 50), 4_000_000_000, 1 << 52, 1]


@pytest.mark.parametrize("n", [100, 20_000])
def test_dynamic_shared_memory_small_and_large(source, n):
    reverse = Kernel(source, "reverse", "ptr x, ptr y, i32 n", threads=128, shared=4 * n, defines={"SCALE": 3})
    x, y = np.arange(n, dtype=np.float32), memory.empty((n,), "float32")
    reverse((1, 1), memory.upload(x), y, n)
    assert np.array_equal(memory.download(y, "float32"), 3 * x[::-1])


def test_a_kernel_that_does_not_compile_shows_why_and_leaves_the_others(source, tmp_path):
    (tmp_path / "bad.cu").write_text('#include "storage.cuh"\nextern "C" __global__ void bad(float* x) { nonsense; }\n')
    bad = Kernel(tmp_path / "bad.cu", "bad", "ptr x")
    x = alpha.tensor([1.0, 2.0], device="cuda")
    with pytest.raises(CompileError) as caught:
        bad(1, x.array)
    text = str(caught.value)
    assert "compiling bad.cu" in text and "nonsense" in text and "command: " in text and len(text.splitlines()) < 40
    assert x.numpy().tolist() == [1.0, 2.0]
    test_dynamic_shared_memory_small_and_large(source, 100)


def test_an_entry_that_is_not_there_is_named(source):
    with pytest.raises(CompileError, match=r"kernel absent: mine\.cu does not serve it: .*\nhelp: the source needs"):
        Kernel(source, "absent", "ptr x", defines={"SCALE": 1})(1, None)


def test_too_much_shared_memory_is_refused(source):
    with pytest.raises(CompileError, match=r"kernel reverse: .*shared: 300000; device_has: \d+"):
        Kernel(source, "reverse", "ptr x, ptr y, i32 n", shared=300_000, defines={"SCALE": 1})(1, None, None, 0)


def test_a_launch_that_the_device_refuses_names_the_kernel(source):
    k = Kernel(source, "reverse", "ptr x, ptr y, i32 n", threads=2048, defines={"SCALE": 1})
    with pytest.raises(DeviceError, match=r"reverse of mine\.cu failed: .*block: \(2048, 1, 1\)(?s:.*)ALPHA_SYNC"):
        k(1, None, None, 0)
    with config(sync=True), pytest.raises(DeviceError, match=r"reverse of mine\.cu failed: .*\nhelp: compute-san"):
        k(1, None, None, 0)


def test_debug_shows_each_launch(source, capsys):
    reverse = Kernel(source, "reverse", "ptr x, ptr y, i32 n", threads=64, shared=400, defines={"SCALE": 1})
    x, y = memory.upload(np.ones(100, np.float32)), memory.empty((100,), "float32")
    reverse(1, x, y, 100)
    assert capsys.readouterr().err == ""
    with config(debug=2):
        reverse((1, 1, 1), x, y, 100)
    err = capsys.readouterr().err
    assert err.startswith("alpha:   reverse grid 1x1x1 block 64 shared 400: ") and err.endswith(" us\n")


def test_a_kernel_is_compiled_when_it_is_launched_and_no_other_is(source, monkeypatch):
    for name in ("_declared", "_modules", "_jobs"):
        monkeypatch.setattr(toolchain, name, {})
    first, second = (Kernel(source, "reverse", "ptr x, ptr y, i32 n", shared=4, defines={"SCALE": k}) for k in (5, 6))
    asked, compile_one = [], toolchain.current.compile
    monkeypatch.setattr(type(toolchain.current), "compile", lambda self, source, defines, arch: asked.append(
        (defines["SCALE"], arch)) or compile_one(source, defines, arch))
    first(1, None, None, 0)
    assert asked == [(5, context.arch)] and set(toolchain._modules) == {first.unit}
    second(1, None, None, 0)
    assert set(toolchain._modules) == {first.unit, second.unit}
