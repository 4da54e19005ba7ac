"""Settings that go together: flags that name options of another one, and settings without an effect beside another.

Both are checked before a run, and refused where they are given, in words that name both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from alpha.core.inputs.registry import did_you_mean, parameters_of
from alpha.data.named import entry_of, has_own_validation
from alpha.errors import ConfigError, message
from alpha.training.averages import averages_itself, check_average
from alpha.training.history import AVERAGED, columns_of, mode_of
from alpha.training.options import check_names, values_of
from alpha.training.registries import LOSSES, MODELS, OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:
    from train.config import Config

# Flag -> the setting that names a function, the functions by name, and how many parameters they have before options.
OPTION_FLAGS: dict[str, tuple[str, Any, int]] = {
    "model_option": ("model", lambda name: MODELS[name], 1),
    "optimizer_option": ("optimizer", lambda name: OPTIMIZERS[name].make, 1),
    "schedule_option": ("schedule", lambda name: SCHEDULES[name], 0),
    "loss_option": ("loss", lambda name: LOSSES[name], 2),
}
OWN_FLAGS = {name: f"use --{name.replace('_', '-')}" for name in (
    "lr", "momentum", "weight_decay", "gamma", "step_size", "milestones", "label_smoothing", "epochs")} | dict.fromkeys(
    ("total_steps", "steps_per_epoch"), "leave it out: --epochs and --batch-size say so") | {
    "warmup_steps": "use --warmup, in epochs"}


def options(config: Config, flag: str) -> dict[str, Any]:
    """Returns the options that a flag names, by name.  Raises ConfigError for a text that is no name=value."""
    return values_of(flag, getattr(config, flag))


def check_options(config: Config) -> None:
    """Raises ConfigError for an option that its function does not take, or a rule of the best epoch that is none."""
    for flag, (setting, function, leading) in OPTION_FLAGS.items():
        name = getattr(config, setting)
        check_names(flag, options(config, flag), f"{setting} {name}", function(name), OWN_FLAGS, leading)
    for pattern, factor in options(config, "lr_scale").items():
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1e30:
            raise ConfigError(message("lr_scale", f"{pattern}={factor!r:.40}, a finite number above 0 is needed",
                                      "write --lr-scale layer1.*=0.1; --freeze keeps a part as it is"))
    check_average(OPTIMIZERS[config.optimizer].make, config.optimizer, config.ema, config.swa)
    for name, given in (("accumulate", config.accumulate > 1), ("precision fp16", config.precision == "fp16")):
        if config.sam and given:
            raise ConfigError(message("sam", f"--sam {config.sam:g} beside --{name}: the second gradient of a step is "
                                      "of the same batch, unscaled", "leave one of them out"))
    if config.metric is None and config.mode is None and not config.patience:
        return
    validated = bool(config.val_size) or has_own_validation(config.dataset)
    averaged = bool(config.ema or config.swa) or averages_itself(OPTIMIZERS[config.optimizer].make)
    columns = columns_of(["accuracy"], validated, averaged)
    if config.metric is None and not validated:
        raise ConfigError(message("metric", "the best epoch is that of val_accuracy, and with --val-size 0 nothing is "
                                  "validated", "choose --metric train_loss, or a --val-size above 0"))
    if config.metric is not None and config.metric not in columns:
        raise ConfigError(message("metric", f"there is no column {config.metric!r:.80}"
                                  f"{did_you_mean(config.metric, columns)}",
                                  f"use one of {', '.join(columns)}; val_ needs a --val-size, {AVERAGED} needs --ema"))
    mode_of(config.metric or "val_accuracy", config.mode)


# ---- settings without an effect --------------------------------------------------------------------------------------

# Setting -> the setting that names a function, and the functions by name; where that takes no such argument, the
# setting has no effect.
TAKEN_BY: dict[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("momentum", "weight_decay"), ("optimizer", lambda name: OPTIMIZERS[name].make)),
    **dict.fromkeys(("gamma", "step_size", "milestones"), ("schedule", lambda name: SCHEDULES[name])),
    **dict.fromkeys(("data_dir", "image_size", "skip_bad"), ("dataset", lambda name: entry_of(name).read)),
}
VIEWS = ("none", "mirror", "shift", "mirror_shift")     # of --tta, whose number is fixed
OF_TRAINING = ("profile", "tensorboard", "runs")    # what only a run that trains heeds


def without_effect(config: Config) -> dict[str, str]:
    """Returns the settings that have no effect, and for each the other setting that makes it so."""
    found = {name: other for name, (other, function) in TAKEN_BY.items()
             if name not in parameters_of(function(getattr(config, other)))}
    found |= {"tta_views": "tta"} if config.tta in VIEWS else {}
    if has_own_validation(config.dataset):
        found["val_size"] = "dataset"
    return found | (dict.fromkeys(OF_TRAINING, "evaluate") if config.evaluate else {})


def refuse_without_effect(config: Config, flags: Collection[str], file: Mapping[str, Any]) -> None:
    """Raises ConfigError for a setting that was given and has no effect.

    In a file it may stand with its default, as the files of runs have all settings, or beside another one that a flag
    has changed.
    Args:
        flags: names of the settings that were given as flags.
        file: those that a file has.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    for name, other in without_effect(config).items():
        value = getattr(config, name)
        if (name in flags and value != (defaults[name] if other == "evaluate" else None)) or (
                name in file and value != defaults[name] and other not in flags):
            raise ConfigError(message(name, f"{_flag(name)} has no effect beside {_flag(other)} "
                                      f"{getattr(config, other)}".removesuffix(" True"),
                                      f"leave out {_flag(name)}, or choose another {_flag(other)}"
                                      if other != "evaluate" else f"leave out {_flag(name)}, or {_flag(other)}"))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
