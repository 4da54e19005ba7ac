"""Functions of several ops that are one operator of ONNX: their calls become one, with a rule of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from alpha.inference.program import Call, Program, Value
from alpha.onnx.graph import FIRST, Graph


def joined(program: Program) -> Program:
    """Returns the program with one call for each such function, and without calls that nothing reads."""
    made = {out: call for call in program.calls for out in call.outs}
    for piece in program.pieces.values():
        call = made.get(piece.outs[0])
        if piece.name in PIECES and call is not None and call.op.name != "max_pool2d":
            made[piece.outs[0]] = replace(call, args=[piece.x], outs=piece.outs[:1], piece=piece)
    needed: set[int] = set()
    kept: list[Call] = []
    waiting: list[tuple[Value, bool]] = [(v, False) for v in reversed(program.outputs)]
    while waiting:      # depth first: a call stands behind the calls that make its arguments
        value, ready = waiting.pop()
        call = made.get(value)
        if call is None or id(call) in needed:
            continue
        if ready:
            needed.add(id(call))
            kept.append(call)
        else:
            waiting.append((value, True))
            waiting.extend((v, False) for v in call.reads())
    return replace(program, calls=kept)


def _max_pool(g: Graph, call: Call) -> None:
    """MaxPool with dilations and ceil_mode; where one axis alone rounds up, it is padded further instead."""
    assert call.piece is not None
    x, a = call.piece.x, call.piece.settings
    window, padding, dilation = a["kernel_size"], a.get("padding", (0, 0)), a.get("dilation", (1, 1))
    stride = a.get("stride") or window
    far, up = [0, 0], [False, False]
    for k in (0, 1):
        i, o = g.size(x, k + 1), g.size(call.outs[0], k + 1)
        over = i + 2 * padding[k] - dilation[k] * (window[k] - 1) - 1
        up[k] = o > over // stride[k] + 1
        far[k] = (o - 1) * stride[k] - over if up[k] else 0
    exact = [not up[k] and (g.size(x, k + 1) + 2 * padding[k] - dilation[k] * (window[k] - 1) - 1) % stride[k] == 0
             for k in (0, 1)]
    more: dict[str, Any] = {}
    if any(up) and all(u or e for u, e in zip(up, exact)):
        more, far = {"ceil_mode": 1}, [0, 0]
    ends = [p + f for p, f in zip(padding, far)]
    g.put(call.outs[0], g.node("MaxPool", [g.get(x, FIRST)], kernel_shape=window, strides=stride,
                               pads=[*padding, *ends], dilations=dilation, **more), FIRST)


PIECES = {"max_pool_windows": _max_pool}
