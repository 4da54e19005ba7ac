"""Steps of the optimizers, over all parameters at once and in place; and the sums behind gradient clipping.

Every step takes lists of tensors, one entry per parameter, all of one dtype: the parameters w, their gradients g (read
only) and the states, which start as zeros unless it says otherwise. A list that belongs to a variant which is not
wanted is empty. Nothing here has a gradient. t counts the steps from 1.

Steps are computed in float32 for parameters of 16 bits, and the states of adaptive steps are float32 then: squares of
gradients, and eps, are too small for float16. The momenta of sgd_step have the parameters' dtype.

Where a step takes `factor`, a float32 tensor of shape () (see loss_scale_step), its gradients are factor * g, and a
factor of 0 skips it: nothing changes then, not even the states.

The functions *_numbers say what a GPU computes with: made of a step's attributes in double, rounded to float32 once.
They are all that depends on lr, t and the settings, so a recorded step (alpha.capture) is given others each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from alpha.core.device import HALF_DTYPES, get_backend
from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.kinds import Count, Decay, Finite, Limit, NonNegative, Share
from alpha.core.op import Spec, op
from alpha.core.table import public
from alpha.core.tensor import Tensor

Numbers = tuple[float, ...]


def _check_factor(where: str, factor: Tensor | None) -> None:
    if factor is not None and (factor.dtype, factor.shape) != ("float32", ()):
        raise ShapeError(message(where, f"factor is {factor.dtype} of shape {factor.shape}, float32 of shape () is "
                                 "needed", "pass the result of loss_scale_step, or None"))


def state_dtype(dtype: str) -> str:
    """Returns the dtype of the states of an adaptive step, for parameters of a dtype."""
    return "float32" if dtype in HALF_DTYPES else dtype


def _match_states(where: str, params: Sequence[Tensor], optional: str = "", **lists: Sequence[Tensor]) -> None:
    """As _match, for the states of an adaptive step, whose dtype `state_dtype` says."""
    _match(where, params, optional, **lists)
    dtype = state_dtype(params[0].dtype) if params else ""
    for name, tensors in lists.items():
        for k, t in enumerate(tensors):
            if t.dtype != dtype:
                raise DTypeError(message(
                    where, f"{name}[{k}] is {t.dtype}, params[{k}] is {params[k].dtype}: the state must be {dtype}",
                    f'convert the state: {name}[{k}].astype("{dtype}")'))


def _match(where: str, params: Sequence[Tensor], optional: str = "", **lists: Sequence[Tensor]) -> None:
    """Refuses lists that do not match the parameters one by one; those named in `optional` may be empty."""
    for name, tensors in lists.items():
        if not tensors and name in optional.split():
            continue
        if len(tensors) != len(params):
            raise ShapeError(message(where, f"{name} has {len(tensors)} tensors, params has {len(params)}",
                                     f"pass one tensor in {name} per parameter"))
        for k, (t, w) in enumerate(zip(tensors, params)):
            if t.shape != w.shape:
                raise ShapeError(message(where, f"{name}[{k}] has shape {t.shape}, params[{k}] has {w.shape}",
                                         f"pass tensors in {name} of the parameters' shapes"))


@public()
@op
class sgd_step:
    """Stochastic gradient descent, as PyTorch has it.

        d = g + weight_decay * w
        v = d on the first step, then v = momentum * v + (1 - dampening) * d
        w = w - lr * (d + momentum * v if nesterov else v);  without momentum: w = w - lr * d

    Args:
        params, grads: w and g.
        momenta: v; empty where momentum is 0.  Overwritten on the first step, but must hold finite numbers.
        lr, momentum, dampening, weight_decay, nesterov: see above.
        first: whether this is the first step of these parameters.
    Raises:
        ShapeError: the lists do not match.
    """

    args, outs, mutates, mixed = "*params *grads *momenta factor?", "", "params momenta", "factor"

    def shape(params, grads, momenta, factor, *, lr: NonNegative, momentum: NonNegative = 0.0, dampening: Finite = 0.0,
              nesterov: bool = False, weight_decay: NonNegative = 0.0, first: bool = False):
        _check_factor("sgd_step", factor)
        _match("sgd_step", params, "" if momentum else "momenta", grads=grads, momenta=momenta)


def sgd_numbers(*, lr: float, momentum: float, dampening: float, nesterov: bool, weight_decay: float, first: bool
                ) -> Numbers:
    """Returns lr, weight_decay, and for v = keep v + take d, w -= lr (now d + ahead v): keep, take, now, ahead."""
    return (lr, weight_decay, *((0.0, 1.0) if first else (momentum, 1 - dampening)),
            *((1.0, momentum) if nesterov else (0.0, 1.0)))


@public()
@op
class adam_step:
    """Adam, AdamW (decoupled) and AMSGrad (with vmax).

        d = g + weight_decay * w, or, decoupled: d = g, w = w - lr * weight_decay * w
        m = beta1 * m + (1 - beta1) * d
        v = beta2 * v + (1 - beta2) * d^2;  vmax = max(vmax, v) takes the place of v below, if it is given
        w = w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

    Args:
        params, grads, m, v: see above.
        vmax: the largest v so far, for AMSGrad; else empty.
        step: t, at least 1.
        lr, beta1, beta2, eps, weight_decay, decoupled: see above.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1412.6980, Algorithm 1; AdamW: 1711.05101, Algorithm 2; AMSGrad: 1904.09237, Algorithm 2.  Differs:
        eps is added to the corrected root, the decay is scaled by lr, vmax is of the uncorrected v, as in PyTorch.
    """

    args, outs, mutates, mixed = "*params *grads *m *v *vmax factor?", "", "params m v vmax", "m v vmax factor"

    def shape(params, grads, m, v, vmax, factor, *, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay =
              0.999, eps: NonNegative = 1e-8, weight_decay: NonNegative = 0.0, decoupled: bool = False):
        _check_factor("adam_step", factor)
        _match("adam_step", params, grads=grads)
        _match_states("adam_step", params, "vmax", m=m, v=v, vmax=vmax)


def adam_numbers(*, lr: float, step: int, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool
                 ) -> Numbers:
    """Returns lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t), the betas, eps, and the decay: of d, and by shrinking w."""
    return (lr / (1 - beta1 ** step), 1 / sqrt(1 - beta2 ** step), *_averages(beta1, beta2), eps,
            *_decay(lr, weight_decay, decoupled))


def _averages(*betas: float) -> Numbers:
    """Returns what is kept, and what is taken, by each average."""
    return tuple([x for beta in betas for x in (beta, 1 - beta)])


def _decay(lr: float, weight_decay: float, decoupled: bool) -> Numbers:
    """Returns the weight decay in the gradient, and the factor that shrinks the parameters."""
    return (0.0, 1 - lr * weight_decay) if decoupled else (weight_decay, 1.0)


@public()
@op
class rmsprop_step:
    """RMSprop, plain or centered (with grad_avg), with or without momentum.

        d = g + weight_decay * w
        v = alpha * v + (1 - alpha) * d^2
        a = alpha * a + (1 - alpha) * d, and max(v - a^2, 0) takes the place of v below, if grad_avg is given
        q = d / (sqrt(v) + eps)
        w = w - lr * q, or with momentum: b = momentum * b + q, w = w - lr * b

    Args:
        params, grads: w and g.
        square_avg: v.
        grad_avg: a, for the centered form; else empty.
        momenta: b; empty where momentum is 0.
        lr, alpha, eps, weight_decay, momentum: see above.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: T. Tieleman, G. Hinton, "Lecture 6.5 - RMSProp", 2012; centered: arXiv 1308.0850.
        Differs: eps is added to the root, as in PyTorch.
    """

    args, outs = "*params *grads *square_avg *grad_avg *momenta factor?", ""
    mutates, mixed = "params square_avg grad_avg momenta", "square_avg grad_avg momenta factor"

    def shape(params, grads, square_avg, grad_avg, momenta, factor, *, lr: NonNegative, alpha: Decay = 0.99, eps:
              NonNegative = 1e-8, weight_decay: NonNegative = 0.0, momentum: Decay = 0.0):
        _check_factor("rmsprop_step", factor)
        _match("rmsprop_step", params, grads=grads)
        _match_states("rmsprop_step", params, "grad_avg" if momentum else "grad_avg momenta", square_avg=square_avg,
                      grad_avg=grad_avg, momenta=momenta)


def rmsprop_numbers(*, lr: float, alpha: float, eps: float, weight_decay: float, momentum: float) -> Numbers:
    """Returns lr, alpha, 1 - alpha, eps, weight_decay, momentum."""
    return lr, *_averages(alpha), eps, weight_decay, momentum


@public()
@op
class adamax_step:
    """Adamax: Adam with the largest gradient so far, decaying, instead of the root mean square.

        d = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * d;  u = max(beta2 * u, |d| + eps)
        w = w - lr / (1 - beta1^t) * m / u

    Args:
        params, grads, m, u: see above.
        step: t, at least 1.
        lr, beta1, beta2, eps, weight_decay: see above.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1412.6980, Algorithm 2.  Differs: eps, which keeps u above 0, as in PyTorch.
    """

    args, outs, mutates, mixed = "*params *grads *m *u factor?", "", "params m u", "m u factor"

    def shape(params, grads, m, u, factor, *, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay = 0.999,
              eps: NonNegative = 1e-8, weight_decay: NonNegative = 0.0):
        _check_factor("adamax_step", factor)
        _match("adamax_step", params, grads=grads)
        _match_states("adamax_step", params, m=m, u=u)


def adamax_numbers(*, lr: float, step: int, beta1: float, beta2: float, eps: float, weight_decay: float) -> Numbers:
    """Returns lr / (1 - beta1^t), beta1, 1 - beta1, beta2, eps, weight_decay."""
    return lr / (1 - beta1 ** step), *_averages(beta1), beta2, eps, weight_decay


@public()
@op
class radam_step:
    """Rectified Adam: plain momentum until the variance of the adaptive rate is bounded, then Adam times r.

        d = g + weight_decay * w, or, decoupled: d = g, w = w - lr * weight_decay * w
        m = beta1 * m + (1 - beta1) * d;  v = beta2 * v + (1 - beta2) * d^2
        p = 2 / (1 - beta2) - 1;  p_t = p - 2 t beta2^t / (1 - beta2^t)
        r = sqrt((p_t - 4) (p_t - 2) p / ((p - 4) (p - 2) p_t))
        w = w - lr * m / (1 - beta1^t) * (r * sqrt(1 - beta2^t) / (sqrt(v) + eps) if p_t > 5 else 1)

    Args:
        params, grads, m, v: see above.
        step: t, at least 1.
        lr, beta1, beta2, eps, weight_decay, decoupled: see above.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1908.03265, Algorithm 2.  Differs: the threshold of p_t is 5 and eps is added, as in PyTorch.
    """

    args, outs, mutates, mixed = "*params *grads *m *v factor?", "", "params m v", "m v factor"

    def shape(params, grads, m, v, factor, *, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay = 0.999,
              eps: NonNegative = 1e-8, weight_decay: NonNegative = 0.0, decoupled: bool = False):
        _check_factor("radam_step", factor)
        _match("radam_step", params, grads=grads)
        _match_states("radam_step", params, m=m, v=v)


def radam_rate(lr: float, step: int, beta1: float, beta2: float) -> tuple[float, bool]:
    """Returns what RAdam multiplies m, or m / (sqrt(v) + eps), with; and whether it is the latter (p_t > 5)."""
    limit = 2 / (1 - beta2) - 1
    length = limit - 2 * step * beta2 ** step / (1 - beta2 ** step)
    rate = lr / (1 - beta1 ** step)
    if length <= 5:
        return rate, False
    return rate * sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
                       * (1 - beta2 ** step)), True


def radam_numbers(*, lr: float, step: int, beta1: float, beta2: float, eps: float, weight_decay: float,
                  decoupled: bool = False) -> Numbers:
    """Returns the rate, the betas, eps, the decay as of Adam, and whether the rate is that of the rectified step."""
    rate, rectified = radam_rate(lr, step, beta1, beta2)
    return rate, *_averages(beta1, beta2), eps, *_decay(lr, weight_decay, decoupled), float(rectified)


@public()
@op
class adamod_step:
    """AdaMod: Adam whose rate per element is bounded by its own exponential average s.

        w = w - lr * weight_decay * w
        m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
        q = lr / (sqrt(v / (1 - beta2^t)) + eps);  s = beta3 * s + (1 - beta3) * q
        w = w - min(q, s) * m / (1 - beta1^t)

    Args:
        params, grads, m, v, s: see above.
        step: t, at least 1.
        lr, beta1, beta2, beta3, eps, weight_decay: see above.
    Raises:
        ShapeError: the lists do not match.
        DTypeError: a state has not the dtype that `state_dtype` says.
    Source: arXiv 1910.12249.  Differs: the decoupled weight decay.
    """

    args, outs, mutates, mixed = "*params *grads *m *v *s factor?", "", "params m v s", "m v s factor"

    def shape(params, grads, m, v, s, factor, *, lr: NonNegative, step: Count, beta1: Decay = 0.9, beta2: Decay =
              0.999, beta3: Decay = 0.999, eps: NonNegative = 1e-8, weight_decay: NonNegative = 0.0):
        _check_factor("adamod_step", factor)
        _match("adamod_step", params, grads=grads)
        _match_states("adamod_step", params, m=m, v=v, s=s)


def adamod_numbers(*, lr: float, step: int, beta1: float, beta2: float, beta3: float, eps: float, weight_decay: float
                   ) -> Numbers:
    """Returns lr, 1 / (1 - beta1^t), 1 - beta2^t, the betas, eps, and the factor that shrinks the parameters."""
    return (lr, 1 / (1 - beta1 ** step), 1 - beta2 ** step, *_averages(beta1, beta2, beta3), eps,
            1 - lr * weight_decay)


@public()
@op
class ema_step:
    """Exponential moving average: average = decay * average + (1 - decay) * w, in place.

    Args:
        averages, params: matching lists.
        decay: in [0, 1].
    Raises:
        ShapeError: the lists do not match.
    """

    args, outs, mutates = "*averages *params", "", "averages"

    def shape(averages, params, *, decay: Share):
        _match("ema_step", params, averages=averages)


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
