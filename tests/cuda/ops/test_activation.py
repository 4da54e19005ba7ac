"""Activations and softmax in CUDA against the CPU's: tails, extreme values, every axis, short and long rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.agree import Case, agree, floats, ints

pytestmark = pytest.mark.cuda

FLOATS = ("float32", "bfloat16", "float16")
LINEAR = dict(relu={}, relu6={}, leaky_relu=dict(slope=0.25))
SMOOTH = dict(sigmoid={}, tanh={}, silu={}, gelu={}, elu=dict(alpha=1.5), softplus={}, hardswish={})
EXTREME = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0, 3.0, -3.0, 6.0, 1e-4, -1e-4], np.float32)
LARGE = 2 * 4096 + 5
# Shape and axis: the last one with and without whole packets, a row of several warps, others, lengths of 1.
AXES = [((5, 16), -1), ((9, 10), 1), ((3, 1500), -1), ((2, 1031), -1), ((4, 7, 5), 1), ((6, 40), 0), ((3, 1), -1),
        ((1, 3), 0), ((7,), 0), ((2, 3, 2, 4), -3), ((0, 3), -1), ((3, 0, 2), 0), ((300, 3), 0), ((2, 2048), 1)]


def along(*shape: int, seed: int = 0) -> np.ndarray:
    return floats(*shape, seed=seed, low=-5, high=5)


CASES = [
    *[Case(name, ints(n, low=-9, high=10), **attrs, exact=True, dtypes=FLOATS) for name, attrs in LINEAR.items()
      for n in (0, 1, 13, LARGE)],
    *[Case(f"{name}_grad", ints(n), ints(n, seed=1, low=-2, high=9), **attrs, exact=True, dtypes=FLOATS)
      for name, attrs in LINEAR.items() for n in (1, 13, LARGE)],
    *[Case(name, EXTREME, **attrs, exact=True) for name, attrs in LINEAR.items()],
    *[Case(f"{name}_grad", ints(EXTREME.size, low=1), EXTREME, **attrs, exact=True, dtypes=FLOATS)
      for name, attrs in LINEAR.items()],
    *[Case(name, floats(n, low=-6, high=6), **attrs, rtol=4e-6, atol=1e-6, dtypes=FLOATS)
      for name, attrs in SMOOTH.items() for n in (1, 13, 4099)],
    *[Case(name, EXTREME, **attrs, dtypes=FLOATS) for name, attrs in SMOOTH.items()],
    *[Case(f"{name}_grad", floats(n), floats(n, seed=1, low=-6, high=6), **attrs, rtol=4e-6, atol=2e-6, dtypes=FLOATS)
      for name, attrs in SMOOTH.items() for n in (1, 13, 2051)],
    *[Case(f"{name}_grad", floats(EXTREME.size), EXTREME, **attrs) for name, attrs in SMOOTH.items()],
    Case("hardswish_grad", ints(13), np.arange(-6, 7, dtype=np.float32), atol=1e-6),
    *[Case(name, along(*shape), axis=axis, rtol=5e-6, atol=2e-6, dtypes=FLOATS) for name in ("softmax", "log_softmax")
      for shape, axis in AXES],
    *[Case("softmax_grad", along(*shape), floats(*shape, seed=1, low=0, high=2 / max(1, shape[axis])), axis=axis,
           rtol=1e-5, atol=2e-6, dtypes=FLOATS) for shape, axis in AXES],
    *[Case("log_softmax_grad", floats(*shape), floats(*shape, seed=1, low=-6, high=0), axis=axis, rtol=1e-5, atol=5e-5)
      for shape, axis in AXES],
    *[Case(f"{name}_grad", ints(*shape), ints(*shape, seed=1, low=0, high=1), axis=axis, exact=True, dtypes=FLOATS)
      for name in ("softmax", "log_softmax") for shape, axis in AXES],
    *[Case(name, np.tile(np.array([values], np.float32).reshape(shape), (1, copies)), axis=axis, label=str(values))
      for name in ("softmax", "log_softmax")
      for values in ([-np.inf, -np.inf, 1.0, 2.0], [-np.inf] * 4, [np.inf, 1.0, 2.0, 3.0], [np.nan, 1.0, 2.0, 3.0],
                     [1.0, np.inf, np.inf, -np.inf], [1000.0, 999.0, -1000.0, 0.0], [-3e38, 3e38, 1.0, -np.inf])
      for shape, copies, axis in (((1, 4), 1, 1), ((4, 1), 3, 0))],
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case: Case) -> None:
    agree(case)
