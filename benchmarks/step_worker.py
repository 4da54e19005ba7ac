"""One library in one process: builds a network, makes the first updates, then times training steps on request.

Reads one JSON object a line from standard input and answers each with one on standard output:

    {"start": {"model": ..., "batch": ..., "weights": path, "device": "cpu", "precision": "fp32",
               "layout": "nhwc", "kind": "eager",
               "clock": "wall" or "cpu"}}                   ->  {"losses": [first TRACE_STEPS], "parameters": count}
    {"float64": as start}                                  ->  {"loss": the first one by PyTorch in float64}
    {"steps": 20}                                          ->  {"ms": mean per step, waited for at the end only}
    {"memory": true}                                       ->  {"peak_mib": since the start, "reserved_mib": held,
                                                                "steady_mib": peak of one more step, "process_mib": the
                                                                process's own high-water mark; null: not counted}
    {"account": true}                                      ->  {"account": content of memory in a step, or null}

A failure is answered by {"failed": message}. Run by benchmarks/compare.py:  python -m benchmarks.step_worker alpha
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from alpha.errors import AlphaError
from benchmarks import checks
from benchmarks.cpu_timing import CLOCKS
from benchmarks.sides import AlphaSide, TorchSide, image_batches

TRACE_STEPS = 10
MIB = 1 << 20
NOTHING = {"peak_mib": None, "reserved_mib": None, "steady_mib": None}

Side = Any  # AlphaSide or TorchSide


def alpha_side(model: str, batch: int, weights: str, device: str, precision: str, **_: str) -> AlphaSide:
    """Returns alpha's side; writes the initial weights in PyTorch's names and layout for the others."""
    import alpha
    from alpha import checkpoint
    from benchmarks.zoo.members import alpha_network
    alpha.manual_seed(0)
    net = alpha_network(model)
    if weights and not Path(weights).exists():
        np.savez(weights, **checkpoint.to_torch_state_dict(net))
    return AlphaSide(net, image_batches(batch), device, precision)


def torch_side(model: str, batch: int, weights: str, device: str, precision: str, layout: str, kind: str) -> TorchSide:
    """Returns PyTorch's side, with the weights that alpha's wrote."""
    return TorchSide(_loaded(model, weights), image_batches(batch), device, precision, layout, kind)


def _loaded(model: str, weights: str) -> Any:
    import torch

    from benchmarks.zoo.members import torch_network
    net = torch_network(model)
    net.load_state_dict({k: torch.from_numpy(np.asarray(v)) for k, v in np.load(weights).items()}, strict=False)
    return net


def float64_loss(model: str, batch: int, weights: str, device: str, **_: str) -> float:
    """Returns the loss before the first update as PyTorch computes it in float64."""
    import torch
    side = TorchSide(_loaded(model, weights).double(), image_batches(batch)[:1], device, "fp32")
    x, labels = side.batches[0]
    with torch.no_grad():
        return float(side.loss(x.double(), labels))


class Runner:
    """Answers requests about one side."""

    def __init__(self, library: str = "", side: Side = None) -> None:
        self.library, self.side, self.clock = library, side, "wall"

    def ask(self, **request: Any) -> dict[str, Any]:
        """Returns the answer to one request."""
        if "start" in request:
            start = dict(request["start"])
            self.clock = start.pop("clock", "wall")
            self.side = (alpha_side if self.library == "alpha" else torch_side)(**start)
            return self.first_updates()
        if "float64" in request:
            return {"loss": float64_loss(**request["float64"])}
        if "steps" in request:
            return {"ms": self.time_ms(request["steps"])}
        if "account" in request:
            return {"account": self.side.account()}
        return self.memory()

    def first_updates(self) -> dict[str, Any]:
        """Makes the first updates, and returns their losses."""
        return {"losses": [float(self.side.step()) for _ in range(TRACE_STEPS)], "parameters": self.side.parameters}

    def time_ms(self, steps: int) -> float:
        """Returns the mean time of a step.  Raises UnfairError where the device was not waited for."""
        side, now = self.side, CLOCKS[self.clock]
        side.synchronize()
        begin = now()
        for _ in range(steps):
            side.step()
        side.synchronize()
        seconds = now() - begin
        checks.synchronised(side)
        return seconds * 1e3 / steps

    def memory(self) -> dict[str, float | None]:
        """Returns MiB by each way of counting."""
        found: dict[str, float | None] = dict(NOTHING)
        peak, reserved = self.side.memory()
        if peak is not None and reserved is not None:
            self.side.reset_peak()
            self.time_ms(1)
            found = {"peak_mib": peak / MIB, "reserved_mib": reserved / MIB, "steady_mib": self.side.memory()[0] / MIB}
        return {**found, "process_mib": high_water_mib()}

    def close(self) -> None:
        self.side = None


def high_water_mib() -> float | None:
    """Returns the most memory that this process has had resident at a time; None where the system does not tell."""
    status = Path("/proc/self/status")  # getrusage would count the process that started this one too
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1024 if found else None


def serve(library: str) -> None:
    """Answers requests until standard input ends.  Output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if library == "torch":
        import torch  # noqa: F401  # while the other side is at work
    runner = Runner(library)
    for line in sys.stdin:
        try:
            answer = runner.ask(**json.loads(line))
        except Exception as error:
            if not isinstance(error, AlphaError):
                traceback.print_exc()
            answer = {"failed": str(error) or repr(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
