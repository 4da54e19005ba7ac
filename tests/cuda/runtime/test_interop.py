"""Memory shared with other libraries on the GPU: DLPack and CUDA's array interface, both ways, in stream order."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import alpha
from alpha.cuda import BACKEND, context
from alpha.cuda.runtime import memory
from alpha.errors import AlphaError, DTypeError, GraphError, ShapeError
from tests.cuda.process import COUNTS_LIVE

pytestmark = [pytest.mark.cuda, COUNTS_LIVE, pytest.mark.long]

DTYPES = ["float32", "bfloat16", "float16", "int32", "int64", "uint8", "bool"]


def settle() -> None:
    """Ends what nobody holds any more, be it in a cycle or in use by the device until now."""
    gc.collect()
    context.synchronize()
    memory.pool.drain()


@pytest.fixture(autouse=True)
def nothing_leaks(device):
    """What a test exports and imports must have ended when it is over."""
    alpha.ones(1 << 14, device="cuda").sum().item()  # the zeros that blocks count by, two of them, are kept
    settle()
    live = memory.pool.live
    yield
    settle()
    assert memory.pool.live <= live     # less: something of an earlier test has ended meanwhile


def make(*shape: int, dtype: str = "float32") -> alpha.Tensor:
    return alpha.tensor(np.arange(np.prod(shape)).reshape(shape) % 2, dtype, "cuda")


@pytest.fixture
def waits(monkeypatch) -> list[str]:
    """Notes which waiting the backend asked for."""
    noted: list[str] = []
    monkeypatch.setattr(type(context), "synchronize", lambda self, others=False: noted.append(
        "all" if others else "ours"))
    return noted


# ---- DLPack ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_our_own_capsule_comes_back_as_the_same_memory(dtype, shape):
    t = make(*shape, dtype=dtype)
    assert t.__dlpack_device__() == (2, 0)
    back = alpha.from_dlpack(t)
    assert (back.shape, back.dtype, back.device) == (shape, dtype, "cuda")
    assert np.array_equal(back.numpy(), t.numpy()) and (back.array.ptr == t.array.ptr or not t.size)
    back.copy_(alpha.tensor(np.zeros(shape), dtype, "cuda"))
    assert not t.numpy().any()


def test_our_block_lives_until_the_consumer_lets_go():
    live = memory.pool.live
    t = make(1000, 1000)
    capsule = t.__dlpack__()
    del t
    assert memory.pool.live == live + 4_000_000
    back = alpha.from_dlpack(SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (2, 0)))
    assert back.numpy().sum() == 500_000
    del back
    settle()
    assert memory.pool.live <= live


class Producer:
    """A foreign array on the device: memory of PyCUDA's own, described by CUDA's array interface."""

    def __init__(self, values: np.ndarray, **interface: object) -> None:
        self.memory = context.driver.mem_alloc(max(values.nbytes, 1) + 64)
        if values.nbytes:
            context.driver.memcpy_htod(self.memory, np.ascontiguousarray(values))
        self.__cuda_array_interface__ = {"shape": values.shape, "typestr": values.dtype.str, "version": 3,
                                         "strides": None, "data": (int(self.memory), False), **interface}


@pytest.mark.parametrize("stream, expected", [(None, []), (1, []), (-1, []), (2, ["ours"]), (12345, ["ours"])])
def test_a_consumer_waits_for_our_work(stream, expected, waits):
    """The legacy default stream is ordered with ours by CUDA."""
    t = make(3)
    t.__dlpack__(stream=stream)
    t.__dlpack__(stream=context.stream.handle)
    assert waits == expected


def test_a_producer_is_told_our_stream():
    t, asked = make(3), []

    def hand_over(**kwargs: object) -> object:
        asked.append(kwargs)
        return t.__dlpack__(**kwargs)

    alpha.from_dlpack(SimpleNamespace(__dlpack__=hand_over, __dlpack_device__=lambda: (2, 0)))
    assert asked == [{"stream": context.stream.handle, "max_version": (1, 0)}] and context.stream.handle > 2


def test_their_memory_lives_until_our_kernels_are_done(monkeypatch):
    producer = Producer(np.arange(5, dtype=np.float32))
    alive = weakref.ref(producer)
    t = alpha.from_dlpack(producer)
    view = t.reshape(5, 1)
    del producer, t
    gc.collect()
    assert alive() is not None and view.numpy().ravel().tolist() == [0, 1, 2, 3, 4]

    class Busy:
        done = False

        def record(self, stream: object) -> Busy:
            return self

        def query(self) -> bool:
            return self.done

    busy = Busy()
    monkeypatch.setattr(memory, "event", lambda: busy)
    del view
    gc.collect()
    assert alive() is not None, "a kernel may still be reading it"
    busy.done = True
    memory.pool.drain()
    assert alive() is None


# ---- CUDA's array interface ------------------------------------------------------------------------------------------

def test_the_interface_describes_the_memory():
    t = make(2, 3, dtype="float16")
    assert t.__cuda_array_interface__ == {"shape": (2, 3), "typestr": "<f2", "data": (t.array.ptr, False), "version": 3,
                                          "strides": None, "stream": context.stream.handle}
    assert type(t.__cuda_array_interface__["shape"]) is tuple   # CuPy takes no subclass
    assert not hasattr(t.astype("bfloat16"), "__cuda_array_interface__")
    with pytest.raises(GraphError, match=r"__cuda_array_interface__: a tensor of shape \(2, 3\) requires a gradient"):
        _ = make(2, 3).requires_grad_().__cuda_array_interface__


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8", "bool"])
def test_foreign_memory_is_taken_as_it_is(dtype):
    values = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    producer = Producer(values)
    t = alpha.from_dlpack(producer)
    assert (t.array.ptr, t.shape, t.dtype, t.device) == (int(producer.memory), (2, 3), dtype, "cuda")
    assert np.array_equal(t.numpy(), values)
    t.copy_(np.ones((2, 3), dtype))
    back = np.empty_like(values)
    context.synchronize()
    context.driver.memcpy_dtoh(back, producer.memory)
    assert back.all()


@pytest.mark.parametrize("stream, expected", [(None, []), (1, []), (2, ["all"]), (12345, ["all"])])
def test_we_wait_for_the_work_of_a_producer(stream, expected, waits):
    alpha.from_dlpack(Producer(np.zeros(3, np.float32), stream=stream))
    assert waits == expected


def test_strides_that_are_contiguous_are_taken():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert alpha.from_dlpack(Producer(values, strides=(12, 4))).tolist() == values.tolist()
    assert alpha.from_dlpack(Producer(np.zeros((0, 3), np.float32), data=(0, False))).shape == (0, 3)


@pytest.mark.parametrize("interface, error, text", [
    ({"strides": (4, 8)}, ShapeError, r"not C-contiguous .*strides: \(1, 2\).*\nhelp: .*x\.contiguous"),
    ({"data": "read-only"}, AlphaError, r"the memory is read-only"),
    ({"data": 4}, AlphaError, r"the elements start at 0x\w+, no multiple of 16 bytes\nhelp: pass a copy: x\.clone"),
    ({"typestr": "<f8"}, DTypeError, r"the elements are float64, the cuda backend has bfloat16, .*\nhelp: convert"),
    ({"mask": object()}, AlphaError, r"the array has a mask\nhelp: fill the masked"),
])
def test_what_cannot_be_shared_is_refused_with_the_fix(interface, error, text):
    producer = Producer(np.zeros((2, 3), np.float32))
    at = int(producer.memory)
    data = {"read-only": (at, True), 4: (at + 4, False)}.get(interface.get("data"), (at, False))
    producer.__cuda_array_interface__ |= {**interface, "data": data}
    with pytest.raises(error, match="^from_dlpack: .*" + text):
        alpha.from_dlpack(producer)


def test_numpy_is_told_to_ask_for_a_copy():
    with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
        np.from_dlpack(make(3))
    assert np.from_dlpack(make(3).cpu()).tolist() == [0, 1, 0]


# ---- PyTorch and CuPy on the GPU -------------------------------------------------------------------------------------

@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_shares_memory_both_ways(torch, dtype):
    t = make(300, 7, dtype=dtype)
    x = torch.from_dlpack(t)
    assert x.data_ptr() == t.array.ptr and x.dtype == getattr(torch, dtype) and x.shape == (300, 7)
    assert np.array_equal(x.cpu().float().numpy(), t.numpy().astype("float32"))
    y = torch.ones(300, 7, device="cuda").to(getattr(torch, dtype))
    back = alpha.from_dlpack(y)
    assert back.array.ptr == y.data_ptr() and back.dtype == dtype and back.numpy().all()


@pytest.mark.torch
@pytest.mark.parametrize("side_stream", [False, True])
def test_torch_and_alpha_take_turns(torch, side_stream):
    """Each reads what the other wrote last, without anybody waiting by hand."""
    stream = torch.cuda.Stream() if side_stream else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(1 << 22, device="cuda")
        for _ in range(20):
            x = torch.from_dlpack(alpha.from_dlpack(x + 1.0) * 2.0)
        result = x.max().item(), x.min().item()
    assert result == (2.0 ** 21 - 2.0,) * 2


@pytest.mark.torch
def test_torch_frees_what_alpha_has_let_go(torch):
    before = torch.cuda.memory_allocated()
    t = alpha.from_dlpack(torch.ones(1 << 20, device="cuda"))
    assert torch.cuda.memory_allocated() == before + (4 << 20) and t.sum().item() == 1 << 20
    del t
    context.synchronize()
    memory.pool.drain()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.torch
def test_torch_takes_the_array_interface(torch):
    t = make(4, 5)
    assert torch.as_tensor(t, device="cuda").data_ptr() == t.array.ptr


def test_cupy_shares_memory_both_ways():
    cupy = pytest.importorskip("cupy")
    t = make(4, 5)
    a = cupy.from_dlpack(t)
    assert a.data.ptr == cupy.asarray(t).data.ptr == t.array.ptr
    assert alpha.from_dlpack(a).array.ptr == t.array.ptr


def test_the_backend_names_its_stream():
    assert BACKEND.stream_handle() == context.stream.handle
