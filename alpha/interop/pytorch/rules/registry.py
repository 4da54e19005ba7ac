"""The table of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpha.interop.pytorch.build import Builder
from alpha.interop.pytorch.graph import Node

Rule = Callable[[Builder, Node], Any]   # writes a node, and returns its Value, or a list of them
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators, by name or by name and overload."""
    def register(f: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = f
        return f
    return register


def rule_of(node: Node) -> Rule | None:
    """Returns the rule for a node; None where there is none."""
    return RULES.get(f"{node.op}.{node.overload}") or RULES.get(node.op)
