"""A NaN or an infinity in a channel reaches that channel's statistics on the GPU, as elements, planes and 16 bits."""

from __future__ import annotations

import pytest

from alpha.cuda import lazy
from tests.test_norm_nan import BAD, PLACES, check_batch_norm, check_sample_norms

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [5, 3000])
@pytest.mark.parametrize("bad", BAD)
def test_batch_norm(bad: float, rows: int, place: int, planes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "planes_are_read", lambda: planes)
    check_batch_norm(bad, rows, place, "cuda")


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_batch_norm_of_16_bits(bad: float, dtype: str) -> None:
    check_batch_norm(bad, 700, 1, "cuda", dtype)


@pytest.mark.parametrize("bad", BAD)
def test_norms_of_samples(bad: float) -> None:
    check_sample_norms(bad, "cuda")
