"""The model that `alpha compare` is given: a class or function in a file, or a shipped network by its name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

from alpha.core.errors import ConfigError, message
from alpha.interop.pytorch import to_torch
from alpha.start import import_companions

WHERE = "compare"
SEED = 7


class Target(NamedTuple):
    """A file and a name in it; file "" is a shipped network."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}" if self.file else self.name


def parsed(text: str) -> Target:
    """Returns the target of `FILE.py:Name` or of the name of a shipped network.  Raises ConfigError."""
    file, colon, name = text.rpartition(":")
    if colon and (not file.endswith(".py") or not name.isidentifier()):
        raise ConfigError(message(WHERE, f"{text} is no FILE.py:Name", "write alpha compare my_models.py:Net"))
    if colon and not Path(file).is_file():
        raise ConfigError(message(WHERE, f"there is no file {file}", "name the file that has the model's class"))
    return Target(file, name)


def made(target: Target) -> Any:
    """Returns the torch.nn.Module, with the same weights in every process.

    Raises ConfigError where the file cannot be imported, has no such name, or that makes no torch.nn.Module.
    """
    import torch

    torch.manual_seed(SEED)
    if not target.file:
        return _shipped(target.name)
    path = Path(target.file).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))        # so that it finds the files beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:      # whatever the file raises
        raise ConfigError(message(WHERE, f"{target.file} cannot be imported: {type(error).__name__}: {error}",
                                  "make python FILE.py work")) from error
    finally:
        sys.path.remove(str(path.parent))
    if not hasattr(module, target.name):
        raise ConfigError(message(WHERE, f"{target.file} has no {target.name}", "write the name of a class, or of a "
                                  "function that returns a model"))
    found = getattr(module, target.name)
    try:
        model = found if isinstance(found, torch.nn.Module) else found()
    except TypeError as error:
        raise ConfigError(message(WHERE, f"{target.name}() fails: {error}", "write a function without arguments that "
                                  "returns the model, and name that")) from error
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(message(WHERE, f"{target} is {type(model).__name__}, a torch.nn.Module is needed",
                                  "name its class, or a function that returns one"))
    return model


def _shipped(name: str) -> Any:
    """Returns PyTorch's twin of a shipped network."""
    from alpha.random import manual_seed

    try:
        import_companions("models")
    except ImportError as error:
        raise ConfigError(message(WHERE, "the shipped networks are not here", "name a file: my_models.py:Net"
                                  )) from error
    manual_seed(SEED)
    return to_torch(sys.modules["models"].create(name))


def example_of(shape: tuple[int, ...], batch: int, model: Any) -> tuple[Any, Any]:
    """Returns a batch of random inputs and of labels: as many classes as the model has outputs."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn((batch, *shape), generator=generator)
    training = model.training
    try:
        with torch.no_grad():
            out = model.eval()(x[:2])
    except Exception as error:      # whatever the model raises
        raise ConfigError(message(WHERE, f"the model does not take an input of shape {tuple(x.shape)}: {error}",
                                  "pass --input C,H,W as its forward takes it, without the axis of samples")) from error
    finally:
        model.train(training)
    while isinstance(out, (tuple, list, dict)):
        out = next(iter(out.values() if isinstance(out, dict) else out))
    classes = out.shape[-1] if out.ndim == 2 else 1
    return x, torch.randint(0, classes, (batch,), generator=generator)

