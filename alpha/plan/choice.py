"""The choice among candidates, for every device: which serve, the expected time of each, and which one is taken.

    offer = Offer(desc, rates, promise, candidates, ("winograd", "fft"))
    choice = choose(offer, request)         # choice.taken computes the pass; explain(choice.options, choice.taken)

A direct candidate keeps the promise of its precision by its construction. Where a request is free, a candidate by
another algorithm is taken if its time is at most TAKEN_BELOW of the best direct one's, its error keeps the promise, and
it does not stay out by itself. A request that names an algorithm takes the best of that; where none of it serves, a
strict one takes nothing, and a preference leaves the choice free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from alpha.plan.cost import Cost, Rates, time_us
from alpha.plan.requests import AUTO, Request

DIRECT = "direct"
TAKEN_BELOW = 0.9   # of direct's time, where the choice is free
NEVER = float("inf")
_FREE = Cost(())


class Candidate:
    """A way to compute a pass: one kernel with its tile, or an algorithm with its.  It does not change."""

    pass_name: str              # "fprop", "dgrad" or "wgrad"
    name: str                   # shown to people and stored by the tuner: "ks_deconv 128x64"
    algorithm: str = DIRECT     # its name in alpha.plan.requests

    def rejection(self, desc: Any) -> str | None:
        """Returns why it does not compute desc, or None."""
        raise NotImplementedError

    def cost(self, desc: Any) -> Cost:
        """Returns the work and the bytes of a launch."""
        raise NotImplementedError

    def least_us(self, desc: Any) -> float:
        """Returns a lower bound of its time, at once: no work list is made for it."""
        return 0.0

    def stays_out(self, desc: Any, direct: Any) -> str | None:
        """Returns why it is not taken where the choice is free and `direct` is the best of the direct ones, or None."""
        return "is taken where it is named"


def _nothing(candidate: Any) -> Cost:
    return _FREE


class Offer(NamedTuple):
    """The candidates of a device for one pass.

    Attributes:
        desc: of the operation, as its candidates take it.
        rates: of the device.
        promise: relative error that the precision promises.
        candidates: returns the candidates by an algorithm, of which equals are taken in this order.
        others: the algorithms that a free choice may take beside the direct one.
        around: returns the cost of conversions around a candidate.
    """

    desc: Any
    rates: Rates
    promise: float
    candidates: Callable[[str], Iterable[Any]]
    others: Iterable[str] = ()
    around: Callable[[Any], Cost] = _nothing

    def around_us(self, candidate: Any) -> float:
        return time_us(self.around(candidate), self.rates)


class Option(NamedTuple):
    """A candidate after it was weighed.

    Attributes:
        reason: why it is not to be taken, or None.
        time_us: microseconds that it is expected to take; infinite without an estimate.
        slower: whether it serves, and the reason is its time alone.
    """

    candidate: Any
    reason: str | None
    time_us: float
    slower: bool = False


class Choice(NamedTuple):
    """The candidate that is taken, None where none serves the request; and all options: the named algorithm's first,
    then the direct ones, the fastest first, then others."""

    taken: Any
    options: tuple[Option, ...]


def by_time(option: Option) -> float:
    """A key by which options that serve come first, the fastest first; others keep their order."""
    return NEVER if option.reason else option.time_us


def choose(offer: Offer, request: Request = AUTO, *, every: bool = True) -> Choice:
    """Returns which candidate computes a pass.  every: see `rank`."""
    named: tuple[Option, ...] = ()
    if request.name not in (AUTO.name, DIRECT):
        named = tuple(weigh(offer, (request.name,)))
        best = min(named, key=by_time, default=None)
        if request.strict or (best and not best.reason):
            return Choice(best.candidate if best and not best.reason else None, named)
    direct = tuple(rank(offer, every=every))
    if not direct or direct[0].reason:
        return Choice(None, (*named, *direct))
    others = () if request.name == DIRECT else tuple(weigh(offer, offer.others, direct[0]))
    return Choice(min((*others, *direct), key=by_time).candidate, (*named, *direct, *others))


def rank(offer: Offer, *, every: bool = True) -> list[Option]:
    """Returns all direct candidates with their expected time: those that fit first, the fastest first.

    Args:
        every: False leaves those without an estimate, and says so as their reason, that cannot be the fastest by the
            time that they take at least. Work lists are made to estimate, so that this saves most of a network's first
            step.
    """
    waiting = []
    for candidate in offer.candidates(DIRECT):
        around_us = offer.around_us(candidate)
        waiting.append((candidate.least_us(offer.desc) + around_us, around_us, candidate))
    options, best_us = [], NEVER
    for least_us, around_us, candidate in sorted(waiting, key=lambda entry: entry[0]):
        reason = candidate.rejection(offer.desc) if every or least_us < best_us else f"takes at least {least_us:.1f} us"
        us = NEVER if reason else time_us(candidate.cost(offer.desc), offer.rates) + around_us
        best_us = min(best_us, us)
        options.append(Option(candidate, reason, us))
    return sorted(options, key=by_time)


def weigh(offer: Offer, algorithms: Iterable[str], direct: Option | None = None) -> list[Option]:
    """Returns the candidates by some algorithms, which all must keep the promise.

    Args:
        direct: the best of the direct ones, where the choice is free; None where an algorithm is named.
    """
    options = []
    for candidate in (candidate for name in algorithms for candidate in offer.candidates(name)):
        us, slower = NEVER, False
        reason = (direct and candidate.stays_out(offer.desc, direct.candidate)) or candidate.rejection(offer.desc)
        if not reason:
            cost = candidate.cost(offer.desc)
            us = time_us(cost, offer.rates) + offer.around_us(candidate)
            reason = broken(cost, offer.promise)
            if direct and not reason and us > TAKEN_BELOW * direct.time_us:
                reason, slower = f"takes {us:.1f} us, more than {TAKEN_BELOW} times direct", True
        options.append(Option(candidate, reason or None, us, slower))
    return options


def broken(cost: Cost, promise: float) -> str | None:
    """Returns why an algorithm's error is too large for a precision, or None."""
    return f"has an error of up to {cost.error:.1e}, {promise:.0e} is promised" if cost.error > promise else None


def explain(options: Iterable[Option], taken: Any, *, width: int = 40, times: bool = False) -> str:
    """Returns a line for each option: its name, and its time in microseconds or the reason why it is not taken.

    Args:
        taken: the candidate that is marked by a star.
        width: of names.
        times: show the time of options that are only too slow, in the place of the reason.
    """
    return "\n".join(
        f"{'*' if option.candidate is taken else ' '} {option.candidate.name:{width}} "
        f"{f'{option.time_us:10.1f} us' if not option.reason or (times and option.slower) else option.reason}"
        for option in options)
