"""The code of a converted model: the parts that __init__ makes, and statements with names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from alpha.interop.pytorch.build import TOKEN, Statement
from alpha.interop.pytorch.layers import Layers, is_name, reached
from alpha.interop.pytorch.layout import Order, moved

WIDTH = 110
_CALL = re.compile(r"(self[\w.\[\]'\"]*|F\.\w+|ops\.\w+)\(.*\)$")
_NAMES = ("x", "y", "z", "u", "v", "w")


# ---- statements ------------------------------------------------------------------------------------------------------


def _used(text: str) -> list[int]:
    return [int(k) for k in TOKEN.findall(text)]


def inlined(statements: Sequence[Statement], kept: set[int]) -> list[Statement]:
    """Writes a call that only the next statement reads into that statement."""
    counts: dict[int, int] = {}
    for statement in statements:
        for k in _used(statement.text):
            counts[k] = counts.get(k, 0) + 1
    found: list[Statement] = []
    for statement in statements:
        if found:
            before = found[-1]
            target = before.targets[0]
            if (len(before.targets) == 1 and counts.get(target) == 1 and target not in kept
                    and target in _used(statement.text) and _CALL.match(before.text)
                    and before.text.count("(") <= 2 and _CALL.match(statement.text)
                    and len(before.text) + len(statement.text) < 80):
                text = statement.text.replace(f"\x01{target}\x02", before.text)
                found[-1] = Statement(statement.targets, text, statement.place)
                continue
        found.append(statement)
    return found


def read_ones(statements: Sequence[Statement], kept: set[int]) -> list[Statement]:
    """Returns the statements without those whose results nothing reads."""
    read, found = set(kept), []
    for statement in reversed(statements):
        if any(target in read for target in statement.targets):
            read |= set(_used(statement.text))
            found.append(statement)
    return found[::-1]


def named(statements: Sequence[Statement], inputs: dict[int, str], kept: set[int], taken: set[str]) -> dict[int, str]:
    """Returns a name for each variable; the name of a variable that is read no more goes to the next."""
    last: dict[int, int] = {}
    for i, statement in enumerate(statements):
        for k in _used(statement.text):
            last[k] = i
    last |= {k: len(statements) for k in kept}
    names = dict(inputs)
    live = {k for k in inputs if k in last}
    free = [name for k, name in inputs.items() if k not in last]
    count = 0

    def fresh() -> str:
        nonlocal count
        while True:
            name = _NAMES[count] if count < len(_NAMES) else f"x{count - len(_NAMES) + 1}"
            count += 1
            if name not in taken:
                return name

    for i, statement in enumerate(statements):
        ended = [k for k in dict.fromkeys(_used(statement.text)) if last[k] == i and k in live]
        live -= set(ended)
        ready = [names[k] for k in ended]
        for target in statement.targets:
            if target not in last:
                names[target] = "_"
                continue
            names[target] = ready.pop(0) if ready else free.pop(0) if free else fresh()
            live.add(target)
        free = sorted({*free, *ready}, key=lambda name: (len(name), name))
    return names


def with_names(text: str, names: dict[int, str]) -> str:
    """Returns a text with names for its tokens."""
    return TOKEN.sub(lambda found: names[int(found[1])], text)


def lines_of(statements: Sequence[Statement], names: dict[int, str], model: Any) -> list[str]:
    """Returns the lines of a forward pass, with a comment where another module begins."""
    lines: list[str] = []
    before: str | None = None
    for statement in statements:
        place = statement.place
        owner = place.layer
        if place.kind.startswith("torch.nn.") and owner:
            owner = owner.rpartition(".")[0]
        comment = " ".join([part for part in (
            owner and f"{owner} ({type(model.get_submodule(owner)).__name__})", place.line) if part])
        if owner != before and comment:
            lines.append(f"# {comment}")
        before = owner
        text = with_names(f"{', '.join(f'{chr(1)}{k}{chr(2)}' for k in statement.targets)} = {statement.text}", names)
        lines += folded(text)
    return lines


def folded(text: str, width: int = WIDTH - 8) -> list[str]:
    """Returns a line of code as lines that fit, broken behind commas."""
    lines: list[str] = []
    while len(text) > width:
        cut = text.rfind(", ", 0, width)
        if cut < 20 or "(" not in text[:cut]:
            break
        lines.append(text[:cut + 1])
        text = "    " + text[cut + 2:]
    return [*lines, text]


# ---- the parts that __init__ makes -----------------------------------------------------------------------------------


class Tree:
    """Writes the modules of a model: layers, parameters and buffers by the names that they have there."""

    def __init__(self, layers: Layers, stored: dict[str, Order]) -> None:
        self.layers, self.stored = layers, stored
        self.seen: dict[int, str] = {}      # id of a module or parameter -> its first path
        self.later: list[str] = []          # shared ones

    def lines(self) -> list[str]:
        """Returns the body of __init__."""
        lines: list[str] = []
        for name, text in self._entries("", self.layers.model):
            target = f"self.{name}" if is_name(name) else None
            if text.startswith("alpha.tensor:"):
                unsaved = ", persistent=False" if text.endswith(":unsaved") else ""
                lines.append(f'self.register_buffer("{name}", {text.split(":")[1]}{unsaved})')
            else:
                lines += (f"{target} = {text}" if target else f"self.add_module({name!r}, {text})").split("\n")
        first = [f'"{name}"' for name in self._first("", self.layers.model)]
        if first:
            lines.append(f"self.torch_channels_first = ({', '.join(first)},)")
        return lines + self.later

    def _entries(self, path: str, module: Any) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for name, p in module._parameters.items():
            if p is not None and self._is_first(f"{path}{name}", p, "register_parameter"):
                dtype = "" if p.dtype.is_floating_point else f', dtype="{str(p.dtype)[6:]}"'
                found.append((name, f"nn.Parameter(alpha.zeros({self._shape(f'{path}{name}', p)}{dtype}))"))
        for name, t in module._buffers.items():
            if t is not None and name != "num_batches_tracked" and self._is_first(f"{path}{name}", t,
                                                                                  "register_buffer"):
                dtype = "" if t.dtype.is_floating_point else f', dtype="{str(t.dtype)[6:]}"'
                unsaved = ":unsaved" if name in module._non_persistent_buffers_set else ":"
                found.append((name, f"alpha.tensor:alpha.zeros({self._shape(f'{path}{name}', t)}{dtype}){unsaved}"))
        for name, child in module._modules.items():
            whole = f"{path}{name}"
            if child is not None and self._is_needed(whole, child) and self._is_first(whole, child, "add_module"):
                found.append((name, self._module(whole, child)))
        return found

    def _is_needed(self, path: str, module: Any) -> bool:
        """Tells whether a module is called, or has parameters or buffers that a state_dict names."""
        if any(p is not None for p in module._parameters.values()) or any(
                name != "num_batches_tracked" and b is not None for name, b in module._buffers.items()):
            return True
        return path in self.layers.used or any(self._is_needed(f"{path}.{name}", child)
                                               for name, child in module._modules.items() if child is not None)

    def _is_first(self, path: str, value: Any, method: str) -> bool:
        first = self.seen.setdefault(id(value), path)
        if first != path:
            owner, _, name = path.rpartition(".")
            self.later.append(f'{reached(owner)}.{method}("{name}", {reached(first)})')
        return first == path

    def _shape(self, path: str, value: Any) -> str:
        shape = tuple(value.shape)
        order = self.stored.get(path)
        return str(tuple([shape[k] for k in order]) if order else shape)

    def _first(self, path: str, module: Any) -> list[str]:
        """Returns the names of a module's own parameters whose channels are stored last."""
        own = {**module._parameters, **module._buffers}
        return [name for name, value in own.items() if value is not None and value.ndim > 2
                and self.stored.get(f"{path}{name}") == moved(value.ndim)]

    def _module(self, path: str, module: Any) -> str:
        if path in self.layers.makers:
            for name, p in module._parameters.items():
                if p is not None:
                    self._is_first(f"{path}.{name}", p, "register_parameter")
            return self.layers.made(path)
        entries = self._entries(f"{path}.", module)
        unsaved = [name for name, text in entries if text.endswith(":unsaved")]
        entries = [(name, text.split(":")[1] if text.startswith("alpha.tensor:") else text) for name, text in entries]
        first = self._first(f"{path}.", module)
        options = [f"{key}=({', '.join(map(repr, names))},)" for key, names in (
            ("channels_first", first), ("unsaved", unsaved)) if names]
        if all(is_name(name) and name not in ("channels_first", "unsaved", "self") for name, _ in entries):
            items = [f"{name}={text}" for name, text in entries]
        elif [name for name, _ in entries] == [str(k) for k in range(len(entries))]:
            items = [text for _, text in entries]
        else:
            items = ["{" + ", ".join([f"{name!r}: {text}" for name, text in entries]) + "}"]
            if "\n" in items[0] or len(items[0]) > WIDTH - 20:
                inner = "".join([f"    {name!r}: {_deeper(text)},\n" for name, text in entries])
                items = ["{\n" + inner + "}"]
        return _joined("Part", [*items, *options])


def _deeper(text: str) -> str:
    return text.replace("\n", "\n    ")


def _joined(name: str, items: Sequence[str]) -> str:
    """Returns a call, on one line where it fits."""
    line = f"{name}({', '.join(items)})"
    if len(line) < WIDTH - 30 and "\n" not in line and line.count("(") < 5:
        return line
    if len(items) == 1 and items[0].startswith("{"):
        return line
    return f"{name}(\n" + "".join([f"    {_deeper(item)},\n" for item in items]) + ")"


def frozen(model: Any) -> list[str]:
    """Returns the names of parameters without gradient."""
    return [name for name, p in model.named_parameters() if not p.requires_grad]
