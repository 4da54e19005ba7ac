"""Movement of elements in CUDA against the CPU's: every size of element, every kernel, and empty and odd shapes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.ops import shape as cuda_shape
from alpha.errors import ShapeError
from alpha.ops.layout import merged
from alpha.ops.shape import slice_axes_grad
from tests.cuda.agree import Case, agree, floats, ints

pytestmark = pytest.mark.cuda

FLOATS = ("float32", "bfloat16", "float16")
DTYPES = ("float32", "float16", "int64", "uint8", "bool")  # 4, 2, 8, 1 and 1 bytes


def move(op: str, *shape: int, dtype: str = "", **attrs: object) -> list[Case]:
    """The op on an array of every size of element, or of one."""
    return [Case(op, ints(*shape, low=0, high=2 if name == "bool" else 100, dtype=name), exact=True, label=name,
                 **attrs) for name in ((dtype,) if dtype else DTYPES)]


def index(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ordered(*shape: int, dtype: str = "float32", **attrs: object) -> list[Case]:
    """argsort of numbers with many equal ones."""
    return [Case("argsort_rows", ints(*shape, low=0, dtype=dtype), exact=True, dtypes=FLOATS if dtype == "float32"
                 else ("float32",), label=dtype, descending=descending) for descending in (False, True)]


ODD_ROW = np.array([[1, np.nan, -np.inf, 0.0, -0.0, np.inf, np.nan, -2]], np.float32)
MANY = np.random.default_rng(0).integers(0, 11, 300)
CASES = [
    *[case for shape in ((3, 7), (1, 1), (40, 130), (2, 0)) for case in ordered(*shape)],
    *[case for dtype in ("int32", "int64", "uint8") for case in ordered(5, 33, dtype=dtype)],
    *[Case("argsort_rows", ODD_ROW, exact=True, dtypes=FLOATS, descending=descending) for descending in (False, True)],
    *[case for shape in ((4, 6), (2, -1), (-1,), (24, 1)) for case in move("reshape", 2, 3, 4, shape=shape)],
    Case("reshape", ints(3, 0), shape=(0, 7), exact=True),
    # permute: unchanged, transposed tiles (with and without a batch), narrow ones, whole packets, anything
    *[case for axes in ((0, 1, 2), (0, 2, 1), (-1, 0, 1)) for case in move("permute", 3, 40, 70, axes=axes)],
    *move("permute", 65, 130, axes=(1, 0)),
    *move("permute", 64, 64, axes=(1, 0)),
    *move("permute", 300, 3, axes=(1, 0)),
    *move("permute", 2, 5, 7, 33, axes=(0, 3, 1, 2)), *move("permute", 2, 33, 5, 7, axes=(0, 2, 3, 1)),
    *move("permute", 3, 5, 32, axes=(1, 0, 2)), *move("permute", 3, 5, 3, axes=(1, 0, 2)),
    *[Case("permute", ints(2, 3, 4, 5), axes=axes, exact=True) for axes in permutations(range(4))],
    *move("permute", 2, 1, 3, 1, axes=(3, 2, 1, 0)),
    *move("permute", 0, 3, axes=(1, 0)),
    Case("permute", ints(), axes=(), exact=True),
    Case("permute", ints(2, 3, 2, 3, 2, 3), axes=(5, 3, 1, 4, 2, 0), exact=True),
    *[case for axis in (None, 0, -1, (0, 2), 1) for case in move("flip", 3, 5, 8, axis=axis)],
    *move("flip", 2, 0, axis=1), Case("flip", ints(), axis=None, exact=True),
    *move("expand", 3, 1, 5, shape=(2, 3, 4, 5)),
    *move("expand", 1, 16, shape=(9, -1)),
    *move("expand", 4, 1, shape=(4, 7)),
    *move("expand", 4, 3, shape=(1, 4, 3)),
    *move("expand", 1, 3, shape=(0, 3)),
    Case("expand", ints(), shape=(1100,), exact=True),
    *[Case("concat", [ints(2, n, 4, seed=n, low=0, dtype=dtype) for n in (3, 1, 0, 4)], axis=1, exact=True, label=dtype)
      for dtype in ("float32", "int64", "uint8")],
    Case("concat", [ints(2, 3, n, seed=n) for n in (16, 5, 48)], axis=-1, exact=True, dtypes=FLOATS),
    Case("concat", [ints(7)], axis=0, exact=True),
    Case("concat", [ints(5, 1)], axis=1, exact=True),
    Case("concat", [ints(40, 1, seed=n) for n in range(9)], axis=1, exact=True, label="nine"),
    Case("concat", [ints(3, 8 * n + 8, 2, seed=n) for n in range(17)], axis=1, exact=True, label="seventeen"),
    Case("concat", [ints(3, 0), ints(3, 1)], axis=1, exact=True, label="one left"),
    Case("concat", [ints(3, 2, seed=1), ints(900, 2)], axis=0, exact=True),
    *[case for value in (0, 1) for case in move("pad", 3, 5, widths=((1, 2), (0, 3)), value=value)],
    Case("pad", ints(2, 8, 16), widths=((0, 0), (1, 1), (0, 0)), value=-2.5, exact=True, dtypes=FLOATS),
    Case("pad", ints(2, 3, dtype="int64"), widths=((1, 0), (0, 1)), value=-3, exact=True),
    Case("pad", ints(0, 3), widths=((1, 0), (0, 0)), value=1, exact=True),
    Case("pad", ints(), widths=(), value=0, exact=True),
    *[Case("pad", ints(*shape), widths=widths, value=value, exact=True, dtypes=FLOATS)
      for value, shape, widths in ((7, (3, 5, 36), ((0, 0), (0, 0), (0, 4))),
                                   (-1, (2, 4, 4, 8), ((0, 1), (2, 0), (1, 1), (0, 0))),
                                   (2, (3, 1, 2), ((0, 0), (2, 1), (0, 0))), (3, (2, 3, 2, 3, 2, 3), ((1, 0),) * 6))],
    *move("slice_axes", 6, 9, ranges=((1, 4, 1), (2, 5, 1))),
    *move("slice_axes", 6, 9, ranges=((5, 3, -2), (8, 9, -1))),
    *move("slice_axes", 6, 9, ranges=((0, 6, 1), (0, 9, 1)), shape=(6, 1, 9)),
    *move("slice_axes", 6, 32, ranges=((2, 3, 1), (16, 16, 1)), shape=(3, 16)),
    *move("slice_axes", 6, 32, ranges=((2, 3, 1), (3, 16, 1))),
    *move("slice_axes", 6, 33, ranges=((0, 3, 1), (0, 16, 1))),
    *move("slice_axes", 6, 9, ranges=((2, 1, 1), (3, 1, 1)), shape=()),
    *move("slice_axes", 6, 9, ranges=((0, 0, 1), (0, 9, 1))),
    *[Case("slice_axes_grad", ints(*[count for _, count, _ in ranges]), ranges=ranges, shape=(6, 32), exact=True,
           dtypes=FLOATS)
      for ranges in (((1, 4, 1), (2, 5, 1)), ((5, 3, -2), (30, 31, -1)), ((0, 6, 1), (0, 32, 1)),
                     ((0, 0, 1), (0, 32, 1)), ((2, 2, 3), (8, 16, 1)))],
    *[Case("take", ints(11, *rest, low=0, high=2, dtype=dtype), index(10, 0, 3, 3, 7), exact=True, label=dtype)
      for dtype in DTYPES for rest in ((), (3,), (2, 16))],
    Case("take", ints(11, 6), MANY.reshape(30, 10), exact=True, dtypes=FLOATS),
    Case("take", ints(11, 6), index(3, 1).astype(np.int32), exact=True), Case("take", ints(11, 6), index(), exact=True),
    Case("take", ints(5, 0), index(1, 2), exact=True), Case("take", ints(5), np.array(3), exact=True),
    *[Case("take_grad", ints(300, *rest), MANY, rows=13, exact=True, dtypes=FLOATS)
      for rest in ((), (3,), (2, 70), (129,), (0,))],
    Case("take_grad", ints(3, 2, 5), index(3, 1, 3, 0, 3, 2).reshape(3, 2), rows=4, exact=True),
    Case("take_grad", ints(2, 5), index(1, 0).astype(np.int32), rows=3, exact=True),
    Case("take_grad", ints(0, 5), index(), rows=3, exact=True),
    Case("take_grad", ints(5), np.array(2), rows=9, exact=True),
    Case("take_grad", floats(300, 7), MANY, rows=11, rtol=1e-6, label="of terms of both signs"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case: Case) -> None:
    agree(case)


def test_the_permutations_take_the_kernels_they_should() -> None:
    def kernel(shape: tuple[int, ...], axes: tuple[int, ...], itemsize: int = 4) -> str:
        launch = cuda_shape._permutation(shape, axes, itemsize)[1]
        return launch.kernel.entry if launch else "none"

    assert kernel((8, 56, 56, 64), (0, 3, 1, 2)) == kernel((8, 64, 56, 56), (0, 2, 3, 1)) == "transpose_4"
    assert kernel((512, 512), (1, 0), 2) == "transpose_2"
    assert kernel((8, 32, 32, 3), (0, 3, 1, 2)) == "copy_box_4"
    assert kernel((4, 5, 64), (1, 0, 2)) == "copy_box_16" and kernel((4, 5, 64), (1, 0, 2), 1) == "copy_box_16"
    assert kernel((4, 1, 64), (1, 0, 2)) == "none"


@pytest.mark.long
def test_units_of_copied_boxes_are_aligned() -> None:
    def unit(rows: int, first: int, count: int, write: bool) -> str:
        return cuda_shape.part("slice_axes", (4, rows), ((0, 2, 1), (first, count, 1)), 4, write).kernel.entry

    boxes = ((16, 8, 4), (16, 2, 4), (16, 3, 4), (18, 8, 4), (17, 8, 4), (16, 8, 6))
    for write in (False, True):
        assert [unit(*box, write) for box in boxes] == [f"copy_box_{nbytes}" for nbytes in (16, 8, 4, 8, 4, 8)]


def test_a_padding_is_one_launch_of_the_largest_unit(launches: list[str]) -> None:
    x = alpha.ones((2, 3, 36), device="cuda")
    half = x.astype("bfloat16")
    del launches[:]
    for case, rows, columns in ((half, 0, 4), (x, 1, 4), (x, 1, 2)):
        ops.pad(case, ((0, 0), (rows, 0), (0, columns))).numpy()
    slice_axes_grad(x, ranges=((0, 2, 1), (0, 3, 1), (4, 36, 1)), shape=(2, 3, 44)).numpy()
    assert [entry for entry in launches if "cast" not in entry] == ["pad_8", "pad_16", "pad_8", "pad_16"]


def test_whole_slices_and_reshapes_share_their_elements() -> None:
    x = alpha.tensor(ints(4, 6), device="cuda")
    for y in (x.reshape(3, 8), x[:], x[None], x.permute(0, 1), x.expand(4, 6)):
        assert y.array.ptr == x.array.ptr


def test_axes_are_merged() -> None:
    assert merged((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == ((24,), [(1,), (1,)])
    assert merged((2, 3, 4), [(12, 4, 1), (0, 4, 1)]) == ((12, 2), [(1, 12), (1, 0)])
    assert merged((2, 1, 4), [(4, 0, 1)]) == ((8,), [(1,)])
    assert merged((1, 1), [(1, 1), (0, 0)]) == ((1,), [(1,), (1,)])


def test_a_permutation_of_too_many_axes_says_so() -> None:
    x = alpha.tensor(np.zeros((2,) * 8, np.float32), device="cuda")
    with pytest.raises(ShapeError, match=r"permute: 8 axes are left .* has room for 6"):
        x.permute(7, 6, 5, 4, 3, 2, 1, 0)


def test_indexing_end_to_end() -> None:
    a = ints(5, 6, 8)
    x = alpha.tensor(a, device="cuda")
    for key in ((slice(None, None, -1), 2), (1, ..., 3), (slice(1, 4), None, slice(None), slice(0, 8, 3)),
                [4, 0, 0, -1]):
        np.testing.assert_array_equal(x[key].numpy(), a[key])
    parts = ops.split(x, [2, 3, 3], 2)
    np.testing.assert_array_equal(ops.concat(parts, 2).numpy(), a)
