"""Elementwise ops on the GPU: a line here binds a line of a .cu file to its op; and what sets and converts elements.

    elementwise(exp, path, "x")               MAP1(exp, x, expf(x))
    elementwise(elu, path, "x", alpha="f32")  MAP1(elu, x, x > 0 ? x : alpha * expm1f(x), float alpha)

See elementwise.cuh. The same call serves alpha's ops (equations.py), and ops and .cu files of your own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from alpha.core.device import get_backend
from alpha.core.op import Op
from alpha.cuda.ops.pointwise.chain import joined, may_wait, wait
from alpha.cuda.ops.pointwise.layout import layout_type, packed
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty
from alpha.fuse.chain import Function
from alpha.ops import elementwise as ops
from alpha.ops.layout import broadcast_strides, merged

Number = ops.Number

THREADS = 256
NUMBERS = (*FLOAT_DTYPES, "int32", "int64", "uint8")
STORED = {"bool": "uint8"}  # kernels read a bool as a byte


@lru_cache(maxsize=1024)
def blocks(size: int, width: int, packets: int = 2) -> int:
    """Returns how many blocks give each thread `packets` packets of 16 bytes of each tensor; kernels take any number.

    Args:
        size: elements of a tensor.
        width: bytes of an element of the widest tensor.
    """
    return -(-size * width // (16 * packets * THREADS))


# ---- from an op to its kernel ----------------------------------------------------------------------------------------
def elementwise(op: Op, source: str | Path, operands: str, dtypes: Sequence[str] = FLOAT_DTYPES,
                given: Callable[..., tuple[Number, ...]] | None = None, **numbers: str) -> None:
    """Binds MAP1 or MAP2 of an op's name as its implementation.

    Args:
        op: its tensors have one shape, that of y.
        source: the .cu file: a name in alpha/cuda, or the absolute path of one of your own.
        operands: as in the macro, "x" or "g y" say.
        dtypes: what there are kernels for.
        given: makes what kernels get of the attributes, beside a dtype.
        numbers: the op's attributes in the order of the macro, with the type of each: alpha="f32"; "{0}" is f32 for
            floats, and i64 for integers.
    """
    names, kernels = operands.split(), {}
    packets = 4 if len(names) == 1 else 2
    for dtype in dtypes:
        args = [*[f"ptr {x}" for x in names], "ptr out", "i64 n", *[f"{kind} {name}" for name, kind in numbers.items()]]
        kernels[dtype] = Kernel(source, f"{op.name}_{dtype}",
                                ", ".join(args).format("f32" if dtype in FLOAT_DTYPES else "i64"))

    def run(*xs: Array, **attrs: Number) -> Array:
        x = xs[0]
        y, more = empty(x.shape, x.dtype), given(x.dtype, **attrs) if given else [attrs[name] for name in numbers]
        kernels[x.dtype](blocks(x.size, ITEMSIZE[x.dtype], packets), *xs, y, x.size, *more)
        return y
    joined(op, run, numbers=given) if op.equation else op.impl("cuda")(run)


def broadcasting(op: Op, source: str | Path, dtypes: Sequence[str] = FLOAT_DTYPES) -> dict[str, Kernel]:
    """Binds BROADCAST2 of an op's name as its implementation: two tensors that broadcast, or a tensor and a number.

    What compares has bools, and a number counts as rounded to the dtype of the other operand.

    Returns:
        the kernels, by dtype.
    """
    kernels, compares = {}, op.equation is not None and op.equation.code.is_condition
    for dtype in dtypes:
        number = "f32" if dtype in FLOAT_DTYPES else "i64"  # stands for a null pointer
        kernels[dtype] = Kernel(source, f"{op.name}_{STORED.get(dtype, dtype)}", f"ptr a, {number} a_number, ptr b, "
                                f"{number} b_number, ptr y, i64 n, {layout_type(2)} layout")
    convert_number = rounded_number if compares else plain_number

    def run(a: Array | Number, b: Array | Number) -> Array:
        dtype, a_number, b_number = (a if isinstance(a, Array) else b).dtype, 0, 0
        if not isinstance(a, Array):
            a, a_number = None, convert_number(a, dtype)
        if not isinstance(b, Array):
            b, b_number = None, convert_number(b, dtype)
        shape, layout = layout_of(op.name, (a and a.shape, b and b.shape))
        y = empty(shape, "bool" if compares else dtype)
        kernels[dtype](blocks(y.size, ITEMSIZE[dtype]), a, a_number, b, b_number, y, y.size, layout)
        return y
    joined(op, run, convert_number) if op.equation else op.impl("cuda")(run)
    return kernels


@lru_cache(maxsize=1024)
def layout_of(where: str, shapes: tuple[Shape | None, ...]) -> tuple[Shape, bytes]:
    """Returns the common shape, and the Layout of the operands; None stands for a number."""
    shape = ops.broadcast_shape(where, **{f"operand {k}": s for k, s in enumerate(shapes) if s is not None})
    return shape, packed(where, *merged(shape, [broadcast_strides(s, shape) for s in shapes]))


# ---- numbers ---------------------------------------------------------------------------------------------------------
def plain_number(value: Number, dtype: str) -> Number:
    """Returns what a kernel gets for a Python number: float32 (inf beyond its range), or an integer."""
    if dtype not in FLOAT_DTYPES:
        return int(value) if dtype != "bool" or value in (0, 1) else 2  # 2: equal to no bool
    return value if -3e38 < value < 3e38 else ctypes.c_float(value).value


def rounded_number(value: Number, dtype: str) -> Number:
    """As plain_number, rounded to the dtype, so that x == 0.1 holds where 0.1 was stored in x."""
    if dtype == "float16":
        return float(np.uint16(bits_of(value, dtype)).view(np.float16))
    if dtype == "bfloat16":
        return float(np.uint32(bits_of(value, dtype) << 16).view(np.float32))
    return plain_number(value, dtype)


def bits_of(value: Number, dtype: str) -> int:
    """Returns the bits of a number in a dtype, as an integer without a sign; a fraction is cut off for integers."""
    if dtype == "bool":
        return int(bool(value))
    if dtype not in FLOAT_DTYPES:
        return int(value) & (1 << 8 * ITEMSIZE[dtype]) - 1
    with np.errstate(over="ignore"):  # inf beyond the range
        if dtype == "float16":
            return int(np.float16(value).view(np.uint16))
        bits = int(np.float32(value).view(np.uint32))
    if dtype == "float32":
        return bits
    return 0x7FC0 if value != value else bits + 0x7FFF + (bits >> 16 & 1) >> 16  # to nearest, ties to even


# ---- what is bound, besides the ops of equations.py ------------------------------------------------------------------
_CASTS = {(source, dtype): Kernel("cast.cu", f"cast_{source}_{dtype}", "ptr x, ptr y, i64 n")
          for source in NUMBERS for dtype in ITEMSIZE}


def convert(x: Array, dtype: str) -> Array:
    """Returns the elements of x in another dtype."""
    y = empty(x.shape, dtype)
    convert_into(x, y)
    return y


_CAST = Function("cast_of", "EQUATION float cast_of(float x) { return x; }")


@ops.cast.impl("cuda")
def cast_cuda(x: Array, *, dtype: str) -> Array:
    """As `convert`, of floats and bools in the pass of a reader."""
    y = None
    if may_wait(x.size) and dtype in FLOAT_DTYPES:
        y = wait(_CAST, (x,), (), dtype, x.shape, partial(convert, dtype=dtype))
    return convert(x, dtype) if y is None else y


def as_float32(x: Array) -> Array:
    """Returns the elements of x in float32: x itself, where it has that."""
    return x if x.dtype == "float32" else convert(x, "float32")


def as_int64(x: Array) -> Array:
    """As as_float32."""
    return x if x.dtype == "int64" else convert(x, "int64")


def convert_into(x: Array, y: Array) -> None:
    """Overwrites the elements of y with those of x, in the dtype of y."""
    width = max(ITEMSIZE[x.dtype], ITEMSIZE[y.dtype])
    _CASTS[STORED.get(x.dtype, x.dtype), y.dtype](blocks(x.size, width, 4), x, y, x.size)


@ops.transfer.impl("cuda")
def transfer_cuda(x: Array, *, device: str, source: str) -> Any:
    if device != "cuda":
        return get_backend(device).from_numpy(get_backend(source).to_numpy(x), device)
    y = empty(x.shape, x.dtype)
    memory.copy(y, x)
    return y


_WHERE = {size: Kernel("cast.cu", f"where_{size}", "ptr cond, ptr x, u64 x_number, ptr y, u64 y_number, ptr out, "
                       f"i64 n, {layout_type(3)} layout") for size in (1, 2, 4, 8)}


def where_cuda(cond: Array, x: Array | Number, y: Array | Number) -> Array:
    dtype = (x if isinstance(x, Array) else y).dtype
    x_bits = y_bits = 0
    if not isinstance(x, Array):
        x, x_bits = None, bits_of(x, dtype)
    if not isinstance(y, Array):
        y, y_bits = None, bits_of(y, dtype)
    shape, layout = layout_of("where", (cond.shape, x and x.shape, y and y.shape))
    out = empty(shape, dtype)
    size = ITEMSIZE[dtype]
    _WHERE[size](blocks(out.size, size, 1), cond, x, x_bits, y, y_bits, out, out.size, layout)
    return out


joined(ops.where, where_cuda, number=rounded_number)

_FILL = Kernel("cast.cu", "fill", "ptr y, u64 pattern, i64 nbytes")


def pattern_of(value: Number, dtype: str) -> int:
    """Returns the bits of a number as often as 8 bytes hold it."""
    return bits_of(value, dtype) * ((1 << 64) - 1) // ((1 << 8 * ITEMSIZE[dtype]) - 1)


def filled(shape: Shape, value: Number, dtype: str) -> Array:
    """Returns an array of one number."""
    y = empty(shape, dtype)
    _FILL(blocks(y.nbytes, 1, 4), y, pattern_of(value, dtype), y.nbytes)
    return y
