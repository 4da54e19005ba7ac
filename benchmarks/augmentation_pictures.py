"""Draws docs/images/augmentation.png: one picture after each augmentation, in six epochs.

    python -m benchmarks.augmentation_pictures [PATH]

The picture is drawn here, so that the command needs no file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from alpha.data import Augment, Dataset, Images
from alpha.data.augment import DEFAULT_SIZES
from alpha.data.augmentations import AUGMENTATIONS
from train import report

PATH = Path(__file__).parent.parent / "docs" / "images" / "augmentation.png"
SIDE, EPOCHS = 64, 6
ALWAYS = {"erasing", "blur", "grey", "equalize", "autocontrast", "posterize", "solarize", "sharpness", "invert"}


def picture(other: bool = False) -> np.ndarray:
    """Returns a house below the sun, or by night.  Shape (SIDE, SIDE, 3), uint8."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    sky = np.stack([0.35 + 0.4 * y, 0.55 + 0.3 * y, 0.95 - 0.1 * y], -1) * (0.35 if other else 1.0)
    image = sky
    shapes = [((x - 0.78) ** 2 + (y - 0.2) ** 2 < 0.012, (0.98, 0.9, 0.3)),
              (y > 0.72 + 0.05 * np.sin(6 * x), (0.25, 0.6, 0.25)),
              ((abs(x - 0.38) < 0.2) & (y > 0.48) & (y < 0.85), (0.85, 0.75, 0.6)),
              ((y > 0.28) & (y < 0.48) & (abs(x - 0.38) < (y - 0.28) * 1.3), (0.75, 0.25, 0.2)),
              ((abs(x - 0.46) < 0.05) & (y > 0.64) & (y < 0.85), (0.4, 0.25, 0.15)),
              ((abs(x - 0.28) < 0.05) & (abs(y - 0.6) < 0.05), (0.95, 0.9, 0.4) if other else (0.5, 0.7, 0.9)),
              ((abs(x - 0.82) < 0.02) & (y > 0.55) & (y < 0.8), (0.4, 0.3, 0.2)),
              ((x - 0.82) ** 2 + (y - 0.5) ** 2 < 0.01, (0.15, 0.45, 0.2))]
    for where, colour in shapes:
        image = np.where(where[..., None], np.array(colour) * (0.6 if other else 1.0), image)
    return (255 * np.clip(image, 0, 1)).astype(np.uint8)


def rows() -> list[tuple[str, np.ndarray]]:
    """Returns a text of --augment and the pictures of six epochs, for each augmentation.  (EPOCHS, H, W, 3), uint8."""
    images, labels = np.stack([picture(), picture(other=True)]), np.arange(2)
    data = Dataset("pictures", ("day", "night"), np.zeros(3, np.float32), np.ones(3, np.float32), images, labels,
                   images, labels)
    source, found = Images(images, labels, data, "cpu"), [("none", np.repeat(images[:1], EPOCHS, 0))]
    names = [f"{name}={8 if name in ('crop', 'cutout') else 1}".removesuffix("=1") for name in DEFAULT_SIZES]
    for text in [*names, *(f"{name}(p=1)" if name in ALWAYS else name for name in AUGMENTATIONS)]:
        drawn = [next(source.batches(2, epoch=k, seed=1, shuffle=False, augment=Augment.parse(text)))[0].numpy()[0]
                 for k in range(EPOCHS)]
        found.append((text, np.rint(255 * np.stack(drawn)).astype(np.uint8)))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the picture; returns 0, or 1 where matplotlib is not installed."""
    given = sys.argv[1:] if argv is None else argv
    path = Path(given[0]) if given else PATH
    if not report.can_plot(path.name):
        return 1
    found = rows()
    across = 2
    lines = -(-len(found) // across)
    figure = report.blank_figure(across * 4.4, lines * 0.7)
    for k, (text, images) in enumerate(found):
        axes = figure.add_subplot(lines, across, k % lines * across + k // lines + 1)
        axes.imshow(np.concatenate([np.pad(i, ((0, 0), (0, 3), (0, 0)), constant_values=255) for i in images], 1))
        axes.set_ylabel(text.replace("(", "\n("), fontsize=7, rotation=0, ha="right", va="center")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    report.save_figure(figure, path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
