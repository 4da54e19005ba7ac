"""Figures measured beside the loss.

A metric is a function (outputs, targets) -> Tensor: of shape (), a mean over the batch, or (N,), one number per sample.
It is computed with ops in the training step. One with two halves, as `accuracy`, leaves the comparison with the targets
to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from alpha import ops
from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.arguments import bound
from alpha.core.inputs.registry import takes_both
from alpha.core.tensor import Tensor

Metric = Callable[[Tensor, Tensor], Any]


class Accuracy:
    """The share of samples, or of the pixels of maps, whose largest output is their label's.

    outputs (N, C), targets (N,), int64; or (N, H, W, C) and (N, H, W); or targets that are probabilities, of the shape
    of outputs, of which the largest is the label. A label that a loss ignores counts as missed.
    """

    __name__ = "accuracy"

    def prepare(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the predicted classes, shape (N,), int64; or of maps the shares that are right, (N,), float32."""
        predicted = ops.argmax(outputs, axis=-1)
        if predicted.ndim == 1:
            return predicted
        wanted = ops.argmax(targets, axis=-1) if targets.is_floating_point else targets
        return ops.mean((predicted == wanted).astype("float32"), axis=tuple(range(1, predicted.ndim)))

    def measure(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns which of them are right, shape (N,), bool; or the shares as they are."""
        if predicted.dtype.kind == "f":
            return predicted
        return predicted == (targets.argmax(-1) if targets.ndim > 1 else targets)

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Returns the accuracy of a batch as a number."""
        return float(self.measure(self.prepare(outputs, targets).numpy(), targets.numpy()).mean())


accuracy = Accuracy()


class OverEpoch:
    """A metric of all samples of a validation at once, computed by NumPy; `over_epoch` makes one."""

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], Any]) -> None:
        takes_both("over_epoch", f"the function {shown(function)}", function)
        self.function = function
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Returns the number that the function gives.  Raises ConfigError where it gives none."""
        value = self.function(outputs, targets)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ConfigError(message("metrics", f"{self.__name__} returned {shown(value)}, a number is needed",
                                      "return one figure of all samples; per_class has those of each class")) from None


@bound
def over_epoch(function: Callable[[np.ndarray, np.ndarray], Any]) -> OverEpoch:
    """Returns a metric that is computed once, of all samples of a validation: not a mean of batches.

        f1 = over_epoch(lambda outputs, targets: f1_score(targets, outputs.argmax(1), average="macro"))
        fit(model, train, val, metrics={"accuracy": accuracy, "f1": f1})

    The columns are val_f1 and, with a moving average, ema_val_f1; train_f1 is empty, as weights change in an epoch.
    Args:
        function: (outputs, targets) -> a number; both are NumPy's, shapes (N, ...), of NumPy or of another library.
    Raises:
        ConfigError: it does not take the two, or gives no number.
    """
    if not callable(function):
        raise ConfigError(message("over_epoch", f"{shown(function)} is no function", "pass a function of two arrays"))
    return OverEpoch(function)


def named(metrics: Any) -> dict[str, Metric]:
    """Returns metrics by name: from a dict, or from functions, which have one.  Raises ConfigError."""
    given = [] if isinstance(metrics, Mapping) else [
        (getattr(m, "__name__", type(m).__name__), m)
        for m in (metrics if isinstance(metrics, Sequence) and not isinstance(metrics, str) else [metrics])]
    found = dict(metrics) if isinstance(metrics, Mapping) else dict(given)
    twice = [name for k, (name, _) in enumerate(given) if name in dict(given[:k])]
    if twice:
        raise ConfigError(message("metrics", f"two of them are called {twice[0]!r}, a column has room for one",
                                  'give names: {"first": f, "second": g}'))
    for name, metric in found.items():
        if not callable(metric) or name == "loss":
            raise ConfigError(message("metrics", f"{name!r} is {metric!r:.60}, a function (outputs, targets) is needed",
                                      'pass functions, or a dict: {"error": lambda outputs, targets: ...}'))
        takes_both("metrics", f"the metric {name}", getattr(metric, "prepare", metric))
    return found


def prepared(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the device's part of a metric."""
    value = getattr(metric, "prepare", metric)(outputs, targets)
    if not isinstance(value, Tensor) or value.ndim > 1 or not value.numel():
        raise ConfigError(message("metrics", f"{getattr(metric, '__name__', metric)} returned {shown(value)}, a Tensor "
                                  "of shape () or (N,) is needed", "compute it with ops"))
    return value.detach()


def total(metric: Metric, found: np.ndarray, targets: np.ndarray, count: int) -> float:
    """Returns the sum of a metric over the samples of a batch; whole where it counts.

    Args:
        found: the result of `prepared`, on the host.
        targets: on the host; looked at if the metric compares there.
    """
    if hasattr(metric, "measure"):
        found = metric.measure(found, targets)
    if found.ndim == 0:
        return float(found) * count
    return int(found.sum()) if found.dtype == bool else float(found.sum(dtype=np.float64)) * count / len(found)
