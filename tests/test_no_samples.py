"""Batches without samples: results without elements, and gradients of weights that are 0, as in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.errors import ShapeError

LAYERS = {
    "conv": lambda: nn.Conv2d(4, 8, 3, padding=1),
    "conv without bias": lambda: nn.Conv2d(4, 8, 3, stride=2, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(4, 8, 3), "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "max": lambda: nn.MaxPool2d(2), "avg": lambda: nn.AvgPool2d(2), "mean": lambda: nn.AdaptiveAvgPool2d(1),
    "largest": lambda: nn.AdaptiveMaxPool2d(2), "group norm": lambda: nn.GroupNorm(2, 4),
    "layer norm": lambda: nn.LayerNorm(4), "gelu": lambda: nn.GELU(), "dropout": lambda: nn.Dropout(0.5),
    "fused": lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)),
}


def check(layer: nn.Module, device: str, dtype: str = "float32") -> None:
    """Compares the shape with that of two samples, and expects gradients of 0."""
    layer = layer.to(device)
    x = ops.zeros((0, 8, 8, 4), dtype=dtype, device=device).requires_grad_()
    y = layer(x)
    assert y.shape == (0, *layer(ops.zeros((2, 8, 8, 4), dtype=dtype, device=device)).shape[1:])
    assert y.dtype == dtype
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    for p in layer.parameters():
        assert p.grad is not None and not p.grad.numpy().any() and p.grad.shape == p.shape


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    check(LAYERS[name](), "cpu")


def test_networks_and_losses() -> None:
    for name in ("lenet5", "resnet18", "coresnet18"):
        assert models.create(name).eval()(ops.zeros((0, 32, 32, 3))).shape == (0, 10)
    logits, labels = ops.zeros((0, 10), requires_grad=True), alpha.tensor([], dtype="int64")
    assert np.isnan(ops.cross_entropy(logits, labels).item())
    assert ops.cross_entropy(logits, labels, reduction="sum").item() == 0


def test_gradients_of_gradients() -> None:
    x, w = ops.zeros((0, 5, 5, 2), requires_grad=True), ops.ones((3, 3, 3, 2)).requires_grad_()
    (g,) = alpha.grad(ops.conv2d(x, w).sum(), [w], create_graph=True)
    (h,) = alpha.grad((g * g).sum(), [x])
    assert g.shape == w.shape and h.shape == x.shape


def test_other_axes_may_not_be_empty_and_inference_wants_a_sample() -> None:
    with pytest.raises(ShapeError, match="4 non-empty axes are needed"):
        ops.conv2d(ops.zeros((1, 0, 5, 2)), ops.ones((3, 3, 3, 2)))
    with pytest.raises(ShapeError, match="4 non-empty axes are needed"):
        ops.conv2d(ops.zeros((0, 5, 5, 2)), ops.ones((0, 3, 3, 2)))
    with pytest.raises(ShapeError, match=r"the example has shape \(0, 8, 8, 4\), which has no elements"):
        alpha.inference(nn.Conv2d(4, 8, 3), ops.zeros((0, 8, 8, 4)))
