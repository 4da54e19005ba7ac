"""Small archives in the four forms of CIFAR, made up on the spot.  One catalogue for all tests that read them."""

import gzip
import io
import pickle
import struct
import tarfile

import numpy as np

from alpha.data.public import cifar

NAMES = {"cifar10": [f"kind {k}" for k in range(10)], "cifar100": [f"kind {k}" for k in range(100)]}
KINDS = [(name, form) for name in cifar.FORMS for form in cifar.FORMS[name]]
KIND_IDS = [form.archive for _, form in KINDS]


def images_of(file, count=3):
    """Made-up images and labels of one file, and the same for the same file name.  NCHW."""
    rng = np.random.default_rng(sum(file.encode()))
    return rng.integers(0, 256, (count, 3, 32, 32), np.uint8), rng.integers(0, 10, count)


def python2_batch(pixels, labels, label_key):
    """A batch as cPickle of Python 2 wrote it: protocol 2, str keys and pixels, numpy.core."""
    def text(value):
        return b"U" + bytes([len(value)]) + value.encode()
    rows = pixels.reshape(len(labels), -1)
    body = b"T" + struct.pack("<i", rows.size) + rows.tobytes()
    dtype = (b"cnumpy\ndtype\nq\x05(" + text("u1") + b"K\x00K\x01tR(K\x03" + text("|")
             + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb")
    array = (b"cnumpy.core.multiarray\n_reconstruct\nq\x02(cnumpy\nndarray\nq\x03K\x00\x85" + text("b") + b"tR(K\x01M"
             + struct.pack("<H", len(rows)) + b"M\x00\x0c\x86" + dtype + b"\x89" + body + b"tb")
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = text("data") + array + text(label_key) + listed + text("batch_label") + text("1 of 5")
    return b"\x80\x02}q\x01(" + entries + b"u."


def files_of(name, form):
    """The files of a small archive of this form, as bytes by name."""
    files = {}
    for file in (*form.train, form.test):
        pixels, labels = images_of(file)
        if form.label_bytes:
            coarse = np.full((len(labels), form.label_bytes - 1), 19)
            records = np.concatenate([coarse, labels[:, None], pixels.reshape(len(labels), -1)], 1)
            files[file] = records.astype(np.uint8).tobytes()
        else:
            files[file] = python2_batch(pixels, labels.tolist(), form.label_key)
    files[form.names] = ("\n".join(NAMES[name]) + "\n\n").encode() if form.label_bytes else pickle.dumps(
        {form.names_key: NAMES[name], "num_vis": 3072}, protocol=2)
    return files


def tar_of(files, folder="folder"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in {"readme.html": b"hello", **files}.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(f"{folder}/{name}")
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def write_archive(path, files, **options):
    path.write_bytes(gzip.compress(tar_of(files, **options), 1))
    return path


def write_folder(path, files):
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def check_read(data, name, form):
    for images, labels, files in ((data.train_images, data.train_labels, form.train),
                                  (data.test_images, data.test_labels, (form.test,))):
        pixels, expected = zip(*map(images_of, files))
        assert np.array_equal(images, np.concatenate(pixels).transpose(0, 2, 3, 1))
        assert labels.dtype == np.int64 and labels.tolist() == np.concatenate(expected).tolist()
        assert images.flags.c_contiguous
    assert data.classes == tuple(NAMES[name])


FILES = {form.archive: files_of(name, form) for name, form in KINDS}
