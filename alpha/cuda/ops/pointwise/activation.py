"""Activations on the GPU: a kernel for each equation, in a source that is written into the cache, as chains are."""

from __future__ import annotations

from alpha.build import written
from alpha.cuda.ops.pointwise import elementwise
from alpha.cuda.ops.pointwise.chain import function
from alpha.cuda.runtime import toolchain
from alpha.op import Op
from alpha.ops import activation

HEAD = """\
// Activations, and their gradients from g, the gradient of y: a kernel for the equation of each op, as elementwise.cuh
// has them. gelu: arXiv 1606.08415; elu: 1511.07289; hardswish: 1905.02244. docs/numerics.md says what NaN does.
#include "elementwise.cuh"
#include "ops/pointwise/equation.cuh"
"""
MAPPED = [op for op in vars(activation).values()
          if op.__class__ is Op and op.equation and op.__module__ == activation.__name__]


def text() -> str:
    """Returns the source of their kernels."""
    lines = [HEAD]
    for op in MAPPED:
        names, numbers = op.equation.args, op.equation.attrs
        call = f"{op.name}_of({', '.join((*names, *numbers))})"
        extra = "".join([f", float {name}" for name in numbers])
        lines += [function(op).text, f"MAP{len(names)}({op.name}, {', '.join(names)}, {call}{extra})"]
    return "\n".join([*lines, ""])


_source = written("activation", text(), ".cu")
toolchain.generated.add(_source)
for _op in MAPPED:
    elementwise(_op, _source, " ".join(_op.equation.args), **dict.fromkeys(_op.equation.attrs, "f32"))
