"""A model's forward pass in inference mode as an ONNX file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from alpha.errors import ConfigError, message
from alpha.inference.program import Program, Value
from alpha.inference.trace import examples_of, trace
from alpha.inputs.arguments import checked
from alpha.nn import Module
from alpha.onnx.graph import FIRST, PLAIN, WHERE, Graph, refuse
from alpha.onnx.nodes import RULES
from alpha.onnx.samples import Closed, difference, sizes_for, traced_with, twins
from alpha.precision import mode
from alpha.tensor import Tensor

OPSET, IR_VERSION = 17, 8      # which ONNX Runtime 1.14 and later read
DTYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "int64": "INT64", "int32": "INT32",
          "uint8": "UINT8", "bool": "BOOL"}


@checked
def export(model: Module, example: Tensor | tuple[Tensor, ...], path: str | Path, *, channels_first: bool = True
           ) -> None:
    """Writes what a model computes in inference mode as an ONNX file.

    The forward pass is traced, as by alpha.inference. Maps have channels first in the file, as is usual there; filters,
    and the weights of a linear layer behind a flattened map, are turned when they are written. The number of samples
    is left open where the model becomes the same graph for two other numbers; else it is that of the example, and a
    warning says why.
    Args:
        model: a module on the CPU, in fp32; its mode is left as it is.
        example: a tensor, or a tuple of what the model takes; the first axis is that of the samples.
        path: of the file.
        channels_first: whether the file's inputs and outputs of four axes are (N, C, H, W); else they are as here.
    Raises:
        ArgumentError: model or example are something else.
        ConfigError: the package onnx is not installed, an op has no counterpart in ONNX, or
            path cannot be written.
        GraphError: what the model does depends on the elements of its input.
    """
    examples = examples_of(WHERE, model, example)
    if any(t.device != "cpu" for t in (*examples, *model.parameters())) or mode().name != "fp32":
        raise refuse(f"the model is on {next((p.device for p in model.parameters()), 'cpu')}, the example on "
                     f"{examples[0].device}, in {mode().name}", 'export on the CPU in fp32: model.to("cpu")')
    program, _ = trace(model, [t.detach() for t in examples])
    try:
        graph, inputs, outputs = _open(model, program, examples, channels_first)
    except Closed as reason:
        samples = examples[0].shape[0] if examples[0].ndim else 1
        warnings.warn(message(WHERE, f"the file takes {samples} samples only: {reason}",
                              "compute with shapes of the input in reshape and slices alone, or export an example with "
                              "the number of samples that the file is to take"), stacklevel=3)
        graph = Graph()
        inputs, outputs = _built(graph, program, channels_first, [])
    _write(graph, type(model).__name__, inputs, outputs, Path(path))


def _open(model: Module, program: Program, examples: Any, channels_first: bool) -> tuple[Graph, list[Any], list[Any]]:
    """Returns a graph for any number of samples.  Raises Closed where other numbers make another graph."""
    others = [traced_with(model, examples, n) for n in sizes_for(examples)]
    graph = Graph()
    graph.twins = twins(program, others[0])
    described = _built(graph, program, channels_first, others)
    for k, other in enumerate(others):
        second = Graph()
        second.twins = twins(other, program)
        try:
            _built(second, other, channels_first, [program, *others[:k], *others[k + 1:]])
        except ConfigError as error:
            raise Closed(f"with {other.inputs[0].shape[0]}, {str(error).splitlines()[0]}") from error
        difference(graph, program, second, other)
    return graph, *described


def _built(graph: Graph, program: Program, channels_first: bool, others: list[Program]) -> tuple[list[Any], list[Any]]:
    """Adds what a program does, and returns what the file says of its inputs and outputs."""
    layout = {value: FIRST if channels_first and len(value.shape) == 4 else PLAIN
              for value in (*program.inputs, *program.outputs)}
    inputs, outputs = [], []
    samples = [p.inputs[0].shape[:1] for p in (program, *others)]
    for k, value in enumerate(program.inputs):
        name = "input" if len(program.inputs) == 1 else f"input_{k}"
        graph.put(value, name, layout[value])
        inputs.append(_described(graph, name, [value, *(p.inputs[k] for p in others)], layout[value], samples))
    for call in program.calls:
        rule = RULES.get(call.op.name)
        if rule is None:
            raise refuse(f"the op {call.op.name} has no counterpart here")
        rule(graph, call)
        graph.ends.append((len(graph.nodes), call))
    for k, value in enumerate(program.outputs):
        name = "output" if len(program.outputs) == 1 else f"output_{k}"
        graph.nodes.append(graph.onnx.helper.make_node("Identity", [graph.get(value, layout[value])], [name]))
        outputs.append(_described(graph, name, [value, *(p.outputs[k] for p in others)], layout[value], samples))
    return inputs, outputs


def _described(graph: Graph, name: str, values: list[Value], layout: str, samples: list[tuple[int, ...]]) -> Any:
    """Returns what the file says of an input or output; the number of samples is called N, what depends on it has a
    name of its own.

    Args:
        values: what it is in the program and in those for other numbers of samples; samples: these numbers.
    """
    shape: list[int | str] = []
    for k in (0, 3, 1, 2) if layout == FIRST else range(len(values[0].shape)):
        sizes = [v.shape[k:k + 1] for v in values]
        shape.append(sizes[0][0] if len(set(sizes)) == 1 else "N" if sizes == samples else f"{name}_axis_{len(shape)}")
    kind = getattr(graph.onnx.TensorProto, DTYPES[values[0].dtype])
    return graph.onnx.helper.make_tensor_value_info(name, kind, shape)


def _write(graph: Graph, name: str, inputs: list[Any], outputs: list[Any], path: Path) -> None:
    onnx = graph.onnx
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in graph.weights.items()]
    made = onnx.helper.make_model(onnx.helper.make_graph(graph.nodes, name, inputs, outputs, weights),
                                  opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="alpha",
                                  ir_version=IR_VERSION)
    onnx.checker.check_model(made)
    try:
        onnx.save(made, str(path))
    except OSError as error:
        raise ConfigError(message(WHERE, f"{path} cannot be written: {error.strerror}",
                                  "pass a file in a folder that exists")) from error
