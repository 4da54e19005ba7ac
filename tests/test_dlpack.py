"""Arrays shared with other libraries: DLPack both ways on the CPU, and what CUDA's array interface says."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import alpha
from alpha.errors import AlphaError, DeviceError, DTypeError, GraphError, ShapeError
from alpha.interop import dlpack

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
DTYPES = ["float16", "float32", "float64", "int32", "int64", "uint8", "bool"]


class Producer:
    """Hands an array over as other libraries do, and notes the arguments."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0), versions: bool = True) -> None:
        self.array, self.device, self.versions, self.asked = array, device, versions, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: object) -> object:
        self.asked.append(asked)
        if "max_version" in asked and not self.versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**asked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (1, 4, 1)])
def test_numpy_shares_the_elements_both_ways(dtype, shape):
    t = alpha.ones(shape, dtype)
    a = np.from_dlpack(t)
    assert a.shape == shape and a.dtype == dtype and a.flags.writeable
    back = alpha.from_dlpack(a)
    assert (back.shape, back.dtype, back.device) == (shape, dtype, "cpu")
    a[...] = 0
    assert not t.numpy().any() and not back.numpy().any()
    back.copy_(np.ones(shape, dtype))
    assert a.all() and t.numpy().all()


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_shares_the_elements_both_ways(dtype):
    torch = pytest.importorskip("torch")
    t = alpha.ones((2, 3), dtype)
    x = torch.from_dlpack(t)
    assert x.shape == (2, 3) and x.dtype == getattr(torch, dtype) and x.data_ptr() == t.array.ctypes.data
    back = alpha.from_dlpack(x)
    x.zero_()
    assert back.dtype == dtype and not t.numpy().any() and not back.numpy().any()
    assert torch.from_dlpack(alpha.zeros((0, 3))).shape == (0, 3)


@pytest.mark.torch
def test_torch_keeps_what_may_not_be_shared():
    torch = pytest.importorskip("torch")
    with pytest.raises(AlphaError, match=r"from_dlpack: .*Tensor is not handed over: .*gradient.*\nhelp: pass a"):
        alpha.from_dlpack(torch.zeros(2, requires_grad=True))
    with pytest.raises(DTypeError, match=r"from_dlpack: the elements are bfloat16, the cpu backend has bool, float16"):
        alpha.from_dlpack(torch.zeros(2, dtype=torch.bfloat16))


@pytest.mark.parametrize("max_version, name", [(None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"),
                                               ((2, 1), "dltensor_versioned")])
def test_a_capsule_has_the_form_that_its_consumer_reads(max_version, name):
    t = alpha.tensor([1.0, 2.0])
    capsule = t.__dlpack__(max_version=max_version)
    assert repr(capsule).startswith(f'<capsule object "{name}"')
    back = alpha.from_dlpack(SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (1, 0)))
    assert repr(capsule).startswith(f'<capsule object "used_{name}"')
    assert back.array.ctypes.data == t.array.ctypes.data
    with pytest.raises(AlphaError, match="from_dlpack: __dlpack__ returned no capsule that can be taken\nhelp: ask"):
        alpha.from_dlpack(SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (1, 0)))


@pytest.mark.parametrize("versions", [True, False])
def test_old_producers_and_new_ones_are_understood(versions):
    producer = Producer(np.arange(3.0), versions=versions)
    assert alpha.from_dlpack(producer).tolist() == [0.0, 1.0, 2.0]
    assert producer.asked == [{"max_version": (1, 0)}, {}][:1 if versions else 2], "no stream is passed on the CPU"


def test_our_memory_lives_until_the_consumer_lets_go():
    t = alpha.ones((100, 100))
    storage = weakref.ref(t.array)
    a = np.from_dlpack(t)
    del t
    gc.collect()
    assert storage() is not None and a.sum() == 10_000
    del a
    gc.collect()
    assert storage() is None


def test_a_capsule_that_nobody_takes_lets_go():
    for max_version in (None, (1, 0)):
        t = alpha.ones((100, 100))
        storage = weakref.ref(t.array)
        capsule = t.__dlpack__(max_version=max_version)
        del t
        assert storage() is not None
        del capsule
        assert storage() is None


def test_a_consumer_that_fails_shows_its_own_error():
    """The capsule ends while the error is on its way."""
    def hand_over(**_: object) -> object:
        capsule = alpha.ones(3).__dlpack__()
        dlpack._struct(capsule).tensor.device.type = 77
        return capsule

    with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
        np.from_dlpack(SimpleNamespace(__dlpack__=hand_over, __dlpack_device__=lambda: (1, 0)))


class Owned(np.ndarray):
    """An array of which a weak reference can be held."""


def test_their_memory_lives_until_our_last_tensor_is_gone():
    a = np.arange(6.0).view(Owned)
    alive = weakref.ref(a)
    t = alpha.from_dlpack(a)
    view = t.reshape(2, 3)
    del a, t
    gc.collect()
    assert alive() is not None and view.numpy().sum() == 15.0
    del view
    gc.collect()
    assert alive() is None


def test_gradients_flow_through_what_was_imported():
    x = alpha.from_dlpack(np.array([1.0, 2.0], np.float32)).requires_grad_()
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    with pytest.raises(GraphError, match=r"__dlpack__: a tensor of shape \(2,\) requires .*\nhelp: hand over t.det"):
        np.from_dlpack(x)
    assert np.from_dlpack(x.detach()).tolist() == [1.0, 2.0]


def test_copy_hands_over_other_memory():
    t = alpha.ones(3)
    capsule = t.__dlpack__(copy=True)
    a = alpha.from_dlpack(SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (1, 0)))
    a.copy_(np.full(3, 5))
    assert t.tolist() == [1.0, 1.0, 1.0] and a.tolist() == [5.0, 5.0, 5.0]


def read_only(dtype: str = "float32") -> np.ndarray:
    a = np.zeros(4, dtype)
    a.flags.writeable = False
    return a


def ill_aligned() -> np.ndarray:
    return np.zeros(17, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize("array, error, text", [
    (np.zeros((3, 4)).T, ShapeError, r"the elements are not C-contiguous \(shape: \(4, 3\); strides: \(1, 4\); "
                                     r"expected: \(3, 1\)\)\nhelp: pass np.ascontiguousarray"),
    (np.zeros(6)[::2], ShapeError, r"not C-contiguous \(shape: \(3,\); strides: \(2,\); expected: \(1,\)\)"),
    (read_only(), AlphaError, r"the memory is read-only, .*\nhelp: pass a copy: alpha.tensor\(x\)"),
    (ill_aligned(), AlphaError, r"the elements start at 0x\w+, no multiple of 4 bytes\nhelp: pass a copy: x.clone"),
    (np.zeros(2, np.int16), DTypeError, r"the elements are of code 0, 16 bits, 1 lanes, the cpu backend has bool"),
    (np.zeros(2, np.complex64), DTypeError, r"the elements are of code 5, 64 bits"),
    ([1.0], TypeError, r"a list has no __dlpack__ and no __cuda_array_interface__\nhelp: pass an array of NumPy"),
    (Producer(read_only(), versions=False), AlphaError, r"Producer is not handed over: .*readonly.*\nhelp: pass a"),
    (Producer(np.zeros(2), device=(8, 0)), DeviceError, r"the elements are on DLPack device type 8\nhelp: move them"),
])
def test_what_cannot_be_shared_is_refused_with_the_fix(array, error, text):
    with pytest.raises(error, match="^from_dlpack: .*" + text):
        alpha.from_dlpack(array)


def test_axes_of_size_one_may_have_any_stride():
    a = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (1, 3, 1), (400, 4, 64))
    assert alpha.from_dlpack(a).shape == (1, 3, 1)


def test_a_newer_major_version_is_refused():
    t = alpha.ones(2)
    capsule = t.__dlpack__(max_version=(1, 0))
    dlpack._struct(capsule).major = 2
    with pytest.raises(AlphaError, match=r"from_dlpack: the producer speaks DLPack 2, alpha 1\nhelp: copy the"):
        alpha.from_dlpack(SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (1, 0)))


def test_another_device_is_refused():
    with pytest.raises(DeviceError, match=r"__dlpack__: the tensor is on device \(1, 0\), \(2, 0\) was asked for\n"
                                          r"help: move it first: t.to"):
        alpha.ones(2).__dlpack__(dl_device=(2, 0))
    assert alpha.ones(2).__dlpack__(dl_device=(1, 0)) and alpha.ones(2).__dlpack_device__() == (1, 0)


def test_the_cpu_has_no_cuda_array_interface():
    t = alpha.ones(2)
    assert not hasattr(t, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match=r"there is none for float32 on cpu\nhelp: hand the tensor over"):
        _ = t.__cuda_array_interface__


def test_a_consumer_may_outlive_everything():
    """At exit NumPy's array goes after alpha's modules have been taken down."""
    code = ("import sys, alpha, numpy as np\n"
            "sys.kept = [np.from_dlpack(alpha.ones((100, 100))), alpha.from_dlpack(np.ones(3))]\n"
            "sys.more = alpha.ones(3).__dlpack__()\n"
            "np.kept = np.from_dlpack(alpha.ones(5))")
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).resolve().parent.parent, capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
