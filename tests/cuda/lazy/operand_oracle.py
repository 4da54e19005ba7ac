"""Splitting into planes as NumPy does it: what alpha.cuda.lazy.operands is compared with, and the arrays to try."""

from __future__ import annotations

import numpy as np

from alpha.cuda.lazy.operands import STEP, Operand, flag_counter
from alpha.cuda.runtime import memory

SPLITS = ("float16x2", "float16")
LEAST = {"float16x2": -10, "float16": -14}  # exponents below which an element counts as lost


def flagged_count() -> int:
    """Returns how many operands of this process were flagged."""
    return int(memory.download(flag_counter(), "int32")[0])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spread(size: int, low: int, high: int, seed: int = 0) -> np.ndarray:
    """Numbers of either sign with exponents between two bounds."""
    exponents = np.random.default_rng(seed).integers(low, high + 1, size)
    return np.ldexp(normal(size, seed=seed + 1), exponents).astype(np.float32)


def exponent(x: np.ndarray) -> int:
    """Returns s: the largest finite |x| times 2^s lies in [2^14, 2^15), but at most 126."""
    finite = np.abs(x[np.isfinite(x)])
    largest = finite.max() if finite.size else 0
    return min(126, 15 - int(np.frexp(np.float64(largest))[1])) if largest else 0


def split(x: np.ndarray, reads: str) -> tuple[list[np.ndarray], int, int]:
    """Returns planes, s and flag, computed by NumPy."""
    s, flat = exponent(x), x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        v = np.ldexp(flat, s)
        high = v.astype(np.float16)
        low = np.where(high == v, np.copysign(0, v), v - high).astype(np.float16)
        lost = (np.abs(v) < 2.0 ** LEAST[reads]) & (x != 0)
        kept = (x != 0) & np.isfinite(x) & ~lost
    two = reads == "float16x2"
    return [high, low] if two else [high], s, int(lost.sum() > kept.sum() or (two and np.isinf(x).any()))


def planes_of(a: Operand) -> np.ndarray:
    assert (a.keep.ptr, a.keep.dtype) == (a.ptr, a.dtype)
    return memory.download(a.keep, "int16" if a.dtype == "bfloat16" else a.dtype)


def item(x: memory.Array) -> float:
    assert x.shape == (1,)
    return memory.download(x, x.dtype)[0]


def value_of(a: Operand) -> np.ndarray:
    """Returns the tensor that an operand stands for, in float64."""
    high, *low = planes_of(a).astype(np.float64)
    return (high + low[0] if low else high) * np.float64(item(a.scale))


def bits(a: np.ndarray) -> np.ndarray:
    """Returns the bits of float16 numbers, one pattern for all NaNs."""
    return np.where(np.isnan(a), np.uint16(0x7e00), a.view(np.uint16))


def check(x: np.ndarray, reads: str, a: Operand) -> None:
    expected, s, flag = split(x, reads)
    assert (a.keep.shape, a.dtype) == ((len(expected), *x.shape), "float16") and a.ptr % 256 == 0
    assert item(a.scale) == np.ldexp(np.float32(1), -s) and item(a.flag) == flag
    for plane, (ours, theirs) in enumerate(zip(planes_of(a), expected)):
        wrong = np.flatnonzero(bits(ours) != bits(theirs))
        assert not wrong.size, (f"plane {plane} at {wrong[0]}: {ours.flat[wrong[0]]!r}, not {theirs.flat[wrong[0]]!r}, "
                                f"for {x.flat[wrong[0]]!r} with s = {s}")


# ---- arrays ----------------------------------------------------------------------------------------------------------

# Tails of every kind; planes of which the second is not aligned to 16 bytes; one block and several.
SIZES = [1, 7, 8, 9, STEP - 1, STEP, STEP + 1, STEP + 8, 4 * STEP - 8, 4 * STEP + 1, 2 * STEP * 16 + 3, 40 * STEP + 8]

SPECIAL = {
    "zeros": np.zeros(20_000, np.float32),
    "negative zeros": np.full(9000, -0.0, np.float32),
    "spread": spread(20_000, -40, 40),
    "outlier": np.where(np.arange(20_000) == 12_345, np.float32(3e38), normal(20_000)),
    "small outlier": np.where(np.arange(5000) == 77, np.float32(-2e10), normal(5000)),
    "denormals": np.ldexp(normal(9001), -145).astype(np.float32),
    "one denormal": np.where(np.arange(9001) == 5, np.float32(1e-45), np.float32(0)),
    "tiny": spread(9001, -140, -110),
    "huge": spread(9001, 100, 125),
    "whole range": spread(30_000, -140, 125),
    "powers of two": np.ldexp(np.ones(9000), np.arange(9000) % 40 - 20).astype(np.float32),
    "rounds up to a power": np.full(9000, np.nextafter(np.float32(4), np.float32(0))),
    "infinities": np.where(np.arange(9001) % 1000 == 3, np.float32(-np.inf), normal(9001)),
    "one infinity": np.where(np.arange(33) == 3, np.float32(np.inf), normal(33)),
    "nan": np.where(np.arange(9001) % 1000 == 3, np.float32(np.nan), normal(9001)),
    "nothing finite": np.array([np.inf, -np.inf, np.nan, -0.0] * 3, np.float32),
}
