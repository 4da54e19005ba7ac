"""The emulator's matrix instructions give the bits that an H100 gave.

h100_digests.json holds the digests of its results (compare_device.py record, then digest; 2026-11-21, driver for CUDA
13.0, nvcc 13.0.88): random operands, alike and far apart in size, cancelling, beside large accumulators, denormal.
"""

from __future__ import annotations

import json

import pytest

from tests.emulator.compare_device import Runner, digest, problems
from tests.emulator.toolchain import HERE, EmulatedToolchain

pytestmark = pytest.mark.emulator
EXPECTED = json.loads((HERE / "h100_digests.json").read_text())
PROBLEMS = list(problems())


@pytest.fixture(scope="module")
def run() -> Runner:
    return Runner(EmulatedToolchain())


def test_every_recorded_problem_is_there() -> None:
    assert [name for name, *_ in PROBLEMS] == list(EXPECTED)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p[0])
def test_bits_are_those_of_the_device(run: Runner, problem: tuple) -> None:
    name, *rest = problem
    assert digest(run(*rest)) == EXPECTED[name]
