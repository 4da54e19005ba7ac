"""Depthwise, 1x1 and other convolutions on the CPU, all passes: integers, so PyTorch's float64 is exact."""

from __future__ import annotations

import numpy as np
import pytest

from alpha import ops, tensor
from alpha.core.config import config

torch = pytest.importorskip("torch")


def drawn(seed: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Returns images, map, channels in, out, filter, stride, padding and groups."""
    rng = np.random.default_rng(seed)
    f = int(rng.choice([1, 3, 5, 7]))
    n, hw, ic = (int(rng.integers(low, high)) for low, high in ((1, 5), (f, 14), (2, 100)))
    depthwise = f > 1 or seed % 2 == 0
    return (n, hw, ic, ic if depthwise else int(rng.integers(1, 90)), f, int(rng.integers(1, 3)),
            int(rng.integers(0, f // 2 + 1)), ic if depthwise else 1)


@pytest.mark.parametrize("geometry", [
    *map(drawn, range(24)),
    (16, 8, 512, 512, 1, 1, 0, 1),  # weights that do not stay in a cache are read once
    (3, 9, 16, 19, 3, 1, 1, 1), (3, 9, 8, 19, 5, 1, 2, 1)])  # one vector of channels in: taps make strips
def test_all_passes(geometry: tuple[int, int, int, int, int, int, int, int]) -> None:
    n, hw, ic, oc, f, stride, padding, groups = geometry
    rng = np.random.default_rng(sum(geometry))
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


def convolved(x: np.ndarray, w: np.ndarray, g: np.ndarray | None, **attrs: int) -> list[np.ndarray]:
    """Returns y, and the gradients of x and w for g, or for ones."""
    leaves = [tensor(a, requires_grad=True) for a in (x, w)]
    y = ops.conv2d(*leaves, groups=x.shape[3], **attrs)
    y.backward(tensor(np.ones(y.shape, np.float32) if g is None else g))
    return [y.numpy(), *[leaf.grad.numpy() for leaf in leaves]]


@pytest.mark.parametrize("f", [*range(1, 10), 13, 18])
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (3, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("channels", [16, 37])
def test_strips_of_any_filter(f: int, stride: int, dilation: int, channels: int) -> None:
    rng = np.random.default_rng(f)
    hw = (f - 1) * dilation + 1 + int(rng.integers(0, 20))
    x, w = (rng.integers(-4, 5, size).astype(np.float32) for size in ((2, hw, hw + 5, channels), (channels, f, f, 1)))
    attrs = dict(stride=stride, dilation=dilation, padding=f // 2)
    planes = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w)]
    expected = torch.nn.functional.conv2d(*[t.permute(0, 3, 1, 2) for t in planes], None, stride, f // 2, dilation,
                                          channels).permute(0, 2, 3, 1)
    g = rng.integers(-4, 5, expected.shape).astype(np.float32)
    expected.backward(torch.tensor(g, dtype=torch.float64))
    for a, r in zip(convolved(x, w, g, **attrs), [expected.detach(), *[t.grad for t in planes]]):
        np.testing.assert_array_equal(a, r.numpy())


@pytest.mark.parametrize("shape, f, stride", [((4, 32, 32, 40), 3, 1), ((3, 27, 30, 33), 5, 2),
                                              ((8, 16, 16, 48), 7, 1), ((9, 33, 32, 40), 15, 1)])
def test_bits_do_not_depend_on_threads(shape: tuple[int, int, int, int], f: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, (shape[3], f, f, 1)))
    found = []
    for threads in (1, 2, 3):
        with config(num_threads=threads):
            found.append(convolved(x, w, None, stride=stride, padding=f // 2))
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("f, size, padding", [((31, 31), (20, 23), (15, 15)), ((9, 31), (40, 33), (4, 29)),
                                              ((3, 13), (11, 12), (0, 3)), ((7, 7), (7, 7), (3, 3)),
                                              ((1, 8), (1, 70), (0, 0))])
@pytest.mark.parametrize("channels", [16, 33])
def test_filters_of_many_taps(f: tuple[int, int], size: tuple[int, int], padding: tuple[int, int], channels: int
                              ) -> None:
    """Sums of rows: rows a stride apart, with bias and relu; what lies beside a row meets no tap."""
    rng = np.random.default_rng(f[0])
    x, w, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, *size, channels), (channels, *f, 1),
                                                                          (channels,)))
    attrs = dict(stride=(2, 1), padding=padding, groups=channels)
    leaves = [tensor(a, requires_grad=True) for a in (x, w)]
    y = ops.conv2d(*leaves, **attrs)
    g = rng.integers(-3, 4, y.shape).astype(np.float32)
    y.backward(tensor(g))
    planes = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w)]
    expected = torch.nn.functional.conv2d(planes[0].permute(0, 3, 1, 2), planes[1].permute(0, 3, 1, 2), None, (2, 1),
                                          padding, 1, channels).permute(0, 2, 3, 1)
    expected.backward(torch.tensor(g, dtype=torch.float64))
    for a, r in zip([y, leaves[0].grad, leaves[1].grad], [expected.detach(), *[t.grad for t in planes]]):
        np.testing.assert_array_equal(a.numpy(), r.numpy())
    fused = ops.conv2d_bias_act(tensor(x), tensor(w), tensor(b), activation="relu", **attrs).numpy()
    np.testing.assert_array_equal(fused, np.maximum(y.numpy() + b, 0))


def test_padding_meets_no_tap_of_a_long_row() -> None:
    x, w = np.ones((1, 9, 9, 16), np.float32), np.ones((16, 9, 9, 1), np.float32)
    w[:, :, 0] = np.inf
    y = ops.conv2d(tensor(x), tensor(w), padding=4, groups=16).numpy()
    assert np.isfinite(y[:, :, :4]).all() and np.isinf(y[:, :, 4:]).all()
