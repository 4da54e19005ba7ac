"""The comparison of two backends, which users have too: alpha/testing/agree.py."""

from alpha.testing.agree import TOLERANCE, Case, agree, as_stored, floats, ints

__all__ = ["TOLERANCE", "Case", "agree", "as_stored", "floats", "ints"]
