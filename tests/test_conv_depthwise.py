"""Depthwise and 1x1 convolutions on the CPU, all passes, on drawn shapes: integers, so PyTorch's float64 is exact."""

from __future__ import annotations

import numpy as np
import pytest

from alpha import ops, tensor

torch = pytest.importorskip("torch")


def drawn(seed: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Returns images, map, channels in, out, filter, stride, padding and groups."""
    rng = np.random.default_rng(seed)
    f = int(rng.choice([1, 3, 5, 7]))
    n, hw, ic = (int(rng.integers(low, high)) for low, high in ((1, 5), (f, 14), (2, 100)))
    depthwise = f > 1 or seed % 2 == 0
    return (n, hw, ic, ic if depthwise else int(rng.integers(1, 90)), f, int(rng.integers(1, 3)),
            int(rng.integers(0, f // 2 + 1)), ic if depthwise else 1)


@pytest.mark.parametrize("seed", range(24))
def test_all_passes(seed: int) -> None:
    n, hw, ic, oc, f, stride, padding, groups = drawn(seed)
    rng = np.random.default_rng(seed)
    x, w, b = (rng.integers(-4, 5, size).astype(np.float32)
               for size in ((n, hw, hw, ic), (oc, f, f, ic // groups), (oc,)))
    ours = [tensor(a, requires_grad=True) for a in (x, w, b)]
    y = ops.conv2d(ours[0], ours[1], stride=stride, padding=padding, groups=groups) + ours[2]
    theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w, b)]
    planes = [t.permute(0, 3, 1, 2) for t in theirs[:2]]
    expected = torch.nn.functional.conv2d(*planes, theirs[2], stride, padding, 1, groups).permute(0, 2, 3, 1)
    np.testing.assert_array_equal(y.numpy(), expected.detach().numpy())
    g = rng.integers(-4, 5, y.shape).astype(np.float32)
    (y * tensor(g)).sum().backward()
    (expected * torch.tensor(g)).sum().backward()
    for a, r in zip(ours, theirs):
        np.testing.assert_array_equal(a.grad.numpy(), r.grad.numpy())
