"""Markers, hypothesis profile, and two fixtures that every test shares: a fixed seed and both CPU implementations."""

from __future__ import annotations

import gc
import re
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

TESTS = Path(__file__).resolve().parent
WHOLE_FILES = ("cuda", "emulator", "kernels")  # no test has these marks but where its file names them
gc.disable()  # while tests are collected: thousands of objects are made, and none is garbage


def nothing_chosen(text: str, markexpr: str) -> bool:
    """Returns whether -m chooses no test of a file with this text.  Only "a and not b" is understood, of any length."""
    if "(" in markexpr or " or " in markexpr:
        return False
    own = re.findall(r"mark\.(\w+)", "".join(re.findall(r"^pytestmark = .*\n(?: .*\n)*", text, re.MULTILINE)))
    words = markexpr.split(" and ")
    return any(word[4:] in own if word.startswith("not ") else word in WHOLE_FILES and f"mark.{word}" not in text
               for word in words)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which -m chooses no test are not imported to know it, unless a file or folder of tests is asked for."""
    path, markexpr = collection_path, config.getoption("markexpr")
    args = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    if any(arg != TESTS and arg.is_relative_to(TESTS) and (path.is_relative_to(arg) or arg.is_relative_to(path))
           for arg in args):
        return None
    if path == TESTS / "cuda":
        return True if "not cuda" in markexpr else None
    return True if path.name.startswith("test_") and nothing_chosen(path.read_text(), markexpr) else None


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


BOTH_WAYS = pytest.mark.same_without_kernels("make test runs it both ways")


@pytest.fixture(params=[pytest.param(kind, marks=BOTH_WAYS) for kind in ("compiled", "numpy")])
def cpu_kernels(request: pytest.FixtureRequest):
    """Runs a test twice: with the compiled CPU kernels and with NumPy alone."""
    with config(cpu_kernels=request.param == "compiled"):
        if request.param == "compiled":
            from alpha.cpu import native
            if native.library() is None:
                pytest.skip("there are no compiled CPU kernels here (no C++ compiler?)")
        yield request.param
