"""The contents of a module: which attributes are parameters, buffers and submodules, and walks over them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from alpha.core.errors import ConfigError, DTypeError, NotFoundError, message
from alpha.core.graph import state
from alpha.core.inputs.arguments import bound_methods
from alpha.core.tensor import Tensor
from alpha.nn.attributes import CONTAINERS, PLAIN, a_, check_name, hidden, is_plain, named, names_of
from alpha.nn.parameter import Parameter

if TYPE_CHECKING:
    from alpha.nn.module import Module


# Methods that subclasses define.
OVERRIDDEN = ("forward", "extra_repr", "macs")


@bound_methods()
class Contents:
    """The attributes of a Module, and their kinds.

    They are looked at when they are set; a list that grew since, at the next walk over the module.
    """

    _buffers: tuple[str, ...] = ()          # names of the attributes that are buffers
    _unsaved: tuple[str, ...] = ()          # the buffers that the state leaves out
    _class_lists: tuple[str, ...] = ()      # names of the lists, dicts and sets that its classes share
    contents_version = 0                    # how often any module of the process got or lost contents
    _needed: frozenset[str] = frozenset()   # names that alpha.nn itself defines for the class

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("alpha.nn."):
            cls._needed = frozenset(names_of(cls))
            return
        body = {name: value for name, value in vars(cls).items() if not name.startswith("__")}
        for name, value in body.items():
            if name.startswith("_") and name in cls._needed:
                raise ConfigError(message(cls.__name__, f"{name} is private to Module", "choose another name"))
            if hidden(value, (Contents, Parameter)):
                raise ConfigError(message(cls.__name__, f"attribute {name} belongs to the class: all of its modules "
                                          "would share it, and it would be in the parameters of none",
                                          f"set it in __init__: self.{name} = ..."))
        if vars(cls).get("__slots__"):
            raise ConfigError(message(cls.__name__, "it has __slots__, where parameters are not looked for",
                                      "leave __slots__ out"))
        lists = [name for name, value in body.items() if isinstance(value, CONTAINERS) and not isinstance(value, tuple)]
        cls._class_lists = (*cls._class_lists, *lists)

    # ---- setting -----------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if (value.__class__ not in PLAIN or name in self._needed or name in self._buffers
                or self.__dict__.get(name).__class__ not in PLAIN):
            self._admit(name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith("_") and name in self._needed:
            raise ConfigError(message(type(self).__name__, f"attribute {name} is private to Module", "leave it alone"))
        object.__delattr__(self, name)
        Contents.contents_version += 1
        self._forget_buffer(name)

    def _admit(self, name: str, value: Any) -> None:
        """Raises AlphaError unless `value` may be the attribute `name`; notes that it is a buffer, or is none now."""
        where, old = type(self).__name__, self.__dict__.get(name)
        if name in self._needed:
            self._check_needed(name, value)
        elif hasattr(getattr(type(self), name, None), "__set__"):
            return                          # a property: values that its setter sets come by here again
        if name in self.__dict__.get("parametrizations", ()):
            raise ConfigError(message(where, f"{name} is computed from parameters, and cannot be set", "remove_"
                                      f'parametrizations(layer, "{name}") of alpha.nn.utils makes it a plain one'))
        if isinstance(value, (Contents, Tensor)):
            check_name(where, name, type(self))
        if isinstance(value, (Contents, Tensor)) or isinstance(old, (Contents, Tensor)):
            Contents.contents_version += 1
        if isinstance(old, Parameter) and not (value is None or isinstance(value, Parameter)):
            self._refuse(name, value, "a parameter", f"nn.Parameter(...), or overwrite its elements: {name}.copy_(...)")
        if isinstance(old, Contents) and not (value is None or isinstance(value, Contents)):
            self._refuse(name, value, "a module", "a module, of a function nn.Lambda(...), or to None")
        if name in self._buffers and not (value is None or isinstance(value, Tensor)):
            self._refuse(name, value, "a buffer", "alpha.tensor(...), or del it first")
        if isinstance(value, (Parameter, Contents)):
            if isinstance(value, Contents) and any(m is self for _, m in value._paths()):
                raise ConfigError(message(where, f"attribute {name} is the module itself, or one that contains it",
                                          "to refer to it, keep a weakref.ref(...)"))
            self._forget_buffer(name)
        elif isinstance(value, Tensor):
            self._admit_tensor(name, value)
        elif isinstance(value, CONTAINERS):
            self._check_container(name, value, (Contents, Parameter if self._is_called() else Tensor))

    def _admit_tensor(self, name: str, t: Tensor) -> None:
        """Makes the attribute a buffer, unless forward sets it."""
        where = type(self).__name__
        if name in self._buffers:
            if t.requires_grad:
                raise ConfigError(message(where, f"buffer {name} is set to a tensor that requires a gradient",
                                          "detach it: t.detach()"))
        elif not self._is_called():
            if t.requires_grad:
                how = "requires a gradient" if t.is_leaf else "was computed from tensors that require a gradient"
                raise ConfigError(message(where, f"attribute {name} is no Parameter, but a tensor that {how}; nobody "
                                          "would train it", "make a parameter of the finished values, nn.Parameter(t); "
                                          "or compute it in forward; or detach it, t.detach()"))
            self._note_buffer(name)

    def _check_needed(self, name: str, value: Any) -> None:
        """Refuses to replace members that Module needs; a function may stand for members that subclasses define."""
        if name == "training":
            if not isinstance(value, bool):
                raise DTypeError(message(type(self).__name__, f"training is set to {a_(value)}, a bool is "
                                         "needed", "call train() or eval(), or choose another name"))
            return
        if name not in OVERRIDDEN or not callable(value) or isinstance(value, (Contents, type)):
            raise ConfigError(message(type(self).__name__, f"attribute {name} would be {a_(value)} in the place of "
                                      f"{name} of Module", f"choose another name, such as {name.strip('_')}_"))

    def _refuse(self, name: str, value: Any, what: str, fix: str) -> NoReturn:
        raise DTypeError(message(type(self).__name__, f"{name} is {what}, it cannot be set to {a_(value)}",
                                 f"set it to {fix}"))

    def _is_called(self) -> bool:
        return any(m is self for m in state.layers)

    def _note_buffer(self, name: str) -> None:
        if name not in self._buffers:
            object.__setattr__(self, "_buffers", (*self._buffers, name))

    def _forget_buffer(self, name: str) -> None:
        if name in self._buffers:
            object.__setattr__(self, "_buffers", tuple(n for n in self._buffers if n != name))
            object.__setattr__(self, "_unsaved", tuple(n for n in self._unsaved if n != name))

    # ---- lists -------------------------------------------------------------------------------------------------------

    def _check_container(self, name: str, value: Any, kinds: tuple[type, ...]) -> None:
        """Raises ConfigError for a list, tuple, dict or set with objects of `kinds` that are nowhere else in here."""
        found = hidden(value, kinds)
        if not found:
            return
        known = {id(v) for _, m in self._paths(checked=False) for v in (m, *vars(m).values())}
        lost = next((v for v in found if id(v) not in known), None)
        if lost is None:
            return
        kind, by_name = type(value).__name__, isinstance(value, dict)
        if isinstance(lost, Contents):
            what, fix = "layers, whose parameters nobody would find", ("ModuleDict({...})" if by_name else
                                                                      "ModuleList([...])")
        elif isinstance(lost, Parameter) or lost.requires_grad:
            what, fix = "parameters, which nobody would find", ("ParameterDict({...})" if by_name else
                                                               "ParameterList([...])")
        else:
            raise ConfigError(message(type(self).__name__, f"attribute {name} is a plain {kind} of tensors, which "
                                      "nobody would save or move", "make each a buffer: self.register_buffer(name, t)"))
        raise ConfigError(message(type(self).__name__, f"attribute {name} is a plain {kind} of {what}",
                                  f"wrap it: nn.{fix}"))

    def _check_lists(self) -> None:
        """Finds layers and parameters that were put into plain lists, dicts and sets after these were set."""
        for name, value in self.__dict__.items():
            if value.__class__ not in PLAIN and isinstance(value, CONTAINERS) and not is_plain(value):
                self._check_container(name, value, (Contents, Parameter))
        for name in self._class_lists:
            if name not in self.__dict__:
                self._check_container(name, getattr(self, name), (Contents, Parameter))

    # ---- registration by name ----------------------------------------------------------------------------------------

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Makes `value` the attribute `name`, a tensor that is saved and moved with the parameters but not trained.

        Args:
            name: not empty, without a dot.
            value: a tensor without gradient; None: it comes later, by `self.<name> = t`.
            persistent: False leaves it out of the state; it is moved all the same.
        Raises:
            ConfigError: the name is taken or none.  DTypeError: value is no Tensor.
        """
        where, held = f"{type(self).__name__}.register_buffer", vars(self) if isinstance(name, str) else {}
        check_name(where, name, type(self))
        if isinstance(value, Parameter) or not (value is None or isinstance(value, Tensor)):
            raise DTypeError(message(where, f"{name} is {a_(value)}, a Tensor without gradient is needed",
                                     f"set it by self.{name} = ..." if isinstance(value, Parameter) else
                                     "wrap it: alpha.tensor(...)"))
        if isinstance(held.get(name), (Parameter, Contents)):
            raise ConfigError(message(where, f"{name} is {a_(held[name])} already",
                                      "choose another name, or del it first"))
        if value is not None and value.requires_grad:
            raise ConfigError(message(where, f"{name} requires a gradient", "detach it: t.detach()"))
        Contents.contents_version += 1
        self._forget_buffer(name)
        self._note_buffer(name)
        if not persistent:
            object.__setattr__(self, "_unsaved", (*self._unsaved, name))
        object.__setattr__(self, name, value)

    def register_parameter(self, name: str, value: Parameter | None) -> None:
        """Does `self.<name> = value`.  Raises DTypeError unless it is a Parameter or None."""
        self._register_as(name, value, Parameter, "register_parameter")

    def add_module(self, name: str, module: Module | None) -> None:
        """Does `self.<name> = module`.  Raises DTypeError unless it is a Module or None."""
        self._register_as(name, module, Contents, "add_module")

    def _register_as(self, name: str, value: Any, kind: type, method: str) -> None:
        where = f"{type(self).__name__}.{method}"
        check_name(where, name, type(self))
        if not (value is None or isinstance(value, kind)):
            wanted = "Parameter" if kind is Parameter else "Module"
            raise DTypeError(message(where, f"{name} is {a_(value)}, a {wanted} is needed",
                                     "wrap it: nn.Parameter(...)" if kind is Parameter else "pass a module"))
        setattr(self, name, value)

    # ---- walking -----------------------------------------------------------------------------------------------------

    def _paths(self, prefix: str = "", checked: bool = True) -> Iterator[tuple[str, Module]]:
        """Yields (path, module) of this module and of all below it; a shared module once per path."""
        if checked:
            self._check_lists()
        yield prefix, self  # type: ignore[misc]
        for name, child in self.named_children():
            yield from child._paths(f"{prefix}.{name}" if prefix else name, checked)

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the parameters and buffers that are attributes of this very module."""
        for name, value in vars(self).items():
            if isinstance(value, Parameter) or (name in self._buffers and value is not None):
                yield name, value

    def _saved(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (path, tensor) of saved tensors; a shared one once per path."""
        for path, module in self._paths():
            for name, t in module._own():
                if name not in module._unsaved:
                    yield f"{path}.{name}" if path else name, t

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yields (name, module) of the modules that are attributes of this one."""
        for name, value in vars(self).items():
            if isinstance(value, Contents):
                yield name, value  # type: ignore[misc]

    def children(self) -> Iterator[Module]:
        """Yields the modules that are attributes of this one."""
        return (child for _, child in self.named_children())

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Yields (path, module) of this module (path "") and of all below it, each module once."""
        seen: set[int] = set()
        for path, module in self._paths():
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module

    def modules(self) -> Iterator[Module]:
        """Yields this module and all below it."""
        return (module for _, module in self.named_modules())

    def get_submodule(self, path: str) -> Module:
        """Returns the module at a path such as "body.0", this one at "".  Raises NotFoundError."""
        found = dict(self._paths())
        if not isinstance(path, str) or path not in found:
            close = difflib.get_close_matches(str(path)[:100], found, n=1)
            raise NotFoundError(message(type(self).__name__, f"there is no module at {named(path)}",
                                        f"did you mean {close[0]!r}?" if close else "see named_modules()"))
        return found[path]

    def _named_tensors(self, parameters: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, t in module._own():
                if isinstance(t, Parameter) == parameters and id(t) not in seen:
                    seen.add(id(t))
                    yield f"{path}.{name}" if path else name, t

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yields (path, parameter) of this module and of all below it, each parameter once."""
        return self._named_tensors(parameters=True)

    def parameters(self) -> Iterator[Parameter]:
        """Yields the parameters of this module and of all below it, each once."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (path, buffer) of this module and of all below it, each buffer once."""
        return self._named_tensors(parameters=False)

    def buffers(self) -> Iterator[Tensor]:
        """Yields the buffers of this module and of all below it, each once."""
        return (b for _, b in self.named_buffers())

    def num_parameters(self) -> int:
        """Returns the number of elements of all parameters."""
        return sum(p.size for p in self.parameters())
