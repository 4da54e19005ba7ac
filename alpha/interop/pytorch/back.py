"""alpha.to_torch: weights of a module for PyTorch's model, or a torch.nn.Module that computes the same."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha import nn, ops
from alpha.checkpoint.layouts import layouts
from alpha.checkpoint.torch_state import to_torch_state_dict
from alpha.core.errors import ArgumentError, CheckpointError, message, shown
from alpha.core.tensor import Tensor
from alpha.interop.pytorch.backward_ops import OPS, Maps, Writer
from alpha.interop.pytorch.layout import last, plain
from alpha.interop.pytorch.modules import Converted
from alpha.interop.pytorch.recorded import Recorder, Ref, Step
from alpha.interop.pytorch.trace import torch_module
from alpha.interop.pytorch.twins import POINTWISE, TWINS, WHERE, is_leaf, levels_of, refuse, twin_of
from alpha.nn import Module

_SAMPLES = 7    # of the example: no size of a network is likely to be the same


def to_torch(module: Module, model: Any = None, *, example: Tensor | None = None) -> Any:
    """Returns a torch.nn.Module with the weights and statistics of a module of alpha.

    Args:
        module: a module on any device; nothing of it changes.
        model: PyTorch's model of the same names, such as the source of `module`: it is filled, and
            its counters of batches stay. None: a model is made of PyTorch's layers, with the names that
            `alpha.checkpoint.to_torch_state_dict` gives. It takes maps as (N, C, H, W); its `code` is its forward.
        example: arguments of forward, where a model is made; None: an image of 32 x 32 pixels and 3 channels.
    Returns:
        model, or the new one: a torch.fx.GraphModule in the mode that module is in.
    Raises:
        ArgumentError: an argument is something else, or example is given beside model.
        CheckpointError: names or shapes differ; it lists all of them, and nothing has been written.
        ConfigError: PyTorch is not installed; or a model cannot be made, as a layer or op has no counterpart there.
    """
    torch = torch_module()
    if not isinstance(module, Module):
        raise ArgumentError(message(WHERE, f"module is {shown(module)}, a Module of alpha is needed",
                                    "pass the trained module first: alpha.to_torch(net, model)"))
    if model is None:
        return _made(torch, module, ops.zeros((_SAMPLES, 32, 32, 3)) if example is None else example)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(message(WHERE, f"model is {shown(model)}, a torch.nn.Module is needed",
                                    "pass PyTorch's model, or leave it out"))
    if example is not None:
        raise ArgumentError(message(WHERE, "an example is given beside a model", "leave the example out: the model's "
                                    "forward is there already"))
    _fill(torch, model, _state(module))
    return model


def _state(module: Module) -> dict[str, np.ndarray]:
    """Returns the state by PyTorch's names, in its layouts."""
    if not isinstance(module, Converted):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)    # of layers that may flatten: here forward is followed
            return to_torch_state_dict(module)
    turned = layouts(WHERE, module)
    return {name: turned[name].to_torch(t.numpy()) if name in turned else t.numpy()
            for name, t in module.state_dict().items()}


def _fill(torch: Any, model: Any, state: dict[str, np.ndarray]) -> None:
    own = {name: t for name, t in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    state = {name: a for name, a in state.items() if not name.endswith("num_batches_tracked")}
    wrong = [f"{name} is missing" for name in own if name not in state]
    wrong += [f"{name} is not in the model" for name in state if name not in own]
    wrong += [f"{name} has shape {a.shape}, the model has {tuple(own[name].shape)}" for name, a in state.items()
              if name in own and tuple(own[name].shape) != a.shape]
    if wrong:
        raise CheckpointError(message(WHERE, "; ".join(wrong), "pass the model that the module was converted from, or "
                                      "leave model out, and one is made"))
    with torch.no_grad():
        for name, t in own.items():
            t.copy_(torch.from_numpy(np.array(state[name])))


# ---- a new model -----------------------------------------------------------------------------------------------------


def _made(torch: Any, module: Module, example: Any) -> Any:
    if not isinstance(example, Tensor) or not example.ndim:
        raise ArgumentError(message(WHERE, f"example is {shown(example)}, a Tensor with an axis of samples is needed",
                                    "pass alpha.zeros((2, 32, 32, 3)), say"))
    shape = (_SAMPLES, *example.shape[1:])
    x = ops.randn(shape) if example.is_floating_point else ops.zeros(shape, dtype=example.dtype)
    x = x.to(next((p.device for p in module.parameters()), "cpu"))
    x = x.astype(next((p.dtype for p in module.parameters()), "float32")) if example.is_floating_point else x
    passes = []
    for training in (True, False):
        recorder = Recorder(module, is_leaf, training)
        passes.append((recorder, *recorder.run([x])))
    names = [[step.name for step in recorder.steps] for recorder, _, _ in passes]
    if names[0] != names[1] or passes[0][0].shapes != passes[1][0].shapes:
        raise refuse(f"{type(module).__name__} calls other layers in training than in inference",
                     "write the model in PyTorch, and pass it: alpha.to_torch(module, model)")
    root, builder = torch.nn.Module(), None
    builder = _Builder(torch, module, root, *passes[1])
    made = torch.fx.GraphModule(root, builder.graph, type(module).__name__)
    dtype = next((p.dtype for p in module.parameters()), "float32")
    made.to(getattr(torch, dtype))
    _fill(torch, made, _state(module))
    return made.train(module.training)


class _Builder:
    """Writes the steps of a recorded call as a graph of torch.fx."""

    def __init__(self, torch: Any, module: Module, root: Any, recorder: Recorder, inputs: Sequence[Ref], output: Any
                 ) -> None:
        import torch.fx as fx

        self.torch, self.module, self.root, self.recorder = torch, module, root, recorder
        self.graph = fx.Graph()
        self.values: dict[int, Maps] = {}
        self.first = layouts(WHERE, module)
        self.writer = Writer(torch, self.graph, _SAMPLES)
        for k, ref in enumerate(inputs):
            node = self.graph.placeholder("x" if len(inputs) == 1 else f"x{k}")
            self.values[ref.number] = Maps(node, recorder.shapes[ref.number])
        for step in recorder.steps:
            made = self._layer(step) if step.layer is not None else self._op(step)
            for number, value in zip(step.results, made):
                self.values[number] = value
        self.graph.output(self._output(output))

    def _output(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return tuple([self._output(item) for item in tree])
        if not isinstance(tree, Ref):
            raise refuse(f"{type(self.module).__name__} returns {type(tree).__name__}", "return tensors, or a tuple")
        return self.writer.in_order(self.values[tree.number]).node

    def value(self, x: Any) -> Any:
        """Returns an argument: a value of the graph, or a number."""
        if isinstance(x, list):
            return [self.value(item) for item in x]
        if not isinstance(x, Ref):
            return x
        if x.number not in self.values:
            shape = self.recorder.shapes[x.number]
            path = self.recorder.owned.get(x.number)
            if path is None:
                array = self.recorder.constants[x.number]
                if array.size != 1:
                    raise refuse(f"forward makes a tensor of shape {array.shape}", "make it a buffer of the module")
                return array.item()
            self.values[x.number] = self._parameter(path, shape)
        return self.values[x.number]

    def _parameter(self, path: str, shape: tuple[int, ...]) -> Maps:
        name = self.path(path)
        owner, _, last_name = name.rpartition(".")
        first = path in self.first
        order = (*range(len(shape) - 3), len(shape) - 2, len(shape) - 1, len(shape) - 3) if first else plain(len(shape))
        sizes = [0] * len(shape)
        for k, axis in enumerate(order):
            sizes[axis] = shape[k]
        held: Any = self.torch.zeros(sizes)
        _put(self.torch, self.root, owner, last_name, self.torch.nn.Parameter(held) if path in dict(
            self.module.named_parameters()) else held)
        return Maps(self.graph.get_attr(name), shape, order)

    def path(self, path: str) -> str:
        """Returns a path with the names that PyTorch's model has for it."""
        found, module = [], self.module
        for part in path.split("."):
            found.append(dict(getattr(module, "torch_names", {})).get(part, part))
            module = getattr(module, part, module)
        return ".".join(found)

    def _layer(self, step: Step) -> list[Maps]:
        layer, settings = step.layer, dict(step.settings)
        assert layer is not None
        name, shape = self.path(step.name), self.recorder.shapes[step.results[0]]
        x = self.value(step.args[0])
        settings.pop("for_norm", None)
        activation, residual = settings.pop("activation", None), settings.pop("residual", None)
        residual = step.args[1] if len(step.args) > 1 else residual
        if settings or len(step.args) > 2:
            raise refuse(f"{step.name} ({type(layer).__name__}) is called with {', '.join(settings) or 'arguments'}",
                         "write the model in PyTorch, and pass it: alpha.to_torch(module, model)")
        w = self.writer
        if isinstance(layer, nn.Linear) and layer.flattened:
            node = w.flattened(x, layer.flattened).node
        else:
            x = x if type(layer) in POINTWISE else w.in_order(x)
            maps = type(layer) is nn.CoConv2d or TWINS[type(layer)][1]
            node = x.node if maps or x.ndim != 4 else w.moved(x, plain(4)).node
        node = self._called(layer, name, node)
        order = last(4) if len(shape) == 4 else plain(len(shape))
        if type(layer) is not nn.CoConv2d and not TWINS[type(layer)][1] and len(shape) == 4:
            order = plain(4)
        made = Maps(node, shape, order)
        if type(layer) in POINTWISE:
            made = Maps(node, shape, x.order, x.flat)
        if residual is not None:
            made = w.call(self.torch.add, [made, self.value(residual)], shape)
        return [w.call(self.torch.relu, [made], shape, flat=made.flat) if activation == "relu" else made]

    def _called(self, layer: Module, name: str, node: Any) -> Any:
        """Writes the call of a layer's twin."""
        owner, _, last_name = name.rpartition(".")
        if type(layer) is nn.CoConv2d and len(layer.channels) > 1:
            parts = []
            for k, conv in enumerate(levels_of(self.torch, layer), 1):
                _put(self.torch, self.root, name, f"conv2_{k}", conv)
                parts.append(self.graph.call_module(f"{name}.conv2_{k}", (node,)))
            return self.graph.call_function(self.torch.cat, (parts, 1))
        twin = levels_of(self.torch, layer)[0] if isinstance(layer, nn.CoConv2d) else twin_of(self.torch, layer)
        _put(self.torch, self.root, owner, last_name, twin)
        return self.graph.call_module(name, (node,))

    def _op(self, step: Step) -> list[Maps]:
        rule = OPS.get(step.name)
        if rule is None:
            raise refuse(f"the op {step.name} of {type(self.module).__name__} has no counterpart", "write the model in "
                         "PyTorch, and pass it: alpha.to_torch(module, model)")
        return [rule(self.writer, [self.value(a) for a in step.args], step.settings,
                     self.recorder.shapes[step.results[0]])]


def _put(torch: Any, root: Any, owner: str, name: str, value: Any) -> None:
    """Sets an attribute of a part of a model, which is made where there is none."""
    for part in [p for p in owner.split(".") if p]:
        if not hasattr(root, part):
            root.add_module(part, torch.nn.Module())
        root = getattr(root, part)
    if not hasattr(root, name):
        if isinstance(value, torch.nn.Module):
            root.add_module(name, value)
        elif isinstance(value, torch.nn.Parameter):
            root.register_parameter(name, value)
        else:
            root.register_buffer(name, value)
