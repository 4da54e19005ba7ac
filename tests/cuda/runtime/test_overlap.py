"""Kernels of a recording that are launched as those before them end: which edges are of that kind, and that no kernel
reads what others wrote before it has waited."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.tensor import Tensor
from alpha.cuda.runtime import libcuda, toolchain
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import empty

pytestmark = pytest.mark.cuda

PLAIN = """
#include "ptx.cuh"
extern "C" __global__ void twice(const float *x, float *y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
ALPHA_KERNEL(twice)
"""


@pytest.fixture
def edges(monkeypatch):
    """The edges that were made programmatic, as (before, behind), and all that there were."""
    call, found = libcuda.call, {"programmatic": [], "all": []}

    def seen(name, *arguments):
        call(name, *arguments)
        if name == "cuGraphGetEdges" and arguments[1]:
            found["all"] += zip(arguments[1], arguments[2])
        if name == "cuGraphAddDependencies_v2":
            found["programmatic"] += zip(arguments[1], arguments[2])
    monkeypatch.setattr(libcuda, "call", seen)
    return found


def recorded(function, x):
    """Returns what a recording of a function gives for x."""
    function = alpha.capture(function)
    for _ in range(3):
        y = function(x)
    return function(x + 1), y


def test_kernels_in_a_row_overlap(edges):
    x = alpha.tensor(np.arange(5000, dtype=np.float32), device="cuda")
    y, _ = recorded(lambda x: ops.exp(ops.sin(x)).sum(), x)
    assert edges["programmatic"] and edges["programmatic"] == edges["all"]
    np.testing.assert_allclose(y.numpy(), np.exp(np.sin(x.numpy() + 1.0)).sum(), rtol=1e-5)


def test_a_kernel_of_a_users_own_waits_as_a_whole(edges, tmp_path):
    (tmp_path / "twice.cu").write_text(PLAIN)
    twice = Kernel(tmp_path / "twice.cu", "twice", "ptr x, ptr y, i32 n")

    def step(x):
        x, y = ops.sin(x).array, empty((5000,), "float32")
        twice(20, x, y, 5000)
        return ops.cos(Tensor(y, (5000,), "float32", "cuda"))

    x = alpha.tensor(np.linspace(0, 3, 5000, dtype=np.float32), device="cuda")
    y, _ = recorded(step, x)
    np.testing.assert_allclose(y.numpy(), np.cos(2 * np.sin(x.numpy() + 1)), atol=1e-6)
    (_, user), *_ = edges["all"]
    assert len(edges["all"]) == 2 and [b == user for _, b in edges["programmatic"]] == [False]


def test_no_kernel_reads_before_it_has_waited():
    """In the machine code of all modules that this process has loaded: ACQBULK is what `follow` becomes."""
    tool = shutil.which("cuobjdump")
    if not tool or context.capability < (9, 0):
        pytest.skip("needs cuobjdump, and a device of compute capability 9.0")
    recorded(lambda x: ops.softmax(ops.conv2d(x, x[:8, :3, :3]), -1), alpha.randn((16, 8, 8, 8), device="cuda"))
    looked_at, early = 0, []
    for unit in [unit for unit in toolchain.units() if unit in toolchain._modules and not toolchain.is_users(unit)]:
        path = toolchain.current.compile(unit.source, dict(unit.defines), context.arch)
        code = subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout
        for name, body in re.findall(r"Function : (\w+)(.*?)(?=Function : |\Z)", code, re.S):
            before, waited, _ = body.partition("ACQBULK")
            looked_at += 1
            if not waited and "EXIT" in body and re.search(r"\b(LDG|LDGSTS|UTMALDG|STG|ATOMG|RED)\b", body):
                early.append(f"{name} of {unit.source.name} does not wait")
            elif re.search(r"\b(LDG|LDGSTS|UTMALDG|STG|ATOMG|RED)\b", before):
                early.append(f"{name} of {unit.source.name}")
    assert looked_at > 3 and not early
