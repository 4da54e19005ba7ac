"""A training step in each library: forward, loss, backward, SGD with momentum; the same weights, the same batches.

Both sides of one network offer the methods of the comparison: `step`, `synchronize`, `idle`, `memory`, `account`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from benchmarks import memory_account
from benchmarks.configurations import of_sides
from benchmarks.torch_precision import allow_tf32, autocast

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4
LOSS_SCALE = 1024.0  # of fp16, in both: the usual 65,536 may skip a first step in one of them, and losses differ then
BATCHES = 4  # which the steps take in turn
CLASSES = 10
WARM_UP_STEPS = 3  # before a capture, and of a compiled step

Batch = tuple[np.ndarray, np.ndarray]


def image_batches(n: int, shape: tuple[int, ...] = (32, 32, 3), classes: int = CLASSES) -> list[Batch]:
    """Returns the same images and labels in every process: noise upon a pattern for each class, which can be learned.

    Returns:
        BATCHES times images (n, *shape), float32, and labels (n,), int64.
    """
    rng = np.random.default_rng(7)
    patterns = rng.standard_normal((classes, *shape), np.float32)
    found = []
    for _ in range(BATCHES):
        labels = rng.integers(0, classes, n)
        found.append((rng.standard_normal((n, *shape), np.float32) + 0.5 * patterns[labels], labels))
    return found


class AlphaSide:
    """alpha's training step, captured as `python -m train` does; ALPHA_CAPTURE=0 runs it op by op.

    Args:
        net: alpha.nn.Module; it is moved to the device and trained.
        batches: inputs in alpha's layout and labels. An output of two axes goes into cross-entropy, the mean of the
            squares is the loss of any other.
    """

    name = "alpha"

    def __init__(self, net: Any, batches: list[Batch], device: str, precision: str) -> None:
        import alpha
        from alpha import optim
        from alpha.core.device import get_backend
        from alpha.core.precision import MODES
        self.backend, self.device, self.precision = get_backend(device), device, of_sides(precision)[0]
        self.net = net.to(device).train()
        self.optimizer = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        self.scaler = optim.LossScaler(device, LOSS_SCALE) if MODES[self.precision].scales_loss else None
        self.batches = [tuple(alpha.tensor(a, device=device) for a in batch) for batch in batches]
        self.parameters = sum(p.size for p in net.parameters())
        self.steps = 0
        self.update = alpha.capture(self._update, net, self.optimizer)

    def mode(self) -> AbstractContextManager[Any]:
        """The precision, for a block."""
        import alpha
        return alpha.precision(self.precision)

    def next_batch(self) -> tuple[Any, Any]:
        x, labels = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        return x, labels

    def loss(self, x: Any, labels: Any) -> Any:
        """Runs the forward pass."""
        from alpha import ops
        y = self.net(x)
        return ops.cross_entropy(y, labels) if y.ndim == 2 else (y * y).mean()

    def backward(self, loss: Any) -> None:
        """Runs the backward pass."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def advance(self) -> None:
        """Makes the optimizer's step."""
        if self.scaler:
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.step()

    def _update(self, x: Any, labels: Any) -> Any:
        loss = self.loss(x, labels)
        self.backward(loss)
        self.advance()
        self.optimizer.zero_grad()
        return loss.detach()

    def step(self) -> Any:
        """Makes one update and returns the loss before it."""
        with self.mode():
            return self.update(*self.next_batch())

    def synchronize(self) -> None:
        self.backend.synchronize()

    def idle(self) -> bool:
        if self.device == "cpu":
            return True
        from alpha.cuda.runtime.context import context
        return bool(context.stream.is_done())

    def memory(self) -> tuple[int | None, int | None]:
        """Returns the peak of the bytes in use and the bytes held, by alpha's own count."""
        found = self.backend.memory_stats()
        return found["peak"], found["live"] + found["cached"]

    def reset_peak(self) -> None:
        self.backend.reset_peak_memory()

    def account(self) -> dict[str, Any]:
        """Returns the content of memory in one step."""
        return memory_account.of_alpha(self)


class TorchSide:
    """PyTorch's training step in one configuration.

    Args:
        net: torch.nn.Module; it is moved to the device and trained.
        batches: as alpha's; inputs of four axes are turned to N C H W.
        layout: "nchw" or "nhwc" (channels_last).
        kind: "eager", "graph" or "compile".
    """

    def __init__(self, net: Any, batches: list[Batch], device: str, precision: str, layout: str = "nchw",
                 kind: str = "eager") -> None:
        import torch
        precision = of_sides(precision)[1]
        self.torch, self.precision, self.kind, self.name = torch, precision, kind, f"PyTorch ({layout}, {kind})"
        self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.backends.cudnn.benchmark = True
        allow_tf32(torch, precision)
        form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        self.net = net.to(self.device, memory_format=form).train()
        fastest = {"foreach": True} if self.device == "cpu" else {"fused": True}
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY,
                                         **fastest)
        self.scaler = torch.amp.GradScaler(self.device, LOSS_SCALE, enabled=precision == "fp16")
        self.batches = [self.tensors(*batch, form) for batch in batches]
        self.parameters = sum(p.numel() for p in self.net.parameters())
        self.steps = 0
        self.run = self.prepared()

    def tensors(self, x: np.ndarray, labels: np.ndarray, form: Any) -> tuple[Any, Any]:
        """Returns a batch as PyTorch takes it."""
        four = x.ndim == 4
        images = self.torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if four else x.copy())
        images = images.to(self.device, memory_format=form) if four else images.to(self.device)
        return images, self.torch.from_numpy(labels).to(self.device)

    def loss(self, x: Any, labels: Any) -> Any:
        with autocast(self.torch, self.device, self.precision):
            y = self.net(x)
            if y.ndim == 2:
                return self.torch.nn.functional.cross_entropy(y, labels)
            return (y.float() if y.dtype.itemsize < 4 else y).square().mean()

    def update(self, x: Any, labels: Any, loss_of: Callable[..., Any] | None = None) -> Any:
        """Makes one update, eager but for `loss_of`."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = (loss_of or self.loss)(x, labels)
        self.backward(loss)
        self.advance()
        return loss.detach()

    def backward(self, loss: Any) -> None:
        """Runs the backward pass."""
        self.scaler.scale(loss).backward()

    def advance(self) -> None:
        """Makes the optimizer's step, without waiting for the device."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def prepared(self) -> Callable[[Any, Any], Any]:
        """Returns the step as the configuration runs it; weights and state are as at the start."""
        if self.kind == "eager":
            return self.update
        initial = {name: t.detach().clone() for name, t in self.net.state_dict().items()}
        if self.kind == "compile":
            loss_of = self.torch.compile(self.loss, mode="reduce-overhead")

            def run(x: Any, labels: Any) -> Any:
                self.torch.compiler.cudagraph_mark_step_begin()
                return self.update(x, labels, loss_of)
            for k in range(WARM_UP_STEPS):
                run(*self.batches[k % len(self.batches)])
        else:
            run = self.captured()
        with self.torch.no_grad():
            for name, t in self.net.state_dict().items():
                t.copy_(initial[name])
            for state in self.optimizer.state.values():
                state["momentum_buffer"].zero_()
        return run

    def captured(self) -> Callable[[Any, Any], Any]:
        """Returns the whole step as a CUDA graph, with the batch copied into the graph's own before each replay."""
        cuda, (x, labels) = self.torch.cuda, (t.clone() for t in self.batches[0])
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self.update(x, labels)
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with cuda.graph(graph):
            loss = self.update(x, labels)

        def run(images: Any, given: Any) -> Any:
            x.copy_(images)
            labels.copy_(given)
            graph.replay()
            return loss
        return run

    def step(self) -> Any:
        """Makes one update and returns the loss before it."""
        batch = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        return self.run(*batch)

    def synchronize(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def idle(self) -> bool:
        return self.device == "cpu" or bool(self.torch.cuda.current_stream().query())

    def memory(self) -> tuple[int | None, int | None]:
        """Returns the peak of the bytes in use and the bytes held; None on the CPU, where PyTorch does not count."""
        if self.device == "cpu":
            return None, None
        return self.torch.cuda.max_memory_allocated(), self.torch.cuda.memory_reserved()

    def reset_peak(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.reset_peak_memory_stats()

    def account(self) -> dict[str, Any] | None:
        """Returns the content of memory in one step; None where the step is not run by Python."""
        return memory_account.of_torch(self) if self.kind == "eager" else None
