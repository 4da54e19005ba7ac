"""alpha.checkpoint: round trips, damage, full and unwritable disks, killed writers; PyTorch's files in and out."""

import errno
import os
import shutil
import stat

import numpy as np
import pytest
import safetensors.numpy

import alpha
import models
from alpha import checkpoint, nn, ops
from alpha.errors import CheckpointError
from alpha.gradcheck import assert_equal_at

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
    monkeypatch.setattr(checkpoint, "SCHEMA", 2)
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
        saved(path, 3.0)
        assert checkpoint.load(path)[1]["scale"] == 3.0
        assert sorted(os.listdir(path.parent)) == ["a", "a.prev"]


# ---- PyTorch ---------------------------------------------------------------------------------------------------------

class Net(nn.Module):
    """One layer of each kind whose weights change layout."""

    def __init__(self):
        self.conv, self.up = nn.Conv2d(3, 4, (3, 5)), nn.ConvTranspose2d(4, 2, (2, 3))
        self.bn, self.norm = nn.BatchNorm2d(2), nn.LayerNorm((5, 7, 2))
        self.fc, self.out = nn.Linear(5 * 7 * 2, 6, flattened=(5, 7, 2)), nn.Linear(6, 3)


def torch_shapes():
    return {"conv.weight": (4, 3, 3, 5), "up.weight": (4, 2, 2, 3), "norm.weight": (2, 5, 7), "fc.weight": (6, 70),
            "bn.running_mean": (2,), "bn.num_batches_tracked": (), "out.weight": (3, 6)}


def test_export_has_the_layouts_of_torch_and_import_inverts_it():
    a, b = Net(), Net()
    state = checkpoint.to_torch_state_dict(a)
    for name, shape in torch_shapes().items():
        assert state[name].shape == shape, name
    assert checkpoint.from_torch_state_dict(state, b) == ([], [])
    for name, t in a.state_dict().items():
        assert np.array_equal(b.state_dict()[name].numpy(), t.numpy()), name


def test_columns_behind_a_flattened_map_are_reordered():
    net = Net()
    column = np.arange(70.0).reshape(2, 5, 7)                   # PyTorch flattens (C, H, W)
    state = checkpoint.to_torch_state_dict(net)
    state["fc.weight"] = np.broadcast_to(column.reshape(-1), (6, 70))
    checkpoint.from_torch_state_dict(state, net)
    assert_equal_at(net.fc.weight.numpy()[0], np.moveaxis(column, 0, -1).reshape(-1))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_prefixes_are_dropped(prefix):
    net = Net()
    state = {prefix + name: a for name, a in checkpoint.to_torch_state_dict(net).items()}
    assert checkpoint.from_torch_state_dict(state, Net()) == ([], [])


def test_a_foreign_state_dict_is_refused():
    state = checkpoint.to_torch_state_dict(Net())
    state["fc.weight"] = np.zeros((6, 71), np.float32)
    state["extra"] = state.pop("out.bias")
    with pytest.raises(CheckpointError, match=r"1 missing: out.bias; 1 unexpected: extra.*of another shape: fc.weight"):
        checkpoint.from_torch_state_dict(state, Net())


@pytest.mark.torch
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_files_go_to_torch_and_come_back(tmp_path, suffix):
    torch = pytest.importorskip("torch")
    import safetensors.torch

    from benchmarks.torch_models import LeNet5

    ours, theirs = models.create("lenet5"), LeNet5()
    path = tmp_path / f"a{suffix}"
    checkpoint.save_torch(path, ours)
    load = safetensors.torch.load_file if suffix == ".safetensors" else lambda p: torch.load(p, weights_only=True)
    theirs.load_state_dict(load(path))
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(2.0)
    if suffix == ".safetensors":
        safetensors.torch.save_file(theirs.state_dict(), path)
    else:
        torch.save({"net": {f"module.{k}": v for k, v in theirs.state_dict().items()}, "acc": 0.5}, path)
    back = models.create("lenet5")
    checkpoint.load_torch(path, back)
    for (name, p), q in zip(ours.named_parameters(), back.parameters()):
        assert np.array_equal(p.numpy() * 2, q.numpy()), name


@pytest.mark.torch
def test_bfloat16_weights_come_in():
    torch = pytest.importorskip("torch")
    layer = nn.Linear(2, 1)
    checkpoint.from_torch_state_dict(torch.nn.Linear(2, 1).bfloat16().state_dict(), layer)
    assert layer.weight.dtype == "float32"


@pytest.mark.torch
def test_files_that_torch_cannot_give_us(tmp_path):
    torch = pytest.importorskip("torch")
    path, net = tmp_path / "a.pth", nn.Linear(1, 1)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"load_torch: .*a.pth cannot be read: .*\nhelp: save it with torch.save"):
        checkpoint.load_torch(path, net)
    torch.save({"code": os.system}, path)
    with pytest.raises(CheckpointError, match=r"a.pth cannot be read: Weights only load failed"):
        checkpoint.load_torch(path, net)
    torch.save({"epoch": 3}, path)
    with pytest.raises(CheckpointError, match=r"a.pth holds no state_dict\nhelp: save it with"):
        checkpoint.load_torch(path, net)
    bad = tmp_path / "a.safetensors"
    bad.write_bytes(b"12345678901234567890")
    with pytest.raises(CheckpointError, match=r"a.safetensors is no safetensors file: .*\nhelp: write it with"):
        checkpoint.load_torch(bad, net)
    with pytest.raises(CheckpointError, match=r"none.pth cannot be read"):
        checkpoint.load_torch(tmp_path / "none.pth", net)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_our_own_checkpoint_is_no_file_of_torch(tmp_path, suffix):
    path, net = tmp_path / f"a{suffix}", nn.Linear(1, 1)
    checkpoint.save(path, net.state_dict())
    with pytest.raises(CheckpointError, match=r"load_torch: .*a.* is a checkpoint of alpha, not a file of PyTorch\n"
                       r"help: read it with alpha.checkpoint.load\(path\)"):
        checkpoint.load_torch(path, net)
    checkpoint.save_torch(path.with_suffix(".safetensors"), net)
    assert checkpoint.load_torch(path.with_suffix(".safetensors"), net) == ([], [])


def test_a_pth_file_without_torch_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(CheckpointError, match="PyTorch is not installed\nhelp: install torch, or convert"):
        checkpoint.load_torch(tmp_path / "a.pth", nn.Linear(1, 1))
