"""Which nodes of an exported program share memory, for operators that change a tensor in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpha.interop.pytorch.graph import Write

VIEWS = {"slice", "select", "view", "transpose", "permute", "t", "unsqueeze", "squeeze", "expand", "detach", "alias",
         "reshape", "flatten", "unflatten", "contiguous", "narrow", "split", "chunk", "unbind", "split_with_sizes"}
SAME = {"detach", "alias", "contiguous"}        # views of the same shape
END = 1 << 62


def _name(node: Any) -> str:
    return getattr(getattr(node.target, "_schema", None), "name", "").rpartition("::")[2]


class Family:
    """Nodes by the memory that they share: a tensor, its views, and results of in-place operators."""

    def __init__(self) -> None:
        self.place: dict[Any, int] = {}
        self.source: dict[Any, Any] = {}    # a view, or the result of a change in place -> its source

    def look_at(self, nodes: list[Any]) -> None:
        """Reads who is a view of whom."""
        for k, node in enumerate(nodes):
            self.place[node] = k
            name = _name(node)
            if name in VIEWS or (name.endswith("_") and not name.startswith("__")) or (
                    getattr(node.target, "__name__", "") == "getitem" and _name(node.args[0]) in VIEWS):
                self.source[node] = node.args[0]

    def root(self, node: Any) -> Any:
        """Returns the tensor that a node is a view of, at the end."""
        while node in self.source:
            node = self.source[node]
        return node

    def alike(self, node: Any) -> list[Any]:
        """Returns the nodes that are the same tensor: results of changes in place, and copies that are none."""
        top = self._top(node)
        return [other for other in self.place if self._top(other) is top]

    def _top(self, node: Any) -> Any:
        """Returns the first node that is the same tensor."""
        while node in self.source and (_name(node).endswith("_") or _name(node) in SAME):
            node = self.source[node]
        return node

    def written(self, at: Any, node: Any, size: Callable[[Any], Any]) -> tuple[Any, tuple[Write, ...] | None, bool]:
        """Returns (the whole, which part of it `node` is, whether the whole is read after `at`).

        The part is () for the whole itself, and None where it is no slice, or a view that was made before is read
        afterwards.
        """
        root, top, when = self.root(node), self._top(node), self.place[at]
        same = set(self.alike(node))
        later = False
        for other in self.place:
            if self.root(other) is not root or other in same:
                continue
            reads = [user for user in other.users if self.place[user] > when]
            if other is root or self._top(other) is self._top(root):
                later = later or bool(reads)
            elif self.place[other] < when and reads and not self._only_remakes(other, top):
                return root, None, True
        if top is self._top(root):
            return root, (), later
        if not later:
            return root, (), False
        writes: list[Write] = []
        while top is not self._top(root):
            write = _write(top, size)
            if write is None:
                return root, None, True
            writes.insert(0, write)
            top = self._top(self.source[top])
        return self._top(root), tuple([w for w in writes if w.stop - w.start != END or not w.keeps]), True

    def _only_remakes(self, other: Any, top: Any) -> bool:
        """Tells whether a view made before is a source of the changed one."""
        while top in self.source:
            top = self.source[top]
            if top is other:
                return True
        return False


def _write(node: Any, size: Callable[[Any], Any]) -> Write | None:
    """Returns the slice by which a view is cut out of its source; None where it is another view."""
    name, args = _name(node), list(node.args)
    shape = args[0].meta["val"].shape
    if name == "select":
        dim, index = args[1] % len(shape), size(args[2])
        length = size(shape[dim])
        if not isinstance(index, int) or (index < 0 and not isinstance(length, int)):
            return None
        index = index + length if index < 0 else index
        return Write(dim, index, index + 1, False)
    if name != "slice":
        return None
    given: list[Any] = [*args[1:], *[0, None, None, 1][len(args) - 1:]]
    (dim, start, stop, step), axes = given, len(shape)
    length = size(shape[dim % axes])
    start, stop = start or 0, END if stop is None or (isinstance(stop, int) and stop >= END) else stop
    if step != 1 or not isinstance(start, int) or not isinstance(stop, int):
        return None
    if start == 0 and stop == END:
        return Write(dim % axes, 0, END, True)
    if not isinstance(length, int):
        return None
    start, stop = (max(k + length, 0) if k < 0 else min(k, length) for k in (start, stop))
    return Write(dim % axes, start, stop, True)
