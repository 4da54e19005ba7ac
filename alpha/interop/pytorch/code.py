"""The code of a converted model's class, as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from alpha.interop.pytorch import source
from alpha.interop.pytorch.body import Body
from alpha.interop.pytorch.layers import Layers, reached
from alpha.interop.pytorch.layout import Order

LITERAL = 64    # elements of a constant that the code has; larger ones are buffers

_HEAD = '''"""{name}, converted from PyTorch {version}: {permutes}.

Maps are (N, H, W, C) inside; parameters have the names that they have in PyTorch's model.
"""

from pathlib import Path

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.interop.pytorch import Converted, Part, filled


class {name}(Converted):
    """{name} of {module}."""

    origin = "{module}.{name}"
    permutes = ({places})
'''
_IMPORTS = {"import alpha\n": r"\balpha\.(?!nn|interop)", "import alpha.nn.functional as F\n": r"\bF\.",
            ", ops\n": r"\bops\.", ", Part": r"\bPart\(", "from alpha import nn\n": r"\bnn\."}    # line: its users
_FOOT = '''

def load(path=Path(__file__).with_suffix(".safetensors")):
    """Returns the network with the weights in a file."""
    return filled({name}(), path)
'''


def written(version: str, bodies: Sequence[Body], layers: Layers, stored: dict[str, Order], model: Any) -> str:
    """Returns the code of the class."""
    name, module = type(model).__name__, type(model).__module__
    name = f"{name}Net" if name in ("Part", "Converted") else name
    permutes = [place for body in bodies for place in body.builder.permutes]
    samples = next((node.shape[0] for node in bodies[0].graph.inputs if node.shape), 0)
    samples = samples if isinstance(samples, int) else 0
    places = "".join([f"\n        {place!r}," for place in permutes]) + ("\n    " if permutes else "")
    text = _HEAD.format(name=name, version=version, module=module, places=places,
                        permutes=f"{len(permutes)} permute{'s' * (len(permutes) != 1)} left")
    if samples:
        text += f"    samples = {samples}\n"
    made = source.Tree(layers, stored).lines()
    constants = {path: array for body in bodies for path, array in body.graph.constants.items()}
    for path, array in constants.items():
        if array.numel() <= LITERAL:
            continue
        dtype = "" if array.dtype.is_floating_point else f', dtype="{str(array.dtype)[6:]}"'
        made.append(f'self.register_buffer("{path}", alpha.zeros({tuple(array.shape)}{dtype}), persistent=False)')
    for path in source.frozen(model):
        made.append(f"{reached(path)}.requires_grad_(False)")
    text += "\n    def __init__(self):\n" + _indented(made or ["pass"])
    names = ["forward"] if len(bodies) == 1 else ["forward_training", "forward_inference"]
    if len(bodies) == 2:
        call = ", ".join(bodies[0].inputs.values())
        text += (f"\n    def forward(self, {call}):\n        run = self.forward_training if self.training else "
                 f"self.forward_inference\n        return run({call})\n")
    for method, body in zip(names, bodies):
        given, lines = body.lines(model)
        if samples:
            lines.insert(0, f"self.check_samples({given[0]})")
        text += f"\n    def {method}(self, {', '.join(given)}):\n" + _indented(lines)
    text += _FOOT.format(name=name)
    for line, pattern in _IMPORTS.items():
        if not re.search(pattern, text.replace("alpha.nn.functional as F", "")):
            text = text.replace(line, "\n" if line == ", ops\n" else "", 1)
    return text


def _indented(lines: Sequence[str]) -> str:
    return "".join([f"        {line}\n" for line in lines])
