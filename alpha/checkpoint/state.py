"""`alpha.save` and `alpha.load`: a model, an optimizer, or nested dicts and lists of tensors, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpha.checkpoint import disk, own
from alpha.core.errors import ArgumentError, CheckpointError, message, shown
from alpha.core.inputs.arguments import bound, checked
from alpha.core.tensor import Tensor, tensor

TENSOR = "tensor:"      # in front of the name of a tensor, in its place in the tree
TEXT = "text:"          # in front of every other string


@bound
def save(state: Any, path: own.PathLike) -> None:
    """Writes a state to a file, atomically; `alpha.load` reads it.

    Args:
        state: an object with a state_dict (a module, an optimizer, ...), or dicts, with strings for keys, lists and
            tuples of tensors, NumPy arrays, numbers, strings, bools, None, and such states, to any depth.
        path: where to; a name that ends in .safetensors is customary. The directory must exist.
    Raises:
        ArgumentError: state and path are swapped, or something in it is neither.
        CheckpointError: the file cannot be written.
    """
    if isinstance(state, (str, bytes)) or (not isinstance(path, (str, bytes)) and not hasattr(path, "__fspath__")):
        raise ArgumentError(message("save", f"state is {shown(state)}, path is {shown(path)}",
                                    'call alpha.save(model, "model.safetensors")'))
    tensors: dict[str, Any] = {}
    tree = _flattened(state, "", tensors)
    own.save(path, tensors, {"state": tree})


@checked
def load(path: Any, map_location: str = "cpu") -> Any:
    """Returns the content of a file of `alpha.save`: dicts, lists, tensors, and numbers; of a module its state_dict.

    map_location: the device for the tensors.

    `model.load_state_dict(alpha.load(path))` continues with it. No code is run: files of strangers are safe to read.
    Raises:
        CheckpointError: the file is missing, damaged, or no file of `save`.
    """
    tensors, metadata = own.load(path)
    if set(metadata) != {"state"}:
        place = disk.as_path("load", path)
        if "use" in metadata or "identity" in metadata:
            raise CheckpointError(message("load", f"{place} is a checkpoint of a run, and no file of alpha.save",
                                          f'alpha.training.load_run("{place}") has its model, and predicts'))
        raise CheckpointError(message("load", f"{place} is no file of alpha.save",
                                      "alpha.checkpoint.load reads it; load_torch reads PyTorch's"))
    return _restored(metadata["state"], {name: t.to(map_location) for name, t in tensors.items()})


def _flattened(value: Any, path: str, tensors: dict[str, Any]) -> Any:
    """Returns the tree of a state as JSON takes it, and puts its tensors into `tensors`."""
    if isinstance(value, Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        name = path or "state"
        if getattr(value, "shape", None) == () and not isinstance(value, Tensor):
            return _flattened(value.item(), path, tensors)
        tensors[name] = value.detach() if isinstance(value, Tensor) else tensor(value)
        return TENSOR + name
    if hasattr(value, "state_dict") and not isinstance(value, type):
        return _flattened(value.state_dict(), path, tensors)
    if isinstance(value, Mapping):
        bad = next((key for key in value if not isinstance(key, str)), None)
        if bad is not None:
            raise ArgumentError(message("save", f"a key of {path or 'the state'} is {shown(bad)}, a str is needed",
                                        "use strings for keys"))
        return {key: _flattened(v, f"{path}/{key}" if path else key, tensors) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_flattened(v, f"{path}/{k}" if path else str(k), tensors) for k, v in enumerate(value)]
    if isinstance(value, str):
        return TEXT + value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise ArgumentError(message("save", f"{path or 'the state'} is {shown(value)}, which no file of tensors holds",
                                "keep tensors, numbers, strings, lists and dicts of them"))


def _restored(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        return {key: _restored(v, tensors) for key, v in tree.items()}
    if isinstance(tree, list):
        return [_restored(v, tensors) for v in tree]
    if not isinstance(tree, str):
        return tree
    if tree.startswith(TENSOR) and tree.removeprefix(TENSOR) in tensors:
        return tensors[tree.removeprefix(TENSOR)]
    if tree.startswith(TEXT):
        return tree.removeprefix(TEXT)
    raise CheckpointError(message("load", f"the file names a tensor {shown(tree)} that it does not have",
                                  "save the state again"))
