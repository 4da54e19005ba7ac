"""What a kernel does to each element that it has computed, before it stores it: pointwise equations, in their order.

    Epilogue.of(b, "relu")      v + a, a being b of the channel; then v < 0 ? 0 : v

Every producer takes one: convolutions, products, norms. Kernels know these two equations, at most one of each and in
this order; `known` hands them out. Others are refused there until a kernel is made for them.
"""

from __future__ import annotations

from typing import NamedTuple

from alpha.cuda.runtime.memory import Array
from alpha.errors import AlphaError, message

ADD, RELU = "v + a", "v < 0 ? 0 : v"  # NaN stays


class Equation(NamedTuple):
    """A new v, from v and from `a`, the element of `operand` at its place after broadcasting, where there is one."""

    expression: str
    operand: Array | None = None


class Epilogue(NamedTuple):
    """The equations, the first one first; without any, elements are stored as they are."""

    equations: tuple[Equation, ...] = ()

    @staticmethod
    def of(add: Array | None, activation: str | None) -> Epilogue:
        """Returns the epilogue that adds an array, if there is one, and goes through an activation, None or "relu"."""
        if add is None:
            return _RELU if activation else NOTHING
        adds = Equation(ADD, add)
        return Epilogue((adds, *_RELU.equations) if activation else (adds,))

    def known(self) -> tuple[Array | None, bool]:
        """Returns what is added, or None, and whether relu follows.

        Raises:
            AlphaError: there are other equations.
        """
        added, rest = None, self.equations
        if rest and rest[0].expression == ADD:
            added, rest = rest[0].operand, rest[1:]
        if rest and rest != _RELU.equations:
            raise AlphaError(message("epilogue", f"kernels do {ADD!r}, then {RELU!r}, not "
                                     f"{[equation.expression for equation in self.equations]}",
                                     "compute what is left by ops of its own"))
        return added, bool(rest)


NOTHING, _RELU = Epilogue(), Epilogue((Equation(RELU),))
