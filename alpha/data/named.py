"""Data sets by name, or by the path of a folder of pictures.

    data = load("digits")
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from alpha.core.errors import DataError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Seed
from alpha.core.inputs.registry import did_you_mean, parameters_of
from alpha.data.folder_set import SIZE, layout_of, listed, read_layout
from alpha.data.sets import DATASETS, Dataset, Entry, read_dataset

FOLDER_AUGMENT = "crop"     # of folders of pictures, which may not be what they show when they are mirrored


@checked
def load(name: str, data_dir: str | Path | None = None, download: bool = True, seed: Seed = 0,
         image_size: int | None = None, skip_bad: bool = False) -> Dataset:
    """Reads a data set into memory.

    Args:
        name: as registered: mnist, fashion_mnist, kmnist, emnist_balanced and others of EMNIST, svhn, stl10,
            tiny_imagenet, csv, arrays; cifar10, cifar100, digits and synthetic; or one of the user's own. Or the path
            of a folder of pictures, as `read_folder` takes it.
        data_dir: folder or file that it is read from, for sets that read files. Without it ./data is searched. For
            CIFAR: the python or binary archive (.tar.gz), its extracted folder, or a folder that holds either.
        download: whether public files may be downloaded to ./data if they are not there and data_dir is None.
        seed: of synthetic images; nothing else depends on it.
        image_size, skip_bad: of folders of pictures: height and width, and whether files that cannot be read are left
            out.
    Raises:
        DataError: the name is unknown, a setting has no effect on this data set, a package is missing, or files are
            missing, damaged or hostile.
    """
    import_module("alpha.data.public")  # which registers them
    if name not in DATASETS and not is_folder(name):
        raise DataError(message("load", f"there is no data set {name!r}{did_you_mean(name, DATASETS)}",
                                f"choose one of {', '.join(DATASETS)}, or --import the file that registers it"))
    more: dict[str, Any] = {} if image_size is None else {"image_size": image_size}
    more |= {"skip_bad": True} if skip_bad else {}
    for setting in more:
        if setting not in parameters_of(entry_of(name).read):
            raise DataError(message("load", f"{setting}={more[setting]} has no effect on the data set {name!r}",
                                    f"leave {setting} out; a folder of pictures takes it"))
    if not is_folder(name):
        more |= {"download": download, "seed": seed, "data_dir": None if data_dir is None else Path(data_dir)}
    return read_dataset(name, entry_of(name), **more)


def is_folder(name: str) -> bool:
    """Tells whether a data set is named by the path of a folder of pictures."""
    return name not in DATASETS and (os.sep in name or name in (".", "..") or os.path.isdir(name))


def entry_of(name: str) -> Entry:
    """Returns what is known of a data set before it is read, of one that is registered or of a folder."""
    if not is_folder(name):
        return DATASETS[name]

    def read(image_size: int = SIZE[0], skip_bad: bool = False) -> Dataset:
        layout = layout_of("dataset", name)
        data, bad = read_layout("dataset", name, layout, (image_size, image_size), skip_bad)
        if bad:
            print(f"notice: {len(bad)} pictures are left out:{listed(bad)}", file=sys.stderr)
        if "val" in layout.parts and "test" not in layout.parts:
            print(f"notice: {name} has no test/: the test figures are of val/, by which the best epoch is chosen",
                  file=sys.stderr)
        return data
    return Entry(read, FOLDER_AUGMENT, read)


def has_own_validation(name: str) -> bool:
    """Tells whether a data set is a folder with val/.  Raises DataError for a folder that cannot be used."""
    return is_folder(name) and "val" in layout_of("dataset", name).parts
