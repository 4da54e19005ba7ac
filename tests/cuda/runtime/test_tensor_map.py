"""Tensor maps: side by side, by value or in memory, refused with a reason; kernels that use them test what they say."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.errors import AlphaError

pytestmark = pytest.mark.cuda


def test_maps_lie_one_behind_the_other(device):
    from alpha.cuda.runtime.memory import empty
    from alpha.cuda.runtime.tensor_map import tensor_maps
    x, dims, boxes = empty((2, 3, 3, 16), "float16"), (16, 3, 3, 2), ((16, 1, 1, 2), (8, 1, 1, 1))
    both, *alone = (tensor_maps(x.ptr, x.dtype, [dims] * len(some), some, (32, 96, 288))
                    for some in (boxes, boxes[:1], boxes[1:]))
    assert len(both) == 2 * 128
    assert both == b"".join(alone) and alone[0] != alone[1]


@pytest.mark.parametrize("count", [1, 4, 5])
def test_up_to_four_maps_are_an_argument_and_more_lie_in_memory(device, count):
    from alpha.cuda.runtime.memory import download
    from alpha.cuda.runtime.tensor_map import maps_argument
    maps = bytes(range(128)) * count
    few, more = maps_argument(maps)
    assert len(few) == 112 + 4 * 128
    if count <= 4:
        assert few.startswith(bytes(112) + maps) and more is None
    else:
        assert bytes(download(more, np.uint8)) == maps


def test_what_the_driver_refuses_is_named(device):
    from alpha.cuda.runtime.memory import empty
    from alpha.cuda.runtime.tensor_map import tensor_maps
    x = empty((4, 12), "float16")
    with pytest.raises(AlphaError, match=r"(?s)tensor_maps: the driver refuses it with error \d+ .*strides: \(24,\)"
                                         r".*help: addresses and strides are multiples of 16 bytes"):
        tensor_maps(x.ptr, x.dtype, [(12, 4)], [(8, 4)], (24,))
