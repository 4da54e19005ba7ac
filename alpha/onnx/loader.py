"""A Module that computes an ONNX file: a file of `export`, or another of the same operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alpha.core.errors import AlphaError, ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.tensor import Tensor, tensor
from alpha.nn import Module, Parameter
from alpha.onnx.graph import TO_LAST, WHERE, package
from alpha.onnx.operators import CONVOLUTIONS, HARMLESS, OPERATORS, READ, Held, Node

STATISTICS = (3, 4)     # inputs of BatchNormalization that are no parameters


class OnnxModel(Module):
    """The network of an ONNX file.  Made by `load`.

    Floating weights are parameters, named as in the file with _ for every dot; running statistics are buffers.
    """

    def __init__(self, nodes: Sequence[Node], weights: dict[str, np.ndarray], inputs: Sequence[str],
                 outputs: Sequence[str], channels_first: bool) -> None:
        self.channels_first = channels_first
        self._nodes, self._inputs, self._outputs = tuple(nodes), tuple(inputs), tuple(outputs)
        filters = {n.inputs[1] for n in nodes if n.kind in CONVOLUTIONS and np.ndim(weights.get(n.inputs[1], 0)) == 4}
        statistics = {n.inputs[k] for n in nodes if n.kind == "BatchNormalization" for k in STATISTICS}
        numbers = {name for n in nodes if n.kind == "Resize" for name in n.inputs[1:]}
        self._constants = {name: a for name, a in weights.items()
                           if a.dtype.kind != "f" or a.ndim == 0 or name in numbers}
        self._names: dict[str, str] = {}
        self._turned = frozenset(filters)
        for name, a in weights.items():
            if name in self._constants:
                continue
            attribute = "w_" + name.replace(".", "_").replace("/", "_").replace(":", "_")
            while attribute in self._names.values():
                attribute += "_"
            self._names[name] = attribute
            made = tensor(np.ascontiguousarray(a.transpose(TO_LAST) if name in filters else a))
            setattr(self, attribute, made if name in statistics else Parameter(made))

    def forward(self, *inputs: Tensor) -> Any:
        """Returns the results of the network; maps are (N, H, W, C) here and in the results."""
        if len(inputs) != len(self._inputs):
            raise ConfigError(message(WHERE, f"{len(inputs)} inputs are given, the file has {len(self._inputs)}",
                                      f"pass {', '.join(self._inputs)}"))
        held = {name: Held(tensor(a)) for name, a in self._constants.items()}
        held |= {name: Held(x, self.channels_first and x.ndim == 4) for name, x in zip(self._inputs, inputs)}
        for name, attribute in self._names.items():
            held[name] = Held(getattr(self, attribute), name in self._turned)
        for node in self._nodes:
            try:
                result = OPERATORS[node.kind](self, node, held)
            except AlphaError:
                raise
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(message(WHERE, f"{node.kind} {node.outputs[0]} has inputs or attributes that do not "
                                          f"fit: {type(error).__name__}, {error}", "export the file anew")) from error
            held[node.outputs[0]] = result if isinstance(result, Held) else Held(result)
        results = [held[name].as_map() if self.channels_first and held[name].tensor.ndim == 4 else held[name].as_file()
                   for name in self._outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def constant(self, node: Node, k: int) -> Any:
        """Returns input k as an array of the host, or None where it is left out."""
        name = node.inputs[k] if k < len(node.inputs) else ""
        if name and name not in self._constants:
            raise ConfigError(message(WHERE, f"input {k} of {node.kind} {node.outputs[0]} is computed, a constant is "
                                      "needed", "export it with constant shapes"))
        return self._constants[name] if name else None


@checked
def load(path: str | Path, *, channels_first: bool = True) -> OnnxModel:
    """Reads an ONNX file as a Module on the CPU; `to("cuda")` moves it, and it can be trained.

    Args:
        path: of the file.
        channels_first: whether inputs and outputs of four axes are (N, C, H, W) in the file; the Module takes and
            returns (N, H, W, C) then. As given to `export`.
    Raises:
        ConfigError: the package onnx is not installed, the file is no ONNX file, or has an operator that is unknown.
    """
    onnx = package()
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(str(path))  # by its path: a file may have more than 2 GiB
        graph, old = model.graph, any(o.domain in ("", "ai.onnx") and o.version < 13 for o in model.opset_import)
        weights = {w.name: onnx.numpy_helper.to_array(w) for w in graph.initializer}
        nodes = [Node(kind_of(n, old), tuple(n.input), tuple(n.output), {
            a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}) for n in graph.node]
    except OSError as error:
        raise ConfigError(message(WHERE, f"{path} cannot be read: {error.strerror}", "correct the path")) from error
    except Exception as error:      # of the library of protocol buffers, or of its checks
        raise ConfigError(message(WHERE, f"{path} is no ONNX file: {str(error)[:100]}", "export it anew")) from error
    unknown = sorted({n.kind for n in nodes} - OPERATORS.keys())
    if unknown or not nodes:
        raise ConfigError(message(WHERE, f"{path} has {', '.join(unknown) or 'no operators'}",
                                  f"known are {', '.join(sorted(OPERATORS))}"))
    for n in nodes:
        for name, value in n.attributes.items():
            if name not in READ.get(n.kind, "").split() and value not in HARMLESS.get(name, ()):
                raise ConfigError(message(WHERE, f"{n.kind} {n.outputs[0]} has an attribute that is unknown: {name} = "
                                          f"{value}", "export it anew, in a newer opset"))
    made = {*weights, *(i.name for i in graph.input), *(n.outputs[0] for n in nodes)}     # others are not
    missing = [name for name in (*(o.name for o in graph.output), *(name for n in nodes for name in n.inputs))
               if name and name not in made]
    if missing:
        raise ConfigError(message(WHERE, f"{path}: nothing makes {missing[0]!r}", "export it anew"))
    return OnnxModel(nodes, weights, [i.name for i in graph.input if i.name not in weights],
                     [o.name for o in graph.output], channels_first)


def kind_of(node: Any, old: bool) -> str:
    """Returns the name under which OPERATORS has a node: another than its own where the meaning is another."""
    if node.domain not in ("", "ai.onnx"):
        return f"{node.domain}.{node.op_type}"
    return f"{node.op_type}, old" if old and node.op_type in ("Softmax", "LogSoftmax") else node.op_type
