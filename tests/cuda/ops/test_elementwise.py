"""Elementwise ops in CUDA against the CPU's: every op and dtype, tails, broadcasting, numbers, and the odd values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.op import op, registry
from alpha.cuda.ops.pointwise import bits_of, blocks, elementwise, filled
from alpha.cuda.runtime.memory import download
from alpha.errors import ShapeError
from alpha.ops.elementwise import clip_grad, transfer
from tests.cuda.agree import Case, agree, floats, ints

pytestmark = pytest.mark.cuda

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int32", "int64", "uint8")
LARGE = 2 * 4096 + 3  # several blocks, and a tail
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 4.0, -4.0], np.float32)
PAIRS = [np.repeat(ODD, ODD.size), np.tile(ODD, ODD.size)]
# Pairs of shapes: trailing vectors with and without whole packets, columns, outer products, one element, none.
SHAPES = [((3, 5), (5,)), ((40, 16), (16,)), ((7, 8), (7, 1)), ((6, 1), (1, 24)), ((2, 3, 4, 8), (2, 1, 1, 8)),
          ((5,), ()), ((1,), (1, 1)), ((9, 1, 2), (3, 1)), ((2, 1, 3, 1, 2, 1), (1, 2, 1, 3, 1, 2)), ((0, 4), (4,)),
          ((19,), (1,)), ((130, 33), (33,))]
SIGNS, LARGER = ("neg", "abs", "sign"), ("maximum", "minimum")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
WHOLE = ("add", "sub", "mul", *LARGER)  # of two tensors of any numbers


def whole(*shape: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Integers over the whole range of the dtype."""
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def mask(*shape: int, seed: int = 0) -> np.ndarray:
    return ints(*shape, seed=seed, low=0, high=2, dtype="bool")


CASES = [
    *[Case(name, ints(LARGE), exact=True, dtypes=FLOATS) for name in SIGNS],
    *[Case(name, whole(333, dtype=dtype), exact=True) for name in SIGNS for dtype in INTEGERS],
    *[Case(name, ODD, exact=True, dtypes=FLOATS) for name in (*SIGNS, "sqrt")],
    *[Case(name, ODD, dtypes=FLOATS) for name in ("exp", "log", "erf")],
    *[Case(name, floats(n), dtypes=FLOATS) for name in ("exp", "erf") for n in (1, 7, 1029)],
    *[Case(name, floats(n, low=0.01), dtypes=FLOATS) for name in ("log", "sqrt") for n in (8, 1029)],
    Case("erf", floats(), dtypes=FLOATS),
    *[Case(name, floats(n), dtypes=FLOATS, atol=1e-6) for name in ("sin", "cos") for n in (7, 1029)],
    *[Case("floor", x, exact=True, dtypes=FLOATS) for x in (ODD, floats(1029))],
    *[Case("floor", whole(77, dtype=dtype), exact=True) for dtype in INTEGERS],
    *[case for name in ("floor_divide", "remainder") for case in (
        Case(name, *PAIRS, exact=True, dtypes=FLOATS), Case(name, ints(40, 16), 0.75, exact=True),
        Case(name, 1e7 * floats(1029), floats(1029, seed=1), exact=True),
        *[Case(name, whole(777, dtype=dtype), ints(777, low=0 if dtype == "uint8" else -4, dtype=dtype), exact=True)
          for dtype in INTEGERS])],
    Case("exp", floats(3, 0)),

    *[Case(name, ints(*a), ints(*b, seed=1), exact=True, dtypes=FLOATS) for name in WHOLE for a, b in SHAPES],
    *[Case("add", ints(*b), ints(*a, seed=1), exact=True, dtypes=FLOATS) for a, b in SHAPES],
    *[Case(name, ints(LARGE), ints(LARGE, seed=1), exact=True, dtypes=FLOATS) for name in ("add", "mul", "lt")],
    *[Case(name, *PAIRS, exact=True, dtypes=FLOATS) for name in (*WHOLE, "div", *COMPARISONS)],
    *[Case(name, whole(77, dtype=dtype), whole(77, dtype=dtype, seed=1), exact=True) for dtype in INTEGERS
      for name in (*WHOLE, *COMPARISONS)],
    *[Case(name, ints(5, 12, low=0, dtype=dtype), ints(12, low=0, seed=1, dtype=dtype), exact=True)
      for dtype in INTEGERS for name in ("sub", "maximum", "le", "gt", "eq")],
    *[Case(name, ints(33, low=0, dtype=dtype), 3, exact=True) for dtype in INTEGERS for name in (*WHOLE, *COMPARISONS)],
    *[Case(name, 3, ints(33, low=0, dtype=dtype), exact=True) for dtype in INTEGERS for name in ("sub", "lt", "ge")],
    *[Case(name, ints(2, 33), 1.5, exact=True, dtypes=FLOATS) for name in (*WHOLE, *COMPARISONS)],
    *[Case(name, 2, ints(2, 33), exact=True, dtypes=FLOATS) for name in (*WHOLE, *COMPARISONS)],
    *[Case(name, mask(9), mask(9, seed=1), exact=True) for name in ("eq", "ne")],
    *[Case("eq", mask(9), number, exact=True) for number in (True, 0, 256, -1)],
    Case("add", np.array([1.0, -np.inf], np.float32), 1e300, exact=True),

    Case("div", floats(4, 20), floats(20, seed=1, low=0.5), dtypes=FLOATS),
    Case("div", 1, floats(99, low=0.1), rtol=1e-7),
    Case("pow", floats(4, 20, low=0.1), floats(20, seed=1), dtypes=FLOATS),
    Case("pow", ints(41), 2, exact=True, dtypes=FLOATS),
    Case("pow", floats(41), 1, exact=True),
    Case("pow", *PAIRS),
    Case("pow", floats(30, low=0.1), 0.5),
    Case("pow", 2.0, ints(30), exact=True, dtypes=FLOATS),

    *[Case("clip", ints(LARGE), **limits, exact=True, dtypes=FLOATS)
      for limits in (dict(low=-2, high=2.5), dict(low=0), dict(high=1))],
    *[Case("clip", ints(33, low=0, dtype=dtype), **limits, exact=True) for dtype in INTEGERS
      for limits in (dict(low=1, high=2), dict(low=2), dict(high=3))],
    *[Case("clip", ODD, **limits, exact=True, dtypes=FLOATS)
      for limits in (dict(low=-1, high=1), dict(low=1), dict(high=-1))],
    *[Case("clip_grad", ints(ODD.size), ODD, low=low, high=high, exact=True, dtypes=FLOATS)
      for low, high in ((-1, 1), (None, 1), (0, None))],

    *[Case("cast", ints(LARGE, low=0, dtype=dtype), dtype=to, exact=True) for dtype in (*INTEGERS, "float32")
      for to in ("float32", "float16", *INTEGERS, "bool")],
    *[Case("cast", mask(35), dtype=to, exact=True) for to in ("float32", "float16", *INTEGERS, "bool")],
    *[Case("cast", floats(97, low=-100, high=100), dtype=to, exact=True)
      for to in ("float16", "int32", "int64", "bool")],
    *[Case("cast", ODD, dtype=to, exact=True) for to in ("float16", "bool")],
    Case("cast", np.array([1e6, -1e6, 65504, 1e-8], np.float32), dtype="float16", exact=True),

    Case("transfer", ints(3, 5), device="cuda", source="cuda", exact=True, dtypes=FLOATS),
    Case("transfer", ints(3, 5), device="cpu", source="cuda", exact=True),

    *[Case("where", mask(*a), ints(*b, seed=1, dtype=dtype), ints(*a, seed=2, dtype=dtype), exact=True)
      for dtype in ("float32", "int64") for a, b in SHAPES],
    *[Case("where", mask(*a), ints(*b, seed=1), -1.5, exact=True, dtypes=FLOATS) for a, b in SHAPES],
    *[Case("where", mask(17), 1, ints(17, low=0, dtype=dtype), exact=True) for dtype in INTEGERS],
    Case("where", mask(17), ints(17, low=-1, high=0, dtype="int64"), -7, exact=True),
    Case("where", mask(LARGE), mask(LARGE, seed=1), False, exact=True),
    *[Case("where", mask(5), number, ints(5), exact=True, dtypes=FLOATS) for number in (np.inf, np.nan, -0.0)],
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case: Case) -> None:
    agree(case)


def on_gpu(a: object, dtype: str | None = None) -> alpha.Tensor:
    return alpha.tensor(a, dtype, device="cuda")


def test_zeros_keep_their_signs() -> None:
    zeros = on_gpu(np.array([0.0, -0.0], np.float32))
    for y, signs in ((-zeros, [True, False]), (abs(zeros), [False, False]), (ops.sign(zeros), [False, False]),
                     (zeros + 0.0, [False, False]), (zeros * -1.0, [True, False]),
                     (zeros.astype("bfloat16"), [False, True]), (zeros.clip(-1, 1), [False, True]),
                     (ops.where(zeros < 0, 1.0, -0.0 + zeros), [False, True])):
        np.testing.assert_array_equal(np.signbit(y.numpy()), signs)


def test_a_number_beyond_the_dtype_is_infinite() -> None:
    x = on_gpu(np.array([3e38, np.inf], np.float32))
    np.testing.assert_array_equal((x < 1e300).numpy(), [True, False])
    np.testing.assert_array_equal((x > -1e300).numpy(), [True, True])
    np.testing.assert_array_equal((x == 1e300).numpy(), [False, True])


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_number_equals_itself_where_it_is_stored(dtype: str) -> None:
    x = ops.full((5,), 0.1, dtype, "cuda")
    assert (x == 0.1).numpy().all() and (x >= 0.1).numpy().all() and not (x < 0.1).numpy().any()
    np.testing.assert_array_equal(clip_grad(x, x, 0.1, 0.1).numpy(), x.numpy())
    third = (on_gpu([1.0, 2.0], dtype) * (1 / 3)).numpy()  # in arithmetic it is not rounded to the dtype first
    expected = on_gpu(np.array([1 / 3, 2 / 3], np.float32), dtype).numpy()
    np.testing.assert_array_equal(third, expected)


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, "bool"))
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2 ** 15 + 7,)])
def test_full(shape: tuple[int, ...], dtype: str) -> None:
    for value in (0, 1, 2.75) + ((np.inf, -np.inf, np.nan, 1e300, -0.0) if dtype in FLOATS else ()):
        x = filled(shape, value, dtype)
        got = ops.cast(alpha.Tensor(x, shape, dtype, "cuda"), dtype="float32").numpy()
        with np.errstate(over="ignore"):
            expected = np.full(shape, value, "float32" if dtype == "bfloat16" else dtype).astype(np.float32)
        np.testing.assert_array_equal(got, expected)
        assert np.signbit(got).all() == np.signbit(expected).all()


def test_negative_integers_are_filled_in() -> None:
    for dtype in ("int32", "int64"):
        assert download(filled((3,), -5, dtype), dtype).tolist() == [-5] * 3


def test_bits_of_bfloat16_round_to_nearest_even() -> None:
    values = [1.0, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, -3.0, 3.4e38, np.inf]
    bits = [bits_of(v, "bfloat16") for v in values]
    assert bits == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC040, 0x7F80, 0x7F80] and bits_of(np.nan, "bfloat16") == 0x7FC0
    stored = on_gpu(np.array(values, np.float32), "bfloat16").numpy().view(np.uint32) >> 16
    assert stored.tolist() == bits


@pytest.mark.parametrize("dtype", ("float32", "float16", *INTEGERS, "bool"))
def test_transfer_there_and_back(dtype: str) -> None:
    a = ints(3, 50, low=0, dtype=dtype)
    x = alpha.tensor(a).to("cuda")
    copy = transfer(x, "cuda", "cuda")
    assert (x.device, copy.device) == ("cuda", "cuda") and copy.array.ptr != x.array.ptr
    for y in (x.cpu(), copy.cpu()):
        assert y.device == "cpu" and y.dtype == dtype
        np.testing.assert_array_equal(y.numpy(), a)


def test_transfer_is_differentiable() -> None:
    x = alpha.tensor(ints(4), requires_grad=True)
    (x.to("cuda") * 3.0).cpu().sum().backward()
    assert x.grad is not None and x.grad.device == "cpu"
    np.testing.assert_array_equal(x.grad.numpy(), np.full(4, 3, np.float32))


def test_broadcasting_with_too_many_axes_says_so() -> None:
    a = on_gpu(np.zeros((2, 1) * 4, np.float32))
    b = on_gpu(np.zeros((1, 2) * 4, np.float32))
    with pytest.raises(ShapeError, match=r"add: 8 axes are left .* has room for 6 \(sizes: .*\)\nhelp: "):
        a + b


def test_blocks_cover_all_elements() -> None:
    assert [blocks(n, 4, 4) for n in (0, 1, 4096, 4097)] == [0, 1, 1, 2]


@pytest.fixture
def my_op():
    @op
    class scaled_square:
        """y = x^2 + shift * x."""

        args = "x"

        def shape(x, *, shift, unused=0.0):
            return x.shape

    yield scaled_square
    del registry["scaled_square"]


def test_a_line_of_cuda_is_an_op(my_op, tmp_path: Path) -> None:
    path = tmp_path / "scaled_square.cu"
    path.write_text('#include "elementwise.cuh"\n\nMAP1(scaled_square, x, x * x + shift * x, float shift)\n')
    elementwise(my_op, path, "x", shift="f32")
    a = ints(3, 7)
    for dtype in FLOATS:
        y = my_op(on_gpu(a, dtype), shift=2.0)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.numpy(), a * a + 2 * a)


def test_two_operands_of_an_op_of_ones_own(tmp_path: Path) -> None:
    @op
    class weighted:
        """y = a - rate * b + bias."""

        args = "a b"

        def shape(a, b, *, bias, rate):
            return a.shape

    try:
        path = tmp_path / "weighted.cu"
        macro = "MAP2(weighted, a, b, a - rate * b + bias, float rate, float bias)"
        path.write_text(f'#include "elementwise.cuh"\n{macro}\n')
        elementwise(weighted, path, "a b", rate="f32", bias="f32")
        a, b = ints(5, 9), ints(5, 9, seed=1)
        np.testing.assert_array_equal(weighted(on_gpu(a), on_gpu(b), bias=1.0, rate=2.0).numpy(), a - 2 * b + 1)
    finally:
        del registry["weighted"]
