"""fit: the training of a model in one call."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from alpha import optim
from alpha.core.config import config
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, NonNegative, Seed, Size
from alpha.core.inputs.registry import did_you_mean, parameters_of
from alpha.core.precision import MODES
from alpha.core.precision import precision as in_precision
from alpha.data.loader import DataLoader
from alpha.nn import Module
from alpha.nn.module import modes_kept
from alpha.training import settings as of_settings
from alpha.training.averages import average_of, averages_itself
from alpha.training.callback import Callback, Lines, as_callbacks
from alpha.training.history import History, columns_of, mode_of
from alpha.training.metrics import Metric, OverEpoch, accuracy, named
from alpha.training.options import documented
from alpha.training.parts import frozen_parts, read_start, start_from, to_freeze
from alpha.training.registries import find_loss
from alpha.training.saving import Saving, folder_of
from alpha.training.stopping import EarlyStopping
from alpha.training.trainer import Trainer


@checked
def fit(model: Module, train_data: Any, val_data: Any = None, *, epochs: Count = 1,
        batch_size: Count | None = None, optimizer: Any = "sgd", lr: Any = None, schedule: Any = None,
        warmup_steps: Size = 0, loss: Any = "cross_entropy", loss_options: Any = None, metrics: Any = None,
        callbacks: Any = (), device: str | None = None, precision: str | None = None, augment: Any = None,
        mean: Any = None, std: Any = None, max_steps: Count | None = None, clip: NonNegative = 0.0, ema: float = 0.0,
        swa: float = 0.0, sam: NonNegative = 0.0, accumulate: Count = 1, patience: Size = 0, metric: str | None = None,
        mode: str | None = None, freeze: Any = (), lr_scale: Any = (), finetune: str | Path | None = None,
        balance: bool = False, seed: Seed | None = None, workers: Size | None = None, processes: bool | None = None,
        drop_last: bool | None = None, output: str | Path | None = None, progress: bool = True, **settings: Any
        ) -> History:
    """Trains a model and returns what was measured, one row per epoch.

        history = fit(net, (images, labels), (test_images, test_labels), epochs=5, optimizer="adam", lr=1e-3)
        history["val_accuracy"]

    Args:
        model: computes the outputs of a batch. Parts in inference mode stay so (a frozen batch norm keeps its
            statistics); a model that is in inference mode as a whole is trained as a whole.
        train_data, val_data: (images, labels), or what alpha.data.DataLoader takes; or a DataLoader, or any object with
            a length that yields batches (x, y), anew each time it is iterated over.
        batch_size, augment, mean, std, seed, workers, processes, drop_last: of the DataLoader that is made of the data,
            with its defaults (batch_size 32, seed 0); augment, seed and drop_last of the training data alone.
        optimizer: a name, an Optimizer, or a class or function `(named_parameters, lr=...)`. The average that a
            schedule-free one keeps is validated as ema's is.
        lr: a number, or a schedule (a function of the step); default the optimizer's.
        schedule, warmup_steps: course of the learning rate where lr is a number: a name, or a function as
            `register_schedule` describes; default "constant".
        loss: a name, a function (outputs, targets) -> Tensor of shape (), or a module.
        loss_options: a dict of what the loss takes beside outputs and targets, {"label_smoothing": 0.1} say.
        metrics: functions (outputs, targets), by name or in a list; default accuracy for cross_entropy, else none.
        callbacks: alpha.training.Callback objects, or functions (run, row) that are called after each epoch.
        device, precision: where and how to compute; default where the model is, and as configured.
        {shared}
        output: a folder to which the model is saved after each epoch, last.safetensors and best.safetensors, each with
            all that `alpha.training.load_run` and the commands need to use it, and metrics.csv.
        progress: whether each epoch is printed.
        settings: more of the optimizer (momentum, weight_decay, ...) and of the schedule (gamma, step_size, ...).
    Returns:
        the History; the model is left in the modes that it had, with the last weights. `history.ema` has the average.
    Raises:
        ConfigError: a name or a setting is unknown, or has no effect; the optimizer does not change this model.
        AnomalyError: the loss is not finite.
    """
    return _fitted(SimpleNamespace(**locals()))


fit.__doc__ = documented(fit.__doc__)


def _fitted(given: SimpleNamespace) -> History:
    """Trains as the arguments of `fit` say."""
    watchers, model, val_data = as_callbacks(given.callbacks), given.model, given.val_data
    if given.device is not None:
        model.to(given.device)
    frozen = to_freeze(model, given.freeze)
    start = None if given.finetune is None else read_start(given.finetune)
    place = next((p.device for p in model.parameters()), given.device or "cpu")
    train, val = of_settings.loaders(given.train_data, val_data, *of_settings.of_loaders(given, start), place)
    steps = -(-len(train) // given.accumulate)
    course = dict(total_steps=given.epochs * steps, steps_per_epoch=steps, epochs=given.epochs)
    made = of_settings.optimizer_of(model, given.optimizer, given.lr, given.schedule, given.warmup_steps,
                                    given.settings, course, given.max_steps or course["total_steps"],
                                    parameters_of(fit), given.lr_scale, frozen)
    numbers, measures = given.precision or config.precision, _metrics(given.metrics, given.loss)
    loss = find_loss("fit", given.loss, options=given.loss_options)
    columns = columns_of(measures, val_data is not None, bool(given.ema or given.swa) or averages_itself(made))
    whole = [name for name, metric in measures.items() if isinstance(metric, OverEpoch)]
    _check_best(given, [name for name in columns if name.removeprefix("train_") not in whole])
    if whole and val_data is None:
        raise ConfigError(message("fit", f"the metric {whole[0]!r} is of all samples of a validation, and val_data is "
                                  "None", "pass val_data, or leave it out"))
    if given.patience:
        column = "train_loss" if val_data is None and given.metric is None else given.metric
        watchers = [EarlyStopping(given.patience, column, given.mode), *watchers]
    if given.output is not None:
        watchers = [Saving(folder_of("fit", given.output), given.train_data, train, given.loss, given.metric,
                           given.mode), *watchers]
    if start is not None:
        start_from(model, start)
    run = Trainer(model, made, loss, measures, epochs=given.epochs, steps_per_epoch=steps, max_steps=given.max_steps,
                  clip=given.clip, accumulate=given.accumulate, sam=given.sam,
                  ema=average_of(model, made, given.ema, given.swa, given.epochs),
                  scaler=optim.LossScaler(place) if numbers in MODES and MODES[numbers].scales_loss else None)
    try:
        with frozen_parts(model, frozen):
            return _made(run, train, val, [*([Lines(given.epochs)] if given.progress else []), *watchers],
                         given.precision)
    finally:
        for made_here, data in ((train, given.train_data), (val, val_data)):
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


def _check_best(given: SimpleNamespace, columns: list[str]) -> None:
    """Raises ConfigError for a rule of the best epoch that would have no effect, or that is none."""
    metric, mode = given.metric, given.mode
    for name, value in (("metric", metric), ("mode", mode)):
        if value is not None and given.output is None and not given.patience:
            raise ConfigError(message("fit", f"{name}={value!r} says which epoch is the best, and nothing is kept",
                                      f"pass output=FOLDER or patience=3, or leave {name} out"))
    if metric is not None and metric not in columns:
        raise ConfigError(message("fit", f"there is no column {metric!r}{did_you_mean(metric, columns)}",
                                  f"use one of {', '.join(columns)}; val_ needs val_data"))
    if metric is not None or mode is not None:
        mode_of(metric or "val_accuracy", mode)


def _metrics(given: Any, loss: Any) -> dict[str, Metric]:
    return named(given if given is not None else [accuracy] if loss == "cross_entropy" else [])

