"""Data: sets of images by name, loaders of anything with __len__ and __getitem__, and augmentation."""

from alpha.data.augment import Augment
from alpha.data.folder import ImageFolder
from alpha.data.images import Images, steps_per_epoch
from alpha.data.loader import DataLoader
from alpha.data.sets import Dataset, register_dataset, split

__all__ = ["Augment", "DataLoader", "Dataset", "ImageFolder", "Images", "register_dataset", "split", "steps_per_epoch"]
