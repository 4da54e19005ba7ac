"""Tensor maps: made once, and refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.errors import AlphaError

pytestmark = pytest.mark.cuda


def test_a_map_is_made_once(device):
    from alpha.cuda.memory import empty
    from alpha.cuda.tensor_map import tensor_map
    x = empty((2, 3, 3, 16), "float16")
    made = tensor_map(x.ptr, x.dtype, (16, 3, 3, 2), (16, 1, 1, 2))
    assert made.nbytes == 128 and tensor_map(x.ptr, x.dtype, (16, 3, 3, 2), (16, 1, 1, 2)) is made
    assert tensor_map(x.ptr, x.dtype, (16, 3, 3, 2), (16, 1, 1, 1)) is not made


def test_strides_default_to_those_of_a_contiguous_tensor(device):
    from alpha.cuda.memory import download, empty
    from alpha.cuda.tensor_map import tensor_map
    x = empty((2, 3, 16), "bfloat16")
    maps = [tensor_map(x.ptr, x.dtype, (16, 3, 2), (16, 1, 2), strides=strides) for strides in (None, (32, 96))]
    assert np.array_equal(*(download(made, np.uint8) for made in maps))


def test_what_the_driver_refuses_is_named(device):
    from alpha.cuda.memory import empty
    from alpha.cuda.tensor_map import tensor_map
    x = empty((4, 12), "float16")
    with pytest.raises(AlphaError, match=r"(?s)tensor_map: the driver refuses it with error \d+ .*strides: \(24,\)"
                                         r".*help: addresses and strides are multiples of 16 bytes"):
        tensor_map(x.ptr, x.dtype, (12, 4), (8, 4))
