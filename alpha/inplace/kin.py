"""Views: which tensors are parts, rearrangements or other names of one tensor, and how a change comes to all of them.

Kernels read contiguous arrays, so a view whose elements lie apart has a copy of them. A family knows every view of a
tensor, and where in that tensor (the root) its elements belong. A change of one member is carried to copies at once;
reads look at nothing. References are weak: a view keeps no memory but its own, and outlives the root.

`reshape` of a view and `contiguous` make a tensor of its own where PyTorch copies. Here that tensor borrows the memory
until somebody is about to write there; then it gets a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from alpha import versions
from alpha.backend import get_backend
from alpha.errors import AlphaError, GraphError, message
from alpha.inplace.steps import STEPS, Shape, dense_strides, permuted, reshaped, sliced, strides_under

if TYPE_CHECKING:
    from alpha.tensor import Tensor

Step = tuple[Callable[..., np.ndarray], dict[str, Any]]  # of a root's array, or of a view of it, another view

FEW = 16    # members of a family, among which nobody looks for dead ones

_lock = threading.Lock()


class _Quiet(threading.local):
    """Per thread: whether views are made by a gradient of alpha's own, which changes none in place."""

    on = False


quiet = _Quiet()


class Family:
    """The views of a root.

    Attributes:
        members: weak references to places of tensors; dead ones among them.
        shape: of the root, which may be gone.
        lender: family in whose memory the members may lie; borrowers: those that may lie in the memory of this one.
    """

    __slots__ = ("__weakref__", "borrowers", "lender", "limit", "members", "shape")

    def __init__(self, shape: Shape, lender: Family | None = None) -> None:
        self.members: list[ref[Place]] = []
        self.shape = shape
        self.limit = FEW
        self.lender = lender
        self.borrowers: list[ref[Family]] = []
        if lender is not None:
            with _lock:
                lender.borrowers = [b for b in lender.borrowers if b() is not None]
                lender.borrowers.append(ref(self))

    def add(self, place: Place) -> None:
        """Notes a member."""
        with _lock:
            self.members.append(ref(place))
            if len(self.members) > self.limit:
                self.members = [member for member in self.members if member() is not None]
                self.limit = max(FEW, 2 * len(self.members))

    def living(self) -> list[tuple[Tensor, Place]]:
        """Returns the members that are there, and still have the array that they joined with."""
        found = []
        for member in tuple(self.members):
            place = member()
            t = None if place is None else place.tensor()
            if place is not None and t is not None and t._kin is place and t.array is place.array():
                found.append((t, place))
        return found

    def reach(self) -> Iterator[Family]:
        """Gives this family, and all that may lie in its memory."""
        yield self
        for borrower in tuple(self.borrowers):
            family = borrower()
            if family is not None:
                yield from family.reach()


class Place:
    """Where the elements of a tensor belong: the views that lead there from the root of its family.

    Attributes:
        tensor, array: weak references to the tensor, and to its array when it joined.
        above, step: place that the last step starts from, and that step; None for the root and its other names.
    """

    __slots__ = ("__weakref__", "_strides", "above", "array", "family", "shape", "step", "tensor")

    def __init__(self, t: Tensor, family: Family, above: Place | None, step: Step | None, shape: Shape) -> None:
        self.tensor, self.array = ref(t), ref(t.array)
        self.family, self.above, self.step, self.shape = family, above, step, shape
        self._strides: Shape | None = None
        t._kin = self
        family.add(self)

    def through(self, a: np.ndarray) -> np.ndarray:
        """Returns what the steps make of an array of the root's shape: a view of it."""
        steps, place = [], self
        while place.above is not None:
            steps.append(place.step)
            place = place.above
        for function, attrs in reversed(steps):  # type: ignore[misc]
            a = function(a, **attrs)
        return a

    def numbers(self) -> np.ndarray:
        """Returns which element of the root each element is."""
        return self.through(np.arange(prod(self.family.shape)).reshape(self.family.shape))

    @property
    def strides(self) -> Shape:
        """How far neighbours along each axis lie apart in the root, in elements."""
        if self._strides is None:
            self._strides = self._found() if self.above is not None else dense_strides(self.shape)
        return self._strides

    def _found(self) -> Shape:
        (step, attrs), shape, strides = self.step, self.above.shape, self.above.strides  # type: ignore[misc, union-attr]
        if step is permuted:
            return tuple([strides[k] for k in attrs["axes"]])
        if step is reshaped:
            return strides_under(shape, strides, self.shape) or ()
        if step is sliced:     # axes of length 1 went or came
            ranges = attrs["ranges"]
            return strides_under(tuple([count for _, count, _ in ranges]),
                                 tuple([s * by for s, (_, _, by) in zip(strides, ranges)]), self.shape) or ()
        return step(np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, strides), **attrs).strides

    def isdense_strides(self) -> bool:
        """Whether the elements lie side by side in the root, in the order of their indices."""
        dense = dense_strides(self.shape)
        return 0 in self.shape or all(s == d for n, s, d in zip(self.shape, self.strides, dense) if n > 1)

    def repeats(self) -> bool:
        """Whether an element of the root is there more than once."""
        return any(n > 1 and not s for n, s in zip(self.shape, self.strides)) and 0 not in self.shape


# ---- who belongs to a family -----------------------------------------------------------------------------------------


def place_of(t: Tensor) -> Place:
    """Returns the place of a tensor, as the root of a new family where it has none."""
    place = t._kin
    if place is None or place.array() is not t.array:
        place = Place(t, Family(t.shape), None, None, t.shape)
    return place


def join(x: Tensor, y: Tensor, name: str, attrs: dict[str, Any]) -> bool:
    """Notes that y is the view of x that an op makes; False: PyTorch copies there, and y is a tensor of its own."""
    place, step = place_of(x), STEPS[name]
    if step is reshaped:
        if not (place.above is place._strides is None) and strides_under(place.shape, place.strides, y.shape) is None:
            borrow(place, y)
            return False
        attrs = {"shape": y.shape}
        if place.step is not None and place.step[0] is reshaped:
            place = place.above  # type: ignore[assignment]
    Place(y, place.family, place, (step, attrs), y.shape)
    return True


def alias(x: Tensor, y: Tensor) -> Tensor:
    """Notes that y, over the array of x, is another name for it, and returns y."""
    place = place_of(x)
    Place(y, place.family, place.above, place.step, y.shape)
    return y


def borrow(place: Place, y: Tensor) -> None:
    """Makes y, which lies in the memory of the family of a place, the root of a family of its own."""
    Place(y, Family(y.shape, place.family), None, None, y.shape)


# ---- changes ---------------------------------------------------------------------------------------------------------


def prepare(where: str, t: Tensor) -> list[tuple[Tensor, Place]]:
    """Returns the members that have copies of what is about to change in t, for `follow`.

    Raises GraphError if t shows elements more than once, or if the change is recorded for repetition.
    """
    place = t._kin
    if place is None or place.array() is not t.array:   # it got another one: the views are those of what it was
        t._kin = None
        return []
    refuse_repeats(where, t)
    family = place.family
    if family.lender is not None or family.borrowers:
        _part(family)
    backend = get_backend(t.device)
    key = backend.memory_key(t.array)
    kin = [(v, p) for v, p in family.living() if v is not t and (backend.memory_key(v.array) != key or p.repeats())]
    if kin:
        if backend.can_record and backend.recorder():
            raise AlphaError(message("capture", f"a tensor of shape {t.shape} is changed in place, of which there is a "
                                     f"view of shape {kin[0][0].shape}, in the function that is recorded",
                                     "change the whole: x.copy_(...), and make views afterwards"))
        versions.about_to_change(t.device, [v.array for v, _ in kin])
    return kin


def refuse_repeats(where: str, t: Tensor) -> None:
    """Raises GraphError for a tensor that was expanded."""
    if t._kin is not None and t._kin.array() is t.array and t._kin.repeats():
        raise GraphError(message(where, f"the tensor of shape {t.shape} was expanded: one element is at several of its "
                                 "places", "change the tensor that was expanded; or a copy: y = y.clone()"))


def follow(t: Tensor, kin: list[tuple[Tensor, Place]]) -> None:
    """Carries the elements of t, which were changed, to members that have copies of them."""
    of_t = place_of(t)
    family, backend = of_t.family, get_backend(t.device)
    root = next((v for v, p in family.living() if p.above is None), None)
    whole = at = None   # the root's array, with what has changed; number in t of each element of the root
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
    from alpha.graph import no_grad
    from alpha.op import registry
    from alpha.tensor import Tensor
    if (here < 0).all():
        return
    device, flat = t.device, (here.size,)
    before, quiet.on = quiet.on, True
    try:
        with no_grad():
            index = Tensor(backend.from_numpy(np.maximum(here, 0), device), flat, "int64", device)
            new = registry["take"](registry["reshape"](t.with_data(t.array), (t.numel(),)), index)
            if (here < 0).any():
                mask = Tensor(backend.from_numpy(here >= 0, device), flat, "bool", device)
                new = registry["where"](mask, new, registry["reshape"](v.with_data(v.array), flat))
            backend.copy_into(v.array, registry["reshape"](new, v.shape).array)
    finally:
        quiet.on = before


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
                place.array = ref(data)


def hand_over(where: str, t: Tensor) -> None:
    """Raises GraphError for a view whose elements are a copy, before another library writes there."""
    if (place := t._kin) is None or place.array() is not t.array:
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
    place = t._kin
    alone = place is None or place.array() is not t.array
    return [] if alone else [v for v, _ in place.family.living() if v is not t]  # type: ignore[union-attr]


def shape_of_another(t: Tensor) -> Shape | None:
    """Returns the shape of another tensor of the family of t that is there; None if there is none."""
    return next((v.shape for v in relatives(t)), None)


def dense(t: Tensor) -> bool:
    """Tells whether PyTorch would have the elements side by side."""
    place = t._kin
    return place is None or place.array() is not t.array or place.isdense_strides()


def leave(t: Tensor) -> None:
    """Makes t, which got another array and has no views, a root; PyTorch's keeps the strides that it had."""
    place, t._kin = t._kin, None
    if place is not None and not (place.isdense_strides() or place.repeats()):
        Place(t, Family(t.shape), None, None, t.shape)._strides = place.strides


def own(t: Tensor) -> Tensor:
    """Returns a tensor of its own with the elements of a view, in whose memory it lies until one of them changes."""
    from alpha.tensor import Tensor
    y = Tensor(t.array, t.shape, t.dtype, t.device)
    y._node, y._requires_grad = t._node, t._requires_grad
    borrow(place_of(t), y)
    return y
