"""Calls of several sides timed in turn, whatever device they work on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

ROUNDS, WINDOW_MS = 7, 15.0
BLOCKS = 10  # into which executions one by one are divided, the sides taking turns


class Side(NamedTuple):
    """One library's call number k, and the stream that it works on (None: the default one, PyTorch's)."""

    call: Callable[[int], Any]
    stream: Any = None


def in_windows(sides: dict[str, Side], rounds: int, window: float, window_ms: Callable[[Side, int], float]
               ) -> dict[str, list[float]]:
    """Returns the milliseconds of a call per round, the sides taking turns; each has been warmed up before.

    Args:
        window: milliseconds of calls in a row.
        window_ms: returns the mean milliseconds of a call of a side in a window of that many.
    """
    counts = {}
    for name, side in sides.items():
        window_ms(side, 2)
        counts[name] = max(2, min(1000, round(window / max(window_ms(side, 2), 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(window_ms(side, counts[name]))
    return times


def one_by_one(sides: dict[str, Side], executions: int, synchronize: Callable[[], Any]) -> dict[str, list[float]]:
    """Returns the mean milliseconds of a call in each block; the device is waited for after every single call."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        for k in range(2):
            side.call(k)
        synchronize()
    done = 0
    while done < executions:
        count = min(-(-executions // BLOCKS), executions - done)
        for name, side in sides.items():
            begin = time.perf_counter()
            for k in range(count):
                side.call(done + k)
                synchronize()
            times[name].append((time.perf_counter() - begin) * 1e3 / count)
        done += count
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def relative_error(a: Any, reference: Any) -> float:
    """Returns |a - reference| / |reference| of two PyTorch tensors in float64; NaN stays NaN."""
    difference = (a.double() - reference.double()).norm().item()
    scale = reference.double().norm().item()
    return difference / scale if scale else difference


def mark(ratio: float, bar: float | None) -> str:
    """Returns the mark of a figure and its bar in a table."""
    return "" if bar is None else f">= {bar:g} {'ok' if ratio >= bar else 'MISSED'}"
