"""Convolution, relu and 2 x 2 max pool in inference: one pass beside two, and beside PyTorch.

    python -m benchmarks.conv_pool [--batch 1 16] [--rounds N] [--window MS] [--budget-s S] [--output FOLDER]
    OMP_NUM_THREADS=1 taskset -c 0 python -m benchmarks.conv_pool --device cpu --clock cpu --batch 1

The layers of VGG in front of its pools, at 224 and 32, in bfloat16 on a GPU, in float32 on a CPU. Sides, in turn: `op`,
ops.conv2d_relu_pool; `pair`, convolution with relu, then the pool; on a GPU each tile that pools; PyTorch in
both layouts. On a GPU each is a CUDA graph of 20 calls. Microseconds of a call, medians.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import alpha
from alpha.core.op import registry
from benchmarks import checks, cpu_timing, cuda_timing
from benchmarks.conv_sides import Operands
from benchmarks.cuda_sparsity import Call, ours, timed
from benchmarks.environment import add_clock, add_common, check_clock, settle
from benchmarks.in_turn import record_each
from benchmarks.results import Row
from benchmarks.rounds import Side, medians, relative_error
from benchmarks.shapes import ConvShape

KEY = ("layer", "n")
ROUNDS, WINDOW_MS = 5, 2.0
LAYERS = ((224, 64, 64), (112, 128, 128), (56, 256, 256), (28, 512, 512), (14, 512, 512), (32, 64, 64), (16, 128, 128))
WINDOW: dict[str, Any] = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0)}


def tiles(shape: ConvShape, x: Any, w: Any) -> dict[str, Callable[[], Any]]:
    """Returns the calls of a GPU's tiles that pool."""
    from alpha.cuda.conv import pooled
    from alpha.cuda.ops.pointwise.epilogue import Epilogue
    from alpha.cuda.runtime.memory import empty
    n, oh, ow, oc = shape.desc.y_shape

    def tile(launch: Any) -> Any:
        y = empty((n, oh // 2, ow // 2, oc), x.dtype)
        launch(x, w, y, Epilogue.of(None, "relu"))
        return y
    return {str(candidate.tile): partial(tile, candidate.prepare(shape.desc)) for candidate in pooled.CANDIDATES
            if candidate.reads == "bfloat16" and not candidate.rejection(shape.desc)}


def measure(shape: ConvShape, args: argparse.Namespace) -> Row:
    """Returns the microseconds of each side."""
    import torch
    timing, dtype, most = (cuda_timing, "bfloat16", 5e-3) if args.device == "cuda" else (cpu_timing, "float32", 1e-5)
    operands = Operands(shape, timing, dtype, sets=1)
    x, w, _ = operands.wrapped()[0]
    conv, pool, both = (registry[name].impls[args.device] for name in ("conv2d_bias_act", "max_pool2d",
                                                                       "conv_relu_pool"))
    held: dict[str, Any] = {}

    def keeping(name: str, run: Any) -> Call:
        return lambda _: held.__setitem__(name, run())
    geometry, window = shape.geometry, {f"pool_{name}": pair for name, pair in WINDOW.items()}
    runs = {"op": lambda: both(x, w, None, stride=geometry["stride"], padding=geometry["padding"], **window),
            "pair": lambda: pool(conv(x, w, None, activation="relu", **geometry), **WINDOW)[0]}
    if args.device == "cuda":
        runs |= tiles(shape, x, w)
    calls = {name: keeping(name, run) for name, run in runs.items()}

    def peer(last: bool) -> Call:
        a, b, _ = operands.turned(last)[0]
        f = torch.nn.functional
        return keeping(f"torch_{last}", lambda: f.max_pool2d(torch.relu_(f.conv2d(a, b, None, 1, shape.padding)), 2))
    peers = {f"torch_{'nhwc' if last else 'nchw'}": Side(peer(last)) for last in (False, True)}
    with alpha.no_grad(), torch.no_grad():
        for call in (*calls.values(), *[side.call for side in peers.values()]):
            call(0)
        timing.synchronize()
        exact = held["torch_True"].permute(0, 2, 3, 1)
        for name in calls:
            error = relative_error(timing.view(held[name]), exact)
            if not error < most:
                checks.refuse(f"{shape.name}, {name}: relative error {error}", "look for its kernel", where="conv_pool")
        if args.device == "cuda":
            us = timed({**ours(calls), **peers}, args)
        else:
            sides = {**{name: Side(call) for name, call in calls.items()}, **peers}
            times = cpu_timing.alternate(sides, args.rounds, args.window, args.clock)
            us = {name: 1e3 * ms for name, ms in medians(times).items()}
    best = min(us["torch_nchw"], us["torch_nhwc"])
    return {"us": us, "gain": us["pair"] / us["op"], "ratio": best / us["op"]}


def line(row: Row) -> str:
    where = f"| {row['layer']} | {row['n']} |"
    if "failed" in row:
        return f"{where} FAILED: {row['failed']} |"
    return (f"{where} {row['gain']:.2f} of two ops | {row['ratio']:.2f} of PyTorch | "
            + ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items()) + " |")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--window", type=float, default=WINDOW_MS, help="milliseconds of calls in a row")
    add_common(parser, "layer")
    add_clock(parser)
    args = parser.parse_args(argv)
    settle(args)
    if args.device == "cpu":
        check_clock(parser, args)
    cases = (({"layer": f"{hw}x{hw} {ic}-{oc}", "n": n},
              partial(measure, ConvShape(f"{hw}x{hw} {ic}-{oc}", n, hw, ic, oc, 3, 1, 1), args))
             for n in args.batch for hw, ic, oc in LAYERS)
    precision = "bf16" if args.device == "cuda" else "fp32"
    return record_each("conv_pool", "| layer | batch | gain | ratio | us |", [precision], cases, line, args, argv)


if __name__ == "__main__":
    sys.exit(main())
