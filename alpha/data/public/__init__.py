"""Public data sets, and sets of the user's own files, that have a name: importing this registers them."""

from alpha.data.public import archives, idx, own

__all__ = ["archives", "idx", "own"]
