"""Kernels of a recording that begin while the ones before them end (programmatic dependent launch, from sm_90 on).

A kernel that says `overlaps=True` has nothing but constants in mind until its blocks call ptx::wait_for_kernel_before:
then the one before has ended, as have those before that, and what they wrote is seen. So its blocks may be placed, and
get ready, while others still run. In a captured graph that is a property of the edge between two kernels.
"""

from __future__ import annotations

import ctypes

from alpha.cuda import libcuda
from alpha.cuda.kernel import overlapping

ENABLED = False  # not measured yet
KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL


class _Edge(ctypes.Structure):
    """CUgraphEdgeData; as it is made: from a kernel whose blocks have all begun or ended, programmatic."""

    _fields_ = [("from_port", ctypes.c_ubyte), ("to_port", ctypes.c_ubyte), ("type", ctypes.c_ubyte),
                ("reserved", ctypes.c_ubyte * 5)]


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [("func", ctypes.c_void_p), ("sizes", ctypes.c_uint * 7), ("params", ctypes.c_void_p),
                ("extra", ctypes.c_void_p), ("kern", ctypes.c_void_p), ("ctx", ctypes.c_void_p)]


def overlap(graph: ctypes.c_void_p) -> int:
    """Makes the edges of a captured graph programmatic that lead to a kernel which waits by itself.

    Returns:
        How many there are; 0 where the driver has no such edges.
    Raises:
        DeviceError
    """
    if not ENABLED or not hasattr(libcuda.library(), "cuGraphGetEdges_v2"):
        return 0
    count = ctypes.c_size_t()
    libcuda.call("cuGraphGetEdges_v2", graph, None, None, None, ctypes.byref(count))
    begin, end = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    data = (_Edge * count.value)()
    libcuda.call("cuGraphGetEdges_v2", graph, begin, end, data, ctypes.byref(count))
    entries = {node: _entry(node) for node in {*begin, *end}}
    made = 0
    for source, target, edge in zip(begin, end, data):
        if edge.type or edge.from_port or not entries[source] or entries[target] not in overlapping:
            continue
        one = [ctypes.byref(ctypes.c_void_p(node)) for node in (source, target)]
        size = ctypes.c_size_t(1)
        libcuda.call("cuGraphRemoveDependencies_v2", graph, *one, ctypes.byref(edge), size)
        libcuda.call("cuGraphAddDependencies_v2", graph, *one, ctypes.byref(_Edge(1, 0, 1)), size)
        made += 1
    return made


def _entry(node: int) -> str:
    """Returns the entry of a kernel node; "" of others."""
    kind, found = ctypes.c_int(), _KernelNode()
    libcuda.call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
    if kind.value != KERNEL_NODE:
        return ""
    libcuda.call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(found))
    name = ctypes.c_char_p()
    which, handle = ("cuFuncGetName", found.func) if found.func else ("cuKernelGetName", found.kern)
    libcuda.call(which, ctypes.byref(name), ctypes.c_void_p(handle))
    return (name.value or b"").decode()
