"""alpha and PyTorch in one process: they share one OpenMP runtime, whose threads must not spin for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from alpha.core import openmp

ROOT = Path(__file__).parent.parent

STEP = """
import numpy as np
from alpha import nn, ops
net = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(864, 10))
x = alpha.tensor(np.ones((8, 28, 28, 1), np.float32))
torch.ones(300, 300) @ torch.ones(300, 300)
ops.cross_entropy(net(x), alpha.tensor(np.zeros(8, np.int64))).backward()
assert net[0].weight.grad is not None
"""


def run(code: str, **variables: str) -> str:
    """Returns what Python says on stderr, in a process that has none of our settings; libgomp tells its own."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_", "ALPHA_NUM_THREADS",
                                                                          "ALPHA_CPU_KERNELS"))}
    environ.update({"OMP_DISPLAY_ENV": "verbose", "ALPHA_NUM_THREADS": "2"} | variables)
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stderr


def spins(told: str) -> set[str]:
    """Returns what each libgomp of a process took for GOMP_SPINCOUNT when it was mapped."""
    return {line.split("'")[1] for line in told.splitlines() if "GOMP_SPINCOUNT" in line and "'" in line}


def shared() -> bool:
    """Tells whether PyTorch maps the runtime that alpha's kernels use."""
    code = "import os, ctypes, torch; ctypes.CDLL('libgomp.so.1', mode=os.RTLD_NOLOAD)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.torch
def test_the_runtime_spins_briefly_where_alpha_is_imported_first() -> None:
    told = run("import alpha, torch" + STEP)
    assert spins(told) == {openmp.SPIN_COUNT} and "Warning" not in told


@pytest.mark.torch
def test_a_runtime_that_was_mapped_before_is_warned_of_once() -> None:
    if not shared():
        pytest.skip("this PyTorch brings a runtime of its own")
    told = run("import torch, alpha" + STEP + STEP)
    assert openmp.SPIN_COUNT not in spins(told)
    assert told.count("UserWarning: alpha: another library, such as PyTorch, loaded libgomp.so.1 before alpha") == 1
    assert "help: import alpha first, or start Python with GOMP_SPINCOUNT=3000" in told


@pytest.mark.torch
@pytest.mark.parametrize("variables", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"},
                                       {"ALPHA_NUM_THREADS": "1"}], ids=str)
def test_nothing_is_said_where_the_user_has_decided_or_nobody_waits(variables: dict[str, str]) -> None:
    assert "Warning" not in run("import torch, alpha" + STEP, **variables)


@pytest.mark.torch
@pytest.mark.parametrize("module", ["inference", "sparsity", "coconv", "conv_pool", "loader", "step_worker"])
def test_a_benchmark_of_both_libraries_lets_neither_spin(module: str) -> None:
    run(f"import benchmarks.{module}, torch; from alpha.core import openmp; assert not openmp._late")
