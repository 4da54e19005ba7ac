"""The emulator gives the bits that an H100 gave.

h100_digests.json holds the digests of its results (compare_device.py record, then digest; 2026-11-21, driver for CUDA
13.0, nvcc 13.0.88): matrix instructions on random operands, alike and far apart in size, cancelling, beside large
accumulators, denormal; operands of wgmma in every layout and width; ldmatrix and stmatrix; tiles; clusters.
"""

from __future__ import annotations

import json

import pytest

from tests.emulator.compare_device import bits, digest, problems
from tests.emulator.runner import Problem, Runner
from tests.emulator.toolchain import HERE, EmulatedToolchain

pytestmark = pytest.mark.emulator
EXPECTED = json.loads((HERE / "h100_digests.json").read_text())
PROBLEMS = problems()


@pytest.fixture(scope="module")
def run() -> Runner:
    return Runner(EmulatedToolchain())


def test_every_recorded_problem_is_there() -> None:
    assert [problem.name for problem in PROBLEMS] == list(EXPECTED)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_bits_are_those_of_the_device(run: Runner, problem: Problem) -> None:
    assert digest(bits(run(problem))) == EXPECTED[problem.name]
