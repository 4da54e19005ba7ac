"""A model's forward pass in inference mode as an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alpha import no_grad, ops
from alpha.errors import AlphaError, ConfigError, message
from alpha.inference.program import Program, Value
from alpha.inference.trace import examples_of, trace
from alpha.inputs.arguments import checked
from alpha.nn import Module
from alpha.onnx.graph import FIRST, PLAIN, WHERE, Graph, refuse
from alpha.onnx.nodes import RULES
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
    is left open, unless the model takes no other number than that of the example.
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
    graph = Graph()
    program, _ = trace(model, [t.detach() for t in examples])
    graph.sizes = _with_another_sample(model, examples, program)
    layout = {value: FIRST if channels_first and len(value.shape) == 4 else PLAIN
              for value in (*program.inputs, *program.outputs)}
    inputs, outputs = [], []
    for k, value in enumerate(program.inputs):
        name = "input" if len(program.inputs) == 1 else f"input_{k}"
        graph.put(value, name, layout[value])
        inputs.append(_described(graph, name, value, layout[value]))
    for call in program.calls:
        rule = RULES.get(call.op.name)
        if rule is None:
            raise refuse(f"the op {call.op.name} has no counterpart here")
        rule(graph, call)
    for k, value in enumerate(program.outputs):
        name = "output" if len(program.outputs) == 1 else f"output_{k}"
        graph.nodes.append(graph.onnx.helper.make_node("Identity", [graph.get(value, layout[value])], [name]))
        outputs.append(_described(graph, name, value, layout[value]))
    _write(graph, type(model).__name__, inputs, outputs, Path(path))


def _described(graph: Graph, name: str, value: Any, layout: str) -> Any:
    """Returns what the file says of an input or output; the number of samples is called N."""
    shape = [value.shape[k] for k in (0, 3, 1, 2)] if layout == FIRST else list(value.shape)
    kind = getattr(graph.onnx.TensorProto, DTYPES[value.dtype])
    samples = ["N"] if graph.sizes else shape[:1]
    return graph.onnx.helper.make_tensor_value_info(name, kind, [*samples, *shape[1:]] if shape else [])


def _with_another_sample(model: Module, examples: Sequence[Tensor], program: Program) -> dict[Value, tuple[int, ...]]:
    """Returns the shapes of all results where there is one sample more; none where the model does other things then."""
    try:
        with no_grad():
            other, _ = trace(model, [ops.concat([t, t[:1]]) if t.ndim else t for t in examples])
    except AlphaError:
        return {}
    calls = [*zip(program.calls, other.calls)]
    if len(program.calls) != len(other.calls) or any(a.op is not b.op for a, b in calls):
        return {}
    return {mine: theirs.shape for a, b in calls for mine, theirs in zip(a.outs, b.outs)}


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
