"""The configurations that a careful user of PyTorch would try, by name.

`torch_graph` and `torch_compile` take the layout in which the plain step was the faster one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PRECISIONS = ("fp32", "fp32-tf32", "tf32", "bf16", "fp16")


def of_sides(precision: str) -> tuple[str, str]:
    """Returns alpha's precision and PyTorch's: "fp32-tf32" is float32 beside TF32, the others are both's."""
    ours, _, theirs = precision.partition("-")
    return ours, theirs or ours


class Configuration(NamedTuple):
    """One way to run PyTorch's training step.

    Attributes:
        layout: "nchw" or "nhwc" (channels_last); "" is settled by measured times.
        kind: "eager"; "graph", the whole step captured in a CUDA graph; "compile", torch.compile for little overhead.
        devices: where it exists.
    """

    name: str
    layout: str
    kind: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    meaning: str = ""


CONFIGURATIONS = {c.name: c for c in (
    Configuration("torch_nchw", "nchw", "eager", meaning="eager, contiguous NCHW"),
    Configuration("torch_nhwc", "nhwc", "eager", meaning="eager, channels_last"),
    Configuration("torch_graph", "", "graph", ("cuda",), "the whole step in a CUDA graph"),
    Configuration("torch_compile", "", "compile", meaning='torch.compile, mode="reduce-overhead"'),
)}


def usual(device: str) -> list[str]:
    """Returns the names of the configurations that a device has."""
    return [c.name for c in CONFIGURATIONS.values() if device in c.devices]


def settled(name: str, precision: str, eager_ms: Mapping[str, float], device: str) -> Configuration:
    """Returns a configuration with its layout.

    Args:
        eager_ms: milliseconds of the eager configurations by name, as far as they are known. Without them float32 on a
            GPU takes NCHW, in which cuDNN is the faster one there, and everything else channels_last.
    """
    found = CONFIGURATIONS[name]
    if found.layout:
        return found
    faster = min(eager_ms, key=lambda key: eager_ms[key], default="")
    layout = CONFIGURATIONS[faster].layout if faster else "nchw" if (precision, device) == ("fp32", "cuda") else "nhwc"
    return found._replace(layout=layout)
