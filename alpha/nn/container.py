"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from alpha.nn.module import Module
from alpha.tensor import Tensor


class ModuleList(Module):
    """A list of modules whose parameters are found, named "0", "1", ...

    Args:
        modules: the modules, in order.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        """Adds a module at the end."""
        setattr(self, str(len(self)), module)

    def __len__(self) -> int:
        return sum(1 for _ in self.named_children())

    def __iter__(self) -> Iterator[Module]:
        return (child for _, child in self.named_children())

    def __getitem__(self, index: int) -> Module:
        return list(self)[index]


class Sequential(ModuleList):
    """Calls its modules one after the other.

    A layer that can fuse with the next one does (a batch norm, a linear layer or a convolution with a bias followed
    by a ReLU: same values, one pass less over memory), unless one of the two has hooks.

    Args:
        *modules: the modules, in order.
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        k = 0
        while k < len(layers):
            layer, following = layers[k], layers[k + 1] if k + 1 < len(layers) else None
            fused = None
            if following is not None and not (layer.hooked or following.hooked):
                fused = layer.fused_with(following)
            x = (fused or layer)(x)
            k += 2 if fused else 1
        return x
