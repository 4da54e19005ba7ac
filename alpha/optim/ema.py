"""Exponential moving average of a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from alpha import ops, versions
from alpha.errors import ArgumentError, CheckpointError, message, shown
from alpha.graph import no_grad
from alpha.inputs.arguments import bound_methods, checked
from alpha.inputs.kinds import Decay
from alpha.inputs.schema import check_names, fitted
from alpha.tensor import Tensor


class Model(Protocol):
    """What is averaged: an alpha.nn.Module, or whatever names its tensors like one."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


@bound_methods()
class ExponentialMovingAverage:
    """Keeps a = decay * a + (1 - decay) * p for each parameter p, and a copy of each buffer.

    Args:
        model: its parameters and buffers are those averaged; the averages start as copies of them.
        decay: in [0, 1).
    Raises:
        ConfigError: decay is not in [0, 1).
    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992.
    """

    @checked
    def __init__(self, model: Model, decay: Decay = 0.999) -> None:
        if isinstance(model, type) or not (hasattr(model, "named_parameters") and hasattr(model, "named_buffers")):
            raise ArgumentError(message("ExponentialMovingAverage", f"model is {shown(model)}, a Module is needed",
                                        "pass the model itself"))
        self.decay = decay
        self._params = dict(model.named_parameters())
        self._model = model
        self._averages: dict[str, Tensor] = {}
        self._averages = {name: _copy(t) for name, t in {**self._params, **self._buffers}.items()}

    @property
    def _buffers(self) -> dict[str, Tensor]:
        """The buffers of now: a model may set one anew."""
        found = dict(self._model.named_buffers())
        self._averages.update({name: _copy(t) for name, t in found.items() if name not in self._averages})
        return found

    def update(self) -> None:
        """Moves the averages towards the parameters of now, and copies the buffers; to be called after each step."""
        with no_grad():
            ops.ema_step([self._averages[name] for name in self._params], list(self._params.values()), decay=self.decay)
        for name, buffer in self._buffers.items():
            self._averages[name].copy_(buffer)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """For a block: the model computes with the averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, t in {**self._params, **self._buffers}.items():
            average = self._averages[name]
            t.array, average.array = average.array, t.array
            t._kin, average._kin = average._kin, t._kin
            versions.note(versions.histories(t.device, [t.array, average.array]))

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the averages by the names of the parameters and buffers; they share their elements."""
        return {name: t.detach() for name, t in self._averages.items()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Overwrites the averages.

        Raises CheckpointError if names or shapes differ, or a value is no array of numbers that the dtype here holds;
        then nothing has been loaded.
        """
        self.prepare_state_dict(values)()

    def prepare_state_dict(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Looks at what `load_state_dict` is to load, raises what that does, and returns the function that loads it."""
        check_names("ExponentialMovingAverage", values)
        wrong = sorted(name for name in {*values, *self._averages} if name not in values or name not in self._averages
                       or tuple(values[name].shape) != self._averages[name].shape)
        if wrong:
            raise CheckpointError(message("ExponentialMovingAverage", f"names or shapes differ: {', '.join(wrong)}",
                                          "resume with the model that the run was started with"))
        ready = fitted("ExponentialMovingAverage", values, self._averages)

        def load() -> None:
            with no_grad():  # values may be parameters
                for name, t in self._averages.items():
                    t.copy_(ready[name])

        return load


def _copy(t: Tensor) -> Tensor:
    return ops.zeros(t.shape, dtype=t.dtype, device=t.device).copy_(t.detach())
