"""Callback, the base of work beside the training, and objects that may be given in its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.registry import did_you_mean
from alpha.core.tensor import Tensor
from alpha.training.history import Row

if TYPE_CHECKING:
    from alpha.training.trainer import Trainer

# Names of the four moments in other libraries.
ELSEWHERE = {
    "on_train_begin": "on_start", "on_train_start": "on_start", "on_fit_start": "on_start", "on_begin": "on_start",
    "on_train_end": "on_end", "on_fit_end": "on_end", "on_finish": "on_end",
    "on_batch_end": "on_step", "on_train_batch_end": "on_step", "on_step_end": "on_step",
    "on_epoch_end": "on_epoch", "on_train_epoch_end": "on_epoch", "on_validation_end": "on_epoch",
    "on_validation_epoch_end": "on_epoch", "on_test_end": "on_epoch",
}


class Callback:
    """Work beside the training; each method may be left as it is.  `run` is the Trainer.

    `run.model`, `run.optimizer` and `run.progress` may be looked at and changed; `run.stop()` ends the run. A method
    `on_...` of another name is refused when the run starts, as it would not be called.
    """

    def on_start(self, run: Trainer) -> None:
        """Before the first step."""

    def on_step(self, run: Trainer, loss: Tensor) -> None:
        """After each step.  loss: its mean loss, shape (), on the device; to read it waits for the device."""

    def on_epoch(self, run: Trainer, row: Row) -> None:
        """After each epoch and its validation.  row: the figures measured."""

    def on_end(self, run: Trainer) -> None:
        """After the last epoch."""


# The methods of a callback, and their arguments.
MOMENTS = {"on_start": ("run",), "on_step": ("run", "loss"), "on_epoch": ("run", "row"), "on_end": ("run",)}


class _OnEpoch(Callback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Trainer, Row], Any]) -> None:
        self.function = function

    def on_epoch(self, run: Trainer, row: Row) -> None:
        self.function(run, row)


class Lines(Callback):
    """Prints a line per epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch(self, run: Trainer, row: Row) -> None:
        parts = [f"{name.replace('_', ' ')} {row[name]:.4f}" for name in row
                 if name.startswith(("train_", "val_", "ema_")) and row[name] is not None]
        print(f"epoch {row['epoch']}/{self.epochs}  {'  '.join(parts)}  lr {row['lr']:.2g}  {row['seconds']:.1f} s",
              flush=True)

    def on_end(self, run: Trainer) -> None:
        if run.why:
            print(f"the run ends: {run.why}", flush=True)


def as_callbacks(given: Any) -> list[Callback]:
    """Returns the argument `callbacks` as a list of Callback objects.  Raises ConfigError."""
    return [_callback(one) for one in (given if isinstance(given, (list, tuple)) else [given])]


def _callback(given: Any) -> Callback:
    if isinstance(given, Callback):
        found = given
    elif not callable(given) or isinstance(given, type):
        raise ConfigError(message("fit", f"a callback is {shown(given)}", "pass alpha.training.Callback objects, or "
                                  "functions (run, row)"))
    else:
        ignored = [name for name in MOMENTS if callable(getattr(given, name, None))]
        if ignored:
            raise ConfigError(message("fit", f"a callback is {shown(given)}, a function with a method {ignored[0]} "
                                      "that nobody would call", "derive its class from alpha.training.Callback"))
        _check_taken("fit", "a callback", given, MOMENTS["on_epoch"])
        found = _OnEpoch(given)
    check_callbacks([found])
    return found


def check_callbacks(callbacks: Iterable[Callback]) -> Sequence[Callback]:
    """Returns callbacks.  Raises ConfigError for a method that would not be called, or cannot be called."""
    found = list(callbacks)
    for callback in found:
        kind = type(callback).__name__
        for name in dir(callback):
            if name.startswith("on_") and name not in MOMENTS and callable(getattr(callback, name, None)):
                near = f"; did you mean {ELSEWHERE[name]!r}?" if name in ELSEWHERE else did_you_mean(name, MOMENTS)
                raise ConfigError(message("callbacks", f"{kind} has a method {name!r}, which nobody would call{near}",
                                          f"use one of {', '.join(MOMENTS)}; a helper of its own needs a name without "
                                          "on_ in front"))
        for name, names in MOMENTS.items():
            _check_taken("callbacks", f"{kind}.{name}", getattr(callback, name), names)
    return found


def _check_taken(where: str, what: str, function: Any, names: Sequence[str]) -> None:
    """Raises ConfigError for a function that cannot be called with arguments of these names."""
    if not callable(function):
        raise ConfigError(message(where, f"{what} is {shown(function)}, a method is needed", "define it as a method"))
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise ConfigError(message(where, f"{what} does not take ({', '.join(names)}): {error}",
                                  f"let it take {' and '.join(names)}")) from error
    except ValueError:      # of a built-in function, which does not tell its parameters
        pass
