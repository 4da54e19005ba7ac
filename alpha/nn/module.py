"""Module: a layer or a model, that is, parameters, buffers, submodules and a forward function.

Parameters, buffers and submodules are plain attributes; a Module finds them by looking at itself, so a subclass
needs no call of `super().__init__()` and no registration (alpha.nn.contents)::

    class Scale(nn.Module):
        def __init__(self, channels):
            self.weight = nn.Parameter(ops.ones((channels,)))

        def forward(self, x):
            return x * self.weight
"""

from __future__ import annotations

import difflib
import html
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alpha import ops
from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import AlphaError, ArgumentError, CheckpointError, DTypeError, NotDefinedError, message
from alpha.core.graph import no_grad, state
from alpha.core.inputs.arguments import bound_methods, checked
from alpha.core.inputs.dtypes import dtype_name
from alpha.core.inputs.schema import check_names, fitted
from alpha.core.leftover import has_grad
from alpha.core.tensor import Tensor
from alpha.interop import twins
from alpha.nn.attributes import a_
from alpha.nn.contents import OVERRIDDEN, Contents
from alpha.nn.hooks import Hooks, called_anew, new_args, new_output
from alpha.nn.parameter import Parameter

__all__ = ["Module", "Parameter"]


class LoadedNames(NamedTuple):
    """Names that only the module has, and that only what was loaded has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


@bound_methods(*OVERRIDDEN)
class Module(Contents, Hooks):
    """Base of layers and models; a subclass defines `forward`.

    What its attributes are:
        a Parameter, a Module      a parameter, a submodule.
        a Tensor without gradient  a buffer, saved and moved but not trained; not so where it is set while the module is
                                   being called: what forward keeps (`self.last = y`) is a plain attribute.
        another Tensor             refused, except for what forward keeps.
        a list, tuple, dict, set   refused where it holds such a thing that is nowhere else in the module.
    A parameter can be set to another Parameter or to None, a module to a Module or to None, a buffer to a Tensor or to
    None: `w.copy_(...)` overwrites elements. Names of Module's own methods are refused.

    Attributes:
        training: True after train() and at first, False after eval(); dropout and batch norm look at it.
        torch_channels_first: names of those of its parameters and buffers whose channels, last here, PyTorch stores in
            front of height and width; alpha.checkpoint turns these and no others. A class or an instance sets it.
        torch_names: what PyTorch's model calls submodules, by their names here, where these differ.
    """

    training = True
    torch_channels_first: tuple[str, ...] = ()
    torch_space = 2     # how many axes those of torch_channels_first have for height, width and the like
    torch_names: Mapping[str, str] = MappingProxyType({})

    if not TYPE_CHECKING:
        def __init__(self, *args, **kwargs):
            """Takes nothing; what a class behind this one in a list of bases takes is handed on."""
            following = super().__init__
            if (args or kwargs) and not hasattr(following, "__func__"):
                given = f"{next(iter(kwargs))} is unknown" if kwargs else f"{len(args)} arguments are given"
                raise ArgumentError(message(type(self).__name__, given, "it takes none: leave them out"))
            following(*args, **kwargs)

        __init__.__signature__ = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the output; what a call of the module runs between its hooks."""
        raise NotDefinedError(message(type(self).__name__, "it has no forward method",
                                      "define forward(self, x) in the class"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = state.layers
        state.layers = (*before, self)      # lets an error name the layer
        try:
            for hook in self._pre_hooks:
                args = new_args(self, hook, args)
            try:
                output = self.forward(*args, **kwargs)
            except TypeError as error:
                if isinstance(error, AlphaError) or (error.__traceback__ and error.__traceback__.tb_next):
                    raise   # of its body
                output = called_anew(self, args, kwargs)
            for hook in self._hooks:
                output = new_output(self, hook, args, output)
            return output
        finally:
            state.layers = before

    # ---- modes and moves ---------------------------------------------------------------------------------------------

    def apply(self, f: Callable[[Module], Any]) -> Module:
        """Calls `f` on all modules below this one, each once, then on itself, which it returns.

        A module comes after those in it, as in PyTorch: what a block sets in its layers, their own turn does not undo.
        Raises DTypeError if `f` cannot be called.
        """
        if not callable(f):
            raise DTypeError(message(f"{type(self).__name__}.apply", f"f is {a_(f)}, a function is needed",
                                     "pass a function of a module"))
        seen: set[int] = set()

        def visit(module: Module) -> None:
            seen.add(id(module))
            for child in module.children():
                if id(child) not in seen:
                    visit(child)
            f(module)

        visit(self)
        return self

    def train(self, mode: bool = True) -> Module:
        """Sets training mode (True) or inference mode (False) here and below, and returns the module.

        A class below that has a `train` of its own, which keeps a frozen part in inference mode say, is asked by it.
        Raises DTypeError for a mode that is no bool.
        """
        if not isinstance(mode, bool):
            raise DTypeError(message(f"{type(self).__name__}.train", f"mode is {a_(mode)}, a bool is needed",
                                     "call train(), or eval() for inference"))
        self._check_lists()
        object.__setattr__(self, "training", mode)
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Module:
        """Sets inference mode here and below, and returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Unfreezes (True) or freezes (False) all parameters, and returns the module."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters; set_to_none=False overwrites them with 0 instead."""
        for p in self.parameters():
            p.grad = None if set_to_none or not has_grad(p) else ops.zeros_like(p.detach())

    @checked
    def to(self, device: str | None = None, dtype: Any = None) -> Module:
        """Moves parameters and buffers to a device, casts the floating ones to a dtype, and returns the module.

        The Parameter objects stay the same, buffers are new tensors; gradients are dropped. Create the optimizer after
        this call: its own tensors follow the parameters that it is given.
        Raises:
            DTypeError: the dtype is not a floating one.  DeviceError: the device is not there.
        """
        if dtype is not None and (dtype := dtype_name(dtype)) not in FLOAT_DTYPES:
            raise DTypeError(message(f"{type(self).__name__}.to", f"dtype is {dtype}, a floating dtype is needed",
                                     'choose one such as "float32"; integers have no gradients'))
        moved = {}
        for t in [*self.parameters(), *self.buffers()]:
            m = t.detach().to(t.device if device is None else device)
            moved[id(t)] = m.astype(dtype) if dtype and m.is_floating_point else m
        for p in self.parameters():         # from here on nothing fails
            p._replace(moved[id(p)])
            p.grad = None
        for module in self.modules():
            for name, t in list(module._own()):
                if not isinstance(t, Parameter) and moved[id(t)].array is not t.array:
                    setattr(module, name, moved[id(t)])
        return self

    def cuda(self) -> Module:
        """Does `self.to("cuda")`."""
        return self.to("cuda")

    def cpu(self) -> Module:
        """Does `self.to("cpu")`."""
        return self.to("cpu")

    def half(self) -> Module:
        """Does `self.to(dtype="float16")`."""
        return self.to(dtype="float16")

    def double(self) -> Module:
        """Does `self.to(dtype="float64")`, which the CPU has."""
        return self.to(dtype="float64")

    def bfloat16(self) -> Module:
        """Does `self.to(dtype="bfloat16")`, which a GPU has."""
        return self.to(dtype="bfloat16")

    def float(self) -> Module:
        """Does `self.to(dtype="float32")`."""
        return self.to(dtype="float32")

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all parameters and buffers by path, detached; they share their elements with the module."""
        return {path: t.detach() for path, t in self._saved()}

    @checked
    def load_state_dict(self, values: Mapping[str, Any], strict: bool = True) -> LoadedNames:
        """Overwrites parameters and buffers with `values`, cast to the dtype and device that they have here.

        Args:
            values: Tensor or NumPy array by path, in the layouts of this module (NHWC, OHWI).
            strict: False permits missing and unexpected names; a shape must fit in any case.
        Returns:
            (missing_keys, unexpected_keys): names that only the module or only `values` has.
        Raises:
            CheckpointError: names or shapes differ, it lists all that differ; a value is no array of numbers that the
                dtype here holds; or a shared tensor has two values. Nothing has been loaded.
        """
        return self.prepare_state_dict(values, strict)()

    def prepare_state_dict(self, values: Mapping[str, Any], strict: bool = True
                           ) -> Callable[[], LoadedNames]:
        """Looks at what `load_state_dict` is to load, raises what that does, and returns the function that loads it."""
        where, own = f"{type(self).__name__}.load_state_dict", self.state_dict()
        check_names(where, values)
        missing = [name for name in own if name not in values]
        unexpected = [name for name in values if name not in own]
        misshapen = [name for name in own if name in values and tuple(values[name].shape) != own[name].shape]
        if misshapen or (strict and (missing or unexpected)):
            raise CheckpointError(_mismatch(type(self).__name__, own, values, missing, unexpected, misshapen, strict))
        for path, module in self.named_modules():
            for name in (f"{path}.{short}".lstrip(".") for short in module.torch_channels_first):
                if type(values.get(name)).__module__.partition(".")[0] == "torch":
                    raise CheckpointError(message(where, f"{name} comes from PyTorch, which has channels first", "load "
                                                  "it with alpha.checkpoint.from_torch_state_dict(values, model)"))
        ready = fitted(where, values, own)
        _check_shared(where, list(self._saved()), values)

        def load() -> LoadedNames:
            with no_grad():  # values may be parameters
                for path, t in self._saved():
                    if path in ready:
                        t.copy_(ready[path])
            return LoadedNames(missing, unexpected)

        return load

    # ---- what the summary asks ---------------------------------------------------------------------------------------

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        """Returns the multiply-accumulates of one call: (nominal, without those on padded zeros)."""
        return 0, 0

    def extra_repr(self) -> str:
        """Returns the settings that the repr shows in parentheses."""
        return ""

    def _repr_html_(self) -> str:
        """Returns what notebooks show."""
        return f"<pre>{html.escape(repr(self))}</pre>"

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            held = vars(self).get("parametrizations")   # of alpha.nn.utils: parameters that are computed
            if held is not None and name in held:
                return vars(held)[name]()
            return twins.attribute(self, type(self).__name__, name, twins.MODULE)

    def __repr__(self) -> str:
        children = list(self.named_children())
        if not children:
            return f"{type(self).__name__}({self.extra_repr()})"
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in children]
        return f"{type(self).__name__}({self.extra_repr()}\n  " + "\n  ".join(lines) + "\n)"


@contextmanager
def modes_kept(model: Module) -> Iterator[None]:
    """For a block: whatever it sets, each module has its own mode back afterwards, training or inference."""
    before = [(m, m.training) for m in model.modules()]
    try:
        yield
    finally:
        for m, training in before:
            object.__setattr__(m, "training", training)


@contextmanager
def evaluating(model: Module) -> Iterator[Module]:
    """For a block: the whole model is in inference mode; afterwards each module has its own mode back."""
    with modes_kept(model):
        yield model.eval()


def _check_shared(where: str, own: list[tuple[str, Tensor]], values: Mapping[str, Any]) -> None:
    """Raises CheckpointError where one parameter, shared under two names, is given two values."""
    first: dict[int, str] = {}
    for path, t in own:
        other = first.setdefault(id(t), path) if path in values else path
        if other != path and values[other] is not values[path]:
            a, b = np.asarray(values[other]), np.asarray(values[path])
            if not ((a == b) | ((a != a) & (b != b))).all():
                raise CheckpointError(message(where, f"{other} and {path} are one tensor in the module, and have "
                                              "different values", "load it where nothing is shared, or drop one "
                                              "of the two with strict=False"))


def _mismatch(where: str, own: Mapping[str, Tensor], values: Mapping[str, Any], missing: list[str],
              unexpected: list[str], misshapen: list[str], strict: bool) -> str:
    """The message of load_state_dict: everything that differs, at once."""
    found = []
    if missing:
        found.append(f"{len(missing)} missing: {', '.join(missing)}")
    if unexpected:
        close = {name: difflib.get_close_matches(name, missing or list(own), n=1) for name in unexpected}
        found.append(f"{len(unexpected)} unexpected: " + ", ".join(
            f"{name} (did you mean {guess[0]}?)" if guess else name for name, guess in close.items()))
    if misshapen:
        found.append(f"{len(misshapen)} of another shape: " + ", ".join(
            f"{name} {tuple(values[name].shape)}, the module has {own[name].shape}" for name in misshapen))
    skip = ", or pass strict=False to skip names" if strict and not misshapen else (
        "; strict=False skips names, a shape must fit" if strict else "")
    drop = f"; or drop {misshapen[0]} from the values" if misshapen and not strict else ""
    fix = f"load it into the model that it was saved from{skip}{drop}"
    if any(_moved_channels(tuple(values[name].shape)) == own[name].shape for name in misshapen):
        fix = "filters look like PyTorch's OIHW: alpha.checkpoint.from_torch_state_dict(values, model) converts them"
    return message(f"{where}.load_state_dict", "; ".join(found), fix)


def _moved_channels(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else ()
