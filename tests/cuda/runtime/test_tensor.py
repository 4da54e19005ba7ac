"""Tensors on the GPU: making, moving, reading, overwriting; and autograd as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.errors import AnomalyError, DeviceError, DTypeError, ShapeError

pytestmark = pytest.mark.cuda

DTYPES = ["float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool"]


@pytest.fixture(autouse=True)
def there(device) -> None:
    """A GPU, real or emulated."""


def on_gpu(*values: float, requires_grad: bool = False) -> alpha.Tensor:
    return alpha.tensor(np.array(values, np.float32), device="cuda", requires_grad=requires_grad)


# ---- making and moving -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (70, 1000)])
def test_elements_come_back_as_they_went(dtype, shape):
    a = (np.arange(np.prod(shape)).reshape(shape) % 200).astype("bool" if dtype == "bool" else "float32")
    t = alpha.tensor(a, dtype, "cuda")
    assert (t.shape, t.dtype, t.device, t.size) == (shape, dtype, "cuda", a.size)
    assert t.numpy().shape == shape and np.array_equal(t.numpy(), a)
    assert t.numpy().dtype == ("float32" if dtype == "bfloat16" else dtype)


def test_bfloat16_rounds_to_nearest_even():
    t = alpha.tensor([1 + 2 ** -8, 1 + 3 * 2 ** -8, -1e30, float("inf"), float("nan")], "bfloat16", "cuda")
    got = t.numpy()
    assert got[:2].tolist() == [1.0, 1 + 2 ** -6] and got[3] == np.inf and np.isnan(got[4])
    assert abs(got[2] / -1e30 - 1) < 2 ** -8
    with pytest.raises(DTypeError, match=r"the cpu backend has no bfloat16"):
        t.cpu()
    assert t.astype("float32").cpu().tolist()[:2] == [1.0, 1 + 2 ** -6]


@pytest.mark.parametrize("make", [lambda: alpha.tensor(np.ones(2), device="cuda"),
                                  lambda: alpha.zeros(2, "float64", "cuda"), lambda: on_gpu(1.0).astype("float64"),
                                  lambda: alpha.ones(2, "float64").to("cuda")],
                         ids=["tensor", "zeros", "astype", "to"])
def test_float64_is_refused_with_what_there_is(make):
    with pytest.raises(DTypeError, match=r"float64(?s:.*)\nhelp: "):
        make()


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants(dtype):
    assert alpha.zeros((2, 3), dtype, "cuda").numpy().tolist() == [[0, 0, 0]] * 2
    assert alpha.ones(1000, dtype, "cuda").numpy().all()
    assert alpha.full((3,), 1, dtype, "cuda:0").device == "cuda"
    like = alpha.full_like(alpha.zeros((4, 1), dtype, "cuda"), 1)
    assert (like.shape, like.dtype, like.device) == ((4, 1), dtype, "cuda") and like.numpy().all()


def test_random_numbers_are_those_of_the_cpu():
    alpha.manual_seed(5)
    a = alpha.randn((3, 4), device="cuda")
    alpha.manual_seed(5)
    assert np.array_equal(a.numpy(), alpha.randn((3, 4)).numpy())


def test_moving_is_the_identity_where_it_is():
    t = alpha.tensor([1.0, 2.0])
    g = t.to("cuda")
    assert (g.device, g.to("cuda:0"), g.to("cuda")) == ("cuda", g, g) or (g.to("cuda:0") is g and g.to("cuda") is g)
    back = g.cpu()
    assert back.device == "cpu" and back.tolist() == [1.0, 2.0] and t.cpu() is t


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_astype_is_that_of_numpy(source, target):
    a = alpha.tensor(np.array([0, 1, 3, 100]), source, "cuda")
    b = a.astype(target)
    expected = np.array([0, 1, 3, 100]).astype("float32" if source == "bfloat16" else source).astype(
        "float32" if target == "bfloat16" else target)
    assert b.dtype == target and np.array_equal(b.numpy(), expected)
    assert (b is a) == (source == target)


# ---- reading and overwriting -----------------------------------------------------------------------------------------

def test_numbers_are_read():
    t = on_gpu(2.5)
    assert t.item() == 2.5 and float(t) == 2.5 and int(alpha.tensor(3, device="cuda")) == 3
    assert bool(t[0] > 1.0) is True and len(t) == 1 and t.tolist() == [2.5]
    assert np.asarray(t).tolist() == [2.5]
    with pytest.raises(ShapeError, match=r"item: a tensor of shape \(2,\) has 2 elements"):
        on_gpu(1.0, 2.0).item()


def test_repr_names_the_device():
    assert repr(on_gpu(1.0, 2.0)) == "tensor([1., 2.], shape=(2,), dtype=float32, device='cuda')"
    assert "corner of (20, 20)" in repr(alpha.zeros((20, 20), "bfloat16", "cuda"))
    assert "grad_fn=mul" in repr(on_gpu(1.0, requires_grad=True) * 2.0)


@pytest.mark.parametrize("source", [lambda: on_gpu(5.0, 6.0), lambda: np.array([5, 6]),
                                    lambda: alpha.tensor([5.0, 6.0]), lambda: on_gpu(5.0, 6.0).astype("float16")],
                         ids=["same", "numpy", "cpu", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_copy_overwrites_in_place(source, dtype):
    t = on_gpu(1.0, 2.0).astype(dtype)
    where, version = t.array.ptr, t._version
    assert t.copy_(source()) is t and t.array.ptr == where and t._version == version + 1
    assert t.numpy().tolist() == [5.0, 6.0]
    with pytest.raises(ShapeError, match=r"copy_: the source has shape \(3,\), the tensor \(2,\)"):
        t.copy_(np.zeros(3))


def test_devices_do_not_mix():
    with pytest.raises(DeviceError, match=r"add: the tensors live on cpu and cuda \(a: cuda; b: cpu\)\nhelp: move"):
        on_gpu(1.0) + alpha.tensor([1.0])


def test_the_backend_reports_its_memory():
    backend = get_backend("cuda")
    t = alpha.zeros((1 << 18,), device="cuda")
    backend.synchronize()
    stats = backend.memory_stats()
    assert stats["peak"] >= stats["live"] >= t.array.nbytes


# ---- autograd --------------------------------------------------------------------------------------------------------

def both(f, *arrays: np.ndarray) -> None:
    """Asserts that f(*tensors) and its gradients agree between the devices."""
    results = []
    for device in ("cpu", "cuda"):
        leaves = [alpha.tensor(a, device=device, requires_grad=True) for a in arrays]
        y = f(*leaves)
        y.backward()
        assert all(t.grad.device == device for t in leaves)
        results.append([y.numpy(), *(t.grad.numpy() for t in leaves)])
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)


def test_a_small_graph_has_the_gradients_of_the_cpu():
    a, b = (np.random.default_rng(k).standard_normal(s).astype("float32") for k, s in enumerate([(4, 5), (5,)]))
    both(lambda x, w: ((x * w).tanh() + x.exp() / (1.0 + w * w)).sum(), a, b)
    both(lambda x, w: (x @ w.reshape(5, 1)).relu().mean(), a, b)


def test_gradients_accumulate_and_no_grad_is_heeded():
    x = on_gpu(1.0, 2.0, requires_grad=True)
    for _ in range(3):
        (x * x).sum().backward()
    assert x.grad.tolist() == [6.0, 12.0] and x.grad.device == "cuda"
    with alpha.no_grad():
        assert not (x * x).requires_grad
    x.grad = None
    (x.detach() * x).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]


def test_double_backward():
    x = on_gpu(1.0, 2.0, requires_grad=True)
    (g,) = alpha.grad((x * x * x).sum(), x, create_graph=True)
    assert g.tolist() == [3.0, 12.0]
    (h,) = alpha.grad((g * g).sum(), x)
    assert h.tolist() == [36.0, 288.0]                      # d/dx 9 x^4


def test_gradients_flow_across_devices():
    x = alpha.tensor([1.0, 2.0], requires_grad=True)
    (x.to("cuda") * on_gpu(3.0, 4.0)).sum().backward()
    assert x.grad.device == "cpu" and x.grad.tolist() == [3.0, 4.0]


def test_gradients_flow_through_a_change_of_dtype():
    x = on_gpu(1.0, 2.0, requires_grad=True)
    (x.astype("bfloat16") * 2.0).sum().astype("float32").backward()
    assert x.grad.dtype == "float32" and x.grad.tolist() == [2.0, 2.0]


def test_the_first_nan_is_named():
    with config(check_nan=True), pytest.raises(AnomalyError, match="log"):
        on_gpu(-1.0).log()
    with config(check_nan=True):
        assert ops.exp(on_gpu(0.0)).item() == 1.0


def test_a_copy_of_a_tensor_has_its_dtype():
    for dtype in ("bfloat16", "float16", "int64"):
        t = alpha.tensor([1.0, 2.0], dtype, "cuda")
        assert alpha.tensor(t, device="cuda").dtype == dtype
    assert alpha.tensor(alpha.tensor([1.0], "bfloat16", "cuda")).dtype == "float32"  # the CPU has no other for it
