"""Pictures in folders and as items: what is seen of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alpha.data import DataLoader, Dataset, ImageFolder
from alpha.errors import DataError
from tests.loader_sets import IMAGES, halved
from tests.op_checks import refused


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("cat", 10), ("dog", 200)):
        (tmp_path / name).mkdir()
        for k, size in enumerate(((8, 6), (16, 12), (9, 9))):
            image.new("RGB", size, (shade, 0, k)).save(tmp_path / name / f"{k}.png")
        (tmp_path / name / "notes.txt").write_text("no picture")
    folder = ImageFolder(tmp_path, size=(6, 8))
    assert folder.classes == ("cat", "dog") and len(folder) == 6
    x, y = next(iter(DataLoader(folder, 6, workers=2)))
    assert x.shape == (6, 6, 8, 3) and y.tolist() == [0, 0, 0, 1, 1, 1]
    assert x.numpy()[:, 0, 0, 0] * 255 == pytest.approx([10] * 3 + [200] * 3)
    data = Dataset.of("pets", folder, folder)
    assert data.classes == ("cat", "dog") and data.train_images.shape == (6, 6, 8, 3)
    with refused(DataError, "items differ in shape or dtype: item 0: uint8 (6, 8, 3), int64 (); item 1: uint8 (12, 16"):
        next(iter(DataLoader(ImageFolder(tmp_path), 6)))
    (tmp_path / "cat" / "0.png").write_bytes(b"no picture")
    with refused(DataError, "item 0 of ImageFolder failed", "0.png cannot be read"):
        next(iter(DataLoader(folder, 6)))
    with refused(DataError, "has no pictures in 0 folders"):
        ImageFolder(tmp_path / "cat")
    with refused(DataError, "cannot be read: No such file"):
        ImageFolder(tmp_path / "gone")


def test_a_folder_of_pictures_whose_labels_or_pixels_would_be_others(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in (".git", "cat", "dog"):
        (tmp_path / name).mkdir()
        image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    (tmp_path / "cat" / "._0.png").write_bytes(b"what a Mac leaves")
    folder = ImageFolder(tmp_path)
    assert folder.classes == ("cat", "dog") and [label for _, label in folder.files] == [0, 1]
    image.fromarray(np.full((4, 4), 3000, np.uint16)).save(tmp_path / "dog" / "1.png")
    with refused(DataError, "1.png cannot be read: its pixels are of mode I;16, 8 bits a channel are needed"):
        ImageFolder(tmp_path)[2]
    (tmp_path / "bird").mkdir()
    with refused(DataError, "bird has no pictures", "remove the folder"):
        ImageFolder(tmp_path)


def test_pictures_of_a_folder_are_seen_as_they_are_meant(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    colours = IMAGES[0]
    picture = image.fromarray(colours)
    exif = image.Exif()
    exif[0x0112] = 6    # turn it to the right to see it
    palette = image.fromarray((colours[..., 0] % 4).astype(np.uint8), "L").convert("P")
    palette.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    palette.info["transparency"] = b"\x00\x80\xff\xff"
    cmyk, ones = picture.convert("CMYK"), image.fromarray(colours[..., 0] > 127)
    picture.transpose(image.Transpose.ROTATE_90).save(tmp_path / "a" / "0.png", exif=exif)
    palette.save(tmp_path / "a" / "1.png")
    ones.save(tmp_path / "a" / "2.png")
    cmyk.save(tmp_path / "a" / "3.tiff")
    picture.convert("RGBA").save(tmp_path / "a" / "4.png")
    picture.convert("LA").save(tmp_path / "a" / "5.png")
    expected = [colours, np.array([(10, 20, 30), (200, 0, 0), (0, 200, 0), (0, 0, 200)], np.uint8)[colours[..., 0] % 4],
                np.where(colours[..., :1] > 127, 255, 0).repeat(3, 2), np.asarray(cmyk.convert("RGB")), colours,
                np.asarray(picture.convert("L"))[..., None].repeat(3, 2)]
    for found in (ImageFolder(tmp_path), ImageFolder(tmp_path, size=(12, 10))):
        assert [a.shape for a, _ in found] == [(12, 10, 3)] * 6
        assert all(np.array_equal(a, b) for (a, _), b in zip(found, expected))


def test_pictures_as_items_are_seen_as_they_are_meant() -> None:
    image = pytest.importorskip("PIL.Image")
    colours = IMAGES[0]
    picture = image.fromarray(colours)
    turned = picture.transpose(image.Transpose.ROTATE_90)
    turned.getexif()[0x0112] = 6
    palette = picture.quantize(7)

    def batch(sample: Any, target: Any = 1, **more: Any) -> list[np.ndarray]:
        return [t.numpy() for t in next(iter(DataLoader([(sample, target)] * 3, 3, **more)))]

    for more in ({}, {"transform": halved}, {"workers": 1}):
        for sample, expected in (
                (turned, colours), (palette, np.asarray(palette.convert("RGB"))),
                (image.fromarray(colours[..., 0] > 127), np.where(colours[..., :1] > 127, 255, 0)),
                (picture.convert("CMYK"), np.asarray(picture.convert("CMYK").convert("RGB"))),
                (picture.convert("L"), np.asarray(picture.convert("L"))[..., None]),
                (picture.convert("RGBA"), np.asarray(picture.convert("RGBA")))):
            found = batch(sample, **more)[0] * 255
            np.testing.assert_allclose(found, [expected // (2 if "transform" in more else 1)] * 3, atol=1e-4)
    assert np.array_equal(batch(picture, palette)[1], [np.asarray(palette)] * 3), "a mask keeps its indices"
    deep = image.fromarray(np.full((12, 10), 3000, np.uint16))
    assert np.array_equal(batch(picture, deep)[1], np.full((3, 12, 10), 3000))
    assert batch(image.fromarray(np.full((12, 10), 0.5, np.float32)))[0].shape == (3, 12, 10, 1)
    for sample in (deep, deep.convert("I")):
        with refused(DataError, "the picture of item 0 cannot be used: its pixels are of mode I", "/ 65535"):
            batch(sample)


def test_names_and_links_in_folders_of_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "root"

    def put(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (4, 4)).save(path)
    for name in ("root/cat/.thumbnails/0.png", "root/cat/x.png/1.png", "root/cat/sub/2.png", "root/cat/3.png",
                 "far/dog/4.png", "far/more/5.png", "far/6.png"):
        put(tmp_path / name)
    (root / "dog").symlink_to(tmp_path / "far" / "dog")
    (root / "cat" / "linked").symlink_to(tmp_path / "far" / "more")
    (root / "cat" / "6.png").symlink_to(tmp_path / "far" / "6.png")
    folder = ImageFolder(root)
    assert folder.classes == ("cat", "dog")
    assert [(str(path.relative_to(root)), label) for path, label in folder.files] == [
        ("cat/3.png", 0), ("cat/6.png", 0), ("cat/linked/5.png", 0), ("cat/sub/2.png", 0), ("cat/x.png/1.png", 0),
        ("dog/4.png", 1)]
    assert all(image.shape == (4, 4, 3) for image, _ in folder)
    (root / "cat" / "again").symlink_to(root / "cat")
    with refused(DataError, "again is a link to a folder that it is in", "remove the link"):
        ImageFolder(root)
    (root / "cat" / "again").unlink()
    for place in (root / "bird", root / "cat" / "7.png"):
        place.symlink_to(tmp_path / "gone")
        with refused(DataError, f"{place} is a link to {tmp_path / 'gone'}, which is not there", "remove the link"):
            ImageFolder(root)
        place.unlink()
    for path in ("x" * 5000, "a\0b"):
        with refused(DataError, "cannot be read"):
            ImageFolder(path)
