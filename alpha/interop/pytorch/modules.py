"""The classes that converted models are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import bound
from alpha.core.tensor import Tensor
from alpha.nn import Module, Parameter


class Part(Module):
    """A part of a model whose layers, parameters and buffers are given by name; the model's forward calls them.

    Args:
        entries: modules, parameters and tensors, which become buffers; named "0", "1", ... or, in a dict, by its keys.
        channels_first: names of parameters and buffers that PyTorch has with channels in front of height and width.
        unsaved: names of buffers that are no part of the state.
        named: more entries.
    `part[0]` and `part["name"]` are entries.
    """

    @bound
    def __init__(self, *entries: Any, channels_first: tuple[str, ...] = (), unsaved: tuple[str, ...] = (),
                 **named: Any) -> None:
        for k, entry in enumerate(entries):
            self._take(entry if isinstance(entry, Mapping) else {str(k): entry}, unsaved)
        self._take(named, unsaved)
        if channels_first:
            self.torch_channels_first = channels_first

    def _take(self, entries: Mapping[str, Any], unsaved: tuple[str, ...]) -> None:
        for name, value in entries.items():
            if isinstance(value, Module):
                self.add_module(name, value)
            elif isinstance(value, Tensor) and not isinstance(value, Parameter):
                self.register_buffer(name, value, persistent=name not in unsaved)
            else:
                self.register_parameter(name, value)

    def __getitem__(self, key: int | str) -> Any:
        return getattr(self, str(key))


class Converted(Part):
    """A model that alpha.from_torch made.

    Attributes:
        samples: the number of samples that forward takes; 0: any.
        permutes: places where elements are put into another order of axes in each call; () is the best there is.
        origin: the class of PyTorch's model.
        code: the code of the class; from_torch(..., write=path) puts it into a file.
    """

    permutes: tuple[str, ...] = ()
    samples = 0
    origin = ""
    code = ""

    def check_samples(self, x: Tensor) -> None:
        """Raises ShapeError unless x has the number of samples that the model was exported for."""
        if x.ndim and x.shape[0] != self.samples:
            raise ShapeError(message(type(self).__name__, f"x has {x.shape[0]} samples, the model was converted for "
                                     f"{self.samples}: its code depends on their number", "pass as many, or convert "
                                     "with such an example", x=x.shape))

    def extra_repr(self) -> str:
        count = len(self.permutes)
        only = f", {self.samples} samples alone" if self.samples else ""
        return f"from {self.origin}, {count} permute{'s' * (count != 1)} left{only}"
