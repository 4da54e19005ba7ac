"""NCCL's engine against a library of its names that logs calls: arguments, types, the order of streams, errors."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from alpha.dist import gpu, nccl
from alpha.dist.communicator import Communicator
from alpha.dist.launch import Place
from alpha.errors import DeviceError
from alpha.core.tensor import Tensor

CC = shutil.which("gcc") or shutil.which("cc")
pytestmark = [pytest.mark.skipif(CC is None, reason="there is no C compiler"),
              pytest.mark.same_without_kernels("ranks are what is tested")]
SIZE = 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nccl") / "libfake_nccl.so"
    subprocess.run([str(CC), "-shared", "-fPIC", "-O1", "-o", str(made), str(Path(__file__).parent / "fake_nccl.c")],
                   check=True)
    return made


@pytest.fixture
def library(path: Path) -> Iterator[Any]:
    found, why = nccl.load((str(path),))
    assert found is not None and why == ""
    found.fake_log.restype = ctypes.c_char_p
    found.fake_clear()
    yield found
    found.fake_fail(0)
    found.fake_version(22809)


class Stream:
    """Notes what a stream is given."""

    def __init__(self, name: str, order: list[str], handle: int) -> None:
        self.name, self.order, self.handle = name, order, handle

    def wait_for_event(self, event: str) -> None:
        self.order.append(f"{self.name} waits for {event}")


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Host memory in place of a device's, and what the streams were given."""
    said: list[str] = []
    kept: list[Any] = []

    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        a = np.zeros(shape, {"bfloat16": "uint16"}.get(dtype, dtype))
        return SimpleNamespace(a=a, ptr=a.ctypes.data)

    class Event:
        def record(self, stream: Stream) -> str:
            said.append(f"event on {stream.name}")
            return f"event {sum('event on' in line for line in said)}"

    compute = Stream("compute", said, 1)
    monkeypatch.setattr(nccl, "context", SimpleNamespace(
        stream=compute, here=SimpleNamespace(entered=True), driver=SimpleNamespace(
            Stream=lambda: Stream("nccl", said, 0xABC))))
    monkeypatch.setattr(nccl, "memory", SimpleNamespace(recorder=None, empty=empty, event=Event, pool=SimpleNamespace(
        until=lambda event, thing: kept.append((event, thing)))))
    monkeypatch.setattr(nccl, "backlog", SimpleNamespace(run=lambda: said.append("backlog")))
    return said


def engine_of(library: Any, rank: int = 0) -> nccl.Engine:
    comm = Communicator(Place(rank, SIZE), None)
    text = bytes([255, 254, 253, 0, *range(251, 127, -1)]).hex()
    comm.gather = lambda fact: [fact or text] * SIZE    # type: ignore[method-assign,assignment]
    return nccl.Engine(library, comm)


def tensor_of(a: np.ndarray, dtype: str = "") -> Tensor:
    return Tensor(SimpleNamespace(a=a, ptr=a.ctypes.data), a.shape, dtype or a.dtype.name, "cuda")


@pytest.mark.parametrize("rank", range(SIZE))
def test_the_unique_id_arrives_whole(library: Any, order: list[str], rank: int) -> None:
    engine_of(library, rank)
    identifier = [255 - i if i != 3 else 0 for i in range(128)]
    assert library.fake_log().decode() == f"init 2 {rank} {sum(b * (i + 1) for i, b in enumerate(identifier))}\n"


@pytest.mark.parametrize("dtype, number", nccl.TYPES.items())
def test_every_dtype_travels_as_itself(library: Any, order: list[str], dtype: str, number: int) -> None:
    engine = engine_of(library)
    library.fake_clear()
    a = np.arange(6).reshape(2, 3).astype({"bfloat16": "uint16"}.get(dtype, dtype))
    gathered = engine.all_gather(tensor_of(a, dtype))()
    assert gathered.shape == (2, 2, 3) and gathered.dtype == dtype and (gathered.array.a == a).all()
    assert library.fake_log().decode() == f"all_gather 6 {number} 0x77 0xabc\n"


@pytest.mark.parametrize("op, number", nccl.OPS.items())
def test_every_reduction_has_its_number(library: Any, order: list[str], op: str, number: int) -> None:
    engine = engine_of(library)
    library.fake_clear()
    a = np.arange(8, dtype=np.float32)
    result = engine.all_reduce(tensor_of(a), op)()
    part = engine.reduce_scatter(tensor_of(a.reshape(4, 2)), op)()
    assert result.shape == (8,) and part.shape == (2, 2) and not result.requires_grad
    assert (result.array.a == a * (SIZE if op == "sum" else 1)).all()
    assert library.fake_log().decode() == (f"all_reduce 8 7 {number} 0x77 0xabc\n"
                                           f"reduce_scatter 4 7 {number} 0x77 0xabc\n")


def test_a_broadcast_names_its_root(library: Any, order: list[str]) -> None:
    engine = engine_of(library)
    library.fake_clear()
    assert (engine.broadcast(tensor_of(np.ones(3, np.int64)), 1)().array.a == 1).all()
    assert library.fake_log().decode() == "broadcast 3 4 1 0x77 0xabc\n"


def test_streams_wait_for_each_other_and_the_host_for_none(library: Any, order: list[str]) -> None:
    engine = engine_of(library)
    begun = engine.all_reduce(tensor_of(np.ones(4, np.float32)), "sum")
    assert order == ["backlog", "event on compute", "nccl waits for event 1", "event on nccl"]
    begun()
    assert order[4:] == ["backlog", "compute waits for event 2"]
    assert engine.another() is engine


def test_nothing_is_sent_of_an_empty_tensor(library: Any, order: list[str]) -> None:
    engine = engine_of(library)
    library.fake_clear()
    assert engine.all_reduce(tensor_of(np.ones((0, 3), np.float32)), "sum")().shape == (0, 3)
    assert library.fake_log() == b""


def test_a_refusal_of_nccl_is_told(library: Any, order: list[str]) -> None:
    engine = engine_of(library)
    library.fake_fail(5)
    with pytest.raises(DeviceError, match="ncclAllReduce failed with 5: invalid usage\nhelp: NCCL_DEBUG=INFO"):
        engine.all_reduce(tensor_of(np.ones(2, np.float32)), "sum")
    with pytest.raises(DeviceError, match="ncclGetUniqueId failed with 5"):
        engine_of(library)


def test_a_recorded_step_is_refused(library: Any, order: list[str]) -> None:
    engine = engine_of(library)
    nccl.memory.recorder = SimpleNamespace(refusal=lambda what: DeviceError(f"capture: {what}"))
    with pytest.raises(DeviceError, match="ranks exchange a tensor"):
        engine.all_reduce(tensor_of(np.ones(2, np.float32)), "sum")


def test_a_library_that_is_missing_or_too_old_is_told(library: Any, path: Path) -> None:
    found, why = nccl.load(("libno_such_nccl.so.2",))
    assert found is None and "libno_such_nccl.so.2" in why
    library.fake_version(20800)
    assert nccl.load((str(path),)) == (None, "NCCL's version is 20800, 21000 is the oldest that serves")


def test_the_communicator_gives_tensors_of_gpus_to_nccl(library: Any, order: list[str]) -> None:
    comm = Communicator(Place(0, SIZE), None, "cuda", engine_of(library))
    library.fake_clear()
    x = tensor_of(np.ones((2, 2), np.float32))
    assert comm.engine == "nccl"
    assert comm.all_reduce(x, "mean").shape == (2, 2) and comm.begin_all_reduce(x).wait().array.a[0, 0] == SIZE
    assert comm.all_gather(x).shape == (2, 2, 2) and comm.broadcast(x).shape == (2, 2)
    assert comm.reduce_scatter(x).shape == (1, 2)
    assert [line.split()[0] for line in library.fake_log().decode().splitlines()] == [
        "all_reduce", "all_reduce", "all_gather", "broadcast", "reduce_scatter"]


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(gpu.ctypes, "CDLL", none)
    with pytest.raises(DeviceError, match="there is no CUDA driver: libcuda.so.1"):
        gpu.device_count()

    def two(count: Any) -> int:
        count._obj.value = 2
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=two)
    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda name: driver)
    assert gpu.device_count() == 2
    driver.cuInit = lambda flags: 100
    assert gpu.device_count() == 0
