"""Kernels of a recording that begin while the ones before them end: which edges, and the bits of each replay."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import alpha
from alpha import nn, ops
from alpha.cuda import kernel, libcuda, overlap
from tests.cuda.operand_oracle import normal

pytestmark = pytest.mark.cuda
NAMES = {1: b"conv_wgmma", 2: b"sum_units", 3: b"relu", 4: None}  # of nodes; node 4 is a copy
EDGES = [(1, 2), (2, 3), (3, 1), (4, 1), (1, 4)]


class Driver:
    """What `overlap` asks of the driver, for a graph of four nodes."""

    def __init__(self) -> None:
        self.removed: list[tuple[int, int]] = []
        self.added: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.cuGraphGetEdges_v2 = True

    def __call__(self, name: str, *args: Any) -> None:
        getattr(self, name[2:].removesuffix("_v2"))(*args)

    def GraphGetEdges(self, _: Any, begin: Any, end: Any, data: Any, count: Any) -> None:
        count._obj.value = len(EDGES)
        for k, edge in enumerate(EDGES):
            if begin is not None:
                begin[k], end[k] = edge
                assert bytes(data[k]) == bytes(8)

    def GraphNodeGetType(self, node: Any, kind: Any) -> None:
        kind._obj.value = 0 if NAMES[node.value] else 1

    def GraphKernelNodeGetParams(self, node: Any, found: Any) -> None:
        found._obj.func, found._obj.kern = (node.value, None) if node.value % 2 else (None, node.value)

    def FuncGetName(self, name: Any, handle: Any) -> None:
        name._obj.value = NAMES[handle.value]

    KernelGetName = FuncGetName

    def GraphRemoveDependencies(self, _: Any, source: Any, target: Any, edge: Any, count: Any) -> None:
        assert count.value == 1
        self.removed.append((source._obj.value, target._obj.value))

    def GraphAddDependencies(self, _: Any, source: Any, target: Any, edge: Any, count: Any) -> None:
        assert count.value == 1
        self.added[source._obj.value, target._obj.value] = edge._obj.from_port, edge._obj.to_port, edge._obj.type


def test_edges_to_kernels_that_wait_are_programmatic(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(libcuda, "library", lambda: driver)
    monkeypatch.setattr(libcuda, "call", driver)
    monkeypatch.setattr(kernel, "overlapping", overlap.overlapping)
    monkeypatch.setattr(overlap, "ENABLED", True)
    assert {"conv_wgmma", "conv_wgmma_slices", "sk_dilated_wgmma", "sum_units"} <= overlap.overlapping
    assert overlap.overlap(ctypes.c_void_p(9)) == 2
    assert driver.removed == [(1, 2), (3, 1)]
    assert driver.added == {(1, 2): (1, 0, 1), (3, 1): (1, 0, 1)}
    del driver.cuGraphGetEdges_v2  # an older driver
    assert overlap.overlap(ctypes.c_void_p(9)) == 0


def test_structures_are_those_of_the_driver() -> None:
    assert ctypes.sizeof(overlap._Edge) == 8 and ctypes.sizeof(overlap._KernelNode) == 72
    assert overlap._KernelNode.kern.offset == 56


def test_every_kernel_that_overlaps_waits() -> None:
    """Its blocks would read what is not written yet."""
    waiting = set()
    for source in kernel.KERNELS.glob("*.cu"):
        for part in source.read_text().split('extern "C" __global__')[1:]:
            head, _, body = part.partition("{")
            if "ptx::wait_for_kernel_before();" in body.split("ALPHA_KERNEL(")[0]:
                waiting.add(head.partition(")\n")[2].partition("(")[0])
    assert waiting == overlap.overlapping


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replays_have_the_bits_of_single_calls(device: Any, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Convolutions behind each other, behind others, and gradients of filters that are added up."""
    monkeypatch.setattr(overlap, "ENABLED", True)
    made: list[int] = []
    whole = overlap.overlap
    from alpha.cuda import recording
    monkeypatch.setattr(recording, "overlap", lambda graph: made.append(whole(graph)))

    def gradients(captured: bool) -> list[bytes]:
        alpha.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64),
                              nn.ReLU(), nn.Conv2d(64, 32, 1)).to("cuda")

        def losses(x: alpha.Tensor) -> alpha.Tensor:
            loss = ops.sum(model(x) * model(x))
            loss.backward()
            return loss.detach()
        step = alpha.capture(losses, model) if captured else losses
        found = []
        for seed in range(4):
            found.append(step(alpha.tensor(normal(8, 8, 8, 16, seed=seed), device="cuda")).numpy().tobytes())
            found += [p.grad.numpy().tobytes() for p in model.parameters()]
            for p in model.parameters():
                p.grad = None
        return found

    with alpha.precision(precision):
        assert gradients(True) == gradients(False)
    assert made and (made[0] > 3 or not hasattr(libcuda.library(), "cuGraphGetEdges_v2"))
