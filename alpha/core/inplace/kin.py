"""Views: which tensors are parts, rearrangements or other names of one tensor, and how a change comes to all of them.

Kernels read contiguous arrays, so a view whose elements lie apart has a copy of them. A family knows every view of a
tensor, and where in that tensor (the root) its elements belong. A change of one member is carried to copies at once;
reads look at nothing. References are weak: a view keeps no memory but its own, and outlives the root.

`reshape` of a view and `contiguous` make a tensor of its own where PyTorch copies. Here that tensor borrows the memory
until a write there is about to happen; then it gets a copy. Writers look for such tensors then; making a view costs
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import prod
from typing import Any
from weakref import ref

import numpy as np

from alpha.core import versions
from alpha.core.device import get_backend
from alpha.core.errors import AlphaError, GraphError, message
from alpha.core.graph import no_grad, state
from alpha.core.inplace.steps import STEPS, Shape, dense_strides, reshaped, same, sliced, strides_under
from alpha.core.table import provides, registry
from alpha.core.tensor import Tensor

Step = Callable[..., np.ndarray]    # of a root's array, or of a view of it, makes another view

FEW = 64    # members of a family, up to which dead ones are not looked for

_lock = threading.Lock()


class Family:
    """The views of a root.

    Attributes:
        members: weak references to tensors; dead ones among them.
        shape: of the root, which may be gone.
        lender: family in whose memory the members may lie; borrowers: those that may lie in the memory of this one.
    """

    __slots__ = ("__weakref__", "borrowers", "lender", "limit", "members", "shape")
    lender: Family | None
    borrowers: tuple[ref[Family], ...]

    def __init__(self, shape: Shape) -> None:
        self.members: list[ref[Tensor]] = []
        self.shape, self.limit, self.lender = shape, FEW, None
        self.borrowers = ()

    def prune(self) -> None:
        """Drops the references to dead members."""
        with _lock:
            count = len(self.members)   # other threads may add more meanwhile
            self.members[:count] = [member for member in self.members[:count] if member() is not None]
            self.limit = max(FEW, 2 * len(self.members))

    def living(self) -> list[tuple[Tensor, Place]]:
        """Returns the members that are there and have not left, with their places."""
        found = []
        for member in tuple(self.members):
            t = member()
            if t is not None and t._kin is not None and t._kin.family is self:
                found.append((t, t._kin))
        return found

    def reach(self) -> Iterator[Family]:
        """Gives this family, and all that may lie in its memory."""
        yield self
        for borrower in self.borrowers:
            family = borrower()
            if family is not None:
                yield from family.reach()


class Place:
    """Where the elements of a tensor belong: the views that lead there from the root of its family.

    Attributes:
        above, step, attrs: place that the last step starts from, and that step; None for the root and its other names.
        shape: of the tensor.
        strides: how far neighbours along each axis lie apart in the root, in elements; None until `resolve` has looked.
    """

    __slots__ = ("above", "attrs", "family", "shape", "step", "strides")

    def __init__(self, family: Family, above: Place | None, step: Step | None, attrs: dict[str, Any] | None,
                 shape: Shape) -> None:
        self.family, self.above, self.step = family, above, step
        self.attrs, self.shape, self.strides = attrs, shape, None
        if len(family.members) > family.limit:
            family.prune()

    strides: Shape | None

    def chain(self) -> list[Place]:
        """Returns the places from the root to this one."""
        found, place = [self], self.above
        while place is not None:
            found.append(place)
            place = place.above
        return found[::-1]

    def through(self, a: np.ndarray) -> np.ndarray:
        """Returns the view that the steps make of an array of the root's shape."""
        for place in self.chain()[1:]:
            a = place.step(a, **place.attrs)  # type: ignore[misc, arg-type]
        return a

    def numbers(self) -> np.ndarray:
        """Returns which element of the root each element is."""
        return self.through(np.arange(prod(self.family.shape)).reshape(self.family.shape))

    def fits(self) -> bool:
        """Finds the strides, of a place below a place that has them; False: PyTorch makes a copy here."""
        if self.strides is None:
            self.strides = dense_strides(self.shape) if self.above is None else self._found(self.above)
        return self.strides is not None

    def _found(self, above: Place) -> Shape | None:
        step, attrs, shape, strides = self.step, self.attrs or {}, above.shape, above.strides or ()
        if step is reshaped:
            return strides_under(shape, strides, self.shape)
        if step is sliced:     # axes of length 1 went or came
            ranges = attrs["ranges"]
            return strides_under(tuple([count for _, count, _ in ranges]),
                                 tuple([s * by for s, (_, _, by) in zip(strides, ranges)]), self.shape)
        like = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, strides)
        return step(like, **attrs).strides  # type: ignore[misc]

    def is_dense(self) -> bool:
        """Whether the elements lie side by side in the root, in the order of their indices."""
        near = zip(self.shape, self.strides or (), dense_strides(self.shape))
        return 0 in self.shape or all(s == d for n, s, d in near if n > 1)

    def repeats(self) -> bool:
        """Whether an element of the root is there more than once."""
        return any(n > 1 and not s for n, s in zip(self.shape, self.strides or ())) and 0 not in self.shape


# ---- who belongs to a family -----------------------------------------------------------------------------------------


def place_of(t: Tensor) -> Place:
    """Returns the place of a tensor, as the root of a new family where it has none."""
    place = t._kin
    if place is None:
        place = t._kin = Place(family := Family(t.shape), None, None, None, t.shape)
        family.members.append(ref(t))
    return place


def join(x: Tensor, y: Tensor, name: str, attrs: dict[str, Any]) -> None:
    """Notes that y is the view of x that an op makes."""
    place = x._kin or place_of(x)
    family = place.family
    y._kin = Place(family, place, STEPS[name], {"shape": y.shape} if name == "reshape" else attrs, y.shape)
    family.members.append(ref(y))


@provides("alias")
def alias(x: Tensor, y: Tensor) -> Tensor:
    """Notes that y, over the array of x, is another name for it, and returns y."""
    place = x._kin or place_of(x)
    if place.step is reshaped and place.strides is None:    # which may yet become a root
        y._kin = Place(place.family, place, same, {}, place.shape)
    else:
        y._kin = Place(place.family, place.above, place.step, place.attrs, place.shape)
        y._kin.strides = place.strides
    place.family.members.append(ref(y))
    return y


def resolve(t: Tensor) -> Place | None:
    """Returns the place of a tensor, with strides, after tensors that PyTorch copies have left its family.

    Nothing has to know before who shares elements: they are the same until a change.
    """
    while (place := t._kin) is not None:
        roots: dict[Place, list[tuple[Tensor, Place]]] = {}
        family = place.family
        for v, p in family.living():
            root = next((above for above in p.chain() if not above.fits()), None)
            if root is not None:
                roots.setdefault(root, []).append((v, p))
        for root, members in roots.items():
            root.above = root.step = root.attrs = None
            borrow(family, root.shape, members)
        if place is t._kin and place.family is family:
            return place
    return None


def borrow(lender: Family, shape: Shape, members: list[tuple[Tensor, Place]]) -> None:
    """Makes members that lie in the memory of a family one of their own."""
    family = Family(shape)
    family.lender = lender
    with _lock:
        lender.borrowers = (*[b for b in lender.borrowers if b() is not None], ref(family))
    for t, place in members:
        place.family = family
        family.members.append(ref(t))


# ---- changes ---------------------------------------------------------------------------------------------------------


def prepare(where: str, t: Tensor) -> list[tuple[Tensor, Place]]:
    """Returns the members with copies of the elements that are about to change in t, for `follow`.

    Raises GraphError if t shows elements more than once, or if the change is recorded for repetition.
    """
    refuse_repeats(where, t)
    if t._kin is None:
        return []
    family = t._kin.family
    if not t.shares and family.lender is None and not family.borrowers and len(family.living()) == 1 \
            and t._kin.is_dense():
        t._kin = None   # of a root that is alone, as parameters are: nothing is asked for the next time
        return []
    if family.lender is not None or family.borrowers:
        _part(family)
    backend = get_backend(t.device)
    key = backend.memory_key(t.array)
    kin = [(v, p) for v, p in family.living() if v is not t and (backend.memory_key(v.array) != key or p.repeats())]
    if kin:
        if backend.recorder() is not None:
            raise AlphaError(message("capture", f"a tensor of shape {t.shape} is changed in place, of which there is a "
                                     f"view of shape {kin[0][0].shape}, in the function that is recorded",
                                     "change the whole: x.copy_(...), and make views afterwards"))
        versions.about_to_change(t.device, [v.array for v, _ in kin])
    return kin


def refuse_repeats(where: str, t: Tensor) -> None:
    """Raises GraphError for a tensor that was expanded."""
    place = resolve(t)
    if place is not None and place.repeats():
        raise GraphError(message(where, f"the tensor of shape {t.shape} was expanded: one element is at several of its "
                                 "places", "change the tensor that was expanded; or a copy: y = y.clone()"))


def follow(t: Tensor, kin: list[tuple[Tensor, Place]]) -> None:
    """Carries the elements of t, which were changed, to members that have copies of them."""
    of_t = place_of(t)
    family, backend = of_t.family, get_backend(t.device)
    root = next((v for v, p in family.living() if p.above is None), None)
    whole = at = None   # the root's array, with the changes; number in t of each element of the root
    if t.device == "cpu" and root is not None:
        whole = root.array
        there = of_t.through(whole)
        if not np.may_share_memory(whole, t.array):
            there[...] = t.array
    changed = []
    for v, place in kin:
        if whole is not None:
            if v.array is not whole and (place.repeats() or not np.may_share_memory(whole, v.array)):
                v.array[...] = place.through(whole)
        else:
            if at is None:
                at = np.full(prod(family.shape), -1)
                at[of_t.numbers().reshape(-1)] = np.arange(t.numel())
            _take_over(backend, v, t, at[place.numbers().reshape(-1)])
        changed.append(v.array)
    versions.note(versions.histories(t.device, changed))


def _take_over(backend: Any, v: Tensor, t: Tensor, here: np.ndarray) -> None:
    """Writes elements of t into v: here says which, for each element of v, or is -1."""
    if (here < 0).all():
        return
    device, flat = t.device, (here.size,)
    before, state.quiet = state.quiet, True
    try:
        with no_grad():
            index = Tensor(backend.from_numpy(np.maximum(here, 0), device), flat, "int64", device)
            new = registry["take"](registry["reshape"](t.with_data(t.array), (t.numel(),)), index)
            if (here < 0).any():
                mask = Tensor(backend.from_numpy(here >= 0, device), flat, "bool", device)
                new = registry["where"](mask, new, registry["reshape"](v.with_data(v.array), flat))
            backend.copy_into(v.array, registry["reshape"](new, v.shape).array)
    finally:
        state.quiet = before


def _part(family: Family) -> None:
    """Gives copies to tensors that lie in memory which is about to be written under other names."""
    top = family
    while top.lender is not None:
        top = top.lender
    near = [*family.reach()]
    every = [(f, t, p) for f in top.reach() for t, p in f.living()]
    for f in near:
        if f.lender is None:
            continue
        for t, place in f.living():
            backend = get_backend(t.device)
            key = backend.memory_key(t.array)
            if any(other is not f and backend.memory_key(v.array) == key for other, v, _ in every):
                data = backend.full(t.shape, 0, t.dtype, t.device)
                backend.copy_into(data, t.array)
                t._rebind(data)
                t._kin = place


def hand_over(where: str, t: Tensor) -> None:
    """Raises GraphError for a view whose elements are a copy, before another library writes there."""
    if (place := resolve(t)) is None:
        return
    if place.family.lender is not None or place.family.borrowers:
        _part(place.family)
    backend = get_backend(t.device)
    key = backend.memory_key(t.array)
    if place.above is not None and any(backend.memory_key(v.array) != key for v in relatives(t)):
        raise GraphError(message(where, f"the view of shape {t.shape} has a copy of its elements, which another "
                                 "library would change alone", "hand over the whole, or a copy: y.clone()"))


def relatives(t: Tensor) -> list[Tensor]:
    """Returns the other tensors of the family of t that are there."""
    place = resolve(t)
    return [] if place is None else [v for v, _ in place.family.living() if v is not t]


def shape_of_another(t: Tensor) -> Shape | None:
    """Returns the shape of another tensor of the family of t that is there; None if there is none."""
    return next((v.shape for v in relatives(t)), None)


@provides("dense")
def dense(t: Tensor) -> bool:
    """Tells whether PyTorch would have the elements side by side."""
    place = resolve(t)
    return place is None or place.is_dense()


def leave(t: Tensor, place: Place | None) -> None:
    """Makes t, which got another array and has no views, a root; PyTorch's keeps the strides that it had."""
    if place is not None and place.fits() and not (place.is_dense() or place.repeats()):
        place_of(t).strides = place.strides


@provides("own")
def own(t: Tensor) -> Tensor:
    """Returns a tensor of its own with the elements of a view, in whose memory it lies until one of them changes."""
    y = Tensor(t.array, t.shape, t.dtype, t.device)
    y._node, y._requires_grad = t._node, t._requires_grad
    place_of(y)
    place = place_of(t)
    borrow(place.family, y.shape, [(y, y._kin)])  # type: ignore[list-item]
    return y
