"""Tiles by TMA: ranks, types, swizzles, steps, places outside the tensor, maps in device memory, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from emulator.toolchain import EmulatedToolchain
from tests.emulator import cases
from tests.emulator.harness import LIBCUDA, error_text, integers, put
from tests.emulator.runner import Out, Problem, Runner, Tiles, encode_tensor_map

pytestmark = pytest.mark.emulator
RUN = {False: Runner(EmulatedToolchain()), True: Runner(EmulatedToolchain(checked=True))}
both = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])


def assert_moved(problem: Problem, checked: bool) -> None:
    for got, expected in zip(RUN[checked](problem), cases.expected_tile(problem)):
        assert np.array_equal(got, expected), problem.name


@both
def test_every_rank_type_and_swizzle(checked: bool) -> None:
    for problem in cases.tile_problems():
        assert_moved(problem, checked)


CORNERS = [((0, 0, 0, 0, 0), (0, 0, 0, 0, 0)), ((4, 1, 2, 1, 1), (0, 0, 0, 0, 0)),
           ((-4, -1, -2, -3, -1), (0, 1, -1, 2, 1)), ((8, 3, 3, 4, 2), (8, -1, 2, -2, -1)),
           ((0, 9, 0, 0, 0), (4, 2, 2, 2, 1))]  # inside, across every border, wholly outside


@both
@pytest.mark.parametrize("rank", [4, 5])
@pytest.mark.parametrize("corner, target", CORNERS, ids=str)
def test_tiles_across_borders(corner: tuple[int, ...], target: tuple[int, ...], rank: int, checked: bool) -> None:
    box, shape = (8, 2, 3, 4, 2)[:rank], (3, 6, 5, 4, 12)[-rank:]
    x, y = integers(*shape) + 10, np.full(shape, -1, np.float32)
    assert_moved(cases.move_tile("borders", Tiles(x, box), Tiles(Out(y), box), corner[:rank], target[:rank]), checked)


@both
@pytest.mark.parametrize("corner", [(0, 0), (8, 2), (16, -1), (-4, 3)], ids=str)
def test_rows_that_overlap(corner: tuple[int, int], checked: bool) -> None:
    """Rows of 24 elements begin 8 behind each other; the tensor ends where the last of them does."""
    x = integers(8, 8) + 10
    rows = np.lib.stride_tricks.as_strided(x, (6, 24), x.strides)
    source, target = Tiles(rows, (16, 4), 64, memory=x), Tiles(Out(integers(8, 16)), (16, 4), 64)
    assert_moved(cases.move_tile("overlapping", source, target, corner, (0, 3)), checked)


@pytest.mark.parametrize("checked", [False, True])
def test_maps_in_device_memory(checked: bool) -> None:
    problem = cases.move_tile("pointer", Tiles(integers(8, 16), (16, 4)), Tiles(Out(integers(8, 16)), (16, 4)),
                              (0, 2), (-8, 5))
    x, y, *others = problem.arguments
    blocks = put(x.of), put(y.of.before)
    maps = [encode_tensor_map(LIBCUDA, int(block.gpudata), x.of, x)[1] for block in blocks]
    RUN[checked](problem._replace(entry="move_tile_by_pointer",
                                  arguments=(np.frombuffer(b"".join(maps), np.uint8), *others)))
    assert np.array_equal(blocks[1].get(), cases.expected_tile(problem)[0])


@pytest.mark.parametrize("fault, change", [
    ("box outside 1..256", dict(box=(8, 257))), ("box outside 1..256", dict(box=(8, 0))),
    ("element stride outside 1..8", dict(steps=(1, 9))), ("element stride outside 1..8", dict(steps=(1, 0))),
    ("extent 0", dict(inner=0)), ("inner box of 20 bytes: not a multiple of 16", dict(box=(5, 1))),
    ("inner box of 64 bytes.*wider than the swizzle", dict(box=(16, 1), span=32)),
    ("stride of dimension 1 not a multiple of 16", dict(of=np.zeros((4, 18), np.float32)))])
def test_maps_that_the_driver_refuses(fault: str, change: dict[str, Any]) -> None:
    tiles = Tiles(np.zeros((4, 16), np.float32), (8, 2))._replace(**change)
    status, _ = encode_tensor_map(LIBCUDA, 1 << 20, tiles.of, tiles)
    assert status == 1 and re.search(fault, error_text(status))
