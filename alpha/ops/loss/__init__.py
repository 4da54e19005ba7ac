"""Losses.  `reduction` is "mean", "sum" or "none" everywhere; "none" leaves one loss per sample or element.

Arguments of 16 bits are converted to float32 before anything is computed, each by itself, and the loss is float32.
"""

from __future__ import annotations

from alpha.core.errors import ConfigError, DataError, DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import MAX_SIZE, Reduction, Share, Size, Spread
from alpha.core.op import Spec, grad_enabled, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.activation import log_softmax, softmax, softplus
from alpha.ops.checks import check_alike, check_target, check_weight
from alpha.ops.elementwise import exp, log
from alpha.ops.elementwise import where as where_
from alpha.ops.reduce import accumulation_dtype, widened
from alpha.ops.shape import take

IGNORED = -100          # the label that counts for nothing unless another is named
NO_LABEL = -MAX_SIZE    # stands for ignore_index=None in ops


def weighed(where: str, y: Tensor, weight: Tensor | None) -> Tensor:
    """Returns losses by their weights.  Raises ShapeError unless these broadcast to them."""
    if weight is not None:
        check_weight(where, "weight", weight.shape, y.shape)
    return y if weight is None else y * widened(weight)


def reduced(y: Tensor, reduction: str) -> Tensor:
    return y.mean() if reduction == "mean" else y.sum() if reduction == "sum" else y


def checked_pair(name: str, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Checks the arguments of a loss of numbers, and returns x and target as the loss is computed with them."""
    check_target(name, x, target)
    return widened(x), widened(target)


def check_labels(name: str, x: Tensor, target: Tensor) -> None:
    if x.ndim != 2 or target.shape != x.shape[:1]:
        raise ShapeError(message(name, f"the input has shape {x.shape}, the labels {target.shape}",
                                 "pass an input of shape (N, C) and labels of shape (N,)"))
    if not x.shape[1]:
        raise ShapeError(message(name, f"the input has shape {x.shape}: no class to choose from",
                                 "pass at least one class"))
    _check_label_dtype(name, target)


def _check_label_dtype(name: str, target: Tensor) -> None:
    if target.dtype not in ("int32", "int64"):
        raise DTypeError(message(name, f"the labels have dtype {target.dtype}, int32 or int64 is needed",
                                 'convert them: target.astype("int64")'))


def label_error(name: str, label: int, position: int, classes: int, labels: int) -> DataError:
    """Returns the error for a label outside [0, classes), found by an implementation."""
    return DataError(message(name, f"label {label} at position {position} is outside [0, {classes})",
                             f"pass ignore_index={label}" if label == -100 else
                             "number the classes from 0, or make the model's number of classes larger",
                             classes=classes, labels=labels))


# ---- classes ---------------------------------------------------------------------------------------------------------


@public(functional=True)
@checked
def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = IGNORED,
                  label_smoothing: Share = 0.0, reduction: Reduction = "mean") -> Tensor:
    """Cross entropy of a target distribution t and softmax(logits).

        loss[n] = -sum_c q[n, c] * log softmax(logits)[n, c],  q = (1 - label_smoothing) * t + label_smoothing / C

    Args:
        logits: shape (N, C), or (N, ..., C), channels last; float.
        target: labels, int32 or int64 of shape (N, ...): t is 1 at the label; or t itself, shape of logits; float.
        weight: of each class.  Shape (C,); None stands for 1. The mean over labels is divided by the sum of theirs.
        ignore_index: label whose positions count for nothing, in the mean neither; None: there is none.
        label_smoothing: share of the target that is spread evenly over the classes, in [0, 1].
        reduction: "mean" over N, "sum" or "none".
    Returns:
        The loss: shape (), or (N, ...) with "none".
    Raises:
        ShapeError: the shapes do not fit, or there is no class.
        DTypeError: target is neither of labels nor of a dtype that goes with that of logits.
        DataError: another label is outside [0, C), now or when the gradient is made. On a GPU the loss and the
            gradient of its row are NaN instead.
        ConfigError: label_smoothing or reduction is out of range, or ignore_index is given for a target t itself.
    """
    logits = widened(logits)
    if target.ndim == 1 or not target.is_floating_point:
        ignored = NO_LABEL if ignore_index is None else ignore_index
        if weight is None and logits.ndim <= 2:
            return label_cross_entropy(logits, target, label_smoothing, reduction, ignored)
        return weighted_cross_entropy("cross_entropy", logits, target, weight, ignored, label_smoothing, reduction)
    if logits.ndim < 2 or target.shape != logits.shape:
        raise ShapeError(message("cross_entropy", f"the logits have shape {logits.shape}, the target {target.shape}",
                                 "pass logits (N, C) and a target of labels (N,) or of probabilities (N, C)"))
    if ignore_index not in (None, IGNORED):
        raise ConfigError(message("cross_entropy", f"ignore_index is {ignore_index}, and target holds probabilities, "
                                  "which have no label to ignore", "leave ignore_index out, or pass labels (N,); "
                                  "rows of zeros in target count for nothing in the sum", target=target.shape))
    logs = log_softmax(logits, -1)
    if weight is not None:
        _check_class_weight("cross_entropy", weight, logits)
        logs = logs * widened(weight)
    q = widened(target) * (1 - label_smoothing) + label_smoothing / max(1, logits.shape[-1])
    return reduced(-(q * logs).sum(-1), reduction)


def _check_class_weight(where: str, weight: Tensor, logits: Tensor) -> None:
    if weight.shape != logits.shape[-1:]:
        raise ShapeError(message(where, f"weight has shape {weight.shape}, there are {logits.shape[-1]} classes",
                                 f"pass a weight of shape {logits.shape[-1:]}", input=logits.shape))


def weighted_cross_entropy(where: str, logits: Tensor, target: Tensor, weight: Tensor | None, ignored: int,
                           smoothing: float, reduction: str, log_probs: bool = False) -> Tensor:
    """Returns the cross entropy with labels of any shape, weights of classes and a label that counts for nothing.

    Args:
        log_probs: whether `logits` are logarithms of probabilities already.
    """
    if target.shape != logits.shape[:-1]:
        fix = "pass an input of shape (N, ..., C), channels last, and labels of shape (N, ...)"
        if logits.ndim > 2 and target.shape == (logits.shape[0], *logits.shape[2:]):
            fix = f"channels come last here: x.permute(0, {', '.join(map(str, range(2, logits.ndim)))}, 1)"
        raise ShapeError(message(where, f"the input has shape {logits.shape}, the labels {target.shape}", fix))
    _check_label_dtype(where, target)
    rows, labels = logits.reshape(target.numel(), logits.shape[-1]), target.reshape(target.numel())
    if weight is None and not log_probs:
        loss = label_cross_entropy(rows, labels, smoothing, reduction, ignored)
        return loss.reshape(target.shape) if reduction == "none" else loss
    keep = None if ignored == NO_LABEL else labels != ignored
    labels = labels if keep is None else where_(keep, labels, 0)
    if weight is not None:
        _check_class_weight(where, weight, logits)
    scale = None if weight is None else take(widened(weight), labels)
    if log_probs or smoothing:
        logs = rows if log_probs else log_softmax(rows, 1)
        chosen = where_(label_mask(labels, classes=rows.shape[1], where=where), logs, 0.0)
        loss = -chosen.sum(1) if scale is None else -chosen.sum(1) * scale
        if smoothing and weight is not None:
            spread = -(logs * widened(weight)).sum(1) / rows.shape[1]
            loss = loss * (1 - smoothing) + spread * smoothing
    else:
        loss = label_cross_entropy(rows, labels, label_smoothing=smoothing, reduction="none") * scale
    if keep is not None:
        loss = where_(keep, loss, 0.0)
        scale = keep.astype(loss.dtype) if scale is None else where_(keep, scale, 0.0)
    if reduction == "mean":
        return loss.mean() if scale is None else loss.sum() / scale.sum()
    return loss.sum() if reduction == "sum" else loss.reshape(target.shape)


@op
class label_cross_entropy:
    """cross_entropy with labels, what backward reads of softmax(logits), three numbers of each row, and the count.

        softmax[n, c] = exp(logits[n, c] - stats[0, n] - stats[1, n]),   stats[2, n] = 1 - softmax[n, target[n]]

    count is how many labels differ from ignore_index: what the mean is divided by. The rows of the others have the loss
    and the stats 0. stats[0] has the largest logits. In one number with stats[1], as in 1 minus a softmax, no
    digits might be left.
    """

    args, saves, mixed, label = "logits target", "logits target stats count", "target", "cross_entropy"
    outs, returns = "loss stats count", "loss"

    def shape(logits, target, *, label_smoothing: Share = 0.0, reduction: Reduction = "mean",
              ignore_index: int = IGNORED):
        check_labels("cross_entropy", logits, target)
        rows, wide = target.shape, accumulation_dtype(logits.dtype)
        return [rows if reduction == "none" else (), Spec((3, *rows), wide), Spec((), wide)]

    def vjp_logits(g, s, *, label_smoothing, reduction, ignore_index):
        if not grad_enabled():
            return cross_entropy_grad(g, s.logits, s.target, s.stats, s.count, label_smoothing, reduction, ignore_index)
        rows, classes = s.logits_shape
        keep = None if ignore_index == NO_LABEL else s.target != ignore_index
        labels = s.target if keep is None else where_(keep, s.target, 0)
        q = label_mask(labels, classes=classes).astype(g.dtype) * (1 - label_smoothing) + label_smoothing / classes
        per_row = g / s.count if reduction == "mean" else g.reshape(rows, 1) if reduction == "none" else g
        dx = per_row * (softmax(s.logits, 1) - q)
        return dx if keep is None else where_(keep.reshape(rows, 1), dx, 0.0)


@op
class cross_entropy_grad:
    """Gradient of cross_entropy with labels: dlogits = g * (softmax(logits) - q), with g / count for "mean".

    Args:
        g: gradient of the loss.  Shape () or, for "none", (N,).
        logits, target, label_smoothing, reduction, ignore_index: as in label_cross_entropy.
        stats, count: of label_cross_entropy.full.  Shapes (3, N) and ().
    Raises:
        ShapeError, DTypeError: the shapes do not fit, or target does not hold labels.
        DataError: a label is outside [0, C); on a GPU the gradient of its row is NaN instead.
    """

    args, mixed = "g logits target stats count", "target stats count"

    def shape(g, logits, target, stats, count, *, label_smoothing: Share, reduction: Reduction,
              ignore_index: int = IGNORED):
        check_labels("cross_entropy_grad", logits, target)
        rows, wide = target.shape, accumulation_dtype(logits.dtype)
        if (stats.shape != (3, *rows) or g.shape != (rows if reduction == "none" else ()) or count.shape
                or stats.dtype != wide or count.dtype != wide):
            raise ShapeError(message(
                "cross_entropy_grad", f"g has shape {g.shape}, stats {stats.shape} and dtype {stats.dtype}, the logits "
                f"have shape {logits.shape}", "pass stats and count of label_cross_entropy.full, and a g of shape () "
                'or, for "none", (N,)'))
        return logits.shape


@op
class label_mask:
    """y[n, c] = (c == target[n]), bool.

    Args:
        target: labels, int32 or int64.  Shape (N,).
        classes: C.
        where: the function that errors name.
    Raises:
        DataError: a label is outside [0, C).
    """

    args, dtypes = "target", "any"

    def shape(target, *, classes: Size, where: str = "label_mask"):
        _check_label_dtype(where, target)
        return Spec((*target.shape, classes), "bool")


@public(functional=True)
@checked
def nll_loss(log_probs: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = IGNORED,
             reduction: Reduction = "mean") -> Tensor:
    """Negative log-likelihood: loss[n] = -log_probs[n, target[n]].

    Args:
        log_probs: shape (N, C), or (N, ..., C), channels last; float.
        target: labels, int32 or int64 of shape (N, ...).
        weight, ignore_index: as in cross_entropy.
        reduction: "mean" over N, "sum" or "none".
    Returns:
        The loss: shape (), or (N,) with "none".
    Raises:
        ShapeError, DTypeError, DataError, ConfigError: as cross_entropy.
    """
    if log_probs.ndim <= 2:
        check_labels("nll_loss", log_probs, target)
    return weighted_cross_entropy("nll_loss", widened(log_probs), target, weight,
                                  NO_LABEL if ignore_index is None else ignore_index, 0.0, reduction, log_probs=True)


# ---- numbers ---------------------------------------------------------------------------------------------------------


@public(functional=True)
@checked
def kl_div(log_probs: Tensor, target: Tensor, *, log_target: bool = False, reduction: Spread = "mean") -> Tensor:
    """target * (log(target) - log_probs), 0 where target is 0: how far a distribution is from another.

    Args:
        log_probs: logarithms of probabilities; float.
        target: probabilities, or with log_target their logarithms; shape of log_probs; float.
        reduction: "batchmean": the sum over the length of the first axis, which is the divergence; "mean" over all
            elements, "sum" or "none".
    Raises:
        ShapeError: the shapes differ.  ConfigError: reduction is unknown.
    """
    log_probs, target = checked_pair("kl_div", log_probs, target)
    if log_target:
        loss = exp(target) * (target - log_probs)
    else:
        some = target != 0      # the logarithm of what is no probability is NaN
        logs = log(where_(some, target, 1.0))
        loss = where_(some, target * (logs - log_probs), target * -log_probs * 0.0)
    if reduction == "batchmean":
        return loss.sum() / max(1, log_probs.shape[0] if log_probs.ndim else 1)
    return reduced(loss, reduction)


@public(functional="binary_cross_entropy")
@checked
def bce_loss(p: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: Reduction = "mean") -> Tensor:
    """Binary cross entropy of probabilities: -(target * log p + (1 - target) * log(1 - p)).

    Logarithms below -100 count as -100, so that the loss is finite at 0 and 1.
    Args:
        p: probabilities, in [0, 1]; float.
        target: probabilities, too; shape of p; float.
        weight: of each element's loss, of a shape that broadcasts to that of p; None stands for 1.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes differ.
        DataError: an element is outside [0, 1] (on a GPU one of p gives NaN, one of target goes unnoticed).
        ConfigError: the reduction is unknown.
    """
    p, target = checked_pair("bce_loss", p, target)
    return reduced(weighed("bce_loss", binary_cross_entropy(p, target), weight), reduction)


def _clipped_logs(p: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log p and log(1 - p), at least -100."""
    return p.log().clip(-100.0, None), (1.0 - p).log().clip(-100.0, None)


@op
class binary_cross_entropy:
    """bce_loss per element.  In the gradient (p - target) / (p (1 - p)) the denominator is at least 1e-12."""

    args, saves = "p target", "p target"

    def shape(p, target):
        check_alike("bce_loss", p=p, target=target)
        return p.shape

    def vjp_p(g, s):
        return g * (s.p - s.target) / (s.p * (1.0 - s.p)).clip(1e-12, None)

    def vjp_target(g, s):
        log_p, log_rest = _clipped_logs(s.p)
        return g * (log_rest - log_p)


@public(functional="binary_cross_entropy_with_logits")
@checked
def bce_with_logits_loss(x: Tensor, target: Tensor, weight: Tensor | None = None, *,
                         pos_weight: Tensor | None = None, reduction: Reduction = "mean") -> Tensor:
    """Binary cross entropy of sigmoid(x), which neither overflows nor takes the logarithm of 0.

        loss = (1 - target) * log(1 + e^x) + pos_weight * target * log(1 + e^-x)

    For targets in [0, 1] nothing cancels: loss and gradient keep their digits as far as float32 reaches.
    Args:
        x: logits; float.
        target: shape of x; float.
        weight: of each element's loss: see bce_loss.
        pos_weight: weight of the positive class, of a shape that broadcasts to that of x; None stands for 1.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes do not fit.
        ConfigError: the reduction is unknown.
    """
    x, target = checked_pair("bce_with_logits_loss", x, target)
    positive = target
    if pos_weight is not None:
        check_weight("bce_with_logits_loss", "pos_weight", pos_weight.shape, x.shape)
        positive = widened(pos_weight) * target
    loss = (1.0 - target) * softplus(x) + positive * softplus(-x)
    return reduced(weighed("bce_with_logits_loss", loss, weight), reduction)
