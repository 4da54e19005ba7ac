"""Chains of pointwise ops whose results are bounded: written as planes, once, and rightly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.core.config import config
from alpha.cuda.lazy.deferred import BOUND, Deferred
from alpha.cuda.ops.pointwise import chain
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.memory import Array
from alpha.ops.activation import relu_grad
from alpha.ops.norm import batch_norm_act
from alpha.ops.pool import max_pool2d, max_pool2d_backward
from tests.cuda.lazy.deferred_oracle import FORMS, Norm, cuda, flag_of, held, like, plain, planes, wide
from tests.cuda.lazy.operand_oracle import flagged_count, normal
from tests.cuda.lazy.test_deferred_training import NETWORKS
from tests.cuda.test_training import batches, step_of

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

SHAPE = (3, 8, 8, 24)
FUNCTIONS: dict[str, Callable[[alpha.Tensor], alpha.Tensor]] = {
    "gelu": ops.gelu, "silu": ops.silu, "relu6": ops.relu6, "tanh": ops.tanh, "hardswish": ops.hardswish,
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.1), "relu6_silu": lambda x: ops.silu(ops.relu6(x)),
}


@pytest.fixture(autouse=True)
def small_results_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "LEAST", 1)


def alone(name: str, x: np.ndarray) -> np.ndarray:
    """Returns what an op by itself makes of an array that never waited."""
    with config(fuse=False):
        return plain(FUNCTIONS[name], x)


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_planes_are_written_by_the_pass_of_the_chain(name: str, form: str, launches: list[str]) -> None:
    x, whole = like(Norm(*SHAPE, relu=False), form)
    wanted = alone(name, whole)
    launches.clear()
    y = FUNCTIONS[name](x)
    assert type(y.array) is Deferred and set(launches) == {"planes_bound"}, "nothing is written yet"
    got, flag = held(planes(y))
    entry = f"chain{'_norm' * (form == 'waiting')}_{name}"
    assert launches[-2:] == [f"{entry}_planes", entry] and not {"planes_merge", "planes_amax"} & set(launches)
    assert flag == 0 and np.abs(got - wanted).max() <= 2.0 ** -22 * np.abs(wanted).max()
    assert y.numpy().tobytes() == got.astype(np.float32).tobytes(), "float32 is what planes hold"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_first_has_the_bits_of_the_op_by_itself(name: str) -> None:
    norm = Norm(*SHAPE, relu=False)
    y = FUNCTIONS[name](norm.call())
    assert y.numpy().tobytes() == alone(name, norm.call().numpy()).tobytes() and not y.array.derived.in_planes


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_planes_do_not_hold_stays_float32(name: str) -> None:
    """Of a map that they do not hold either."""
    x, whole = like(Norm(*SHAPE, gamma=wide(24), beta=wide(24), relu=False), "planes")
    y, before = FUNCTIONS[name](x), flagged_count()
    wanted = alone(name, whole)
    if name in ("tanh", "relu6", "relu6_silu"):
        planes(y)
        assert np.abs(y.numpy() - wanted).max() <= 2.0 ** -22 * np.abs(wanted).max() or flag_of(y)
        return
    assert flag_of(x) == flag_of(y) == 1 and flagged_count() > before
    raw = memory.download(y.array.derived.memory.elements, np.float32)
    assert raw.tobytes() == wanted.tobytes() == y.numpy().tobytes()


@pytest.mark.long
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0 ** 60])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_pass(name: str, form: str, value: float) -> None:
    norm = Norm(*SHAPE, relu=False)
    norm.beta[5] = value
    x, whole = like(norm, form)
    y = FUNCTIONS[name](x)
    planes(y)
    np.testing.assert_allclose(y.numpy(), alone(name, whole), rtol=1e-6, atol=1e-6)


def test_an_element_above_the_bound_is_noticed() -> None:
    x = Norm(*SHAPE, relu=False).call()
    whole, y = x.numpy(), ops.gelu(x)
    low = memory.upload(np.array([1e-6], np.float32))
    memory.copy(Array(y.array.block, y.array.derived.memory.scale.ptr + BOUND, (1,), "float32", 1, 4), low)
    assert flag_of(y) == 1 and y.numpy().tobytes() == alone("gelu", whole).tobytes()


def test_what_may_grow_has_no_bound() -> None:
    for f in (ops.exp, ops.sigmoid, lambda x: ops.leaky_relu(x, 1.5), lambda x: x * 2, lambda x: x + x):
        y = f(Norm(*SHAPE, relu=False).call())
        assert not hasattr(y.array.derived, "in_planes")


@pytest.mark.parametrize("changed", ["input of x", "x", "y"])
def test_what_a_pass_reads_may_change(changed: str) -> None:
    norm = Norm(*SHAPE, relu=False)
    inputs, gamma, beta = (cuda(a) for a in (norm.x, norm.gamma, norm.beta))
    x = batch_norm_act(inputs, gamma, beta, activation=None)
    y, wanted = ops.gelu(x), alone("gelu", norm.call().numpy())
    target, new = {"input of x": inputs, "x": x, "y": y}[changed], normal(*SHAPE, seed=9)
    target.copy_(new)
    assert np.array_equal(target.numpy(), new)
    got, flag = held(planes(y))
    assert flag == 0 and np.abs(got - (new if changed == "y" else wanted)).max() < 1e-5


@pytest.mark.parametrize("channels", [24, 3])
def test_a_chain_reads_planes(channels: int, launches: list[str]) -> None:
    """Whatever vectors it has besides: of 3 elements here, so that threads read one element at once."""
    x, whole = like(Norm(*SHAPE, relu=False), "planes")
    vector = normal(channels, seed=4)
    shape = (-1, channels)
    with config(fuse=False):
        wanted = (ops.reshape(cuda(whole), shape) * cuda(vector)).numpy()
    launches.clear()
    y = ops.reshape(x, shape) * cuda(vector)
    assert y.numpy().tobytes() == wanted.tobytes() and len(launches) == 1 and x.array.derived.in_planes


def test_gradients_of_relu_read_planes(launches: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    y, g = Norm(61, 8).call(), cuda(normal(61, 8, seed=3))
    planes(y)
    launches.clear()
    dx = relu_grad(g, y).numpy()
    chained = list(launches)
    assert len(chained) == 1 and y.array.derived.in_planes
    assert np.array_equal(dx, np.where(y.numpy() > 0, g.numpy(), 0))
    monkeypatch.setattr(chain, "LEAST", 1 << 20)
    launches.clear()
    assert np.array_equal(relu_grad(g, y).numpy(), dx) and len(launches) == 1 and launches != chained


# ---- gradients -------------------------------------------------------------------------------------------------------


def residual() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
            self.second, self.last = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

        def forward(self, x: alpha.Tensor) -> alpha.Tensor:
            y = ops.relu6(self.norm(self.first(x)))
            return ops.gelu(self.last(self.second(y))) + x
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(8), nn.GELU(),
                         Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


@pytest.mark.parametrize("recompute", ["none", "cheap"])
@pytest.mark.parametrize("mode", ["fp32", "tf32"])
@pytest.mark.parametrize("make", [residual, *NETWORKS.values()])
def test_gradients_are_those_without_chains(make: Callable[[], nn.Module], mode: str, recompute: str,
                                            tensor_cores_first: None, launches: list[str]) -> None:
    found, seen, flagged = [], [], flagged_count()
    for fuse in (True, False):
        alpha.manual_seed(0)
        model = make().to("cuda")
        step = step_of(model, alpha.optim.SGD(model.parameters(), lr=0.1))
        launches.clear()
        with config(fuse=fuse, recompute=recompute), alpha.precision(mode):
            for x, y in batches(4, 2, 8):
                step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda"))
        seen.append(set(launches))
        found.append({k: t.numpy() for k, t in model.state_dict().items()})
    for key, a in found[0].items():
        np.testing.assert_allclose(a, found[1][key], rtol=0, atol=(2e-6 if mode == "fp32" else 2e-3) * max(
            1, np.abs(a).max()), err_msg=key)
    if make is residual:
        assert flagged_count() == flagged, "nothing exceeds its bound"
        assert {"chain_norm_gelu_planes", "chain_norm_relu6_planes", "max_pool_backward_planes",
                "chain_norm_gelu_grad_norm_away"} <= seen[0]
        assert "chain_norm_relu6_relu6_grad_norm_away" in seen[0], "relu6 is made again of what the norm reads"
        assert {"relu6_grad_float32", "max_pool_backward_planes"} <= seen[1]


def test_the_gradient_of_a_join_is_one_pass(tensor_cores_first: None, launches: list[str]) -> None:
    """The sum of gradients, where relu passed, and the sums of the norm; and it has the bits of these one by one."""
    found = []
    for fuse in (True, False):
        x, r, gamma, z = (cuda(a).requires_grad_() for a in (normal(*SHAPE), normal(*SHAPE, seed=1),
                                                               normal(24, seed=2), normal(*SHAPE, seed=3)))
        launches.clear()
        with config(fuse=fuse):
            y = ops.relu(ops.batch_norm(x, gamma, None, None, None, training=True) + ops.batch_norm(
                r, None, None, None, None, training=True))
            planes(y)
            ((y * z.detach()).sum() + (y * y.detach()).sum()).backward()
            found.append([t.grad.numpy() for t in (x, r, gamma)])
        if fuse:
            assert next(entry for entry in launches if "relu_grad" in entry).startswith("chain_")
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*found))


WINDOWS = [dict(kernel_size=(2, 2), stride=(2, 2), padding=(0, 0)), dict(kernel_size=(2, 2), stride=(3, 2),
                                                                         padding=(1, 0))]


def gradient_of_maxima(g: alpha.Tensor, window: dict[str, tuple[int, int]]) -> alpha.Tensor:
    index = max_pool2d.full(cuda(normal(*SHAPE, seed=3)), **window)[1]
    return max_pool2d_backward(g, index, hw=SHAPE[1:3], **window)


def norm_of(window: dict[str, tuple[int, int]], **how: np.ndarray) -> Norm:
    return Norm(*max_pool2d(cuda(normal(*SHAPE)), **window).shape, relu=False, **how)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", WINDOWS)
def test_the_gradient_of_maxima_that_are_apart(window: dict[str, tuple[int, int]], form: str,
                                               launches: list[str]) -> None:
    g, whole = like(norm_of(window), form)
    wanted = plain(lambda t: gradient_of_maxima(t, window), whole)
    launches.clear()
    got, flag = held(planes(gradient_of_maxima(g, window)))
    assert flag == 0 and np.abs(got - wanted).max() <= 2.0 ** -22 * np.abs(wanted).max() * ("elements" in form)
    assert np.abs(wanted).max() > 0
    assert launches[-2:] == ["max_pool_backward_planes", "max_pool_backward_stored"]
    assert not {"planes_merge", "planes_amax"} & set(launches)
    g, whole = like(norm_of(window, gamma=wide(24), beta=wide(24)), form)
    dx = gradient_of_maxima(g, window)
    wanted = plain(lambda t: gradient_of_maxima(t, window), g.numpy())
    assert flag_of(dx) == 1 and dx.numpy().tobytes() == wanted.tobytes()


def test_the_gradient_of_maxima_that_overlap_has_no_bound() -> None:
    window = dict(kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
    assert type(gradient_of_maxima(norm_of(window).call(), window).array) is Array
