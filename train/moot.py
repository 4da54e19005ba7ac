"""Settings that have no effect beside another one: they are refused where they are given, in words that name both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from alpha.core.inputs.registry import parameters_of
from alpha.data.named import entry_of, has_own_validation
from alpha.errors import ConfigError, message
from alpha.training.registries import OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:
    from train.config import Config

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
