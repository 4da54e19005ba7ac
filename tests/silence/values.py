"""Values other than a default: from the kind of a parameter, from the default itself, and from its name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from alpha.core.inputs import kinds
from alpha.core.inputs.kinds import Kind, Refused


class Array:
    """A tensor that a call makes anew each time, of float32 and of a gradient if it is of floats."""

    def __init__(self, *shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0, dtype: str = "float32",
                 values: Any = None, grad: bool = True) -> None:
        rng = np.random.default_rng(seed + 17)
        drawn = rng.uniform(low, high, shape) if values is None else np.asarray(values)
        self.values = drawn.astype("float32" if dtype == "bfloat16" else dtype)
        self.dtype, self.grad = dtype, grad and "float" in dtype

    def __repr__(self) -> str:
        return f"Array{self.values.shape}"


# By the name of a parameter, where neither its kind nor its default says enough; a callable's own stand in its table.
NAMED: dict[str, list[Any]] = {
    "axis": [0], "dtype": ["float64"], "device": ["cuda"], "bias": [Array(4)], "gamma": [Array(4)], "beta": [Array(4)],
    "algorithm": ["im2col", "fft"], "size": [3], "factor": [Array(values=0.5, grad=False)], "b": [Array(4)],
    "scale_factor": [3], "align_corners": [True], "stride": [1, 2, 3],
    "padding_idx": [1], "reduction": ["sum", "none"], "gradient": [Array(2, 3, grad=False)], "low": [-0.25],
    "high": [0.25], "activation": ["relu"], "divisor_override": [7], "padding": [1], "inplace": [True],
    "posinf": [3.0], "neginf": [-3.0], "betas": [(0.5, 0.999), (0.9, 0.5)], "ns_coefficients": [(2.0, -1.5, 0.5)],
    "layer_norm_eps": [0.1], "index": [0], "eps": [0.3], "map_location": ["cuda"],
}


def read_by(kind: Kind | None, values: Iterable[Any]) -> list[Any]:
    """Returns the values that a kind takes."""
    found = []
    for value in values:
        try:
            found.append(kind.read(value) if kind else value)
        except Refused:
            continue
    return found


def choices(kind: Kind | None) -> list[str]:
    """Returns the strings that a kind lists."""
    if isinstance(kind, kinds.Either):
        return [name for part in kind.kinds for name in choices(part)]
    return list(kind.names) if isinstance(kind, kinds.Choice) else []


def same(kind: Kind | None, a: Any, b: Any) -> bool:
    """Whether two values mean the same: a stride of 1 and one of (1, 1)."""
    try:
        left, right = (kind.read(a), kind.read(b)) if kind else (a, b)
        return type(left) is type(right) and bool(left == right)
    except (Refused, ValueError):
        return False


def others(name: str, default: Any, kind: Kind | None) -> list[Any]:
    """Returns values that differ from a default; an empty list if nothing says which there are."""
    return [value for value in _others(name, default, kind) if not same(kind, value, default)]


def _others(name: str, default: Any, kind: Kind | None) -> list[Any]:
    if default is True or default is False:
        return [not default]
    words = [word for word in choices(kind) if word != default]
    if name in NAMED:
        return NAMED[name]
    if isinstance(default, int):
        return (read_by(kind, [default + 1, default + 2, 1, 0]) or [default + 1])[:2] + words
    if isinstance(default, float):
        near = [default * 0.5 + 0.25, 0.3, 0.75, 2.5] if math.isfinite(default) else [1.0]
        return [v for v in read_by(kind, near) if v != default][:2] + words
    if isinstance(default, tuple) and default and all(isinstance(n, int) for n in default):
        return [tuple(n + 1 for n in default)]
    return words
