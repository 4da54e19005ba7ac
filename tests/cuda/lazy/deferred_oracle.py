"""Batch norm as float64 has it, and the ways to read what it leaves unwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import alpha
from alpha.cuda.lazy.operands import Operand, operand
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.memory import Array
from alpha.ops.norm import batch_norm_act, batch_norm_add_act, batch_norm_grad
from tests.cuda.lazy.operand_oracle import item, normal, value_of


def cuda(a: np.ndarray) -> alpha.Tensor:
    return alpha.tensor(a, device="cuda")


def planes(t: alpha.Tensor, reads: str = "float16x2") -> Operand:
    return operand(t.array, reads)


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the Frobenius error of the whole result."""
    wanted = wanted.astype(np.float64)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def wide(channels: int) -> np.ndarray:
    """Scales from 2^-40 to 2^40: most channels are lost beside the largest."""
    return np.ldexp(np.float32(1), np.linspace(-40, 40, channels).astype(int)).astype(np.float32)


class Norm:
    """Batch norm of random numbers: its inputs, its results in float64, and its calls on the device."""

    def __init__(self, *shape: int, gamma: np.ndarray | float = 1.0, beta: np.ndarray | float = 0.0, relu: bool = True,
                 residual: np.ndarray | None = None) -> None:
        channels = shape[-1]
        self.x, self.g = normal(*shape), normal(*shape, seed=7)
        self.gamma = (normal(channels, seed=1) + 2) * np.float32(gamma)
        self.beta = normal(channels, seed=2) + np.float32(beta)
        self.activation, self.residual = "relu" if relu else None, residual

    def call(self, residual: alpha.Tensor | None = None) -> alpha.Tensor:
        parts = [cuda(a) for a in (self.x, self.gamma, self.beta)]
        if residual is None:
            return batch_norm_act(*parts, activation=self.activation)
        return batch_norm_add_act(*parts, None, None, residual, activation=self.activation)

    def grad(self) -> alpha.Tensor:
        """Returns dx."""
        x, gamma, beta, g = (cuda(a) for a in (self.x, self.gamma, self.beta, self.g))
        _, mean, istd = batch_norm_act.full(x, gamma, beta)
        return batch_norm_grad(g, x, gamma, beta, mean, istd, activation=self.activation)[0]

    def _parts(self) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
        x = self.x.astype(np.float64)
        axes = tuple(range(x.ndim - 1))
        istd = 1 / np.sqrt(x.var(axes) + 1e-5)
        return (x - x.mean(axes)) * istd, istd, axes

    def y64(self, residual: np.ndarray | float = 0.0) -> np.ndarray:
        y = self._parts()[0] * self.gamma + self.beta + residual
        return np.maximum(y, 0) if self.activation else y

    def dx64(self) -> np.ndarray:
        xhat, istd, axes = self._parts()
        v = np.where(xhat * self.gamma + self.beta > 0, self.g, 0) if self.activation else self.g.astype(np.float64)
        return self.gamma * istd * (v - v.mean(axes) - xhat * (v * xhat).mean(axes))


@contextmanager
def on_fma_units() -> Iterator[None]:
    """As without tensor cores: nothing waits."""
    with alpha.config(tensor_cores=False):
        yield


def without_tensor_cores(f: Callable[[], alpha.Tensor]) -> np.ndarray:
    with on_fma_units():
        return f().numpy()


def held(a: Operand) -> tuple[np.ndarray, int]:
    """Returns the tensor that an operand stands for, and its flag."""
    return value_of(a), int(item(a.flag))


# ---- forms that a result may have when it is read --------------------------------------------------------------------

FORMS = ["waiting", "planes", "elements", "planes, then elements"]


def like(norm: Norm, form: str) -> tuple[alpha.Tensor, np.ndarray]:
    """Returns a result of batch norm in a form, and what it is when it is read."""
    x, other = norm.call(), norm.call()
    if "planes" in form or form == "waiting":  # whoever waits is written as planes by those who are read so
        planes(other)
    if "planes" in form:
        planes(x)
    if "elements" in form:
        x.numpy()
    return x, other.numpy()


def plain(f: Callable[[alpha.Tensor], alpha.Tensor], x: np.ndarray) -> np.ndarray:
    """Returns f of an array that never waited."""
    y = f(cuda(x))
    assert type(y.array) is Array
    return y.numpy()


def flag_of(t: alpha.Tensor) -> int:
    """Returns whether planes do not hold a tensor, of which they are written."""
    return int(memory.download(planes(t).flag, np.int32)[0])
