"""The worth of zeros on a GPU: products of few rows that skip them, and dense layers, which a sparse one has to beat.

    python -m benchmarks.cuda_sparsity [--only linear table1 vgg19_32 vgg19_224 strides] [--batch 1 32] [--rounds N]
                                       [--window MS] [--budget-s S] [--output FOLDER]

linear: `ops.linear` of one and four rows, with all weights and without those that meet zeros, at several shares of
    zeros, beside PyTorch (float32 strict and with TF32, bfloat16).
Other sets are layers of benchmarks.sparsity. Sides: alpha in fp32 by tensor cores, on float32 tensors and on operands
    that are there; by FMA units, direct and by Winograd; in bf16; cuDNN in strict float32, with TF32 and in bfloat16,
    the better of both layouts. Zeros make none of them faster. Convolutions that skip zeros have no CUDA kernels:
    docs/how_to/inference.md says why.
Each side is a CUDA graph of 20 calls on the same tensors, the sides take turns; microseconds of a call, medians.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import alpha
from alpha.core.op import registry
from alpha.plan import Request
from alpha.testing.conv_cases import Case
from benchmarks import checks, cuda_timing
from benchmarks.conv_ops import in_windows
from benchmarks.conv_sides import Operands, alpha_call, torch_call
from benchmarks.environment import add_common, settle
from benchmarks.in_turn import record_each
from benchmarks.results import Row
from benchmarks.rounds import Side, medians, relative_error
from benchmarks.shapes import ConvShape
from benchmarks.sparsity import SETS
from benchmarks.torch_precision import allow_tf32

KEY = ("set", "layer", "n", "dtype", "zeros")
CALLS = 20          # of a graph
ROUNDS, WINDOW_MS = 5, 2.0
LINEAR = ((4096, 4096), (25088, 4096), (512, 10))  # features, outputs: VGG-19's at 224, ResNet-18's at 32
SHARES = (0.0, 0.5, 0.75, 0.9)
ERROR = {"float32": 2e-6, "bfloat16": 5e-3}
Call = Callable[[int], Any]


def timed(sides: dict[str, Side], args: argparse.Namespace) -> dict[str, float]:
    """Returns the microseconds of a call of each side."""
    return {name: 1e3 * ms for name, ms in medians(in_windows(cuda_timing, sides, CALLS, vars(args))).items()}


def ours(calls: dict[str, Call]) -> dict[str, Side]:
    from alpha.cuda.runtime.context import context
    return {name: Side(call, context.stream) for name, call in calls.items()}


def with_tf32(call: Call, precision: str) -> Call:
    """Returns a call of PyTorch's that allows TF32, or does not."""
    torch = cuda_timing.strict_torch()
    return lambda k: (allow_tf32(torch, precision), call(k))[1]


def under(call: Call, **settings: Any) -> Call:
    """Returns a call of alpha's under other settings."""
    def run(k: int) -> Any:
        with alpha.config(**settings):
            return call(k)
    return run


# ---- products of few rows --------------------------------------------------------------------------------------------


def measure_linear(k: int, n: int, rows: int, dtype: str, zeros: float, args: argparse.Namespace) -> Row:
    """Returns the microseconds of a linear layer of k features and n outputs."""
    import torch
    torch.manual_seed(0)
    x, w = (torch.randn(shape, device=cuda_timing.peer_device()).to(getattr(torch, dtype))
            for shape in ((rows, k), (n, k)))
    x[torch.rand(x.shape, device=x.device) < zeros] = 0
    theirs, exact = (x, w), x.double() @ w.double().T
    given = [cuda_timing.wrap(t) for t in theirs]
    sides, run, held = {}, registry["linear"].impls["cuda"], {}

    def call_of(name: str) -> Call:
        def call(_: int) -> Any:
            held[name] = run(*given, None, activation=None, algorithm=Request(name, name == "sparse"))
            return held[name]
        return call
    for name in ("auto", "sparse") if n % 8 == 0 else ("auto",):
        sides[name] = call_of(name)
        error = relative_error(cuda_timing.view(sides[name](0)), exact)
        if not error < ERROR[dtype]:
            checks.refuse(f"linear {k} to {n}, {name}: relative error {error}", "look for its kernel",
                          where="cuda_sparsity")
    peers = {"tf32": "tf32", "strict": "fp32"} if dtype == "float32" else {"bf16": "tf32"}
    with alpha.no_grad(), torch.no_grad():
        us = timed({**ours(sides), **{name: Side(with_tf32(lambda _: torch.nn.functional.linear(*theirs), mode))
                                      for name, mode in peers.items()}}, args)
    return {"set": "linear", "layer": f"{k} to {n}", "n": rows, "dtype": dtype, "zeros": zeros, "us": us}


# ---- convolutions ----------------------------------------------------------------------------------------------------


def measure_layer(set_name: str, case: Case, n: int, args: argparse.Namespace) -> Row:
    """Returns the microseconds of a forward pass."""
    import torch
    shape = ConvShape(case.name, n, case.hw[0], case.ic, case.oc, case.f[0], case.padding[0], case.stride[0])
    single, half = (Operands(shape, cuda_timing, dtype, sets=1) for dtype in ("float32", "bfloat16"))
    direct = alpha_call(single, "fprop", "cuda")
    calls = {"fp32": direct, "ffma": under(direct, tensor_cores=False)}
    if shape.f == 3 and shape.stride == 1:
        x, w, _ = single.wrapped()[0]
        run = registry["conv2d"].impls["cuda"]
        calls["winograd"] = under(lambda _: run(x, w, algorithm=Request("winograd", True), **shape.geometry),
                                  tensor_cores=False)
    calls["bf16"] = alpha_call(half, "fprop", "cuda")
    there = alpha_call(Operands(shape, cuda_timing, "float32", sets=1), "fprop", "cuda", "float16x2")
    modes = ("strict", single, "fp32"), ("tf32", single, "tf32"), ("cudnn_bf16", half, "tf32")
    peers = {f"{name}_{layout}": Side(with_tf32(torch_call(operands, "fprop", last), mode))
             for name, operands, mode in modes for layout, last in (("nchw", False), ("nhwc", True))}
    with alpha.no_grad(), torch.no_grad():
        us = timed({**ours({**calls, "fp32_there": there}), **peers}, args)
    for name in ("strict", "tf32", "cudnn_bf16"):
        us[name] = min(us.pop(f"{name}_nchw"), us.pop(f"{name}_nhwc"))
    return {"set": set_name, "layer": case.name, "n": n, "dtype": "float32", "zeros": 0.0, "us": us}


def line(row: Row) -> str:
    where = f"| {row['set']} | {row['layer']} | {row['n']} | {row['dtype']} | {row['zeros']:g} |"
    if "failed" in row:
        return f"{where} FAILED: {row['failed']} |"
    return f"{where} " + ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items()) + " |"


def cases(args: argparse.Namespace) -> list[tuple[Row, Callable[[], Row]]]:
    """Returns the cases: the fields that name each, and the function that measures it."""
    found: list[tuple[Row, Callable[[], Row]]] = []
    for name in args.only:
        if name == "linear":
            found += [({"set": name, "layer": "4096 to 4096", "n": 4, "dtype": dtype, "zeros": 0.75},
                       lambda dtype=dtype: measure_linear(4096, 4096, 4, dtype, 0.75, args))
                      for dtype in ("float32", "bfloat16")]
            for k, n in LINEAR:
                for dtype in ("float32", "bfloat16"):
                    for rows, zeros in ((1, z) for z in SHARES) if n > 10 else ((1, 0.0),):
                        found.append(({"set": name, "layer": f"{k} to {n}", "n": rows, "dtype": dtype, "zeros": zeros},
                                      lambda a=(k, n, rows, dtype, zeros): measure_linear(*a, args)))
            continue
        found += [({"set": name, "layer": case.name, "n": n, "dtype": "float32", "zeros": 0.0},
                   lambda a=(name, case, n): measure_layer(*a, args)) for n in args.batch for case in SETS[name]]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["linear", *SETS], choices=["linear", *SETS])
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--window", type=float, default=WINDOW_MS, help="milliseconds of calls in a row")
    add_common(parser, "layer")
    args = parser.parse_args(argv)
    settle(args)
    heading = "| set | layer | batch | dtype | zeros | us |"
    return record_each("cuda_sparsity", heading, ["fp32", "bf16"], cases(args), line, args, argv)


if __name__ == "__main__":
    sys.exit(main())
