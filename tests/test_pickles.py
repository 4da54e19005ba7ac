"""The reader of pickles: values that it reads as Python does, and those that it refuses before any is made."""

import gzip
import pickle
import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from alpha.data import load
from alpha.data.public import cifar, pickles
from alpha.errors import DataError
from tests.cifar_files import files_of, tar_of

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
VALUES = [None, True, False, 0, 255, 256, 65536, -1, 1 << 40, -(1 << 63), 1.5, "", "kind", "é", b"", b"\x00\xff",
          bytes(range(256)) * 400, [1, [2, 3]], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {"a": 1, "b": [b"c"]},
          {1: 2, b"k": "v"}, "x" * 70_000, ["same"] * 3, list(range(1000))]


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_values_are_read_as_python_reads_them(protocol):
    for value in VALUES:
        read = pickles.load(pickle.dumps(value, protocol))
        assert read == value and type(read) is type(value)


def test_texts_of_python_2_are_bytes():
    assert pickles.load(b"\x80\x02U\x02\x00\xff.") == b"\x00\xff"


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_keep_what_their_state_says(protocol):
    a = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for array, order in ((a, False), (np.asfortranarray(a), True)):
        read = pickles.load(pickle.dumps(array, protocol))
        assert (read.shape, read.dtype, read.fortran, read.data) == ((2, 3), "u1", order, array.tobytes("A"))


@pytest.mark.parametrize("blob, shown", [
    (b"", "it ends too early"), (b"N", "it ends too early"), (b"X\xff\xff\xff\x7fabc.", "damaged .ValueError: "),
    (b"\x8e" + b"\xff" * 8 + b".", "damaged .ValueError: "),
    (b".", "damaged .UnpicklingError: "),
    (b"\x82\x01.", "opcode EXT1 has no place"), (b"\xff", "opcode 0xff has no place"),
    (b"(cos\nsystem\n.", "it names os.system, which is code"), (b"U\x02idQ.", "opcode BINPERSID"),
    (b"Pid\n.", "opcode PERSID"), (b"(S'a'\nios\nsystem\n.", "opcode STRING"), (b"(ios\nsystem\n.", "opcode INST"),
    (b"cnumpy\nload\n.", "numpy.load"), (b"(cos\nsystem\no.", "opcode OBJ"), (b"(dp0\n.", "opcode DICT"),
    (b"cnumpy\nndarray\n)\x81.", "opcode NEWOBJ"), (b"\x8c\x02o\n\x8c\x01\x1b\x93.", r"o\?.\?"),
    (b"cbuiltins\neval\n.", "it names builtins.eval"), (b"I" + b"9" * 5000 + b"\n.", "opcode INT has no place"),
    (b"L" + b"9" * 5000 + b"L\n.", "opcode LONG"), (b"\x8b" + struct.pack("<i", 2000), "opcode LONG4"),
    (b")" + b"\x85" * 99 + b".", "more than 64 dicts"), (b"]" * 99 + b".", "more than 64 dicts"),
    (b"N" * 5000 + b".", "more opcodes than 5001 bytes of images need"), (b"N21.", "opcode DUP"),
    (b"}]Ns.", "damaged .TypeError: unhashable"),
    (b"]NNs.", "damaged .TypeError"), (b"}Na.", "damaged .AttributeError"),
    (b"K\x01\x86.", "damaged .UnpicklingError"), (b"K\x01K\x02\x93.", "damaged .UnpicklingError"),
    (b"N)R.", "damaged .TypeError"), (b"cnumpy\ndtype\n)R.", "it calls dtype as NumPy does not"),
    (b"c_codecs\nencode\n(U\x01aU\x05rot13tR.", "it calls encode as"), (b"]}b.", "damaged .AttributeError"),
    (b"cnumpy\nndarray\n)R.", "it calls ndarray as"), (b"h\x05.", "a dict, a list or a tuple twice"),
    (b"]q\x00h\x00a.", "a dict, a list or a tuple twice"), (b"Nr\xff\xff\xff\x7f.", "numbers value 2147483647 before"),
    (b"\x8c\x01\xff.", "UnicodeDecodeError"),
    (b"cnumpy\nndarray\nN}X\x01\x00\x00\x00aNs\x86b.", "state of a function"),
    (b"cnumpy.core.multiarray\n_reconstruct\n)R(NNNNtb.", "a state that NumPy does not write"),
    (b"cnumpy.core.multiarray\n_reconstruct\n)RNb.", "a state that NumPy does not write"),
])
def test_refused_pickles_say_what_is_wrong_in_them(blob, shown):
    with pytest.raises(pickles.PickleError, match=shown):
        pickles.load(blob)


@pytest.mark.timeout(60)
def test_a_tuple_that_is_doubled_fifty_times_is_refused_at_once():
    """Its hash would be taken over 2^50 ends: a minute of it could not even be interrupted."""
    for between in (b"", b"N0", b"Nb", b"(1"):   # other opcodes before the tuple is numbered
        blob = b"}K\x01" + b"".join(b"%bq%ch%ch%c\x86" % (between, k, k, k) for k in range(50)) + b"K\x02s."
        with pytest.raises(pickles.PickleError, match=r"twice|opcode POP"):
            pickles.load(blob)


def test_a_text_that_is_used_again_and_again_does_not_grow():
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"q\x00"
    call = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    with pytest.raises(pickles.PickleError, match="texts that are used again have more than"):
        pickles.load(b"](" + text + call * 50 + b"e.")


def test_a_data_set_that_needs_all_its_opcodes_is_read():
    """Labels of two kinds and a name with a memo for each image: 5 opcodes; BYTES_PER_OPCODE allows 8."""
    count = 20_000
    batch = {"data": np.zeros((count, 3072), np.uint8), "fine_labels": [3] * count, "coarse_labels": [1] * count,
             "filenames": [f"image_{k}.png" for k in range(count)]}
    read = pickles.load(pickle.dumps(batch, 4))
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


def test_one_file_of_the_project_unpickles():
    root = Path(cifar.__file__).parents[3]
    users = [path.name for folder in ("alpha", "models", "train") for path in (root / folder).rglob("*.py")
             if re.search(r"^\s*(import|from) pickle\b", path.read_text(encoding="utf-8"), re.MULTILINE)]
    assert users == ["pickles.py"]
