"""Weights of a converted model in a file beside its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from alpha import nn, ops
from alpha.checkpoint.layouts import layouts
from alpha.checkpoint.state import load, save
from alpha.core.errors import CheckpointError, ConfigError, message, remedy
from alpha.core.graph import no_grad
from alpha.interop.pytorch.graph import WHERE
from alpha.interop.pytorch.modules import Converted

C = TypeVar("C", bound=Converted)


def filled(net: C, path: str | Path) -> C:
    """Returns a converted model with all parameters and buffers from a file that from_torch(write=...) wrote.

    Raises CheckpointError if the file cannot be read, or has other names.
    """
    values = load(path)
    own = _whole(net)
    if not isinstance(values, dict) or values.keys() != own.keys():
        raise CheckpointError(message("filled", f"{path} has other names than {type(net).__name__}",
                                      "pass the file that from_torch wrote beside the code"))
    dtypes = {t.dtype for t in values.values() if t.is_floating_point}
    if len(dtypes) == 1:
        net.to(dtype=dtypes.pop())
    own = _whole(net)
    with no_grad():
        for name, t in own.items():
            t.copy_(values[name])
    return net


def fill(net: nn.Module, values: dict[str, Any]) -> None:
    """Overwrites parameters and buffers with torch's tensors of the same names."""
    turned = layouts(WHERE, net)
    for path, value in values.items():
        if path.rpartition(".")[2] == "num_batches_tracked":
            continue
        array = value.detach().cpu()
        array = (array.float() if str(array.dtype) == "torch.bfloat16" else array).numpy()
        array = turned[path].from_torch(array) if path in turned else array
        target: Any = net
        for part in path.split("."):
            target = getattr(target, part)
        with no_grad():
            target.copy_(ops.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).astype(target.dtype))


def save_with(net: Converted, path: Path) -> None:
    """Writes the code of a converted model, and its weights into a file beside it.  Raises ConfigError."""
    try:
        path.write_text(net.code)
    except OSError as error:
        raise ConfigError(message(WHERE, f"{path} cannot be written: {error.strerror}",
                                  remedy(error.errno, path))) from error
    save({name: t.detach() for name, t in _whole(net).items()}, path.with_suffix(".safetensors"))


def _whole(net: nn.Module) -> dict[str, Any]:
    """Returns all parameters and buffers, those too that are no part of the state."""
    return dict([*net.named_parameters(), *net.named_buffers()])
