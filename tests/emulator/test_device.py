"""The emulator gives the bits that an H100 gave.

h100_digests.json holds the digests of its results (compare_device.py record, then digest; 2026-11-21, driver for CUDA
13.0, nvcc 13.0.88): matrix instructions on random operands, alike and far apart in size, cancelling, beside large
accumulators, denormal. The problems of layouts, widths, tiles and clusters are compared where they have a digest.
"""

from __future__ import annotations

import json

import pytest

from emulator.toolchain import EmulatedToolchain
from tests.emulator.compare_device import DIGESTS, bits, digest, problems
from tests.emulator.runner import Problem, Runner

pytestmark = pytest.mark.emulator
EXPECTED = json.loads(DIGESTS.read_text())
PROBLEMS = problems()


@pytest.fixture(scope="module")
def run() -> Runner:
    return Runner(EmulatedToolchain())


def test_every_recorded_problem_is_there() -> None:
    assert set(EXPECTED) <= {problem.name for problem in PROBLEMS}


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.name in EXPECTED], ids=lambda problem: problem.name)
def test_bits_are_those_of_the_device(run: Runner, problem: Problem) -> None:
    assert digest(bits(run(problem))) == EXPECTED[problem.name]
