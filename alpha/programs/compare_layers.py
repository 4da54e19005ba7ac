"""How far the layers of a converted model, and PyTorch's in float32, are from PyTorch's in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from alpha.core.graph import no_grad
from alpha.core.tensor import Tensor, tensor
from alpha.interop.pytorch.convert import converted


class LayerRow(NamedTuple):
    """A layer: its path, class, shape of output, and relative errors against float64 (Frobenius)."""

    path: str
    kind: str
    shape: tuple[int, ...]
    alpha: float | None
    torch: float


def agreement(model: Any, x: Any) -> list[LayerRow]:
    """Returns a row for each layer, in the order of the calls, and one for the output, whose path is "output".

    Args:
        model: a torch.nn.Module; it computes in inference mode here, on the CPU.
        x: its input.
    """
    model = copy.deepcopy(model).eval()
    net = converted(model, x, fuse=False).eval()
    ours = _alpha_outputs(net, x)
    theirs = _torch_outputs(model, x)
    exact = _torch_outputs(model.double(), x.double())
    rows = []
    for path, (kind, want) in exact.items():
        got = ours.get(path)
        rows.append(LayerRow(path, kind, want.shape, None if got is None else _closest(got, want),
                             _error(theirs[path][1], want)))
    return rows


def _tensors(output: Any) -> Iterator[Any]:
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        for item in output:
            yield from _tensors(item)
    elif hasattr(output, "shape"):
        yield output


def _torch_outputs(model: Any, x: Any) -> dict[str, tuple[str, np.ndarray]]:
    import torch

    found: dict[str, tuple[str, np.ndarray]] = {}

    def keep(path: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            found.setdefault(path, (type(module).__name__, next(_tensors(output)).detach().numpy().copy()))
        return hook

    handles = [module.register_forward_hook(keep(path)) for path, module in model.named_modules()
               if path and not any(True for _ in module.children())]
    try:
        with torch.no_grad():
            output = model(x)
    finally:
        for handle in handles:
            handle.remove()
    found["output"] = (type(model).__name__, next(_tensors(output)).numpy())
    return found


def _alpha_outputs(net: Any, x: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def keep(path: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            found.setdefault(path, next(_tensors(output)).detach().numpy())
        return hook

    handles = [module.register_forward_hook(keep(path)) for path, module in net.named_modules()
               if path and not any(True for _ in module.children())]
    try:
        with no_grad():
            output = net(tensor(x.permute(0, 2, 3, 1).contiguous().numpy() if x.ndim == 4 else x.numpy()))
    finally:
        for handle in handles:
            handle.remove()
    result: Tensor = next(_tensors(output))
    found["output"] = result.numpy()
    return found


def _error(got: np.ndarray, want: np.ndarray) -> float:
    size = float(np.linalg.norm(want)) or 1.0
    return float(np.linalg.norm(got.astype(np.float64) - want)) / size


def _closest(got: np.ndarray, want: np.ndarray) -> float | None:
    """Returns the error of the order of axes that fits: alpha may have them in another one."""
    if got.ndim != want.ndim or got.ndim > 5:
        return None
    errors = [_error(np.transpose(got, order), want) for order in permutations(range(got.ndim))
              if tuple([got.shape[k] for k in order]) == want.shape]
    return min(errors, default=None)
