"""Values that no input reaches, such as a weight that is computed from parameters: a file has their elements."""

from __future__ import annotations

from dataclasses import replace

from alpha import no_grad
from alpha.core.tensor import Tensor
from alpha.inference.program import Call, Program, Value


def folded(program: Program) -> Program:
    """Returns the program without the calls whose arguments are all constants; their results are constants, too."""
    outputs, kept = {*program.outputs}, []
    for call in program.calls:
        reads = list(call.reads())
        if not reads or any(v.constant is None for v in reads) or outputs & {*call.outs} or any(
                out in program.pieces for out in call.outs):
            kept.append(call)
        else:
            _compute(call)
    return replace(program, calls=kept)


def _compute(call: Call) -> None:
    """Gives the results of a call their elements."""
    def tensor_of(arg: object) -> object:
        if isinstance(arg, list):
            return [tensor_of(item) for item in arg]
        return arg.constant if isinstance(arg, Value) else arg
    with no_grad():
        results = call.op.full(*[tensor_of(arg) for arg in call.args], **call.attrs)
    for out, t in zip(call.outs, results):
        out.constant = Tensor(t.array, t.shape, t.dtype, t.device)
