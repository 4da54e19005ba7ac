"""One side of a comparison, in a process of its own: training steps of alpha or of PyTorch, timed when it is asked to.

alpha is imported before PyTorch, so that the threads of one do not spin while the other works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alpha import ops, optim
from alpha.capture import capture
from alpha.core.device import get_backend
from alpha.core.precision import MODES, precision
from alpha.core.tensor import tensor
from alpha.interop.pytorch import from_torch
from alpha.programs.compare_model import Target, example_of, made

LR, MOMENTUM, SCALE = 0.01, 0.9, 1024.0
LOSSES = 3      # that both sides must share
WARM_UP = 3


@dataclass(frozen=True)
class Case:
    """The case that both sides are given."""

    target: Target
    shape: tuple[int, ...]
    batch: int
    precision: str
    device: str


class Side:
    """Training steps: forward, loss, backward, SGD with momentum.  Logits go into cross-entropy, of others squares."""

    def __init__(self, case: Case, kind: str) -> None:
        self.case, self.kind = case, kind
        self.facts: dict[str, Any] = {}
        self.step: Callable[[], Any]
        self.synchronize: Callable[[], Any]
        (self._alpha if kind == "alpha" else self._torch)()

    def _alpha(self) -> None:
        case = self.case
        model = made(case.target).train()
        x, labels = example_of(case.shape, case.batch, model)
        start = time.perf_counter()
        net = from_torch(model, x)
        self.facts = {"convert_s": time.perf_counter() - start, "permutes": list(net.permutes)}
        net.to(case.device).train()
        del model
        optimizer = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
        scaler = optim.LossScaler(case.device, SCALE) if MODES[case.precision].scales_loss else None
        data = tensor(x.permute(0, 2, 3, 1).contiguous().numpy() if x.ndim == 4 else x.numpy(), device=case.device)
        target = tensor(labels.numpy(), device=case.device)

        def update(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            out = _first(net(x))
            loss = ops.cross_entropy(out, y) if out.ndim == 2 else (out * out).mean()
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                scaler.step(optimizer)
            else:
                optimizer.step()
            return loss.detach()

        recorded = capture(update, net, optimizer)

        def step() -> Any:
            with precision(case.precision):
                return recorded(data, target)

        self.step, self.synchronize = step, get_backend(case.device.partition(":")[0]).synchronize

    def _torch(self) -> None:
        import torch

        case = self.case
        model = made(case.target).train()
        x, labels = (t.to(case.device) for t in example_of(case.shape, case.batch, model))
        model.to(case.device)
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = case.precision == "tf32"
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.precision)
        kind = case.device.partition(":")[0]
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        scale = SCALE if case.precision == "fp16" else 1.0
        run = torch.compile(model) if self.kind == "torch compile" else model

        def step() -> Any:
            optimizer.zero_grad()
            with torch.autocast(kind, half) if half else nullcontext():
                out = _first(run(x))
                loss = torch.nn.functional.cross_entropy(out, labels) if out.ndim == 2 else (out * out).mean()
            (loss * scale).backward()
            if scale != 1.0:
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad /= scale
            optimizer.step()
            return loss.detach()

        self.step, self.synchronize = step, torch.cuda.synchronize if kind == "cuda" else lambda: None

    def losses(self) -> list[float]:
        """Makes the first steps and returns their losses; kernels are built here."""
        found = [float(self.step().item()) for _ in range(LOSSES)]
        for _ in range(WARM_UP):
            self.step()
        self.synchronize()
        return found

    def times(self, steps: int) -> list[float]:
        """Returns the milliseconds of steps, one after the other."""
        found = []
        for _ in range(steps):
            self.synchronize()
            start = time.perf_counter()
            self.step()
            self.synchronize()
            found.append((time.perf_counter() - start) * 1e3)
        return found

    def peak_mib(self) -> float | None:
        """Returns how much memory a step takes at its highest: of the device; on a CPU the growth of the process."""
        kind = self.case.device.partition(":")[0]
        if kind == "cpu":
            return _grown(self.step)
        if self.kind == "alpha":
            backend = get_backend(kind)
            backend.reset_peak_memory()
            self.times(1)
            return float(backend.memory_stats()["peak"]) / 2 ** 20
        import torch

        torch.cuda.reset_peak_memory_stats()
        self.times(1)
        return float(torch.cuda.max_memory_allocated()) / 2 ** 20


def _first(output: Any) -> Any:
    """Returns the first tensor of an output."""
    while isinstance(output, (tuple, list, dict)):
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output


def _grown(step: Callable[[], Any]) -> float | None:
    """Returns the MiB that the process holds at most in a step, weights and caches included; or None."""
    try:
        Path("/proc/self/clear_refs").write_text("5")   # the peak is the present size
        step()
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(float(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def serve(connection: Any, case: Case, kind: str) -> None:
    """Answers (name of a method, arguments) until None comes; an error is told as a text."""
    try:
        side = Side(case, kind)
        connection.send(("done", side.facts))
        while (request := connection.recv()) is not None:
            name, args = request
            connection.send(("done", getattr(side, name)(*args)))
    except EOFError:
        return
    except Exception as error:      # whatever the user's model or a library raises
        connection.send(("error", f"{type(error).__name__}: {error}"))
