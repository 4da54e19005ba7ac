"""Equations as device code.  `python -m alpha.cuda.ops.pointwise.equations` writes activation.cu; a test compares."""

from __future__ import annotations

from pathlib import Path

from alpha.fuse.chain import Function
from alpha.op import Op
from alpha.ops import activation

FILE = Path(__file__).with_name("activation.cu")
MAPPED = [op for op in vars(activation).values() if op.__class__ is Op and op.equation and op.__module__ ==
          activation.__name__]
HEAD = """\
// What:     activations, and their gradients from g, the gradient of y: the equations of the ops, a kernel for each
// Source:   written by equations.py; gelu: arXiv 1606.08415; elu: 1511.07289; hardswish: 1905.02244
// Layout:   flat, C-contiguous; see elementwise.cuh for the thread map
// NaN:      no comparison holds, which chooses the piece of a gradient; docs/numerics.md has the table
// Requires: 16-byte aligned tensors
// Threads:  see elementwise.cuh
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): relu, sigmoid, gelu 96 %, their gradients
//           99 %
#include "elementwise.cuh"
#include "ops/pointwise/equation.cuh"
"""


def function(op: Op) -> Function:
    """Returns what a pointwise op does to an element."""
    assert op.equation
    return Function(f"{op.name}_of", op.equation.function(f"{op.name}_of", "EQUATION "),
                    op.equation.code.is_condition)


def text() -> str:
    """Returns what activation.cu should be."""
    lines = [HEAD]
    for op in MAPPED:
        names, numbers = op.equation.args, op.equation.attrs
        call = f"{op.name}_of({', '.join((*names, *numbers))})"
        extra = "".join([f", float {name}" for name in numbers])
        lines += [function(op).text, f"MAP{len(names)}({op.name}, {', '.join(names)}, {call}{extra})"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FILE.write_text(text())
