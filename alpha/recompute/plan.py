"""What of a call's results is kept for backward, and what is made again: decided when the call is recorded, from sizes.

    none    everything that an op saves is kept
    cheap   results of ops that say they are cheap are made again, where that frees more than it holds
    full    results of all ops are, convolutions too; a chain ends with a result that is kept once it is long beside
            what was kept on the way to it: segments of about the square root of the whole
    auto    cheap within 3 % of the step's estimated time, what costs least per byte first by what the last step told;
            without that bound where memory gets scarce, then full

A result can be made again where all that its op reads is held in any case: saved by somebody, a parameter, or something
that can itself be made again. Whatever else it would hold counts against what it frees.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import ref

from alpha import versions
from alpha.backend import get_backend
from alpha.config import config
from alpha.graph import state
from alpha.recompute.recipe import Part, Recipe, count
from alpha.tensor import Tensor

if TYPE_CHECKING:
    from alpha.graph import Node
    from alpha.op import Op

LEAST = 1024         # bytes of a result that is worth a recipe
WORTH = 1 << 16      # of what a call reads and makes, that auto looks at
SHARE = 0.03         # of a step's estimated time, that auto may add
SCARCE, SHORT = 0.35, 0.5  # of the memory limit, live, from which auto makes again what is cheap, and everything
PASSES = 3           # forward, and the two gradients
DEEPEST = 64         # calls of a chain, each of which takes a few of Python's frames
NOTHING: dict[int, int] = {}  # no bytes of no call
# How long a chain may grow under full, where paths meet and elsewhere: times what is kept, or times its result's size.
AT_JOINS, BETWEEN = (0.3, 1.0), (2.0, 4.5)


class _Here(threading.local):
    """Of this thread.

    Attributes:
        segment: whether one of the user's is being run.
        offers: what auto could make again in this step: bytes moved per byte that is freed, and bytes moved.
        dearest: of the offers of the last step, the price of the last one within the share when the cheapest go first.
    """

    segment = False
    dearest = inf

    def __init__(self) -> None:
        self.offers: list[tuple[float, float]] = []


here = _Here()
counting = threading.Lock()
segments = 0  # that are being run, in all threads


class Plan:
    """What is made again of one call, and for it.

    Attributes:
        recipe: of its outs, or None.
        reads: recipes of which it saves a part.
        kept: bit k says that somebody saves out k as it is.
        base: bytes that full keeps on the way to the outs, by the number of the call that made them; chain: those to be
            made for the outs, of all paths that meet; depth: by how many calls.
    """

    __slots__ = ("base", "chain", "depth", "kept", "reads", "recipe")

    def __init__(self) -> None:
        self.recipe: Recipe | None = None
        self.reads: list[Recipe] = []
        self.kept = self.depth = 0
        self.base = self.chain = NOTHING

    def end_chain(self, kept: dict[int, int]) -> None:
        """Says that the outs of the call are kept; kept: the call's number and their bytes, where full counts them."""
        self.base, self.chain, self.depth = {**self.base, **kept} if kept else self.base, NOTHING, 0

    def release(self) -> None:
        """Says that the call is done with what it saved."""
        own, reads = self.recipe, self.reads
        self.recipe, self.reads = None, []
        for recipe in reads:
            recipe.done()
        if own is not None and own.readers <= 0:
            own.done()  # nobody has asked: what it would have read may go


def plan(node: Node, args: Sequence[Any], outs: Sequence[Tensor]) -> None:
    """Puts parts of recipes in the place of what a node saves, where that pays."""
    level = "segment" if here.segment else config.recompute
    if level == "none":
        return
    if level != "auto":
        _plan(node, level, args, outs)
        return
    moved = sum([t.data.nbytes for t in (*outs, *_tensors(args))])
    if moved >= WORTH and _plan(node, _level(node.op, moved, args, outs), args, outs):
        state.spent += moved


def _plan(node: Node, level: str, args: Sequence[Any], outs: Sequence[Tensor]) -> bool:
    """Does what a level says of one call; tells whether something of it is to be made again."""
    op, made = node.op, Plan()
    node.plan = made
    if made_again := _made_again(op, level):
        made.recipe = _recipe(node, made, level, args, outs, made_again)
    _thin(node, made, args)
    for j, (_, k) in enumerate(op.saved_outs, len(op.saved_args)):
        if node.saved[j] is None:
            continue
        if made.recipe is not None and k in made.recipe.outs:
            node.saved[j] = Part(made.recipe, k)
            _read(made, node.saved[j])
        else:
            made.kept |= 1 << k
            count.kept += outs[k].data.nbytes
    return made.recipe is not None


def _level(op: Op, moved: int, args: Sequence[Any], outs: Sequence[Tensor]) -> str:
    """Returns what auto chooses for one call, which moves so many bytes."""
    if not state.step:
        here.dearest, here.offers = _dearest(here.offers, SHARE * state.last), []
    backend = get_backend(outs[0].device)
    work = op.flops(outs[0].data.nbytes / 4, *args) if op.flops else 0  # 16 bits are twice as fast
    state.step += PASSES * (moved + work / backend.flops_per_byte)
    share = backend.memory_stats()["live"] / backend.memory_limit()
    if share > SHORT:
        return "full"
    if not op.cheap:
        return "cheap"
    price = moved / sum([outs[k].data.nbytes for k in op.cheap])
    here.offers.append((price, moved))
    dear = price > here.dearest or state.spent + moved > SHARE * max(state.step, state.last)
    return "kept" if dear and share <= SCARCE else "cheap"


def _dearest(offers: list[tuple[float, float]], most: float) -> float:
    """Returns the price of the last offer that is taken when the cheapest go first, as long as there is something."""
    for price, moved in sorted(offers):
        most -= moved
        if most < 0:
            return price
    return inf


def _made_again(op: Op, level: str) -> tuple[int, ...]:
    """Returns the outs that may be made again."""
    if op.cheap and level != "kept":
        return op.cheap
    if level in ("full", "segment") and op.own and not op.mutates and not op.moves:
        return tuple(range(len(op.outs)))
    return ()


def _none() -> None:
    return None


def part_of(t: Tensor, form: bool = False) -> Part | None:
    """Returns the part of a recipe that gives the elements of a tensor; None where they are kept.

    Args:
        form: whether it is for an op, which is to read them in the form that they have now.
    """
    made = t._node
    if made is None or made[0].plan is None:
        return None
    node, k = made
    recipe = node.plan.recipe
    if recipe is None or recipe.sources is None or recipe.originals.get(k, _none)() is not t.data:
        return None
    if versions.newest > node.order and versions.changed_since(t.device, t.data, node.order):
        return None
    if not form:
        return Part(recipe, k)
    token = recipe.forms[k]
    return Part(recipe, k, token[0] if token else "")


def _thin(node: Node, made: Plan, args: Sequence[Any]) -> None:
    """Puts parts in the place of saved args."""
    for j, (_, k) in enumerate(node.op.saved_args):
        value = args[k]
        if isinstance(value, Tensor):
            part = part_of(value)
            if part is None:
                _keep(value)
            else:
                node.saved[j] = part
                node.arrays[j] = ref(value)
                _read(made, part)
        elif isinstance(value, list):
            parts = [part_of(t) for t in value]
            for t, part in zip(value, parts):
                _keep(t) if part is None else _read(made, part)
            node.saved[j] = [t if part is None else part for t, part in zip(value, parts)]
            node.arrays[j] = [t.data if part is None else ref(t) for t, part in zip(value, parts)]


def _read(made: Plan, part: Part) -> None:
    part.recipe.readers += 1
    made.reads.append(part.recipe)


def _keep(t: Tensor) -> None:
    """Notes that a tensor is saved as it is."""
    if t._node is None:
        return
    node, k = t._node
    if node.plan is not None:
        if not node.plan.kept >> k & 1:
            count.kept += t.data.nbytes
        node.plan.kept |= 1 << k


def _recipe(node: Node, made: Plan, level: str, args: Sequence[Any], outs: Sequence[Tensor],
            again: tuple[int, ...]) -> Recipe | None:
    """Returns the recipe of a call, if it pays to have one."""
    op = node.op
    nbytes = sum([outs[k].data.nbytes for k in again])
    inputs = [t._node[0].plan for t in _tensors(args) if t._node is not None and t._node[0].plan is not None]
    counts = level == "full" or config.recompute == "auto"  # which may come to full later in the step
    if counts:
        made.base = _union([p.base for p in inputs])
    if nbytes < LEAST:
        return None
    kept = {node.order: nbytes} if level == "full" else NOTHING
    made.chain = {**_union([p.chain for p in inputs]), node.order: nbytes} if counts else NOTHING
    made.depth = max([p.depth for p in inputs], default=0) + 1
    joins = len(inputs) > 1  # all paths are made at once there, and to keep their join frees them
    of_kept, of_own = AT_JOINS if joins else BETWEEN
    longest = max(of_kept * sum(made.base.values()), of_own * nbytes)
    if made.depth > DEEPEST or (level == "full" and sum(made.chain.values()) > longest):
        made.end_chain(kept)
        return None
    saved = {k for _, k in op.saved_args}
    sources: list[Any] = []
    extra = 0.0
    for k, (arg, value) in enumerate(zip(op.args, args)):
        if arg.name in op.mutates:
            sources.append(None)
        elif isinstance(value, list):
            found = [_source(t, k in saved, level) for t in value]
            sources.append([s for s, _ in found])
            extra += sum([more for _, more in found])
        elif isinstance(value, Tensor):
            source, more = _source(value, k in saved, level)
            sources.append(source)
            extra += more
        else:
            sources.append(value)
    if (extra >= nbytes and level != "segment") or _shared(outs, sources):
        made.end_chain(kept)
        return None
    count.planned += nbytes
    return Recipe(op, node.attrs, outs[0].device, sources, [t.data for t in outs], again,
                  node.order)


def _union(found: list[dict[int, int]]) -> dict[int, int]:
    """Returns the bytes of calls of several paths, each call once."""
    if len(found) == 1:
        return found[0]
    return {order: nbytes for one in found for order, nbytes in one.items()}


def _shared(outs: Sequence[Tensor], sources: Sequence[Any]) -> bool:
    """Tells whether outs are views of what a recipe would hold: to keep them costs nothing."""
    if outs[0].__class__ is Tensor:
        return False
    key = get_backend(outs[0].device).memory_key
    return any(s is not None and s.__class__ is not Part and key(s) == key(outs[0].data) for s in sources)


def _source(t: Tensor, saved: bool, level: str) -> tuple[Any, float]:
    """Returns what a recipe holds for an arg, and how many bytes nobody else keeps."""
    part = part_of(t, form=True)
    if part is not None:
        return part, 0
    data = t.data
    form = get_backend(t.device).form(data)
    if form is not None and not form[0]:
        return data, float("inf")  # it may be written before it is read again, and read otherwise
    if saved or (t._node is None and t.requires_grad):
        return data, 0
    if t._node is not None:
        node, k = t._node
        if node.plan is not None and node.plan.kept >> k & 1:
            return data, 0
    return data, data.nbytes


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif value.__class__ is list:
            found += value
    return found
