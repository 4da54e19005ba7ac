"""One library in one process: builds a network, takes the first losses, then times training steps on request.

Reads one JSON object a line from standard input and answers each with one on standard output:

    {"start": {"model": ..., "batch": ..., "weights": path}}  ->  {"losses": [first three], "parameters": count}
    {"time_ms": 200}                                          ->  {"ms": mean per step over at least that long}
    {"peak": true}                                            ->  {"peak_mib": process high-water mark}

A step is forward, cross-entropy, backward and SGD (lr 0.01, momentum 0.9, weight decay 5e-4) on one fixed batch.
Run by benchmarks/cpu_steps.py:  python -m benchmarks.step_worker alpha|torch_nchw|torch_nhwc
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import SupportsFloat

import numpy as np

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4
Step = Callable[[], SupportsFloat]  # makes one update, and returns the loss before it


def batch_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same images (n, 32, 32, 3) float32 and labels (n,) int64 in every process."""
    rng = np.random.default_rng(7)
    return rng.standard_normal((n, 32, 32, 3), np.float32), rng.integers(0, 10, n)


def alpha_step(model: str, n: int, weights: str, device: str = "cpu") -> tuple[Step, int]:
    """Returns alpha's training step; writes the initial weights in PyTorch's names and layout for the others."""
    import alpha
    import models
    from alpha import checkpoint, ops, optim
    alpha.manual_seed(0)
    net = models.create(model)
    if not Path(weights).exists():
        np.savez(weights, **checkpoint.to_torch_state_dict(net))
    net.to(device)
    optimizer = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    images, labels = batch_of(n)
    x, y = alpha.tensor(images, device=device), alpha.tensor(labels, device=device)

    def step() -> SupportsFloat:
        optimizer.zero_grad()
        loss = ops.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step, sum(p.size for p in net.parameters())


def torch_step(model: str, n: int, weights: str, channels_last: bool, device: str = "cpu",
               autocast: bool = False) -> tuple[Step, int]:
    """Returns PyTorch's training step, eager, in one of its two layouts; `autocast`: in bfloat16 where it does that."""
    import torch

    from benchmarks.torch_models import TWINS
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    net = TWINS[model]()
    state = {k: torch.from_numpy(np.asarray(v)) for k, v in np.load(weights).items()}
    net.load_state_dict(state, strict=False)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(device, memory_format=layout)
    fastest = {"foreach": True} if device == "cpu" else {"fused": True}
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, **fastest)
    images, labels = batch_of(n)
    x = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).to(device, memory_format=layout)
    y = torch.from_numpy(labels).to(device)

    def step() -> SupportsFloat:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step, sum(p.numel() for p in net.parameters())


def serve(library: str) -> None:
    """Answers requests until standard input ends."""
    step: Step = lambda: 0.0  # noqa: E731  replaced by the first request
    for line in sys.stdin:
        ask = json.loads(line)
        if "start" in ask:
            spec = ask["start"]
            if library == "alpha":
                step, count = alpha_step(spec["model"], spec["batch"], spec["weights"])
            else:
                step, count = torch_step(spec["model"], spec["batch"], spec["weights"], library == "torch_nhwc")
            answer = {"losses": [float(step()) for _ in range(3)], "parameters": count}
        elif "time_ms" in ask:
            begin, steps = time.perf_counter(), 0
            while (time.perf_counter() - begin) * 1e3 < ask["time_ms"]:
                step()
                steps += 1
            answer = {"ms": (time.perf_counter() - begin) * 1e3 / steps}
        else:
            answer = {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
