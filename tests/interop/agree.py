"""What a converted network must agree with: PyTorch's outputs, and the losses of training steps, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import alpha
from alpha import optim


def inputs(shapes: tuple[tuple[int, ...], ...], n: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Returns random inputs for n samples."""
    generator = torch.Generator().manual_seed(seed)
    return tuple([torch.randn((n, *shape[1:]), generator=generator, dtype=torch.float64) for shape in shapes])


def to_alpha(x: torch.Tensor) -> alpha.Tensor:
    """Returns a tensor of alpha, maps channels last."""
    return alpha.from_numpy(np.ascontiguousarray((x.permute(0, 2, 3, 1) if x.ndim == 4 else x).numpy()))


def flat(output: Any) -> list[Any]:
    """Returns the tensors of an output."""
    if isinstance(output, dict):
        return [t for value in output.values() for t in flat(value)]
    return [t for value in output for t in flat(value)] if isinstance(output, (tuple, list)) else [output]


def array(t: Any) -> np.ndarray:
    """Returns the elements in PyTorch's order."""
    if isinstance(t, torch.Tensor):
        return t.detach().numpy()
    a = t.detach().numpy()
    return np.moveaxis(a, -1, 1) if a.ndim == 4 else a


def check_outputs(model: Any, net: Any, xs: tuple[torch.Tensor, ...], tolerance: float = 1e-9) -> None:
    """Asserts that outputs agree in the mode that both are in."""
    with torch.no_grad():
        theirs = flat(model(*xs))
    ours = flat(net(*[to_alpha(x) for x in xs]))
    assert len(theirs) == len(ours)
    for a, b in zip(theirs, ours):
        a, b = array(a), array(b)
        assert a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(a).max())))


def losses(model: Any, xs: Any, optimizer: Any, zero: Any) -> list[float]:
    """Returns the losses of five steps; the loss is a mean of squares, the same for any order of axes."""
    found = []
    for _ in range(5):
        zero()
        loss = sum([(t * t).mean() for t in flat(model(*xs))])
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach().numpy()))
    return found


def check_training(model: Any, net: Any, xs: tuple[torch.Tensor, ...], tolerance: float = 1e-9, lr: float = 0.01
                   ) -> None:
    """Asserts that five steps of SGD lose alike, and that the inference mode agrees behind them."""
    model.train()
    net.train()
    theirs_optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    ours_optimizer = optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    theirs = losses(model, xs, theirs_optimizer, theirs_optimizer.zero_grad)
    ours = losses(net, [to_alpha(x) for x in xs], ours_optimizer, ours_optimizer.zero_grad)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance)
    model.eval()
    net.eval()
    check_outputs(model, net, xs, tolerance)
