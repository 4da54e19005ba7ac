"""Launches behind the flags of operands, whose blocks end at once unless a flag is set (guard.cuh)."""

from __future__ import annotations

from alpha.cuda.runtime.memory import Array

Guard = tuple["Array | None", "Array | None"]
UNGUARDED: Guard = (None, None)
GUARD_ARGS = "ptr flag_a, ptr flag_b"
