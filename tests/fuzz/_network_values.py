"""What a random network gives in alpha and in PyTorch, and how near both must be: parts of tests/fuzz/networks.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as TF

import alpha
from alpha import nn

FACTOR, LEAST = 30.0, 3e-6  # times float32's own distance, and of the values' norm
NARROW: tuple[dict[str, Any], ...] = ({}, {"recompute": "none"}, {"recompute": "full"})     # in 16 bits


def values_of(model: nn.Module, step: Callable[..., Any], x: np.ndarray, labels: np.ndarray,
              device: str) -> dict[str, np.ndarray]:
    """Returns output, gradients and running statistics of a training step, which begins where the last one began."""
    alpha.manual_seed(7)
    kept = {name: b.numpy() for name, b in model.named_buffers()}
    t = alpha.tensor(x, device=device, requires_grad=True)
    y = step(t, alpha.tensor(labels, device=device))
    found = {"output": y.numpy()}
    if t.grad is not None:      # a recorded step has none for its inputs
        found["x"] = t.grad.numpy()
    for name, p in model.named_parameters():
        found[name] = np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
        p.grad = None
    for name, b in model.named_buffers():
        if "running" in name:
            found[name] = b.numpy()
        b.copy_(kept[name])
    return found


def expected_of(model: Any, x: np.ndarray, labels: np.ndarray, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Returns what values_of does, with alpha's names and layouts."""
    model = copy.deepcopy(model).to(dtype).train()
    t = torch.tensor(x, dtype=dtype).permute(0, 3, 1, 2).contiguous().requires_grad_()
    # Without oneDNN, which in 2.13 can write past a buffer in the gradient of 1x1 filters of stride 2.
    with torch.backends.mkldnn.flags(False, allow_tf32=None):
        y = model(t)
        TF.cross_entropy(y, torch.tensor(labels)).backward()
    found = {"output": y.detach().numpy(), "x": t.grad.permute(0, 2, 3, 1).numpy()}
    for name, p in model.named_parameters():
        g = torch.zeros_like(p) if p.grad is None else p.grad
        if g.dim() == 4:
            g = g.permute(0, 2, 3, 1)
        found[name] = g.numpy()
    found.update({name: b.numpy() for name, b in model.named_buffers() if "running" in name})
    return found


def seen_by(model: Any, x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Returns the output in inference mode."""
    with torch.no_grad(), torch.backends.mkldnn.flags(False, allow_tf32=None):
        return copy.deepcopy(model).to(dtype).eval()(torch.tensor(x, dtype=dtype).permute(0, 3, 1, 2)).numpy()


def narrow(ours: nn.Module, step: Callable[..., Any], x: np.ndarray, labels: np.ndarray, device: str, precision: str,
           what: str) -> None:
    """Raises AssertionError where settings have other bits in a precision of 16 bits."""
    captured = alpha.capture(step, ours)
    first = None
    for which, settings in [(step, s) for s in NARROW] + [(captured, {})] * 4:
        with alpha.config(precision=precision, **settings):
            found = values_of(ours, which, x, labels, device)
        first = first or found
        for name, a in found.items():
            assert np.array_equal(a, first[name], equal_nan=True), \
                f"{precision}, {settings or which.__name__}: other bits in {name}: {what}"


def drawn_again(model: Any, x: np.ndarray, labels: np.ndarray) -> list[tuple[dict[str, np.ndarray], ...]]:
    """Returns (float32's values, float64's) of eight inputs an ulp of float32 away: how far float32 may be."""
    pairs = []
    for k in range(8):
        near_by = x * (1 + np.random.default_rng(k).uniform(-1, 1, x.shape) * 2.0**-23).astype(np.float32)
        pairs.append(tuple(expected_of(model, near_by, labels, dtype) for dtype in (torch.float32, torch.float64)))
    return pairs


def compare(found: dict[str, np.ndarray], right: dict[str, np.ndarray], near: dict[str, np.ndarray], what: str,
            again: Callable[[], list[tuple[dict[str, np.ndarray], ...]]] = list) -> None:
    """Raises AssertionError where alpha is much further from float64 than PyTorch's float32 is, by luck or not."""
    assert found.keys() == right.keys(), found.keys() ^ right.keys()
    scale = max((np.linalg.norm(a) for name, a in right.items() if name != "output" and "running" not in name),
                default=0.0)
    for name, a in found.items():
        b = right[name]
        assert a.shape == b.shape, f"{name}: {a.shape}, {b.shape}: {what}"
        away, theirs = np.linalg.norm(a - b), np.linalg.norm(near[name] - b)
        norm = np.linalg.norm(b) if name == "output" or "running" in name else max(np.linalg.norm(b), 0.1 * scale)
        least = LEAST * norm + 2.0**-19 * scale + 1e-6      # a gradient of 0 may be a difference of larger ones
        if not away <= FACTOR * theirs + least:
            theirs = max([theirs, *(np.linalg.norm(narrow[name] - wide[name]) for narrow, wide in again())])
        assert away <= FACTOR * theirs + least, f"{name}: off by {away:.3g}, PyTorch's float32 by " \
            f"{theirs:.3g}, of {norm:.3g}: {what}"
