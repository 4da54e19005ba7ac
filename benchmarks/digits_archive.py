"""A data set in CIFAR-10's own file format, made of real handwritten digits: 50,000 + 10,000 colour images of 32x32.

    python -m benchmarks.digits_archive --output data/digits [--form binary] [--seed 0]
    python -m train --dataset cifar10 --data-dir data/digits --augment crop=2 ...

Every image is one of scikit-learn's 1,797 digits of 8x8 pixels, enlarged to 20 to 29 pixels at a random place, in ink
of a random colour on lighter paper that fades from one colour to another, with noise. The digits are divided first: no
digit of the training images is in a test image. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import pickle
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from alpha.data import load
from alpha.data.public.cifar import FORMS, Form
from alpha.data.sets import stratified

SIZE, SOURCE = 32, 8
TEST_DIGITS = 360
TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
SMALLEST, LARGEST = 20.0, 29.0  # pixels that a digit's width or height is enlarged to
CONTRAST = 60.0                 # least by which the ink is darker than the paper, in the mean over channels
NOISE = 16.0                    # standard deviation
BLOCK = 2000                    # images made at a time


def sources(seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the digits and labels for the training and for the test images: no digit is in both.

    Digits have shape (N, 8, 8), float32 from 0 (paper) to 1 (ink); labels (N,), int64; each class is in proportion.
    """
    data = load("digits")
    images = np.concatenate([data.train_images, data.test_images])[:, ::SIZE // SOURCE, ::SIZE // SOURCE, 0]
    labels = np.concatenate([data.train_labels, data.test_labels])
    digits = images.astype(np.float32) / 255
    test = stratified(labels, TEST_DIGITS, seed)
    return (digits[~test], labels[~test]), (digits[test], labels[test])


def enlarged(digits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns each digit at a random size and place, bilinear.  Shape (N, 32, 32), from 0 to 1."""
    axes = []
    for _ in range(2):
        extent = rng.uniform(SMALLEST, LARGEST, (len(digits), 1, 1))
        start = rng.uniform(0, 1, (len(digits), 1, 1)) * (SIZE - extent)
        place = (np.arange(SIZE)[:, None] + 0.5 - start) * SOURCE / extent - 0.5  # in pixels of the source
        axes.append(np.maximum(0, 1 - np.abs(place - np.arange(SOURCE))).astype(np.float32))
    return axes[0] @ digits @ axes[1].transpose(0, 2, 1)


def coloured(strength: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns colour images of the digits.  Shape (N, 32, 32, 3), uint8."""
    n = len(strength)
    paper = rng.uniform(0, 255, (n, 2, 3)).astype(np.float32)  # at the two ends of the fade
    ink = rng.uniform(0, 255, (n, 3)).astype(np.float32)
    while (faint := paper.mean(2).min(1) - ink.mean(1) < CONTRAST).any():
        paper[faint] = rng.uniform(0, 255, (faint.sum(), 2, 3))
        ink[faint] = rng.uniform(0, 255, (faint.sum(), 3))
    fade = np.arange(SIZE, dtype=np.float32)[:, None] / (SIZE - 1)
    background = paper[:, None, 0] * (1 - fade) + paper[:, None, 1] * fade  # (N, 32, 3): a colour per row, or column
    turned = rng.random(n) < 0.5
    image = np.where(turned[:, None, None, None], background[:, :, None], background[:, None])
    image = image + strength[..., None] * (ink[:, None, None] - image)
    image += rng.standard_normal(image.shape, np.float32) * np.float32(NOISE)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def made(digits: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns `count` images, every class as often, every digit of a class as often, in random order.

    Images have shape (count, 32, 32, 3), uint8; labels (count,), int64.
    """
    by_class = [np.flatnonzero(labels == k) for k in range(10)]
    chosen = np.array([by_class[k % 10][k // 10 % len(by_class[k % 10])] for k in range(count)])
    chosen = rng.permutation(chosen)
    blocks = [coloured(enlarged(digits[part], rng), rng) for part in np.array_split(chosen, max(1, count // BLOCK))]
    return np.concatenate(blocks), labels[chosen]


# ---- files -----------------------------------------------------------------------------------------------------------


def batch_bytes(form: Form, file: str, images: np.ndarray, labels: np.ndarray) -> bytes:
    """Returns the content of one file of the data set: planes of red, green and blue, row by row."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    if form.label_bytes:
        return np.concatenate([labels[:, None].astype(np.uint8), planes], 1).tobytes()
    batch = {"batch_label": "testing batch 1 of 1" if file == form.test else
             f"training batch {form.train.index(file) + 1} of {len(form.train)}",
             "labels": labels.tolist(), "data": np.ascontiguousarray(planes),
             "filenames": [f"{label}_{k:05d}.png" for k, label in enumerate(labels.tolist())]}
    return pickle.dumps(batch, protocol=4)


def files(form: Form, seed: int, train_images: int, test_images: int) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of every file of the data set."""
    rng = np.random.default_rng(seed)
    train, test = (made(*source, count, rng) for source, count in zip(sources(seed), (train_images, test_images)))
    for k, file in enumerate(form.train):
        part = slice(k * train_images // len(form.train), (k + 1) * train_images // len(form.train))
        yield file, batch_bytes(form, file, train[0][part], train[1][part])
    yield form.test, batch_bytes(form, form.test, *test)
    names = [str(k) for k in range(10)]
    meta = {form.names_key: names, "num_cases_per_batch": train_images // len(form.train), "num_vis": 3 * SIZE * SIZE}
    yield form.names, ("\n".join(names) + "\n").encode() if form.label_bytes else pickle.dumps(meta, protocol=4)


def write(output: Path, form: Form, seed: int = 0, train_images: int = TRAIN_IMAGES,
          test_images: int = TEST_IMAGES) -> Path:
    """Writes the archive into the directory `output`, under the name of CIFAR-10's own, and returns its path.

    It has that name once it is whole: who stops before leaves none, and two who write at once do not disturb each
    other.
    """
    output.mkdir(parents=True, exist_ok=True)
    path = output / form.archive
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        # Fast rather than small: noise does not compress. No times are stored, so equal seeds give equal bytes.
        with temporary.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed, \
                tarfile.open(fileobj=packed, mode="w") as tar:
            for file, content in files(form, seed, train_images, test_images):
                info = tarfile.TarInfo(f"{form.folder}/{file}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory for the archive")
    parser.add_argument("--form", choices=("python", "binary"), default="python", help="which of CIFAR-10's two forms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-images", type=int, default=TRAIN_IMAGES)
    parser.add_argument("--test-images", type=int, default=TEST_IMAGES)
    args = parser.parse_args()
    form = FORMS["cifar10"][("python", "binary").index(args.form)]
    path = write(args.output, form, args.seed, args.train_images, args.test_images)
    print(f"{path}: {args.train_images} training and {args.test_images} test images, "
          f"{path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
