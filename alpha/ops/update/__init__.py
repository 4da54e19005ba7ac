"""Steps of the optimizers, over all parameters at once and in place; and the sums behind gradient clipping.

A step is an op that is made of a rule: rules.py has them, rule.py says how they are written. It takes lists of tensors,
one entry per parameter: the parameters w, all of one dtype, their gradients g (read only) and the states, by the names
of the rule, which start as zeros unless it says otherwise. The list of a state that is not wanted is empty. Nothing
here has a gradient. Steps count from 1.

Steps are computed in float32 for parameters of 16 bits, and the states of a `wide` rule are float32 then: squares of
gradients, and eps, are too small for float16. The states of the others have the parameters' dtype.

Where a step takes `factor`, a float32 tensor of shape () (see loss_scale_step), its gradients are factor * g, and a
factor of 0 skips it: nothing changes then, not even the states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from alpha.core.device import HALF_DTYPES, get_backend
from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.kinds import Count, Decay, Finite, Limit, NonNegative, Share
from alpha.core.op import Op, Spec, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.update import rules
from alpha.ops.update.rule import Rule


def state_dtype(dtype: str) -> str:
    """Returns the dtype of the states of an adaptive step, for parameters of a dtype."""
    return "float32" if dtype in HALF_DTYPES else dtype


# ---- from a rule to an op --------------------------------------------------------------------------------------------


def made_of(rule: Rule, lists: str = "params grads factor") -> Callable[[type], Op]:
    """Returns the decorator that makes an op of a class with `settings`, whose keywords are the rule's.

    Args:
        lists: what the op calls the lists of what is changed and of what is read, and the factor, if it takes one.
    """
    def make(cls: type) -> Op:
        _steps[rule] = op(_body(rule, cls.__name__, lists, vars(cls)["settings"], cls.__module__, cls.__doc__))
        return _steps[rule]
    return make


_steps: dict[Rule, Op] = {}


def step_of(rule: Rule) -> Op:
    """Returns the op of a rule.  That of a rule without a name in alpha.ops takes all settings by name."""
    if rule not in _steps:
        def settings(**given: float) -> None: ...

        kinds: dict[str, Any] = {"lr": NonNegative, "step": Count}
        settings.__signature__ = inspect.Signature(     # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in rule.settings])
        settings.__annotations__ = {name: kinds[name] for name in rule.settings if name in kinds}
        _steps[rule] = Op(_body(rule, f"{rule.name}_step", "params grads factor", settings, __name__,
                                f"The step of {rule.name}."))
    return _steps[rule]


def _body(rule: Rule, name: str, lists: str, settings: Callable[..., Any], module: str, doc: str | None) -> type:
    """Returns the class that an op is made of."""
    changed, read, *factor = lists.split()
    states = rule.states

    @wraps(settings)
    def shape(*given: Any, **attrs: Any) -> None:
        params, grads, *rest = given
        if factor:
            _check_factor(name, rest.pop())
        _match(name, changed, params, {read: grads, **dict(zip(states, rest))}, rule, attrs)

    return type(name, (), dict(
        __doc__=doc, __module__=module, args=" ".join([f"*{changed} *{read}", *[f"*{s}" for s in states],
                                                       *[f"{f}?" for f in factor]]),
        outs="", mutates=" ".join([changed, *states]), mixed=" ".join([*(states if rule.wide else ()), *factor]),
        rule=rule, shape=shape))


def _check_factor(where: str, factor: Tensor | None) -> None:
    if factor is not None and (factor.dtype, factor.shape) != ("float32", ()):
        raise ShapeError(message(where, f"factor is {factor.dtype} of shape {factor.shape}, float32 of shape () is "
                                 "needed", "pass the result of loss_scale_step, or None"))


def _match(where: str, changed: str, params: Sequence[Tensor], lists: Mapping[str, Sequence[Tensor]], rule: Rule,
           attrs: Mapping[str, Any]) -> None:
    """Refuses lists that do not match the parameters one by one; those of states that are not wanted may be empty."""
    for name, tensors in lists.items():
        if not tensors and name in rule.optional and not attrs.get(rule.optional[name]):
            continue
        if len(tensors) != len(params):
            raise ShapeError(message(where, f"{name} has {len(tensors)} tensors, {changed} has {len(params)}",
                                     f"pass one tensor in {name} per parameter"))
        for k, (t, w) in enumerate(zip(tensors, params)):
            if t.shape != w.shape:
                raise ShapeError(message(where, f"{name}[{k}] has shape {t.shape}, {changed}[{k}] has {w.shape}",
                                         f"pass tensors in {name} of the parameters' shapes"))
            if name in rule.states and rule.wide and t.dtype != state_dtype(w.dtype):
                raise DTypeError(message(
                    where, f"{name}[{k}] is {t.dtype}, {changed}[{k}] is {w.dtype}: the state must be "
                    f"{state_dtype(w.dtype)}", f'convert the state: {name}[{k}].astype("{state_dtype(w.dtype)}")'))


# ---- steps -----------------------------------------------------------------------------------------------------------


@public()
@made_of(rules.SGD)
class sgd_step:
    """Stochastic gradient descent, as PyTorch has it.

    alpha.optim.SGD has the equations.

    Args:
        params, grads: w and g.
        v: the momenta; empty where momentum is 0.  Overwritten on the first step.
        lr, momentum, dampening, weight_decay, nesterov: see there.
        first: whether this is the first step of these parameters.
    Raises:
        ShapeError: the lists do not match.
    """

    def settings(*, lr: NonNegative, momentum: NonNegative = 0.0, dampening: Finite = 0.0, nesterov: bool = False,
                 weight_decay: NonNegative = 0.0, first: bool = False): ...


@public()
@made_of(rules.ADAM)
class adam_step:
    """Adam, AdamW (decoupled) and AMSGrad (with vmax).

    alpha.optim.Adam has the equations.

    Args:
        params, grads, m, v: see there.
        vmax: the largest v so far, for AMSGrad; else empty.
        step: t, at least 1.
        lr, beta1, beta2, eps, weight_decay, decoupled: see there.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1412.6980, Algorithm 1; AdamW: 1711.05101, Algorithm 2; AMSGrad: 1904.09237, Algorithm 2.  Differs:
        eps is added to the corrected root, the decay is scaled by lr, vmax is of the uncorrected v, as in PyTorch.
    """

    def settings(*, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay = 0.999, eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0, decoupled: bool = False): ...


@public()
@made_of(rules.RMSPROP)
class rmsprop_step:
    """RMSprop, plain or centered (with a), with or without momentum.

    alpha.optim.RMSprop has the equations.

    Args:
        params, grads, v: see there.
        a: the average gradient, for the centered form; else empty.
        b: the momenta; empty where momentum is 0.
        lr, alpha, eps, weight_decay, momentum: see there.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: T. Tieleman, G. Hinton, "Lecture 6.5 - RMSProp", 2012; centered: arXiv 1308.0850.
        Differs: eps is added to the root, as in PyTorch.
    """

    def settings(*, lr: NonNegative, alpha: Decay = 0.99, eps: NonNegative = 1e-8, weight_decay: NonNegative = 0.0,
                 momentum: Decay = 0.0): ...


@public()
@made_of(rules.ADAMAX)
class adamax_step:
    """Adamax: Adam with the largest gradient so far, decaying, instead of the root mean square.

    alpha.optim.Adamax has the equations.

    Args:
        params, grads, m, u: see there.
        step: t, at least 1.
        lr, beta1, beta2, eps, weight_decay: see there.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1412.6980, Algorithm 2.  Differs: eps, which keeps u above 0, as in PyTorch.
    """

    def settings(*, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay = 0.999, eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0): ...


@public()
@made_of(rules.RADAM)
class radam_step:
    """Rectified Adam: plain momentum until the variance of the adaptive rate is bounded, then Adam times r.

    alpha.optim.RAdam has the equations.

    Args:
        params, grads, m, v: see there.
        step: t, at least 1.
        lr, beta1, beta2, eps, weight_decay: see there.
        decoupled: whether the decay shrinks w before the step, as in AdamW.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1908.03265, Algorithm 2.  Differs: the threshold of p_t is 5 and eps is added, as in PyTorch.
    """

    def settings(*, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay = 0.999, eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0, decoupled: bool = False): ...


@public()
@made_of(rules.ADAMOD)
class adamod_step:
    """AdaMod: Adam whose rate per element is bounded by its own exponential average s.

    alpha.optim.AdaMod has the equations.

    Args:
        params, grads, m, v, s: see there.
        step: t, at least 1.
        lr, beta1, beta2, beta3, eps, weight_decay: see there.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1910.12249.  Differs: the decoupled weight decay.
    """

    def settings(*, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay = 0.999, beta3: Decay = 0.999,
                 eps: NonNegative = 1e-8, weight_decay: NonNegative = 0.0): ...


@public()
@made_of(rules.EMA, "averages params")
class ema_step:
    """Exponential moving average: average = decay * average + (1 - decay) * w, in place.

    Args:
        averages, params: matching lists.
        decay: in [0, 1].
    Raises:
        ShapeError: the lists do not match.
    """

    def settings(*, decay: Share): ...


# ---- sums, and the scale of a loss -----------------------------------------------------------------------------------


@public()
@op
class sums_of_squares:
    """y[k] = sum of the squares of the elements of tensor k: the norm of all gradients is the root of y's sum.

    One number per tensor, so that the first one that is not finite can be named.
    Args:
        tensors: any shapes, one float dtype.
    Returns:
        y of shape (number of tensors,), float64 where the device has it, else float32; added up in a fixed order.
    """

    args = "*tensors"

    def shape(tensors):
        wide = tensors and "float64" in get_backend(tensors[0].device).dtypes
        return Spec((len(tensors),), "float64" if wide else "float32")


LARGEST_SCALE = 2.0 ** 24


@public()
@op
class loss_scale_step:
    """Decides what becomes of a step whose loss was multiplied by `scale`, and moves the scale, all on the device.

        finite = every sum of squares is
        factor = min(1, max_norm / norm) / scale, norm = sqrt(sum(squares)) / scale;  0 where not finite
        finite:      good = good + 1; where that reaches growth_interval, scale = min(2 * scale, 2^24) and good = 0
        not finite:  skipped = skipped + 1, scale = max(scale / 2, 1) and good = 0

    Args:
        squares: sums_of_squares of the gradients of all parameters, made of the scaled loss.
        scale: float32, shape ().  A power of two stays one, so that it costs no digit.
        counts: int32, shape (2,): good, skipped.
        growth_interval: finite steps in a row after which the scale is doubled.
        max_norm: largest norm of the true gradients; 0 sets no limit.
    Returns:
        factor: float32, shape (); for the step of the optimizer.
    Source: arXiv 1710.03740, section 3.2; the numbers are PyTorch's.
    """

    args, outs, mutates, mixed = "squares scale counts", "factor", "scale counts", "squares scale counts"

    def shape(squares, scale, counts, *, growth_interval: Count = 2000, max_norm: Limit = 0.0):
        for name, t, dtype, shape in (("scale", scale, "float32", ()), ("counts", counts, "int32", (2,))):
            if (t.dtype, t.shape) != (dtype, shape):
                raise ShapeError(message("loss_scale_step", f"{name} is {t.dtype} of shape {t.shape}, {dtype} of shape "
                                         f"{shape} is needed", "use alpha.optim.LossScaler"))
        if squares.ndim != 1 or squares.dtype not in ("float32", "float64"):
            raise ShapeError(message("loss_scale_step", f"squares is {squares.dtype} of shape {squares.shape}, floats "
                                     "of one axis are needed", "pass the result of sums_of_squares"))
        return Spec((), "float32")
