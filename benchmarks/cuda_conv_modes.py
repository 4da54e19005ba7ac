"""Convolutions on tensor cores in every precision, each tile by itself, beside cuDNN in float32, TF32 and bfloat16.

    python -m benchmarks.cuda_conv_modes [--shapes v1 d32] [--passes fprop dgrad wgrad] [--modes fp32 tf32 bf16 fp16]
                                         [--peers fp32 tf32 bf16] [--units wgmma mma] [--rounds 5] [--rest 0.15]
                                         [--sustained 0.6] [--split] [--counts] [--tiles 4] [--output FILE.jsonl]
                                         [--set alpha.cuda.conv.wgmma.schedule.SLICED_WAVES=1]

Normal data in buffers that rotate over more than the cache holds. Both libraries' calls are captured in CUDA graphs and
replayed between events, in bursts: windows of 12 ms, each after a rest, so that the clock is a cool device's; and
sustained: without a pause, of which the second half counts, at the clock that the power limit leaves. The tensor cores'
form of an array is made before ("us"), or with every call for the operand that a training step makes anew ("+split").
cuDNN searches for its fastest algorithm; float32 takes the faster of both layouts, the others channels_last. Where no
tile serves a layer, the kernel that is planned for it is measured. --tiles measures the first few by estimate beside
the planned one, and says how far that one is behind the best of them. --set gives constants of modules other values
than their own: it shows the worth of a choice without an edit. Shapes g8 to g832 (benchmarks/shapes.py: NARROW) run
where they are named.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import alpha
from alpha.cuda.conv import costs
from alpha.cuda.conv.costs import device, time_us
from alpha.cuda.conv.costs.records import changed
from alpha.cuda.conv.planner import plan, precision_of
from alpha.cuda.lazy import operand
from alpha.cuda.lazy.statistics import ask
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, empty
from alpha.errors import message
from benchmarks import cuda_timing as timing
from benchmarks.conv_sides import Call, Operands, alpha_call, error_of, torch_call
from benchmarks.environment import torch_facts
from benchmarks.results import Row, record
from benchmarks.shapes import NARROW, PASSES, SHAPES, ConvShape

UNITS = {"wgmma": ("alpha.cuda.conv.wgmma", "alpha.cuda.conv.wgmma.wgrad"),  # modules that have CANDIDATES
         "mma": ("alpha.cuda.conv.mma.mma",)}
MODES = {"fp32": ("float16x2", "float32"), "tf32": ("float16", "float32"), "bf16": ("bfloat16", "bfloat16"),
         "fp16": ("float16", "float16")}
PEERS = ("fp32", "tf32", "bf16")
ERROR_BOUNDS = {"fp32": 2e-6, "tf32": 6e-4, "bf16": 5e-3, "fp16": 6e-4}
BEHIND = 1.05  # times the best tile's time: a planned tile above it is told
COMPARED = (("fp32", "fp32"), ("fp32", "tf32"), ("tf32", "tf32"), ("bf16", "bf16"))
WINDOW_MS = 12.0


def candidates(pass_name: str, mode: str, units: Iterable[str] = tuple(UNITS)) -> list[Any]:
    """Returns the tiles of a pass that read and write the mode's arrays; units: the instructions they multiply by."""
    reads, writes = MODES[mode]
    found = [c for unit in units for name in UNITS[unit] for c in import_module(name).CANDIDATES]
    return [c for c in found if c.pass_name == pass_name and c.reads == reads
            and (pass_name == "wgrad" or c.writes == writes)]


def tile_call(operands: Operands, candidate: Any, split: bool, counts: bool = False) -> Call:
    """Returns a candidate's launch as a function of the number of the call, which returns the output.

    split: its form of the activations, or of the gradient, is made with every call.
    counts: the output's statistics are counted too, for a batch norm (alpha/cuda/lazy/statistics.py).
    """
    pass_name, desc = candidate.pass_name, operands.shape.desc
    launch, shape = candidate.prepare(desc), {"fprop": desc.y_shape, "dgrad": desc.x_shape, "wgrad": desc.w_shape}
    out_dtype = "float32" if pass_name == "wgrad" else candidate.writes
    sets = operands.wrapped()
    outs = [empty(shape[pass_name], out_dtype) for _ in sets]

    def call(k: int) -> Array:
        (x, w, g), out = sets[k % len(sets)], outs[k % len(sets)]
        if split:
            (g if pass_name == "dgrad" else x).derived = None
        else:
            for t in (x, w, g):
                operand(t, candidate.reads)  # kept
        launch(*{"fprop": (x, w), "dgrad": (g, w), "wgrad": (x, g)}[pass_name], ask(out) if counts else out)
        return out
    return call


def planned_call(operands: Operands, pass_name: str, mode: str) -> tuple[str, Call]:
    """Returns the kernel that the plan chooses where no tile of these units fits, and the op that launches it."""
    call = alpha_call(operands, pass_name, "cuda")

    def in_mode(k: int) -> Array:
        with alpha.precision(mode):
            return call(k)
    with alpha.precision(mode):
        return plan(pass_name, operands.shape.desc, precision_of(operands.dtype)).chosen.name, in_mode


# ---- time ------------------------------------------------------------------------------------------------------------


def times_us(call: Call, sets: int, stream: Any, args: argparse.Namespace) -> dict[str, float]:
    """Returns the microseconds of a call: the median of windows of replayed graphs after rests, and sustained.

    stream: PyTorch's view of the stream that the calls go to.
    """
    import torch
    if not torch.cuda.is_available():
        call(0)
        return {"us": float("nan"), "sustained_us": float("nan")}
    with torch.cuda.stream(stream):
        for k in range(sets + 1):
            call(k)
    timing.synchronize()
    graph, begin, end = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        for k in range(sets):
            call(k)

    def window(count: int, before: int = 0) -> float:
        torch.cuda.synchronize()
        for _ in range(before):
            graph.replay()
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / count
    window(1)
    ms, times = window(1), []
    for _ in range(args.rounds):
        time.sleep(args.rest)
        window(1)
        times.append(window(max(1, round(WINDOW_MS / ms))))
    half = max(1, round(args.sustained * 500 / ms))
    sustained = window(half, before=half) if args.sustained else float("nan")
    return {"us": statistics.median(times) * 1e3 / sets, "sustained_us": sustained * 1e3 / sets}


def measure(shape: ConvShape, pass_name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each of alpha's tiles and each of cuDNN's precisions."""
    import torch
    torch.backends.cudnn.benchmark = True
    ours, theirs = ((torch.cuda.ExternalStream(context.stream.handle), torch.cuda.Stream())
                    if torch.cuda.is_available() else (None, None))
    rows: list[dict[str, Any]] = []
    for dtype in ("float32", "bfloat16", "float16"):
        modes = [m for m in args.modes if (MODES[m][1]) == dtype]
        peers = [p for p in args.peers if ("bfloat16" if p == "bf16" else "float32") == dtype]
        if not modes + peers:
            continue
        operands = Operands(shape, timing, dtype)

        def add(name: str, mode: str, call: Call, stream: Any, error: float, by_cost: float = float("nan"),
                operands: Operands = operands) -> None:
            rows.append({"shape": shape.name, "pass": pass_name, "side": name, "mode": mode, "error": error,
                         "estimate_us": by_cost, **times_us(call, operands.sets, stream, args)})
        for mode in modes:
            fitting = [c for c in candidates(pass_name, mode, args.units) if not c.rejection(shape.desc)]
            fitting.sort(key=lambda c: time_us(c.cost(shape.desc)))
            if not fitting:
                name, call = planned_call(operands, pass_name, mode)
                add(name, mode, call, ours, error_of(operands, pass_name, timing.view(call(0))))
            for number, candidate in enumerate(fitting[:args.tiles]):
                call = tile_call(operands, candidate, False)
                result = timing.view(call(0))
                timing.synchronize()
                error = error_of(operands, pass_name, result)
                if not error < ERROR_BOUNDS[mode]:
                    raise ValueError(f"{candidate.name}: relative error {error}, {ERROR_BOUNDS[mode]} is allowed")
                cost = time_us(candidate.cost(shape.desc))
                add(candidate.name, mode, call, ours, error, cost)
                if args.split and number == 0:
                    add(f"{candidate.name} +split", mode, tile_call(operands, candidate, True), ours, error)
                if args.counts and pass_name == "fprop":
                    add(f"{candidate.name} +counts", mode, tile_call(operands, candidate, False, True), ours, error)
        for peer in peers:
            torch.backends.cudnn.allow_tf32 = peer == "tf32"
            layouts = (True, False) if peer == "fp32" else (True,)
            for channels_last in layouts:
                call = torch_call(operands, pass_name, channels_last)
                error = error_of(operands, pass_name, call(0).permute(0, 2, 3, 1))
                add(f"cuDNN {'NHWC' if channels_last else 'NCHW'}", peer, call, theirs, error)
    return rows


def line(shape: ConvShape, row: dict[str, Any]) -> str:
    tflops = shape.desc.nominal_flops / row["us"] / 1e6
    useful = shape.desc.useful_flops / row["us"] / 1e6
    return (f"{row['shape']:5} {row['pass']} {row['mode']} {row['side']:42} {row['us']:7.1f} us "
            f"({row['estimate_us']:6.1f}) {tflops:6.0f} nominal {useful:6.0f} useful, error {row['error']:.1e}")


def summary(rows: Sequence[Row]) -> list[str]:
    """Returns how alpha's modes stand beside cuDNN's, a line for each pair and protocol."""
    lines = []
    for key, protocol in (("us", "burst"), ("sustained_us", "sustained")):
        times: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
        for row in rows:
            side, us = "cuDNN" if row["side"].startswith("cuDNN") else "alpha", row[key]
            if us == us and not row["side"].endswith(("+split", "+counts")):
                best = times.setdefault((side, row["mode"]), {})
                at = row["shape"], row["pass"]
                best[at] = min(us, best.get(at, us))
        for mode, peer in COMPARED:
            ours, theirs = times.get(("alpha", mode), {}), times.get(("cuDNN", peer), {})
            ratios = {at: theirs[at] / us for at, us in ours.items() if at in theirs}
            if ratios:
                least = min(ratios, key=lambda at: ratios[at])
                lines.append(f"{protocol}: {mode} beside cuDNN's {peer}: geometric mean "
                             f"{statistics.geometric_mean(ratios.values()):.2f}, least {ratios[least]:.2f} "
                             f"({' '.join(least)}), {len(ratios)} cases")
    return lines


def behind(rows: Sequence[Row]) -> list[str]:
    """Returns the cases in which the planned tile, the first of its case, is slower than another measured one."""
    tiles: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if not row["side"].startswith("cuDNN") and not row["side"].endswith(("+split", "+counts")):
            tiles.setdefault((row["shape"], row["pass"], row["mode"]), []).append(row)
    lines, several = [], [found for found in tiles.values() if len(found) > 1]
    for planned, *_ in several:
        best = min(tiles[planned["shape"], planned["pass"], planned["mode"]], key=lambda row: row["us"])
        if planned["us"] > BEHIND * best["us"]:
            lines.append(f"{planned['shape']} {planned['pass']} {planned['mode']}: {planned['side']} "
                         f"{planned['us']:.1f} us is planned, {best['side']} takes {best['us']:.1f}")
    if several:
        lines.append(f"the planned tile is within {BEHIND - 1:.0%} of the best of those measured in "
                     f"{len(several) - len(lines)} of {len(several)} cases")
    return lines


CONSTANTS = "costs."     # before the place of a constant of the device's class


def set_constant(assignment: str) -> None:
    """Gives a constant another value; `assignment`: "module.NAME=value".  Raises ValueError."""
    path, _, value = assignment.partition("=")
    owner, _, name = path.rpartition(".")
    try:
        new = ast.literal_eval(value)
        if path.startswith(CONSTANTS):
            on = device()
            before = attrgetter(path.removeprefix(CONSTANTS))(on.table)
            costs.TABLES[on.costs] = changed(on.table, path.removeprefix(CONSTANTS), new)
        else:
            there = resolve_name(owner)
            before = getattr(there, name)
            setattr(there, name, new)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise ValueError(message(
            "cuda_conv_modes", f"--set {assignment}: {error}",
            "write OWNER.NAME=VALUE, as in costs.wgmma.box_us=0.02 for a constant of the device's class, or "
            "alpha.cuda.conv.wgmma.STREAMED_BYTES=2e7")) from None
    print(f"{path} = {new!r}, not {before!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [s.name for s in (*SHAPES, *NARROW)]
    parser.add_argument("--shapes", nargs="+", default=names[:len(SHAPES)], choices=names, metavar="NAME")
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--modes", nargs="*", default=["fp32", "tf32", "bf16"], choices=list(MODES))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--units", nargs="+", default=list(UNITS), choices=list(UNITS))
    parser.add_argument("--tiles", type=int, default=1, help="how many are measured, those with the least cost first")
    parser.add_argument("--split", action="store_true", help="also with the operand made anew")
    parser.add_argument("--counts", action="store_true", help="also with the statistics that batch norm begins with")
    parser.add_argument("--set", nargs="*", default=[], metavar="OWNER.NAME=VALUE", help="other values of constants")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rest", type=float, default=0.15, help="seconds before each window")
    parser.add_argument("--sustained", type=float, default=0.0, help="seconds without a pause, too")
    parser.add_argument("--output", type=Path, help="append the results to this file, a JSON object a line")
    args = parser.parse_args()
    for assignment in args.set:
        set_constant(assignment)
    facts = timing.start(f"python -m benchmarks.cuda_conv_modes {' '.join(sys.argv[1:])}".strip()) | torch_facts()
    print("; ".join(f"{k}: {v}" for k, v in facts.items()))
    found = []
    for shape in (s for s in (*SHAPES, *NARROW) if s.name in args.shapes):
        for pass_name in args.passes:
            try:
                rows = measure(shape, pass_name, args)
            except Exception:  # the other layers are of use without this one
                traceback.print_exc()
                continue
            found += rows
            for row in rows:
                record(args.output, facts, row)
                print(line(shape, row), flush=True)
    print("\n".join(summary(found) + behind(found)))


if __name__ == "__main__":
    main()
