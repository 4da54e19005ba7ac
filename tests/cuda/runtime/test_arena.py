"""A recording's memory: once it is known how long each array is there, it lies where the whole takes least."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.runtime import arena, memory
from alpha.cuda.runtime.memory import Array
from alpha.cuda.runtime.recording import Recording

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

SIZE = 1 << 20  # elements of 4 bytes


class Growing:
    """A function that keeps one array, and then needs one twice as large as what it has dropped before.

    As they come, the large one lies behind both: 4 + 4 + 8 MiB.
    """

    def __init__(self, unsteady: bool = False) -> None:
        self.calls, self.stays = 0, list[Array]()
        self.unsteady = unsteady

    def __call__(self, inputs: list[Array]) -> list[Array]:
        self.calls += 1
        dropped = memory.empty((SIZE,), "float32")
        self.stays.append(memory.empty((SIZE,), "float32"))
        del dropped
        if self.unsteady and self.calls == 2:
            self.stays.append(memory.empty((SIZE // 2,), "float32"))
        self.stays.append(memory.empty((2 * SIZE,), "float32"))
        return inputs

    def forget(self) -> None:
        self.stays.clear()


def record(function: Growing, forget: Callable[[], None] | None) -> tuple[int, int]:
    """Returns the bytes of a recording, and how often the function was called."""
    recording = Recording(function, [alpha.tensor(np.ones(8, np.float32), device="cuda").array], forget)
    held = recording.nbytes
    starts = sorted((x.ptr, x.nbytes) for x in function.stays)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(starts)), "two arrays overlap"
    assert memory.pool.reserved == held
    recording.close()
    function.stays.clear()
    gc.collect()
    assert memory.pool.reserved == 0
    return held, function.calls


def test_a_second_recording_takes_less() -> None:
    function = Growing()
    once, calls = record(function, None)
    assert calls == 1 and once >= 16 * SIZE
    function.calls = 0
    twice, calls = record(function, function.forget)
    assert calls == 2 and 12 * SIZE <= twice <= once - arena.WORTH + (2 << 20)


def test_what_comes_otherwise_the_second_time_lies_where_it_fits() -> None:
    function = Growing(unsteady=True)
    held, calls = record(function, function.forget)
    assert calls == 2 and held >= 14 * SIZE


def test_it_is_recorded_once_where_little_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "WORTH", 1 << 40)
    function = Growing()
    assert record(function, function.forget)[1] == 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_kept_with_arrays_from_outside_is_not_of_a_recording_that_is_dropped(
        fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes of all filters that have changed are made together: those of another network too, and never computed."""
    monkeypatch.setattr(arena, "WORTH", -1)
    own, other = (alpha.randn((64, 3, 3, 64), device="cuda") for _ in range(2))
    x = alpha.randn((8, 8, 8, 64), device="cuda")

    def step(x: alpha.Tensor) -> alpha.Tensor:
        y = ops.conv2d(x, own, padding=1)
        if fails and memory.recorder:
            y.numpy()
        return y

    with alpha.no_grad():
        expected, captured = ops.conv2d(x, other, padding=1).numpy(), alpha.capture(step, own)
        for call in range(3):
            other.copy_(other.numpy())
            with pytest.warns(UserWarning, match="is read back") if fails and call == 2 else nullcontext():
                captured(x)
            assert np.array_equal(ops.conv2d(x, other, padding=1).numpy(), expected)
