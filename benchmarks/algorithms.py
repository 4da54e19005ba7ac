"""The algorithms of convolution beside one another: work, depth, the model's estimate, and the clock's time.

    python -m benchmarks.algorithms --output benchmarks/results/<machine>/algorithms.jsonl
    python -m benchmarks.algorithms --kernels 3 7 --maps 28 56 --channels 64 --passes fprop
    ALPHA_CPU_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python -m benchmarks.algorithms ...
    python -m benchmarks.algorithms --resume --budget-s 300 --output FILE       goes on where FILE ends
    python -m benchmarks.algorithms --depthwise --kernels 7 31 --maps 28 56 --channels 64
    python -m benchmarks.algorithms --layers vgg16          W, D and W/D of a network's convolutions
    python -m benchmarks.algorithms --plot FILE             the pictures of a file of results
    python -m benchmarks.algorithms --judge FILE            a CPU's results beside the choices of the model as it is now
    python -m benchmarks.algorithms --device cuda --shapes v1 v2 v3 v4 --fma --output FILE
    python -m benchmarks.algorithms --device cuda --kernels 13 31 --maps 56 --channels 384 --depthwise

A cell is a kernel size, a map, a number of channels and a pass; batches are such that a cell has about as much work
wherever it can. All that serve a cell are computed, compared with float64, and then timed in turn; cells past the
limits of work or memory are computed by the model alone. Peers: PyTorch's conv2d and its gradients, torch.fft on whole
maps, scipy.signal.fftconvolve where the convolution is depthwise. On a GPU the cells are larger, PyTorch's convolution
is there in both layouts, strict and with TF32; --fma leaves tensor cores aside, as devices without them for float32.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import ops
from alpha.cpu.algorithms.machines import MACHINES, choose
from alpha.errors import AlphaError
from alpha.ops.algorithms.family import Way, cost_of
from alpha.ops.algorithms.names import CONV_NAMES
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Choice, Cost, Rates, Request, time_us
from benchmarks import cpu_timing
from benchmarks.algorithm_peers import peers
from benchmarks.environment import add_clock, check_clock, torch_facts
from benchmarks.results import Row, key_of, latest, read, record
from benchmarks.rounds import Side, medians
from benchmarks.shapes import PASSES, ConvShape, squares

KERNELS, MAPS, CHANNELS = (1, 3, 5, 7, 9, 11, 15, 31), (4, 7, 8, 14, 16, 28, 32, 56, 112, 224), (16, 64, 128, 256, 512)
CELL_FLOPS, MOST_FLOPS, MOST_BYTES = 4e9, 2e12, 4 << 30     # aimed at; computed, but not run, above
DEPTHWISE_FLOPS = 3e8                                       # aimed at on a CPU
MOST_IMAGES = 64
LIMIT = 1 << 30                                             # workspace: to see larger ones, too
ALGORITHMS = CONV_NAMES[1:]
CELL = ("machine", "cell", "n", "pass")                     # fields that tell the rows of a CPU apart


def operands(desc: ConvDesc) -> dict[str, np.ndarray]:
    """Returns x after a relu, w after He, and g."""
    rng = np.random.default_rng(0)
    fan = desc.ic // desc.groups * desc.h.f * desc.w.f
    return {"x": np.maximum(rng.standard_normal(desc.x_shape, np.float32), 0),
            "w": (rng.standard_normal(desc.w_shape, np.float32) * np.float32(np.sqrt(2 / fan))),
            "g": rng.standard_normal(desc.y_shape, np.float32)}


def call_of(shape: ConvShape, pass_name: str, arrays: dict[str, np.ndarray], name: str) -> Callable[[], Any]:
    """Returns the call of an op with an algorithm."""
    t = {key: alpha.tensor(a) for key, a in arrays.items()}
    attrs = {**shape.geometry, "algorithm": name}
    if pass_name == "fprop":
        return partial(ops.conv2d, t["x"], t["w"], **attrs)
    if pass_name == "dgrad":
        return partial(ops.conv2d_dgrad, t["g"], t["w"], hw=shape.hw, **attrs)
    return partial(ops.conv2d_wgrad, t["x"], t["g"], f=shape.f, **attrs)


def rates_of(machine: str, threads: int) -> Rates:
    """Returns the rates of a class of machines with so many threads: each has its core and cache, memory is shared."""
    one = MACHINES[machine].rates
    return one._replace(work={unit: threads * rate for unit, rate in one.work.items()},
                        nbytes={level: rate * (1 if level == "dram" else threads)
                                for level, rate in one.nbytes.items()})


def model(pass_name: str, desc: ConvDesc, machine: str, name: str, threads: int) -> tuple[Way, Cost, float] | None:
    """Returns the way that a name would take, its cost, and the milliseconds that are expected; None: it cannot."""
    try:
        taken = choose(pass_name, desc, Request(name, True), machine, LIMIT).taken
    except AlphaError:
        return None
    cost = taken.cost(desc)
    return taken.way, cost, time_us(cost, rates_of(machine, threads)) / 1e3


def measured(shape: ConvShape, pass_name: str, names: Sequence[str], rounds: int, beside: str, clock: str
             ) -> tuple[dict[str, list[float]], Row]:
    """Returns the milliseconds of each algorithm, and peer that is wanted, by rounds in turn, and the errors."""
    arrays, desc = operands(shape.desc), shape.desc
    wide = {key: a.astype(np.float64) for key, a in arrays.items()}
    exact = call_of(shape, pass_name, wide, "direct")().numpy()
    calls = {name: call_of(shape, pass_name, arrays, name) for name in names}
    if beside != "none":
        calls.update((name, call) for name, call in peers(pass_name, desc, arrays).items()
                     if beside == "all" or name == "torch")
    errors = {}
    for name, call in calls.items():
        y = call()
        y = y.numpy() if hasattr(y, "numpy") else y
        y = np.moveaxis(y, 1, 3) if name in ("torch", "torch.fft") else y
        errors[name] = float(np.linalg.norm(y - exact) / np.linalg.norm(exact))
    if beside != "none" and alpha.config.num_threads:
        cpu_timing.strict_torch().set_num_threads(alpha.config.num_threads)
    sides = {name: Side(lambda k, call=call: call()) for name, call in calls.items()}   # type: ignore[misc]
    return cpu_timing.alternate(sides, rounds, clock=clock), errors


def run_cell(shape: ConvShape, pass_name: str, machine: str, args: argparse.Namespace) -> Row:
    """Returns the row of a cell."""
    desc = shape.desc
    free: Choice = choose(pass_name, desc, Request(), machine, args.workspace << 20)
    threads = alpha.config.num_threads or len(os.sched_getaffinity(0))
    names = dict.fromkeys((*args.algorithms, free.taken.way.name))
    found = {name: model(pass_name, desc, machine, name, threads) for name in names}
    row: Row = {"cell": shape.name, "n": shape.n, "hw": shape.hw, "channels": shape.ic, "f": shape.f,
                "groups": shape.groups, "pass": pass_name, "threads": threads, "clock": args.clock,
                "chosen": free.taken.way.name, "chosen_way": str(free.taken.way), "algorithms": {}}
    for name, known in found.items():
        if known:
            way, cost, expected_ms = known
            row["algorithms"][name] = {
                "way": str(way), "work": cost.work, "depth": cost.depth, "parallelism": cost.work / max(1, cost.depth),
                "nbytes": cost.nbytes, "workspace": cost.workspace, "expected_ms": expected_ms, "bound": cost.error}
    small = desc.nominal_flops <= MOST_FLOPS and desc.nbytes() + max(
        (a["workspace"] for a in row["algorithms"].values()), default=0) <= MOST_BYTES
    if small and not args.model:
        with alpha.config(conv_workspace_mib=LIMIT >> 20):
            rounds, row["errors"] = measured(shape, pass_name, list(row["algorithms"]), args.rounds,
                                             args.peers, args.clock)
        times = row["ms"] = medians(rounds)
        row["spread"] = {name: float(np.subtract(*np.quantile(values, (0.75, 0.25)))) / times[name]
                         for name, values in rounds.items()}
        row["best"] = min((times[name], name) for name in row["algorithms"])[1]
        row["regret"] = times[row["chosen"]] / times[row["best"]] - 1
    return row


def told(row: Row) -> str:
    """Returns the lines of a row for people."""
    lines = [f"{row['cell']:16} x {row['n']:<3} {row['pass']}: takes {row['chosen_way']}"
             + (f", best {row['best']}, regret {row['regret']:.1%}" if "best" in row else "")]
    for name, a in row["algorithms"].items():
        text = (f"  {a['way']:14} W {a['work'] / 1e9:9.3f} GFLOP  D {a['depth']:3}  W/D {a['parallelism']:9.2e}  "
                f"{a['nbytes'] / 1e6:9.1f} MB  workspace {a['workspace'] / 1e6:8.1f} MB  "
                f"model {a['expected_ms']:9.3f} ms")
        if "ms" in row:
            text += f"  clock {row['ms'][name]:9.3f} ms  error {row['errors'].get(name, 0):.1e}"
        lines.append(text)
    for name in row.get("ms", {}):
        if name not in row["algorithms"]:
            lines.append(f"  {name:14} {'':92}  clock {row['ms'][name]:9.3f} ms  error {row['errors'][name]:.1e}")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Returns how far the model and the choice are from the clock."""
    run = [row for row in rows if "ms" in row]
    if not run:
        return "nothing was timed"
    off = [abs(np.log2(a["expected_ms"] / row["ms"][name])) for row in run for name, a in row["algorithms"].items()]
    good = sum(row["regret"] <= 0.1 for row in run)
    slower = max((row["ms"][row["chosen"]] / row["ms"]["direct"] for row in run if "direct" in row["ms"]),
                 default=np.nan)
    return (f"{len(run)} cells: within 10 % of the best in {good / len(run):.0%}, at most {slower:.2f} times direct; "
            f"median |log2(model / clock)| {np.median(off):.2f}")


def judged(rows: Sequence[Row], workspace: int) -> list[Row]:
    """Returns rows that a CPU timed with the model's estimates and choices of now, the worst choice first.

    An algorithm that would take another tile than was timed is left out, and with it a cell where it is chosen.
    """
    found = []
    for row in latest([row for row in rows if "ms" in row], CELL):
        c, f, ms = row["channels"], row["f"], row["ms"]
        desc = ConvShape(row["cell"], row["n"], row["hw"], c, c, f, f // 2, 1, row.get("groups", 1)).desc
        chosen = choose(row["pass"], desc, Request(), row["machine"], workspace).taken.way
        kept = {}
        for name, a in row["algorithms"].items():
            now = model(row["pass"], desc, row["machine"], name, row["threads"])
            if now and str(now[0]) == a["way"]:
                kept[name] = {**a, "expected_ms": now[2]}
        if kept.get(chosen.name, {}).get("way") == str(chosen):
            best = min(kept, key=ms.__getitem__)
            found.append({**row, "algorithms": kept, "chosen": chosen.name, "best": best,
                          "regret": ms[chosen.name] / ms[best] - 1})
    return sorted(found, key=lambda row: -row["regret"])


def layers(name: str, batch: int = 32) -> None:
    """Prints W, D and W/D of the convolutions of a network's training step, as direct computes them."""
    import models
    from alpha import nn
    found: list[tuple[str, ConvDesc]] = []

    def note(module: nn.Conv2d, inputs: Any, output: Any) -> None:
        desc = ConvDesc.fprop(inputs[0].shape, module.weight.shape, **module.geometry)
        found.append((type(module).__name__, desc))
    net = models.create(name)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note)
    with alpha.no_grad():
        net(ops.zeros((batch, 32, 32, 3)))
    for _, desc in found:
        for pass_name in PASSES:
            cost = cost_of(Way("direct"), pass_name, desc)
            print(f"{desc.x_shape!s:22} {desc.w_shape!s:20} {pass_name}  W {cost.work / 1e9:8.3f} GFLOP  "
                  f"D {cost.depth:3}  W/D {cost.work / max(1, cost.depth):.2e}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.algorithms", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--kernels", type=int, nargs="+", default=KERNELS)
    made.add_argument("--maps", type=int, nargs="+", default=MAPS)
    made.add_argument("--channels", type=int, nargs="+", default=CHANNELS)
    made.add_argument("--passes", nargs="+", default=PASSES, choices=PASSES)
    made.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=ALGORITHMS)
    made.add_argument("--rounds", type=int, default=9)
    made.add_argument("--workspace", type=int, default=256, help="MiB, for the choice")
    made.add_argument("--peers", choices=("all", "strict", "none"), default="all",
                      help="PyTorch and SciPy; strict: PyTorch's convolutions alone, without TF32")
    made.add_argument("--model", action="store_true", help="only what the model expects; nothing is run")
    made.add_argument("--layers", help="only the work and depth of a network's convolutions")
    made.add_argument("--plot", type=Path, help="draw the pictures of a file of results beside it")
    made.add_argument("--judge", type=Path, help="how far the choices are from the best of a file of a CPU's results")
    made.add_argument("--output", type=Path)
    made.add_argument("--resume", action="store_true", help="on a CPU: leave out the cells that the output has already")
    made.add_argument("--budget-s", type=float, default=float("inf"), help="on a CPU: begin no cell later than this")
    add_clock(made)
    made.add_argument("--threads", type=int, default=0, help="on a CPU, of alpha and PyTorch (default: all cores)")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--depthwise", action="store_true", help="a filter for each channel")
    cuda = made.add_argument_group("on a GPU")
    cuda.add_argument("--shapes", nargs="+", default=(), help="cells of benchmarks/shapes.py, in the place of kernels, "
                      "maps and channels")
    cuda.add_argument("--fma", action="store_true", help="ALPHA_TENSOR_CORES=0")
    cuda.add_argument("--window", type=float, default=15.0, help="milliseconds of calls in a row")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    args = (made := parser()).parse_args(argv)
    check_clock(made, args)
    if args.layers:
        return layers(args.layers)
    if args.plot:
        from benchmarks.algorithm_plots import draw
        rows = read(args.plot)
        if all("machine" in row for row in rows):       # of a CPU: with the model as it is now
            rows = judged(rows, args.workspace << 20)
        return print("\n".join(map(str, draw(rows, args.plot.parent))))
    if args.judge:
        rows = judged(read(args.judge), args.workspace << 20)
        for row in rows:
            print(f"{row['cell']:16} x {row['n']:<3} {row['pass']}: {row['chosen']:9} regret {row['regret']:.1%}")
        return print(summary(rows))
    rows = []
    for facts, row in (on_cuda if args.device == "cuda" else on_cpu)(args):
        rows.append(row)
        record(args.output, facts, row)
        print(told(row), flush=True)
    print(summary(rows))


def on_cpu(args: argparse.Namespace) -> Iterator[tuple[Row, Row]]:
    """Yields facts and the row of each cell; with --resume of those that the output does not have of this machine."""
    deadline = time.monotonic() + args.budget_s
    facts = cpu_timing.start("benchmarks.algorithms", *(() if args.peers == "none" else ("torch", "scipy")))
    if args.peers != "none":
        facts |= {**torch_facts(), **({"torch_threads": str(args.threads)} if args.threads else {})}
    from alpha.cpu import native
    from alpha.cpu.algorithms import machine_key
    machine = machine_key() if native.library() else "numpy"
    there = {key_of(row, CELL) for row in (read(args.output) if args.resume and args.output else ())}
    flops = DEPTHWISE_FLOPS if args.depthwise else CELL_FLOPS
    for shape in squares(args.kernels, args.maps, args.channels, args.depthwise, flops, MOST_IMAGES):
        for pass_name in args.passes:
            with alpha.config(num_threads=args.threads):
                if (machine, shape.name, shape.n, pass_name) not in there and time.monotonic() < deadline:
                    yield {**facts, "machine": machine}, run_cell(shape, pass_name, machine, args)


def on_cuda(args: argparse.Namespace) -> Iterator[tuple[Row, Row]]:
    """As on_cpu; a cell that fails is told, and the others go on."""
    from benchmarks import algorithms_cuda, cuda_timing
    facts = cuda_timing.start("benchmarks.algorithms", "torch")
    for shape, desc in algorithms_cuda.cells(args):
        for pass_name in args.passes:
            try:
                with alpha.config(tensor_cores=not args.fma):
                    yield facts, algorithms_cuda.run_cell(shape, desc, pass_name, args)
            except (AlphaError, RuntimeError):
                traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
