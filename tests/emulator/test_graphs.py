"""Capturing a stream: launches, copies and memsets become a graph, which does them at each of its own launches.

PyCUDA does not offer it. The calls go to libcuda through ctypes, with the handle of a stream that PyCUDA made, in the
thread in which that stream's context is current.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emulator.toolchain import EmulatedToolchain
from tests.emulator.harness import LIBCUDA, cuda, empty, error_text, module, put
from tests.emulator.runner import KERNELS

pytestmark = pytest.mark.emulator
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # CU_STREAM_CAPTURE_MODE_*
Handle = ctypes.c_void_p


def call(name: str, *args: Any) -> None:
    status = getattr(LIBCUDA, name)(*args)
    assert status == 0, error_text(status)


def begin(stream: Any, mode: int = GLOBAL) -> None:
    call("cuStreamBeginCapture_v2", Handle(stream.handle), mode)


def end(stream: Any) -> tuple[int, Handle]:
    """Returns the status of ending a capture, and the graph."""
    graph = Handle()
    return LIBCUDA.cuStreamEndCapture(Handle(stream.handle), ctypes.byref(graph)), graph


def executable(stream: Any) -> Handle:
    """Ends a capture, and returns what can be launched."""
    (status, graph), found = end(stream), Handle()
    assert status == 0
    call("cuGraphInstantiateWithFlags", ctypes.byref(found), graph, ctypes.c_ulonglong(0))
    call("cuGraphDestroy", graph)
    return found


def replay(graph: Handle, stream: Any) -> None:
    call("cuGraphLaunch", graph, Handle(stream.handle))


def capturing(stream: Any) -> int:
    status = ctypes.c_int()
    call("cuStreamIsCapturing", Handle(stream.handle), ctypes.byref(status))
    return status.value


FUNCTION = module("scale_add").get_function("scale_add")
FUNCTION.prepare("Pffi")


def scale_add(stream: Any, x: Any, a: float, b: float) -> None:
    FUNCTION.prepared_async_call((1, 1), (32, 1, 1), stream, x.gpudata, a, b, x.size)


def ones(n: int = 4) -> Any:
    return put(np.ones(n, np.float32))


def test_a_graph_repeats_launches_copies_and_memsets() -> None:
    stream, x, y, z = cuda.Stream(), ones(), ones(), ones()
    source, result = np.zeros(4, np.float32), np.zeros(4, np.float32)
    begin(stream)
    assert capturing(stream) == 1
    cuda.memset_d32_async(int(y.gpudata), 0x40400000, 4, stream)  # 3.0
    scale_add(stream, y, 2, 1)
    cuda.memcpy_dtod_async(z.gpudata, y.gpudata, 16, stream)
    cuda.memcpy_htod_async(x.gpudata, source, stream)
    scale_add(stream, x, 10, 0.5)
    scale_add(stream, x, 1, 1)
    cuda.memcpy_dtoh_async(result, x.gpudata, stream)
    status, captured = end(stream)
    assert (status, capturing(stream)) == (0, 0)
    assert (x.get() == 1).all() and (y.get() == 1).all() and not result.any()  # recorded, not done
    nodes, graph = ctypes.c_size_t(), Handle()
    call("cuGraphGetNodes", captured, None, ctypes.byref(nodes))
    assert nodes.value == 7
    call("cuGraphInstantiateWithFlags", ctypes.byref(graph), captured, ctypes.c_ulonglong(0))
    call("cuGraphDestroy", captured)
    call("cuGraphUpload", graph, Handle(stream.handle))
    for value in (2, 10, 20):
        source[:] = value  # is read at each launch of the graph
        replay(graph, stream)
        stream.synchronize()
        assert (z.get() == 7).all() and (x.get() == 10 * value + 1.5).all() and (result == 10 * value + 1.5).all()
    call("cuGraphExecDestroy", graph)


SET, ADD = 1, 0  # CU_STREAM_SET_CAPTURE_DEPENDENCIES, CU_STREAM_ADD_CAPTURE_DEPENDENCIES


def tips(stream: Any) -> list[int | None]:
    """Returns the nodes that the next launch comes after."""
    status, count, nodes = ctypes.c_int(), ctypes.c_size_t(), ctypes.POINTER(Handle)()
    call("cuStreamGetCaptureInfo_v2", Handle(stream.handle), ctypes.byref(status), None, None, ctypes.byref(nodes),
         ctypes.byref(count))
    assert status.value == 1
    return [nodes[k] for k in range(count.value)]


def wait_for(stream: Any, nodes: list[int | None], flags: int = SET) -> int:
    return LIBCUDA.cuStreamUpdateCaptureDependencies(Handle(stream.handle), (Handle * len(nodes))(*nodes),
                                                     ctypes.c_size_t(len(nodes)), flags)


@pytest.mark.parametrize("forgotten", [False, True])
def test_nodes_come_after_those_that_they_are_told_to(forgotten: bool) -> None:
    """Of two that may begin the later one does, so that a dependency that was forgotten shows."""
    stream, x = cuda.Stream(), ones()
    begin(stream)
    assert tips(stream) == []
    scale_add(stream, x, 1, 1)          # 2
    first = tips(stream)
    scale_add(stream, x, 3, 0)          # 6
    second = tips(stream)
    assert wait_for(stream, first) == 0 and tips(stream) == first
    if not forgotten:
        assert wait_for(stream, second, ADD) == 0
        assert sorted(map(int, filter(None, tips(stream)))) == sorted(map(int, filter(None, first + second)))
    scale_add(stream, x, 1, 10)
    replay(executable(stream), stream)
    assert (x.get() == ((2 + 10) * 3 if forgotten else 2 * 3 + 10)).all()


def test_edges_of_a_graph_are_taken_out_and_put_in() -> None:
    stream, x, y = cuda.Stream(), ones(), ones()
    begin(stream)
    scale_add(stream, x, 1, 1)
    scale_add(stream, x, 3, 0)
    cuda.memcpy_dtod_async(y.gpudata, x.gpudata, 16, stream)
    _, graph = end(stream)
    count, kind = ctypes.c_size_t(), ctypes.c_int()
    call("cuGraphGetEdges", graph, None, None, ctypes.byref(count))
    before, behind = (Handle * count.value)(), (Handle * count.value)()
    call("cuGraphGetEdges", graph, before, behind, ctypes.byref(count))
    assert [*before] == [1, 2] and [*behind] == [2, 3]
    kinds = []
    for node in (1, 2, 3):
        call("cuGraphNodeGetType", Handle(node), ctypes.byref(kind))
        kinds.append(kind.value)
    assert kinds == [0, 0, 1]
    data = (ctypes.c_ubyte * 16)(1, 0, 1, *[0] * 5, 1, 0, 1)
    one = ctypes.c_size_t(1)
    call("cuGraphRemoveDependencies", graph, before, behind, ctypes.c_size_t(2))
    assert LIBCUDA.cuGraphRemoveDependencies(graph, before, behind, one) == 1
    assert LIBCUDA.cuGraphAddDependencies_v2(graph, before, behind, data, ctypes.c_size_t(2)) == 1  # not of a copy
    call("cuGraphAddDependencies_v2", graph, (Handle * 1)(2), (Handle * 1)(3), None, one)
    found = Handle()
    call("cuGraphInstantiateWithFlags", ctypes.byref(found), graph, ctypes.c_ulonglong(0))
    replay(found, stream)
    assert (y.get() == 6).all()


def test_dependencies_that_cannot_be() -> None:
    stream = cuda.Stream()
    assert wait_for(stream, []) == 401
    begin(stream)
    assert wait_for(stream, [1]) == 1 and "no such node" in error_text(1)
    assert wait_for(stream, [], 7) == 1
    assert end(stream)[0] == 0


def test_arguments_by_pointer_are_copied_at_the_capture() -> None:
    stream, x = cuda.Stream(), ones()
    loaded, function = Handle(), Handle()
    path = EmulatedToolchain().compile(KERNELS / "scale_add.cu", {}, "sm_90a")
    call("cuModuleLoad", ctypes.byref(loaded), str(path).encode())
    call("cuModuleGetFunction", ctypes.byref(function), loaded, b"scale_add")
    pointer, a, b, n = ctypes.c_uint64(int(x.gpudata)), ctypes.c_float(3), ctypes.c_float(4), ctypes.c_int(4)
    params = (Handle * 4)(*map(ctypes.addressof, (pointer, a, b, n)))
    begin(stream)
    call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, Handle(stream.handle), params, None)
    graph = executable(stream)
    a.value = b.value = 100
    replay(graph, stream)
    assert (x.get() == 7).all()


def test_a_graph_within_a_graph_on_another_stream() -> None:
    stream, other, x = cuda.Stream(), cuda.Stream(), ones()
    begin(stream)
    scale_add(stream, x, 2, 0)
    double = executable(stream)
    begin(stream)
    replay(double, stream)
    scale_add(stream, x, 1, 1)
    replay(double, stream)
    outer = executable(stream)
    assert (x.get() == 1).all()
    replay(outer, other)
    assert (x.get() == 6).all()


def test_a_kernel_that_fails_in_a_graph_is_named() -> None:
    stream, x = cuda.Stream(), empty(100)
    function = module("mistakes").get_function("write_past_end")
    function.prepare("Pi")
    begin(stream)
    function.prepared_async_call((4, 1), (32, 1, 1), stream, x.gpudata, 100)
    graph = executable(stream)
    status = LIBCUDA.cuGraphLaunch(graph, Handle(stream.handle))
    assert status == 719 and "byte 400 of a device block of 400 bytes was overwritten" in error_text(status)


def test_a_launch_that_the_driver_refuses_is_not_recorded() -> None:
    stream, x = cuda.Stream(), ones()
    begin(stream)
    with pytest.raises(cuda.Error, match=r"scale_add: block \(2048,1,1\)"):
        FUNCTION.prepared_async_call((1, 1), (2048, 1, 1), stream, x.gpudata, 1, 1, 4)
    status, graph = end(stream)
    nodes = ctypes.c_size_t(9)
    call("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
    assert (status, nodes.value) == (0, 0)


X, BLOCK, EVENT, OTHER = ones(), cuda.mem_alloc(64), cuda.Event(), cuda.Stream()
FORBIDDEN: dict[str, tuple[Callable[[Any], Any], str]] = {  # what spoils a capture, and the words of the driver
    "stream": (lambda s: s.synchronize(), "cuStreamSynchronize"),
    "context": (lambda s: cuda.Context.synchronize(), "cuCtxSynchronize"),
    "query": (lambda s: s.is_done(), "cuStreamQuery"),
    "event": (lambda s: EVENT.query(), "cuEventQuery"),
    "allocation": (lambda s: cuda.mem_alloc(64), "cuMemAlloc"),
    "free": (lambda s: call("cuMemFree_v2", ctypes.c_uint64(int(BLOCK))), "cuMemFree"),
    "host memory": (lambda s: cuda.pagelocked_empty(4, np.float32), "cuMemHostAlloc"),
    "module": (lambda s: cuda.module_from_buffer(bytes(200)), "cuModuleLoadData"),
    "copy": (lambda s: cuda.memcpy_dtoh(np.zeros(4, np.float32), X.gpudata), "work on the default stream"),
    "default stream": (lambda s: FUNCTION.prepared_call((1, 1), (32, 1, 1), X.gpudata, 1, 1, 4),
                       "work on the default stream"),
    "event from outside": (lambda s: s.wait_for_event(EVENT.record(OTHER)), "waiting for an event from outside"),
    "second stream": (lambda s: OTHER.wait_for_event(cuda.Event().record(s)), "a second stream")}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_spoils_a_capture(name: str) -> None:
    stream = cuda.Stream()
    action, words = FORBIDDEN[name]
    begin(stream)
    with pytest.raises((cuda.Error, AssertionError), match=f"{words}.* is not allowed while a stream is captured"):
        action(stream)
    assert capturing(stream) == 2
    with pytest.raises(cuda.Error, match="the capture of this stream is invalid"):
        cuda.memset_d32_async(int(X.gpudata), 0, 4, stream)
    status, graph = end(stream)
    assert (status, error_text(status), graph.value) == (901, "the capture of this stream was invalid", None)
    cuda.memset_d32_async(int(X.gpudata), 0, 4, stream)
    stream.synchronize()
    assert not X.get().any()


def test_a_relaxed_capture_allows_what_needs_no_order() -> None:
    stream = cuda.Stream()
    begin(stream, RELAXED)
    cuda.mem_alloc(64).free()
    EVENT.query()
    assert capturing(stream) == 1
    with pytest.raises(cuda.Error, match="work on the default stream is not allowed"):
        cuda.memcpy_dtoh(np.zeros(4, np.float32), X.gpudata)
    assert end(stream)[0] == 901


def test_events_of_a_capture() -> None:
    stream, event = cuda.Stream(), cuda.Event()
    begin(stream)
    event.record(stream)
    stream.wait_for_event(event)
    assert end(stream)[0] == 0
    for use in (event.synchronize, event.query, lambda: event.time_since(event)):
        with pytest.raises(cuda.Error, match="the event was recorded in a stream that was captured"):
            use()


def test_captures_that_cannot_begin_or_end() -> None:
    stream = cuda.Stream()
    assert LIBCUDA.cuStreamBeginCapture_v2(None, GLOBAL) == 900
    assert LIBCUDA.cuStreamBeginCapture_v2(Handle(stream.handle), 3) == 1
    assert end(stream)[0] == 401 and error_text(401) == "this stream is not being captured"
    begin(stream)
    assert LIBCUDA.cuStreamBeginCapture_v2(Handle(stream.handle), GLOBAL) == 401
    assert error_text(401) == "this stream is being captured already"
    assert end(stream)[0] == 0
