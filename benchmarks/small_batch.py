"""Convolutions of one to 32 images beside cuDNN: the layers of networks in inference, and their gradients.

    python -m benchmarks.small_batch [--sets vgg googlenet resnet50 table1] [--batch 1 4 16] [--precision bf16 fp32]
                                     [--passes fprop dgrad wgrad] [--only NAME ...] [--best K] [--rounds N]
                                     [--window MS] [--budget-s S] [--output FOLDER]

Sides, in turn in one process, each a CUDA graph of 20 calls on the same tensors: alpha, and PyTorch in both layouts
(cuDNN's fastest algorithm); in fp32 with TF32 and in strict float32. The tensor cores' form of float32 tensors is made
in every call (alpha) or before (there). Before a pass is timed its result is compared with float64. --best K: the K
kernels that are cheapest by estimate are timed too, on operands that are there, beside their estimates.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from statistics import geometric_mean
from typing import Any

import alpha
from alpha.errors import AlphaError
from benchmarks import checks, cuda_timing, results
from benchmarks.conv_ops import BOUNDS, in_windows, kernel_of
from benchmarks.conv_sides import Operands, alpha_call, error_of, torch_call
from benchmarks.environment import add_common, settle, torch_facts
from benchmarks.results import Row
from benchmarks.rounds import Side, medians
from benchmarks.shapes import PASSES, ConvShape
from benchmarks.sparsity import TABLE_I
from benchmarks.torch_precision import allow_tf32

KEY = ("set", "shape", "pass", "precision", "n")
CALLS = 20          # of a graph
ROUNDS, WINDOW_MS = 5, 2.0
# name: map, channels in and out, of 3x3 filters: VGG at 224x224 and at 32x32
VGG = ((224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (28, 256, 512), (28, 512, 512),
       (14, 512, 512), (32, 64, 64), (16, 128, 128), (8, 256, 256), (4, 512, 512), (2, 512, 512))
RESNET50 = ((64, 1), (128, 2), (256, 4), (512, 8))  # channels of a bottleneck, and how much smaller its maps are


def shapes(set_name: str, batch: int) -> Iterator[ConvShape]:
    """Yields the different layers of a set, as they are for images of 224x224 and 32x32; Table I: see sparsity."""
    if set_name == "table1":
        yield from (shape(batch, case.hw[0], case.ic, case.oc, case.f[0]) for case in TABLE_I)
    if set_name == "vgg":
        yield from (shape(batch, hw, ic, oc, 3) for hw, ic, oc in VGG)
    for first in (56, 32):  # map of the first stage
        if set_name == "resnet50":
            yield shape(batch, first, 64, 64, 1)
            for width, smaller in RESNET50:
                hw, ic = first // smaller, 4 * width
                yield shape(batch, hw, width, width, 3)
                yield shape(batch, hw, width, ic, 1)
                yield shape(batch, hw, ic, width, 1)
                if smaller > 1:
                    yield shape(batch, 2 * hw, width, width, 3, 2)
                    yield shape(batch, 2 * hw, 2 * width, ic, 1, 2)
        if set_name == "googlenet":
            from alpha.testing.conv_cases import INCEPTION
            for hw, ic, b1, r3, b3, r5, b5, project in INCEPTION.values():
                for c, k, f in ((ic, b1, 1), (ic, r3, 1), (r3, b3, 3), (ic, r5, 1), (r5, b5, 3), (b5, b5, 3),
                                (ic, project, 1)):
                    yield shape(batch, hw if first == 32 else hw * 7 // 8, c, k, f)


def shape(n: int, hw: int, ic: int, oc: int, f: int, stride: int = 1) -> ConvShape:
    name = f"{hw}x{hw} {ic}-{oc} {f}x{f}" + (f"/{stride}" if stride > 1 else "")
    return ConvShape(name, n, hw, ic, oc, f, f // 2, stride)


def kernels(operands: Operands, pass_name: str, precision: str, count: int
            ) -> dict[str, tuple[float, Callable[..., Any]]]:
    """Returns estimate and call of the kernels that are cheapest by estimate, on the arrays that they read."""
    from alpha.cuda.conv.planner import launch_of, rank
    from alpha.cuda.lazy import operand
    from alpha.cuda.runtime.memory import empty
    desc, (x, w, g) = operands.shape.desc, operands.wrapped()[0]
    found = {}
    for option in [o for o in rank(pass_name, desc, precision) if not o.reason][:count]:
        first, second, out_shape = {"fprop": (x, w, desc.y_shape), "dgrad": (g, w, desc.x_shape),
                                    "wgrad": (x, g, desc.w_shape)}[pass_name]
        if option.candidate.reads == "float16x2":
            operand(first, "float16x2"), operand(second, "float16x2")
        launch = launch_of(option.candidate, desc, precision)
        out = empty(out_shape, "float32" if pass_name == "wgrad" else operands.dtype)
        estimate = getattr(option.candidate, "_estimate", lambda _: None)(desc)
        name = option.candidate.name
        if estimate:
            name += f" {tuple(estimate.tiles.box)} x{len(estimate.tiles.pixels.classes)}"
        found[name] = option.time_us, lambda k, launch=launch, a=first, b=second, out=out: launch(a, b, out)
    return found


def measure(operands: Operands, pass_name: str, precision: str, args: argparse.Namespace) -> Row:
    """Returns the microseconds of each side, and further facts."""
    from alpha.cuda.runtime.context import context
    torch, effort = cuda_timing.strict_torch(), vars(args)
    with alpha.precision(precision), alpha.no_grad():
        calls = {"alpha": alpha_call(operands, pass_name, "cuda")}
        made = cuda_timing.view(calls["alpha"](0))
        error = error_of(operands, pass_name, made)
        if not error < BOUNDS[precision]:
            checks.refuse(f"{operands.shape.name} {pass_name}: relative error {error}", "look for its kernel",
                          where="small_batch")
        kernel, reads = kernel_of(pass_name, operands.shape.desc, operands.dtype, "cuda")
        times: dict[str, float] = {}
        estimates = {}
        if args.best:
            best = kernels(operands, pass_name, precision, args.best)
            estimates = {name: us for name, (us, _) in best.items()}
            calls.update({name: call for name, (_, call) in best.items()})
        if reads == "float16x2":
            calls["there"] = alpha_call(operands, pass_name, "cuda", reads)
        for strict in ((False, True) if precision == "fp32" else (False,)):
            allow_tf32(torch, "fp32" if strict else "tf32")
            peers = {} if strict else {name: Side(call, context.stream) for name, call in calls.items()}
            for layout, last in (("nchw", False), ("nhwc", True)):
                peers[f"{'strict' if strict else 'torch'}_{layout}"] = Side(torch_call(operands, pass_name, last))
            found = in_windows(cuda_timing, peers, CALLS, effort)
            times.update({name: 1e3 * ms for name, ms in medians(found).items()})
    best_us = min(times["torch_nchw"], times["torch_nhwc"])
    row = {"kernel": kernel, "us": times, "estimates": estimates, "error": error, "ratio": best_us / times["alpha"],
           "ratio_there": best_us / times.get("there", times["alpha"])}
    if precision == "fp32":
        strict_us = min(times["strict_nchw"], times["strict_nhwc"])
        row |= {"strict": strict_us / times["alpha"], "strict_there": strict_us / times.get("there", times["alpha"])}
    return row


HEAD = "| batch | convolution | pass | precision | alpha us | there | cuDNN | ratio | there | strict | kernel |"


def line(row: Row) -> str:
    """Returns a row of the table."""
    where = f"| {row['n']} | {row['shape']} | {row['pass']} | {row['precision']} |"
    if "failed" in row:
        return f"{where} FAILED: {row['failed']} |"
    us = row["us"]
    text = (f"{where} {us['alpha']:.1f} | {us.get('there', us['alpha']):.1f} | "
            f"{min(us['torch_nchw'], us['torch_nhwc']):.1f} | {row['ratio']:.2f} | {row['ratio_there']:.2f} | "
            f"{row.get('strict', 0):.2f} | {row['kernel']} |")
    return "\n".join([text, *(f"    {us[name]:7.1f} us, estimate {estimate:7.1f}: {name}"
                              for name, estimate in row["estimates"].items())])


def report(rows: Sequence[Row]) -> list[str]:
    """Returns geometric means and least ratios."""
    lines = []
    groups = sorted({(row["precision"], row["pass"], row["set"], row["n"]) for row in rows})
    for group in groups:
        some = [row for row in rows if (row["precision"], row["pass"], row["set"], row["n"]) == group
                and "failed" not in row]
        for key in ("ratio", "ratio_there", "strict", "strict_there"):
            found = [row[key] for row in some if key in row]
            if found:
                lines.append(f"{' '.join(map(str, group))} {key}: geometric mean {geometric_mean(found):.2f}, least "
                             f"{min(found):.2f}, of {len(found)}; below 0.8: {sum(r < 0.8 for r in found)}")
    return lines


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["vgg", "googlenet", "resnet50"],
                        choices=["vgg", "googlenet", "resnet50", "table1"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp32"], choices=["bf16", "fp32"])
    parser.add_argument("--passes", nargs="+", default=["fprop"], choices=PASSES)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these convolutions")
    parser.add_argument("--best", type=int, default=0, help="kernels timed besides, by estimate")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--window", type=float, default=WINDOW_MS, help="milliseconds of calls in a row")
    add_common(parser, "convolution")
    args = parser.parse_args(argv)
    settle(args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    try:
        checks.admit(args.precision, "cuda", "small_batch", args.busy)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    command = f"python -m benchmarks.small_batch {' '.join(sys.argv[1:] if argv is None else argv)}".strip()
    args.deadline = time.monotonic() + args.budget_s
    facts, rows = {**cuda_timing.start(command), **torch_facts(), "busy_allowed": args.busy}, []
    print("; ".join(f"{k}: {v}" for k, v in facts.items()) + f"\n{HEAD}")
    for precision, n, set_name in ((p, n, s) for p in args.precision for n in args.batch for s in args.sets):
        for each in dict.fromkeys(shapes(set_name, n)):
            if (args.only and each.name not in args.only) or time.monotonic() > args.deadline:
                continue
            operands = Operands(each, cuda_timing, "bfloat16" if precision == "bf16" else "float32", sets=1)
            for pass_name in args.passes:
                row = {"set": set_name, "shape": each.name, "pass": pass_name, "precision": precision, "n": n}
                try:
                    row |= measure(operands, pass_name, precision, args)
                except Exception as error:  # the other convolutions are of use without this one
                    traceback.print_exc()
                    row["failed"] = (str(error) or repr(error)).partition("\n")[0][:200]
                results.record(args.output / "small_batch.jsonl", facts, row)
                rows.append(row)
                print(line(row), flush=True)
    print("\n" + "\n".join(report(rows)))
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
