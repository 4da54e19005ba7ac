"""Chains of pointwise ops as one pass: the bits of op by op, in 16 bits too, and who ends one."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.core.op import op
from alpha.core.tensor import Tensor
from alpha.cuda.ops.pointwise import chain
from alpha.cuda.runtime.memory import ITEMSIZE
from alpha.errors import DTypeError
from alpha.ops.activation import elu_grad, gelu_grad, hardswish_grad, relu6_grad, silu_grad, softplus_grad, tanh_grad
from alpha.ops.dropout import keyed_dropout
from tests.cuda.process import COUNTS_LIVE

pytestmark = pytest.mark.cuda

SHAPE = (4, 16, 16, 32)
SIZE = 4 * 16 * 16 * 32
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, -3.0, 6.0, 1e-30, -1e-30, 1e30, 88.0, -104.0], np.float32)


@pytest.fixture(autouse=True)
def small_results_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "LEAST", SIZE)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def both(f: Callable[..., list[Tensor]], *arrays: np.ndarray, dtype: str = "float32") -> list[list[np.ndarray]]:
    """The results of f of tensors that need gradients, with chains and without."""
    found = []
    for fuse in (1, 0):
        with config(fuse=fuse):
            xs = [alpha.tensor(a, device="cuda").astype(dtype) for a in arrays]
            xs = [alpha.Tensor(x.array, x.shape, x.dtype, x.device).requires_grad_() for x in xs]
            assert all(x.array.ptr for x in xs)
            found.append([t.numpy() for t in f(*xs)])
    return found


def chains(launches: list[str]) -> list[str]:
    return [entry for entry in launches if entry.startswith("chain_")]


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """The same bits, any NaN being like any other."""
    bits = f"i{a.itemsize}"
    return a.shape == b.shape and bool(((a.view(bits) == b.view(bits)) | (np.isnan(a) & np.isnan(b))).all())


def test_every_activation_has_the_bits_of_the_op_by_itself(launches) -> None:
    a, b = normal(SIZE), np.zeros(SIZE, np.float32)
    a[:ODD.size * 50] = np.tile(ODD, 50)
    groups = [[ops.relu, ops.relu6, ops.sigmoid, ops.tanh, ops.silu, ops.gelu, ops.elu, ops.softplus, ops.hardswish,
               ops.leaky_relu], [ops.exp, ops.log, ops.sqrt, ops.abs, ops.sign, ops.erf],
              [lambda x, f=f: f(x, x) for f in (relu6_grad, tanh_grad, silu_grad, gelu_grad, hardswish_grad,
                                                softplus_grad)] + [lambda x: elu_grad(x, x, 1.0)]]
    for group in groups:
        def run(x, z, group=group):
            with alpha.no_grad():
                y = x + z       # of two arrays: what is made of it and alive is written by the same pass
                made = [f(y) for f in group]
                total = made[0]
                for t in made[1:]:
                    total = total + t
                return [total, *made]
        launches.clear()
        fused, single = both(run, a, b)
        assert len(chains(launches)) == 1
        for k, (p, q) in enumerate(zip(fused, single)):
            assert equal(p, q), (group, k)


@pytest.mark.parametrize("shape", [(32,), (4, 1, 1, 32), (4, 16, 16, 1), (4, 1, 1, 1), (1,), (1, 1, 1, 32)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operands_that_broadcast(shape: tuple[int, ...], dtype: str, launches) -> None:
    def run(x, s):
        y = ops.relu(x * s + 1.0)
        y.sum().backward()
        return [y, x.grad]
    fused, single = both(run, normal(*SHAPE), normal(*shape, seed=1), dtype=dtype)
    assert "chain_mul_add_relu" in launches
    assert all(equal(p, q) for p, q in zip(fused, single))


def test_what_no_kernel_knows_is_an_op_of_its_own(launches) -> None:
    """Vectors of two lengths, and the middle axis."""
    fused, single = both(lambda x, s, t: [ops.relu(x * s) * t, x * t], normal(*SHAPE), normal(1, 1, 16, 1),
                         normal(16, 32))
    assert all(equal(p, q) for p, q in zip(fused, single))


@pytest.mark.parametrize("name, residual", [("gelu", False), ("relu6", True), ("relu", True)])
def test_an_activation_behind_batch_norm_rides_on_it(name: str, residual: bool, launches) -> None:
    def run(x, gamma, beta, z):
        y = ops.batch_norm(x, gamma, beta, None, None, z if residual else None, training=True)
        y = getattr(ops, name)(y)
        launches.clear()
        assert y.array.ptr
        forward = list(launches)
        y.backward(z.detach())
        assert [e.startswith("chain_norm") for e in forward] == ([True] if config.fuse else [])
        passes = [entry for entry in launches if entry not in forward]
        if config.fuse:
            assert not any(entry.startswith(("sums", name)) for entry in passes), passes
        return [y, x.grad, gamma.grad, beta.grad, *([z.grad] if residual else [])]
    with config(tensor_cores=0):    # else float32 is written as planes
        fused, single = both(run, normal(*SHAPE), normal(32, seed=1), normal(32, seed=2), normal(*SHAPE, seed=3))
        assert all(equal(p, q) for p, q in zip(fused, single))
        fused, single = both(run, normal(*SHAPE), normal(32, seed=1), normal(32, seed=2), normal(*SHAPE, seed=3),
                             dtype="bfloat16")
        assert all(equal(p, q) for p, q in zip(fused, single))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_norms_gradient_is_made_by_the_sum_that_it_is_a_term_of(activation: str | None, dtype: str, launches) -> None:
    """A block whose norm comes first: what reads x beside the norm passes a gradient on, too."""
    def run(x, g, gamma, beta, w):
        h = x * 2.0
        y = ops.conv2d(ops.batch_norm(h, gamma, beta, None, None, training=True, activation=activation), w) + h
        assert y.array.ptr
        launches.clear()
        y.backward(g.detach())
        assert x.grad.array.ptr
        wanted = "chain_norm_grad_from" + "_relu" * bool(activation)
        assert [entry.startswith(wanted) for entry in chains(launches)] == ([True] if config.fuse else [])
        assert any(entry.startswith("gradient") for entry in launches) != config.fuse
        return [x.grad, gamma.grad, beta.grad]
    fused, single = both(run, normal(*SHAPE), normal(*SHAPE, seed=1), normal(32, seed=2), normal(32, seed=3),
                         normal(32, 1, 1, 32, seed=4), dtype=dtype)
    assert all(equal(p, q) for p, q in zip(fused, single))


@COUNTS_LIVE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("channels", [3, 4, 6, 10, 12])
def test_sums_of_a_norms_gradient_have_the_bits_of_those_without_chains(channels: int, dtype: str, launches,
                                                                        monkeypatch) -> None:
    """Whatever number of channels is read at once."""
    monkeypatch.setattr(chain, "LEAST", 1)
    values = np.random.default_rng(0).standard_normal((40, 16, 16, channels)).astype(np.float32)

    def gradients(fuse: bool) -> list[bytes]:
        x = alpha.tensor(values, device="cuda").astype(dtype).detach()
        x.requires_grad = True
        gamma, beta = (alpha.ones((channels,), device="cuda", requires_grad=True) for _ in range(2))
        with config(fuse=fuse):
            (ops.silu(ops.batch_norm(x, gamma, beta)) * 0.5).sum().backward()
        return [t.grad.numpy().tobytes() for t in (x, gamma, beta)]

    assert gradients(True) == gradients(False)
    assert any(entry.startswith("chain_") for entry in launches)


@COUNTS_LIVE
def test_what_is_between_takes_no_memory() -> None:
    """Backward keeps x alone: what the norm gives is made again within the pass that needs it."""
    live = {}
    backend = alpha.core.device.get_backend("cuda")
    for fuse in (1, 0):
        with config(fuse=fuse, tensor_cores=0):
            x = alpha.tensor(normal(*SHAPE), device="cuda").astype("bfloat16").requires_grad_()
            before = backend.memory_stats()["live"]
            y = ops.gelu(ops.batch_norm(x, None, None, None, None, training=True))
            assert y.array.ptr
            live[fuse] = backend.memory_stats()["live"] - before
            del y
    assert live[0] - live[1] >= SIZE * ITEMSIZE["bfloat16"]


@COUNTS_LIVE
def test_nothing_is_held_until_garbage_is_collected() -> None:
    backend = alpha.core.device.get_backend("cuda")
    x = alpha.tensor(normal(*SHAPE), device="cuda").astype("bfloat16")
    assert x.array.ptr
    x = alpha.Tensor(x.array, x.shape, x.dtype, x.device).requires_grad_()

    def step() -> None:
        y = ops.gelu(ops.batch_norm(x * 2.0, None, None, None, None, training=True)) + x
        y.sum().backward()
        x.grad = None
    for _ in range(2):  # the second may launch what the first, whose modules were not there, did not
        step()
        backend.synchronize()  # launches that wait for their modules hold what they read
    gc.collect()
    gc.disable()
    try:
        before = backend.memory_stats()["live"]
        for _ in range(3):
            step()
        backend.synchronize()
        assert backend.memory_stats()["live"] <= before
    finally:
        gc.enable()


def test_operands_may_change_before_the_result_is_read() -> None:
    x = alpha.tensor(normal(*SHAPE), device="cuda")
    z = alpha.tensor(normal(*SHAPE, seed=1), device="cuda")
    want = np.maximum(x.numpy() + z.numpy(), 0) * 2
    with alpha.no_grad():
        y = ops.relu(x + z) * 2.0
        x.copy_(z)
        z += 1.0
    assert equal(y.numpy(), want)


def test_a_check_for_nan_runs_the_same_passes() -> None:
    def run(x, z):
        with config(check_nan=True):
            y = ops.gelu(x * z)
        y = y + x
        return [y]
    plain = both(lambda x, z: [ops.gelu(x * z) + x], normal(*SHAPE), normal(*SHAPE, seed=1), dtype="bfloat16")[0]
    assert equal(both(run, normal(*SHAPE), normal(*SHAPE, seed=1), dtype="bfloat16")[0][0], plain[0])


@pytest.mark.long
def test_capture_repeats_the_bits() -> None:
    x = alpha.tensor(normal(*SHAPE), device="cuda").astype("bfloat16")
    s = alpha.tensor(normal(32, seed=1), device="cuda").astype("bfloat16").requires_grad_()

    def step(x):
        y = ops.silu(x * 0.1 + s) * x
        y.sum().backward()
        return y.detach()
    found = []
    repeated = alpha.capture(step, s)
    for _ in range(4):
        s.grad = None
        y = repeated(x * 3.0)
        found.append((y.numpy(), s.grad.numpy()))
    assert all(equal(p, q) for f in found[1:] for p, q in zip(found[0], f))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("recompute", ["none", "cheap", "auto"])
def test_each_op_of_a_chain_rounds(dtype: str, recompute: str) -> None:
    """What is made again has the bits that it had, wherever chains end then: nothing wider than stored passes on."""
    def run(x, z):
        with config(recompute=recompute):
            y = ops.gelu(x * z + 1.0)
            t = ops.silu(y * x) + z
        t.backward(z.detach())
        return [y, t, x.grad, z.grad]
    fused, single = both(run, normal(*SHAPE), normal(*SHAPE, seed=1), dtype=dtype)
    assert all(equal(p, q) for p, q in zip(fused, single))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_draws_the_numbers_that_it_draws_by_itself(dtype: str, launches) -> None:
    for offset in (0, 4, 7, 2):
        def run(x, z, offset=offset):
            y = keyed_dropout(ops.relu(x), p=0.25, seed=7, offset=offset) + z
            y.backward(z.detach())
            return [y, x.grad]
        launches.clear()
        fused, single = both(run, normal(*SHAPE), normal(*SHAPE, seed=1), dtype=dtype)
        assert "chain_relu_dropout_add" in launches and "chain_dropout_relu_relu_grad" in launches
        assert equal(fused[1], single[1])
        assert equal(fused[0], single[0])


def test_dropout_goes_on_in_a_recording() -> None:
    x = alpha.tensor(normal(*SHAPE), device="cuda")

    def step(x):
        return ops.relu(ops.dropout(x, 0.5) + 1.0)
    found = []
    for f in (step, alpha.capture(step)):
        alpha.manual_seed(3)
        with alpha.no_grad():
            found.append([f(x).numpy() for _ in range(5)])
    assert all(equal(p, q) for p, q in zip(*found))
    assert not equal(found[0][3], found[0][4])


@pytest.mark.long
def test_long_chains_and_those_of_many_arrays_are_cut(launches) -> None:
    def run(*xs):
        with alpha.no_grad():
            y = xs[0]
            for _ in range(10):
                for x in xs[1:]:
                    y = y * 0.5 + x
            return [y]
    fused, single = both(run, *[normal(SIZE, seed=k) for k in range(4)])
    assert equal(fused[0], single[0])
    assert 2 <= len(chains(launches)) < 30


def test_an_op_of_ones_own_needs_its_equation_alone(launches) -> None:
    @op
    class chain_cubed:
        """y = a * x^3 + b."""

        args, saves, scalars, follows = "x b", "x", True, False
        equation = "p = x * x; a * p * x + b"

        def shape(x, b, *, a: float = 1.0):
            return x.shape

    def run(x, b):
        with alpha.no_grad():
            return [chain_cubed(x, b, a=2.0)]
    for shape, other in (((7,), (7,)), ((3, 5, 8), (8,)), ((3, 5, 8), (5, 1)), ((0, 4), (4,)), (SHAPE, (32,))):
        x, b = normal(*shape), normal(*other, seed=1)
        for y in (both(run, x, b)[k][0] for k in (0, 1)):
            np.testing.assert_allclose(y, np.float32(2) * (x * x) * x + b, rtol=1e-6, atol=1e-6)
    launches.clear()
    x = alpha.tensor(normal(*SHAPE), device="cuda")
    with alpha.no_grad():
        ops.relu(chain_cubed(x, 1.0, a=3.0) * 2.0).numpy()
    assert len(launches) == 1
    with pytest.raises(DTypeError, match=r"chain_cubed: its equation computes floats, the dtype is int32(.|\n)*help: "):
        chain_cubed.impls["cuda"](ops.arange(5, device="cuda").astype("int32").array, 1.0, a=1.0)


def test_a_norm_that_waits_to_be_written_as_planes_is_made_by_the_activation(launches) -> None:
    def run(x, gamma, z):
        y = ops.batch_norm(x, gamma, None, None, None, training=True)
        t = ops.silu(y)
        launches.clear()
        assert t.array.ptr
        assert len(launches) == config.fuse
        t.backward(z.detach())
        assert not any(entry.startswith("planes_merge") for entry in launches)
        return [t, x.grad, gamma.grad, y]
    fused, single = both(run, normal(*SHAPE), normal(32, seed=1), normal(*SHAPE, seed=3))
    assert all(equal(p, q) for p, q in zip(fused, single))
