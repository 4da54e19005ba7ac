"""Optimizer: parameter groups, per-parameter state, and the step that hands both to the op of a rule."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from alpha import ops
from alpha.core.errors import (
    ArgumentError,
    CheckpointError,
    ConfigError,
    GraphError,
    NotDefinedError,
    NotFoundError,
    message,
    shown,
)
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import bound_methods, checked, kinds_of
from alpha.core.inputs.schema import Integer, Items, Record, Table, Text, check, check_names, fitted
from alpha.core.leftover import has_grad
from alpha.core.tensor import Tensor
from alpha.interop import twins
from alpha.ops.update import state_dtype, step_of
from alpha.ops.update.rule import Rule
from alpha.optim.recorded import RecordedSteps, captured, refuse_second_step

NamedParams = Union[Tensor, Iterable[Union[Tensor, tuple[str, Tensor]]]]
Params = Union[NamedParams, Iterable[Mapping[str, Any]]]


def as_parameters(where: str, params: Any) -> list[Any]:
    """Returns what was given for parameters as a list; one tensor is a list of one.  Raises ArgumentError."""
    if isinstance(params, Tensor):
        return [params]
    if isinstance(params, (str, bytes, Mapping, np.ndarray)) or not hasattr(params, "__iter__"):
        raise ArgumentError(message(where, f"params is {shown(params)}, a list of tensors is needed",
                                    "pass model.parameters(), or a list of tensors"))
    return list(params)


SCALARS = Record({"optimizer": Text(), "step_count": Integer(0), "names": Items(Text()), "counts": Table(Integer(1))})


class State(dict[str, Any]):
    """What `state_dict` returns: a dict of "tensors" and "scalars"."""

    def __missing__(self, key: Any) -> Any:
        raise NotFoundError(message("state_dict", f"an optimizer's state has no {shown(key)}, it has {shown([*self])}",
                                    "optimizer.param_groups has the settings, optimizer.state what it keeps"))


@bound_methods("slots", "slot_shape", "start", "values", "update", "check", "numbers", "form")
class Optimizer:
    """Base of optimizers; a subclass gives the `rule` of its step, or the methods that stand for it.

    Args:
        params: tensors, (name, tensor) pairs as `module.named_parameters()` yields, or a list of groups: dicts with
            "params" and the settings in which the group differs.
        settings: defaults of all groups; `lr` is a number or a schedule (alpha.optim.schedule). What each may be, here
            and in a group, the annotations of the subclass's __init__ say (alpha.core.inputs.kinds).
    Attributes:
        param_groups: one dict per group: "params", "names" and the settings. Settings may be changed between steps.
        step_count: steps taken so far, which is what a schedule is asked with.
    Raises:
        ConfigError: there are no parameters, one comes twice or is no leaf, a setting is unknown or out of range.
        ArgumentError: params is no list, or a setting is of the wrong type.
    """

    rule: Rule | None = None    # the equations of a step that computes element by element: see alpha.ops.update.rule
    former: Mapping[str, str] = {}  # what checkpoints of older versions call a slot -> its name
    wide_states = False     # of a class without rule: whether states are float32 beside parameters of 16 bits
    _recorded: RecordedSteps | None = None  # while a function that makes steps is recorded

    def __init__(self, params: Params, **settings: Any) -> None:
        self.step_count = 0
        self.param_groups: list[dict[str, Any]] = []
        self._states: dict[str, dict[str, Tensor]] = {}     # name -> slot -> tensor shaped like the parameter
        self._counts: dict[str, int] = {}                   # name -> steps in which it had a gradient
        self._kinds = kinds_of(type(self).__init__)         # what each setting may be
        given = as_parameters(self._name, params)
        if not given:
            raise ConfigError(message(self._name, "there are no parameters", "pass model.parameters(); a generator "
                                      "that was read before is empty"))
        if "lr" not in settings:
            raise ConfigError(message(self._name, "it has no setting lr", "hand it on: super().__init__(params, "
                                      "lr=lr)"))
        self._defaults = settings
        groups: list[Any] = given if isinstance(given[0], Mapping) else [{"params": given}]
        for group in groups:
            if not isinstance(group, Mapping) or "params" not in group:
                raise ConfigError(message(self._name, f"a group is {shown(group)}, a dict with \"params\" is needed",
                                          'pass groups as [{"params": ..., "lr": ...}, ...]'))
            self._add_group(group, settings)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds a group: a dict with "params" and the settings in which it differs.  Raises as the constructor."""
        if not isinstance(group, Mapping) or "params" not in group:
            raise ConfigError(message(self._name, f"a group is {shown(group)}, a dict with \"params\" is needed",
                                      'pass {"params": layer.parameters(), "lr": 0.01}'))
        self._add_group(group, self._defaults)

    @property
    def _name(self) -> str:
        return type(self).__name__

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            return twins.attribute(self, self._name, name, twins.OPTIMIZER)

    def __setattr__(self, name: str, value: Any) -> None:
        ours = type(self).__module__.startswith("alpha.")   # others may keep a setting in an attribute of their own
        if name == "lr" or (ours and name in vars(self).get("_defaults", ())):
            raise ConfigError(message(self._name, f"{name} is a setting of its groups of parameters",
                                      f'write for group in optimizer.param_groups: group["{name}"] = ...'))
        object.__setattr__(self, name, value)

    # ---- copies and pickles ------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_kinds", "_recorded")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _kinds=kinds_of(type(self).__init__))

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle.  Raises CheckpointError where a schedule is a function that pickle cannot find by its name."""
        for k, group in enumerate(self.param_groups):
            if "<" in getattr(group["lr"], "__qualname__", ""):
                raise CheckpointError(message(
                    "pickle", f"lr of group {k} of {self._name} is {shown(group['lr'])}, which has no name of its own",
                    "save optimizer.state_dict() and load it into an optimizer that is made anew; or use "
                    "alpha.optim.schedule, or a function of a module"))
        return super().__reduce_ex__(protocol)

    # ---- what a subclass defines -------------------------------------------------------------------------------------

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the names of the tensors kept per parameter of the group: the rule's states, if there is a rule."""
        if self.rule is None:
            raise self._undefined("slots")
        return self.rule.wanted(group)

    def slot_shape(self, slot: str, p: Tensor) -> tuple[int, ...]:
        """Returns the shape of a slot's tensor: that of the parameter, unless a subclass says otherwise."""
        return p.shape

    def start(self, group: Mapping[str, Any], slot: str) -> float:
        """Returns the number that the elements of a slot start with: 0, unless a subclass says otherwise."""
        return 0.0

    def values(self, group: Mapping[str, Any], lr: float, step: int) -> dict[str, Any]:
        """Returns what the names of the rule's settings stand for: the settings of the group, betas as beta1, beta2."""
        found: dict[str, Any] = {}
        for name, value in group.items():
            if value.__class__ is tuple:
                found |= {f"{name.removesuffix('s')}{k}": x for k, x in enumerate(value, 1)}
            else:
                found[name] = value
        return {**found, "lr": lr, "step": step}

    def _settings(self, rule: Rule, group: Mapping[str, Any], lr: float, step: int) -> dict[str, Any]:
        """Returns the settings of a rule.  Raises ConfigError for one that the optimizer has not."""
        values = self.values(group, lr, step)
        if missing := [name for name in rule.settings if name not in values]:
            raise ConfigError(message(self._name, f"its rule reads {missing[0]}, which is none of its settings",
                                      "hand it on: super().__init__(params, lr=lr, ...); or correct the rule"))
        return {name: values[name] for name in rule.settings}

    def update(self, group: Mapping[str, Any], params: list[Tensor], grads: list[Tensor], states: Mapping[str, Any],
               lr: float, step: int, factor: Tensor | None) -> None:
        """Changes `params` and their states in place: step number `step` (from 1) with learning rate `lr`.

        `states` holds one list per slot, in the order of `params`; `factor` goes to the op of the rule as it is.
        """
        if self.rule is None:
            raise self._undefined("update")
        step_of(self.rule)(params, grads, *[states.get(slot, []) for slot in self.rule.states], factor,
                           **self._settings(self.rule, group, lr, step))

    def _undefined(self, method: str) -> NotDefinedError:
        return NotDefinedError(message(self._name, f"it has no method {method}",
                                       "define it: docs/how_to/add_an_optimizer.md"))

    def check(self, group: Mapping[str, Any]) -> None:
        """Raises ConfigError for settings that do not go together; each by itself fits the annotation of __init__."""

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        """Returns all numbers that `update` makes of lr, step and the settings: those of the rule, if there is one.

        Without a rule or this method no step can be recorded.
        """
        if self.rule is None:
            raise NotImplementedError
        return self.rule.variant(self.slots(group)).numbers(self._settings(self.rule, group, lr, step))

    def form(self, group: Mapping[str, Any]) -> Hashable:
        """Returns what of the group's settings decides which kernels a step launches: not what `numbers` has."""
        return self.slots(group)

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _add_group(self, group: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        for key in group:
            if key != "params" and key not in settings:
                close = difflib.get_close_matches(str(key)[:100], settings, n=1)
                raise ConfigError(message(self._name, f"a group has the setting {key!r:.100}, which is unknown",
                                          f"did you mean {close[0]}?" if close else f"use one of {sorted(settings)}"))
        made: dict[str, Any] = {**settings, **group, "params": [], "names": []}
        for name in settings:
            if name in self._kinds:
                made[name] = self._kinds[name].take(self._name, name, made[name])
        seen = {id(p): name for g in self.param_groups for p, name in zip(g["params"], g["names"])}
        position = len(seen)
        for k, item in enumerate(as_parameters(self._name, group["params"])):
            name, p = item if isinstance(item, tuple) and len(item) == 2 else (str(position + k), item)
            if not isinstance(p, Tensor) or not p.is_leaf or not p.is_floating_point or not isinstance(name, str):
                raise ConfigError(message(self._name, f"parameter {name if isinstance(name, str) else shown(name)} is "
                                          f"not a floating leaf tensor but {shown(p)}", "pass model.parameters()"))
            if id(p) in seen:
                raise ConfigError(message(self._name, f"parameter {name} was given before, as {seen[id(p)]}",
                                          "pass each parameter once"))
            if name in seen.values():
                raise ConfigError(message(self._name, f"two parameters are called {name!r}", "give each its own name"))
            seen[id(p)] = name
            made["params"].append(p)
            made["names"].append(name)
        if not made["params"]:
            raise ConfigError(message(self._name, "a group has no parameters", "drop the group, or fill it"))
        self.check(made)
        if self.rule is not None and type(self).values is Optimizer.values:
            self._settings(self.rule, made, 0.0, 1)     # refuses a rule that reads others
        self.param_groups.append(made)

    @property
    def lr(self) -> float:
        """The learning rate of the next step, of the first group."""
        return self._lr(self.param_groups[0])

    def _lr(self, group: Mapping[str, Any]) -> float:
        return group["lr"](self.step_count) if callable(group["lr"]) else group["lr"]

    # ---- steps -------------------------------------------------------------------------------------------------------

    def step(self, factor: Tensor | None = None) -> None:
        """Updates every parameter that has a gradient, in place.

        Args:
            factor: what all gradients are multiplied by, float32 of shape (); 0 changes no parameter and no state, but
                the step counts all the same, for a schedule and for Adam's bias correction. See LossScaler.
        Raises:
            ArgumentError: factor is no such tensor.
        """
        if factor is not None and not (isinstance(factor, Tensor) and (factor.dtype, factor.shape) == ("float32", ())):
            fix = ("call it before: loss = closure(); optimizer.step()" if callable(factor) else
                   "pass the result of loss_scale_step, or None")
            raise ArgumentError(message(self._name, f"factor is {shown(factor)}, a float32 tensor of shape () is "
                                        "needed", fix))
        if self in captured:
            refuse_second_step(self)
        if self._recorded is not None:
            self._recorded.steps.append([])
        with no_grad():
            for group in self.param_groups:
                lr, slots = self._lr(group), self.slots(group)
                present = [(self._counts.get(name, 0), name, p) for name, p in zip(group["names"], group["params"])
                           if p.grad is not None]
                for count, members in groupby(sorted(present, key=lambda m: m[0]), key=lambda m: m[0]):
                    self._update(group, [(name, p) for _, name, p in members], slots, lr, count + 1,
                                 factor)
        self.step_count += 1

    def _update(self, group: Mapping[str, Any], members: Sequence[tuple[str, Tensor]], slots: tuple[str, ...],
                lr: float, step: int, factor: Tensor | None) -> None:
        for name, p in members:
            self._counts[name] = step
            kept = self._states.setdefault(name, {})
            if self._recorded is not None and not kept.keys() >= {*slots}:
                raise GraphError(message(self._name, f"the state of {name} is made in the function that is recorded",
                                         "make a step before"))
            for slot in slots:
                if slot not in kept:        # at the first step, or where a setting that needs it was switched on later
                    kept[slot] = self._new_state(group, slot, p)
        states = {slot: [self._states[name][slot] for name, _ in members] for slot in slots}
        params, grads = [p for _, p in members], [p.grad for _, p in members if p.grad is not None]
        place: AbstractContextManager[None] = nullcontext() if self._recorded is None else self._recorded.part(
            group, [name for name, _ in members], step, members[0][1].device, params, grads, states, factor)
        with place:
            self.update(group, params, grads, states, lr, step, factor)

    def _new_state(self, group: Mapping[str, Any], slot: str, p: Tensor) -> Tensor:
        wide = self.wide_states if self.rule is None else self.rule.wide
        dtype = state_dtype(p.dtype) if wide else p.dtype
        return ops.full(self.slot_shape(slot, p), self.start(group, slot), dtype=dtype, device=p.device)

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters; set_to_none=False overwrites them with 0 instead."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None if set_to_none or not has_grad(p) else ops.zeros_like(p.detach())

    def __repr__(self) -> str:
        parts = []
        for k, group in enumerate(self.param_groups):
            settings = {n: v for n, v in group.items() if n not in ("params", "names")}
            settings["lr"] = self._lr(group) if callable(group["lr"]) else group["lr"]
            text = ", ".join([f"{name}={value!r}" for name, value in settings.items()])
            count = sum([p.numel() for p in group["params"]])
            parts.append(f"group {k}: {len(group['params'])} tensors of {count:,} elements, {text}")
        return f"{self._name}(step_count={self.step_count}\n  " + "\n  ".join(parts) + "\n)"

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns what the steps so far have left: {"tensors": {"<parameter>/<slot>": Tensor}, "scalars": {...}}.

        The scalars can be written as JSON. Settings (lr, momentum, ...) are not part of it: they are the caller's.
        The tensors share their elements with the optimizer.
        """
        tensors = {f"{name}/{slot}": t.detach() for name, slots in self._states.items() for slot, t in slots.items()}
        names = [name for group in self.param_groups for name in group["names"]]
        return State(tensors=tensors, scalars={"optimizer": self._name, "step_count": self.step_count, "names": names,
                                               "counts": dict(self._counts)})

    def _as_now(self, key: str) -> str:
        name, _, slot = key.rpartition("/")
        return f"{name}/{self.former[slot]}" if slot in self.former else key

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned.

        Raises:
            CheckpointError: it comes from another kind of optimizer or other parameters, or is no such state at all.
                Nothing has been loaded.
        """
        self.prepare_state_dict(state)()

    def prepare_state_dict(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Looks at what `load_state_dict` is to load, raises what that does, and returns the function that loads it."""
        fix = "pass what state_dict() returned, or what a checkpoint holds of it"
        if not isinstance(state, Mapping) or {*state} != {"scalars", "tensors"}:
            raise CheckpointError(message(self._name, 'the state is not a dict of "tensors" and "scalars"', fix))
        scalars, tensors = state["scalars"], state["tensors"]
        check(self._name, scalars, SCALARS, fix, "scalars")
        check_names(self._name, tensors)
        tensors = {self._as_now(key): t for key, t in tensors.items()}
        if scalars["optimizer"] != self._name:
            raise CheckpointError(message(self._name, f"the state is that of {scalars['optimizer']}",
                                          "resume with the optimizer that the run was started with"))
        params = {name: (p, self.slots(group), group) for group in self.param_groups
                  for name, p in zip(group["names"], group["params"])}
        if scalars["names"] != list(params):
            other = sorted(set(scalars["names"]) ^ set(params))
            what = f"the state has {len(scalars['names'])} parameters, the optimizer {len(params)}"
            raise CheckpointError(message(self._name, what + (f"; not in both: {', '.join(other)}" if other else
                                                              ", the same in another order"),
                                          "resume with the model and the groups that the run was started with"))
        for name, count in scalars["counts"].items():
            if name not in params or count > scalars["step_count"]:
                raise CheckpointError(message(self._name, f"the state counts {count} steps of {name}, and "
                                              f"{scalars['step_count']} in all", fix))
        shapes = {f"{name}/{slot}": tuple(self.slot_shape(slot, params[name][0])) for name in scalars["counts"]
                  for slot in params[name][1]}
        found = {key: tuple(t.shape) for key, t in tensors.items()}
        if shapes != found:
            wrong = sorted(key for key in {*shapes, *found} if shapes.get(key) != found.get(key))
            raise CheckpointError(message(self._name, f"tensors of the state do not fit: {', '.join(wrong)}",
                                          "resume with the model and the settings that the run was started with",
                                          state=found.get(wrong[0]), optimizer=shapes.get(wrong[0])))
        states = {name: {slot: self._new_state(params[name][2], slot, params[name][0]) for slot in params[name][1]}
                  for name in scalars["counts"]}
        own = {f"{name}/{slot}": t for name, slots in states.items() for slot, t in slots.items()}
        for key, value in fitted(self._name, tensors, own).items():     # also those of 16 bits, of older checkpoints
            own[key].copy_(value)

        def load() -> None:
            self.step_count, self._counts, self._states = scalars["step_count"], dict(scalars["counts"]), states

        return load
