"""How near the memory-bound kernels come to the speed of a copy, on large tensors, with PyTorch's time beside each.

    python -m benchmarks.cuda_bandwidth [--families elementwise norm] [--dtypes float32 bfloat16] [--output FILE.jsonl]

A kernel's bytes are those that must move: every argument read once (more often only where a sum over all of it must be
known first), every output written once, within the call, and arguments changed in place both. Its rate is compared with
the best copy on the device that this very run has seen. Before a kernel is timed, its values are compared with
PyTorch's or the CPU's.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha  # noqa: F401  registers the ops
from alpha.core.device import get_backend
from alpha.core.op import Op, registry
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array
from benchmarks import cuda_timing as timing
from benchmarks.bandwidth_jobs import BAR_FAMILIES, FAMILIES, HALF_FAMILIES, Data, Job
from benchmarks.environment import torch_facts
from benchmarks.results import record
from benchmarks.rounds import ROUNDS, WINDOW_MS, Side, mark, medians, relative_error

BAR = 0.85  # of the copy
IMAGES = 512  # 512 x 32 x 32 x 64 float32 are 134 MB
LARGE = 1 << 30
BOUNDS = {"bfloat16": 1.2e-2, "float16": 2e-3}


def attributes(op: Op, attrs: dict[str, Any]) -> dict[str, Any]:
    """Returns an op's attributes as its implementations take them."""
    return op.canonical(**attrs)


def apply(f: Callable[[Any], Any], args: list[Any]) -> list[Any]:
    """Maps the tensors of an argument list; lists stay lists, numbers and None stay."""
    return [[f(t) for t in a] if isinstance(a, list) else a if isinstance(a, (int, float)) or a is None else f(a)
            for a in args]


def arrays(value: Any) -> list[Array]:
    """Returns the arrays in an argument or a result."""
    return [value] if isinstance(value, Array) else list(value) if isinstance(value, (list, tuple)) else []


def written(value: Any) -> list[Array]:
    """Returns the arrays in a result, after their elements are written: a Deferred waits until it is read."""
    found = arrays(value)
    for y in found:
        y.ptr  # noqa: B018  to take it has them written
    return found


def bytes_moved(op: Op, job: Job, args: list[Any], outs: list[Array]) -> int:
    """Returns the bytes that a call must read and write."""
    total = sum(y.nbytes for y in outs)
    for spec, value in zip(op.args, args):
        times = job.reads.get(spec.name, 1) + (spec.name in op.mutates)
        total += times * sum(x.nbytes for x in arrays(value))
    return total


# ---- values ----------------------------------------------------------------------------------------------------------


def compare(op: Op, job: Job, given: list[Any], dtype: str) -> tuple[float, int]:
    """Runs the op once and returns its largest relative error and its bytes.  Raises ValueError where values differ.

    Args:
        given: arguments as PyTorch tensors; they stay as they are.
    """
    attrs, count = attributes(op, job.attrs), len(op.args)
    theirs = apply(lambda t: t.clone(), given)
    ours = apply(lambda t: timing.wrap(t.clone()), given[:count])
    outs = written(op.impls["cuda"](*ours, **attrs))
    nbytes = bytes_moved(op, job, ours, outs)
    if job.peer is not None and job.exact_peer:
        made = job.peer(*theirs)
        expected = [made] if timing.is_tensor(made) else list(made or [])
    else:
        theirs, expected = on_cpu(op, theirs[:count], attrs)
    pairs = list(zip(outs, expected))
    for spec, value, changed in zip(op.args, ours, theirs):
        if spec.name in op.mutates:
            pairs += zip(arrays(value), changed if isinstance(changed, list) else [changed])
    bound = max(job.bound, BOUNDS.get(dtype, 0.0))
    errors = [relative_error(timing.view(x), t.reshape(x.shape).to(timing.peer_device()))
              for x, t in pairs if t is not None]
    if not errors or not all(error < bound for error in errors):
        raise ValueError(f"{op.name} {job.label}: relative errors {errors}, {bound} is allowed")
    return max(errors), nbytes


def on_cpu(op: Op, args: list[Any], attrs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Returns the arguments and the outputs, as tensors, of the CPU's implementation in float32."""
    import torch
    get_backend("cpu")
    held = apply(lambda t: (t.float() if t.is_floating_point() else t).cpu().numpy().copy(), args)
    made = op.impls["cpu"](*held, **attrs)
    outs = [made] if isinstance(made, np.ndarray) else list(made or [])
    return apply(torch.from_numpy, held), [torch.from_numpy(np.asarray(y)) for y in outs]


# ---- time ------------------------------------------------------------------------------------------------------------


def measure(family: str, job: Job, dtype: str, copy_gb_per_s: float, rounds: int, window: float) -> dict[str, Any]:
    """Returns the figures of one kernel."""
    op = registry[job.op]
    given = [job.make()]
    error, nbytes = compare(op, job, given[0], dtype)
    given += [job.make() for _ in range(timing.sets_for(nbytes) - 1)]
    run, attrs, count = op.impls["cuda"], attributes(op, job.attrs), len(op.args)
    ours = [apply(timing.wrap, args[:count]) for args in given]
    sides = {"alpha": Side(lambda k: written(run(*ours[k % len(ours)], **attrs)), context.stream)}
    if job.peer is not None:
        peer = job.peer
        theirs = [apply(lambda t: t.clone(), args) for args in given] if op.mutates else given
        sides["torch"] = Side(lambda k: peer(*theirs[k % len(theirs)]))
    times = timing.alternate(sides, rounds, window)
    ms = medians(times)
    rates = {name: nbytes / t / 1e6 for name, t in ms.items()}
    share = rates["alpha"] / copy_gb_per_s
    asked = BAR if family in BAR_FAMILIES else None
    return {"family": family, "op": job.op, "label": job.label, "dtype": dtype, "nbytes": nbytes, "sets": len(given),
            "ms": ms, "ms_rounds": times, "gb_per_s": rates, "of_copy": share, "bar": asked,
            "met": None if asked is None else share >= asked, "error": error}


def copy_rate(nbytes: int, rounds: int, window: float) -> float:
    """Returns the GB/s, read and written, of a copy of this many bytes by the driver."""
    pairs = [(memory.empty((nbytes,), "uint8"), memory.empty((nbytes,), "uint8"))
             for _ in range(timing.sets_for(2 * nbytes))]
    side = Side(lambda k: memory.copy(*pairs[k % len(pairs)]), context.stream)
    return 2 * nbytes / medians(timing.alternate({"copy": side}, rounds, window))["copy"] / 1e6


def line(row: dict[str, Any]) -> str:
    """Returns a row of the table."""
    name = f"| {row['op']} {row['label']} | {row['dtype']} |"
    if "failed" in row:
        return f"{name} FAILED: {row['failed']} |"
    rate = row["gb_per_s"]
    torch = f"{row['ms']['torch']:.4f} | {row['ms']['torch'] / row['ms']['alpha']:.2f}" if "torch" in rate else "- | -"
    return (f"{name} {row['nbytes'] / 1e6:.0f} | {row['ms']['alpha']:.4f} | {rate['alpha']:.0f} | "
            f"{100 * row['of_copy']:.0f} % {mark(row['of_copy'], row['bar'])} | {torch} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"],
                        choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--images", type=int, default=IMAGES, help="size of the large tensors; 16 bits: twice it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--window-ms", type=float, default=WINDOW_MS, help="time of a window of calls")
    parser.add_argument("--output", type=Path, help="append the results to this file, a JSON object a line")
    args = parser.parse_args()
    facts = timing.start(f"python -m benchmarks.cuda_bandwidth --families {' '.join(args.families)} --dtypes "
                         f"{' '.join(args.dtypes)} --images {args.images} --rounds {args.rounds} "
                         f"--window-ms {args.window_ms:g}")
    torch = timing.strict_torch()
    torch.manual_seed(0)
    tensor_bytes = args.images * 32 * 32 * 64 * 4
    copies = {f"copy_{n >> 20}_mib_gb_per_s": copy_rate(n, args.rounds, args.window_ms)
              for n in (tensor_bytes, max(LARGE * args.images // IMAGES, 1 << 20))}
    best_copy = max(copies.values())
    facts |= {**torch_facts(), **copies}
    rows = []
    for dtype in args.dtypes:
        data = Data(torch, timing.peer_device(), dtype, args.images * (1 if dtype == "float32" else 2))
        for family in args.families:
            for job in FAMILIES[family](data) if dtype == "float32" or family in HALF_FAMILIES else ():
                try:
                    row = measure(family, job, dtype, best_copy, args.rounds, args.window_ms)
                except Exception as error:  # the other kernels are of use without this one
                    traceback.print_exc()
                    row = {"family": family, "op": job.op, "label": job.label, "dtype": dtype,
                           "failed": (str(error) or repr(error)).partition("\n")[0][:160]}
                rows.append(row)
                record(args.output, facts, row)
    print("\n" + "; ".join(f"{k}: {v}" for k, v in facts.items()))
    print(f"| kernel | dtype | MB | ms | GB/s | of {best_copy:.0f} GB/s | torch ms | ratio |\n|" + "---|" * 8)
    print("\n".join(map(line, rows)))
    judged = [row for row in rows if row.get("bar") is not None]
    failed = sum("failed" in row for row in rows)
    print(f"{sum(row['met'] for row in judged)} of {len(judged)} bars met; {failed} failed")


if __name__ == "__main__":
    main()
