"""A model's forward pass in inference mode as an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alpha.core.errors import ArgumentError, ConfigError, message, remedy, shown, warn
from alpha.core.inputs.arguments import checked
from alpha.core.precision import mode
from alpha.core.tensor import Tensor
from alpha.inference.program import Program, Value
from alpha.inference.trace import examples_of, trace
from alpha.nn import Module
from alpha.onnx.batch import Baked, Batch, closed, opened
from alpha.onnx.constants import folded
from alpha.onnx.graph import FIRST, PLAIN, TO_FIRST, WHERE, Graph, package, refuse
from alpha.onnx.pieces import PIECES, joined
from alpha.onnx.shapes import RULES
from alpha.ops.attention import composed_alone

OPSET, IR_VERSION = 17, 8      # which ONNX Runtime 1.14 and later read
DTYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "int64": "INT64", "int32": "INT32",
          "uint8": "UINT8", "bool": "BOOL"}


@checked
def export(model: Module, example: Tensor | tuple[Tensor, ...], path: str | Path, *, channels_first: bool = True,
           metadata: Mapping[str, str] | None = None) -> None:
    """Writes a model in inference mode as an ONNX file.

    The forward pass is traced, as by alpha.inference. Maps have channels first in the file, as is usual there; filters,
    and the weights of a linear layer behind a flattened map, are turned when they are written. The model is traced
    with four other numbers of samples. The number is left open if every difference between the traces is understood;
    else the file takes the example's number alone, and a warning says why.
    Args:
        model: a module on the CPU, in fp32; its mode is left as it is.
        example: a tensor, or a tuple of the model's arguments; the first axis counts the samples.
        path: of the file.
        channels_first: whether the file's inputs and outputs of four axes are (N, C, H, W); else they are as here.
        metadata: texts by name, which the file has beside the graph.
    Raises:
        ArgumentError: model, example or metadata are something else.
        ConfigError: the package onnx is not installed, an op has no counterpart in ONNX, or
            path cannot be written.
        GraphError: the model's ops depend on the elements of its input.
    """
    examples = examples_of(WHERE, model, example)
    texts = dict(metadata or {})
    if not all(isinstance(text, str) for pair in texts.items() for text in pair):
        raise ArgumentError(message(WHERE, f"metadata is {shown(texts)}, texts by name are needed",
                                    "make texts of the values: json.dumps(value)"))
    if any(t.device != "cpu" for t in (*examples, *model.parameters())) or mode().name != "fp32":
        raise refuse(f"the model is on {next((p.device for p in model.parameters()), 'cpu')}, the example on "
                     f"{examples[0].device}, in {mode().name}", 'export on the CPU in fp32: model.to("cpu")')
    onnx = package()
    with composed_alone():
        _exported(onnx, model, examples, Path(path), channels_first, texts)


def _exported(onnx: Any, model: Module, examples: Sequence[Tensor], path: Path, channels_first: bool,
              texts: dict[str, str]) -> None:
    program = folded(trace(model, [t.detach() for t in examples])[0])
    for call in joined(program).calls:
        if call.piece is None and call.op.name not in RULES:
            raise refuse(f"the op {call.op.name} has no counterpart here")
    try:
        made = _built(*opened(model, examples, program), channels_first)
    except Baked as reason:
        batch = closed(program)
        n = batch.numbers[0]
        warn(message(WHERE, f"the file takes {n} sample{'s' * (n != 1)} and no other number: {reason}",
                     "compute with ops on tensors alone, without numbers made of x.shape[0]; or export with the number "
                     "of samples that the file shall take"))
        made = _built(program, batch, channels_first)
    _write(onnx, *made, type(model).__name__, path, texts)


def _built(program: Program, batch: Batch, channels_first: bool) -> tuple[Graph, list[Any], list[Any]]:
    """Returns the graph of a program, and the file's entries for its inputs and outputs."""
    program = joined(program)
    graph = Graph(batch)
    layout = {value: FIRST if channels_first and len(value.shape) == 4 else PLAIN
              for value in (*program.inputs, *program.outputs)}
    inputs, outputs = [], []
    for k, value in enumerate(program.inputs):
        name = "input" if len(program.inputs) == 1 else f"input_{k}"
        graph.put(value, name, layout[value])
        graph.samples = graph.samples or (name if value.shape else "")
        inputs.append(_described(graph, name, value, layout[value]))
    for call in program.calls:
        (RULES[call.op.name] if call.piece is None else PIECES[call.piece.name])(graph, call)
    for k, value in enumerate(program.outputs):
        name = "output" if len(program.outputs) == 1 else f"output_{k}"
        graph.nodes.append(graph.onnx.helper.make_node("Identity", [graph.get(value, layout[value])], [name]))
        outputs.append(_described(graph, name, value, layout[value]))
    return graph, inputs, outputs


def _described(graph: Graph, name: str, value: Value, layout: str) -> Any:
    """Returns the file's entry for an input or output; an axis that is as long as there are samples is called N."""
    sizes: list[Any] = []
    for axis in TO_FIRST if layout == FIRST else range(len(value.shape)):
        lengths = graph.batch.lengths(value, axis)
        sizes.append(lengths[0] if len(set(lengths)) == 1 else "N" if lengths == graph.batch.numbers
                     else f"{name}_axis_{axis}")
    kind = getattr(graph.onnx.TensorProto, DTYPES[value.dtype])
    return graph.onnx.helper.make_tensor_value_info(name, kind, sizes)


def _write(onnx: Any, graph: Graph, inputs: list[Any], outputs: list[Any], name: str, path: Path,
           texts: Mapping[str, str]) -> None:
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in graph.weights.items()]
    made = onnx.helper.make_model(onnx.helper.make_graph(graph.nodes, name, inputs, outputs, weights),
                                  opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="alpha",
                                  ir_version=IR_VERSION)
    if texts:
        onnx.helper.set_model_props(made, dict(texts))
    onnx.checker.check_model(made)
    try:
        onnx.save(made, str(path))
    except OSError as error:
        raise ConfigError(message(WHERE, f"{path} cannot be written: {error.strerror}",
                                  remedy(error.errno, path))) from error
