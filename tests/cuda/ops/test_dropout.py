"""Dropout in CUDA: the masks are the CPU's, bit for bit, wherever they begin in the stream."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha.ops.dropout import keyed_dropout
from tests.cuda.agree import Case, agree, ints

pytestmark = pytest.mark.cuda

FLOATS = ("float32", "bfloat16", "float16")
SEED = 0x0123456789ABCDEF

CASES = [
    *[Case("keyed_dropout", ints(n), p=0.5, seed=SEED, offset=offset, exact=True, dtypes=FLOATS)
      for n in (0, 1, 3, 8, 4099) for offset in (0, 4, 1, 2, 3, (1 << 34) - 3)],
    *[Case("keyed_dropout", ints(7, 45), p=p, seed=3, offset=8, exact=True, dtypes=FLOATS) for p in (0.75, 1, 0.0)],
    Case("keyed_dropout", ints(999), p=0.1, seed=(1 << 64) - 1, offset=0, rtol=2e-7),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case: Case) -> None:
    agree(case)


def test_what_is_dropped_is_zero_even_if_it_was_no_number() -> None:
    x = np.full(4096, np.nan, np.float32)
    y = keyed_dropout(alpha.tensor(x, device="cuda"), p=0.5, seed=1, offset=0).numpy()
    assert 1900 < (y == 0).sum() < 2200 and np.isnan(y[y != 0]).all()


def test_parts_of_the_stream_are_those_of_the_whole() -> None:
    x = np.ones(100, np.float32)
    whole = keyed_dropout(alpha.tensor(x, device="cuda"), p=0.25, seed=9, offset=0).numpy()
    part = keyed_dropout(alpha.tensor(x[:63], device="cuda"), p=0.25, seed=9, offset=37).numpy()
    np.testing.assert_array_equal(part, whole[37:])
