"""fit: the training of a model in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from alpha import optim
from alpha.config import config
from alpha.data.loader import DataLoader
from alpha.data.sets import Dataset
from alpha.errors import ConfigError, message, shown
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Count, NonNegative, Seed
from alpha.inputs.registry import did_you_mean, find, parameters_of
from alpha.nn import Module
from alpha.optim.schedule import Schedule
from alpha.precision import MODES
from alpha.precision import precision as in_precision
from alpha.training.metrics import Metric, accuracy, named
from alpha.training.registries import OPTIMIZERS, SCHEDULES, find_loss, make_optimizer, make_schedule
from alpha.training.trainer import Callback, History, Row, Trainer


@checked
def fit(model: Module, train_data: Any, val_data: Any = None, *, epochs: Count = 1, batch_size: Count = 32,
        optimizer: Any = "sgd", lr: Any = None, schedule: Any = "constant", warmup_steps: int = 0,
        loss: Any = "cross_entropy", metrics: Any = None, callbacks: Any = (), device: str | None = None,
        precision: str | None = None, augment: Any = None, mean: Any = 0.0, std: Any = 1.0,
        max_steps: Count | None = None, clip: NonNegative = 0.0, ema: float = 0.0, seed: Seed = 0, workers: int = 0,
        processes: bool = False, progress: bool = True, **settings: Any) -> History:
    """Trains a model and returns what was measured, one row per epoch.

        history = fit(net, (images, labels), (test_images, test_labels), epochs=5, optimizer="adam", lr=1e-3)
        history["val_accuracy"]

    Args:
        model: computes the outputs of a batch.
        train_data, val_data: (images, labels), or what alpha.data.DataLoader takes; or a DataLoader, or any object with
            a length that yields batches (x, y), anew each time it is iterated over.
        epochs, max_steps: passes over train_data; it ends after max_steps steps, if epochs has not ended before.
        batch_size, augment, mean, std, seed, workers, processes: of the DataLoader that is made of the data.
        optimizer: a name, an Optimizer, or a class or function `(named_parameters, lr=...)`.
        lr: a number, or a schedule (a function of the step); default that of the optimizer.
        schedule, warmup_steps: course of the learning rate where lr is a number: a name, or a function as
            `register_schedule` describes.
        loss: a name, a function (outputs, targets) -> Tensor of shape (), or a module.
        metrics: functions (outputs, targets), by name or in a list; default accuracy for cross_entropy, else none.
        callbacks: alpha.training.Callback objects, or functions (run, row) that are called after each epoch.
        device, precision: where and how to compute; default where the model is, and as configured.
        clip: largest norm of the whole gradient; 0 is off.
        ema: decay of the moving average of the weights, which is validated; 0 is off.
        progress: whether each epoch is printed.
        settings: more of the optimizer (momentum, weight_decay, ...) and of the schedule (gamma, step_size, ...).
    Returns:
        the History; the model is left in training mode as it was, with the last weights.
    Raises:
        ConfigError: a name or a setting is unknown.
        AnomalyError: the loss is not finite.
    """
    was_training = model.training
    if device is not None:
        model.to(device)
    place = next((p.device for p in model.parameters()), device or "cpu")
    loader = dict(batch_size=batch_size, device=place, mean=mean, std=std, seed=seed, workers=workers,
                  processes=processes)
    train = as_batches("train_data", train_data, shuffle=True, augment=augment, **loader)
    val = None if val_data is None else as_batches("val_data", val_data, **loader)
    made = _optimizer(model, optimizer, lr, schedule, warmup_steps, settings,
                      dict(total_steps=epochs * len(train), steps_per_epoch=len(train), epochs=epochs))
    mode = precision or config.precision
    run = Trainer(model, made, find_loss("fit", loss), _metrics(metrics, loss), epochs=epochs,
                  steps_per_epoch=len(train), max_steps=max_steps, clip=clip,
                  ema=optim.ExponentialMovingAverage(model, ema) if ema else None,
                  scaler=optim.LossScaler(place) if mode in MODES and MODES[mode].scales_loss else None)
    try:
        with in_precision(precision) if precision else nullcontext():
            return run.run(lambda epoch, step: _epoch_of(train, epoch, step),
                           lambda: None if val is None else run.evaluate(val),
                           [*([_Lines(epochs)] if progress else []), *map(_callback, _listed(callbacks))])
    finally:
        model.train(was_training)
        for made_here, data in ((train, train_data), (val, val_data)):
            if made_here is not data and isinstance(made_here, DataLoader):
                made_here.close()


def as_batches(name: str, data: Any, **loader: Any) -> Any:
    """Returns data as an iterable of batches with a length.  Raises ConfigError, DataError."""
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, (tuple, list, Dataset)) or hasattr(data, "__getitem__"):
        return DataLoader(data, **loader)
    if not hasattr(data, "__len__") or not hasattr(data, "__iter__") or not len(data):
        raise ConfigError(message("fit", f"{name} is {shown(data)}, batches with a length, or (images, labels), are "
                                  "needed", "pass arrays, an object with __len__ and __getitem__, or a DataLoader"))
    return data


def _epoch_of(batches: Any, epoch: int, step: int) -> Iterable[Any]:
    return batches.batches(epoch, step) if isinstance(batches, DataLoader) else iter(batches)


def _optimizer(model: Module, what: Any, lr: Any, schedule: Any, warmup_steps: int, settings: dict[str, Any],
               course: dict[str, int]) -> optim.Optimizer:
    """Returns the optimizer of the call, with its schedule.  Raises ConfigError for a setting that nobody takes."""
    if isinstance(what, optim.Optimizer):
        if lr is not None or settings or schedule != "constant":
            raise ConfigError(message("fit", "lr, schedule and settings go with an optimizer's name, it is "
                                      f"{type(what).__name__}", "set them where the optimizer is made"))
        own = {id(p) for p in model.parameters()}
        if not any(id(p) in own for group in what.param_groups for p in group["params"]):
            raise ConfigError(message("fit", f"the {type(what).__name__} has none of the model's {len(own)} parameters",
                                      "make it of them: model.parameters()"))
        return what
    entry = find(OPTIMIZERS, "fit", "optimizer", what) if isinstance(what, str) else None
    function = find(SCHEDULES, "fit", "schedule", schedule) if isinstance(schedule, str) else schedule
    taken = [{*parameters_of(f)} for f in (entry.make if entry else what, function)]
    for name in settings:
        if name not in taken[0] | taken[1]:
            known = sorted((taken[0] | taken[1]) - {"params"})
            near = did_you_mean(name, [*known, *parameters_of(fit)]).removeprefix("; ")
            raise ConfigError(message("fit", f"there is no setting {name!r}: neither the optimizer nor the schedule "
                                      "takes it", near or f"use one of {', '.join(known)}"))
    rate: float | Schedule | None = lr if lr is not None else entry.lr if entry else None
    if rate is not None and not callable(rate):
        rate = make_schedule("fit", function, warmup_steps=warmup_steps, lr=rate,
                             **{**course, **{k: v for k, v in settings.items() if k in taken[1]}})
    return make_optimizer("fit", what, model.named_parameters(), rate,
                          **{k: v for k, v in settings.items() if k in taken[0]})


def _metrics(given: Any, loss: Any) -> dict[str, Metric]:
    return named(given if given is not None else [accuracy] if loss == "cross_entropy" else [])


def _listed(callbacks: Any) -> Sequence[Any]:
    return callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]


def _callback(given: Any) -> Callback:
    if isinstance(given, Callback):
        return given
    if not callable(given) or isinstance(given, type):
        raise ConfigError(message("fit", f"a callback is {shown(given)}", "pass alpha.training.Callback objects, or "
                                  "functions (run, row)"))
    return _OnEpoch(given)


class _OnEpoch(Callback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Trainer, Row], Any]) -> None:
        self.function = function

    def on_epoch(self, run: Trainer, row: Row) -> None:
        self.function(run, row)


class _Lines(Callback):
    """Prints a line per epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch(self, run: Trainer, row: Row) -> None:
        parts = [f"{name.replace('_', ' ')} {row[name]:.4f}" for name in row
                 if name.startswith(("train_", "val_")) and row[name] is not None]
        print(f"epoch {row['epoch']}/{self.epochs}  {'  '.join(parts)}  lr {row['lr']:.2g}  {row['seconds']:.1f} s",
              flush=True)
