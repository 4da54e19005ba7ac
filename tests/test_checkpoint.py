"""alpha.checkpoint: round trips, damage, odd names, full and unwritable disks, killed and rival writers."""

import errno
import multiprocessing
import os
import shutil
import stat
import time

import numpy as np
import pytest
import safetensors.numpy

import alpha
from alpha import checkpoint, ops
from alpha.checkpoint import own
from alpha.errors import CheckpointError

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
DAY = 24 * 3600
METADATA = {"model": "lenet5", "step": 7, "loss": 0.1, "nested": {"a": [1, None, True]}, "sha256": "0" * 64}


def some_tensors():
    rng = np.random.default_rng(0)
    return {"weight": rng.standard_normal((2, 3)).astype(np.float32), "scalar": np.float64(3.0),
            "empty": np.zeros((0, 2), np.float32), "half": np.array([1.5], np.float16), "ids": np.arange(3),
            "small": np.array([1, 255], np.uint8), "mask": np.array([True, False]),
            'odd "name"': np.arange(2, dtype=np.int32)}


def saved(path, scale=1.0):
    checkpoint.save(path, {"weight": np.full((3,), scale, np.float32)}, {"scale": scale})
    return path


def test_round_trip_is_exact(tmp_path):
    path, tensors = tmp_path / "a.safetensors", some_tensors()
    checkpoint.save(path, {**tensors, "tensor": ops.ones((2,)), "strided": np.arange(6.0).reshape(2, 3).T}, METADATA)
    got, metadata = checkpoint.load(path)
    assert metadata == METADATA
    for name, a in {**tensors, "tensor": np.ones(2, np.float32), "strided": np.arange(6.0).reshape(2, 3).T}.items():
        assert isinstance(got[name], alpha.Tensor) and got[name].dtype == a.dtype.name and got[name].shape == a.shape
        assert np.array_equal(got[name].numpy(), a), name
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_the_same_contents_give_the_same_bytes(tmp_path):
    contents = []
    for _ in range(3):
        checkpoint.save(tmp_path / "a", some_tensors(), METADATA)
        contents.append((tmp_path / "a").read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_any_safetensors_reader_can_read_it(tmp_path):
    checkpoint.save(tmp_path / "a", some_tensors(), METADATA)
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "a")["ids"], np.arange(3))


def test_any_flipped_byte_is_found(tmp_path):
    path = saved(tmp_path / "a")
    good = path.read_bytes()
    for k in range(len(good)):
        for flip in (0x01, 0x20, 0xFF):
            path.write_bytes(good[:k] + bytes([good[k] ^ flip]) + good[k + 1:])
            with pytest.raises(CheckpointError, match=r"checkpoint.load: .*a is damaged"):
                checkpoint.load(path)
    path.write_bytes(good)
    checkpoint.load(path)


def test_any_cut_or_addition_is_found(tmp_path):
    path = saved(tmp_path / "a")
    good = path.read_bytes()
    for data in [good[:k] for k in range(len(good))] + [good + b"\0", good + good, b"\0" + good, good[8:]]:
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"is damaged.*\nhelp: use the previous checkpoint"):
            checkpoint.load(path)


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none cannot be read: No such file or directory\nhelp: check the path"):
        checkpoint.load(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        checkpoint.load(tmp_path)


def test_a_later_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(own, "SCHEMA", 2)
    path = saved(tmp_path / "a")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has schema 2, this version of alpha reads up to 1\nhelp: update alpha"):
        checkpoint.load(path)


def test_metadata_must_be_json(tmp_path):
    with pytest.raises(CheckpointError, match=r"the metadata of .*a cannot be written as JSON: .*\nhelp: pass numbers"):
        checkpoint.save(tmp_path / "a", {}, {"x": object()})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", ["int16", "complex64", "object"])
def test_what_could_not_be_loaded_is_not_saved(tmp_path, dtype):
    with pytest.raises(CheckpointError, match=f"checkpoint.save: w has dtype {dtype}, .*\nhelp: convert it to one of"):
        checkpoint.save(tmp_path / "a", {"w": np.ones(2, dtype)})
    assert os.listdir(tmp_path) == []


# ---- writing ---------------------------------------------------------------------------------------------------------

def test_the_previous_checkpoint_is_kept(tmp_path):
    path = tmp_path / "a.safetensors"
    for scale in (1.0, 2.0, 3.0):
        saved(path, scale)
    assert checkpoint.load(path)[1]["scale"] == 3.0
    assert checkpoint.load(checkpoint.previous(path))[1]["scale"] == 2.0
    assert sorted(os.listdir(tmp_path)) == ["a.safetensors", "a.safetensors.prev"]


def test_the_previous_checkpoint_is_kept_where_links_are_unknown(tmp_path, monkeypatch):
    def link(*args, **kwargs):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    path = saved(tmp_path / "a", 1.0)
    monkeypatch.setattr(os, "link", link)
    saved(path, 2.0)
    assert [checkpoint.load(p)[1]["scale"] for p in (path, checkpoint.previous(path))] == [2.0, 1.0]


@pytest.mark.parametrize("call", ["os.fsync", "os.replace", "builtins.open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, call, code):
    path = saved(tmp_path / "a", 1.0)

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(call, fail)
    with pytest.raises(CheckpointError, match=rf"a cannot be written: {os.strerror(code)} \(size: \d+ bytes\)\nhelp"):
        saved(path, 2.0)
    monkeypatch.undo()
    assert checkpoint.load(path)[1]["scale"] == 1.0
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_really_full_device(tmp_path, monkeypatch):
    path, real = saved(tmp_path / "a", 1.0), open
    monkeypatch.setattr("builtins.open", lambda file, mode="r": real("/dev/full" if mode == "wb" else file, mode))
    with pytest.raises(CheckpointError, match="No space left on device"):
        saved(path, 2.0)
    monkeypatch.undo()
    assert checkpoint.load(path)[1]["scale"] == 1.0


def test_a_directory_that_is_not_there_or_not_writable(tmp_path):
    with pytest.raises(CheckpointError, match="none/a cannot be written: No such file or directory"):
        saved(tmp_path / "none" / "a")
    with pytest.raises(CheckpointError, match="a/b cannot be written: Not a directory"):
        saved(saved(tmp_path / "a") / "b")
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IREAD | stat.S_IEXEC)
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(CheckpointError, match="a cannot be written: Permission denied"):
        saved(locked / "a")


def test_a_writer_killed_at_any_call_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    class Killed(BaseException):
        """Stands for SIGKILL: no except clause of the writer sees it as an error."""

    names = ("fsync", "link", "replace")
    originals = {name: getattr(os, name) for name in names}
    for deadline in range(6):
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        (tmp_path / "d").mkdir()
        path = saved(tmp_path / "d" / "a", 1.0)
        left = [deadline]

        def dying(name, left=left):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return originals[name](*args, **kwargs)
            return call

        for name in names:
            monkeypatch.setattr(os, name, dying(name))
        try:
            saved(path, 2.0)
            assert deadline == 5
        except Killed:
            assert deadline < 5
        monkeypatch.undo()
        assert checkpoint.load(path)[1]["scale"] == (1.0 if deadline < 4 else 2.0)
        for leftover in path.parent.glob(".*"):
            os.utime(leftover, (time.time() - 2 * DAY,) * 2)
        saved(path, 3.0)
        assert checkpoint.load(path)[1]["scale"] == 3.0
        assert sorted(os.listdir(path.parent)) == ["a", "a.prev"]


def test_leftovers_of_a_day_ago_go_and_no_others(tmp_path):
    old = [".a.tmp", ".a.link", ".a.12-0123abcd.tmp", ".a.12-0123abcd.link"]
    kept = [".a.13-0123abcd.tmp", ".b.tmp", ".a.txt.tmp", ".a.12-0123abcd.tmp.bak"]
    for name in old + kept:
        (tmp_path / name).write_bytes(b"x")
    for name in old + kept[1:]:
        os.utime(tmp_path / name, (time.time() - 2 * DAY,) * 2)
    saved(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "a"])


def save_often(path, scale, start):
    start.wait()
    for _ in range(40):
        checkpoint.save(path, {"weight": np.full((20_000,), scale, np.float32)}, {"scale": scale})


def test_two_processes_that_save_to_one_path_leave_a_whole_checkpoint(tmp_path):
    context = multiprocessing.get_context("forkserver")
    start, path = context.Barrier(2), tmp_path / "a"
    writers = [context.Process(target=save_often, args=(path, scale, start)) for scale in (1.0, 2.0)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    for place in (path, checkpoint.previous(path)):
        tensors, metadata = checkpoint.load(place)
        assert (tensors["weight"].numpy() == metadata["scale"]).all()
    assert sorted(os.listdir(tmp_path)) == ["a", "a.prev"]


@pytest.mark.parametrize("name", ["a", "a.prev"])
def test_a_directory_is_neither_renamed_nor_replaced(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").write_text("keep me")
    with pytest.raises(CheckpointError, match=rf"checkpoint.save: .*{name} is a directory, it would be renamed or "
                       r"replaced\nhelp: (name a file, such as .*a/model.safetensors|move it away)"):
        saved(tmp_path / "a")
    assert os.listdir(tmp_path) == [name] and (tmp_path / name / "mine").read_text() == "keep me"


@pytest.mark.parametrize("path", ["", ".", "..", "/"])
def test_a_path_without_a_name_is_a_directory(path):
    with pytest.raises(CheckpointError, match="is a directory"):
        saved(path)


def test_devices_and_pipes_are_neither_replaced_nor_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe is no regular file"):
        saved(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(CheckpointError, match=r"cannot be read: it is a device, a pipe or a socket\nhelp: name a"):
            checkpoint.load(path)


@pytest.mark.parametrize("path", [None, 5, b"a", ["a"], "a\0b"])
def test_what_is_no_path_is_refused(path):
    for call in (checkpoint.load, saved):
        with pytest.raises(CheckpointError, match=r"checkpoint.(load|save): .* is no path\nhelp: pass a string"):
            call(path)


@pytest.mark.parametrize("name", ["__metadata__", 5, None, "half \ud800"])
def test_names_that_could_not_be_loaded_are_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match=r"a tensor cannot be called .*\nhelp: give it a name, a string"):
        checkpoint.save(tmp_path / "a", {name: np.zeros(1, np.float32)})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["", "nul \0", "new\nline", "\x1b[1m", "\U0001f600"])
def test_odd_names_come_back(tmp_path, name):
    checkpoint.save(tmp_path / "a", {name: np.arange(2)})
    assert list(checkpoint.load(tmp_path / "a")[0]) == [name]


@pytest.mark.parametrize("tensors, text", [
    (None, "the tensors are None, not a dict"), ([1], "the tensors are a list of length 1, not a dict"),
    ({"w": [1.0]}, "w is a list of length 1, not a Tensor or a NumPy array"),
    ({"w": np.zeros((1,) * 33, np.float32)}, "w has 33 axes, at most 32 can be loaded")])
def test_what_are_no_tensors_is_refused(tmp_path, tensors, text):
    with pytest.raises(CheckpointError, match=rf"checkpoint.save: {text}\nhelp: "):
        checkpoint.save(tmp_path / "a", tensors)


def test_big_endian_arrays_keep_their_values(tmp_path):
    checkpoint.save(tmp_path / "a", {"w": np.arange(3, dtype=">f4"), "k": np.arange(3, dtype=">i8")})
    got = checkpoint.load(tmp_path / "a")[0]
    assert [got[name].tolist() for name in "wk"] == [[0, 1, 2]] * 2


def deep(levels):
    made = []
    for _ in range(levels):
        made = [made]
    return made


@pytest.mark.parametrize("metadata", [{"x": deep(100_000)}, {1: "a", "1": "b"}, {"x": 10 ** 5000}, 5],
                         ids=["deep", "keys", "digits", "number"])
def test_metadata_that_could_not_be_loaded_is_refused(tmp_path, metadata):
    with pytest.raises(CheckpointError, match=r"the metadata of .*a cannot be written as JSON: .*\nhelp: pass numbers"):
        checkpoint.save(tmp_path / "a", {}, metadata)
    assert os.listdir(tmp_path) == []


def test_a_header_too_long_to_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(own, "LONGEST_HEADER", 500)
    with pytest.raises(CheckpointError, match=r"have \d+ bytes, at most 500 can be loaded\nhelp: store large values"):
        checkpoint.save(tmp_path / "a", {}, {"x": "y" * 500})
    assert os.listdir(tmp_path) == []
