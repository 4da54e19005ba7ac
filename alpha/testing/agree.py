"""One op on two backends: the CPU's NumPy code is the oracle, the CUDA result must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha.core.op import registry
from alpha.core.tensor import Tensor, tensor
from alpha.gradcheck import assert_equal_at

# Relative tolerance of one rounding to the storage type, with room for a second one and for the order of a sum.
TOLERANCE = {"float32": 2e-6, "bfloat16": 1.6e-2, "float16": 2e-3}


def ints(*shape: int, seed: int = 0, low: int = -4, high: int = 5, dtype: str = "float32") -> np.ndarray:
    """Small integers: sums and products of them are exact in float32."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


class Case:
    """An op, its arguments as NumPy arrays, numbers, None, or lists of arrays, and its attributes.

    Args:
        exact: every bit must agree, NaNs aside.
        rtol, atol: else; the default follows from the dtype.
        dtypes: storage types to try; float arrays are converted, but for those that the op takes in any dtype.
    """

    def __init__(self, op: str, *args: Any, exact: bool = False, rtol: float | None = None, atol: float | None = None,
                 dtypes: Sequence[str] = ("float32",), label: str = "", **attrs: Any) -> None:
        self.op, self.args, self.attrs = op, args, attrs
        self.exact, self.rtol, self.atol, self.dtypes, self.label = exact, rtol, atol, dtypes, label

    def __str__(self) -> str:
        shapes = [f"{len(a)}x[]" if isinstance(a, list) else
                  "x".join(map(str, a.shape)) or "()" if isinstance(a, np.ndarray) else str(a) for a in self.args]
        attrs = [f"{name}={value}" for name, value in self.attrs.items()]
        return " ".join([self.op, self.label, *shapes, *attrs]).replace("  ", " ")


def agree(case: Case) -> None:
    """Asserts that the CUDA implementation of an op agrees with the CPU's in every output and mutated argument."""
    for dtype in case.dtypes:
        rounded = [a if spec.mixed else as_stored(a, dtype) for spec, a in zip(registry[case.op].args, case.args)]
        expected, changed = _run(case, rounded, "cpu", None)
        got, changed_there = _run(case, rounded, "cuda", dtype)
        assert len(got) == len(expected)
        names = registry[case.op].outs
        ours_all, oracle_all = [*got, *changed_there.values()], [*expected, *changed.values()]
        for name, ours, oracle in zip([*names, *changed], ours_all, oracle_all):
            _compare(case, f"{name} of {case.op} in {dtype}", ours, oracle, dtype)


def _compare(case: Case, name: str, ours: Tensor, oracle: Tensor, dtype: str) -> None:
    assert ours.shape == oracle.shape, f"{name}: shape {ours.shape} instead of {oracle.shape}"
    floating = oracle.dtype.startswith(("float", "bfloat"))
    wanted = ours.dtype if dtype != "float32" and floating else oracle.dtype
    assert ours.dtype == wanted, f"{name}: dtype {ours.dtype} instead of {wanted}"
    a, b = ours.numpy(), oracle.numpy()
    if case.exact or not floating:
        assert_equal_at(a, b, name=name)
        return
    rtol = TOLERANCE[dtype] if case.rtol is None or dtype != "float32" else case.rtol
    atol = rtol if case.atol is None else case.atol
    assert_equal_at(a, b, rtol=rtol, atol=atol, name=name)


def as_stored(a: Any, dtype: str) -> Any:
    """Returns floating arrays as the values that the storage type can hold, in float32."""
    if isinstance(a, list):
        return [as_stored(b, dtype) for b in a]
    if not isinstance(a, np.ndarray) or a.dtype.kind != "f":
        return a
    a = a.astype(np.float32)
    if dtype == "bfloat16":
        bits = a.reshape(-1).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).reshape(a.shape)
    return np.asarray(a.astype(np.float16).astype(np.float32)) if dtype == "float16" else a


def _run(case: Case, args: Sequence[Any], device: str, dtype: str | None) -> tuple[tuple, dict[str, Tensor]]:
    """Returns the op's outputs on a device, and its mutated arguments by name."""
    op = registry[case.op]
    tensors = [_tensor(a, device, None if spec.mixed else dtype) for spec, a in zip(op.args, args)]
    outs = op.full(*tensors, **case.attrs)
    changed = {}
    for spec, value in zip(op.args, tensors):
        if spec.name in op.mutates and value is not None:
            for k, t in enumerate(value if isinstance(value, list) else [value]):
                changed[f"{spec.name}[{k}]"] = t
    return outs, changed


def _tensor(a: Any, device: str, dtype: str | None) -> Any:
    if isinstance(a, list):
        return [_tensor(b, device, dtype) for b in a]
    if not isinstance(a, np.ndarray):
        return a
    t = tensor(a, device=device)
    return t.astype(dtype) if dtype and a.dtype.kind == "f" and t.dtype != dtype else t
