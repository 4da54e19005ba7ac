"""Networks for 32x32 images, by name: `models.create("resnet18", num_classes=10)`.

Some take stem="imagenet" and then 224x224 images, as the papers have them.

Inputs are NHWC, (N, 32, 32, 3); outputs are logits, (N, num_classes). Parameters are named and shaped as in the widely
used CIFAR-10 repository for PyTorch, so its weights load (alpha.checkpoint.load_torch). As there, `vgg16` has batch
norm; `vgg16_plain` has none: torchvision calls them `vgg16_bn` and `vgg16`.

Every file here is imported, and registers its models with @register_model: a new one needs nothing else.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

from alpha.core.inputs.arguments import checked
from alpha.core.inputs.registry import did_you_mean
from alpha.errors import ConfigError, MissingError, message, shown
from alpha.nn import BatchNorm2d, Conv2d, Module, Sequential
from alpha.training.registries import MODELS as _registry
from alpha.training.registries import register_model

__all__ = ["create", "description", "list", "register_model"]


STEMS = ("small", "imagenet")   # the first layers: for 32x32 images, and for 224x224


def check_option(where: str, name: str, value: object, known: tuple[str, ...]) -> None:
    """Raises ConfigError unless the value of an option is one of those known."""
    if value not in known:
        raise ConfigError(message(where, f"{name} is {value!r}, it can be {' or '.join(map(repr, known))}",
                                  "pass one of these"))


def conv_norm(in_channels: int, channels: int, kernel_size: int, stride: int = 1, groups: int = 1,
              activation: type[Module] | None = None) -> Sequential:
    """Returns a convolution that keeps the map, batch norm, and the activation if there is one."""
    convolution = Conv2d(in_channels, channels, kernel_size, stride=stride, padding=kernel_size // 2, groups=groups,
                         bias=False)
    return Sequential(convolution, BatchNorm2d(channels), *([] if activation is None else [activation()]))


def list() -> tuple[str, ...]:
    """Returns the names of all models, sorted."""
    return tuple(sorted(_registry))


@checked
def create(name: str, num_classes: int = 10, **options: Any) -> Module:
    """Returns a new model with freshly drawn parameters (alpha.manual_seed makes them repeatable).

    Args:
        options: those that the model takes beside num_classes: `models.description(name)`.
    Raises:
        ConfigError: the name or an option is unknown, or num_classes is below 1.
    """
    _known("models.create", name)
    if num_classes < 1:
        raise ConfigError(message("models.create", f"num_classes={num_classes} is below 1",
                                  "pass the number of classes"))
    known = [p for p in inspect.signature(_registry[name]).parameters][1:]
    for option in options:
        if option not in known:
            raise ConfigError(message("models.create", f"{name} has no option {option!r}, it has "
                                      f"{', '.join(known) or 'none'}", "leave it out, or correct its name"))
    make = _registry[name]
    try:
        inspect.signature(make).bind(num_classes, **options)
    except TypeError as error:
        raise ConfigError(message("models.create", f"{name} does not take the number of classes: {error}",
                                  f"write def {name}(num_classes): ...")) from None
    model = make(num_classes, **options)
    if not isinstance(model, Module):
        raise ConfigError(message("models.create", f"{name} returned {shown(model)}, a Module is needed",
                                  "return what was made: return nn.Sequential(...)"))
    vars(model)["_made_as"] = (name, num_classes, options)  # a checkpoint says so: alpha.training.contents
    return model


def description(name: str) -> str:
    """Returns the docstring of a model: the paper and its parameters.  Raises ConfigError where there is none."""
    return _registry[_known("models.description", name)].__doc__ or ""


def _known(where: str, name: Any) -> str:
    """Returns the name of a model.  Raises ConfigError if there is no such model."""
    if isinstance(name, str) and name in _registry:
        return name
    near = did_you_mean(name, _registry)
    fix = f"{near.removeprefix('; ')}" if near else f"use one of {', '.join(list())}"
    raise ConfigError(message(where, f"no model is called {shown(name) if not isinstance(name, str) else repr(name)}",
                              fix))


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _registry:
        fix = f'a model is made by name: models.create("{name}")'
    else:
        near = did_you_mean(name, (*_registry, *__all__)).removeprefix("; ")
        fix = near or "models.list() has the names of all models"
    raise MissingError(message("models", f"there is no {name}", fix))


for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
