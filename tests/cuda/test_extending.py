"""A kernel that is edited and declared again, in the same file or the same notebook, is the new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from alpha.core.op import registry
from alpha.testing import Case, agree, floats

pytestmark = pytest.mark.cuda

CELL = '''
from alpha.core.op import op
from alpha.cuda.ops.pointwise import elementwise

@op
class scaled_by_me:
    """y = {factor} x."""
    args, saves = "x", ""
    def shape(x): return x.shape
    def vjp_x(g, s): return g * {factor}.0

@scaled_by_me.impl("cpu")
def scaled_by_me_cpu(x): return x * x.dtype.type({factor})

elementwise(scaled_by_me, source, "x")
'''


@pytest.fixture(autouse=True)
def ops_of_this_test() -> Iterator[None]:
    yield
    registry.pop("scaled_by_me", None)


def test_an_edited_kernel_replaces_the_one_before(tmp_path: Path) -> None:
    source = tmp_path / "scaled.cu"
    for factor in (2, 3):
        source.write_text(f'#include "elementwise.cuh"\n\nMAP1(scaled_by_me, x, {factor}.0f * x)\n')
        cell = compile(CELL.format(factor=factor), f"<cell {factor}>", "exec")
        exec(cell, {"__name__": "__main__", "source": source})
        agree(Case("scaled_by_me", floats(7, 33), exact=True))
    agree(Case("scaled_by_me", np.zeros((0, 3), np.float32)))
