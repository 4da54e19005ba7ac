"""SyncBatchNorm: batch normalisation with the statistics of the whole batch, of which each rank has a part.

One small collective each way: means and sums of squares forward, the sums of gradients backward. Statistics are joined
in the order of the ranks, or of the slices of alpha.dist.Slices.
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

from alpha import ops
from alpha.core.errors import GraphError, ShapeError, message
from alpha.core.graph import grad_enabled, no_grad
from alpha.core.inputs.arguments import checked
from alpha.core.tensor import Tensor, tensor
from alpha.dist.slices import exchanged, joins, leads
from alpha.fuse.follow import later_function
from alpha.nn.module import Module
from alpha.nn.norm import BatchNorm1d, BatchNorm2d
from alpha.ops import activation as activations
from alpha.ops import norm as norms
from alpha.ops.function import Function
from alpha.ops.reduce import accumulation_dtype

_ops: Any = norms   # ops, which are made of these classes
_apply, _gradients, _relu_grad = _ops.batch_norm_apply, _ops.batch_norm_grad, cast("Any", activations.relu_grad)

LOW = 4096      # counts travel as two numbers, high * LOW + low, each exact in float32


class SyncBatchNorm(BatchNorm2d):
    """BatchNorm2d whose statistics in training are of the whole batch, on all ranks together.

    In inference, and with one rank, it is BatchNorm2d. The loss of each rank is to be a mean over its samples.
    Args: as BatchNorm2d.
    Shape: x (N, ..., C) -> y of the same shape; N may differ between ranks, by the counts of `Communicator.part`.
    Parameters, buffers: as BatchNorm2d; the running statistics are the same on all ranks.
    Raises:
        ShapeError: x has other channels, or all ranks together have one value per channel.
        GraphError: its gradient is to be differentiated.
    Source: Ioffe and Szegedy, arXiv 1502.03167; parts joined as in Chan, Golub and LeVeque, "Updating formulae and a
        pairwise algorithm for computing sample variances", 1979.
    """

    def forward(self, x: Tensor, residual: Tensor | None = None, activation: str | None = None) -> Tensor:
        """Returns activation(norm(x) + residual); activation is None or "relu"."""
        if not (self.training or self.running_mean is None) or not joins():
            return super().forward(x, residual, activation)
        if x.ndim < 2 or x.shape[-1] != self.num_features:
            raise ShapeError(message("SyncBatchNorm", f"x has shape {x.shape}, the layer was made for "
                                     f"{self.num_features} channels", "pass x of shape (N, H, W, C)"))
        mean, istd, m2, counts = _statistics(x.detach(), self.eps)
        total = sum(counts)
        if total < 2:
            raise ShapeError(message("SyncBatchNorm", f"training needs more than 1 value per channel, x of shape "
                                     f"{x.shape} has {total} on all ranks", "use a larger batch"))
        if self.running_mean is not None and self.running_var is not None and leads():
            share = self._weight_of_batch()
            with no_grad():
                for running, now in ((self.running_mean, mean), (self.running_var, m2 * (1 / (total - 1)))):
                    running.copy_(running * (1 - share) + now.astype(running.dtype) * share)
        if activation is not None:
            return _normalized(x, self.weight, self.bias, residual, mean, istd, counts, activation=activation)
        return later_function(_normalized, x, self.weight, self.bias, residual, mean, istd, counts)


def _normalized(*args: Any, activation: str | None) -> Tensor:
    y: Tensor = _Normalize.apply(*args, activation)
    return y


class _Normalize(Function):
    """y from statistics of all parts; its gradient adds up the parts' sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, residual: Tensor | None, mean: Tensor,
                istd: Tensor, counts: list[int], activation: str | None) -> Tensor:
        y: Tensor = _apply(x, gamma, beta, mean, istd, residual, activation=activation, training=True)
        ctx.counts, ctx.activation, ctx.adds = counts, activation, residual is not None
        ctx.save_for_backward(x, gamma, beta, mean, istd, y if residual is not None and activation else None)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if grad_enabled():
            raise GraphError(message("SyncBatchNorm", "its gradient has no gradient: create_graph=True asks for it",
                                     "use BatchNorm2d for second derivatives"))
        x, gamma, beta, mean, istd, y = ctx.saved_tensors
        activation = ctx.activation
        if ctx.adds and activation:
            g, activation = _relu_grad(g, y), None
        dx, dgamma, dbeta = _gradients(g, x, gamma, beta, mean, istd, activation=activation)
        rows = exchanged(ops.concat([dgamma, dbeta]))       # (parts, 2C)
        total, own = sum(ctx.counts), prod(x.shape[:-1])
        weights = tensor([count / total for count in ctx.counts], dtype=rows.dtype, device=rows.device).reshape((-1, 1))
        # A part's loss is a mean over its samples, so its gradients count by its share of the values.
        difference = (ops.concat([dgamma, dbeta]) - (rows * weights).sum(0)) * (1 / own)
        c = mean.shape[0]
        scale = istd if gamma is None else istd * gamma.astype(istd.dtype)
        slope = difference[:c] * istd * scale
        dx = (dx.astype(mean.dtype) + (x.astype(mean.dtype) * slope + (difference[c:] * scale - mean * slope))
              ).astype(x.dtype)
        return (dx, None if gamma is None else dgamma.astype(gamma.dtype),
                None if beta is None else dbeta.astype(beta.dtype), g if ctx.adds else None, None, None, None, None)


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Returns mean and 1 / sqrt(var + eps) of all parts, the sum of squares about the mean, and the parts' counts."""
    axes, c, count = tuple(range(x.ndim - 1)), x.shape[-1], prod(x.shape[:-1])
    dtype = accumulation_dtype(x.dtype)
    with no_grad():
        wide = x.astype(dtype)
        mean = wide.mean(axes)
        centered = wide - mean
        m2 = (centered * centered).sum(axes)
        numbers = tensor([float(count // LOW), float(count % LOW)], dtype=dtype, device=x.device)
        rows = exchanged(ops.concat([mean, m2, numbers]))
        counts = [round(high) * LOW + round(low) for high, low in rows[:, 2 * c:].tolist()]  # type: ignore[union-attr]
        total = sum(counts)
        shares = tensor([n / total for n in counts], dtype=dtype, device=x.device).reshape((-1, 1))
        means = rows[:, :c]
        joined = (means * shares).sum(0)
        apart = means - joined
        m2 = rows[:, c:2 * c].sum(0) + (apart * apart * shares).sum(0) * float(total)
        istd = (m2 * (1 / total) + eps) ** -0.5
    return joined, istd, m2, counts


@checked
def convert_sync_batchnorm(module: Module) -> Module:
    """Returns the module with a SyncBatchNorm in place of each BatchNorm2d and BatchNorm1d in it.

    Parameters and buffers are the same tensors. Subclasses of a user stay as they are.
    """
    if type(module) in (BatchNorm2d, BatchNorm1d):
        return _converted(module)  # type: ignore[arg-type]
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (BatchNorm2d, BatchNorm1d):
                setattr(parent, name, _converted(child))  # type: ignore[arg-type]
    return module


def _converted(norm: BatchNorm2d) -> SyncBatchNorm:
    made = SyncBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.weight is not None,
                         norm.running_mean is not None)
    made.weight, made.bias, made.training = norm.weight, norm.bias, norm.training
    made.register_buffer("running_mean", norm.running_mean)
    made.register_buffer("running_var", norm.running_var)
    return made
