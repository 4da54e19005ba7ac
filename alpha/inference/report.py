"""What a runner says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass
class Report:
    """What was made of a model.

    Attributes:
        title: model, device, precision and shape.
        notes: (layer, what was done to it): folded, fused, left.
        launches: (layer, what it is), in order: kernels that are left.
        facts: (name, value): memory, weights, error against the model's own forward pass.
    """

    title: str
    notes: list[tuple[str, str]] = field(default_factory=list)
    launches: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)

    def count(self, what: str) -> int:
        """Returns how many notes begin with, or are, some words."""
        return sum(text.startswith(what) for _, text in self.notes)

    def __str__(self) -> str:
        lines = [self.title]
        for title, rows in (("done", self.notes), ("launches", self.launches), ("", self.facts)):
            if rows:
                width = max(len(name) for name, _ in rows)
                lines += [f"{title} ({len(rows)}):"] if title else []
                lines += [f"  {name:{width}}  {what}" for name, what in rows]
        return "\n".join(lines)
