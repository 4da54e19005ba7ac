"""Layers over volumes (N, D, H, W, C), and ConvTranspose1d: against PyTorch, NumPy, and layers of maps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import checkpoint, nn, ops
from alpha.errors import AlphaError, ConfigError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


def by_hand(x: np.ndarray, w: np.ndarray, stride: Any, padding: Any, dilation: Any) -> np.ndarray:
    """The equation, with the padding stored."""
    x = np.pad(x, ((0, 0), *[(p, p) for p in padding], (0, 0)))
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[1:4], w.shape[1:4], stride, dilation)]
    y = np.zeros((x.shape[0], *sizes, w.shape[0]))
    for tap in np.ndindex(*w.shape[1:4]):
        part = x[(slice(None), *[slice(t * d, t * d + (o - 1) * s + 1, s)
                                 for t, d, o, s in zip(tap, dilation, sizes, stride)])]
        y += part @ w[(slice(None), *tap)].T
    return y


@pytest.mark.parametrize("stride, padding, dilation", [
    ((1, 1, 1), (0, 0, 0), (1, 1, 1)), ((2, 1, 2), (1, 0, 1), (1, 2, 1)), ((3, 2, 1), (2, 1, 2), (2, 1, 1)),
    ((1, 1, 1), (4, 1, 0), (1, 1, 1))])
def test_conv3d_is_its_equation_in_every_bit_of_integers(stride: Any, padding: Any, dilation: Any) -> None:
    x, w = drawn(2, 5, 6, 4, 3), drawn(4, 3, 2, 2, 3, seed=1)
    y = ops.conv3d(alpha.tensor(x), alpha.tensor(w), None, stride, padding, dilation)
    np.testing.assert_array_equal(y.numpy(), by_hand(x, w, stride, padding, dilation))


def test_the_transposed_convolution_is_the_gradient() -> None:
    """<conv(x), g> == <x, conv_transpose(g)>, exact of integers."""
    x, w = drawn(2, 6, 5, 4, 3), drawn(4, 3, 3, 2, 3, seed=1)
    for stride, padding in (((1, 1, 1), (1, 0, 1)), ((2, 2, 1), (1, 1, 0))):
        leaf = alpha.tensor(x, requires_grad=True)
        y = ops.conv3d(leaf, alpha.tensor(w), None, stride, padding)
        g = drawn(*y.shape, seed=2)
        y.backward(alpha.tensor(g))
        back = ops.conv_transpose3d(alpha.tensor(g), alpha.tensor(w), None, stride, padding)
        extra = [m - n for m, n in zip(x.shape[1:4], back.shape[1:4])]
        back = ops.conv_transpose3d(alpha.tensor(g), alpha.tensor(w), None, stride, padding, extra)
        np.testing.assert_array_equal(leaf.grad.numpy(), back.numpy())
        assert (y.detach().numpy() * g).sum() == (x * back.numpy()).sum()


def test_windows_that_read_padding_alone_are_0() -> None:
    y = ops.conv3d(ops.ones((1, 1, 3, 3, 2)), ops.ones((1, 2, 1, 1, 2)), None, 1, (2, 0, 0), (3, 1, 1))
    assert y.shape == (1, 2, 3, 3, 1) and not y.numpy().any()


def test_pools_of_one_layer_are_those_of_maps() -> None:
    x = alpha.tensor(drawn(2, 6, 6, 3))
    for flat, deep in ((F.max_pool2d, F.max_pool3d), (F.avg_pool2d, F.avg_pool3d)):
        assert (deep(x.unsqueeze(1), (1, 2, 2)).squeeze(1).numpy() == flat(x, 2).numpy()).all()
    np.testing.assert_allclose(nn.AdaptiveAvgPool3d(1)(x.unsqueeze(1)).reshape(2, 3).numpy(), x.mean((1, 2)).numpy(),
                               atol=1e-12)


def test_the_indices_of_a_pool_point_at_its_elements() -> None:
    x = np.random.default_rng(3).permutation(2 * 5 * 6 * 4 * 3).reshape(2, 5, 6, 4, 3).astype(np.float64)
    y, index = nn.MaxPool3d(2, stride=(1, 2, 2), padding=1, return_indices=True)(alpha.tensor(x))
    found = np.take_along_axis(x.reshape(2, -1, 3), index.numpy().reshape(2, -1, 3).astype(np.int64), 1)
    assert (found.reshape(y.shape) == y.numpy()).all() and index.dtype == "int32"


@pytest.mark.parametrize("layer, x", [
    (nn.BatchNorm3d(3), drawn(2, 3, 2, 2, 3)), (nn.InstanceNorm3d(3), drawn(2, 3, 2, 2, 3)),
    (nn.InstanceNorm1d(3), drawn(2, 5, 3))])
def test_norms_are_those_of_maps_of_any_axes(layer: nn.Module, x: np.ndarray) -> None:
    axes = (0, 1, 2, 3) if isinstance(layer, nn.BatchNorm3d) else tuple(range(1, x.ndim - 1))
    right = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(layer.double()(alpha.tensor(x)).detach().numpy(), right, atol=1e-9)


def test_dropout_drops_whole_channels() -> None:
    y = nn.Dropout3d(0.5)(ops.ones((64, 2, 3, 2, 4))).numpy().reshape(64, 12, 4)
    assert (y == y[:, :1]).all() and 0.3 < (y == 0).mean() < 0.7


@pytest.mark.torch
def test_layers_are_pytorchs_with_their_weights() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(5).normal(size=(2, 5, 6, 4, 4))
    cases = [("Conv3d", (4, 6, 3), dict(stride=2, padding=1, groups=2)), ("Conv3d", (4, 2, (1, 2, 3)), dict(
        padding="same")), ("Conv3d", (4, 2, 3), dict(padding=(1, 2, 1), padding_mode="replicate", bias=False)),
             ("Conv3d", (4, 2, 3), dict(padding="valid", dilation=(2, 1, 1))),
             ("ConvTranspose3d", (4, 6, 3), dict(stride=(2, 1, 2), padding=1, output_padding=(1, 0, 1), groups=2)),
             ("BatchNorm3d", (4,), {})]
    for name, sizes, given in cases:
        theirs, ours = getattr(torch.nn, name)(*sizes, **given).double(), getattr(nn, name)(*sizes, **given).double()
        checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
        y, right = ours(alpha.tensor(x)), theirs(torch.tensor(x).movedim(-1, 1)).movedim(1, -1)
        np.testing.assert_allclose(y.detach().numpy(), right.detach().numpy(), atol=1e-10)
        (y * y).sum().backward()
        (right * right).sum().backward()
        for p in ours.parameters():
            p.copy_(p.grad)
        state = checkpoint.to_torch_state_dict(ours)
        for path, p in theirs.named_parameters():
            np.testing.assert_allclose(np.asarray(state[path]), p.grad.numpy(), atol=1e-8)
    line = np.random.default_rng(6).normal(size=(2, 5, 4))
    for given in product((1, 2), (0, 1)):
        theirs = torch.nn.ConvTranspose1d(4, 3, 3, *given).double()
        ours = nn.ConvTranspose1d(4, 3, 3, *given).double()
        checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
        np.testing.assert_allclose(ours(alpha.tensor(line)).detach().numpy(), theirs(
            torch.tensor(line).movedim(-1, 1)).movedim(1, -1).detach().numpy(), atol=1e-12)
    pooled, index = torch.nn.functional.max_pool3d(torch.tensor(x).movedim(-1, 1), 3, 2, 1, return_indices=True)
    y, mine = F.max_pool3d(alpha.tensor(x), 3, 2, 1, return_indices=True)
    assert (y.numpy() == pooled.movedim(1, -1).numpy()).all() and (mine.numpy() == index.movedim(1, -1).numpy()).all()


V, W = ops.zeros((1, 3, 3, 3, 2)), ops.zeros((2, 2, 2, 2, 2))
REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: ops.conv3d(V[0], W), ShapeError, "5 axes with elements are needed (N D H W C)"),
    (lambda: ops.conv3d(V, W[0]), ShapeError, "(OC, FD, FH, FW, C / groups)"),
    (lambda: ops.conv3d(V, W, groups=2), ShapeError, "with 2 groups"),
    (lambda: ops.conv3d(V, W, dilation=3), ShapeError, "2 layers does not fit into 3"),
    (lambda: ops.conv3d(V, W, stride=(1, 2)), ShapeError, "three ints"),
    (lambda: ops.conv_transpose3d(V, W, padding=3), ShapeError, "-2 layers"),
    (lambda: ops.conv_transpose3d(V, W, output_padding=1), ShapeError, "below the stride"),
    (lambda: ops.conv_transpose3d(V, ops.zeros((3, 2, 2, 2, 2))), ShapeError, "weight has shape (3,"),
    (lambda: ops.conv_transpose1d(V, W), ShapeError, "both need 3"),
    (lambda: ops.max_pool3d(V[0], 2), ShapeError, "5 axes"),
    (lambda: ops.max_pool3d(V, 4), ShapeError, "window"),
    (lambda: ops.avg_pool3d(V, 2, padding=2), ShapeError, "padding"),
    (lambda: ops.avg_pool3d(V[0], 2), ShapeError, "5 axes"),
    (lambda: ops.adaptive_avg_pool3d(V, (1, 2)), ShapeError, "three ints"),
    (lambda: ops.adaptive_max_pool3d(V[0], 1), ShapeError, "5 axes"),
    (lambda: nn.Conv3d(3, 4, 2, groups=2), ShapeError, "groups=2 does not divide"),
    (lambda: nn.Conv3d(3, 4, 2, stride=2, padding="same"), ConfigError, "y would be smaller"),
    (lambda: nn.Conv3d(3, 4, 2, padding_mode="reflect"), ConfigError, "has no effect with padding="),
    (lambda: nn.ConvTranspose3d(3, 4, 2, output_padding=1), ShapeError, "below neither stride"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()
