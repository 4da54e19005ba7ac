"""Convolutions with a relu that wait for their reader: written once, as they are read, and rightly."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.cuda import BACKEND
from alpha.cuda.conv import wgmma
from alpha.cuda.conv.costs import HOPPER, exactly
from alpha.cuda.lazy.deferred import BOUND, MOST, Deferred
from alpha.cuda.lazy.operand import SMALL, flagged_count
from alpha.cuda.ops.pointwise.activation import relu_grad_cuda
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv import conv2d_bias_act
from alpha.ops.pool import max_pool2d
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_fprop_padded
from tests.cuda.agree import ints
from tests.cuda.lazy.deferred_oracle import cuda, error, flag_of, held, planes, wide
from tests.cuda.lazy.operand_oracle import normal
from tests.cuda.lazy.test_deferred_training import forget_maps, memory_of_a_step
from tests.cuda.process import CHECKED
from tests.cuda.test_training import batches, step_of, trained

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device", "tensor_cores_first")]

TILES = [c for c in wgmma.CANDIDATES if c.writes_planes]
PAIRS = square("pairs of outputs", 9, 5, 64, 72, 3, 1, 1)  # for tiles of them, which do not fit the others
CASES = (square("tails of rows and columns", 70, 2, 16, 136, 3, 1, 1), square("several pixels", 9, 5, 16, 32, 3, 2, 1),
         square("positions without taps", 9, 4, 8, 40, 1, 1, 1), square("groups", 9, 2, 48, 96, 3, 1, 1, groups=2))
MODES = ["fp32", "tf32"]
BOUND_OF_FP32 = 2e-6  # docs/numerics.md promises it of a product


class Fused:
    """A convolution with bias and relu: its operands, its result in float64, and its call on the device."""

    def __init__(self, case: Case = CASES[1], make: Callable[..., np.ndarray] = normal) -> None:
        self.case, self.x, self.w = case, make(*case.x_shape), make(*case.w_shape, seed=1)
        self.b = make(case.oc, seed=2)

    def arrays(self) -> list[alpha.Tensor]:
        return [cuda(a) for a in (self.x, self.w, self.b)]

    def call(self) -> alpha.Tensor:
        return conv2d_bias_act(*self.arrays(), activation="relu", **self.case.attrs)

    def y64(self) -> np.ndarray:
        x, w = self.x.astype(np.float64), self.w.astype(np.float64)
        return np.maximum(conv_fprop_padded(x, w, **self.case.attrs) + self.b, 0)


@pytest.fixture
def one_tile(monkeypatch) -> Callable[[wgmma.Wgmma], str]:
    """Has all plans take one tile, and returns the precision that it is of."""
    def take(tile: wgmma.Wgmma) -> str:
        monkeypatch.setattr(wgmma.Wgmma, "least_us", lambda self, desc: -1e6 if self is tile else -1.0)
        monkeypatch.setattr(wgmma.Wgmma, "cost", lambda self, desc: exactly(-1e6 if self is tile else -1.0))
        monkeypatch.setattr("alpha.cuda.conv.planner._plans", {})
        return "fp32" if tile.mode.planes == 2 else "tf32"
    return take


def number(t: alpha.Tensor, at: int) -> float:
    """Returns a number of the header of planes."""
    header = t.data.derived.memory.scale
    return float(memory.download(Array(header.block, header.ptr + at, (1,), "float32", 1, 4), np.float32)[0])


def undeferred(monkeypatch, f: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns what f does where convolutions write float32 at once."""
    with monkeypatch.context() as patch:
        patch.setattr("alpha.cuda.conv.with_relu", lambda *arguments: None)
        return f()


# ---- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_integers_are_bitwise_right(tile, one_tile):
    for case in [PAIRS] if tile.tile.pairs else CASES:
        fused = Fused(case, ints)
        with alpha.precision(one_tile(tile)):
            y = fused.call()
            assert type(y.data) is Deferred
            got, flag = held(planes(y))
        assert flag == 0 and np.array_equal(got, fused.y64()), case.name
        assert number(y, MOST) == got.max() and number(y, BOUND) >= got.max()
        assert np.array_equal(y.numpy(), fused.y64()), "merged"


@pytest.mark.parametrize("tile", [t for t in TILES if t.tile.columns in (32, 64) and not (t.tile.pairs or t.tile.held)],
                         ids=lambda tile: tile.name)
def test_sums_in_slices(tile, one_tile, monkeypatch, fresh_schedules):
    monkeypatch.setattr(HOPPER.wgmma, "sum_us", 0.0)  # else sums as short as a test's are not cut
    case = square("slices", 3, 1, 648, 40, 1)
    monkeypatch.setattr(context, "sm_count", 4)
    assert tile.plan(case.desc)[1].slots > 0
    fused = Fused(case, ints)
    with alpha.precision(one_tile(tile)):
        y = fused.call()
        got, flag = held(planes(y))
    assert flag == 0 and np.array_equal(got, fused.y64()) and number(y, MOST) == got.max()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planes_hold_what_float32_would_be(case, mode, monkeypatch):
    fused = Fused(case)
    with alpha.precision(mode):
        whole = undeferred(monkeypatch, lambda: fused.call().numpy())
        assert fused.call().numpy().tobytes() == whole.tobytes(), "float32 first"
        got, flag = held(planes(fused.call()))
        again, _ = held(planes(fused.call()))
    assert flag == 0 and np.abs(got - whole).max() <= 2.0 ** -22 * whole.max() and np.array_equal(got, again)
    assert error(got, fused.y64()) <= (BOUND_OF_FP32 if mode == "fp32" else 1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_who_comes_first_decides(mode, launches):
    y, product = Fused().call(), ["conv_wgmma", "conv_v2"]
    with alpha.precision(mode):
        y = Fused().call()
        assert launches[-1] == "conv_bound" and not set(product) & set(launches)
        launches.clear()
        planes(y), planes(y)
        assert [entry for entry in launches if "planes" not in entry] == product, "the second ends at once"
        y = Fused().call()
        launches.clear()
        y.numpy()
        assert [entry for entry in launches if "planes" not in entry] == product
    assert not y.data.derived.in_planes and not y.data.derived.reads


def test_what_nobody_reads_is_never_written(launches):
    inputs = Fused().arrays()
    gc.collect()
    y = conv2d_bias_act(*inputs, activation="relu")
    measured, live = sum(a.nbytes for a in (inputs[0].data.derived or {}).values()), BACKEND.memory_stats()["live"]
    del y
    assert BACKEND.memory_stats()["live"] < live and measured and "conv_wgmma" not in launches


@pytest.mark.parametrize("why", ["no relu", "tensor cores", "channels", "16 bits", "visible"])
def test_where_nothing_waits(why):
    fused = Fused(square("", 9, 3, 3 if why == "channels" else 8, 8, 3))
    x, w, b = fused.arrays()
    if why == "16 bits":
        x = x.astype("float16")
    if why == "visible":
        w.__dlpack__()
    with alpha.config(tensor_cores=why != "tensor cores"):
        y = conv2d_bias_act(x, w, b, activation=None if why == "no relu" else "relu")
    assert type(y.data) is Array


@pytest.mark.parametrize("size", [1, SMALL])
def test_the_bound_is_that_of_filters_and_inputs(size, launches):
    """Of inputs that are measured, once, and of what a header tells, on the device."""
    x, w, b = (cuda(normal(*shape, seed=k)) for k, shape in enumerate([(9, 3, 3, 8), (24, 3, 3, 8), (24,)]))
    x = cuda(normal(size // 64 + 1, 3, 3, 8))
    first = conv2d_bias_act(x, w, b, activation="relu")
    rows = np.abs(w.numpy().astype(np.float64)).sum((1, 2, 3)).max()
    bound = np.abs(x.numpy()).max() * rows + np.abs(b.numpy()).max()
    assert bound <= number(first, BOUND) <= 1.003 * bound
    second = conv2d_bias_act(x, w, None, activation="relu")
    assert 0.999 * (bound - np.abs(b.numpy()).max()) <= number(second, BOUND) <= 1.003 * bound
    planes(second)
    assert launches.count("planes_amax") == 1
    third = conv2d_bias_act(first, cuda(normal(8, 1, 1, 24)), None, activation="relu")
    rows = np.abs(normal(8, 1, 1, 24).astype(np.float64)).sum((1, 2, 3)).max()
    assert number(third, BOUND) == pytest.approx(number(first, MOST) * rows, rel=3e-3), "it does not grow with depth"
    assert launches.count("planes_amax") == 1


# ---- flags -----------------------------------------------------------------------------------------------------------


def spread(fused: Fused, where: str) -> None:
    """Gives an operand a range that planes do not hold; of the bias, which is not split, the result has it."""
    if where == "x":
        fused.x *= wide(fused.case.ic)
    elif where == "w":
        fused.w *= wide(fused.case.oc)[:, None, None, None]
    elif where == "b":
        fused.b = np.abs(fused.b) * wide(fused.case.oc) * np.float32(2.0 ** 40)
        fused.w *= np.float32(2.0 ** -60)
    else:
        fused.x *= np.float32(2.0 ** -30)
        fused.x[0, 0, 0, 0] = 2.0 ** 40


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["x", "w", "b", "an outlier"])
def test_what_planes_do_not_hold_stays_float32(where, mode, monkeypatch):
    """An operand's planes, or the result's: an exact kernel writes its elements."""
    fused = Fused(square("", 9, 3, 24, 24, 3, 1, 1))
    spread(fused, where)
    with alpha.precision(mode):
        y, before = fused.call(), flagged_count()
        assert flag_of(y) == 1 and flagged_count() > before
        raw, y64 = memory.download(y.data.derived.memory.elements, np.float32), fused.y64()
        if where != "b":
            assert raw.tobytes() == undeferred(monkeypatch, lambda: fused.call().numpy()).tobytes()
    assert raw.tobytes() == y.numpy().tobytes()
    for channel in range(y64.shape[-1]):
        assert np.abs(raw[..., channel] - y64[..., channel]).max() <= 1e-5 * max(y64[..., channel].max(), 1e-30)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["x", "w", "b"])
def test_special_values_pass(where, value, mode):
    fused = Fused()
    getattr(fused, where).reshape(-1)[5] = value
    with alpha.precision(mode):
        y = fused.call()
        planes(y)
    with alpha.config(tensor_cores=False):
        wanted = fused.call().numpy()
    assert not np.isfinite(wanted).all() or (where, value) == ("b", -np.inf)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=0, atol=5e-5 if mode == "fp32" else 5e-2)


def test_an_element_above_the_bound_is_noticed():
    fused = Fused()
    y, low = fused.call(), memory.upload(np.array([1e-6], np.float32))
    memory.copy(Array(y.data.block, y.data.derived.memory.scale.ptr + BOUND, (1,), "float32", 1, 4), low)
    assert flag_of(y) == 1 and error(y.numpy(), fused.y64()) < 1e-6


# ---- what happens in the meantime ------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["x", "w", "b", "y"])
def test_what_a_pass_reads_may_change(changed):
    fused = Fused()
    x, w, b = fused.arrays()
    y = conv2d_bias_act(x, w, b, activation="relu", **fused.case.attrs)
    target = {"x": x, "w": w, "b": b, "y": y}[changed]
    new = normal(*target.shape, seed=9)
    target.copy_(new)
    assert np.array_equal(target.numpy(), new)
    got, flag = held(planes(y))
    assert flag == 0 and error(got, new if changed == "y" else fused.y64()) < BOUND_OF_FP32


def test_memory_that_others_see_has_elements():
    fused = Fused()
    y = fused.call()
    assert y.__cuda_array_interface__["data"][0] == y.data.ptr and not y.data.derived.in_planes
    assert error(y.numpy(), fused.y64()) < BOUND_OF_FP32


def test_gradients_of_relu_read_a_plane(launches):
    y, g = Fused().call(), cuda(normal(*Fused().y64().shape, seed=3))
    planes(y)
    launches.clear()
    dx = memory.download(relu_grad_cuda(g.data, y.data), np.float32)
    assert launches == ["planes_relu_grad"] and np.array_equal(dx, np.where(y.numpy() > 0, g.numpy(), 0))


def test_capture_repeats_passes():
    """Of results that are read as planes, as float32, and not at all within the recording."""
    case = square("", 9, 4, 16, 24, 3, 1, 1)
    _, w, b = Fused(case).arrays()
    v = cuda(normal(8, 1, 1, 24, seed=5))

    def function(x):
        y = conv2d_bias_act(x, w, b, padding=1, activation="relu")
        z = conv2d_bias_act(max_pool2d(y, 2), v, activation="relu")
        return y, z, conv2d_bias_act(x, w, b, activation="relu") + 1

    inputs = [cuda(normal(*case.x_shape, seed=k)) for k in range(4)]
    for grad in (alpha.no_grad, alpha.enable_grad):
        with grad():
            expected = [[t.numpy() for t in function(x)] for x in inputs]
            captured = alpha.capture(function)
            for x, wanted in zip(inputs, expected):
                for a, c in zip(captured(x), wanted):
                    assert a.numpy().tobytes() == c.tobytes()


# ---- networks --------------------------------------------------------------------------------------------------------


def alexnet() -> nn.Module:
    """Convolutions behind each other and behind pools, without batch norm."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 24, 3, padding=1),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 10))


@pytest.mark.parametrize("mode", ["fp32", "tf32", "bf16", "fp16"])
def test_losses_are_those_of_float32(mode, launches, monkeypatch):
    steps = 2 if CHECKED else 3
    with alpha.precision(mode):
        wanted, _ = undeferred(monkeypatch, lambda: trained(alexnet, "cuda", steps, pixels=8))
        launches.clear()
        losses, weights = trained(alexnet, "cuda", steps, pixels=8)
        again, same = trained(alexnet, "cuda", steps, pixels=8)
    assert losses == again and all(w.tobytes() == same[key].tobytes() for key, w in weights.items())
    if mode in MODES:
        assert losses == pytest.approx(wanted, rel=2e-5 if mode == "fp32" else 2e-2) and "conv_bound" in launches
    else:
        assert losses == wanted and "conv_bound" not in launches


@pytest.mark.parametrize("mode", MODES)
def test_a_step_splits_no_map_that_a_convolution_has_written(mode, no_products, launches):
    model = alexnet().to("cuda")
    step = step_of(model, optim.SGD(model.parameters(), lr=0.1))
    for x, y in batches(160, 2, 8):  # so large that one block splits none of them
        launches.clear()
        with alpha.precision(mode):
            step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda"))
    assert launches.count("conv_bound") == 4 and launches.count("max_pool_planes") == 1
    assert launches.count("planes_relu_grad") == 3 and launches.count("conv_wgmma") >= 9
    forward = launches[:launches.index("forward_single_float32")]
    splits = [entry for entry in forward if entry.startswith("planes_split") and not entry.endswith("_all")]
    assert len(splits) == 2, "of the images, and of the first pool"


@pytest.mark.parametrize("grad", [alpha.enable_grad, alpha.no_grad], ids=["training", "inference"])
def test_it_takes_no_more_memory(grad, no_products, monkeypatch):
    """But for a header per map, of 64 bytes behind a multiple of 256."""
    def peaks() -> list[int]:
        if grad is alpha.enable_grad:
            return memory_of_a_step(alexnet)
        model, x = alexnet().to("cuda").eval(), cuda(normal(160, 8, 8, 3))
        gc.collect()
        with alpha.no_grad():
            for _ in range(2):
                forget_maps()
                base = BACKEND.memory_stats()["live"]
                BACKEND.reset_peak_memory()
                model(x)
        return [BACKEND.memory_stats()["peak"] - base]

    ours, before = peaks(), undeferred(monkeypatch, peaks)
    assert all(a <= b + 320 * 12 for a, b in zip(ours, before)), (ours, before)


def test_an_inference_holds_no_inputs(launches):
    """What waits is written when the next result takes memory: by a pool, or by another convolution."""
    fused = Fused(square("", 9, 4, 16, 24, 3, 1, 1))
    for follow in (lambda y: max_pool2d(y, 2), lambda y: fused.call()):
        with alpha.no_grad():
            y = fused.call()
            assert y.data.derived.reads
            after = follow(y)
            assert not y.data.derived.reads and y.data.derived.in_planes and after.data.derived.reads
    y = fused.call()
    pooled = ops.max_pool2d(y, 2)
    assert y.data.derived.reads and pooled.data.derived.reads, "in training a backward pass keeps them"
