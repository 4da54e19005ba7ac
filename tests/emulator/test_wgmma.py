"""Matrix instructions of Hopper in every width, layout and sign, with A in registers; ldmatrix and stmatrix."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.toolchain import EmulatedToolchain
from tests.emulator import cases
from tests.emulator.harness import STORED, integers
from tests.emulator.runner import Problem, Runner

pytestmark = pytest.mark.emulator
RUN = {False: Runner(EmulatedToolchain()), True: Runner(EmulatedToolchain(checked=True))}
both = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
kinds = pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])


def result(problem: Problem, checked: bool) -> np.ndarray:
    return RUN[checked](problem)[0]


@both
@kinds
@pytest.mark.parametrize("source", ["ss", "rs"])
def test_every_width(source: str, kind: str, checked: bool) -> None:
    k = 8 if kind == "tf32" else 16
    a, b = integers(64, k), integers(256, k)
    d = result(cases.wgmma_widths(kind, source, STORED[kind](a), STORED[kind](b)), checked)
    for n, got in zip(cases.WIDTHS, d):
        assert np.array_equal(got[:, :n], 2 * a @ b[:n].T) and not got[:, n:].any(), n


@both
@kinds
def test_every_layout(kind: str, checked: bool) -> None:
    k = 16 if kind == "tf32" else 32
    a, b = integers(64, k), integers(128, k)
    for layout in cases.majors_and_spans(kind):
        problem = cases.wgmma_layout(kind, STORED[kind](a), STORED[kind](b), *layout)
        assert np.array_equal(result(problem, checked), a @ b.T), problem.name


@both
def test_every_sign(checked: bool) -> None:
    a, b = integers(64, 16), integers(64, 16)
    d = result(cases.wgmma_signs(STORED["f16"](a), STORED["f16"](b)), checked)
    ab = a @ b.T
    assert np.array_equal(d, [ab, -ab, -ab, ab])


@both
def test_ldmatrix_and_stmatrix(checked: bool) -> None:
    problem = cases.matrix_moves(0)
    for got, expected in zip(RUN[checked](problem), cases.expected_moves(problem)):
        assert np.array_equal(got.ravel(), expected.ravel())
