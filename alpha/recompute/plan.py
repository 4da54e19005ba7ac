"""Which results of a call are kept for backward, and which are made again: decided at the call, from sizes.

    none    everything that an op saves is kept
    cheap   results of ops that say they are cheap are made again, where that frees more than it holds
    full    results of all ops are, convolutions too, in segments between results that are kept, see
            alpha.recompute.chains
    auto    cheap within 3 % of the step's estimated time: cheap results may be made again, but are kept until
            the step has grown long enough for it, the least costly per byte first; without that bound where memory gets
            scarce, then full

A result can be made again where all that its op reads is held in any case: a saved tensor, a parameter, or a result
that can itself be made again. All else that it would hold counts against the bytes that it frees.

The choice of auto follows from the graph behind a call, its shapes, the device's figures and the memory limit: nothing
is learned from one step for the next, so two runs choose the same after any training before them in the process. Memory
that the process holds besides counts in eighths of the limit.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any
from weakref import ref

from alpha.core import versions
from alpha.core.config import config
from alpha.core.device import Array, Backend, get_backend
from alpha.core.graph import Node
from alpha.core.op import Op
from alpha.core.saved import Part, remaking
from alpha.core.tensor import Tensor
from alpha.recompute.chains import NOTHING, START, Chain
from alpha.recompute.recipe import Recipe, count

LEAST = 1024         # bytes of a result that is worth a recipe
# Bytes read and made, from which auto looks at a call: on the CPU the host is waited for, some 60 us to plan a call.
WORTH = {"cpu": 1 << 21, "cuda": 1 << 16}
SHARE = 0.03         # of a step's estimated time, that auto may add
EIGHTHS = 8          # of the memory limit, in which memory held beside the graph counts
SCARCE, SHORT = 0.35, 0.5  # of the memory limit, held, from which auto makes again cheap results, and all
PASSES = 3           # forward, and the two gradients


class _Here(threading.local):
    """Of this thread: whether a segment of the user's is being run."""

    segment = False


here = _Here()
counting = threading.Lock()     # of remaking.segments


class Tally:
    """The figures that auto has of a graph while it is recorded.

    Attributes:
        step: time that its calls take, forward and backward, estimated in bytes moved; spent: to make results again.
        kept: bytes that are saved as they are; before: those that the process held when the graph began, in eighths of
            the limit.
        offers: prices, numbers and recipes, held weakly, of results that may be made again and are held so far.
        into: the tally of the graph that this graph has become a part of.
    """

    __slots__ = ("before", "into", "kept", "offers", "spent", "step")

    def __init__(self, backend: Backend) -> None:
        self.step = self.spent = 0.0
        self.kept, eighth = 0, backend.memory_limit() / EIGHTHS
        self.before = round(backend.memory_stats()["live"] / eighth) * eighth
        self.offers: list[tuple[float, int, ref[Recipe]]] = []
        self.into: Tally | None = None

    def whole(self) -> Tally:
        """Returns the tally of the graph that this one's is a part of now."""
        found = self
        while found.into is not None:
            found = found.into
        return found

    def level(self, op: Op, backend: Backend, moved: int, args: Sequence[Any], outs: Sequence[Tensor]) -> str:
        """Adds a call, which moves so many bytes, and returns the level for it."""
        work = op.flops(outs[0].array.nbytes / 4, *args) if op.flops else 0  # 16 bits are twice as fast
        self.step += PASSES * (moved + work / backend.flops_per_byte)
        held = (self.before + self.kept) / backend.memory_limit()
        return "full" if held > SHORT else "cheap" if held > SCARCE else "offer"

    def hold(self, recipe: Recipe, k: int, array: Array) -> None:
        """Holds out k of a recipe for a call that saves it, until there is time to make it again."""
        if recipe.data is None:
            recipe.data = {}
            heappush(self.offers, (recipe.price, recipe.order, ref(recipe)))
        if k not in recipe.data:
            recipe.data[k] = array
            self.kept += array.nbytes
            count.kept += array.nbytes

    def take(self, level: str) -> None:
        """Lets go of results that the step has time to make again, or of all."""
        while self.offers:
            price, order, found = self.offers[0]
            recipe = found()
            if recipe is None or not recipe.offered or recipe.data is None:
                heappop(self.offers)
                continue
            if level == "offer" and self.spent + recipe.offered > SHARE * self.step:
                return
            heappop(self.offers)
            held = sum([a.nbytes for a in recipe.data.values()])
            needed = recipe.needed()
            moved = sum([r.offered for r in needed])
            if moved / held > price:    # its sources are not held
                heappush(self.offers, (moved / held, order, found))
                continue
            if level == "offer" and self.spent + moved > SHARE * self.step:
                heappush(self.offers, (price, order, found))
                return
            self.spent += moved
            self.kept -= held
            count.kept -= held
            for r in needed:
                r.offered, r.data = 0, None
                count.planned += r.nbytes


def _tally_of(args: Sequence[Any], backend: Backend) -> Tally:
    """Returns the tally of the graph that a call goes on with; graphs that meet become one."""
    found: Tally | None = None
    for t in _tensors(args):
        made = None if t._node is None else t._node[0].plan
        if made is None or made.tally is None:
            continue
        other = made.tally.whole()
        if found is None:
            found = other
        elif other is not found:
            found.step, found.spent = found.step + other.step, found.spent + other.spent
            found.kept, other.into = found.kept + other.kept, found
            for offer in other.offers:
                heappush(found.offers, offer)
    return Tally(backend) if found is None else found


class Plan:
    """The results that are made again of one call, and for it.

    Attributes:
        recipe: of its outs, or None.
        reads: parts of recipes that it saves.
        kept: bit k says that a reader saves out k as it is.
        chain: of the calls behind the outs.
        tally: of the graph, under auto.
    """

    __slots__ = ("chain", "kept", "reads", "recipe", "tally")

    def __init__(self, tally: Tally | None) -> None:
        self.recipe: Recipe | None = None
        self.tally = tally
        self.reads: list[Part] = []
        self.kept, self.chain = 0, START

    def keep(self, k: int, t: Tensor) -> None:
        """Says that a reader saves out k, a tensor, as it is."""
        if not self.kept >> k & 1:
            nbytes = t.array.nbytes
            count.kept += nbytes
            if self.tally is not None:
                self.tally.whole().kept += nbytes
        self.kept |= 1 << k

    def release(self) -> None:
        """Says that the call is done with its saved tensors."""
        own, reads = self.recipe, self.reads
        self.recipe, self.reads = None, []
        for part in reads:
            part.recipe.done(part)
        if own is not None and own.readers <= 0:
            own.done()  # there was no reader: its sources may go


def plan(node: Node, args: Sequence[Any], outs: Sequence[Tensor]) -> None:
    """Puts parts of recipes in the place of a node's saved tensors, where that pays."""
    level = "segment" if here.segment else config.recompute
    if level == "none":
        return
    if config.recompute != "auto":
        _plan(node, level, args, outs)
        return
    moved = 0
    for value in (*outs, *args):
        if isinstance(value, Tensor):
            moved += value.array.nbytes
        elif value.__class__ is list:
            moved += sum([t.array.nbytes for t in value])
    if level == "auto" and moved < WORTH[outs[0].device.partition(":")[0]]:
        return
    backend = get_backend(outs[0].device)
    tally = _tally_of(args, backend)
    chosen = tally.level(node.op, backend, moved, args, outs)
    made = _plan(node, chosen if level == "auto" else level, args, outs, tally,
                 moved)
    if made is not None and level == "auto" and chosen != "offer":
        tally.spent += moved
    tally.take(chosen)


def _plan(node: Node, level: str, args: Sequence[Any], outs: Sequence[Tensor], tally: Tally | None = None,
          moved: int = 0) -> Recipe | None:
    """Applies a level to one call, which moves so many bytes; returns the recipe of results that may be made again."""
    op, made = node.op, Plan(tally)
    node.plan = made
    if made_again := _made_again(op, level):
        made.recipe = _recipe(node, made, level, args, outs, made_again)
        if made.recipe is not None and level == "offer":
            made.recipe.offer(moved)
    _thin(node, made, args)
    for j, (_, k) in enumerate(op.saved_outs, len(op.saved_args)):
        if node.saved[j] is None:
            continue
        if made.recipe is not None and k in made.recipe.outs:
            node.saved[j] = Part(made.recipe, k)
            _read(made, node.saved[j], outs[k].array)
        else:
            made.keep(k, outs[k])
    return made.recipe


def _made_again(op: Op, level: str) -> tuple[int, ...]:
    """Returns the outs that may be made again."""
    if op.cheap:
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
    if recipe is None or recipe.sources is None or recipe.originals.get(k, _none)() is not t.array:
        return None
    if versions.newest > node.order and versions.changed_since(t.device, t.array, node.order):
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
                _read(made, part, value.array)
        elif isinstance(value, list):
            parts = [part_of(t) for t in value]
            for t, part in zip(value, parts):
                _keep(t) if part is None else _read(made, part, t.array)
            node.saved[j] = [t if part is None else part for t, part in zip(value, parts)]
            node.arrays[j] = [t.array if part is None else ref(t) for t, part in zip(value, parts)]


def _read(made: Plan, part: Part, array: Array) -> None:
    part.recipe.read(part)
    made.reads.append(part)
    if part.recipe.offered and made.tally is not None:
        made.tally.whole().hold(part.recipe, part.number, array)


def _keep(t: Tensor) -> None:
    """Notes that a tensor is saved as it is."""
    if t._node is None:
        return
    node, k = t._node
    if node.plan is not None:
        node.plan.keep(k, t)


def _recipe(node: Node, made: Plan, level: str, args: Sequence[Any], outs: Sequence[Tensor],
            again: tuple[int, ...]) -> Recipe | None:
    """Returns the recipe of a call, if it pays to have one."""
    op = node.op
    nbytes = sum([outs[k].array.nbytes for k in again])
    inputs = [t._node[0].plan.chain for t in _tensors(args) if t._node is not None and t._node[0].plan is not None]
    chain = made.chain = Chain(inputs, config.recompute in ("full", "auto"))  # auto may come to full later in the step
    if nbytes < LEAST:
        chain.end(NOTHING)
        return None
    kept = {node.order: nbytes} if level == "full" else NOTHING
    if chain.grow(node.order, nbytes, level == "full" and not op.cheap):
        chain.end(kept)
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
    most = inf if level == "segment" else 0 if level == "offer" else nbytes - 1
    if extra > most or _shared(outs, sources):
        chain.end(kept)
        return None
    if level != "offer":
        count.planned += nbytes
    return Recipe(op, node.attrs, outs[0].device, sources, [t.array for t in outs], again,
                  node.order, level == "full" and bool(op.cheap))


def _shared(outs: Sequence[Tensor], sources: Sequence[Any]) -> bool:
    """Tells whether outs are views of tensors that a recipe would hold: to keep them costs nothing."""
    if outs[0].__class__ is Tensor:
        return False
    key = get_backend(outs[0].device).memory_key
    return any(s is not None and s.__class__ is not Part and key(s) == key(outs[0].array) for s in sources)


def _source(t: Tensor, saved: bool, level: str) -> tuple[Any, float]:
    """Returns the source of a recipe for an arg, and how many bytes are kept for it alone."""
    part = part_of(t, form=True)
    if part is not None:
        return part, 0
    data = t.array
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


remaking.plan, remaking.worth = plan, WORTH
