"""The reader of pickles: what it reads as Python does, what it refuses; nothing is run or grows without bound."""

import gzip
import pickle
import re
import struct
import tracemalloc

import numpy as np
import pytest

from alpha.errors import DataError
from tests.cifar_files import files_of, images_of, python2_batch, tar_of
from train import cifar, pickles
from train.data import load

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
VALUES = [None, True, False, 0, 255, 256, 65536, -1, 1 << 40, -(1 << 63), 1.5, "", "kind", "é", b"", b"\x00\xff",
          [1, [2, 3]], (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {"a": 1, "b": [b"c"]}, {1: 2, b"k": "v"},
          "x" * 70_000, b"\xfe" * 70_000, list(range(1000))]


@pytest.mark.parametrize("protocol", range(5))
def test_values_are_read_as_python_reads_them(protocol):
    for value in VALUES:
        if (protocol < 3 and isinstance(value, bytes)) or "b'" in repr(value):
            continue  # protocol 0 to 2 have no bytes; 2 is tested below
        if isinstance(value, str) and len(value) > pickles.MAX_TEXT and protocol == 0:
            continue
        read = pickles.load(pickle.dumps(value, protocol))
        assert (read == value and type(read) is type(value)) or bytes(read) == value


def test_bytes_of_protocol_2():
    for value in (b"", b"x", bytes(range(256)), bytes(range(256)) * 400):
        assert pickles.load(pickle.dumps(value, 2)) == value


@pytest.mark.parametrize("blob, value", [
    (b"(dp0\nS'names'\np1\n(lp2\nS'a'\naS'\\x41\\''\naI10\nasI5\nI01\ns.", {"names": ["a", "A'", 10], 5: True}),
    (b"(I1\nL5L\nF1.5\nt.", (1, 5, 1.5)), (b"I00\n.", False), (b"Vab\\u0041\n.", "abA"), (b"(S'a'\nI1\nd.", {"a": 1}),
    (b"]q\x00h\x00a0I3\n.", 3), (b"}p2000000000\n.", {}),
])
def test_python_2_writes_lines(blob, value):
    assert pickles.load(blob) == value


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_keep_what_their_state_says(protocol):
    a = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for array, order in ((a, False), (np.asfortranarray(a), True)):
        read = pickles.load(pickle.dumps(array, protocol))
        assert (read.shape, read.dtype, read.fortran, bytes(read.data)) == ((2, 3), "u1", order, array.tobytes("A"))


@pytest.mark.parametrize("blob, shown", [
    (b"", "it ends too early"), (b"N", "it ends too early"), (b"X\xff\xff\xff\x7fabc.", "it ends too early"),
    (b"\x8e" + b"\xff" * 8 + b".", "it ends too early"), (b".", "damaged before byte 1"),
    (b"\x82\x01.", "opcode EXT1 has no place"), (b"\xff", "opcode 0xff has no place"),
    (b"(cos\nsystem\no.", "it names os.system, which is code"), (b"U\x02idQ.", "opcode BINPERSID"),
    (b"Pid\n.", "opcode PERSID"), (b"(S'a'\nios\nsystem\n.", "opcode INST"), (b"cnumpy\nload\n.", "numpy.load"),
    (b"cnumpy\nndarray\n)\x81.", "opcode NEWOBJ"), (b"\x8c\x02o\n\x8c\x01\x1b\x93.", r"o\?.\?"),
    (b"I" + b"9" * 5000 + b"\n.", "a number of 5000 digits"), (b"L" + b"9" * 5000 + b"L\n.", "a number of 5001 digits"),
    (b"\x8a\xff" + b"\x7f" * 255 + b".", "a number of 255 bytes"), (b"\x8b" + struct.pack("<i", 2000), "opcode LONG4"),
    (b"F" + b"9" * 5000 + b"\n.", "a number of 5000 digits"), (b"S'" + b"a" * 9 + b".", "has no end"),
    (b"V" + b"a" * 70_000 + b"\n.", "a line is too long"), (b"Sab\n.", "no quotes"),
    (b"X" + struct.pack("<i", 70_000) + "é☃".encode() + b"a" * 69_995 + b".", "a text of 70000 bytes"),
    (b")" + b"\x85" * 99 + b".", "more than 64 dicts"), (b"]" * 99 + b".", "more than 64 dicts"),
    (b"N" * 5000 + b".", "more opcodes than 5001 bytes of images need"), (b"N" + b"(1" * 5000 + b".", "POP_MARK"),
    (b"})Ns.", "a key is not a name"), (b"]NNs.", "an entry is put into no dict"), (b"}Na.", "put into no list"),
    (b"K\x01\x86.", "a tuple of more than there is"), (b"K\x01K\x02\x93.", "a global has no name"),
    (b"NNR.", "calls what is no function"), (b"cnumpy\ndtype\n)R.", "it calls dtype as NumPy does not"),
    (b"c_codecs\nencode\n(U\x01aU\x05rot13tR.", "it calls encode as"), (b"]Nb.", "what has none"),
    (b"cnumpy\nndarray\n)R.", "it calls ndarray as"), (b"h\x05.", "KeyError"), (b"e", "IndexError"),
    (b"\x8c\x01\xff.", "UnicodeDecodeError"),
    (b"cnumpy.core.multiarray\n_reconstruct\n)R(NNNNtb.", "a state that NumPy does not write"),
    (b"cnumpy.core.multiarray\n_reconstruct\n)RNb.", "a state that NumPy does not write"),
])
def test_what_is_refused(blob, shown):
    with pytest.raises(pickles.PickleError, match=shown):
        pickles.load(blob)


@pytest.mark.timeout(60)
def test_a_tuple_that_is_doubled_fifty_times_is_refused_at_once():
    """Its hash would be taken over 2^50 ends: a minute of it could not even be interrupted."""
    blob = b"}K\x01" + b"".join(b"q%c0h%ch%c\x86" % (k, k, k) for k in range(50)) + b"K\x02s."
    with pytest.raises(pickles.PickleError, match="a key is not a name"):
        pickles.load(blob)


def test_a_data_set_that_needs_all_its_opcodes_is_read():
    """Labels of two kinds and a name with a memo for each image: 5 opcodes; BYTES_PER_OPCODE allows 8."""
    count = 20_000
    batch = {"data": np.zeros((count, 3072), np.uint8), "fine_labels": [3] * count, "coarse_labels": [1] * count,
             "filenames": [f"image_{k}.png" for k in range(count)]}
    read = pickles.load(pickle.dumps(batch, 2))
    assert read["filenames"][-1] == "image_19999.png" and len(read["data"].data) == count * 3072


def archive(path, **changes):
    """A .tar.gz of CIFAR-10 in which some files are replaced."""
    files = {**files_of("cifar10", cifar.FORMS["cifar10"][0]), **changes}
    path.write_bytes(gzip.compress(tar_of(files), 9))
    return path


@pytest.mark.parametrize("file, blob", [
    ("data_batch_1", b"]" * (40 << 20) + b"."), ("data_batch_1", b"N" * (40 << 20) + b"."),
    ("data_batch_1", b"(" * (40 << 20) + b"."), ("batches.meta", b"}" + b"N" * (40 << 20) + b"."),
    ("batches.meta", pickle.dumps({"label_names": ["x" * 120_000] * 10}, 2)),
], ids=["lists", "none", "marks", "names", "long"])
def test_a_small_archive_does_not_become_large(tmp_path, file, blob):
    path = archive(tmp_path / "a.tar.gz", **{file: blob})
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=file):
            load("cifar10", path)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(blob) + (16 << 20)
    finally:
        tracemalloc.stop()


def test_pixels_are_not_copied_while_they_are_read():
    pixels, labels = images_of("x", 100)
    blob = python2_batch(pixels, labels.tolist(), "labels")
    data = pickles.load(memoryview(blob))["data"].data
    assert isinstance(data, memoryview) and data.obj is blob


def test_no_part_of_the_project_unpickles():
    root = __import__("pathlib").Path(cifar.__file__).parent.parent
    users = [path for folder in ("alpha", "models", "train") for path in (root / folder).rglob("*.py")
             if re.search(r"^\s*(import|from) pickle\b", path.read_text(encoding="utf-8"), re.MULTILINE)]
    assert users == []
