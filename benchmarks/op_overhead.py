"""The engine's own cost per op: dispatch, checks, graph and allocation, without the arithmetic.

    python -m benchmarks.op_overhead

Times tiny ops through the engine and the same NumPy work without it; the difference is the engine's. A training step
pays the second row per op of the forward pass, the third per node of the backward pass and the first per op of the
gradients. Prints the minimum over many repetitions, in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import alpha
from alpha import ops


def best_us(f: Callable[[], object], number: int = 2000, repeats: int = 40) -> float:
    """Returns the least time of one call, in microseconds."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(number):
            f()
        best = min(best, (time.perf_counter() - begin) / number)
    return best * 1e6


def main() -> None:
    a = alpha.tensor(np.ones((2, 3), np.float32), requires_grad=True)
    b = alpha.tensor(np.ones((2, 3), np.float32))
    out = np.empty((2, 3), np.float32)
    length = 50

    def chain() -> alpha.Tensor:
        y = a
        for _ in range(length):
            y = ops.mul(y, b)
        return y

    bare = best_us(lambda: np.multiply(a.data, b.data, out=out))
    seed = alpha.tensor(np.ones((2, 3), np.float32))
    plain = best_us(lambda: ops.mul(b, b))
    recorded = best_us(lambda: ops.mul(a, b))
    both_ways = best_us(lambda: chain().backward(seed), 20) / length
    rows = {"an op without a graph": plain - bare, "an op with its node": recorded - bare,
            "a node's way back, its op not counted": both_ways - recorded - plain}
    print("| the engine's cost of one op | us |\n|---|---|")
    for name, us in rows.items():
        print(f"| {name} | {us:.1f} |")


if __name__ == "__main__":
    main()
