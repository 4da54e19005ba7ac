"""The reader of CIFAR archives: what it accepts, and that damage and hostile files end in DataError alone."""

import gzip
import hashlib
import pickle
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpha.data import load
from alpha.data.public import cifar, pickles
from alpha.errors import DataError
from tests.cifar_files import (
    FILES,
    KIND_IDS,
    KINDS,
    check_read,
    files_of,
    images_of,
    python2_batch,
    tar_of,
    write_archive,
    write_folder,
)

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def refusal(name, path):
    with pytest.raises(DataError) as caught:
        load(name, path)
    text = str(caught.value)
    assert "\nhelp: " in text
    return text


@pytest.mark.parametrize("name, form", KINDS, ids=KIND_IDS)
def test_archive_and_folder_are_read_alike(tmp_path, capsys, name, form):
    files = files_of(name, form)
    archive = write_archive(tmp_path / "mine.tgz", files)
    check_read(load(name, archive), name, form)
    note = capsys.readouterr().err
    assert str(archive) in note and f"{3 * len(form.train)} training and 3 test images" in note
    check_read(load(name, str(write_folder(tmp_path / "any", files))), name, form)
    assert "not the published" in capsys.readouterr().err


@pytest.mark.parametrize("name, form", KINDS, ids=KIND_IDS)
def test_a_folder_that_holds_either_will_do(tmp_path, monkeypatch, name, form):
    write_folder(tmp_path / form.folder, files_of(name, form))
    check_read(load(name, tmp_path), name, form)
    (tmp_path / "data").mkdir()
    write_archive(tmp_path / "data" / form.archive, files_of(name, form))
    monkeypatch.chdir(tmp_path)
    check_read(load(name), name, form)


@pytest.mark.parametrize("name, form", KINDS, ids=KIND_IDS)
def test_published_data_is_recognised(tmp_path, monkeypatch, capsys, name, form):
    files = files_of(name, form)
    archive, folder = write_archive(tmp_path / form.archive, files), write_folder(tmp_path / form.folder, files)
    digests = tuple((hashlib.md5 if len(known) == 32 else hashlib.sha256)(files[file]).hexdigest()
                    for file, known in zip(form.files, form.digests))
    known = replace(form, sha256=hashlib.sha256(archive.read_bytes()).hexdigest(), digests=digests)
    monkeypatch.setitem(cifar.FORMS, name, (known,))
    check_read(load(name, archive), name, form)
    check_read(load(name, folder), name, form)
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(cifar.FORMS, name, (replace(form, nbytes=archive.stat().st_size),))
    assert f"SHA-256 is {known.sha256}, {form.archive} has {form.sha256}" in refusal(name, archive)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("key", [str, str.encode])
def test_batches_that_numpy_pickles_today_are_read(tmp_path, protocol, key):
    """With str or bytes keys; in protocol 2, bytes are a text and a call of _codecs.encode."""
    form = cifar.FORMS["cifar10"][0]
    files = files_of("cifar10", form)
    for file in (*form.train, form.test):
        pixels, labels = images_of(file)
        files[file] = pickle.dumps({key("data"): pixels.reshape(3, -1), key("labels"): labels.tolist()}, protocol)
    check_read(load("cifar10", write_folder(tmp_path / "f", files)), "cifar10", form)


class Payload:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def hostile_pickles(canary):
    """Pickles that would leave the file `canary`, exhaust the memory or overflow the stack if they were run."""
    code = f"open({str(canary)!r}, 'w')"
    payloads = Payload(Path.touch, canary), Payload(eval, code), Payload(exec, code)
    bodies = [pickle.dumps({"data": payload, "labels": [1]}, protocol) for payload in payloads for protocol in range(6)]
    command = f"touch {canary}".encode()
    return [*bodies,
            b"cos\nsystem\n(S'" + command + b"'\ntR.", b"(S'" + command + b"'\nios\nsystem\n.",
            b"cposix\nsystem\n(S'" + command + b"'\ntR.", b"\x80\x04\x8c\x05numpy\x8c\x04load\x93.",
            b"cnumpy.core.multiarray\nfromfile\n.", b"Pid\n.", b"U\x02idQ.", b"\x82\x01.", b"cnumpy\nndarray\n)\x81.",
            b"\x80\x02}r\xff\xff\xff\x7f.", b"p2000000000\n.", b"N" * 10 + b"\x85" * 100_000 + b"}\x93.",
            b"}(" + b")" + b"\x85" * 200_000 + b"K\x01u.", b"\x8e" + b"\xff" * 7 + b"\x7f.", b"[" * 10 + b"." * 3,
            b"]" + b"]a" * 3 + b".", b"](" * 100_000 + b"e" * 100_000 + b".", b""]


def test_pickled_code_is_refused_and_never_run(tmp_path):
    form = cifar.FORMS["cifar10"][0]
    canary = tmp_path / "canary"
    files = files_of("cifar10", form)
    for victim in ("data_batch_3", "batches.meta"):
        for blob in hostile_pickles(canary):
            text = refusal("cifar10", write_folder(tmp_path / "f", {**files, victim: blob}))
            assert victim in text
            assert not canary.exists()


def test_code_cannot_pass_itself_off_as_a_batch(tmp_path):
    """Even the admitted globals stand for plain records: their own methods and attributes cannot be replaced."""
    form = cifar.FORMS["cifar10"][0]
    for target in (b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"):
        blob = b"\x80\x02" + target + b"N}U\x05shapeK\x01s\x86b."
        files = {**files_of("cifar10", form), "data_batch_1": blob}
        assert "data_batch_1" in refusal("cifar10", write_folder(tmp_path / "f", files))
    assert pickles.Array.shape == ()


def batch(**changes):
    pixels, labels = images_of("data_batch_1")
    return pickle.dumps({"data": pixels.reshape(3, -1), "labels": labels.tolist(), **changes}, protocol=4)


@pytest.mark.parametrize("blob, shown", [
    (batch(labels=[1, 2, 10]), "label 10 of image 2 is out of range 0..9"),
    (batch(labels=[-1, 2, 3]), "label -1 of image 0"), (batch(labels=[1, 2, 3.0]), "not all integers"),
    (batch(labels=[1, 2]), "(3, 3072), expected uint8 of shape (2, 3072)"),
    (batch(labels=[1, 2, 1 << 40]), "not all integers"),
    (batch(labels=[1, 2, 1 << 80]), "not all integers"), (batch(labels=[True, 2, 3]), "not all integers"),
    (batch(labels=(1, 2, 3)), "no 'labels' of type list"), (batch(data=b"x"), "no 'data' of type Array"),
    (batch(data=np.zeros((3, 3072), np.int8)), "data is i1 of shape (3, 3072)"),
    (batch(data=np.zeros((3, 3071), np.uint8)), "shape (3, 3071), expected"),
    (batch(data=np.zeros((3072, 3), np.uint8).T), "in columns, expected 9216 in rows"),
    (batch(data=np.zeros((0, 3072), np.uint8), labels=[]), "at least one"),
    (pickle.dumps([1], 2), "no 'data'"), (pickle.dumps({"fine_labels": [1]}, 2), "keys: ['fine_labels']"),
    (python2_batch(*images_of("x"), "labels").replace(b"T\x00\x24", b"T\x00\x23"), "not a pickle"),
])
def test_a_batch_that_does_not_fit_is_refused(tmp_path, blob, shown):
    files = {**files_of("cifar10", cifar.FORMS["cifar10"][0]), "data_batch_1": blob}
    text = refusal("cifar10", write_folder(tmp_path / "f", files))
    assert shown in text and "data_batch_1" in text


@pytest.mark.parametrize("file, content, shown", [
    ("data_batch_2.bin", b"\x01" * 3072, "3072 bytes are not a whole number of records of 3073"),
    ("data_batch_2.bin", b"\x01" * 3074, "3074 bytes"), ("data_batch_2.bin", b"", "0 bytes"),
    ("test_batch.bin", b"\x0a" * 3073, "label 10 of image 0 is out of range 0..9"),
    ("batches.meta.txt", b"one\ntwo\n", "2 readable class names in 2 entries, expected 10"),
    ("batches.meta.txt", b"a\x1b[2J\n" + b"x\n" * 9, "9 readable class names in 10 entries"),
    ("batches.meta.txt", b"\xff" * 9, "not a text"),
])
def test_a_binary_file_that_does_not_fit_is_refused(tmp_path, file, content, shown):
    files = {**files_of("cifar10", cifar.FORMS["cifar10"][1]), file: content}
    for path in (write_folder(tmp_path / "f", files), write_archive(tmp_path / "a.tar.gz", files)):
        text = refusal("cifar10", path)
        assert shown in text and file in text


def test_names_in_a_pickle_are_checked(tmp_path):
    form = cifar.FORMS["cifar100"][0]
    for names in (["a"] * 99, ["a"] * 99 + [3], ["a"] * 99 + ["b" * 65], ["a"] * 99 + ["\n"]):
        files = {**files_of("cifar100", form), "meta": pickle.dumps({"fine_label_names": names}, 2)}
        assert "expected 100" in refusal("cifar100", write_folder(tmp_path / "f", files))


def member(kind, name="folder/data_batch_1.bin", **fields):
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize("info", [member(tarfile.SYMTYPE, linkname="/etc/passwd"),
                                  member(tarfile.LNKTYPE, linkname="x"), member(tarfile.FIFOTYPE),
                                  member(tarfile.CHRTYPE)],
                         ids=["symlink", "link", "fifo", "device"])
def test_a_member_that_is_no_plain_file_is_refused(tmp_path, info):
    files = {**files_of("cifar10", cifar.FORMS["cifar10"][1]), "data_batch_1.bin": info}
    assert "data_batch_1.bin is not a plain file" in refusal("cifar10", write_archive(tmp_path / "a.tar.gz", files))


def test_a_member_that_appears_twice_is_refused(tmp_path):
    files = files_of("cifar10", cifar.FORMS["cifar10"][1])
    files["../../data_batch_1.bin"] = files["data_batch_1.bin"]
    assert "holds data_batch_1.bin twice" in refusal("cifar10", write_archive(tmp_path / "a.tar.gz", files))


def test_reading_an_archive_writes_nothing(tmp_path, monkeypatch):
    form = cifar.FORMS["cifar10"][1]
    files = {**files_of("cifar10", form), "../escaped": b"x"}
    monkeypatch.chdir(tmp_path)
    archive = write_archive(tmp_path / "a.tar.gz", files)
    load("cifar10", archive)
    assert list(tmp_path.iterdir()) == [archive]


def test_too_much_data_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "MAX_BYTES", 20_000)
    files = files_of("cifar10", cifar.FORMS["cifar10"][1])
    archive = write_archive(tmp_path / "a.tar.gz", files)
    assert f"{archive.stat().st_size} bytes, at most 20000 are read" in refusal("cifar10", archive)
    monkeypatch.setattr(cifar, "MAX_BYTES", archive.stat().st_size)
    assert f"unpacks to more than {archive.stat().st_size} bytes" in refusal("cifar10", archive)
    monkeypatch.setattr(cifar, "MAX_BYTES", 20_000)
    folder = write_folder(tmp_path / "f", {**files, "test_batch.bin": bytes(20_001)})
    assert "data_batch_3.bin: 9219 bytes, at most 20000 are read in all" in refusal("cifar10", folder)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    form = cifar.FORMS["cifar10"][1]
    files = files_of("cifar10", form)
    assert "does not exist" in refusal("cifar10", tmp_path / "none")
    assert "cifar-10-binary.tar.gz" in refusal("cifar10", tmp_path)
    del files["data_batch_4.bin"]
    assert "data_batch_4.bin" in refusal("cifar10", write_folder(tmp_path / "f", files))
    assert "no data_batch_4.bin" in refusal("cifar10", write_archive(tmp_path / "a.tar.gz", files))
    assert "belong together" in refusal("cifar100", tmp_path / "a.tar.gz")
    (tmp_path / "f" / "data_batch_4.bin").mkdir()
    assert "data_batch_4.bin: this file of the data set is missing" in refusal("cifar10", tmp_path / "f")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="data holds none"):
        load("cifar10", download=False)


@pytest.mark.parametrize("content", [b"", b"not gzip", gzip.compress(b"not tar" * 1000), gzip.compress(b"")],
                         ids=["empty", "other", "no tar", "of nothing"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "a.tar.gz").write_bytes(content)
    assert "a.tar.gz: is not a whole" in refusal("cifar10", tmp_path / "a.tar.gz")


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch):
    archive = write_archive(tmp_path / "a.tar.gz", files_of("cifar10", cifar.FORMS["cifar10"][1]))

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")
    folder = write_folder(tmp_path / "f", files_of("cifar10", cifar.FORMS["cifar10"][1]))
    for method, path in (("open", archive), ("read_bytes", folder), ("iterdir", folder), ("is_file", folder)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, denied)
            assert "cannot be read: Permission denied" in refusal("cifar10", path)


def damage(content, data):
    """One to three bytes of `content` changed, or its end cut off."""
    if data.draw(st.booleans()):
        return content[: data.draw(st.integers(0, len(content) - 1))]
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    return bytes(content)


fuzz = settings(max_examples=150, deadline=None, derandomize=True,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
ARCHIVES = {archive: gzip.compress(tar_of(files), 1) for archive, files in FILES.items()}


def try_to_load(name, path):
    """The data set, which is whole, or None where DataError was raised; whatever else is raised fails the test."""
    try:
        data = load(name, path)
    except DataError as error:
        assert "\nhelp: " in str(error)
        return None
    return data


@pytest.mark.parametrize("name, form", KINDS, ids=KIND_IDS)
def test_a_damaged_archive_is_refused_or_harmless(tmp_path_factory, name, form):
    path = tmp_path_factory.mktemp("fuzz") / "a.tar.gz"

    @fuzz
    @given(st.data())
    def check(data):
        content = damage(ARCHIVES[form.archive], data)
        path.write_bytes(content)
        result = try_to_load(name, path)
        if result is not None:  # only gzip's own header, which carries no data, may differ
            assert gzip.decompress(content) == gzip.decompress(ARCHIVES[form.archive])
            check_read(result, name, form)
    check()


@pytest.mark.parametrize("name, form", KINDS, ids=KIND_IDS)
def test_damage_that_the_checksum_cannot_see_ends_in_data_error(name, form):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tar.gz"

        @fuzz
        @given(st.data())
        def check(data):
            path.write_bytes(gzip.compress(damage(gzip.decompress(ARCHIVES[form.archive]), data), 0))
            try_to_load(name, path)
        check()


def test_damaged_pickles_end_in_data_error():
    """The structure of a batch without most of its pixels, so that nearly every change hits an opcode."""
    path = Path("batch")
    form = cifar.FORMS["cifar10"][0]
    whole = python2_batch(np.zeros((1, 8), np.uint8), [1], "labels")

    @settings(fuzz, max_examples=1000)
    @given(st.data())
    def check(data):
        with pytest.raises(DataError):
            cifar._read_batch(form, damage(whole, data), path)
    check()


def test_random_bytes_are_no_pickle():
    @settings(fuzz, max_examples=500)
    @given(st.binary(max_size=64))
    def check(blob):
        try:
            cifar._unpickle(blob, Path("batch"))
        except DataError as error:
            assert str(error).startswith("batch: ")
    check()
