"""Parameters that are computed from others: weight norm, spectral norm, and modules of one's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import checkpoint, nn, ops, optim
from alpha.errors import AlphaError, ConfigError, DTypeError, NotFoundError, ShapeError
from alpha.nn.utils import register_parametrization, remove_parametrizations, spectral_norm, weight_norm
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")


def drawn(*shape: int, seed: int = 0) -> alpha.Tensor:
    return alpha.tensor(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


class Symmetric(nn.Module):
    """A matrix that equals its own transpose."""

    def forward(self, w: alpha.Tensor) -> alpha.Tensor:
        return w.triu() + w.triu(1).mT


class Exponential(nn.Module):
    """A weight above 0."""

    def forward(self, w: alpha.Tensor) -> alpha.Tensor:
        return w.exp()

    def right_inverse(self, w: alpha.Tensor) -> alpha.Tensor:
        return w.abs().log()


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim, axes", [(0, (1, 2, 3)), (-1, (0, 1, 2)), (None, None)])
def test_weight_norm_is_a_length_by_a_direction(dim: int | None, axes: Any) -> None:
    layer = nn.Conv2d(3, 4, 2)
    before = layer.weight.numpy().copy()
    assert weight_norm(layer, dim=dim) is layer
    g, v = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    np.testing.assert_allclose(layer.weight.detach().numpy(), before, rtol=1e-6)
    g.copy_(g.detach() * 3.0)
    v.copy_(v.detach() * 0.1)
    np.testing.assert_allclose(layer.weight.detach().numpy(), 3 * before, rtol=1e-5)
    assert g.shape == (() if axes is None else tuple(1 if k in axes else n for k, n in enumerate(before.shape)))


@pytest.mark.parametrize("make, matrix", [
    (lambda: nn.Linear(5, 4), lambda w: w), (lambda: nn.Conv2d(3, 4, 2), lambda w: w.reshape(4, -1)),
    (lambda: nn.ConvTranspose2d(3, 4, 2), lambda w: np.moveaxis(w, -1, 0).reshape(4, -1))])
def test_spectral_norm_makes_the_largest_singular_value_1(make: Any, matrix: Any) -> None:
    layer = spectral_norm(make(), n_power_iterations=50)
    for _ in range(3):
        w = layer.weight.detach().numpy()
    np.testing.assert_allclose(np.linalg.svd(matrix(w), compute_uv=False)[0], 1, rtol=1e-4)


def test_inference_moves_no_singular_vector() -> None:
    layer = spectral_norm(nn.Linear(5, 4))
    before = {name: t.numpy().copy() for name, t in layer.state_dict().items()}
    layer.eval()
    layer(drawn(2, 5))
    assert all((before[name] == t.numpy()).all() for name, t in layer.state_dict().items())
    layer.train()
    layer(drawn(2, 5))
    assert any((before[name] != t.numpy()).any() for name, t in layer.state_dict().items())


def test_modules_of_ones_own_are_called_one_after_the_other() -> None:
    layer = nn.Linear(3, 3)
    start = np.abs(layer.weight.numpy())
    register_parametrization(layer, "weight", Exponential())
    np.testing.assert_allclose(layer.weight.detach().numpy(), start, rtol=1e-6)
    register_parametrization(layer, "weight", Symmetric())
    w = layer.weight.detach().numpy()
    assert (w == w.T).all() and (w > 0).all()
    assert [name for name, _ in layer.named_parameters()] == ["bias", "parametrizations.weight.original"]
    remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert (layer.weight.numpy() != w).any()


# ---- training, states and copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
def test_a_network_trains_and_is_saved_and_copied(norm: Any, tmp_path: Path) -> None:
    def network() -> nn.Module:
        return nn.Sequential(norm(nn.Conv2d(3, 8, 3, padding=1)), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                             norm(nn.Linear(8, 2)))
    alpha.manual_seed(2)
    model = network()
    x, labels = drawn(8, 6, 6, 3), alpha.tensor([0, 1] * 4)
    x = x + labels.float().reshape(8, 1, 1, 1)
    optimizer, losses = optim.Adam(model.parameters(), lr=0.05), []
    for _ in range(15):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    right = model(x).numpy()
    assert (copy.deepcopy(model)(x).numpy() == right).all()
    assert (pickle.loads(pickle.dumps(model))(x).numpy() == right).all()
    checkpoint.save(tmp_path / "m.safetensors", model.state_dict())
    other = network().eval()
    other.load_state_dict(checkpoint.load(tmp_path / "m.safetensors")[0])
    assert (other(x).numpy() == right).all()
    for layer in (other[0], other[4]):
        remove_parametrizations(layer)
    np.testing.assert_allclose(other(x).numpy(), right, rtol=1e-6)
    assert {*other.state_dict()} == {"0.weight", "0.bias", "4.weight", "4.bias"}
    fast = alpha.inference(model, x)
    np.testing.assert_allclose(fast(x).numpy(), right, rtol=1e-5, atol=1e-6)


def test_a_relu_behind_it_is_fused_as_behind_any_other() -> None:
    conv = weight_norm(nn.Conv2d(3, 4, 3))
    x = drawn(2, 5, 5, 3)
    assert (nn.Sequential(conv, nn.ReLU())(x).detach().numpy() == conv(x).relu().detach().numpy()).all()


def test_a_frozen_weight_stays_frozen() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    weight_norm(layer)
    assert not layer.weight.requires_grad
    assert not remove_parametrizations(layer).weight.requires_grad


@pytest.mark.torch
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("kind, shape", [("Linear", (4, 3)), ("Conv1d", (2, 6, 3)), ("Conv2d", (2, 6, 5, 3)),
                                         ("ConvTranspose2d", (2, 4, 5, 3))])
def test_states_and_steps_are_pytorchs(kind: str, shape: tuple[int, ...], name: str) -> None:
    torch = pytest.importorskip("torch")
    size = (3, 4) if kind == "Linear" else (3, 4, 3)
    theirs = getattr(torch.nn.utils.parametrizations, name)(getattr(torch.nn, kind)(*size))
    ours = getattr(nn.utils, name)(getattr(nn, kind)(*size))
    checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
    x = drawn(*shape)
    t = torch.tensor(x.numpy())
    for _ in range(2):
        y, right = ours(x), theirs(t.movedim(-1, 1)).movedim(1, -1)
        np.testing.assert_allclose(y.detach().numpy(), right.detach().numpy(), rtol=1e-4, atol=1e-6)
    (y * y).sum().backward()
    (right * right).sum().backward()
    for p in ours.parameters():     # gradients, in PyTorch's order
        p.copy_(p.grad)
    state = checkpoint.to_torch_state_dict(ours)
    for path, p in theirs.named_parameters():
        np.testing.assert_allclose(np.asarray(state[path]), p.grad.numpy(), rtol=1e-3, atol=1e-4)
    for path, buffer in theirs.named_buffers():
        np.testing.assert_allclose(np.asarray(state[path]), buffer.numpy(), rtol=1e-4, atol=1e-6)


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: weight_norm(3), DTypeError, "a Module is needed"),
    (lambda: weight_norm(nn.ReLU()), ConfigError, "no parameter weight"),
    (lambda: weight_norm(nn.Linear(2, 2), "v"), ConfigError, "it has weight, bias"),
    (lambda: weight_norm(weight_norm(nn.Linear(2, 2))), ConfigError, "computed already"),
    (lambda: weight_norm(nn.Linear(2, 2), dim=2), ShapeError, "axis"),
    (lambda: weight_norm(nn.Linear(4, 2, flattened=(2, 2, 1))), ConfigError, "flattened"),
    (lambda: spectral_norm(nn.Linear(2, 2), "bias"), ShapeError, "two axes or more"),
    (lambda: spectral_norm(nn.Linear(2, 2), n_power_iterations=0), ConfigError, "at least 1"),
    (lambda: register_parametrization(nn.Linear(2, 2), "weight", ops.exp), DTypeError, "nn.Lambda(f)"),
    (lambda: register_parametrization(nn.Linear(2, 2), "weight", nn.Flatten(0)), ShapeError, "(4,)"),
    (lambda: register_parametrization(3, "weight", nn.ReLU()), DTypeError, "a Module is needed"),
    (lambda: register_parametrization(weight_norm(nn.Linear(2, 2)), "weight", nn.ReLU()), ConfigError, "already"),
    (lambda: remove_parametrizations(nn.Linear(2, 2)), NotFoundError, "no weight that is computed"),
    (lambda: remove_parametrizations(weight_norm(nn.Linear(2, 2)), "bias"), NotFoundError, "no bias"),
    (lambda: remove_parametrizations(weight_norm(nn.Linear(2, 2)), leave_parametrized=False), ConfigError,
     "two tensors"),
    (lambda: setattr(weight_norm(nn.Linear(2, 2)), "weight", nn.Parameter(ops.ones((2, 2)))), ConfigError,
     "computed from parameters"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()


def test_a_name_that_is_not_there_is_answered() -> None:
    with refused(AttributeError, "remove_parametrizations"):
        nn.utils.remove_weight_norm  # noqa: B018
