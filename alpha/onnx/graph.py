"""An ONNX graph as it is built: nodes, weights, and in which layout each value of the traced program is there.

ONNX has channels first: (N, C, H, W), filters (OC, IC, FH, FW). A map stays in one layout from layer to layer: a
transpose stands only where an op needs the other one. Weights are turned here, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha.errors import ConfigError, message
from alpha.inference.program import Value

WHERE = "onnx"
PLAIN, FIRST = "as in alpha", "channels first"      # FIRST: of values with four axes
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


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
    """Nodes and weights, and where each Value is: names by layout."""

    def __init__(self) -> None:
        self.onnx = package()
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.places: dict[Value, dict[str, str]] = {}
        self.flat: dict[Value, tuple[str, tuple[int, int, int]]] = {}   # maps flattened with channels first: name, HWC
        self._number = 0

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
        """Adds a weight, and returns its name; one that is there with the same elements is taken again."""
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
    """Returns the error for what has no counterpart."""
    return ConfigError(message(WHERE, what, fix))
