"""Elementwise ops by themselves: a kernel for each, of its equation, in sources that are written into the cache, as
chains are: one of ops that broadcast, and one of the others. Of what has no equation, functions.cuh has the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

from alpha.build import written
from alpha.core.op import Op
from alpha.cuda.ops.pointwise import NUMBERS, Number, blocks, broadcasting, elementwise, layout_of, rounded_number
from alpha.cuda.ops.pointwise.chain import function
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.kernel import C_TYPES, FLOAT_DTYPES
from alpha.cuda.runtime.memory import Array
from alpha.ops import activation
from alpha.ops import elementwise as ops
from alpha.ops.elementwise import curves, rounding
from alpha.ops.loss import binary_cross_entropy

HEAD = """\
// Elementwise ops, a line for each dtype, see elementwise.cuh: generated, see equations.py
#include "elementwise.cuh"
#include "ops/pointwise/functions.cuh"
"""
FUNCTIONS = [ops.pow, rounding.floor, rounding.floor_divide, rounding.remainder, curves.sin, curves.cos,
             binary_cross_entropy]
OPS = [op for module in (ops, activation) for op in vars(module).values()
       if op.__class__ is Op and op.__module__ == module.__name__ and op.equation and op is not ops.where] + FUNCTIONS
STORED_AS = {**C_TYPES, "int32": "int", "int64": "i64", "uint8": "u8"}


def source(of: list[Op]) -> Path:
    """Returns the source of the kernels of some ops."""
    with_equation = [op for op in of if op.equation]
    path = written("elementwise", "\n".join([
        HEAD, *[function(op).text for op in with_equation],
        "namespace integers {", "using number = integer;",
        *[function(op).text for op in with_equation if op.dtypes != "float"], "}  // namespace integers",
        *[line for op in of for line in kernels(op)], ""]), ".cu")
    toolchain.generated.add(path)
    return path


def kernels(op: Op) -> Iterator[str]:
    """Yields the kernels of an op: integers are computed in 64 bits."""
    names = [arg.name for arg in op.args]
    macro = "BROADCAST_KERNEL2" if op.scalars else f"KERNEL{len(names)}"
    for dtype in FLOAT_DTYPES if op.dtypes == "float" else NUMBERS:
        kind, space = ("float", "") if dtype in FLOAT_DTYPES else ("i64", "integers::")
        result = "u8" if op.equation and op.equation.code.is_condition else STORED_AS[dtype]
        more = "".join([f", {kind} {name}" for name in op.attr_names])
        yield (f"{macro}({op.name}, {dtype}, {STORED_AS[dtype]}, {result}, {kind}, {', '.join(names)}, "
               f"{space}{op.name}_of({', '.join((*names, *op.attr_names))}){more})")


_DTYPES = {"float": FLOAT_DTYPES, "number": NUMBERS, "any": (*NUMBERS, "bool")}
_LIMITS = dict.fromkeys(FLOAT_DTYPES, (-inf, inf)) | ops.INT_RANGES


def _limits(dtype: str, low: Number | None, high: Number | None) -> tuple[Number, Number]:
    least, most = _LIMITS[dtype]
    return (least if low is None else rounded_number(low, dtype), most if high is None else rounded_number(high, dtype))


_PAIRS, _MAPS = ([op for op in OPS if bool(op.scalars) == pairs] for pairs in (True, False))
PAIRS_SOURCE, MAPS_SOURCE = source(_PAIRS), source(_MAPS)
_BROADCASTING = {op: broadcasting(op, PAIRS_SOURCE, _DTYPES[op.dtypes]) for op in _PAIRS}
for _op in _MAPS:
    elementwise(_op, MAPS_SOURCE, " ".join([arg.name for arg in _op.args]), _DTYPES[_op.dtypes],
                _limits if "low" in _op.attr_names else None, **dict.fromkeys(_op.attr_names, "{0}"))


def add_to(y: Array, x: Array) -> None:
    """Adds x to y in place; both are float32, and of one shape."""
    _BROADCASTING[ops.add]["float32"](blocks(y.size, 4), y, 0, x, 0, y, y.size, layout_of("add", (y.shape, x.shape))[1])
