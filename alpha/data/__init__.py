"""Data: sets of images by name, loaders of anything with __len__ and __getitem__, and augmentation."""

import sys

from alpha.data.augment import Augment
from alpha.data.draws import balanced_weights
from alpha.data.folder import ImageFolder
from alpha.data.folder_set import read_folder
from alpha.data.images import Images, steps_per_epoch
from alpha.data.loader import DataLoader
from alpha.data.named import load
from alpha.data.parts import ConcatDataset, Subset, TensorDataset, random_split
from alpha.data.sets import Dataset, register_dataset, split
from alpha.data.tables import ImageTable
from alpha.interop import twins

__all__ = ["Augment", "ConcatDataset", "DataLoader", "Dataset", "ImageFolder", "ImageTable", "Images", "Subset",
           "TensorDataset", "balanced_weights", "load", "random_split", "read_folder", "register_dataset", "split",
           "steps_per_epoch"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.data", name, twins.DATA, sys.modules[__name__])
