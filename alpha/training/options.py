"""The settings of training that `fit` and the command have alike: one table, from which the command makes its flags.

A setting is fit's argument and the command's flag of one name, with one default and one text. A test holds that each
setting of either is in this table, or in one of the two below it with the reason.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.registry import did_you_mean, parameters_of


class Option(NamedTuple):
    """A setting of training: its default, and what it does."""

    default: Any
    help: str


OPTIONS: dict[str, Option] = {
    "epochs": Option(1, "passes over the training images"),
    "max_steps": Option(None, "stop after this many steps in all, if epochs has not ended before"),
    "accumulate": Option(1, "batches whose gradients are added up for one step, as if they were one batch; a batch "
                         "norm sees each by itself"),
    "clip": Option(0.0, "largest norm of the whole gradient; 0 = off"),
    "ema": Option(0.0, "decay of the moving average of the weights, which is validated beside them, in columns "
                  "ema_val_*; 0 = off"),
    "swa": Option(0.0, "share of the epochs, such as 0.75, behind which the weights of each epoch are averaged, all "
                  "alike (SWA): validated as ema is, with batch norms of their own; 0 = off"),
    "sam": Option(0.0, "how far off the worst point nearby is whose gradient each step takes (SAM), such as 0.05: two "
                  "passes a step; 0 = off"),
    "metric": Option(None, "column of the history by which an epoch is the best, such as val_loss (default: "
                     "val_accuracy, or val_loss where there is no accuracy)"),
    "mode": Option(None, "max or min: what is best of metric (default: as its name says)"),
    "patience": Option(0, "end the run when metric has not become better for this many epochs; 0 = off"),
    "freeze": Option((), "a layer, or a pattern of names of parameters such as layer1.*, that is not trained; a batch "
                     "norm in it keeps its statistics"),
    "lr_scale": Option((), "factors on the learning rate by layer, or by pattern of names: layer1.*=0.1, or "
                       "{\"layer1.*\": 0.1}"),
    "finetune": Option(None, "a run whose weights the model begins with; its last layer may have other classes, "
                       "pictures are normalised as there"),
    "balance": Option(False, "draw every class equally often, with repetition"),
}
# fit's argument -> the command's flag that does the same in its own way.
OTHERWISE = {
    "warmup_steps": "warmup, in epochs", "workers": "none: images stay on the device", "loss_options": "loss_option",
    "settings": "optimizer_option, schedule_option, momentum, weight_decay, gamma, step_size, milestones",
    "model": "model and model_option", "train_data": "dataset and data_dir", "val_data": "val_size",
    "mean": "those of the data set", "std": "those of the data set", "processes": "as workers",
    "metrics": "accuracy alone: the program trains classifiers", "progress": "none: a line for each epoch is printed",
    "callbacks": "profile, tensorboard",
}
# The command's flag -> what does the same around a call of fit.
AROUND = {
    "imports": "Python's import", "algorithm": "alpha.config(conv_algorithm=)", "recompute": "alpha.config(recompute=)",
    "label_smoothing": "loss_options", "runs": "a loop", "resume": "none: fit does not continue a run",
    "evaluate": "load_run(path).predict", "tta": "a mean of load_run(path).outputs", "tta_views": "as tta",
    **dict.fromkeys(("exact_over", "sync_batch_norm", "gradient_dtype"), "a loop of one's own with alpha.dist"),
    "image_size": "read_folder(size=)", "skip_bad": "read_folder(skip_bad=)",
}
WIDTH = 108     # of a line of a docstring behind its eight blanks


def documented(text: str | None) -> str | None:
    """Returns a docstring with the settings of the table in the place of {shared}."""
    lines = [line for name, option in OPTIONS.items()
             for line in textwrap.wrap(f"{name}: {option.help}.", WIDTH, subsequent_indent=" " * 4)]
    return text and text.replace("{shared}", ("\n" + " " * 8).join(lines))


NAMES = {"true": True, "false": False, "none": None}


def values_of(flag: str, texts: Sequence[str]) -> dict[str, Any]:
    """Returns the options that texts such as "width=2" or "betas=0.9,0.95" name.

    A value is a number, true, false, none, several of them with commas between, or else a text.
    Raises:
        ConfigError: a text has no name, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            what = f"names {name.strip()} twice" if name.strip() in found else "is no name=value"
            raise ConfigError(message(flag, f"{text!r:.80} {what}",
                                      f"write --{flag.replace('_', '-')} width=2, once for each name"))
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if "," in text:
        return tuple(_value(part.strip()) for part in text.split(",") if part.strip())
    if text.lower() in NAMES:
        return NAMES[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (int, float)) else text


def check_names(flag: str, options: Mapping[str, Any], what: str, function: Any, others: Mapping[str, str],
                leading: int = 1) -> None:
    """Raises ConfigError for an option that a function does not take, or that has a flag of its own.

    Args:
        what: the function in words.
        others: names that have flags of their own, and these flags.
        leading: how many parameters come before the options.
    """
    taken = [*parameters_of(function)][leading:]
    known = [name for name in taken if name not in others]
    for name in options:
        if name in others:
            raise ConfigError(message(flag, f"{name}={shown(options[name])} has a flag of its own", others[name]))
        if name not in known:
            near = did_you_mean(name, known).removeprefix("; ")
            raise ConfigError(message(flag, f"{what} has no option {name!r}", near or
                                      f"it has {', '.join(known) or 'none'}"))
