"""PyTorch's state_dicts and weight files, in and out."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from alpha.checkpoint import disk, nchw, own, tensors_file
from alpha.checkpoint.disk import PathLike
from alpha.checkpoint.layouts import check_flattened, counters, layouts
from alpha.checkpoint.tensors_file import Damaged
from alpha.checkpoint.torch_names import check_levels, to_own, to_torch
from alpha.core.errors import CheckpointError, message
from alpha.core.inputs.arguments import bound
from alpha.core.inputs.schema import shape_of, shown
from alpha.core.tensor import Tensor
from alpha.nn import Module

_PREFIX = re.compile(r"^((module|_orig_mod)\.)+")
_SAVE_FIX = "save it with torch.save(model.state_dict(), path)"


@bound
def from_torch_state_dict(state: Mapping[str, Any], model: Module, strict: bool = True) -> tuple[list[str], list[str]]:
    """Loads the state_dict of a PyTorch model of the same names into `model`.

    The prefixes "module." and "_orig_mod." are dropped, num_batches_tracked is ignored. Parameters that a module names
    in `torch_channels_first`, such as the filters of convolutions, are turned from OIHW to OHWI, and the columns of a
    Linear behind a flattened map (`Linear(..., flattened=(H, W, C))`) are brought into NHWC order. The levels of a
    CoConv2d are joined, in either form that `to_torch_state_dict` writes. All else is taken as it is. A warning names
    each Linear that may read a flattened map without `flattened`, and code that takes a shape apart as n, c, h, w.
    Args:
        state: torch.Tensor or NumPy array by name.
        model: the module to fill.
        strict: see Module.load_state_dict.
    Returns:
        (missing, unexpected), see Module.load_state_dict.
    Raises:
        CheckpointError: names or shapes differ, it lists all of them; a value is no array of numbers; two names are one
            without their prefixes; or a Linear behind a Flatten does not say which map that flattened. Then nothing has
            been loaded.
    """
    where = "from_torch_state_dict"
    _check_model(where, model)
    if not isinstance(state, Mapping):
        raise CheckpointError(message(where, f"the state is {shown(state)}, not a dict of tensors",
                                      "pass model.state_dict() of PyTorch's model"))
    turned = layouts(where, model)
    nchw.warn_of_order(where, model)
    values: dict[str, np.ndarray] = {}
    for key, value in state.items():
        if not isinstance(key, str):
            raise CheckpointError(message(where, f"the state has the name {shown(key)}, which is no string",
                                          "pass model.state_dict() of PyTorch's model"))
        name = _PREFIX.sub("", key)
        if name.rsplit(".", 1)[-1] == "num_batches_tracked" and name not in model.state_dict():
            continue    # which a batch norm with momentum=None alone counts here
        if name in values:
            raise CheckpointError(message(where, f"two names of the state are {name} without their prefixes",
                                          "drop one of them"))
        values[name] = _numpy(where, key, value)
    values = {name: turned[name].from_torch(a) if name in turned else a
              for name, a in to_own(where, model, values).items()}
    return model.load_state_dict(values, strict)


@bound
def to_torch_state_dict(model: Module, levels: str = "conv2_1") -> dict[str, np.ndarray]:
    """Returns the state_dict of the PyTorch model of the same names: the inverse of `from_torch_state_dict`.

    Args:
        levels: the name of the first level of a CoConv2d: "conv2_1", as in the authors' networks, or
            "coconv_levels.0", as in their general layer.
    Returns:
        NumPy arrays by name, in PyTorch's layouts; `{k: torch.from_numpy(v) for k, v in ...}` is for torch to load.
        num_batches_tracked is 0.
    Raises:
        CheckpointError: a Linear behind a Flatten does not say which map that flattened.
        ConfigError: levels is neither of the two.
    """
    where = "to_torch_state_dict"
    _check_model(where, model)
    check_levels(where, levels)
    turned = layouts(where, model)
    nchw.warn_of_order(where, model)
    state = {name: turned[name].to_torch(t.numpy()) if name in turned else t.numpy()
             for name, t in model.state_dict().items()}
    return to_torch(model, {**state, **{name: np.zeros((), np.int64) for name in counters(model)}}, levels)


@bound
def load_torch(path: PathLike, model: Module, strict: bool = True) -> tuple[list[str], list[str]]:
    """Loads the weights that PyTorch wrote, as .safetensors or with torch.save (.pth, .pt), into `model`.

    A file of torch.save needs PyTorch, and is read with weights_only=True: no code in it is run. A state_dict inside of
    a dict, under "state_dict", "model" or "net", is found. bfloat16 is read as float32. See `from_torch_state_dict`.
    Raises:
        CheckpointError: the file cannot be read, holds no state_dict or one in 8-bit floats, does not fit the model, or
            `save` wrote it.
    """
    place = disk.as_path("load_torch", path)
    _check_model("load_torch", model)
    disk.check_readable("load_torch", place)
    if own.is_own(place):
        raise CheckpointError(message("load_torch", f"{place} is a checkpoint of alpha, not a file of PyTorch",
                                      "read it with alpha.checkpoint.load(path)"))
    state: Any
    if place.suffix == ".safetensors":
        try:
            state = tensors_file.read("load_torch", place).arrays("load_torch", place)
        except Damaged as error:
            raise CheckpointError(message("load_torch", f"{place} is no safetensors file: {error}",
                                          "write it with safetensors.torch.save_file")) from error
    else:
        state = _torch_load(place)
    for key in ("state_dict", "model", "net"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or any(shape_of(value) is None for value in state.values()):
        raise CheckpointError(message("load_torch", f"{place} holds no state_dict", _SAVE_FIX))
    return from_torch_state_dict(state, model, strict)


@bound
def save_torch(path: PathLike, model: Module, levels: str = "conv2_1") -> None:
    """Writes the weights for PyTorch: with torch.save for .pth and .pt (needs PyTorch), else as safetensors.

    It is written as `save` writes: atomically, and the file before is kept as `previous(path)`. For `levels` see
    `to_torch_state_dict`.
    Raises CheckpointError if the file cannot be written, PyTorch is missing, or see `to_torch_state_dict`.
    """
    place = disk.as_path("save_torch", path)
    disk.check_target("save_torch", place)
    disk.warn_of_name("save_torch", place, known=(".pt", ".pth"))
    state = own.arrays_of("save_torch", to_torch_state_dict(model, levels))
    if place.suffix not in (".pth", ".pt"):
        disk.write("save_torch", place, safetensors.numpy.save(state))
        return
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(message("save_torch", f"{place} would be written by torch.save, and PyTorch is not "
                                      "installed", "install torch, or name the file .safetensors")) from error
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(np.array(a)) for name, a in state.items()}, buffer)
    disk.write("save_torch", place, buffer.getvalue())


def _check_model(where: str, model: Any) -> None:
    if not isinstance(model, Module):
        raise CheckpointError(message(where, f"the model is {shown(model)}, not an alpha.nn.Module",
                                      "pass the model to fill or to write, e.g. models.create(...)"))
    check_flattened(where, model)


def _torch_load(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(message("load_torch", f"{path} was written by torch.save, and PyTorch is not installed",
                                      "install torch, or convert the file to .safetensors")) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its reader meets: KeyError, EOFError, UnpicklingError, ...
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise CheckpointError(message("load_torch", f"{path} cannot be read: {text:.200}", _SAVE_FIX)) from error


def _numpy(where: str, name: str, value: Any) -> np.ndarray:
    """Returns the elements of a torch.Tensor or an array; bfloat16, which NumPy lacks, becomes float32."""
    try:
        if isinstance(value, Tensor) or not hasattr(value, "detach"):
            return value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        value = value.detach().cpu()
        return np.asarray((value.float() if "bfloat16" in str(value.dtype) else value).numpy())
    except Exception as error:  # sparse, quantised, 8-bit and other tensors that are no arrays
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise CheckpointError(message(where, f"{shown(name)} cannot be read as an array: {text:.200}",
                                      "convert it to a dense float32 tensor first: t.to_dense().float()")) from error
