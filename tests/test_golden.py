"""The kept records of public names, of texts of wrong calls, of choices, and of steps on integers: tests/golden."""

from __future__ import annotations

import pytest

from tests.golden import api, calls, choices, steps
from tests.golden.__main__ import differences

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

AGAIN = "if that is meant: python -m tests.golden --write"


def test_public_names_are_those_of_the_record() -> None:
    assert not differences("api.txt", api.text()), AGAIN


def test_wrong_calls_say_what_the_record_has() -> None:
    assert len(calls.expressions()) > 100
    assert not differences("wrong_calls.txt", calls.text()), AGAIN


@pytest.mark.parametrize("expression", calls.expressions())
def test_wrong_calls_are_refused_with_a_help(expression: str) -> None:
    assert "\nhelp: " in calls.answer(expression)


def test_the_chooser_takes_what_the_record_has() -> None:
    assert not differences("choices.txt", choices.text()), AGAIN


def test_steps_on_integers_have_the_bits_of_the_record() -> None:
    found = steps.exact()
    assert found == steps.kept()["every machine"], AGAIN
    assert len(set(found.values())) == 1, "kernels or recipes make other bits"


def test_a_difference_is_told_by_its_lines() -> None:
    assert any(line.startswith("+alpha.nothing") for line in differences("api.txt", api.text() + "alpha.nothing\n"))
