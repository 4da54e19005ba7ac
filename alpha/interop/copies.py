"""Copies of tensors for `copy.deepcopy` and `pickle`: of leaves alone, as a graph belongs to one computation."""

from __future__ import annotations

import copy
from typing import Any

from alpha.core.device import get_backend
from alpha.core.errors import GraphError, message
from alpha.core.table import provides
from alpha.core.tensor import Tensor


@provides("deep_copy")
def deep_copy(t: Tensor, memo: dict[int, Any]) -> Tensor:
    """Returns a copy of a leaf with its gradient and hooks, on its device.

    Tensors that share their elements do so in a copy of the object that holds them.
    """
    _refuse_graph(t, "deepcopy")
    data = memo.get(id(t.array))
    if data is None:
        backend = get_backend(t.device)
        data = memo[id(t.array)] = backend.full(t.shape, 0, t.dtype, t.device)
        backend.copy_into(data, t.array)
    made = memo[id(t)] = _made(Tensor if t.shares else type(t), data, t.shape, t.dtype, t.device, t.requires_grad)
    made._hooks = t._hooks and list(t._hooks)
    made._grad = copy.deepcopy(t.grad, memo)
    return made


@provides("reduced")
def reduced(t: Tensor) -> tuple[Any, ...]:
    """Returns the parts of a leaf for pickle: elements, dtype, device, requires_grad."""
    _refuse_graph(t, "pickle")
    return unpickled, (Tensor if t.shares else type(t), t.numpy(), t.dtype, t.device, t.requires_grad)


def unpickled(cls: type[Tensor], a: Any, dtype: str, device: str, requires_grad: bool) -> Tensor:
    """Returns the tensor that `reduced` described."""
    data = get_backend(device).full(a.shape, 0, dtype, device)
    made = _made(cls, data, a.shape, dtype, device, False).copy_(a)
    made._requires_grad = requires_grad
    return made


def _made(cls: type[Tensor], data: Any, shape: tuple[int, ...], dtype: str, device: str,
          requires_grad: bool) -> Tensor:
    made = cls.__new__(cls)
    Tensor.__init__(made, data, shape, dtype, device)
    made._requires_grad = requires_grad
    return made


def _refuse_graph(t: Tensor, where: str) -> None:
    if t._node is not None:
        raise GraphError(message(where, f"a tensor of shape {t.shape} was made by {t._node[0].op.name}, only leaves "
                                 "can be copied", "take t.detach(); or drop it where a module keeps it"))
