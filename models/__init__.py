"""Networks for 32x32 images, by name: `models.create("resnet18", num_classes=10)`.

Inputs are NHWC, (N, 32, 32, 3); outputs are logits, (N, num_classes). Parameters are named and shaped as in the widely
used CIFAR-10 repository for PyTorch, so its weights load (alpha.checkpoint.load_torch). As there, `vgg16` has batch
norm; `vgg16_plain` has none: torchvision calls them `vgg16_bn` and `vgg16`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from alpha.errors import ConfigError, message
from alpha.nn import Module

_registry: dict[str, Callable[[int], Module]] = {}


def register_model(make: Callable[[int], Module]) -> Callable[[int], Module]:
    """Makes a function `name(num_classes) -> Module` a model of that name.  Raises ConfigError if the name is taken."""
    name = make.__name__
    if name in _registry:
        raise ConfigError(message("register_model", f"there is a model called {name!r} already", "choose another name"))
    _registry[name] = make
    return make


def list() -> tuple[str, ...]:
    """Returns the names of all models, sorted."""
    return tuple(sorted(_registry))


def create(name: str, num_classes: int = 10) -> Module:
    """Returns a new model with freshly drawn parameters (alpha.manual_seed makes them repeatable).

    Raises ConfigError if the name is unknown or num_classes is below 1.
    """
    if name not in _registry:
        close = difflib.get_close_matches(name, _registry, n=1)
        fix = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(list())}"
        raise ConfigError(message("models.create", f"no model is called {name!r}", fix))
    if num_classes < 1:
        raise ConfigError(message("models.create", f"num_classes={num_classes} is below 1",
                                  "pass the number of classes"))
    return _registry[name](num_classes)


def description(name: str) -> str:
    """Returns the docstring of a model: the paper and the number of parameters."""
    return _registry[name].__doc__ or ""


from models import alexnet, googlenet, lenet, resnet, vgg  # noqa: E402,F401  each registers its models
