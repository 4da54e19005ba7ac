"""Most bytes of a GPU's memory that training steps take, by setting of recompute: on a device that only pretends.

    python -m tests.rehearsed_peaks 512 vgg16:bf16 resnet18:fp32      # batch size, networks with precisions

prints a line of JSON: per network the peak under none, cheap and full. A step of a pretended device makes the launches
and asks for the memory of a real one.
"""

from __future__ import annotations

import gc
import json
import sys
from types import SimpleNamespace

import numpy as np

import alpha
import models
from alpha import nn, ops
from alpha.cuda.runtime import memory, rehearsal

SETTINGS = ("none", "cheap", "full")


class Block(int):
    """An address, which goes back to its pool."""

    home: CountingPool

    def __del__(self) -> None:
        self.home.active_bytes -= self.home.sizes.pop(int(self))


class CountingPool:
    """Addresses, and the bytes that are in use."""

    def __init__(self) -> None:
        self.next, self.active_bytes = 1 << 32, 0
        self.sizes: dict[int, int] = {}

    @property
    def managed_bytes(self) -> int:
        return self.active_bytes

    def allocate(self, nbytes: int) -> Block:
        block = Block(self.next)
        block.home = self
        self.next += -(-nbytes // 256) * 256
        self.sizes[int(block)] = nbytes
        self.active_bytes += nbytes
        return block

    def free_held(self) -> None:
        """Nothing that was freed is held."""


def peak(name: str, precision: str, setting: str, batch: int) -> int:
    """Returns the most bytes of a forward and a backward pass, beside parameters and batch."""
    net = models.create(name, 10).to("cuda").train()
    x, y = alpha.zeros((batch, 32, 32, 3), device="cuda"), alpha.zeros((batch,), dtype="int32", device="cuda")
    most = 0
    for _ in range(2):      # the first one makes tables of plans, which stay
        for p in net.parameters():
            p.grad = None
        memory.write_waiting()
        gc.collect()
        memory.pool.peak = 0
        before = memory.pool.bound = memory.pool.main.active_bytes
        with alpha.config(recompute=setting), alpha.precision(precision):
            ops.cross_entropy(net(x), y).backward()
        memory.pool.count()
        most = memory.pool.peak - before
    return most


def main() -> None:
    found: dict[str, dict[str, int]] = {}

    def program() -> None:
        gc.freeze()     # what is imported is no garbage
        memory.pool = memory.Pool(CountingPool(), SimpleNamespace(allocate=np.empty))
        for case in sys.argv[2:]:
            found[case] = {setting: peak(*case.split(":"), setting, int(sys.argv[1])) for setting in SETTINGS}

    nn.init.kaiming_uniform_ = lambda t, **_: t  # values do not count, and take seconds
    rehearsal.rehearse(program, "sm_90a")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
