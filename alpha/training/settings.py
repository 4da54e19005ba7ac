"""From settings of `fit` to an optimizer with its schedule, and batches; a setting without effect is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from alpha import optim
from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.registry import did_you_mean, find, parameters_of
from alpha.data.draws import balanced_weights
from alpha.data.folder import ImageFolder
from alpha.data.loader import DataLoader
from alpha.data.sets import Dataset
from alpha.nn import Module
from alpha.optim.schedule import Schedule
from alpha.training.parts import Start, scaled_groups
from alpha.training.registries import (
    OPTIMIZERS,
    SCHEDULES,
    constant,
    default_of,
    make_optimizer,
    make_schedule,
    multistep,
    step,
)

PLATEAU = ("plateau", "reduce_lr_on_plateau", "ReduceLROnPlateau", "reducelronplateau")


# ---- data ------------------------------------------------------------------------------------------------------------


def is_made_of(data: Any) -> bool:
    """Whether a DataLoader is made of data; else they are batches already."""
    return not isinstance(data, DataLoader) and (isinstance(data, (tuple, list, Dataset))
                                                 or hasattr(data, "__getitem__"))


def as_batches(name: str, data: Any, **loader: Any) -> Any:
    """Returns data as an iterable of batches with a length.  Raises ConfigError, DataError."""
    if is_made_of(data):
        return DataLoader(data, **loader)
    if not isinstance(data, DataLoader) and (not hasattr(data, "__len__") or not hasattr(data, "__iter__")
                                             or not len(data)):
        raise ConfigError(message("fit", f"{name} is {shown(data)}, batches with a length, or (images, labels), are "
                                  "needed", "pass arrays, an object with __len__ and __getitem__, or a DataLoader"))
    return data


def loaders(train_data: Any, val_data: Any, both: dict[str, Any], training: dict[str, Any], device: str
            ) -> tuple[Any, Any]:
    """Returns the batches to train on and those to validate on, or None.

    Args:
        both, training: settings of the loaders that are made here, None where they are not given; the latter count for
            the training data alone.
    Raises:
        ConfigError: a setting is given, and no loader is made that would take it.  DataError.
    """
    for settings, datas in ((both, (train_data, val_data)), (training, (train_data,))):
        given = [name for name, value in settings.items() if value is not None]
        if given and not any(map(is_made_of, datas)):
            name, value = given[0], settings[given[0]]
            what = "a DataLoader" if isinstance(train_data, DataLoader) else shown(train_data)
            raise ConfigError(message("fit", f"{name}={_short(value)} is given beside train_data that is {what}, whose "
                                      "batches are made already", f"give {name} to the DataLoader, or pass fit the "
                                      "data themselves: (images, labels)"))
    common = {name: value for name, value in both.items() if value is not None} | {"device": device}
    own = {name: value for name, value in training.items() if value is not None}
    train = as_batches("train_data", train_data, shuffle=True, **common, **own)
    return train, None if val_data is None else as_batches("val_data", val_data, **common)


def of_loaders(given: SimpleNamespace, start: Start | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the settings of the loaders that fit makes: of both, and of the training data alone.

    Args:
        given: the arguments of fit.
        start: the run that the model begins with; its mean and std count where none are given.
    """
    mean, std = given.mean, given.std
    if start is not None and mean is None and std is None and is_made_of(given.train_data):
        mean, std = (start.use["inputs"][name] or None for name in ("mean", "std"))
    return (dict(batch_size=given.batch_size, mean=mean, std=std, workers=given.workers, processes=given.processes),
            dict(augment=given.augment, seed=given.seed, drop_last=given.drop_last,
                 weights=weights_of(given.train_data) if given.balance else None))


def weights_of(data: Any) -> Any:
    """Returns weights with which every class of the training data is drawn equally often.  Raises ConfigError."""
    labels = (data.train_labels if isinstance(data, Dataset) else
              data[1] if isinstance(data, (tuple, list)) and len(data) == 2 else
              [label for _, label in data.files] if isinstance(data, ImageFolder) else getattr(data, "targets", None))
    if labels is None or not is_made_of(data):
        raise ConfigError(message("fit", f"balance=True, and the labels of train_data, {shown(data)}, are not known "
                                  "before it is read", "pass (images, labels), a Dataset or an ImageFolder; or a "
                                  "DataLoader(data, weights=..., shuffle=True)"))
    return balanced_weights(labels)


def _short(value: Any) -> str:
    return shown(value).partition(" (")[0]


# ---- optimizer and schedule ------------------------------------------------------------------------------------------


def optimizer_of(model: Module, what: Any, lr: Any, schedule: Any, warmup_steps: int, settings: dict[str, Any],
                 course: dict[str, int], steps: int, others: Iterable[str], scales: Any = (),
                 frozen: Mapping[str, Any] | None = None) -> optim.Optimizer:
    """Returns the optimizer of the call, with its schedule.

    Args:
        lr, schedule: None where they are not given.
        course: the facts of the run for a schedule.
        steps: after how many the run ends, if its epochs have not ended before.
        others: names of fit's own settings, one of which may have been meant.
        scales: factors on the learning rate by pattern.
        frozen: parameters that it does not get, by name.
    Raises:
        ConfigError: a setting is unknown, or would have no effect beside another one.
    """
    if scales != () and not isinstance(scales, Mapping):
        raise ConfigError(message("fit", f"lr_scale is {shown(scales)}, factors by name are needed",
                                  "pass lr_scale={'layer1.*': 0.1}"))
    _check_beside(what, lr, schedule, warmup_steps, {**settings, **({"lr_scale": scales} if scales else {})})
    if isinstance(what, optim.Optimizer):
        return what
    entry = find(OPTIMIZERS, "fit", "optimizer", what) if isinstance(what, str) else None
    function = (constant if schedule is None else
                find(SCHEDULES, "fit", "schedule", schedule) if isinstance(schedule, str) else schedule)
    taken = [{*parameters_of(f)} for f in (entry.make if entry else what, function)]
    for name in settings:
        if name not in taken[0] | taken[1]:
            known = sorted((taken[0] | taken[1]) - {"params"})
            near = did_you_mean(name, [*known, *others]).removeprefix("; ")
            raise ConfigError(message("fit", f"there is no setting {name!r}: neither the optimizer nor the schedule "
                                      "takes it", near or f"use one of {', '.join(known)}"))
        if callable(lr) and name not in taken[0]:
            raise ConfigError(message("fit", f"{name}={_short(settings[name])} is given beside an lr that is a "
                                      "function of the step", f"leave one of them out: {name} shapes a schedule"))
    rate: float | Schedule | None = lr if lr is not None else entry.lr if entry else default_of(what, "lr")
    if "lr" not in taken[0] and (lr is not None or schedule is not None or warmup_steps):
        given = "lr" if lr is not None else "schedule" if schedule is not None else "warmup_steps"
        raise ConfigError(message("fit", f"{given} is given, and the optimizer {shown(what)} takes no lr",
                                  f"leave {given} out, or let the function take lr"))
    if rate is None and (schedule is not None or warmup_steps):
        raise ConfigError(message("fit", f"{'schedule' if schedule is not None else 'warmup_steps'} is given without "
                                  f"lr, and the optimizer {shown(what)} has no number for it", "pass lr=1e-3, say"))
    if rate is not None and not callable(rate):
        rate = _schedule(function, warmup_steps, rate, {**course, **{k: v for k, v in settings.items()
                                                                     if k in taken[1]}}, steps)
    if scales and ("lr" not in taken[0] or rate is None):
        raise ConfigError(message("fit", f"lr_scale is given, and the optimizer {shown(what)} has no lr that it scales",
                                  "pass lr=1e-3, say, or leave lr_scale out"))
    params = scaled_groups(model, scales or {}, rate if rate is not None else 0.0, frozen or {})
    return make_optimizer("fit", what, params, rate if "lr" in taken[0] else None,
                          **{k: v for k, v in settings.items() if k in taken[0]})


def _check_beside(what: Any, lr: Any, schedule: Any, warmup_steps: int, settings: dict[str, Any]) -> None:
    """Raises ConfigError for settings that have no effect beside an optimizer, or an lr, that is made already."""
    name = getattr(schedule, "__name__", type(schedule).__name__)
    if (isinstance(schedule, str) and schedule in PLATEAU) or name == "ReduceLROnPlateau":
        raise ConfigError(message("fit", f"schedule is {shown(schedule)}, which follows a measurement and is no "
                                  "function of the step", "leave schedule out, and pass "
                                  "callbacks=[alpha.training.Plateau(patience=3)]"))
    given = {"lr": lr, "schedule": schedule, "warmup_steps": warmup_steps or None, **settings}
    present = [name for name, value in given.items() if value is not None]
    if isinstance(what, optim.Optimizer) and present:
        raise ConfigError(message("fit", f"{present[0]} is given beside an optimizer that is made already: lr, "
                                  "schedule, warmup_steps and settings go with an optimizer's name, it is "
                                  f"{type(what).__name__}", "set them where the optimizer is made"))
    if callable(lr) and (schedule is not None or warmup_steps):
        other = f"schedule={_short(schedule)}" if schedule is not None else f"warmup_steps={warmup_steps}"
        raise ConfigError(message("fit", f"{other} is given beside an lr that is a function of the step already",
                                  "pass lr as a number, or leave the other out"))


def _schedule(function: Callable[..., Any], warmup_steps: int, lr: Any, course: dict[str, Any], steps: int
              ) -> float | Schedule:
    """Returns the learning rate of a run: a number where it stays the same, so that others may lower it."""
    total = course["total_steps"]
    steps = min(steps, total)
    if warmup_steps > steps:
        raise ConfigError(message("fit", f"warmup_steps={warmup_steps} is beyond the run, which has {steps} steps: lr="
                                  f"{_short(lr)} is never reached", "lower warmup_steps, or train for more epochs"))
    late = [s for s in (course.get("milestones") or ()) if isinstance(s, int) and s >= total]
    if function is multistep and late:
        raise ConfigError(message("fit", f"milestones has {late[0]}, the run has {total} steps: it is never reached",
                                  "give milestones in steps of the run", milestones=shown(course["milestones"])))
    size = course.get("step_size")
    if function is step and isinstance(size, int) and size >= total:
        raise ConfigError(message("fit", f"step_size={size} is not below the {total} steps of the run: lr is never "
                                  "lowered", "give step_size in steps of the run, and fewer"))
    made = make_schedule("fit", function, warmup_steps=warmup_steps, lr=lr, **course)
    if function is constant and not warmup_steps and math.isfinite(lr):
        return float(lr)
    return made
