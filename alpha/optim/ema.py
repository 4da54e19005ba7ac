"""Exponential moving average of a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from alpha import ops
from alpha.core import versions
from alpha.core.errors import ArgumentError, CheckpointError, ConfigError, message, shown
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import bound_methods, checked
from alpha.core.inputs.kinds import Decay
from alpha.core.inputs.schema import check_names, fitted
from alpha.core.tensor import Tensor
from alpha.ops.update import state_dtype


class Model(Protocol):
    """What is averaged: an alpha.nn.Module, or whatever names its tensors like one."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


@bound_methods()
class ExponentialMovingAverage:
    """Keeps a = decay * a + (1 - decay) * p for each parameter p, and a copy of each buffer.

    Args:
        model: its parameters and buffers are those averaged; the averages start as copies of them. An average of a
            float16 or bfloat16 parameter is float32: 16 bits would round 0.001 of a difference away.
        decay: in [0, 1).
    Raises:
        ConfigError: decay is not in [0, 1); or, whenever it is used, the model has other parameters than then.
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
        self._averages = {name: _copy(t, state_dtype(t.dtype)) for name, t in self._params.items()}
        self._averages.update({name: _copy(t) for name, t in self._buffers.items()})
        self._seen = self._contents

    @property
    def _contents(self) -> int | None:
        """A number that is another one once any module has got or lost contents; None where the model has none."""
        return getattr(self._model, "contents_version", None)

    def _check_parameters(self) -> None:
        """Raises ConfigError where the model has parameters that are not averaged, or those averaged no longer."""
        if self._seen is not None and self._seen == self._contents:
            return
        found = dict(self._model.named_parameters())
        differ = [name for name in {**self._params, **found} if self._params.get(name) is not found.get(name)]
        if differ:
            name = differ[0]
            then, now = (tensors[name].shape if name in tensors else None for tensors in (self._params, found))
            what = (f"the model has {name} of shape {now}, which is not averaged" if then is None else
                    f"{name} of shape {then} is averaged, which the model no longer has" if now is None else
                    f"{name} of shape {then} is averaged, the model has another one of shape {now} now")
            raise ConfigError(message("ExponentialMovingAverage", what, "make the average once the model has all of "
                                      "its layers, and anew where one is replaced", differing=len(differ)))
        self._seen = self._contents

    @property
    def _buffers(self) -> dict[str, Tensor]:
        """The buffers of now: a model may set one anew."""
        found = dict(self._model.named_buffers())
        self._averages.update({name: _copy(t) for name, t in found.items() if name not in self._averages})
        return found

    def update(self) -> None:
        """Moves the averages towards the parameters of now, and copies the buffers; to be called after each step."""
        self._check_parameters()
        with no_grad():
            averages = [self._averages[name] for name in self._params]
            now = [p.astype(a.dtype) for a, p in zip(averages, self._params.values())]
            ops.ema_step(averages, now, decay=self.decay)
        for name, buffer in self._buffers.items():
            self._averages[name].copy_(buffer)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """For a block: the model computes with the averages, rounded to the dtypes of its parameters."""
        self._check_parameters()
        with no_grad():
            pairs = [(t, self._averages[name].astype(t.dtype)) for name, t in {**self._params, **self._buffers}.items()]
        _swap(pairs)
        try:
            yield
        finally:
            _swap(pairs)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the averages by the names of the parameters and buffers; they share their elements."""
        self._check_parameters()
        return {name: t.detach() for name, t in self._averages.items()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Overwrites the averages.

        Raises CheckpointError if names or shapes differ, or a value is no array of numbers that the dtype here holds;
        then nothing has been loaded.
        """
        self.prepare_state_dict(values)()

    def prepare_state_dict(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Looks at what `load_state_dict` is to load, raises what that does, and returns the function that loads it."""
        self._check_parameters()
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


def _swap(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for t, average in pairs:
        t.array, average.array = average.array, t.array
        t._kin, average._kin = average._kin, t._kin
        versions.note(versions.histories(t.device, [t.array, average.array]))


def _copy(t: Tensor, dtype: Any = None) -> Tensor:
    return ops.zeros(t.shape, dtype=dtype or t.dtype, device=t.device).copy_(t.detach().astype(dtype or t.dtype))
