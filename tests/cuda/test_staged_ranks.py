"""Ranks that share a GPU: their tensors travel through host memory and MPI (tests/dist/staged.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from alpha import checkpoint
from tests.cuda.process import EMULATED
from tests.dist import launch

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(bool(launch.MISSING), reason=launch.WHY)]


def test_two_ranks_on_one_gpu_compute_the_gradients_of_the_whole_batch() -> None:
    ended = launch.run(2, "tests.dist.staged", *(["--emulated"] if EMULATED else []), timeout_s=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("ends well") == 2 and "ranks share a GPU" in ended.stdout


def test_a_run_of_two_ranks_on_one_gpu_is_that_of_one_and_exact_slices_have_its_bits(tmp_path: Path) -> None:
    flags = [str(tmp_path), *(["--emulated"] if EMULATED else [])]
    alone = subprocess.run([sys.executable, "-m", "tests.dist.on_gpu", *flags], cwd=launch.ROOT, capture_output=True,
                           text=True, env=launch.environment(), timeout=600)
    assert alone.returncode == 0, alone.stderr[-3000:]
    ended = launch.run(2, "tests.dist.on_gpu", *flags, timeout_s=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for name in ("exact", "plain"):
        one, two = (checkpoint.load(tmp_path / f"{name}-{size}" / "last.safetensors")[0] for size in (1, 2))
        for key, t in one.items():
            a, b = t.numpy(), two[key].numpy()
            same = a.tobytes() == b.tobytes() if name == "exact" else np.allclose(a, b, rtol=1e-4, atol=1e-5)
            assert same, (name, key)
