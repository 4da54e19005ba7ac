"""Public data sets, and sets of the user's own files, that have a name: importing this registers them in DATASETS."""

from alpha.data.public import archives, cifar, idx, own, small
from alpha.data.sets import DATASETS

__all__ = ["DATASETS", "archives", "cifar", "idx", "own", "small"]
