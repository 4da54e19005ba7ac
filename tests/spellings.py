"""What each spelling of layers launches, forward and back, on a GPU that pretends: python -m tests.spellings.

    y = relu(norm(conv(x)))             one spelling
    y = Sequential(conv, norm, relu)(x)  another one

Prints a line of JSON: case -> spelling -> the launches, kernels with their arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.core.precision import to_storage_dtype
from alpha.cuda.runtime import rehearsal
from alpha.cuda.runtime.kernel import Kernel

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
SIZES = {"small": (2, 8, 8, 16), "large": (8, 32, 32, 64)}     # the latter's results wait to be written

Run = Callable[[Any, alpha.Tensor, alpha.Tensor], alpha.Tensor]
SPELLINGS: dict[str, dict[str, Run]] = {
    "norm, relu": {
        "activation": lambda n, x, r: n.norm(n.conv(x), activation="relu"),
        "layers": lambda n, x, r: n.relu(n.norm(n.conv(x))),
        "functions": lambda n, x, r: F.relu(n.norm(n.conv(x))),
        "Sequential": lambda n, x, r: nn.Sequential(n.conv, n.norm, n.relu)(x)},
    "norm, residual, relu": {
        "activation": lambda n, x, r: n.norm(n.conv(x), r, "relu"),
        "layers": lambda n, x, r: n.relu(n.norm(n.conv(x)) + r),
        "functions": lambda n, x, r: F.relu(r + n.norm(n.conv(x)))},
    "bias, relu": {
        "activation": lambda n, x, r: n.biased(x, activation="relu"),
        "layers": lambda n, x, r: n.relu(n.biased(x)),
        "Sequential": lambda n, x, r: nn.Sequential(n.biased, ops.relu)(x)},
    "bias, relu, pool": {
        "activation": lambda n, x, r: ops.max_pool2d(n.biased(x, activation="relu"), 2),
        "layers": lambda n, x, r: nn.MaxPool2d(2)(n.relu(n.biased(x))),
        "Sequential": lambda n, x, r: nn.Sequential(n.biased, nn.ReLU(), nn.MaxPool2d(2))(x)},
    "contextual, relu": {
        "activation": lambda n, x, r: n.contextual(x, activation="relu"),
        "layers": lambda n, x, r: n.relu(n.contextual(x))},
    "linear, relu": {
        "activation": lambda n, x, r: n.linear(x, activation="relu"),
        "layers": lambda n, x, r: n.relu(n.linear(x))},
}


class Layers(nn.Module):
    """One of each kind."""

    def __init__(self, channels: int) -> None:
        self.conv, self.norm, self.relu = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(
            channels), nn.ReLU()
        self.biased = nn.Conv2d(channels, channels, 3, padding=1)
        self.contextual = nn.CoConv2d(channels, channels, bias=True)
        self.linear = nn.Linear(channels, channels)


def program(found: dict[str, dict[str, list[str]]], lines: list[str]) -> None:
    for precision, (size, shape), training in product(PRECISIONS, SIZES.items(), (True, False)):
        for case, spellings in SPELLINGS.items():
            if not case.startswith("norm") and (precision not in ("fp32", "bf16") or size == "large"):
                continue    # the norm is what waits to be written
            key = f"{case}: {precision}, {size}, {'training' if training else 'inference'}"
            found[key] = {name: launched(run, precision, shape, training, lines) for name, run in spellings.items()}


def launched(run: Run, precision: str, shape: tuple[int, ...], training: bool, lines: list[str]
             ) -> list[str]:
    """Returns what a pass launches, forward and in training back, behind one that has made what weights keep."""
    with alpha.config(precision=precision, recompute="none"):
        net = Layers(shape[-1]).to("cuda").train(training)
        for _ in range(2):
            x, r = (alpha.zeros(shape, device="cuda").requires_grad_() for _ in range(2))
            del lines[:]
            with alpha.enable_grad() if training else alpha.no_grad():
                y = run(net, x, to_storage_dtype(r))
                y = y.astype("float32") * 2.0       # some reader
                if training:
                    y.sum().backward()
                y.numpy()
    return list(lines)


def main() -> None:
    import alpha.cuda.families  # noqa: F401  declares all kernels

    found: dict[str, dict[str, list[str]]] = {}
    lines: list[str] = []
    launch = Kernel.__call__

    def noted(kernel: Kernel, grid: Any, *values: Any) -> None:
        lines.append(f"{kernel.entry} {sorted(kernel.unit.defines)} {grid}")
        launch(kernel, grid, *values)

    Kernel.__call__ = noted  # type: ignore[method-assign]
    rehearsal.rehearse(lambda: program(found, lines), "sm_90a")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
