"""The cost of an eager op on the GPU before its kernel runs: Python, checks, graph, allocation, launch.

    python -m benchmarks.cuda_overhead [--output FILE.jsonl]

Times tiny ops, whose kernels end before the next one is launched, so that the host is measured; the same ops of
PyTorch, eager, beside them. Medians over many repetitions, in microseconds; the least is in the file too.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha import ops, optim
from alpha.core.op import registry
from alpha.cuda.runtime import memory
from benchmarks import cuda_timing as timing
from benchmarks.environment import torch_facts
from benchmarks.op_overhead import times_us
from benchmarks.results import record

BAR_US = 15.0
BARRED = ("an op", "an op with its node")
LENGTH = 50  # ops of a chain; a repeat must not fill the queue of launches
SHAPE = (2, 3)


def alpha_calls(device: str) -> dict[str, tuple[Callable[[], object], int]]:
    """Returns alpha's side: the call to time, and how often in a repeat."""
    a = alpha.tensor(np.ones(SHAPE, np.float32), device=device, requires_grad=True)
    b = alpha.tensor(np.ones(SHAPE, np.float32), device=device)
    image = alpha.tensor(np.ones((1, 4, 4, 8), np.float32), device=device)
    filters = alpha.tensor(np.ones((8, 3, 3, 8), np.float32), device=device)
    gamma = alpha.tensor(np.ones(8, np.float32), device=device)
    impl = registry["mul"].impls["cuda"]

    def chain() -> alpha.Tensor:
        y = a
        for _ in range(LENGTH):
            y = ops.mul(y, b)
        return y

    calls = {"memory alone": (lambda: memory.empty(SHAPE, "float32"), 200),
             "an implementation: memory and launch": (lambda: impl(b.array, b.array), 200),
             "an op": (lambda: ops.mul(b, b), 200), "an op with its node": (lambda: ops.mul(a, b), 200),
             "a chain there": (chain, 4), "a chain there and back": (lambda: chain().backward(b), 4),
             "conv2d": (lambda: ops.conv2d(image, filters, padding=1), 100),
             "batch_norm": (lambda: ops.batch_norm(image, gamma, gamma, activation="relu"), 100)}
    for name in ("SGD", "AdamW"):
        calls[f"{name}, a step of resnet18"] = (optimizer_step(name, device), 4)
    return calls


def optimizer_step(name: str, device: str) -> Callable[[], object]:
    """Returns an optimizer's step over the parameters of ResNet-18, each shrunk to 8 elements."""
    params = [alpha.nn.Parameter(alpha.tensor(np.ones(8, np.float32), device=device))
              for _ in models.create("resnet18").parameters()]
    for p in params:
        p.grad = alpha.tensor(np.ones(8, np.float32), device=device)
    return getattr(optim, name)(params, lr=1e-3, **({"momentum": 0.9} if name == "SGD" else {})).step


def torch_calls() -> dict[str, tuple[Callable[[], object], int]]:
    """Returns PyTorch's side, under the same names."""
    torch, device = timing.strict_torch(), timing.peer_device()
    a, b = torch.ones(SHAPE, device=device, requires_grad=True), torch.ones(SHAPE, device=device)
    image, filters = torch.ones(1, 8, 4, 4, device=device), torch.ones(8, 8, 3, 3, device=device)
    gamma = torch.ones(8, device=device)

    def chain() -> Any:
        y = a
        for _ in range(LENGTH):
            y = torch.mul(y, b)
        return y

    def batch_norm() -> Any:
        return torch.relu(torch.nn.functional.batch_norm(image, None, None, gamma, gamma, training=True))

    calls = {"memory alone": (lambda: torch.empty(SHAPE, device=device), 200), "an op": (lambda: torch.mul(b, b), 200),
             "an op with its node": (lambda: torch.mul(a, b), 200), "a chain there": (chain, 4),
             "a chain there and back": (lambda: chain().backward(b), 4),
             "conv2d": (lambda: torch.nn.functional.conv2d(image, filters, padding=1), 100),
             "batch_norm": (batch_norm, 100)}
    count = len(list(models.create("resnet18").parameters()))
    for name, settings in (("SGD", {"momentum": 0.9}), ("AdamW", {})):
        params = [torch.ones(8, device=device, requires_grad=True) for _ in range(count)]
        for p in params:
            p.grad = torch.ones_like(p)
        step = getattr(torch.optim, name)(params, lr=1e-3, fused=True, **settings).step
        calls[f"{name}, a step of resnet18"] = (step, 4)
    return calls


def figures(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Returns median and least of each call; a chain is given per op, and its way back by itself."""
    found = {}
    for name, values in times.items():
        per_op = LENGTH if "chain" in name else 1
        found[name] = {"median": statistics.median(values) / per_op, "min": min(values) / per_op}
    there, back = found.pop("a chain there"), found.pop("a chain there and back")
    found["a node's way back, its op counted"] = {key: back[key] - there[key] for key in there}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--output", type=Path, help="append the result to this file, a JSON object a line")
    args = parser.parse_args()
    facts = timing.start("python -m benchmarks.cuda_overhead") | torch_facts()
    calls = {("alpha", name): call for name, call in alpha_calls("cuda").items()}
    calls |= {("torch", name): call for name, call in torch_calls().items()}
    times_us(calls, 3, timing.synchronize)  # compiles, and warms both libraries up
    times = times_us(calls, args.repeats, timing.synchronize)
    sides = {side: figures({name: values for (s, name), values in times.items() if s == side})
             for side in ("alpha", "torch")}
    print("\n" + "; ".join(f"{k}: {v}" for k, v in facts.items()))
    print("| the cost of one call on the host | alpha us (least) | torch us (least) | bar |\n|" + "---|" * 4)
    for name, found in sides["alpha"].items():
        theirs = sides["torch"].get(name)
        other = f"{theirs['median']:.1f} ({theirs['min']:.1f})" if theirs else "-"
        bar = ("ok" if found["median"] < BAR_US else "MISSED") + f", < {BAR_US:g}" if name in BARRED else ""
        print(f"| {name} | {found['median']:.1f} ({found['min']:.1f}) | {other} | {bar} |")
    record(args.output, facts, {"us": sides, "bar_us": BAR_US,
                                       "met": all(sides["alpha"][name]["median"] < BAR_US for name in BARRED)})


if __name__ == "__main__":
    main()
