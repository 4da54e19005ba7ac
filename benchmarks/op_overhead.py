"""The engine's own cost per op: dispatch, checks, graph and allocation, without the arithmetic.

    python -m benchmarks.op_overhead [--output FILE.jsonl]

Times tiny ops through the engine and the same NumPy work without it; the difference is the engine's. A training step
pays the second row per op of the forward pass, the third per node of the backward pass and the first per op of the
gradients. The last row is the cost of an op with its node and way back. Prints the minimum over many repetitions, in
microseconds of processor time, in which other programs on the machine count least.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import alpha
from alpha import ops
from benchmarks.environment import environment


def times_us(calls: dict[str, tuple[Callable[[], object], int]], repeats: int = 60,
             before: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.perf_counter
             ) -> dict[str, list[float]]:
    """Returns the time of one call of each in every repeat, in microseconds.

    `calls` has a function and how often a repeat calls it; `before` is called before each repeat. Repeats go round, so
    that a slow spell of the machine meets all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, (f, number) in calls.items():
            before()
            begin = clock()
            for _ in range(number):
                f()
            times[name].append((clock() - begin) / number * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="the engine's own cost per op")
    parser.add_argument("--output", type=Path, help="append the result to this file, a JSON object a line")
    parser.add_argument("--repeats", type=int, default=60, help="how often each is timed; the least counts")
    args = parser.parse_args()
    a = alpha.tensor(np.ones((2, 3), np.float32), requires_grad=True)
    b = alpha.tensor(np.ones((2, 3), np.float32))
    out = np.empty((2, 3), np.float32)
    length = 50

    def chain() -> alpha.Tensor:
        y = a
        for _ in range(length):
            y = ops.mul(y, b)
        return y

    times = times_us({"bare": (lambda: np.multiply(a.array, b.array, out=out), 1000),
                      "plain": (lambda: ops.mul(b, b), 1000), "recorded": (lambda: ops.mul(a, b), 1000),
                      "both_ways": (lambda: chain().backward(b), 20)}, args.repeats, clock=time.process_time)
    us = {name: min(values) for name, values in times.items()}
    rows = {"an op without a graph": us["plain"] - us["bare"], "an op with its node": us["recorded"] - us["bare"],
            "a node's way back, its op not counted": us["both_ways"] / length - us["recorded"] - us["plain"]}
    rows["an op with its node and way back"] = sum([*rows.values()][1:])
    print("| the engine's cost of one op | us |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value:.1f} |")
    if args.output:
        with args.output.open("a") as file:
            file.write(json.dumps({**environment("python -m benchmarks.op_overhead"), "us": rows}) + "\n")


if __name__ == "__main__":
    main()
