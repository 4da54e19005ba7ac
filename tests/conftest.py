"""Markers, hypothesis profile, and two fixtures that every test shares: a fixed seed and both CPU implementations."""

from __future__ import annotations

import gc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import alpha
from alpha.core.config import config
from alpha.core.op import registry

settings.register_profile("alpha", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("alpha")

for op in registry.values():
    op.checked = True  # what our own implementations return is looked at in tests alone

CUDA = Path(__file__).parent / "cuda"
gc.disable()  # while tests are collected: thousands of objects are made, and none is garbage


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """All in tests/cuda needs a GPU: where such tests are left out, the files need not be imported to know it."""
    left_out = collection_path == CUDA and "not cuda" in config.getoption("markexpr")
    explicit = any(Path(arg.partition("::")[0]).resolve().is_relative_to(CUDA) for arg in config.args)
    return True if left_out and not explicit else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The mark torch is the promise that a test is skipped where PyTorch is not installed."""
    if find_spec("torch") is None:
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


def pytest_collection_finish() -> None:
    """Keeps what is there by now, thousands of tests among it, out of the collections that many of them ask for."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same random numbers."""
    alpha.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(params=["compiled", "numpy"])
def cpu_kernels(request: pytest.FixtureRequest):
    """Runs a test twice: with the compiled CPU kernels and with NumPy alone."""
    with config(cpu_kernels=request.param == "compiled"):
        if request.param == "compiled":
            from alpha.cpu import native
            if native.library() is None:
                pytest.skip("there are no compiled CPU kernels here (no C++ compiler?)")
        yield request.param
