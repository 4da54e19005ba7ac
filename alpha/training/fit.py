"""fit: the training of a model in one call."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from alpha import optim
from alpha.config import config
from alpha.data.loader import DataLoader
from alpha.errors import ConfigError, message
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Count, NonNegative, Seed, Size
from alpha.inputs.registry import did_you_mean, parameters_of
from alpha.nn import Module
from alpha.nn.module import modes_kept
from alpha.precision import MODES
from alpha.precision import precision as in_precision
from alpha.training import settings as of_settings
from alpha.training.callback import Callback, Lines, as_callbacks
from alpha.training.history import History, columns_of, mode_of
from alpha.training.metrics import Metric, accuracy, named
from alpha.training.registries import find_loss
from alpha.training.saving import Saving, folder_of
from alpha.training.trainer import Trainer


@checked
def fit(model: Module, train_data: Any, val_data: Any = None, *, epochs: Count = 1,
        batch_size: Count | None = None, optimizer: Any = "sgd", lr: Any = None, schedule: Any = None,
        warmup_steps: Size = 0, loss: Any = "cross_entropy", metrics: Any = None, callbacks: Any = (),
        device: str | None = None, precision: str | None = None, augment: Any = None, mean: Any = None, std: Any = None,
        max_steps: Count | None = None, clip: NonNegative = 0.0, ema: float = 0.0, seed: Seed | None = None,
        workers: Size | None = None, processes: bool | None = None, drop_last: bool | None = None,
        output: str | Path | None = None, metric: str | None = None, mode: str | None = None,
        progress: bool = True, **settings: Any) -> History:
    """Trains a model and returns what was measured, one row per epoch.

        history = fit(net, (images, labels), (test_images, test_labels), epochs=5, optimizer="adam", lr=1e-3)
        history["val_accuracy"]

    Args:
        model: computes the outputs of a batch. Parts in inference mode stay so (a frozen batch norm keeps its
            statistics); a model that is in inference mode as a whole is trained as a whole.
        train_data, val_data: (images, labels), or what alpha.data.DataLoader takes; or a DataLoader, or any object with
            a length that yields batches (x, y), anew each time it is iterated over.
        epochs, max_steps: passes over train_data; it ends after max_steps steps, if epochs has not ended before.
        batch_size, augment, mean, std, seed, workers, processes, drop_last: of the DataLoader that is made of the data,
            with its defaults (batch_size 32, seed 0); augment, seed and drop_last of the training data alone.
        optimizer: a name, an Optimizer, or a class or function `(named_parameters, lr=...)`.
        lr: a number, or a schedule (a function of the step); default that of the optimizer.
        schedule, warmup_steps: course of the learning rate where lr is a number: a name, or a function as
            `register_schedule` describes; default "constant".
        loss: a name, a function (outputs, targets) -> Tensor of shape (), or a module.
        metrics: functions (outputs, targets), by name or in a list; default accuracy for cross_entropy, else none.
        callbacks: alpha.training.Callback objects, or functions (run, row) that are called after each epoch.
        device, precision: where and how to compute; default where the model is, and as configured.
        clip: largest norm of the whole gradient; 0 is off.
        ema: decay of the moving average of the weights; 0 is off. It is validated too, in columns ema_val_*, and
            returned as `history.ema`; val_* are of the weights that the model is left with.
        output: a folder to which the model is saved after each epoch, last.safetensors and best.safetensors, each with
            all that `alpha.training.load_run` and the commands need to use it, and metrics.csv.
        metric, mode: the column of the history by which an epoch is the best, and whether "max" or "min" is; default
            val_accuracy, or val_loss where there is no accuracy.
        progress: whether each epoch is printed.
        settings: more of the optimizer (momentum, weight_decay, ...) and of the schedule (gamma, step_size, ...).
    Returns:
        the History; the model is left in the modes that it had, with the last weights.
    Raises:
        ConfigError: a name or a setting is unknown, or has no effect; the optimizer does not change this model.
        AnomalyError: the loss is not finite.
    """
    watchers = as_callbacks(callbacks)
    if device is not None:
        model.to(device)
    place = next((p.device for p in model.parameters()), device or "cpu")
    train, val = of_settings.loaders(
        train_data, val_data, dict(batch_size=batch_size, mean=mean, std=std, workers=workers, processes=processes),
        dict(augment=augment, seed=seed, drop_last=drop_last), place)
    course = dict(total_steps=epochs * len(train), steps_per_epoch=len(train), epochs=epochs)
    made = of_settings.optimizer_of(model, optimizer, lr, schedule, warmup_steps, settings, course,
                                    max_steps or course["total_steps"], parameters_of(fit))
    numbers, measures = precision or config.precision, _metrics(metrics, loss)
    _check_best(metric, mode, output, columns_of(measures, val_data is not None, bool(ema)))
    run = Trainer(model, made, find_loss("fit", loss), measures, epochs=epochs,
                  steps_per_epoch=len(train), max_steps=max_steps, clip=clip,
                  ema=optim.ExponentialMovingAverage(model, ema) if ema else None,
                  scaler=optim.LossScaler(place) if numbers in MODES and MODES[numbers].scales_loss else None)
    if output is not None:
        watchers = [Saving(folder_of("fit", output), train_data, train, loss, metric, mode), *watchers]
    try:
        return _made(run, train, val, [*([Lines(epochs)] if progress else []), *watchers], precision)
    finally:
        for made_here, data in ((train, train_data), (val, val_data)):
            if made_here is not data and isinstance(made_here, DataLoader):
                made_here.close()


def _made(run: Trainer, train: Any, val: Any, callbacks: list[Callback], precision: str | None) -> History:
    """Makes a run; a model that is in inference mode as a whole is so again afterwards."""
    rests = not any(m.training for m in run.model.modules())
    with in_precision(precision) if precision else nullcontext(), modes_kept(run.model) if rests else nullcontext():
        return run.run(lambda epoch, step: _epoch_of(train, epoch, step),
                       lambda: None if val is None else run.evaluate(val), callbacks)


def _epoch_of(batches: Any, epoch: int, step: int) -> Iterable[Any]:
    return batches.batches(epoch, step) if isinstance(batches, DataLoader) else iter(batches)


def _check_best(metric: str | None, mode: str | None, output: Any, columns: list[str]) -> None:
    """Raises ConfigError for a rule of the best epoch that would have no effect, or that is none."""
    for name, value in (("metric", metric), ("mode", mode)):
        if value is not None and output is None:
            raise ConfigError(message("fit", f"{name}={value!r} says which epoch is the best, and nothing is kept",
                                      f"pass output=FOLDER, or leave {name} out"))
    if metric is not None and metric not in columns:
        raise ConfigError(message("fit", f"there is no column {metric!r}{did_you_mean(metric, columns)}",
                                  f"use one of {', '.join(columns)}; val_ needs val_data"))
    if metric is not None or mode is not None:
        mode_of(metric or "val_accuracy", mode)


def _metrics(given: Any, loss: Any) -> dict[str, Metric]:
    return named(given if given is not None else [accuracy] if loss == "cross_entropy" else [])

