"""Values and gradients of both orders of a function, of alpha's and of PyTorch's, as arrays that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import alpha


def orders(f: Callable[..., Any], arrays: Sequence[np.ndarray], device: str = "cpu", second: bool = True
           ) -> list[np.ndarray]:
    """Returns the value of f, its gradients, and those of a sum of its gradients: of alpha."""
    xs = [alpha.tensor(a, device=device, requires_grad=True) for a in arrays]
    y = f(*xs)
    v = alpha.tensor(weights(y.shape, 1).astype(y.dtype), device=device)
    first = alpha.grad(y, xs, v, create_graph=second)
    found = [y, *first]
    if second:
        total: Any = sum((g * alpha.tensor(weights(g.shape, 2).astype(g.dtype), device=device)).sum()
                         for g in first if g is not None)
        found += alpha.grad(total, xs) if total.requires_grad else [None for _ in xs]
    return [np.zeros(a.shape) if t is None else t.detach().numpy().astype(np.float64)
            for t, a in zip(found, [arrays[0], *arrays, *arrays])]


def torch_orders(f: Callable[..., Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """As `orders`, of PyTorch."""
    import torch
    grad, xs = torch.autograd.grad, [torch.tensor(a, requires_grad=True) for a in arrays]
    y = f(*xs)
    first = grad(y, xs, torch.tensor(weights(y.shape, 1), dtype=y.dtype), create_graph=True, allow_unused=True)
    total = sum((g * torch.tensor(weights(g.shape, 2), dtype=g.dtype)).sum() for g in first if g is not None)
    second = grad(total, xs, allow_unused=True) if total.requires_grad else [None for _ in xs]
    return [np.zeros(a.shape) if t is None else t.numpy(force=True).astype(np.float64)
            for t, a in zip([y, *first, *second], [arrays[0], *arrays, *arrays])]


def weights(shape: Sequence[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, tuple(shape))
