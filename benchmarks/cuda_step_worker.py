"""One library in one process on the GPU: builds a network, takes the first losses, then times training steps.

Reads one JSON object a line from standard input and answers each with one on standard output:

    {"start": {"model": ..., "batch": ..., "weights": path, "precision": "fp32"}}
                                                              ->  {"losses": [first three], "parameters": count}
    {"steps": 20}                                             ->  {"ms": mean per step, waited for at the end only}
    {"memory": true}                                          ->  {"peak_mib": since the start, "reserved_mib": held,
                                                                   "steady_mib": peak of one more step}

The steps are those of benchmarks/step_worker.py, in fp32, tf32 or bf16: PyTorch without TF32, with it, or under
autocast. It searches for cuDNN's fastest algorithms. Run by benchmarks/cuda_steps.py:

    python -m benchmarks.cuda_step_worker alpha|torch_nchw|torch_nhwc
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, SupportsFloat

from benchmarks import step_worker

MIB = 1 << 20


class AlphaSide:
    """alpha on the GPU."""

    def __init__(self) -> None:
        from alpha.backend import get_backend
        self.backend = get_backend("cuda")

    def start(self, model: str, batch: int, weights: str, precision: str) -> tuple[step_worker.Step, int]:
        import alpha
        step, count = step_worker.alpha_step(model, batch, weights, "cuda")

        def in_precision() -> SupportsFloat:
            with alpha.precision(precision):
                return step()
        return in_precision, count

    def synchronize(self) -> None:
        self.backend.synchronize()

    def memory(self) -> tuple[int, int]:
        """Returns peak and reserved bytes."""
        found = self.backend.memory_stats()
        return found["peak"], found["live"] + found["cached"]

    def reset_peak(self) -> None:
        self.backend.reset_peak_memory()


class TorchSide:
    """PyTorch, eager; on the CPU where it finds no GPU."""

    def __init__(self, channels_last: bool) -> None:
        from benchmarks.cuda_timing import peer_device, strict_torch
        self.cuda, self.channels_last, self.device = strict_torch().cuda, channels_last, peer_device()

    def start(self, model: str, batch: int, weights: str, precision: str) -> tuple[step_worker.Step, int]:
        import torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        return step_worker.torch_step(model, batch, weights, self.channels_last, self.device, precision == "bf16")

    def synchronize(self) -> None:
        if self.device == "cuda":
            self.cuda.synchronize()

    def memory(self) -> tuple[int, int]:
        """Returns peak and reserved bytes."""
        return self.cuda.max_memory_allocated(), self.cuda.memory_reserved()

    def reset_peak(self) -> None:
        self.cuda.reset_peak_memory_stats()


class Worker:
    """Answers requests about one network."""

    def __init__(self, library: str) -> None:
        self.side = AlphaSide() if library == "alpha" else TorchSide(library == "torch_nhwc")
        self.step: step_worker.Step = lambda: 0.0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "start" in request:
            self.step, count = self.side.start(**request["start"])
            return {"losses": [float(self.step()) for _ in range(3)], "parameters": count}
        if "steps" in request:
            return {"ms": self.time(request["steps"])}
        peak, reserved = self.side.memory()
        self.side.reset_peak()
        self.time(1)
        return {"peak_mib": peak / MIB, "reserved_mib": reserved / MIB, "steady_mib": self.side.memory()[0] / MIB}

    def time(self, steps: int) -> float:
        self.side.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.side.synchronize()
        return (time.perf_counter() - begin) * 1e3 / steps


def serve(library: str) -> None:
    """Answers requests until standard input ends."""
    worker = Worker(library)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
