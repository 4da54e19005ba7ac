"""Every differentiable op on the GPU against the CPU in float64, over drawn shapes: values, both gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op_orders import orders
from tests.op_twins import Twin, drawn
from tests.op_twins_linalg import TWINS

pytestmark = pytest.mark.cuda
NEAR = 1e-4     # float32, through two gradients


@pytest.mark.parametrize("name", TWINS)
def test_as_on_the_cpu(name: str) -> None:
    def check(case: Twin) -> None:
        arrays = [a.astype(np.float32) for a in case.arrays]
        expected = orders(case.ours, [a.astype(np.float64) for a in arrays])
        for second in (True, False):
            for k, (found, right) in enumerate(zip(orders(case.ours, arrays, "cuda", second), expected)):
                assert found.shape == right.shape
                np.testing.assert_allclose(found, right, rtol=NEAR, atol=NEAR * (1 + np.abs(right).max(initial=0)),
                                           err_msg=f"result {k}")
    drawn(name, 3, check)
