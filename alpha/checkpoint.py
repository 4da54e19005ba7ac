"""Checkpoints: tensors and JSON metadata in one safetensors file, written atomically and verified byte for byte.

The header's "__metadata__" has one entry, "alpha": JSON of {"sha256", "schema", "metadata"}. The digest is that of the
whole file with 64 zeros in its own place, so that no byte can change or go unnoticed. PyTorch's state_dicts come and
go through `from_torch_state_dict` and `to_torch_state_dict`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Union

import numpy as np
import safetensors.numpy

from alpha.backend import DTYPES
from alpha.errors import CheckpointError, message
from alpha.nn import BatchNorm2d, Linear, Module
from alpha.tensor import Tensor, tensor

SCHEMA = 1
_BLANK = b"0" * 64
_HEAD_BYTES = 4096      # the digest is among the first
_DIGEST = re.compile(rb'\\"sha256\\":\\"([0-9a-f]{64})\\"')
_DAMAGED = "use the previous checkpoint, see alpha.checkpoint.previous(path)"

PathLike = Union[str, "os.PathLike[str]"]


# ---- our own format --------------------------------------------------------------------------------------------------

def save(path: PathLike, tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
    """Writes a checkpoint, so that at every moment `path` holds either the old or the new one as a whole.

    The file that was at `path` is kept as `previous(path)`.
    Args:
        path: where to; a name that ends in .safetensors is customary. The directory must exist.
        tensors: Tensor or NumPy array by name.
        metadata: what json.dumps takes: numbers, strings, None, lists, dicts.
    Raises:
        CheckpointError: the metadata is no JSON, a tensor has a dtype that alpha lacks, the disk is full, or the
            directory is not there or not writable. What was at `path` is still there.
    """
    path = Path(path)
    try:
        document = json.dumps({"sha256": _BLANK.decode(), "schema": SCHEMA, "metadata": dict(metadata or {})},
                              separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(message("checkpoint.save", f"the metadata of {path} cannot be written as JSON: {error}",
                                      "pass numbers, strings, None, lists and dicts")) from error
    arrays = {name: _array(t) for name, t in tensors.items()}
    for name, a in arrays.items():
        if a.dtype.name not in DTYPES:
            raise CheckpointError(message("checkpoint.save", f"{name} has dtype {a.dtype}, which alpha cannot load",
                                          f"convert it to one of {', '.join(sorted(DTYPES))}"))
    data = safetensors.numpy.save(arrays, {"alpha": document})
    data = data.replace(_BLANK, hashlib.sha256(data).hexdigest().encode(), 1)
    _write(path, data)


def load(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads a checkpoint that `save` wrote.

    Returns:
        (tensors, metadata); the tensors live on the CPU.
    Raises:
        CheckpointError: the file is missing or unreadable, a byte of it differs from what was written, or it was
            written by a later version of alpha.
    """
    data = _read(Path(path))
    found = _DIGEST.search(data, 0, _HEAD_BYTES)
    if not found:
        raise CheckpointError(message("checkpoint.load", f"{path} is damaged, or no checkpoint of alpha", _DAMAGED,
                                      size=f"{len(data)} bytes"))
    blank = b"".join((data[:found.start(1)], _BLANK, data[found.end(1):]))
    if hashlib.sha256(blank).hexdigest().encode() != found[1]:
        raise CheckpointError(message("checkpoint.load", f"{path} is damaged: its bytes do not match its digest",
                                      _DAMAGED, size=f"{len(data)} bytes"))
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    document = json.loads(header["__metadata__"]["alpha"])
    if document["schema"] > SCHEMA:
        raise CheckpointError(message("checkpoint.load", f"{path} has schema {document['schema']}, this version of "
                                      f"alpha reads up to {SCHEMA}", "update alpha"))
    return {name: tensor(a) for name, a in safetensors.numpy.load(data).items()}, document["metadata"]


def previous(path: PathLike) -> Path:
    """Returns where `save` keeps the checkpoint that was at `path` before."""
    return Path(path).with_name(Path(path).name + ".prev")


def _array(t: Any) -> np.ndarray:
    return np.ascontiguousarray(t.numpy() if isinstance(t, Tensor) else t).reshape(t.shape)


def _is_own(path: Path) -> bool:
    """Tells whether `save` wrote the file; False where it cannot be read, which the next reader explains."""
    try:
        with open(path, "rb") as file:
            return _DIGEST.search(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(message("checkpoint.load", f"{path} cannot be read: {error.strerror}",
                                      "check the path and its permissions")) from error


def _write(path: Path, data: bytes) -> None:
    """Writes `data` to a temporary name in the same directory, then renames it to `path`."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            _keep_previous(path)
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)       # makes the new name itself durable
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise CheckpointError(message("checkpoint.save", f"{path} cannot be written: {error.strerror}",
                                      "free space, or choose a directory that exists and is writable",
                                      size=f"{len(data)} bytes")) from error


def _keep_previous(path: Path) -> None:
    """Gives the file at `path` a second name, so that `path` is never missing; renames it where links are not known."""
    link = path.with_name(f".{path.name}.link")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:
        os.replace(path, previous(path))
        return
    os.replace(link, previous(path))
    link.unlink(missing_ok=True)        # where both names were of one file already, the rename did nothing


# ---- PyTorch's state_dicts -------------------------------------------------------------------------------------------

def from_torch_state_dict(state: Mapping[str, Any], model: Module, strict: bool = True) -> tuple[list[str], list[str]]:
    """Loads the state_dict of a PyTorch model of the same names into `model`.

    The prefixes "module." and "_orig_mod." are dropped, num_batches_tracked is ignored, OIHW filters become OHWI, and
    the columns of a Linear behind a flattened map (`Linear(..., flattened=(H, W, C))`) are brought into NHWC order.
    Args:
        state: torch.Tensor or NumPy array by name.
        model: the module to fill.
        strict: see Module.load_state_dict.
    Returns:
        (missing, unexpected), see Module.load_state_dict.
    Raises:
        CheckpointError: names or shapes differ; it lists all of them.
    """
    maps = _flattened_maps(model)
    values = {}
    for key, value in state.items():
        name = re.sub(r"^((module|_orig_mod)\.)+", "", key)
        if name.rsplit(".", 1)[-1] != "num_batches_tracked":
            values[name] = _from_torch(_numpy(value), maps.get(name))
    return model.load_state_dict(values, strict)


def to_torch_state_dict(model: Module) -> dict[str, np.ndarray]:
    """Returns the state_dict of the PyTorch model of the same names: the inverse of `from_torch_state_dict`.

    Returns:
        NumPy arrays by name, in PyTorch's layouts; `{k: torch.from_numpy(v) for k, v in ...}` is what torch loads.
        num_batches_tracked is 0.
    """
    maps = _flattened_maps(model)
    state = {name: _to_torch(t.numpy(), maps.get(name)) for name, t in model.state_dict().items()}
    for path, module in model.named_modules():
        if isinstance(module, BatchNorm2d):
            state[f"{path}.num_batches_tracked" if path else "num_batches_tracked"] = np.zeros((), np.int64)
    return state


def load_torch(path: PathLike, model: Module, strict: bool = True) -> tuple[list[str], list[str]]:
    """Loads the weights that PyTorch wrote, as .safetensors or with torch.save (.pth, .pt), into `model`.

    A file of torch.save needs PyTorch, and is read with weights_only=True: no code in it is run. A state_dict inside of
    a dict, under "state_dict", "model" or "net", is found. See `from_torch_state_dict`.
    Raises:
        CheckpointError: the file cannot be read, holds no state_dict, does not fit the model, or `save` wrote it.
    """
    path = Path(path)
    if _is_own(path):
        raise CheckpointError(message("load_torch", f"{path} is a checkpoint of alpha, not a file of PyTorch",
                                      "read it with alpha.checkpoint.load(path)"))
    state: Any
    if path.suffix == ".safetensors":
        try:
            state = safetensors.numpy.load(_read(path))
        except safetensors.SafetensorError as error:
            raise CheckpointError(message("load_torch", f"{path} is no safetensors file: {error}",
                                          "write it with safetensors.torch.save_file")) from error
    else:
        state = _torch_load(path)
    for key in ("state_dict", "model", "net"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(hasattr(value, "shape") for value in state.values()):
        raise CheckpointError(message("load_torch", f"{path} holds no state_dict", "save it with "
                                      "torch.save(model.state_dict(), path)"))
    return from_torch_state_dict(state, model, strict)


def save_torch(path: PathLike, model: Module) -> None:
    """Writes the weights for PyTorch: with torch.save for .pth and .pt (needs PyTorch), else as safetensors.

    It is written as `save` writes: atomically, and what was at `path` is kept as `previous(path)`.
    Raises CheckpointError if the file cannot be written.
    """
    path = Path(path)
    state = to_torch_state_dict(model)
    if path.suffix in (".pth", ".pt"):
        import io

        import torch
        buffer = io.BytesIO()
        torch.save({name: torch.from_numpy(np.array(a)) for name, a in state.items()}, buffer)
        _write(path, buffer.getvalue())
    else:
        _write(path, safetensors.numpy.save({name: np.ascontiguousarray(a).reshape(a.shape)
                                             for name, a in state.items()}))


def _torch_load(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(message("load_torch", f"{path} was written by torch.save, and PyTorch is not installed",
                                      "install torch, or convert the file to .safetensors")) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its reader meets: KeyError, EOFError, UnpicklingError, ...
        raise CheckpointError(message("load_torch", f"{path} cannot be read: {str(error).splitlines()[0]:.200}",
                                      "save it with torch.save(model.state_dict(), path)")) from error


def _flattened_maps(model: Module) -> dict[str, tuple[int, int, int]]:
    """Returns (H, W, C) by name of each linear weight whose input is a flattened map."""
    return {f"{path}.weight" if path else "weight": module.flattened for path, module in model.named_modules()
            if isinstance(module, Linear) and module.flattened}


def _numpy(value: Any) -> np.ndarray:
    """Returns the elements of a torch.Tensor or an array; bfloat16, which NumPy lacks, becomes float32."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    value = value.detach().cpu()
    return (value.float() if "bfloat16" in str(value.dtype) else value).numpy()


def _from_torch(a: np.ndarray, flattened: tuple[int, int, int] | None) -> np.ndarray:
    """Moves the channels, which PyTorch has in front of height and width, behind them."""
    if flattened and a.ndim == 2 and a.shape[1] == np.prod(flattened):
        h, w, c = flattened
        return _from_torch(a.reshape(-1, c, h, w), None).reshape(a.shape)
    return np.ascontiguousarray(np.moveaxis(a, -3, -1)) if a.ndim >= 3 else a


def _to_torch(a: np.ndarray, flattened: tuple[int, int, int] | None) -> np.ndarray:
    """The inverse of _from_torch."""
    if flattened:
        return _to_torch(a.reshape(-1, *flattened), None).reshape(a.shape)
    return np.ascontiguousarray(np.moveaxis(a, -1, -3)) if a.ndim >= 3 else a
