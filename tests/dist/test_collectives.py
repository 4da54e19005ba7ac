"""Collectives, DataParallel, SyncBatchNorm and slices on 2 and 4 ranks of the CPU: tests/dist/checks.py runs there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from alpha import dist
from tests.dist import checks, launch

pytestmark = pytest.mark.same_without_kernels("ranks are what is tested")

SIZES = (2, 4)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What the checks have found, by number of ranks: all of them run under one mpirun each."""
    if launch.MISSING:
        pytest.skip(launch.WHY)
    folder: Path = tmp_path_factory.mktemp("ranks")
    outcome = {}
    for size in SIZES:
        ended = launch.run(size, "tests.dist.checks", str(folder / f"{size}.json"))
        assert ended.returncode == 0, ended.stderr[-3000:]
        outcome[size] = json.loads((folder / f"{size}.json").read_text())
    return outcome


@pytest.mark.parametrize("size, name", [(size, name) for size in SIZES for name in checks.names(size)])
def test_on_ranks(found: dict[int, Any], name: str, size: int) -> None:
    assert found[size]["outcome"][name] == ""


@pytest.mark.parametrize("precision, first, rest", [("fp32", 1e-5, 1e-3), ("float64", 1e-9, 1e-9), ("fp16", 1e-3, 1e-2)])
def test_losses_on_any_number_of_ranks_agree(found: dict[int, Any], precision: str, first: float, rest: float) -> None:
    alone, _ = checks.trained(dist.world(), precision)
    for size in SIZES:
        losses = found[size]["results"][precision]
        assert abs(losses[0] - alone[0]) <= first
        assert max(abs(a - b) for a, b in zip(losses, alone)) <= rest


def test_slices_give_the_same_bits_on_any_number_of_ranks(found: dict[int, Any]) -> None:
    losses, checksum = checks.trained(dist.world(), "fp32", dist.Slices(8))
    for size in SIZES:
        assert found[size]["results"]["slices"] == [losses, checksum]
