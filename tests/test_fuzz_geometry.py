"""A short run of the fuzz target of geometries, and that it finds what it is for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from alpha import ops
from alpha.core.config import config
from tests.fuzz.geometry import attempt

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_random_geometries_agree_or_are_refused_twice(tmp_path: Path) -> None:
    ends = [attempt(random.Random(seed), tmp_path) for seed in range(300)]
    assert sum(end.endswith("results agree") for end in ends) > 150 and sum(": refused, " in end for end in ends) > 30


@pytest.mark.parametrize("wrong", ["value", "error"])
def test_it_finds_kernels_that_differ(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.softmax.impls["cpu"]

    def softmax(x: Any, **attrs: Any) -> Any:
        if config.cpu_kernels and wrong == "error":
            raise MemoryError
        return right(x, **attrs) * (1.001 if config.cpu_kernels else 1)

    monkeypatch.setitem(ops.softmax.impls, "cpu", softmax)
    with pytest.raises(AssertionError, match=r"rows .*(differs by|OutOfMemoryError)"):
        for seed in range(300):
            attempt(random.Random(seed), tmp_path)
