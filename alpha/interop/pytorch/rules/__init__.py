"""How each operator of ATen is written: a file per family.  RULES has them by name, `name` or `name.overload`."""

from alpha.interop.pytorch.rules import attention, create, elementwise, maps, move, reduce, shape  # noqa: F401
from alpha.interop.pytorch.rules.registry import RULES, rule_of

__all__ = ["RULES", "rule_of"]
