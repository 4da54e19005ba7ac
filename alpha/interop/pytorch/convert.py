"""alpha.from_torch: a torch.nn.Module as a module of alpha."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alpha.core.errors import ArgumentError, message, shown
from alpha.interop.pytorch import code, patterns
from alpha.interop.pytorch.body import Body, float_dtype
from alpha.interop.pytorch.graph import WHERE, Graph, merged, refuse
from alpha.interop.pytorch.layers import Layers
from alpha.interop.pytorch.layout import Order, moved
from alpha.interop.pytorch.modules import Converted
from alpha.interop.pytorch.stored import fill, save_with
from alpha.interop.pytorch.trace import torch_module, traced

_NUMBERS = itertools.count(1)   # so that files of two converted models have different names


def from_torch(model: Any, example: Any, *, write: str | Path | None = None, channels_first: bool = False
               ) -> Converted:
    """Returns a torch.nn.Module as a module of alpha, with the same names of parameters and a copy of the weights.

    The model is traced by torch.export, in training and in inference; the number of samples is left open. Axes keep
    their meaning: cat, mean, view, softmax and the like of axis 1 are of the channels. Maps lie (N, H, W, C) inside.
    `net.permutes` has the places where elements are moved nevertheless. Train and eval, batch norm and dropout are as
    in PyTorch. `alpha.to_torch(net, model)` writes the weights back.
    Args:
        model: a torch.nn.Module; its mode stays as it is.
        example: a torch.Tensor, or a tuple of arguments of forward; the first axis counts the samples.
        write: a path of a .py file for the code of the module, which can be read and kept. Weights, and buffers that
            are not part of a state_dict, go into a file of the same name with the suffix .safetensors;
            `alpha.load` and the file's function `load` read it.
        channels_first: whether inputs and outputs of four axes are (N, C, H, W), as in PyTorch, and not (N, H, W, C).
    Returns:
        a Module of the model's class name; `net.code` is how it is written.
    Raises:
        ArgumentError: model or example are something else.
        ConfigError: PyTorch is not installed or cannot export the model; operators have no counterpart: the message
            names each with its line in the model; or write cannot be written.
        GraphError: the model's operators depend on the elements of its input.
    """
    path = None if write is None else Path(write)
    if path is not None and (path.suffix != ".py" or not path.stem.isidentifier()):
        raise refuse(f"write is {shown(str(write))}", 'name a Python file, such as write="my_net.py"')
    net = converted(model, example, channels_first)
    if path is not None:
        save_with(net, path)
    return net


def converted(model: Any, example: Any, channels_first: bool = False, fuse: bool = True) -> Converted:
    """Does the work of from_torch; without `fuse` a layer computes the same as PyTorch's of its name, and no more."""
    torch = torch_module()
    examples = _examples(torch, model, example)
    graphs = _graphs(model, examples)
    if all(isinstance(node.shape[0], int) for node in graphs[0].inputs if node.shape):     # only this many samples
        given = tuple(example) if isinstance(example, (tuple, list)) else (example,)
        graphs = graphs if given[0] is examples[0] else _graphs(model, given)
    for graph in graphs:
        patterns.simplify(graph, model, fuse)
    bodies, layers, stored = _written(graphs, model, channels_first)
    return _made(code.written(torch.__version__, bodies, layers, stored, model), model, graphs)


def _graphs(model: Any, examples: tuple[Any, ...]) -> list[Graph]:
    """Returns the graphs of the model: one for both modes, or one for training and one for inference."""
    training, inference = (traced(model, examples, mode) for mode in (True, False))
    one = merged(training, inference)
    if one is not None:
        return [one]
    for node in inference.nodes:
        if node.op == "constant":
            inference.constants[f"{node.path}_inference"] = inference.constants.pop(node.path)
            node.path += "_inference"
    return [training, inference]


def _examples(torch: Any, model: Any, example: Any) -> tuple[Any, ...]:
    """Returns the arguments of forward.  Raises ArgumentError unless these are tensors."""
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(message(WHERE, f"model is {shown(model)}, a torch.nn.Module is needed",
                                    "pass an object of it: Net(), not Net"))
    examples = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    for value in examples:
        if not isinstance(value, torch.Tensor):
            raise ArgumentError(message(WHERE, f"example is {shown(value)}, a torch.Tensor is needed",
                                        "pass torch.randn(2, 3, 32, 32), say, or a tuple of tensors"))
    if any(p.device.type != "cpu" for p in model.parameters()):
        raise refuse("the model is not on the CPU", 'move it there: model.to("cpu"), and the result to a GPU')
    single = examples and all(value.ndim and value.shape[0] == 1 for value in examples)
    return tuple([torch.cat([value, value]) for value in examples]) if single else examples


def _written(graphs: Sequence[Graph], model: Any, channels_first: bool
             ) -> tuple[list[Body], Layers, dict[str, Order]]:
    """Returns the forward passes; parameters that maps alone meet are stored with their channels last."""
    stored: dict[str, Order] = {}
    for _ in range(2):
        layers = Layers(model)
        bodies = [Body(graph, layers, stored, channels_first) for graph in graphs]
        wrong = list(dict.fromkeys(line for body in bodies for line in body.wrong))
        if wrong:
            raise refuse(f"{len(wrong)} operator{'s' * (len(wrong) > 1)} of the model ha"
                         f"{'ve' if len(wrong) > 1 else 's'} no counterpart: {'; '.join(wrong)}",
                         "write these with other operators in the model")
        asked: dict[str, set[Order]] = {}
        for body in bodies:
            for name, orders in body.builder.asked.items():
                asked.setdefault(name, set()).update(orders)
        if stored:
            break
        stored = {name: orders.pop() for name, orders in asked.items()
                  if len(orders) == 1 and all(order == moved(len(order)) for order in orders)}
        if not stored:
            break
    for body in bodies:
        layers.read([node.path for node in body.graph.nodes if node.op in ("parameter", "buffer")])
    return bodies, layers, stored


def _made(text: str, model: Any, graphs: Sequence[Graph]) -> Converted:
    """Returns the module that a code describes, with the weights of PyTorch's model."""
    name = text.split('"""', 1)[1].partition(",")[0]
    file = f"<alpha.from_torch {name} {next(_NUMBERS)}>"
    space: dict[str, Any] = {"__name__": "alpha_from_torch", "__file__": file}
    exec(compile(text, file, "exec"), space)
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)     # so that tracebacks show its lines
    net: Converted = space[name]()
    type(net).code = text
    dtype = float_dtype(graphs[0])
    if dtype != "float32":
        net.to(dtype=dtype)
    constants = {path: array for graph in graphs for path, array in graph.constants.items()
                 if array.numel() > code.LITERAL}
    fill(net, {**dict(model.named_parameters(remove_duplicate=False)),
               **dict(model.named_buffers(remove_duplicate=False)), **constants})
    net.train(model.training)
    for path, module in net.named_modules():
        twin = model.get_submodule(path)
        object.__setattr__(module, "training", twin.training)
    return net
