"""Ranks that share a GPU: their tensors travel through host memory and MPI (tests/dist/staged.py)."""

from __future__ import annotations

import pytest

from tests.cuda.process import EMULATED
from tests.dist import launch

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(bool(launch.MISSING), reason=launch.WHY)]


def test_two_ranks_on_one_gpu_compute_the_gradients_of_the_whole_batch() -> None:
    ended = launch.run(2, "tests.dist.staged", *(["--emulated"] if EMULATED else []), timeout_s=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("ends well") == 2 and "ranks share a GPU" in ended.stdout
