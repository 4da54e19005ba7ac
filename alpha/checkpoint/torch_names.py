"""Names that PyTorch's models have for parameters that are called or cut otherwise here.

A module has in `torch_names` the names of its submodules there. The one weight of a CoConv2d is a convolution per
level there, in one of two public forms: `conv2_1.weight`, ... of the authors' networks, where a single level is a plain
convolution, and `coconv_levels.0.weight`, ... of their general layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from alpha.checkpoint.layouts import paths
from alpha.core.errors import CheckpointError, ConfigError, message
from alpha.core.inputs.schema import shown
from alpha.nn import CoConv2d, Module

FIRST_LEVELS = ("conv2_1", "coconv_levels.0")  # names of the first level; the next ones count on


def check_levels(where: str, levels: Any) -> None:
    """Raises ConfigError unless `levels` is one of FIRST_LEVELS."""
    if levels not in FIRST_LEVELS:
        raise ConfigError(message(where, f"levels is {shown(levels)}, the first level of a CoConv2d is called "
                                  f"{' or '.join(map(repr, FIRST_LEVELS))}", "pass one of these"))


def to_own(where: str, model: Module, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a state by the names of the model, levels joined; an unknown entry keeps its name.

    Raises CheckpointError where a level does not have the filters that the layer's has.
    """
    names = {name: name for name in state}  # by their names here, so far
    for prefix, module in paths(model):
        for ours, theirs in module.torch_names.items():
            old, new = f"{prefix}{theirs}.", f"{prefix}{ours}."
            for name in [name for name in names if name.startswith(old)]:
                if new + name[len(old):] not in names:
                    names[new + name[len(old):]] = names.pop(name)
    found = {name: state[given] for name, given in names.items()}
    for prefix, module in paths(model):
        if isinstance(module, CoConv2d):
            _join(where, prefix, module, found)
    return found


def to_torch(model: Module, state: Mapping[str, np.ndarray], levels: str) -> dict[str, np.ndarray]:
    """The inverse of `to_own`, of arrays in PyTorch's layouts, in the form with that name of the first level."""
    found: dict[str, np.ndarray] = {}
    cut = {prefix: module for prefix, module in paths(model) if isinstance(module, CoConv2d)}
    for name, a in state.items():
        prefix, _, last = name.rpartition(".")
        module = cut.get(f"{prefix}." if prefix else "")
        if module is None or (len(module.channels) == 1 and levels == FIRST_LEVELS[0]):
            found[name] = a
            continue
        ends = np.cumsum(module.channels)[:-1]
        for level, part in zip(_level_names(levels, module), np.split(a, ends)):
            found[f"{prefix}.{level}.{last}".removeprefix(".")] = np.ascontiguousarray(part)
    for prefix, renamed in reversed(list(paths(model))):  # the inner ones first: then names begin as they do here
        for ours, theirs in renamed.torch_names.items():
            old = f"{prefix}{ours}."
            found = {f"{prefix}{theirs}.{name[len(old):]}" if name.startswith(old) else name: a
                     for name, a in found.items()}
    return found


def _level_names(first: str, module: CoConv2d) -> list[str]:
    return [f"{first[:-1]}{int(first[-1]) + k}" for k in range(len(module.channels))]


def _join(where: str, prefix: str, module: CoConv2d, found: dict[str, np.ndarray]) -> None:
    """Puts the levels of a layer together, where they are found under one of their names."""
    for last in ("weight", "bias"):
        for first in FIRST_LEVELS:
            names = [f"{prefix}{level}.{last}" for level in _level_names(first, module)]
            if f"{prefix}{last}" in found or not all(name in found for name in names):
                continue
            for name, channels in zip(names, module.channels):
                if found[name].ndim == 0 or len(found[name]) != channels:
                    raise CheckpointError(message(where, f"{name} has shape {found[name].shape}, its level has "
                                                  f"{channels} filters", f"build the layer with the channels of the "
                                                  f"file, it has {module.channels}"))
            if len({found[name].shape[1:] for name in names}) > 1:
                raise CheckpointError(message(where, f"the levels {names[0]} to {names[-1]} differ in shape: "
                                              f"{[found[name].shape for name in names]}",
                                              "write them from one layer"))
            found[f"{prefix}{last}"] = np.concatenate([found.pop(name) for name in names])
