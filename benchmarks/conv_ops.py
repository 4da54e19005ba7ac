"""The C-K-S convolutions beside cuDNN (on the CPU: oneDNN), operator by operator: speed, share of the ceiling, error.

    python -m benchmarks.conv_ops [--device cpu|cuda] [--sets networks paper3 paper5 layers groups] [--fma] [--resume]
                                  [--precision fp32 tf32 bf16] [--passes fprop dgrad wgrad] [--output FOLDER]

Both libraries compute on the same numbers in one process, in turn; PyTorch may use NCHW and channels_last, and searches
for cuDNN's fastest algorithm. Before a pass is timed, a part of each result is compared with float64, and alpha's whole
result with PyTorch's. Buffers rotate over more than the cache holds. benchmarks/shapes.py has the sets: the
paper's cases run one by one, the device waited for after every execution, the others in windows of calls, on a GPU as
CUDA graphs. alpha makes the tensor cores' form of float32 tensors in every call.

TFLOP/s are nominal, products with padded zeros counted, as the field does; "useful" leaves those out, and is given as a
share of the roofline: of a large matrix product's rate in the same run, or of the rate that a copy's bandwidth allows a
pass that reads its arguments once and writes its result. "table2" counts inserted zeros too, as the paper does.
On a GPU, `--sets layers --fma` computes on the FMA units, to which the bars of that set belong.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import alpha
from alpha.errors import AlphaError
from benchmarks import checks, plots, results, rounds
from benchmarks.conv_sides import Operands, alpha_call, part_of, torch_call
from benchmarks.environment import add_common, settle, torch_facts
from benchmarks.results import Row
from benchmarks.rounds import Side, mark, medians, relative_error
from benchmarks.shapes import (
    GROUPS,
    PASSES,
    SHAPES,
    ConvShape,
    bar,
    moved_bytes,
    network_shapes,
    paper,
    table2_flops,
    waves,
)
from benchmarks.torch_precision import allow_tf32

SETS = ("networks", "paper3", "paper5", "layers", "groups")
MODELS = ("lenet5", "vgg16", "resnet18", "googlenet")
PRECISIONS = ("fp32", "tf32", "bf16")
BOUNDS = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 2e-2}  # of an error; each precision stays far below the next one's
ROOFLINE_BAR = 0.7    # of the useful rate, on layers with more than one wave
KEY = ("set", "shape", "pass", "precision", "settings", "n")
CPU = {"matmul": 2048, "copy_mib": 64, "executions": 20, "rounds": 3, "window": 30.0, "batch": 32}
GPU = {"matmul": 8192, "copy_mib": 512, "executions": 1000, "rounds": rounds.ROUNDS, "window": rounds.WINDOW_MS,
       "batch": 128}


def timing_of(device: str) -> ModuleType:
    """Returns the functions by which benchmarks of single ops time a device."""
    if device == "cpu":
        from benchmarks import cpu_timing
        return cpu_timing
    from benchmarks import cuda_timing
    return cuda_timing


# ---- values ----------------------------------------------------------------------------------------------------------


def errors(operands: Operands, pass_name: str, calls: dict[str, Any], precision: str) -> dict[str, float]:
    """Returns the relative error of each library, and of alpha against PyTorch.  Raises UnfairError for a large one."""
    part, expected = part_of(operands, pass_name)
    made = {name: call(0) for name, call in calls.items()}
    operands.timing.synchronize()
    seen = {name: operands.timing.view(r) if name == "alpha" else r.permute(0, 2, 3, 1) for name, r in made.items()}
    found = {name: relative_error(r[part], expected) for name, r in seen.items()}
    found["alpha against torch_nchw"] = relative_error(seen["alpha"].double(), seen["torch_nchw"])
    if not all(error < BOUNDS[precision] for error in found.values()):
        checks.refuse(f"{operands.shape.name} {pass_name}: a result is wrong, relative errors {found}, "
                      f"{BOUNDS[precision]} is allowed in {precision}", "look for the kernel that computes it", where=
                      "conv_ops")
    return found


# ---- time ------------------------------------------------------------------------------------------------------------


def measure(set_name: str, operands: Operands, pass_name: str, precision: str, ceilings: Row, effort: Row) -> Row:
    """Returns the figures of one pass of one convolution.

    Args:
        ceilings: the result of `ceilings`.
        effort: rounds and window, or executions.
    """
    shape, desc, timing = operands.shape, operands.shape.desc, operands.timing
    device = timing.__name__.rpartition(".")[2].partition("_")[0]
    with alpha.precision(precision), alpha.no_grad():  # a convolution alone: no statistics for a batch norm
        calls = {"alpha": alpha_call(operands, pass_name, device), "torch_nchw": torch_call(operands, pass_name, False),
                 "torch_nhwc": torch_call(operands, pass_name, True)}
        error = errors(operands, pass_name, calls, precision)
        kernel, reads = kernel_of(pass_name, desc, operands.dtype, device)
        if operands.dtype == "float32" and reads not in ("", "float32"):
            calls["alpha_there"] = alpha_call(operands, pass_name, device, reads)
        sides = {name: Side(call, stream_of(device) if "alpha" in name else None) for name, call in calls.items()}
        graph_calls = operands.sets if device == "cuda" and not set_name.startswith("paper") else 0
        if set_name.startswith("paper"):
            times = rounds.one_by_one(sides, effort["executions"], timing.synchronize)
        else:
            times = in_windows(timing, sides, graph_calls, effort)
    ms = medians(times)
    there = ms.pop("alpha_there", ms["alpha"])
    rates = {key: {name: flops / t / 1e9 for name, t in ms.items()} for key, flops in (
        ("tflops", desc.nominal_flops), ("useful_tflops", desc.useful_flops),
        ("table2_tflops", table2_flops(desc, pass_name)))}
    best = max(rates["tflops"]["torch_nchw"], rates["tflops"]["torch_nhwc"])
    nbytes = moved_bytes(desc, pass_name, 2 if operands.dtype == "bfloat16" else 4)
    roofline = min(ceilings["matmul_tflops"], desc.useful_flops / nbytes * ceilings["copy_gb_per_s"] / 1e3)
    ratio, share = rates["tflops"]["alpha"] / best, rates["useful_tflops"]["alpha"] / roofline
    ratio_there = ratio * ms["alpha"] / there
    barred = set_name == "layers" and device == "cuda" and precision == "fp32" and not alpha.config.tensor_cores
    asked = bar(shape, pass_name, best) if barred else None
    full = barred and waves(desc, sm_count()) > 1
    return {"set": set_name, "shape": shape.name, "pass": pass_name, "precision": precision, "device": device,
            **{k: v for k, v in shape._asdict().items() if k != "name"}, "kernel": kernel, "sets": operands.sets,
            "graph_calls": graph_calls,
            "ms": ms, "ms_rounds": times, **rates, "ratio": ratio, "bar": asked, "ms_operands_there": there,
            "ratio_operands_there": ratio_there,
            "met": None if asked is None else ratio >= asked, "roofline_tflops": roofline, "of_roofline": share,
            "roofline_bar": ROOFLINE_BAR if full else None, "gb_per_s": nbytes / ms["alpha"] / 1e6, "error": error}


def in_windows(timing: ModuleType, sides: dict[str, Side], graph_calls: int, effort: Row) -> dict[str, list[float]]:
    """Returns the milliseconds of a call per round, where there are any of `graph_calls` as CUDA graphs."""
    clock = {"clock": "cpu"} if effort.get("clock") == "cpu" else {}    # of cpu_timing alone
    with timing.replayed(sides, graph_calls) if graph_calls else nullcontext(sides) as repeated:
        times = timing.alternate(repeated, effort["rounds"], effort["window"], **clock)
    return {name: [ms / max(1, graph_calls) for ms in found] for name, found in times.items()}


def stream_of(device: str) -> Any:
    if device == "cpu":
        return None
    from alpha.cuda.runtime.context import context
    return context.stream


def sm_count() -> int:
    from alpha.cuda.runtime.context import context
    return context.sm_count


def kernel_of(pass_name: str, desc: Any, dtype: str, device: str) -> tuple[str, str]:
    """Returns the kernel that alpha has chosen for a pass, and on a GPU the form that it reads."""
    if device == "cpu":
        from alpha.cpu import native
        return "compiled" if alpha.config.cpu_kernels and native.library() else "numpy", ""
    from alpha.cuda.conv.planner import plan, precision_of
    chosen = plan(pass_name, desc, precision_of(dtype)).chosen
    return chosen.name, chosen.reads


def ceilings(timing: ModuleType, size: int, copy_mib: int, precision: str, window: float = 100.0) -> Row:
    """Returns the rates of a large matrix product and a large copy of PyTorch, on a GPU with the clocks under load.

    A copy's bytes are counted twice: read and written.
    """
    torch = timing.strict_torch()
    allow_tf32(torch, precision)
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=timing.peer_device()).to(kind) for _ in range(2))
    side = Side(lambda k: a @ b)
    ms = medians(timing.alternate({"matmul": side}, 3, window))["matmul"]
    clocks = timing.smi_during(side, max(1, round(1500 / ms))) if hasattr(timing, "smi_during") else {}
    source, target = (torch.empty(copy_mib << 20, dtype=torch.uint8, device=timing.peer_device()) for _ in range(2))
    copy_ms = medians(timing.alternate({"copy": Side(lambda k: target.copy_(source))}, 3, window))["copy"]
    return {"matmul_tflops": 2 * size ** 3 / ms / 1e9, "matmul_size": size,
            "copy_gb_per_s": 2 * (copy_mib << 20) / copy_ms / 1e6, "copy_mib": copy_mib, **clocks}


# ---- tables ----------------------------------------------------------------------------------------------------------

HEAD = ("set", "convolution", "pass", "precision", "ms", "TFLOP/s", "PyTorch NCHW", "PyTorch NHWC", "ratio",
        "operands there", "bar", "useful TFLOP/s", "of roofline", "by Table II", "error alpha / PyTorch", "kernel")


def line(row: Row) -> str:
    """Returns a row of the table."""
    where = f"| {row['set']} | {row['shape']} | {row['pass']} | {row['precision']} |"
    if "failed" in row:
        return f"{where} FAILED: {row['failed']} |"
    t, share = row["tflops"], "-"
    if "of_roofline" in row:  # not in older files
        share = f"{100 * row['of_roofline']:.0f} % {mark(row['of_roofline'], row['roofline_bar'])}"
    return (f"{where} {row['ms']['alpha']:.3f} | {t['alpha']:.3g} | {t['torch_nchw']:.3g} | {t['torch_nhwc']:.3g} | "
            f"{row['ratio']:.2f} | {row.get('ratio_operands_there', row['ratio']):.2f} | "
            f"{mark(row['ratio'], row['bar'])} | {row['useful_tflops']['alpha']:.3g} | {share} | "
            f"{row['table2_tflops']['alpha']:.3g} | {row['error']['alpha']:.0e} / {row['error']['torch_nchw']:.0e} | "
            f"{row['kernel']} |")


def report(rows: Sequence[Row]) -> list[str]:
    """Returns the table, and the bars, met or missed."""
    rows = results.latest(rows, KEY)
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *map(line, rows)]
    judged = [row for row in rows if row.get("bar") is not None]
    useful = [row for row in rows if row.get("roofline_bar") is not None]
    good = [row for row in rows if "failed" not in row]
    for pass_name in PASSES:
        ratios = [row["ratio"] for row in good if row["pass"] == pass_name]
        if ratios:
            lines.append(f"{pass_name}: faster than PyTorch's better layout in {sum(r > 1 for r in ratios)} of "
                         f"{len(ratios)} cases")
    if judged:
        reached = sum(row["of_roofline"] >= row["roofline_bar"] for row in useful)
        lines.append(f"{sum(row['met'] for row in judged)} of {len(judged)} bars met; {reached} of {len(useful)} "
                     f"useful rates at {100 * ROOFLINE_BAR:.0f} % of the roofline")
    return [*lines, f"{len(rows) - len(good)} failed"]


# ---- command line ----------------------------------------------------------------------------------------------------


def jobs(sets: Sequence[str], passes: Sequence[str], device: str, batch: int, models: Sequence[str]
         ) -> list[tuple[str, ConvShape, list[str], Row]]:
    """Returns (set, convolution, passes, further facts); a network's first layer has no dgrad in training."""
    found: list[tuple[str, ConvShape, list[str], Row]] = []
    for name in sets:
        if name == "networks":
            found += [(name, shape, [p for p in passes if p != "dgrad" or shape.ic > 3], {"networks": where})
                      for shape, where in network_shapes(models, batch).items()]
        else:
            shapes = {"layers": SHAPES, "groups": GROUPS}.get(name) or paper(int(name[-1]), device)
            found += [(name, shape, list(passes), {}) for shape in shapes]
    return found


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, help="default: networks, paper3, paper5")
    parser.add_argument("--shapes", nargs="+", metavar="NAME", help="only these convolutions of the sets")
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="of the set networks")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=PRECISIONS)
    parser.add_argument("--fma", action="store_true", help="keep alpha's float32 off tensor cores")
    for name, what in (("batch", "images, in the set networks"), ("executions", "of each of the paper's cases"),
                       ("rounds", "of windows"), ("window", "milliseconds of calls in a row")):
        parser.add_argument(f"--{name}", type=type(GPU[name]), help=f"{what} (default: {GPU[name]}, cpu {CPU[name]})")
    add_common(parser, "convolution")
    args = parser.parse_args(argv)
    settle(args)
    args.sets = args.sets or list(SETS[:3])
    for name, value in (CPU if args.device == "cpu" else GPU).items():
        setattr(args, name, getattr(args, name, None) or value)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    try:
        checks.admit(args.precision, args.device, "conv_ops", args.busy)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    timing, file = timing_of(args.device), args.output / "conv_ops.jsonl"
    args.deadline = time.monotonic() + args.budget_s
    with alpha.config(tensor_cores=not args.fma):
        command = f"python -m benchmarks.conv_ops {' '.join(sys.argv[1:] if argv is None else argv)}".strip()
        facts = {**timing.start(command), **torch_facts(), "busy_allowed": args.busy, "executions": args.executions,
                 "rounds": args.rounds, "window_ms": args.window}
        if args.device == "cuda":
            facts["name"] = facts.pop("device")  # of the GPU; a row's device is the kind
        print("; ".join(f"{k}: {v}" for k, v in facts.items()))
        for precision in args.precision:
            run(args, timing, precision, facts, file)
    rows = results.read(file)
    print("\n" + "\n".join(report(rows)))
    plots.draw(args.output)
    return 1 if any("failed" in row for row in results.latest(rows, KEY)) else 0


def run(args: argparse.Namespace, timing: ModuleType, precision: str, facts: Row, file: Path) -> None:
    """Measures everything in one precision; a failure is a row, and the rest goes on."""
    facts = {**facts, **ceilings(timing, args.matmul, args.copy_mib, precision)}
    there = {results.key_of(row, KEY) for row in results.read(file) if "failed" not in row} if args.resume else set()
    for set_name, shape, passes, more in jobs(args.sets, args.passes, args.device, args.batch, args.models):
        if args.shapes and shape.name not in args.shapes:
            continue
        key = {"set": set_name, "shape": shape.name, "precision": precision, "settings": facts["settings"],
               "n": shape.n}
        wanted = [p for p in passes if results.key_of({**key, "pass": p}, KEY) not in there]
        if not wanted or time.monotonic() > args.deadline:
            continue
        operands = Operands(shape, timing, "bfloat16" if precision == "bf16" else "float32")
        allow_tf32(timing.strict_torch(), precision)
        for pass_name in wanted:
            try:
                row = measure(set_name, operands, pass_name, precision, facts, vars(args))
            except Exception as error:  # the other convolutions are of use without this one
                traceback.print_exc()
                row = {**key, "pass": pass_name, "failed": (str(error) or repr(error)).partition("\n")[0][:200]}
            results.record(file, facts, {**row, **more})
            print(line(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
