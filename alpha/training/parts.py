"""Parts of a model that are trained otherwise: frozen ones, those with a learning rate of their own, weights of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from alpha import checkpoint
from alpha.core.errors import CheckpointError, ConfigError, message, shown
from alpha.core.inputs.registry import did_you_mean
from alpha.core.tensor import Tensor
from alpha.nn import Module
from alpha.nn.module import modes_kept
from alpha.optim.schedule import Schedule
from alpha.training.contents import contents_of
from alpha.training.runs import checkpoint_of, weights_of

LISTED = 6      # names in a message


def matching(where: str, model: Module, pattern: Any) -> Mapping[str, Tensor]:
    """Returns the parameters whose names match a pattern, or that lie in the layer of that name.

    Raises ConfigError where there are none.
    """
    own = dict(model.named_parameters())
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(message(where, f"a pattern is {shown(pattern)}, a text is needed",
                                  "pass the name of a layer, or 'layer1.*'"))
    found = {name: p for name, p in own.items() if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
    if not found:
        layers = [name for name, _ in model.named_modules() if name]
        raise ConfigError(message(where, f"no parameter matches {pattern!r}{did_you_mean(pattern, [*layers, *own])}",
                                  f"the parameters are {', '.join([*own][:LISTED])}, ..."))
    return found


def to_freeze(model: Module, patterns: Any) -> dict[str, Tensor]:
    """Returns the parameters that are to be frozen, by name.

    Raises ConfigError: a pattern matches nothing, or nothing is left to train.
    """
    if not isinstance(patterns, (str, list, tuple)):
        raise ConfigError(message("freeze", f"it is {shown(patterns)}, names or patterns are needed",
                                  "pass freeze=['layer1.*']"))
    held = [patterns] if isinstance(patterns, str) else patterns
    frozen = {name: p for pattern in held for name, p in matching("freeze", model, pattern).items()}
    ids = {id(p) for p in frozen.values()}
    if frozen and all(id(p) in ids for p in model.parameters() if p.requires_grad):
        raise ConfigError(message("freeze", f"all {len(ids)} parameters of the model are frozen: nothing is trained",
                                  "leave a pattern out"))
    return frozen


@contextmanager
def frozen_parts(model: Module, frozen: Mapping[str, Tensor]) -> Iterator[None]:
    """For a block: parameters are not trained, and layers that have no others are in inference mode.

    A batch norm among them keeps its statistics. Afterwards all is as it was.
    """
    ids = {id(p) for p in frozen.values()}
    before = [(p, p.requires_grad) for p in frozen.values()]
    still = [m for m in model.modules() if (own := [*m.parameters()]) and all(id(p) in ids for p in own)]
    with modes_kept(model) if still else nullcontext():
        if still and not any(m.training for m in model.modules()):  # it is trained as a whole, but for these
            model.train()
        for p, _ in before:
            p.requires_grad_(False)
        for m in still:
            m.eval()
        try:
            yield
        finally:
            for p, had in before:
                p.requires_grad_(had)


def scaled_groups(model: Module, scales: Mapping[str, float], lr: float | Schedule, frozen: Mapping[str, Tensor]
                  ) -> list[Any]:
    """Returns the first argument of an optimizer: named parameters, or groups of them with a learning rate each.

    Args:
        scales: pattern -> factor on lr; of several patterns that match, the last one counts.
        lr: a number, or a function of the step.
        frozen: parameters that the optimizer does not get.
    Raises:
        ConfigError: a pattern matches nothing, or a factor is no finite number above 0.
    """
    factors: dict[str, float] = {}
    for pattern, factor in scales.items():
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
            raise ConfigError(message("lr_scale", f"{pattern}={shown(factor)}, a finite number above 0 is needed",
                                      "freeze what is not to be trained; write lr_scale={'layer1.*': 0.1}"))
        factors.update(dict.fromkeys(matching("lr_scale", model, pattern), float(factor)))
    named = [(name, p) for name, p in model.named_parameters() if name not in frozen]
    if not scales:
        return named
    groups = {1.0: [pair for pair in named if factors.get(pair[0], 1.0) == 1.0]}
    for name, p in named:
        if factors.get(name, 1.0) != 1.0:
            groups.setdefault(factors[name], []).append((name, p))
    return [{"params": pairs, "lr": _scaled(lr, factor)} for factor, pairs in groups.items() if pairs]


def _scaled(lr: float | Schedule, factor: float) -> float | Schedule:
    if factor == 1.0:
        return lr
    return (lambda step: factor * lr(step)) if callable(lr) else factor * lr


class Start(NamedTuple):
    """The start of a model: a checkpoint, its weights by name, and its facts about inputs."""

    path: Path
    weights: dict[str, Tensor]
    use: dict[str, Any]


def read_start(path: Any) -> Start:
    """Reads the run that a model begins with.

    Args:
        path: its folder, or one of its checkpoints.
    Raises:
        CheckpointError: there is no such run, or its checkpoint does not name its model.
    """
    place = checkpoint_of("finetune", path)
    tensors, metadata = checkpoint.load(place)
    return Start(place, weights_of(tensors), contents_of("finetune", place, metadata))


def start_from(model: Module, start: Start) -> list[str]:
    """Gives a model the weights of a run, but for a last layer with another number of outputs.

    Returns:
        the names of the parameters that stay as they are.
    Raises:
        CheckpointError: the weights differ from the model's in more than the outputs; then nothing has changed.
    """
    theirs, own = start.weights, model.state_dict()
    fresh = [name for name, t in own.items() if name in theirs and theirs[name].shape != t.shape]
    wrong = sorted({*own} ^ {*theirs})
    wrong += [name for name in fresh if own[name].shape[1:] != theirs[name].shape[1:] or not own[name].ndim]
    layers = {name.rpartition(".")[0] for name in fresh}
    if wrong or len(layers) > 1:
        name = wrong[0] if wrong else fresh[0]
        there, here = (tensors[name].shape if name in tensors else "none" for tensors in (theirs, own))
        what = f"{name} is {there} there, {here} here"
        raise CheckpointError(message("finetune", f"{start.path} is of another network: {what}",
                                      "fine-tune the model of that run, with its options; only the number of outputs "
                                      "of its last layer may differ", differing=len(wrong) or len(fresh)))
    model.load_state_dict({**theirs, **{name: own[name] for name in fresh}})
    return fresh
