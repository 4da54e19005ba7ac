"""Checkpoints: tensors and JSON metadata in one safetensors file, written atomically and verified byte for byte.

    own.py              the format: `save` and `load`
    torch_state.py      PyTorch's state_dicts and files, in and out
    layouts.py          which parameters PyTorch stores in another order, as the modules say
    tensors_file.py     safetensors files, read without trust in a single field of them
    disk.py             a file replaced as a whole
"""

from __future__ import annotations

import sys

from alpha.checkpoint.disk import previous
from alpha.checkpoint.own import load, save
from alpha.checkpoint.torch_state import from_torch_state_dict, load_torch, save_torch, to_torch_state_dict
from alpha.interop import twins

__all__ = ["from_torch_state_dict", "load", "load_torch", "previous", "save", "save_torch", "to_torch_state_dict"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.checkpoint", name, twins.CHECKPOINT, sys.modules[__name__])
