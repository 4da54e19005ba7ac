"""PyTorch's export of a model, read into a Graph: in-place operators become plain ones, names are ATen's."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alpha.core.errors import ConfigError, GraphError
from alpha.interop.pytorch.graph import Graph, Node, Place, refuse
from alpha.interop.pytorch.writes import Family

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SKIPPED = ("_assert", "sym_constrain", "_check", "sym_size", "sym_numel")
_TORCH_HINT = "torch 2.6 or later is needed: pip install torch"


def torch_module() -> Any:
    """Returns the package torch.  Raises ConfigError where it is not installed or has no export."""
    try:
        import torch
        import torch.export
        torch.export.Dim.AUTO     # noqa: B018
    except (ImportError, AttributeError) as error:
        raise refuse("PyTorch is not installed, or is older than 2.6", _TORCH_HINT) from error
    return torch


def traced(model: Any, examples: tuple[Any, ...], training: bool) -> Graph:
    """Returns the graph of a torch.nn.Module in one mode, with the number of samples left open.

    Raises:
        GraphError: its operators depend on the elements of its input.
        ConfigError: PyTorch cannot export it, or it changes a parameter, a buffer or a view in place.
    """
    torch = torch_module()
    program = _exported(torch, model, examples, training)
    return _Reader(torch, program).read()


@contextmanager
def _mode(torch: Any, model: Any, training: bool) -> Iterator[None]:
    """For a block: the model is in one mode, and attention is made of single operators."""
    before = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        model.train(training)
        with torch.enable_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in before:
            module.training = mode


def _exported(torch: Any, model: Any, examples: tuple[Any, ...], training: bool) -> Any:
    """Returns torch's exported program; by the tracer of torch.fx where export does not follow the Python code."""
    free = torch.export.Dim.AUTO
    shapes = tuple([{0: free} if example.ndim and example.shape[0] > 1 else None for example in examples])
    first: Exception | None = None
    for prepare in (lambda: model, lambda: _by_fx(model)):
        try:
            with _mode(torch, model, training):
                return torch.export.export(prepare(), examples, dynamic_shapes=_spread(model, shapes), strict=False)
        except Exception as error:      # whatever the model's code or torch's tracer raises
            first = first or error
            if _depends_on_elements(error):
                break
    assert first is not None
    place = _place_of(torch, first)
    where = f" at {place}" if place else ""
    if _depends_on_elements(first):
        raise refuse(f"what the model does depends on the elements of its input{where}: it asks for the value of a "
                     "tensor", "choose by torch.where, or take the decision out of forward", GraphError) from first
    text = (str(first).strip().splitlines() or [""])[0] or type(first).__name__
    raise refuse(f"PyTorch cannot export the model{where}: {type(first).__name__}: {text:.200}",
                 "make torch.export.export(model, (example,)) work, which says more") from first


def _spread(model: Any, shapes: tuple[Any, ...]) -> Any:
    """Returns the open axes as torch asks for them: values of *args are one tuple."""
    import inspect

    for k, parameter in enumerate(inspect.signature(model.forward).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return (*shapes[:k], shapes[k:])
    return shapes


def _by_fx(model: Any) -> Any:
    from torch.fx import symbolic_trace

    return symbolic_trace(model)


def _depends_on_elements(error: BaseException) -> bool:
    text = f"{type(error).__name__}: {error}"
    return any(part in text for part in ("data-dependent", "DataDependent", "_local_scalar_dense"))


def _is_torch(torch: Any, path: str) -> bool:
    """Tells whether a file of a traceback is one of PyTorch, of Python, or of this room, and no code of the user."""
    inside = str(Path(torch.__file__).parent), str(Path(__file__).parent), "torch/", "<"
    return path.startswith(inside) or Path(path).name == "contextlib.py"


def _place_of(torch: Any, error: BaseException) -> str:
    """Returns the last line of the user's code in the traceback of an error, "file:line"."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not _is_torch(torch, path):
            found = f"{Path(path).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


class _Reader:
    """Reads an exported program, node by node."""

    def __init__(self, torch: Any, program: Any) -> None:
        self.torch, self.program, self.graph = torch, program, Graph()
        self.values: dict[Any, Any] = {}    # torch's node -> Node, size, or a tuple of these
        self.families = Family()            # which of torch's nodes share memory
        self.wrong: list[str] = []

    def read(self) -> Graph:
        """Returns the graph."""
        order = list(self.program.graph.nodes)
        self.families.look_at(order)
        for node in order:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node)
            elif node.op == "output":
                self._output(node)
            elif node.op == "get_attr":
                self.values[node] = self._constant(node, getattr(self.program.graph_module, str(node.target)))
            else:
                self._call(node)
        if self.wrong:
            raise refuse("; ".join(dict.fromkeys(self.wrong)), "write what is changed in place as a new value: x = x "
                         "+ 1; keep statistics outside of the model")
        self.graph.drop_unread()
        return self.graph

    # ---- inputs and outputs ------------------------------------------------------------------------------------------

    def _placeholder(self, node: Any) -> Any:
        spec = next(s for s in self.program.graph_signature.input_specs if s.arg.name == node.name)
        kind, value = spec.kind.name, node.meta.get("val")
        if kind == "USER_INPUT" and not hasattr(value, "shape"):
            return value                # a number or None among the inputs
        if kind == "CONSTANT_TENSOR":
            return self._constant(node, self.program.constants[spec.target])
        op = {"USER_INPUT": "input", "PARAMETER": "parameter", "BUFFER": "buffer"}.get(kind)
        if op is None:
            raise refuse(f"the model has an input of the kind {kind}", "pass tensors to forward, and nothing else")
        made = self._made(node, op, {}, path=str(spec.target or ""))
        if op == "input":
            self.graph.inputs.append(made)
            for axis, size in enumerate(made.shape):
                if not isinstance(size, int) and size.is_Symbol:
                    self.graph.symbols.setdefault(str(size), (made, axis))
        else:
            self.graph.nodes.append(made)
        return made

    def _constant(self, node: Any, value: Any) -> Node:
        made = self._made(node, "constant", {}, path=str(node.name), value=value)
        self.graph.constants[made.path] = value.detach().cpu()
        self.graph.nodes.append(made)
        return made

    def _output(self, node: Any) -> None:
        specs = self.program.graph_signature.output_specs
        values = [self._read(value) for value in node.args[0]]
        outputs = [value for spec, value in zip(specs, values) if spec.kind.name == "USER_OUTPUT"]
        tree = self.torch.utils._pytree.tree_unflatten(outputs, self.program.call_spec.out_spec)
        self.graph.output = _plain(tree)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _call(self, node: Any) -> None:
        value = node.meta.get("val")
        name = getattr(getattr(node.target, "_schema", None), "name", str(node.target)).rpartition("::")[2]
        if node.target is operator.getitem:
            self._item(node)
        elif isinstance(value, (self.torch.SymInt, int)) and not isinstance(value, bool):
            self.values[node] = self._size(value)
        elif not name.startswith(_SKIPPED) and (value is not None or hasattr(node.target, "_schema")):
            self._operator(node, name)

    def _item(self, node: Any) -> None:
        whole, index = self._read(node.args[0]), node.args[1]
        if isinstance(whole, Node):
            self.values[node] = self._made(node, "item", {"input": whole, "index": index})
            self.graph.nodes.append(self.values[node])
        else:
            self.values[node] = whole[index]

    def _operator(self, node: Any, name: str) -> None:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            made = self._made(node, str(getattr(node.target, "__name__", node.target)), {})
            self.graph.nodes.append(made)
            self.values[node] = made
            return
        args = {}
        for k, argument in enumerate(schema.arguments):
            given = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            args[argument.name] = self._read(given)
        changed = node.args[0] if name.endswith("_") and not name.startswith("__") else None
        if changed is not None and self._is_counter(changed):
            return
        made = self._made(node, name.rstrip("_") if changed is not None else name, args,
                          schema.overload_name or "default")
        self.graph.nodes.append(made)
        self.values[node] = made
        if changed is not None:
            self._overwrite(node, changed, made)

    def _is_counter(self, node: Any) -> bool:
        held = self.values.get(node)
        return isinstance(held, Node) and held.path.endswith("num_batches_tracked")

    def _overwrite(self, node: Any, changed: Any, made: Node) -> None:
        """Makes `made` the value of a tensor that an operator changes in place, and of the tensor it is a slice of."""
        held = self.values[changed]
        if isinstance(held, Node) and held.op in ("parameter", "buffer"):
            self.wrong.append(f"forward changes {held.path} at {made.place}")
            return
        root, writes, later = self.families.written(node, changed, self._size)
        if writes is None:
            self.wrong.append(f"a view is changed in place at {made.place}, and its whole is read afterwards")
            return
        if writes and later:
            base = self.values[root]
            whole = Node("put", {"input": base, "writes": writes, "value": made}, base.shape, base.dtype, made.place)
            self.graph.nodes.append(whole)
            self.values[root] = whole
        for other in self.families.alike(changed):
            self.values[other] = made

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def _made(self, node: Any, op: str, args: dict[str, Any], overload: str = "", path: str = "", value: Any = None
              ) -> Node:
        value = node.meta.get("val") if value is None else value
        shape = tuple([self._size(n) for n in value.shape]) if hasattr(value, "shape") else ()
        dtype = str(value.dtype).rpartition(".")[2] if hasattr(value, "dtype") else ""
        return Node(op, args, shape, dtype, self._place(node), overload, path)

    def _place(self, node: Any) -> Place:
        frames = [(path, line) for path, line in _FRAME.findall(node.meta.get("stack_trace") or "")
                  if not _is_torch(self.torch, path)]
        stack = [entry for entry in (node.meta.get("nn_module_stack") or {}).values() if "hook" not in entry[0]]
        layer, kind = stack[-1] if stack else ("", "")
        line = f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
        kind = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        return Place(line, re.sub(r"@\d+$", "", layer), kind)

    def _size(self, value: Any) -> Any:
        """Returns a size as an int or as a sympy expression."""
        if isinstance(value, int):
            return value
        found = value.node.expr
        if any(str(symbol).startswith(("u", "zuf")) for symbol in found.free_symbols):
            raise refuse("the size of a tensor depends on the elements of another one",
                         "take the selection of elements out of forward", GraphError)
        return int(found) if found.is_number else found

    def _read(self, value: Any) -> Any:
        """Returns an argument with Nodes and sizes in it."""
        if type(value).__name__ == "Node" and hasattr(value, "meta"):
            return self.values[value] if value in self.values else self._size(value.meta["val"])
        if isinstance(value, (list, tuple)):
            return [self._read(item) for item in value]
        if isinstance(value, self.torch.SymInt):
            return self._size(value)
        if isinstance(value, self.torch.dtype):
            return str(value).rpartition(".")[2]
        if isinstance(value, (self.torch.device, self.torch.layout, self.torch.memory_format)):
            return None
        return value


def _plain(tree: Any) -> Any:
    """Returns an output whose named tuples are tuples and whose mappings are dicts."""
    if isinstance(tree, tuple):
        return tuple([_plain(item) for item in tree])
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if isinstance(tree, dict):
        return {key: _plain(item) for key, item in tree.items()}
    if tree is None or isinstance(tree, (Node, int, float, str)):
        return tree
    raise refuse(f"forward returns {type(tree).__name__}", "return tensors, in tuples, lists and dicts", ConfigError)
