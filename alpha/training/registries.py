"""What training finds by name: models, optimizers, schedules and losses.  Data sets: alpha.data.register_dataset.

    @register_optimizer(lr=1e-4)
    class Lion(optim.Optimizer): ...

Each decorator takes a name, @register_model("net"), or makes one of the function's or class's. What the same file or
notebook registers again replaces what it registered before; a name of another file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, NamedTuple

from alpha import ops, optim
from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.arguments import bound, checked
from alpha.core.inputs.ints import is_real
from alpha.core.inputs.kinds import NonNegative
from alpha.core.inputs.registry import call_with, decorator, find, parameters_of, takes_both
from alpha.core.tensor import Tensor
from alpha.nn import Module
from alpha.optim import schedule
from alpha.optim.schedule import Schedule
from alpha.training.options import check_names

Loss = Callable[..., Tensor]


class OptimizerEntry(NamedTuple):
    """An optimizer that has a name, and the learning rate that it has unless one is given."""

    make: Callable[..., optim.Optimizer]
    lr: float
    written: Any


MODELS: dict[str, Callable[..., Module]] = {}
OPTIMIZERS: dict[str, OptimizerEntry] = {}
SCHEDULES: dict[str, Callable[..., Schedule]] = {}
LOSSES: dict[str, Loss] = {}


@bound
def register_model(make: Any = None) -> Any:
    """Makes a function `name(num_classes, ...) -> Module`, or a class of modules, a model of that name."""
    return decorator(MODELS, "register_model", "a model", make, lambda thing: thing)


@checked
def register_optimizer(make: Any = None, *, lr: NonNegative | None = None) -> Any:
    """Makes a class of optimizers one of that name, in lower case: `make(params, lr=..., weight_decay=...)`.

    It gets those of lr, weight_decay and momentum that it takes; lr is a schedule.
    Args:
        lr: learning rate unless one is given; default that of its signature, or 1e-3.
    """
    def entry(thing: Any) -> OptimizerEntry:
        if "lr" not in parameters_of(thing):
            takes = ", ".join(parameters_of(thing))
            raise ConfigError(message("register_optimizer", f"{thing.__name__} takes ({takes}), and no lr",
                                      "let it take (params, lr=1e-3)"))
        own = default_of(thing, "lr")
        return OptimizerEntry(thing, float(lr if lr is not None else own or 1e-3), thing)
    return decorator(OPTIMIZERS, "register_optimizer", "an optimizer", make, entry,
                     lambda thing: thing.__name__.lower())


@bound
def register_schedule(make: Any = None) -> Any:
    """Makes a function that returns a schedule (a function of the step, alpha.optim.schedule) one of that name.

    It gets those of these that it takes: lr, total_steps, steps_per_epoch, warmup_steps, epochs; gamma, step_size and
    milestones (in steps). Where it does not take warmup_steps, the learning rate rises to what it says.
    """
    return decorator(SCHEDULES, "register_schedule", "a schedule", make, lambda thing: thing)


@bound
def register_loss(make: Any = None) -> Any:
    """Makes a function `loss(outputs, targets) -> Tensor of shape ()` a loss of that name; it may take label_smoothing.
    """
    return decorator(LOSSES, "register_loss", "a loss", make, lambda thing: thing)


def default_of(thing: Any, name: str) -> Any:
    """Returns the number that a class or function takes for a parameter unless one is given; None: it has none."""
    if parameters_of(thing).get(name) is not False:
        return None
    value = signature(thing).parameters[name].default
    return value if is_real(value) else None


# ---- from a name to the thing ----------------------------------------------------------------------------------------


def make_optimizer(where: str, what: Any, named_parameters: Iterable[Any], lr: float | Schedule | None,
                   **settings: Any) -> optim.Optimizer:
    """Returns the optimizer of a name, or of a class or function of the user's.

    Args:
        settings: of which each optimizer gets those that it takes.
    Raises ConfigError.
    """
    entry = find(OPTIMIZERS, where, "optimizer", what) if isinstance(what, str) else None
    make = entry.make if entry else what
    if lr is None and entry:
        lr = entry.lr
    if lr is not None:
        settings["lr"] = lr
    made = call_with(f"{where}: optimizer", make, named_parameters, **settings)
    lost = [name for name in ("step", "zero_grad", "param_groups") if not hasattr(made, name)]
    if lost:
        raise ConfigError(message(where, f"the optimizer made is {shown(made)}, which has no {lost[0]}",
                                  "derive it from alpha.optim.Optimizer, and call super().__init__(params, ...)"))
    return made


def make_schedule(where: str, what: Any, *, warmup_steps: int = 0, **course: Any) -> Schedule:
    """Returns the learning rate as a function of the step, from a name or a function.

    Args:
        course: lr, total_steps and what else a schedule may take; see `register_schedule`.
    Raises ConfigError.
    """
    function = find(SCHEDULES, where, "schedule", what) if isinstance(what, str) else what
    takes_warmup = "warmup_steps" in parameters_of(function)
    made = call_with(f"{where}: schedule {getattr(function, '__name__', '')}", function, warmup_steps=warmup_steps,
                     **course)
    if not callable(made):
        raise ConfigError(message(where, f"the schedule {what!r:.60} returned {made!r:.60}",
                                  "return a function of the step: lambda t: lr"))
    if warmup_steps and not takes_warmup:
        return lambda t: made(t) * min(1.0, (t + 1) / warmup_steps)
    return made


def find_loss(where: str, what: Any, label_smoothing: float = 0.0, options: Mapping[str, Any] | None = None) -> Loss:
    """Returns the loss of a name, or the function that is given.

    options: what it takes beside (outputs, targets), by name.
    Raises ConfigError.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(message(where, f"loss_options is {shown(options)}, a dict of settings by name is needed",
                                  'pass loss_options={"label_smoothing": 0.1}'))
    loss = find(LOSSES, where, "loss", what) if isinstance(what, str) else what
    if not callable(loss):
        raise ConfigError(message(where, f"loss is {loss!r:.60}", f"use one of {', '.join(LOSSES)}, or a function "
                                  "(outputs, targets) -> Tensor"))
    takes_both(where, f"the loss {loss!r:.60}", loss.forward if isinstance(loss, Module) else loss)
    given, function = dict(options or {}), loss.forward if isinstance(loss, Module) else loss
    if label_smoothing:
        if "label_smoothing" in given:
            raise ConfigError(message(where, f"label_smoothing is {label_smoothing:g}, and an option says "
                                      f"{shown(given['label_smoothing'])}", "give it once"))
        if isinstance(loss, Module) or "label_smoothing" not in parameters_of(function):
            raise ConfigError(message(where, f"the loss {what!r:.60} takes no label_smoothing, it is "
                                      f"{label_smoothing:g}", "leave it out, or give the loss that argument"))
        given["label_smoothing"] = label_smoothing
    if not given:
        return loss
    check_names(where, given, f"the loss {what!r:.60}", function, {}, 2)
    return lambda outputs, targets: loss(outputs, targets, **given)


# ---- ours ------------------------------------------------------------------------------------------------------------

for _class, _lr in ((optim.SGD, 0.02), (optim.Adam, 1e-3), (optim.AdamW, 1e-3), (optim.RMSprop, 1e-3),
                    (optim.Adamax, 2e-3), (optim.RAdam, 1e-3), (optim.AdaMod, 1e-3), (optim.NAdam, 2e-3),
                    (optim.Lion, 1e-4), (optim.LAMB, 1e-3), (optim.Adagrad, 1e-2), (optim.Adadelta, 1.0),
                    (optim.LARS, 1.0), (optim.Adafactor, 1e-2), (optim.Adan, 1e-3)):
    register_optimizer(lr=_lr)(_class)
register_optimizer("muon", lr=1e-3)(optim.MuonAdamW)
register_optimizer("schedule_free_sgd", lr=1.0)(optim.ScheduleFreeSGD)
register_optimizer("schedule_free_adamw", lr=2.5e-3)(optim.ScheduleFreeAdamW)


@register_optimizer(lr=0.02)
def lookahead_sgd(params: Any, lr: Any = 0.02, momentum: float = 0.9, weight_decay: float = 0.0) -> Any:
    return optim.Lookahead(optim.SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay))


@register_optimizer(lr=1e-3)
def lookahead_adamw(params: Any, lr: Any = 1e-3, weight_decay: float = 1e-2) -> Any:
    return optim.Lookahead(optim.AdamW(params, lr=lr, weight_decay=weight_decay))


@register_schedule
def constant(lr: float) -> Schedule:
    return schedule.constant(lr)


@register_schedule
def step(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    return schedule.step(lr, step_size, gamma)


@register_schedule
def multistep(lr: float, milestones: list[int], gamma: float = 0.1) -> Schedule:
    return schedule.multistep(lr, milestones, gamma)


@register_schedule
def exponential(lr: float, steps_per_epoch: int, gamma: float = 0.95) -> Schedule:
    return schedule.exponential(lr, gamma ** (1 / steps_per_epoch))


@register_schedule
def cosine(lr: float, total_steps: int, warmup_steps: int = 0) -> Schedule:
    return schedule.cosine(lr, total_steps, warmup_steps)


@register_schedule
def linear(lr: float, total_steps: int, warmup_steps: int = 0) -> Schedule:
    return schedule.linear(lr, total_steps, warmup_steps=warmup_steps)


@register_schedule
def polynomial(lr: float, total_steps: int, warmup_steps: int = 0) -> Schedule:
    return schedule.polynomial(lr, total_steps, power=2.0, warmup_steps=warmup_steps)


@register_schedule
def onecycle(lr: float, total_steps: int) -> Schedule:
    return schedule.one_cycle(lr, total_steps)


@register_schedule
def triangular(lr: float, total_steps: int) -> Schedule:
    return schedule.triangular(lr / 25, lr, max(1, total_steps // 2))


@register_loss
def cross_entropy(outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    return ops.cross_entropy(outputs, targets, label_smoothing=label_smoothing)


@register_loss
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return ops.mse_loss(outputs, targets)


@register_loss
def l1(outputs: Tensor, targets: Tensor) -> Tensor:
    return ops.l1_loss(outputs, targets)


@register_loss
def smooth_l1(outputs: Tensor, targets: Tensor) -> Tensor:
    return ops.smooth_l1_loss(outputs, targets)


@register_loss
def bce_with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    return ops.bce_with_logits_loss(outputs, targets)
