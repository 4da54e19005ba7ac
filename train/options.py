"""The flags that name options, --model-option width=2, --lr-scale layer1.*=0.1: read and checked before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alpha.core.inputs.registry import did_you_mean
from alpha.data.named import has_own_validation
from alpha.errors import ConfigError, message
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
    if config.metric is None and config.mode is None and not config.patience:
        return
    validated = bool(config.val_size) or has_own_validation(config.dataset)
    columns = columns_of(["accuracy"], validated, bool(config.ema))
    if config.metric is None and not validated:
        raise ConfigError(message("metric", "the best epoch is that of val_accuracy, and with --val-size 0 nothing is "
                                  "validated", "choose --metric train_loss, or a --val-size above 0"))
    if config.metric is not None and config.metric not in columns:
        raise ConfigError(message("metric", f"there is no column {config.metric!r:.80}"
                                  f"{did_you_mean(config.metric, columns)}",
                                  f"use one of {', '.join(columns)}; val_ needs a --val-size, {AVERAGED} needs --ema"))
    mode_of(config.metric or "val_accuracy", config.mode)
