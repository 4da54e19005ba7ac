"""Orders of axes: what a reshape needs and makes, against NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from alpha.interop.pytorch import layout

pytestmark = pytest.mark.same_without_kernels("networks of PyTorch are compared with the kernels")


def shapes(rng: np.random.Generator, count: int) -> list[int]:
    """Returns a random shape of `count` elements."""
    found = []
    while count > 1:
        factor = int(rng.choice([d for d in range(2, count + 1) if count % d == 0]))
        found.append(factor)
        count //= factor
    for _ in range(int(rng.integers(0, 3))):
        found.insert(int(rng.integers(0, len(found) + 1)), 1)
    return found[:5] + [prod(found[5:])] if len(found) > 5 else found or [1]


@pytest.mark.parametrize("seed", range(200))
def test_a_reshape_in_any_order_of_axes_is_that_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([1, 2, 6, 12, 24, 60]))
    old, new = shapes(rng, count), shapes(rng, count)
    order = tuple(int(k) for k in rng.permutation(len(old)))
    x = rng.integers(0, 99, old)
    ours = x.transpose(order)
    how = layout.reshape(order, old, new)
    assert sorted(how.before) == list(range(len(old))) and sorted(how.after) == list(range(len(new)))
    turned = x.transpose(how.before) if how.permutes else ours
    made = turned.reshape([new[k] for k in how.after])
    assert np.array_equal(made, x.reshape(new).transpose(how.after))


@pytest.mark.parametrize("order, old, new, permutes", [
    ((0, 2, 3, 1), (2, 8, 4, 4), (2, 8, 16), False),            # tokens of a map: (N, H * W, C) lies so already
    ((0, 2, 3, 1), (2, 8, 4, 4), (2, 2, 4, 4, 4), False),       # groups of channels
    ((0, 2, 3, 1), (2, 8, 1, 1), (2, 8), False),
    ((0, 2, 3, 1), (2, 8, 4, 4), (2, 128), True),
    ((0, 1), (2, 128), (2, 8, 4, 4), False)])
def test_a_reshape_moves_elements_only_where_it_must(order, old, new, permutes) -> None:
    assert layout.reshape(order, old, new).permutes is permutes


def test_a_flattened_map_says_which_axes_it_is_made_of() -> None:
    assert layout.reshape((0, 2, 3, 1), (2, 8, 4, 5), (2, 160)).flat == (2, 3, 1)
    assert layout.reshape((0, 1), (2, 8), (16,)).flat == ()


def test_shapes_of_other_numbers_of_elements_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in their numbers of elements"):
        layout.reshape((0, 1), (2, 3), (7,))


@pytest.mark.parametrize("order, ndim, whole", [
    ((0, 1), 4, (0, 2, 3, 1)), ((0, 2, 3), 4, (0, 2, 3, 1)), ((0, 1, 2, 3), 4, (0, 1, 2, 3)), ((1, 0), 3, (2, 1, 0))])
def test_axes_of_one_element_are_put_where_a_map_has_them(order, ndim, whole) -> None:
    found = layout.with_ones(order, ndim)
    assert sorted(found) == list(range(ndim))
    assert found == whole or (len(order) == 2 and order == (1, 0) and layout.agrees(order, found))
