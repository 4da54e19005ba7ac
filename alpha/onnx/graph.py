"""An ONNX graph as it is built: nodes, weights, and in which layout each value of the traced program is there.

ONNX has channels first: (N, C, H, W), filters (OC, IC, FH, FW). A map stays in one layout from layer to layer: a
transpose stands only where an op needs the other one. Weights are turned here, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha.core.errors import ConfigError, message
from alpha.inference.program import Value
from alpha.onnx.batch import Baked, Batch

WHERE = "onnx"
PLAIN, FIRST = "as in alpha", "channels first"      # FIRST: of values with four axes
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
# Pointwise ops that are one operator of ONNX, with the same arguments.
# names: operators, written by python -m tools.names
SAME = {
    "abs": "Abs", "acos": "Acos", "add": "Add", "asin": "Asin", "atan": "Atan", "ceil": "Ceil", "cos": "Cos",
    "cosh": "Cosh", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual",
    "gt": "Greater", "hardswish": "HardSwish", "le": "LessOrEqual", "log": "Log", "logical_and": "And",
    "logical_not": "Not", "logical_or": "Or", "logical_xor": "Xor", "lt": "Less", "maximum": "Max", "minimum": "Min",
    "mul": "Mul", "neg": "Neg", "pow": "Pow", "relu": "Relu", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "softplus": "Softplus", "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh", "where": "Where",
}
# end of names


def package() -> Any:
    """Returns the package onnx.  Raises ConfigError where it is not installed."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise ConfigError(message(WHERE, "the package onnx is not installed", 'pip install ".[onnx]"')) from error
    return onnx


class Graph:
    """Nodes and weights, and where each Value is: names by layout.

    Attributes:
        batch: the sizes that depend on the number of samples.
        samples: the name of an input whose first axis counts the samples.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch, self.samples = batch, ""
        self.onnx = package()
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.places: dict[Value, dict[str, str]] = {}
        self.flat: dict[Value, tuple[str, tuple[int, int, int]]] = {}   # maps flattened with channels first: name, HWC
        self._number, self._counted = 0, ""

    def name(self, stem: str) -> str:
        """Returns a name that nothing else has."""
        self._number += 1
        return f"{stem}_{self._number}"

    def node(self, kind: str, inputs: Sequence[str], stem: str = "", **attributes: Any) -> str:
        """Adds a node, and returns the name of its output."""
        output = self.name(stem or kind.lower())
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def weight(self, name: str, array: Any) -> str:
        """Adds a weight, and returns its name; a weight with the same elements that is there is taken again."""
        array = np.asarray(array, order="C")     # ascontiguousarray gives a number an axis
        while name in self.weights:
            there = self.weights[name]
            if there.dtype == array.dtype and there.shape == array.shape and there.tobytes() == array.tobytes():
                return name
            name = self.name(name)
        self.weights[name] = array
        return name

    def integers(self, values: Sequence[int]) -> str:
        """Returns the name of a weight of these int64 numbers."""
        return self.weight("ints_" + "_".join(map(str, values)).replace("-", "m"), np.array(values, np.int64))

    def size(self, value: Value, axis: int) -> int:
        """Returns how long an axis is.  Raises Baked if that depends on the number of samples."""
        return self.batch.size(value, axis)

    def shape(self, value: Value, source: Sequence[tuple[int, ...]]) -> str:
        """Returns the name of a weight of a shape for Reshape.

        An axis that depends on the number of samples is -1; 0 if it is as long as the axis there of the source, whose
        lengths per axis are given, and there are several.
        """
        lengths = [self.batch.lengths(value, k) for k in range(len(value.shape))]
        sizes = [found[0] if len(set(found)) == 1 else -1 for found in lengths]
        for k, found in enumerate(lengths):
            if sizes.count(-1) > 1 and sizes[k] == -1 and k < len(source) and source[k] == found:
                sizes[k] = 0
        if sizes.count(-1) > 1:
            raise Baked(f"several axes of a reshape to {value.shape} follow the number of samples")
        return self.integers(sizes)

    def following(self, lengths: Sequence[tuple[int, ...]]) -> str:
        """Returns the name of a shape of these lengths per trace: a weight, or computed from the number of samples."""
        if all(len(set(found)) == 1 for found in lengths):
            return self.integers([found[0] for found in lengths])
        parts = []
        for found in lengths:
            if len(set(found)) > 1 and found != self.batch.numbers:
                raise Baked(f"the length of an axis is {self.batch.told(found)}")
            parts.append(self.integers([found[0]]) if len(set(found)) == 1 else self._count())
        return self.node("Concat", parts, axis=0) if len(parts) > 1 else parts[0]

    def _count(self) -> str:
        if not self._counted:
            self._counted = self.node("Gather", [self.node("Shape", [self.samples]), self.integers([0])], axis=0)
        return self._counted

    def scalar(self, value: float, dtype: str) -> str:
        """Returns the name of a weight of one number."""
        return self.weight(f"scalar_{value:g}", np.array(value, dtype))

    def is_first(self, value: Any) -> bool:
        """Tells whether a value is there with channels first, and not as in alpha."""
        return isinstance(value, Value) and FIRST in self.places.get(value, {}) and PLAIN not in self.places[value]

    def put(self, value: Value, name: str, layout: str = PLAIN) -> None:
        """Says that a value is there."""
        self.places.setdefault(value, {})[layout] = name

    def get(self, value: Value, layout: str = PLAIN) -> str:
        """Returns the name of a value in a layout, transposed if need be."""
        if value.constant is not None:
            a, name = value.constant.numpy(), value.name or "constant"
            return self.weight(name, a.transpose(TO_FIRST)) if layout == FIRST else self.weight(name, a)
        places = self.places.setdefault(value, {})
        if layout not in places and value in self.flat:
            name, (h, w, c) = self.flat[value]
            maps = self.node("Reshape", [name, self.integers((0, c, h, w))])
            turned = self.node("Transpose", [maps], perm=TO_LAST)
            places[PLAIN] = self.node("Flatten", [turned], axis=1)
        if not places:
            raise refuse("a second result, such as the indices of a max pool, has no counterpart here")
        if layout not in places:
            source, perm = (PLAIN, TO_FIRST) if layout == FIRST else (FIRST, TO_LAST)
            places[layout] = self.node("Transpose", [places[source]], perm=perm)
        return places[layout]


def refuse(what: str, fix: str = "export a model without it") -> ConfigError:
    """Returns the error for an op without a counterpart."""
    return ConfigError(message(WHERE, what, fix))
