"""Tensor maps: side by side in memory, and refused with a reason; kernels that use them test what they say."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.errors import AlphaError

pytestmark = pytest.mark.cuda


def test_maps_lie_one_behind_the_other(device):
    from alpha.cuda.runtime.memory import download, empty
    from alpha.cuda.runtime.tensor_map import tensor_maps
    x, dims, boxes = empty((2, 3, 3, 16), "float16"), (16, 3, 3, 2), ((16, 1, 1, 2), (8, 1, 1, 1))
    both, *alone = (download(tensor_maps(x.ptr, x.dtype, [dims] * len(some), some, (32, 96, 288)), np.uint8)
                    for some in (boxes, boxes[:1], boxes[1:]))
    assert both.size == 2 * 128
    assert np.array_equal(both, np.concatenate(alone)) and not np.array_equal(*alone)


def test_what_the_driver_refuses_is_named(device):
    from alpha.cuda.runtime.memory import empty
    from alpha.cuda.runtime.tensor_map import tensor_maps
    x = empty((4, 12), "float16")
    with pytest.raises(AlphaError, match=r"(?s)tensor_maps: the driver refuses it with error \d+ .*strides: \(24,\)"
                                         r".*help: addresses and strides are multiples of 16 bytes"):
        tensor_maps(x.ptr, x.dtype, [(12, 4)], [(8, 4)], (24,))
