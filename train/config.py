"""Every setting of the training program: one table of fields, from which flags, files, checks and help are made.

    config = parse(["--model", "resnet18", "--dataset", "cifar10", "--config", "mine.toml"])

A flag beats the file, the file beats the default. A Config that exists is valid: all of it is checked, and nothing is
loaded, when it is made.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from alpha import config as settings
from alpha import models
from alpha.core.inputs.registry import did_you_mean
from alpha.core.precision import MODES
from alpha.data import Augment
from alpha.data.augment import DEFAULT_SIZES
from alpha.data.augmentations import AUGMENTATIONS
from alpha.data.folder_set import SIZE
from alpha.data.named import entry_of, is_folder
from alpha.data.public import DATASETS
from alpha.errors import ConfigError, message
from alpha.ops.algorithms.names import CONV_NAMES
from alpha.start import STATUSES, Parser
from alpha.training.averages import averages_itself
from alpha.training.options import OPTIONS
from alpha.training.registries import LOSSES, OPTIMIZERS, SCHEDULES
from train.options import VIEWS, check_options, refuse_without_effect
from train.sources import import_all, imports_of, read_toml, settings_of, settings_of_start, shown_value
from train.stored import missing_imports

PRECISIONS = tuple(MODES)
RECIPES = Path(__file__).parent / "recipes"
RECOMPUTE = ("none", "cheap", "full", "auto")
IMPORTED = "--import the file that registers it"


@dataclass(frozen=True)
class Interval:
    """The finite numbers from low to high; `ends` tells which of the two belong to it."""

    low: float
    high: float = math.inf
    ends: str = "[)"

    def __contains__(self, value: float) -> bool:
        return ((self.low < value or (self.ends[0] == "[" and self.low == value))
                and (value < self.high or (self.ends[1] == "]" and self.high == value)))

    def __str__(self) -> str:
        return f"a number in {self.ends[0]}{self.low:.15g}, {self.high:.15g}{self.ends[1]}"


Allowed = Interval | Collection[str] | None
MOST_EPOCHS, MOST_STEPS = 100_000, 10**12
LARGE = 1e30  # of a learning rate, a decay or a norm: float32 ends at 3.4e38
MAX_NAME, MAX_LIST = 4096, 1000  # characters of a text, numbers of a list


def setting(default: Any, help: str, allowed: Allowed = None, kind: type | None = None) -> Any:
    """Declares a field: `kind` is its type where that is not the default's, `allowed` the values it may have."""
    return field(default=default, metadata={"help": help, "allowed": allowed, "kind": kind or type(default)})


def shared(name: str, allowed: Allowed = None, kind: type | None = None) -> Any:
    """Declares a field that fit has too."""
    return setting(OPTIONS[name].default, OPTIONS[name].help, allowed, kind)


@dataclass(frozen=True)
class Config:
    """The resolved settings of a run.

    Raises:
        ConfigError: if a field has the wrong type or is out of range, or two fields contradict each other.
    """

    # The defaults bring lenet5 on digits to 98 to 99 % within a minute; anything larger wants its own recipe.
    imports: tuple[str, ...] = setting((), "a file, my_file.py, or module that registers models, data sets, "
                                       "optimizers, schedules or losses of your own; may be given several times")
    model: str = setting("lenet5", "network to train; --list-models shows all")
    model_option: tuple[str, ...] = setting((), "an option of the model, stem=imagenet say; a wrong name is "
                                            "answered with those that it takes")
    finetune: str | None = shared("finetune", kind=str)
    freeze: tuple[str, ...] = shared("freeze")
    dataset: str = setting("digits", "images to learn: a name, or a folder of pictures with one folder per class, or "
                           "with train/ and val/ or test/ of such", DATASETS)
    data_dir: str | None = setting(None, "CIFAR archive (.tar.gz), its extracted folder, or a folder with either; "
                                  "what a data set of your own reads",
                                   kind=str)
    image_size: int | None = setting(None, "height and width to which the pictures of a folder are scaled and cut "
                                     f"(default: {SIZE[0]})", Interval(8, 4096, "[]"), int)
    skip_bad: bool = setting(False, "leave pictures of a folder out that cannot be read; else they are refused")
    output: str = setting("runs/lenet5-digits", "folder for config, metrics, plots and checkpoints "
                          "(default: runs/MODEL-DATASET)")
    device: str = setting("auto", "auto, cpu, cuda or cuda:N; auto is the first GPU, or the CPU")
    precision: str = setting("fp32", "how layers store activations and multiply; docs/explanation/numerics.md "
                             "(default: ALPHA_PRECISION, or fp32)", PRECISIONS)
    algorithm: str = setting("auto", "how convolutions are computed where it serves; docs/explanation/algorithms.md "
                             "(default: ALPHA_CONV_ALGORITHM, or auto)", CONV_NAMES)
    recompute: str = setting("auto", "which results backward makes again instead of keeping them; "
                             "docs/explanation/memory.md (default: ALPHA_RECOMPUTE, or auto)", RECOMPUTE)
    epochs: int = setting(20, OPTIONS["epochs"].help, Interval(1, MOST_EPOCHS, "[]"))
    max_steps: int | None = shared("max_steps", Interval(1, MOST_STEPS, "[]"), int)
    batch_size: int = setting(32, "images per step", Interval(1, 1 << 20, "[]"))
    accumulate: int = shared("accumulate", Interval(1, 1 << 20, "[]"))
    balance: bool = shared("balance")
    drop_last: bool = setting(False, "leave out the last batch of an epoch where it is not full")
    optimizer: str = setting("sgd", "update rule", OPTIMIZERS)
    lr: float = setting(OPTIMIZERS["sgd"].lr, "largest learning rate (default: by optimizer, "
                        + ", ".join(f"{name} {entry.lr:g}" for name, entry in OPTIMIZERS.items()) + ")",
                        Interval(0, LARGE, "(]"))
    lr_scale: tuple[str, ...] = shared("lr_scale")
    optimizer_option: tuple[str, ...] = setting((), "an option of the optimizer, nesterov=true or betas=0.9,0.95 say")
    momentum: float = setting(0.9, "momentum of sgd, rmsprop and others that take it", Interval(0, 1))
    weight_decay: float = setting(5e-4, "pull of the weights towards 0", Interval(0, LARGE, "[]"))
    schedule: str = setting("cosine", "course of the learning rate (default: cosine, of schedule-free optimizers "
                            "constant)", SCHEDULES)
    warmup: float = setting(0.0, "epochs in which the learning rate rises linearly from 0", Interval(0))
    gamma: float = setting(0.1, "factor on the learning rate, for step and multistep at each step, for exponential "
                           "after each epoch (default: 0.1, exponential 0.95)", Interval(0, 1, "(]"))
    step_size: float = setting(10.0, "epochs between the steps of the step schedule",
                               Interval(0, MOST_EPOCHS, "(]"))
    milestones: tuple[float, ...] = setting((0.5, 0.75), "shares of the training after which the multistep schedule "
                                            "steps, such as 0.5,0.75", Interval(0, 1, "()"))
    schedule_option: tuple[str, ...] = setting((), "an option of a schedule of your own")
    loss: str = setting("cross_entropy", "what is made small", LOSSES)
    loss_option: tuple[str, ...] = setting((), "an option of a loss of your own")
    label_smoothing: float = setting(0.0, "probability spread evenly over all classes", Interval(0, 1))
    augment: str = setting(DATASETS["digits"].augment, "none, or some of "
                           + ",".join((*DEFAULT_SIZES, *AUGMENTATIONS)) + ", with settings as in crop=4 or "
                           "randaugment(n=2,m=9); docs/how_to/augmentation.md (default: by data set, "
                           + ", ".join(f"{name} {entry.augment}" for name, entry in DATASETS.items()) + ")")
    tta: str = setting("none", "what the final test averages the outputs of: none, the images; mirror; shift, by a "
                       "pixel to two sides; mirror_shift; or --tta-views draws of augmentations, named as by --augment")
    tta_views: int = setting(8, "draws of the augmentations that --tta names", Interval(2, 1000, "[]"))
    ema: float = shared("ema", Interval(0, 1))
    swa: float = shared("swa", Interval(0, 1))
    sam: float = shared("sam", Interval(0, LARGE, "[]"))
    clip: float = shared("clip", Interval(0, LARGE, "[]"))
    metric: str | None = shared("metric", kind=str)
    mode: str | None = shared("mode", ("max", "min"), str)
    patience: int = shared("patience", Interval(0, MOST_EPOCHS, "[]"))
    val_size: float = setting(0.1, "validation images held out of training: a share below 1, or a number",
                              Interval(0, 1 << 31))
    seed: int = setting(0, "of weights, order and augmentation; run k of --runs uses seed + k", Interval(0, 1 << 63))
    exact_over: int = setting(0, "cut each batch into this many slices, 2, 4, 8 or more, whose sums give the same bits "
                              "on any number of ranks; 0 = off; docs/how_to/distributed.md", Interval(0, 1024, "[]"))
    sync_batch_norm: bool = setting(True, "on several ranks: batch normalisation over the whole batch, not a "
                                    "rank's part of it")
    gradient_dtype: str = setting("float32", "on several ranks: what gradients travel in",
                                  ("float32", "float16", "bfloat16"))
    runs: int = setting(1, "train this many times, and report mean and spread", Interval(1, 10_000, "[]"))
    resume: str | None = setting(None, "continue from a checkpoint; without PATH, or with auto, from the last one in "
                                 "--output if there is one", kind=str)
    profile: int = setting(0, "profile this many steps of the first epoch: profile.txt, and profile.json for Chrome's "
                           "trace viewer; 0 = off", Interval(0, 10_000, "[]"))
    tensorboard: bool = setting(False, "write curves and pictures for TensorBoard to --output")
    evaluate: bool = setting(False, "only test the checkpoint of --resume")

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _checked(f, getattr(self, f.name)))
        if self.model not in models.list():
            _refuse("model", self.model, "a registered model",
                    f"run --list-models to see all{did_you_mean(self.model, models.list())}, or {IMPORTED}")
        Augment.parse(self.augment)
        if self.tta not in VIEWS and (found := Augment.parse(self.tta)).mixing:
            _refuse("tta", self.tta, "augmentations of one image", f"leave {found.mixing[0].name} out")
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", self.device):
            _refuse("device", self.device, "auto, cpu, cuda or cuda:N", "write --device auto")
        if self.device == "cpu" and self.precision == "bf16":
            _refuse("precision", self.precision, "fp32, tf32 or fp16 on the cpu, which has no bfloat16",
                    "use --precision fp32, or a GPU: --device cuda")
        if self.warmup >= self.epochs:
            _refuse("warmup", self.warmup, f"less than epochs, which is {self.epochs}", "lower warmup or raise epochs")
        if 1 < self.val_size != int(self.val_size):
            _refuse("val_size", self.val_size, "a share below 1 or a whole number", "write --val-size 0.1, or 5000")
        if list(self.milestones) != sorted(set(self.milestones)):
            _refuse("milestones", self.milestones, "rising numbers", "sort them: --milestones 0.5,0.75")
        check_options(self)
        if self.evaluate and self.resume is None:
            _refuse("evaluate", True, "a run with --resume", "name the checkpoint: --evaluate --resume PATH")
        if self.runs > 1 and self.resume not in (None, "auto"):
            _refuse("resume", self.resume, f"auto for {self.runs} runs", "write --resume auto, or --runs 1")

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields by name."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """Returns a file that --config reads back as this very Config; imports are left out if there are none."""
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.to_dict().items()
                       if value is not None and (value or name not in TEXTS))

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Config:
        """Returns a Config of these fields and, for the rest, of defaults that suit them.

        Raises:
            ConfigError: if a key is no field, or a value is not allowed.
        """
        names = [f.name for f in dataclasses.fields(Config)]
        for key in values:
            if key not in names:
                raise ConfigError(message("config", f"there is no setting {shown_value(key)}{did_you_mean(key, names)}",
                                          "remove it, or correct its name; python -m train --help lists all"))
        values = {f.name: _checked(f, values[f.name]) for f in dataclasses.fields(Config) if f.name in values}
        full = {"model": Config.model, "dataset": Config.dataset, **values}
        full.setdefault("lr", OPTIMIZERS[full.get("optimizer", Config.optimizer)].lr)
        full.setdefault("augment", entry_of(full["dataset"]).augment)
        if is_folder(full["dataset"]):
            full.setdefault("image_size", SIZE[0])
        if averages_itself(OPTIMIZERS[full.get("optimizer", Config.optimizer)].make):
            full.setdefault("schedule", "constant")
        if full.get("schedule") == "exponential":
            full.setdefault("gamma", 0.95)
        full.setdefault("precision", settings.precision)
        full.setdefault("algorithm", settings.conv_algorithm)
        full.setdefault("recompute", settings.recompute)
        full.setdefault("output", f"runs/{full['model']}-{Path(full['dataset']).name}")
        return Config(**full)


TEXTS = tuple(f.name for f in dataclasses.fields(Config) if f.default == ())    # several texts each


def _refuse(name: str, value: object, allowed: object, fix: str) -> NoReturn:
    raise ConfigError(message(name, f"{shown_value(value)} is not allowed, expected {allowed}", fix))


def _checked(f: dataclasses.Field[Any], value: Any) -> Any:
    """Returns the value in the field's own type, or raises ConfigError."""
    kind, allowed = f.metadata["kind"], f.metadata["allowed"]
    flag = "--" + f.name.replace("_", "-")
    if value is None and f.default is None:
        return None
    if f.name in TEXTS:
        if not isinstance(value, (list, tuple)) or len(value) > MAX_LIST or not all(
                isinstance(v, str) and 0 < len(v) <= MAX_NAME and v.isprintable() for v in value):
            _refuse(f.name, value, *(("a list of files and modules", "write --import my_file.py") if f.name == "imports"
                                     else ("a list of texts", f"write {flag} as the help shows")))
        return tuple(value)
    if kind is tuple:
        if (not isinstance(value, (list, tuple)) or len(value) > MAX_LIST
                or not all(_is(float, v) and v in allowed for v in value)):
            _refuse(f.name, value, f"a list of at most {MAX_LIST} numbers, each {allowed}", f"write {flag} 0.5,0.75")
        return tuple(float(v) for v in value)
    if not _is(kind, value) or value == "":
        _refuse(f.name, value, f"a value of type {kind.__name__}, not empty", f"give one, such as {f.default!r}")
    if kind is str and (len(value) > MAX_NAME or any(c < " " or c == "\x7f" for c in value)
                        or not _is_unicode(value)):
        _refuse(f.name, value, f"UTF-8 without control characters, of at most {MAX_NAME} characters",
                f"give one, such as {f.default!r}")
    if isinstance(allowed, Interval) and value not in allowed:
        _refuse(f.name, value, allowed, f"choose {flag} in that range")
    if f.name == "dataset" and is_folder(value):
        if not Path(value).is_dir():
            _refuse(f.name, value, "the path of a folder that is there, or a name", "correct the path; names of data "
                    f"sets are {', '.join(DATASETS)}")
        return str(Path(value).resolve())
    if isinstance(allowed, Collection) and value not in allowed:
        own = f", or {IMPORTED}" if isinstance(allowed, dict) else ""
        _refuse(f.name, value, f"one of {', '.join(allowed)}", f"choose one of them{did_you_mean(value, allowed)}{own}")
    return kind(value)


def _is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; a name in the file system may be of other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is(kind: type, value: Any) -> bool:
    """Whether value has this type; an int that fits may stand for a float, a bool only for itself."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (kind is float and isinstance(value, int) and abs(value) < 1 << 1000)


def parser() -> argparse.ArgumentParser:
    """Returns the command line of `python -m train`.  Values arrive as text, and only if they were given."""
    result = Parser(prog="python -m train", allow_abbrev=False, argument_default=argparse.SUPPRESS, epilog=STATUSES,
                    description="Trains an image classifier. Its last line is the test accuracy.")
    for f in dataclasses.fields(Config):
        text, allowed = f.metadata["help"], f.metadata["allowed"]
        if f.default not in (None, False, ()) and "(default" not in text:
            shown = ",".join(map(str, f.default)) if isinstance(f.default, tuple) else f.default
            text += f" (default: {shown})"
        if isinstance(allowed, Collection):
            text += f"; one of {', '.join(allowed)}"
        options: dict[str, Any] = {"metavar": f.metadata["kind"].__name__.upper().replace("TUPLE", "LIST")}
        if f.metadata["kind"] is bool:
            options = {"action": argparse.BooleanOptionalAction}
        elif f.name in TEXTS:
            flag, what = ("--import", "FILE") if f.name == "imports" else ("--" + f.name.replace("_", "-"), "TEXT")
            result.add_argument(flag, dest=f.name, metavar=what, action="append", help=text.replace("%", "%%"))
            continue
        elif f.name == "resume":
            options = {"metavar": "PATH", "nargs": "?", "const": "auto"}
        result.add_argument("--" + f.name.replace("_", "-"), help=text.replace("%", "%%"), **options)
    result.add_argument("--config", metavar="FILE", help="TOML file with any of these settings, or the name of a "
                        f"recipe, {', '.join(recipes())}; flags beat it")
    result.add_argument("--list-models", action="store_true", help="print the names of all models, and stop")
    return result


def parse(argv: Sequence[str] | None = None) -> Config:
    """Returns the Config of a command line (default: of this process).  --list-models and --help print and exit.

    Raises:
        ConfigError: if a flag or a key is unknown, the file cannot be read, or a value is not allowed.
    """
    command = parser()
    given, unknown = command.parse_known_args(argv)
    if unknown:
        flags = [option for action in command._actions for option in action.option_strings]
        near = did_you_mean(unknown[0], flags)
        raise ConfigError(message("train", f"unknown argument {shown_value(unknown[0])}{near}",
                                  "remove it, or correct it; python -m train --help lists all"))
    flags_given = vars(given)
    for name, value in flags_given.items():
        if isinstance(value, list) and name not in TEXTS:  # argparse makes one of `--lr=--`
            command.error(f"argument --{name.replace('_', '-')}: expected one argument")
    path, listing = flags_given.pop("config", None), flags_given.pop("list_models", False)
    file = {} if path is None else read_toml(RECIPES / f"{path}.toml" if path in recipes() else Path(path))
    kinds = {f.name: f.metadata["kind"] for f in dataclasses.fields(Config)}
    given_here = file | {name: value if name in TEXTS else _from_text(name, kinds[name], value)
                         for name, value in flags_given.items()}
    before = settings_of_start(given_here) | settings_of(given_here.get("resume"))
    values = {name: value for name, value in before.items() if name in kinds} | given_here
    field_of = {f.name: f for f in dataclasses.fields(Config)}
    import_all(_checked(field_of["imports"], values.get("imports", ())))
    if listing:
        print("\n".join(models.list()))
        raise SystemExit(0)
    try:
        config = Config.from_dict(values)
    except ConfigError as error:
        missing = IMPORTED in str(error) and missing_imports({"imports": imports_of(values)}, values.get("imports", ()))
        if missing:
            raise ConfigError(f"{error}; the run was started with{missing}") from error
        raise
    refuse_without_effect(config, flags_given, file)
    return config


def recipes() -> list[str]:
    """Returns the names of the recipes that --config knows."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _from_text(name: str, kind: type, text: Any) -> Any:
    try:
        if kind is tuple:
            return tuple(float(item) for item in text.split(","))
        return kind(text)
    except ValueError:
        allowed = "numbers with commas between" if kind is tuple else f"a value of type {kind.__name__}"
        _refuse(name, text, allowed, f"write --{name.replace('_', '-')} as the help shows: python -m train --help")
