"""Memory in one range: what is taken and added is what is free, the best fit is found; lives are packed densely."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpha.lifetimes import Life, Runs, pack

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
SIZE = 120


def cells(runs: Runs) -> list[int]:
    return [cell for start, size in sorted(runs.sizes.items()) for cell in range(start, start + size)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(0, 99))))
def test_runs_are_the_cells_that_nobody_has(steps):
    runs, free, taken = Runs(), set(range(SIZE)), []
    runs.add(0, SIZE)
    for allocate, size, which in steps:
        if allocate and (start := runs.best(size)) is not None:
            fitting = [n for n in runs.sizes.values() if n >= size]
            assert runs.sizes[start] == min(fitting)
            runs.take(start, size)
            taken.append((start, size))
            free -= set(range(start, start + size))
        elif not allocate and taken:
            start, size = taken.pop(which % len(taken))
            runs.add(start, size)
            free |= set(range(start, start + size))
        assert cells(runs) == sorted(free)
        assert runs.starts == {start + size: start for start, size in runs.sizes.items()}
        assert not set(runs.sizes) & set(runs.starts), "two runs touch"


def test_the_first_of_equal_runs_is_taken_and_none_where_nothing_fits():
    runs = Runs()
    for start in (40, 0, 20):
        runs.add(start, 10)
    assert runs.best(10) == 0 and runs.best(11) is None


def test_a_part_from_the_middle_leaves_both_ends():
    runs = Runs()
    runs.add(0, 30)
    runs.take(10, 5)
    assert runs.sizes == {0: 10, 15: 15} and runs.holds(15, 15) and not runs.holds(9, 2)


# ---- known lives -----------------------------------------------------------------------------------------------------


def live_at_most(lives: list[Life]) -> int:
    return max((sum(b.size for b in lives if b.begin <= a.begin < b.end) for a in lives), default=0)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), max_size=20))
def test_pieces_that_are_there_together_do_not_overlap(drawn):
    lives = [Life(size, k, k + long) for k, (size, long) in enumerate(drawn)]
    places, whole = pack(lives)
    for k, (a, at) in enumerate(zip(lives, places)):
        assert 0 <= at <= at + a.size <= whole
        for b, other in zip(lives[:k], places):
            assert a.begin >= b.end or at + a.size <= other or other + b.size <= at
    assert whole >= live_at_most(lives)


def test_what_stays_makes_room_for_what_comes_later():
    """As they come, the second would lie behind the first, and the third behind both: 16."""
    lives = [Life(4, 0, 2), Life(4, 1), Life(8, 2)]
    places, whole = pack(lives)
    assert whole == live_at_most(lives) == 12 and places == [0, 8, 0]
    assert pack([]) == ([], 0)
