"""What a kernel does to each element that it has computed, before it stores it: v + a, then v < 0 ? 0 : v; NaN stays.

    Epilogue.of(b, "relu")      a being b of the channel

Convolutions and products take one.
"""

from __future__ import annotations

from typing import NamedTuple

from alpha.cuda.runtime.memory import Array


class Epilogue(NamedTuple):
    """What is added, or None, and whether relu follows: `b, relu = epilogue`."""

    add: Array | None = None
    relu: bool = False

    @staticmethod
    def of(add: Array | None, activation: str | None) -> Epilogue:
        """Returns the epilogue that adds an array, if there is one, and goes through an activation, None or "relu"."""
        return Epilogue(add, activation is not None)


NOTHING = Epilogue()
