"""Latency of whole networks in inference: alpha.inference beside PyTorch and ONNX Runtime, taking turns.

    python -m benchmarks.inference [--model resnet18 vgg16] [--batch 1 16] [--threads 1] [--clock cpu] [--output FILE]

The networks have random weights, the same on every side; ONNX Runtime runs torch.onnx.export of PyTorch's network,
whose outputs must agree. PyTorch is called in both of its layouts, and the faster one counts. Times are the least of
the rounds. `--clock cpu` counts the processor time of the calling thread, for one thread: on a machine that others use,
too, the clock on the wall measures them as well.
Needs the extra "bench": torch, onnx, onnxruntime.
"""

from __future__ import annotations

import argparse
import io
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha.core.config import config
from benchmarks import cpu_timing
from benchmarks.compare import with_weights_of
from benchmarks.environment import add_clock, check_clock
from benchmarks.results import record
from benchmarks.torch_models import TWINS

NAMES = ("lenet5", "resnet18", "vgg16", "googlenet")
ROUNDS = 15
AGREE = 1e-4    # of the largest output
Call = Callable[[], Any]


def onnx_session(net: Any, x: Any, threads: int) -> Any:
    """Returns an ONNX Runtime session of PyTorch's export of a network, for inputs like x."""
    import onnxruntime
    import torch
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), file, dynamo=False, input_names=["x"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


def sides(name: str, batch: int, threads: int) -> dict[str, Call]:
    """Returns the calls of each library, which agree."""
    torch = cpu_timing.strict_torch()
    torch.set_num_threads(threads)
    net = models.create(name)
    twin = with_weights_of(net, TWINS[name]()).eval()
    x = np.random.default_rng(0).standard_normal((batch, 32, 32, 3)).astype(np.float32)
    ours, run = alpha.tensor(x), alpha.inference(net, alpha.tensor(x))
    first = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    last, wide = first.contiguous(memory_format=torch.channels_last), first.numpy()
    session = onnx_session(twin, first, threads)
    calls: dict[str, Call] = {"alpha": lambda: run(ours).numpy(),
                              "torch": torch.no_grad()(lambda: twin(first)),
                              "torch channels_last": torch.no_grad()(lambda: twin(last)),
                              "onnxruntime": lambda: session.run(None, {"x": wide})[0]}
    expected = np.asarray(calls["onnxruntime"]())
    for side, call in calls.items():
        off = np.abs(np.asarray(call()) - expected).max() / np.abs(expected).max()
        if not off <= AGREE:
            raise RuntimeError(f"{name}: {side} is off by {off:.1e} of the largest output")
    return calls


def least_ms(calls: dict[str, Call], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Returns the least milliseconds of a call of each side, the sides taking turns."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for side, call in calls.items():
            call()
            begin = clock()
            call()
            least[side] = min(least[side], (clock() - begin) * 1e3)
    return least


def row_of(name: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns a row of results."""
    clock = time.thread_time if args.clock == "cpu" else time.perf_counter
    found = least_ms(sides(name, batch, args.threads), args.rounds, clock)
    torch_ms = min(found["torch"], found["torch channels_last"])
    return {"model": name, "batch": batch, "threads": args.threads, "clock": args.clock, "alpha_ms": found["alpha"],
            "torch_ms": torch_ms, "onnxruntime_ms": found["onnxruntime"],
            "ratio_torch": torch_ms / found["alpha"], "ratio_onnxruntime": found["onnxruntime"] / found["alpha"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of whole networks in inference.")
    parser.add_argument("--device", choices=("cpu",), default="cpu")
    parser.add_argument("--model", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", type=int, default=1)
    add_clock(parser)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    check_clock(parser, args)
    facts = cpu_timing.start("python -m benchmarks.inference", "torch", "onnxruntime")
    print("| network | batch | alpha ms | PyTorch | ONNX Runtime | x PyTorch | x ONNX Runtime |\n"
          "| --- | --- | --- | --- | --- | --- | --- |")
    with config(num_threads=args.threads):
        for name in args.model:
            for batch in args.batch:
                row = row_of(name, batch, args)
                record(args.output, facts, row)
                print(f"| {name} | {batch} | {row['alpha_ms']:.3f} | {row['torch_ms']:.3f} | "
                      f"{row['onnxruntime_ms']:.3f} | {row['ratio_torch']:.2f} | {row['ratio_onnxruntime']:.2f} |",
                      flush=True)


if __name__ == "__main__":
    main()
