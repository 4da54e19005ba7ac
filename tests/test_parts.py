"""Parts of networks: blocks, heads, maps read elsewhere, losses of sequences and regions; what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.errors import AlphaError, ConfigError, DataError, DTypeError, ShapeError
from tests.op_checks import refused
from tests.op_orders import orders, weights

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")


def drawn(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


def maps(*shape: int, seed: int = 0) -> alpha.Tensor:
    return alpha.tensor(drawn(*shape, seed=seed))


# ---- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation, gate", [("relu", "sigmoid"), ("silu", "hardsigmoid"), ("gelu", "sigmoid")])
def test_squeeze_excite_weighs_channels_by_their_means(activation: str, gate: str) -> None:
    layer = nn.SqueezeExcite(6, 2, activation, gate).double()
    x = drawn(2, 3, 4, 6)
    w1, b1, w2, b2 = (p.numpy() for p in layer.parameters())
    squeezed = getattr(ops, activation)(alpha.tensor(x.mean((1, 2)) @ w1.reshape(2, 6).T + b1)).numpy()
    scale = getattr(ops, gate)(alpha.tensor(squeezed @ w2.reshape(6, 2).T + b2)).numpy()
    np.testing.assert_allclose(layer(alpha.tensor(x)).numpy(), x * scale[:, None, None], rtol=1e-12)
    assert [name for name, _ in layer.named_parameters()] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert nn.SqueezeExcite(64).squeeze_channels == 4 and nn.SqueezeExcite(8).squeeze_channels == 1


def test_drop_path_drops_whole_samples_and_scales_the_others() -> None:
    layer, x = nn.DropPath(0.25), ops.ones((4000, 2, 3), requires_grad=True)
    alpha.manual_seed(1)
    y = layer(x)
    whole = y.detach().numpy().reshape(4000, 6)
    assert (whole == whole[:, :1]).all() and set(np.unique(whole)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((whole[:, 0] == 0).mean() - 0.25) < 0.03
    y.sum().backward()
    assert (x.grad.numpy() == y.detach().numpy()).all()
    alpha.manual_seed(1)
    kept = nn.DropPath(0.25, scale_by_keep=False)(x.detach()).numpy()
    np.testing.assert_allclose(kept, y.detach().numpy() * 0.75, rtol=1e-6)
    layer.eval()
    assert layer(x) is x


def test_layer_norm_of_maps_is_of_their_channels() -> None:
    layer, x = nn.LayerNorm2d(5).double(), maps(2, 3, 4, 5)
    assert (layer(x).numpy() == nn.LayerNorm(5, eps=1e-6).double()(x).numpy()).all()
    assert nn.LayerNorm2d(5, affine=False).weight is None and layer.weight.shape == (5,)


def test_arc_face_adds_the_margin_to_the_angle_of_the_label() -> None:
    layer = nn.ArcFace(4, 3, scale=8.0, margin=0.6).double()
    x, labels = drawn(5, 4, seed=3), np.array([0, 2, 1, 1, 0])
    x[4] = -layer.weight.numpy()[0] * 3     # at an angle of pi, beyond which the margin may not lead
    w = layer.weight.numpy()
    cosine = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T
    right = cosine.copy()
    for n, c in enumerate(labels):
        angle = math.acos(max(-1.0, cosine[n, c]))
        right[n, c] = math.cos(angle + 0.6) if angle + 0.6 < math.pi else cosine[n, c] - math.sin(0.6) * 0.6
    np.testing.assert_allclose(layer(alpha.tensor(x), alpha.tensor(labels)).numpy(), right * 8, atol=1e-6)
    np.testing.assert_allclose(layer(alpha.tensor(x)).numpy(), cosine * 8, rtol=1e-12)
    loss = F.cross_entropy(layer(alpha.tensor(x), alpha.tensor(labels)), alpha.tensor(labels))
    loss.backward()
    assert np.isfinite(layer.weight.grad.numpy()).all() and alpha.gradcheck(
        lambda x: layer(x, alpha.tensor(labels[:3])), [alpha.tensor(x[:3], requires_grad=True)])


# ---- maps ------------------------------------------------------------------------------------------------------------


def test_an_identity_grid_reads_the_map_itself() -> None:
    x = maps(2, 3, 4, 5)
    theta = alpha.tensor(np.tile(np.eye(2, 3), (2, 1, 1)))
    for align, mode in product((True, False), ("bilinear", "nearest")):
        grid = F.affine_grid(theta, x.shape, align)
        np.testing.assert_allclose(F.grid_sample(x, grid, mode, "border", align).numpy(), x.numpy(), atol=1e-12)
    turned = F.grid_sample(x, F.affine_grid(theta * alpha.tensor([[-1.0, 1, 1]]).double(), x.shape), "nearest")
    assert (turned.numpy() == x.numpy()[:, :, ::-1]).all()


def test_pixels_outside_are_zeros_the_nearest_or_mirrored() -> None:
    x = alpha.tensor(np.arange(4.0).reshape(1, 1, 4, 1))

    def at(*pixels: float, **how: Any) -> list[float]:
        places = [[(p + 0.5) / 2 - 1, 0.0] for p in pixels]
        return F.grid_sample(x, alpha.tensor([[places]]).double(), **how).reshape(-1).tolist()
    assert at(-1.0, -0.25, 3.5, 9.0) == [0.0, 0.0, 1.5, 0.0]
    assert at(-1.0, -0.25, 3.5, 9.0, padding_mode="border") == [0.0, 0.0, 3.0, 3.0]
    assert at(-1.0, -2.0, 4.0, 5.0, padding_mode="reflection") == [0.0, 1.0, 3.0, 2.0]
    assert at(0.5, 1.5, 2.5, mode="nearest") == [0.0, 2.0, 2.0]
    assert at(float("nan")) == [0.0]


@pytest.mark.torch
def test_grid_sample_is_pytorchs_with_its_gradients() -> None:
    torch = pytest.importorskip("torch")
    arrays = [drawn(2, 4, 5, 3), drawn(2, 3, 4, 2, seed=1, low=-1.7, high=1.7)]
    arrays[1][0, 0, :2] = [[-1, 1], [1, -1]]       # the corners, too
    for mode, border, align in product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (True, False)):
        xs = [torch.tensor(a, requires_grad=True) for a in arrays]
        y = torch.nn.functional.grid_sample(xs[0].movedim(-1, 1), xs[1], mode, border, align).movedim(1, -1)
        right = [y, *torch.autograd.grad(y, xs, torch.tensor(weights(y.shape, 1)))]
        ours = orders(lambda x, g: F.grid_sample(x, g, mode, border, align), arrays)  # noqa: B023
        for found, wanted in zip(ours, right):
            np.testing.assert_allclose(found, wanted.detach().numpy(), atol=1e-12)


# ---- losses ----------------------------------------------------------------------------------------------------------


def test_focal_loss_without_weights_is_binary_cross_entropy() -> None:
    x, target = maps(3, 4), alpha.tensor(drawn(3, 4, seed=1, low=0, high=1))
    plain = F.binary_cross_entropy_with_logits(x, target)
    assert abs((nn.FocalLoss(None, 0.0)(x, target) - plain).item()) < 1e-12
    assert nn.FocalLoss()(x, target).item() < 0.5 * plain.item()
    right = nn.FocalLoss(reduction="sum")(alpha.tensor([200.0, -200.0]), alpha.tensor([1.0, 0.0]))
    assert right.item() == 0.0


def test_dice_loss_is_0_of_what_is_right_and_near_1_of_what_is_wrong() -> None:
    labels = np.arange(32).reshape(2, 4, 4) % 3
    hot = alpha.tensor(np.eye(3)[labels])
    assert abs(nn.DiceLoss(None)(hot, hot).item()) < 1e-12
    assert nn.DiceLoss(None, eps=1e-6)(1.0 - hot, hot).item() > 0.99
    logits = alpha.tensor(np.eye(3)[labels] * 60)
    assert nn.DiceLoss("softmax")(logits, alpha.tensor(labels)).item() < 1e-9
    assert nn.DiceLoss(reduction="none")(logits, hot).shape == (2, 3)


def test_ctc_loss_adds_up_all_paths() -> None:
    z = drawn(4, 1, 3, seed=2)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))

    def read(path: tuple[int, ...]) -> list[int]:
        return [c for k, c in enumerate(path) if c and (not k or path[k - 1] != c)]
    for labels in ([1], [1, 2], [1, 1], [2, 1, 2], []):
        total = sum(np.exp(sum(log_p[t, 0, c] for t, c in enumerate(p))) for p in np.ndindex(3, 3, 3, 3)
                    if read(p) == labels)
        loss = ops.ctc_loss(alpha.tensor(log_p[:, 0]), labels, 4, len(labels), reduction="sum")
        np.testing.assert_allclose(loss.item(), -np.log(total), rtol=1e-12)


def test_a_sequence_too_short_for_its_labels_has_an_infinite_loss_or_none() -> None:
    x = alpha.tensor(drawn(3, 2, 4), requires_grad=True)
    call = dict(targets=[[1, 1], [1, 2]], input_lengths=[2, 3], target_lengths=[2, 2], reduction="none")
    loss = ops.ctc_loss(x.log_softmax(-1), **call)
    assert loss[0].item() == float("inf") and np.isfinite(loss[1].item())
    zeroed = nn.CTCLoss(zero_infinity=True, reduction="none")(x.log_softmax(-1), *[call[k] for k in call][:3])
    assert zeroed.tolist() == [0.0, loss[1].item()]
    zeroed.sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and not x.grad[:, 0].numpy().any()


@pytest.mark.torch
def test_ctc_loss_is_pytorchs_with_its_gradient() -> None:
    torch = pytest.importorskip("torch")
    z = drawn(30, 4, 7, seed=3)
    targets = np.random.default_rng(4).integers(1, 7, (4, 9))
    targets[:, 3] = targets[:, 4]
    inputs, lengths = np.array([30, 25, 20, 28]), np.array([9, 7, 0, 4])
    flat = np.concatenate([row[:n] for row, n in zip(targets, lengths)])
    for reduction, given in product(("mean", "sum", "none"), (targets, flat)):
        t = torch.tensor(z, requires_grad=True)
        y = torch.nn.functional.ctc_loss(t.log_softmax(-1), *map(torch.tensor, (given, inputs, lengths)),
                                         reduction=reduction)
        (right,) = torch.autograd.grad(y, t, torch.tensor(weights(y.shape, 1)))
        found = orders(lambda x: ops.ctc_loss(x.log_softmax(-1), given, inputs, lengths,  # noqa: B023
                                              reduction=reduction), [z], second=False)  # noqa: B023
        np.testing.assert_allclose(found[0], y.detach().numpy(), rtol=1e-12)
        np.testing.assert_allclose(found[1], right.numpy(), atol=1e-12)


# ---- what is refused -------------------------------------------------------------------------------------------------

P = ops.log_softmax(ops.zeros((4, 2, 3)))
REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: nn.SqueezeExcite(4)(maps(2, 4)), ShapeError, "2 axes, 4 are needed"),
    (lambda: nn.SqueezeExcite(4, activation="tanh"), ConfigError, '"gelu"'),
    (lambda: nn.DropPath(1.5), ConfigError, "1.5"),
    (lambda: nn.LayerNorm2d(4)(ops.zeros((2, 4))), ShapeError, "LayerNorm2d: x has 2 axes"),
    (lambda: nn.LayerNorm2d(4, affine=False)(ops.zeros((2, 2, 2, 3))), ShapeError, "made for x"),
    (lambda: nn.ArcFace(4, 3)(ops.zeros((2, 5))), ShapeError, "(2, 5)"),
    (lambda: nn.ArcFace(4, 3)(ops.zeros((2, 4)), alpha.tensor([1])), ShapeError, "labels"),
    (lambda: nn.ArcFace(4, 3)(ops.ones((1, 4)), alpha.tensor([3])), DataError, "3"),
    (lambda: nn.ArcFace(4, 3, margin=4.0), ConfigError, "[0, pi)"),
    (lambda: F.grid_sample(maps(2, 3, 3, 1), maps(1, 3, 3, 2)), ShapeError, "(1, 3, 3, 2)"),
    (lambda: F.grid_sample(maps(2, 3, 3), maps(2, 3, 3, 2)), ShapeError, "4 are needed"),
    (lambda: F.grid_sample(maps(2, 0, 3, 1), maps(2, 3, 3, 2)), ShapeError, "empty"),
    (lambda: F.grid_sample(maps(2, 3, 3, 1), maps(2, 3, 3, 2).float()), DTypeError, "float32"),
    (lambda: F.grid_sample(maps(2, 3, 3, 1), maps(2, 3, 3, 2), "bicubic"), ConfigError, '"nearest"'),
    (lambda: F.affine_grid(maps(2, 3, 3), (2, 3, 3, 1)), ShapeError, "(2, 2, 3) is needed"),
    (lambda: F.affine_grid(maps(2, 2, 3), (2, 3, 3)), ShapeError, "four ints"),
    (lambda: F.focal_loss(maps(3), maps(4)), ShapeError, "(4,)"),
    (lambda: F.focal_loss(maps(3), alpha.tensor([1, 0, 1])), DTypeError, "int64"),
    (lambda: F.focal_loss(maps(3), maps(3), alpha=2.0), ConfigError, "alpha"),
    (lambda: F.dice_loss(maps(3, 2), maps(3)), DTypeError, "labels have dtype float64"),
    (lambda: F.dice_loss(maps(3, 2), maps(2)), ShapeError, "(2,)"),
    (lambda: F.dice_loss(maps(1, 2), alpha.tensor([2])), DataError, "2"),
    (lambda: ops.ctc_loss(ops.zeros((4,)), [1], 4, 1), ShapeError, "3 are needed (T N C)"),
    (lambda: ops.ctc_loss(P, [[1], [1]], [4, 5], [1, 1]), ShapeError, "do not fit 4 steps"),
    (lambda: ops.ctc_loss(P, [[1], [1]], [4], [1, 1]), ShapeError, "pass 2 of each"),
    (lambda: ops.ctc_loss(P, [[1], [1]], [4, 4], [1, 2]), ShapeError, "do not fit targets"),
    (lambda: ops.ctc_loss(P, [[1], [3]], [4, 4], [1, 1]), DataError, "label 3"),
    (lambda: ops.ctc_loss(P, [[1], [0]], [4, 4], [1, 1]), DataError, "the blank, 0"),
    (lambda: ops.ctc_loss(P, [[1], [1]], [4, 4], [1, 1], blank=3), ShapeError, "blank is 3"),
    (lambda: ops.ctc_loss(P, [[1.5], [1]], [4, 4], [1, 1]), DTypeError, "targets has dtype float64"),
    (lambda: ops.ctc_loss(P, [[1]], [4, 4], [1, 1]), ShapeError, "(2, S) is needed"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()
