"""Batch, layer and group normalisation: y = (x - mean) * istd * gamma + beta, istd = 1 / sqrt(var + eps).

var is biased. An ordinary backward pass is one fused op; one that is to be differentiated again is composed of ops.
Everything is computed in float32 where x has 16 bits; gamma, beta and the running statistics may then be float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import bound
from alpha.core.inputs.kinds import Activation, AllAxes, Channels, Count, Flag, NonNegative, Share
from alpha.core.op import Spec, grad_enabled, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.activation import relu_grad
from alpha.ops.checks import check_alike
from alpha.ops.create import ones, zeros
from alpha.ops.reduce import Shape, accumulation_dtype, reduced_shape, widened

Gradients = tuple[Tensor, Tensor, Tensor]
_FLAG = Flag()


def _check_grad(where: str, g: Tensor, x: Tensor, expected: Shape, **params: Tensor | None) -> None:
    if g.shape != x.shape:
        check_alike(where, g=g, x=x)
    _refuse_parameter(where, x, expected, **params)


def _check_statistics(where: str, x: Tensor, expected: Shape, mean: Tensor, istd: Tensor,
                      rest: Tensor | None = None) -> None:
    dtype = accumulation_dtype(x.dtype)
    for name, t in (("mean", mean), ("istd", istd), ("rest", rest)):
        if t is not None and (t.shape != expected or t.dtype != dtype):
            raise ShapeError(message(where, f"{name} is {t.dtype} of shape {t.shape}, {dtype} of shape {expected} is "
                                     "needed", "pass what the forward pass computed"))


@public()
@bound
def batch_norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, running_mean: Tensor | None = None,
               running_var: Tensor | None = None, residual: Tensor | None = None, *, training: bool = True,
               momentum: float = 0.1, eps: float = 1e-5, activation: str | None = None) -> Tensor:
    """Batch normalisation per channel, with a residual and an activation in the same pass over memory.

        y = activation((x - mean) * istd * gamma + beta + residual)

    In training mean and var are those of x over all axes but the last, and the running statistics move in place:
    running = (1 - momentum) * running + momentum * batch, with the unbiased variance. In inference the running ones
    take the batch's place. A batch without samples moves nothing; the gradients of gamma and beta are 0.
    Args:
        x: input.  Shape (..., C), channels last; float.
        gamma, beta: scale and shift.  Shape (C,); None stands for 1 and 0.
        running_mean, running_var: shape (C,); both or neither, and both in inference.  These four have the dtype of x,
            or are float32 where x has 16 bits.
        residual: shape and dtype of x, or None.
        training: whether to use the statistics of x.
        momentum: weight of the batch in the running statistics.
        eps: added to the variance.
        activation: None or "relu".
    Returns:
        y of the shape of x.
    Raises:
        ShapeError: shapes do not fit, training has one value per channel, inference lacks running statistics, or the
            activation is unknown.
    Source: arXiv 1502.03167, Algorithms 1 and 2.
    """
    op, args, attrs = norm_call(x, gamma, beta, running_mean, running_var, residual, training=training,
                                momentum=momentum, eps=eps, activation=activation)
    return op(*args, **attrs)  # type: ignore[no-any-return]


def norm_call(x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None,
              running_var: Tensor | None, residual: Tensor | None, *, training: bool, momentum: float, eps: float,
              activation: str | None) -> tuple[Any, tuple[Tensor | None, ...], dict[str, Any]]:
    """Returns the op that batch_norm calls, and its arguments."""
    given = [p for p in (running_mean, running_var, gamma, beta) if p is not None]
    if (isinstance(x, Tensor) and x.ndim > 1 and not prod(x.shape[:-1])     # no sample: no statistics
            and all(isinstance(p, Tensor) for p in given)       # what is none the op refuses
            and _FLAG.take("batch_norm", "training", training)):
        like = given[0] if given else x
        running_mean, running_var = (create((x.shape[-1],), dtype=like.dtype, device=x.device)
                                     for create in (zeros, ones))
        training = False
    attrs = dict(training=training, momentum=momentum, eps=eps, activation=activation)
    if residual is None:
        return batch_norm_act, (x, gamma, beta, running_mean, running_var), attrs
    return batch_norm_add_act, (x, gamma, beta, running_mean, running_var, residual), attrs


def _batch_norm_shapes(x: Tensor, params: dict[str, Tensor | None], training: bool) -> list[Shape | Spec]:
    where, channels = "batch_norm", x.shape[-1:]
    if x.ndim < 2:
        raise ShapeError(message(where, f"x has {x.ndim} axes, at least 2 are needed", "pass x of shape (..., C)",
                                 x=x.shape))
    for name, p in params.items():
        if p is not None and p.shape != channels:
            fix = f"pass {name} of shape {channels}"
            if p.shape == x.shape[1:2]:
                fix = "x looks like NCHW; alpha uses NHWC: x.permute(0, 2, 3, 1)"
            raise ShapeError(message(where, f"x has {channels[0]} channels, {name} has shape {p.shape}", fix,
                                     x=x.shape))
    absent = (params["running_mean"] is None) + (params["running_var"] is None)
    if absent == 1 or (absent and not training):
        raise ShapeError(message(where, f"{absent} of running_mean and running_var are None",
                                 "pass both; in training they may both be None", training=training))
    if training and prod(x.shape) <= channels[0]:
        raise ShapeError(message(where, f"training needs more than 1 value per channel, x of shape {x.shape} has "
                                 f"{prod(x.shape[:-1])}", "pass drop_last=True to fit or DataLoader where the "
                                 "last batch of an epoch has one sample; else use a larger batch, or eval()"))
    statistics = Spec(channels, accumulation_dtype(x.dtype))
    return [x.shape, statistics, statistics]


@op
class batch_norm_act:
    """activation(batch_norm(x)); see batch_norm.  Its gradient makes the mask of relu again from x: y is not kept."""

    args, saves, label = "x gamma? beta? running_mean? running_var?", "x gamma beta mean istd", "batch_norm"
    outs, returns, mutates, cheap = "y mean istd", "y", "running_mean running_var", "y"
    parameters = "gamma beta running_mean running_var"

    def shape(x, gamma, beta, running_mean, running_var, *, training: bool = True, momentum: Share = 0.1,
              eps: NonNegative = 1e-5, activation: Activation = None):
        params = dict(gamma=gamma, beta=beta, running_mean=running_mean, running_var=running_var)
        return _batch_norm_shapes(x, params, training)

    def again(s, *, training, activation, **attrs):
        return batch_norm_apply(s.x, s.gamma, s.beta, s.mean, s.istd, activation=activation, training=training)

    def vjp(g, s, needs, *, training, momentum, eps, activation):
        return (*_batch_norm_vjp(g, s, training, eps, activation), None, None)


@op
class batch_norm_add_act:
    """activation(batch_norm(x) + residual); see batch_norm.  Its gradient reads the mask of relu from y."""

    args, saves = "x gamma? beta? running_mean? running_var? residual", "x gamma beta mean istd y"
    spares = {"y": "activation"}
    label = "batch_norm"
    outs, returns, mutates, cheap = "y mean istd", "y", "running_mean running_var", "y"
    parameters = "gamma beta running_mean running_var"

    def shape(x, gamma, beta, running_mean, running_var, residual, *, training: bool = True, momentum: Share = 0.1,
              eps: NonNegative = 1e-5, activation: Activation = None):
        if residual.shape != x.shape:
            raise ShapeError(message("batch_norm", f"residual has shape {residual.shape}, x has {x.shape}",
                                     "pass a residual of the shape of x"))
        params = dict(gamma=gamma, beta=beta, running_mean=running_mean, running_var=running_var)
        return _batch_norm_shapes(x, params, training)

    def again(s, *, training, activation, **attrs):
        return batch_norm_apply(s.x, s.gamma, s.beta, s.mean, s.istd, s.residual, activation=activation,
                                training=training)

    def vjp(g, s, needs, *, training, momentum, eps, activation):
        if activation == "relu":
            g = relu_grad(g, s.last("y"))
        return (*_batch_norm_vjp(g, s, training, eps, None), None, None, g)


@op
class batch_norm_apply:
    """y of batch_norm from statistics that it has computed, with its bits: what backward makes again.

        y = activation((x - mean) * istd * gamma + beta + residual)

    Args:
        x, gamma, beta, residual: inputs of batch_norm.
        mean, istd: what batch_norm computed.  Shape (C,).
        activation: None or "relu".
        training: whether they are those of x, which bounds y.
    """

    args, mixed = "x gamma? beta? mean istd residual?", "mean istd"
    parameters = "gamma beta"

    def shape(x, gamma, beta, mean, istd, residual, *, activation: Activation = None, training: bool = True):
        _refuse_parameter("batch_norm_apply", x, x.shape[-1:], gamma=gamma, beta=beta)
        _check_statistics("batch_norm_apply", x, x.shape[-1:], mean, istd)
        if residual is not None and residual.shape != x.shape:
            check_alike("batch_norm_apply", residual=residual, x=x)
        return x.shape


@op
class batch_norm_grad:
    """Gradients of batch_norm in training, in one op; dgamma and dbeta are float32 where x has 16 bits.

        v = g where relu passed, else 0;  xhat = (x - mean) * istd
        dbeta = sum(v);  dgamma = sum(v * xhat);  dx = gamma * istd * (v - dbeta / M - xhat * dgamma / M)

    Args:
        g: gradient of y.  Shape (..., C): M values per channel.
        x, gamma, beta: inputs of batch_norm.
        mean, istd: what batch_norm computed.  Shape (C,).
        activation: None or "relu", whose mask is made again from x.
    Source: arXiv 1502.03167, section 3.
    """

    args, outs, mixed = "g x gamma? beta? mean istd", "dx dgamma dbeta", "mean istd"
    parameters = "gamma beta"

    def shape(g, x, gamma, beta, mean, istd, *, activation: Activation = None):
        _check_grad("batch_norm_grad", g, x, x.shape[-1:], gamma=gamma, beta=beta)
        _check_statistics("batch_norm_grad", x, x.shape[-1:], mean, istd)
        sums = Spec(mean.shape, accumulation_dtype(x.dtype))
        return [x.shape, sums, sums]


def _batch_norm_vjp(g: Tensor, s: Any, training: bool, eps: float, activation: str | None) -> Gradients:
    """Returns dx, dgamma, dbeta."""
    if training and not grad_enabled():
        gradients = batch_norm_grad(g, s.x, s.gamma, s.beta, s.mean, s.istd, activation=activation)
        return _rounded(gradients, s)
    if activation == "relu" and not grad_enabled():     # one pass, and the mask of the forward pass
        y = batch_norm_apply(s.x, s.gamma, s.beta, s.mean, s.istd, None, activation=None, training=False)
        g, activation = relu_grad(g, y), None
    axes = tuple(range(s.x.ndim - 1))
    x, g, gamma, beta = (_to_sum_dtype(t) for t in (s.x, g, s.gamma, s.beta))
    xhat, istd = _standardized(x, axes, eps) if training else ((x - s.mean) * s.istd, s.istd)
    if activation == "relu":
        scaled = xhat if gamma is None else xhat * gamma
        g = relu_grad(g, scaled if beta is None else scaled + beta)
    v = g if gamma is None else g * gamma
    dx = _standardized_vjp(v, xhat, istd, axes) if training else v * istd
    return _rounded((dx, (g * xhat).sum(axes), g.sum(axes)), s)


def _to_sum_dtype(t: Tensor | None) -> Tensor | None:
    return None if t is None else widened(t)


def _rounded(gradients: Gradients, s: Any) -> Gradients:
    """Returns the gradients of x, gamma and beta in the dtypes of those."""
    dx, dgamma, dbeta = gradients
    return (dx.astype(s.x_dtype), dgamma.astype(s.gamma_dtype) if s.gamma_dtype else dgamma,
            dbeta.astype(s.beta_dtype) if s.beta_dtype else dbeta)


def _standardized(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """Returns xhat = (x - mean) * istd, and istd with the axes kept."""
    centered = x - x.mean(axes, True)
    centered = centered - centered.mean(axes, True)  # what rounding has left out of the mean
    istd = ((centered * centered).mean(axes, True) + eps) ** -0.5
    return centered * istd, istd


def _standardized_vjp(v: Tensor, xhat: Tensor, istd: Tensor, axes: Sequence[int]) -> Tensor:
    """Returns the gradient of x from v, that of xhat."""
    return istd * (v - v.mean(axes, True) - xhat * (v * xhat).mean(axes, True))


# ---- statistics of each sample ---------------------------------------------------------------------------------------


def _refuse_parameter(where: str, x: Tensor, expected: Shape, **params: Tensor | None) -> None:
    for name, p in params.items():
        if p is not None and p.shape != expected:
            raise ShapeError(message(where, f"{name} has shape {p.shape}, {expected} is needed",
                                     f"pass {name} of shape {expected}", x=x.shape))


@public(layer="LayerNorm", keeps_channels=True)
@op
class layer_norm:
    """Normalisation of each sample over its last axes; mean and var are over those axes.

    Args:
        x: input.  Shape (..., *normalized); float.
        gamma, beta: scale and shift.  Shape normalized; dtype of x, or float32 where x has 16 bits; None stands for 1
            and 0.
        normalized_ndim: how many axes `normalized` has, at least 1.
        eps: added to the variance.
    Returns:
        y of the shape of x.
    Raises:
        ShapeError: x has fewer axes or none of its values, or gamma or beta has another shape.
    Source: arXiv 1607.06450.
    """

    args, saves, outs = "x gamma? beta?", "x gamma mean istd rest", "y mean istd rest"
    returns, cheap = "y", True
    parameters = "gamma beta"

    def shape(x, gamma, beta, *, normalized_ndim: Count = 1, eps: NonNegative = 1e-5):
        if not normalized_ndim <= x.ndim or 0 in x.shape[-normalized_ndim:]:
            raise ShapeError(message("layer_norm", f"cannot normalise {normalized_ndim} axes of shape {x.shape}",
                                     "choose normalized_ndim from 1 to the number of axes of x, none of them empty"))
        _refuse_parameter("layer_norm", x, x.shape[-normalized_ndim:], gamma=gamma, beta=beta)
        statistics = Spec(x.shape[:-normalized_ndim] + (1,) * normalized_ndim, accumulation_dtype(x.dtype))
        return [x.shape, statistics, statistics, statistics]

    def vjp(g, s, needs, *, normalized_ndim, eps):
        axes = tuple(range(g.ndim - normalized_ndim, g.ndim))
        return _rounded(_sample_norm_vjp(g, s, s.x, s.gamma, axes, normalized_ndim, eps), s)


@public()
@op
class group_norm:
    """Normalisation of each sample over its pixels and a group of neighbouring channels.

    Args:
        x: input.  Shape (N, ..., C), channels last; float.
        gamma, beta: scale and shift per channel.  Shape (C,), dtype of x; None stands for 1 and 0.
        groups: number of groups; it divides C.
        eps: added to the variance.
    Returns:
        y of the shape of x.
    Raises:
        ShapeError: groups does not divide C, x has fewer than 2 axes or samples without values, or gamma or beta has
            another shape.
    Source: arXiv 1803.08494.
    """

    args, saves, outs = "x gamma? beta?", "x gamma mean istd rest", "y mean istd rest"
    returns, cheap = "y", True
    parameters = "gamma beta"

    def shape(x, gamma, beta, *, groups: Channels, eps: NonNegative = 1e-5):
        if x.ndim < 2 or 0 in x.shape[1:]:
            raise ShapeError(message("group_norm", f"x of shape {x.shape} has no samples with values",
                                     "pass x of shape (N, ..., C)"))
        if x.shape[-1] % groups:
            raise ShapeError(message("group_norm", f"{groups} groups do not divide {x.shape[-1]} channels",
                                     "choose a number of groups that divides the channels", x=x.shape))
        _refuse_parameter("group_norm", x, x.shape[-1:], gamma=gamma, beta=beta)
        statistics = Spec((x.shape[0], 1, groups, 1), accumulation_dtype(x.dtype))
        return [x.shape, statistics, statistics, statistics]

    def vjp(g, s, needs, *, groups, eps):
        n, c = s.x_shape[0], s.x_shape[-1]
        split = (n, prod(s.x_shape[1:-1]), groups, c // groups)
        gamma = s.gamma if s.gamma is None else s.gamma.reshape(split[2:])
        g, x = g.reshape(split), s.x.reshape(split)
        dx, dgamma, dbeta = _sample_norm_vjp(g, s, x, gamma, (1, 3), 2, eps)
        return _rounded((dx.reshape(s.x_shape), dgamma.reshape((c,)), dbeta.reshape((c,))), s)


@op
class sample_norm_grad:
    """Gradients of layer_norm and, with channels split into (groups, C / groups), of group_norm, in one op.

    dgamma and dbeta are float32 where x has 16 bits.

        xhat = (x - mean - rest) * istd;  v = g * gamma;  dbeta = sum(g);  dgamma = sum(g * xhat)
        dx = istd * (v - mean(v) - xhat * mean(v * xhat)), means over `axes`

    Args:
        g, x: gradient of y, and x, of one shape.
        gamma: scale, which broadcasts to the last axes of x; or None.
        mean, istd: shape of x with `axes` reduced to 1.
        rest: what rounding has left out of mean, which shows where elements are nearly equal; None stands for 0.
        axes: over which mean was taken.
        params_ndim: how many axes gamma and beta have, so dgamma and dbeta are summed over all but the last ones.
    """

    args, outs, mixed = "g x gamma? mean istd rest?", "dx dgamma dbeta", "mean istd rest"
    parameters = "gamma"

    def shape(g, x, gamma, mean, istd, rest, *, axes: AllAxes, params_ndim: Count):
        kept = reduced_shape(x.shape, axes, True, "sample_norm_grad")
        _check_grad("sample_norm_grad", g, x, x.shape[-params_ndim:], gamma=gamma)
        _check_statistics("sample_norm_grad", x, kept, mean, istd, rest)
        sums = Spec(x.shape[-params_ndim:], accumulation_dtype(x.dtype))
        return [x.shape, sums, sums]


def _sample_norm_vjp(g: Tensor, s: Any, x: Tensor, gamma: Tensor | None, axes: Shape, params_ndim: int,
                     eps: float) -> Gradients:
    """Returns dx, dgamma, dbeta."""
    if not grad_enabled():
        return sample_norm_grad(g, x, gamma, s.mean, s.istd, s.rest, axes=axes, params_ndim=params_ndim)
    x, g, gamma = _to_sum_dtype(x), _to_sum_dtype(g), _to_sum_dtype(gamma)
    xhat, istd = _standardized(x, axes, eps)
    dx = _standardized_vjp(g if gamma is None else g * gamma, xhat, istd, axes)
    summed = tuple(range(x.ndim - params_ndim))
    return dx, (g * xhat).sum(summed), g.sum(summed)
