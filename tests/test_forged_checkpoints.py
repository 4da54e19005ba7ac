"""Checkpoints whose digest is right and whose content is not: each is one message, and nothing is loaded."""

import os

import numpy as np
import pytest

from alpha import checkpoint, nn, ops, optim
from alpha.checkpoint import tensors_file
from alpha.errors import CheckpointError
from tests.forged import forged, header_of, with_digest, with_header

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def saved(path):
    checkpoint.save(path, {"weight": np.ones((3,), np.float32)}, {"scale": 1.0})
    return path


def entry(**changes):
    """Returns an edit of the header that changes fields of the only tensor."""
    def edit(header):
        header["weight"] = {k: v for k, v in {**header["weight"], **changes}.items() if v is not ...}
    return edit


@pytest.mark.parametrize("edit, text", [
    (entry(dtype="F33"), "'weight' has the unknown dtype 'F33'"),
    (entry(dtype=5), "'weight'.dtype is 5, not a text"),
    (entry(dtype=...), "'weight' has no dtype"),
    (entry(extra=1), "'weight' has 'extra', which is unknown"),
    (entry(shape=[4]), r"has 12 bytes, its shape \(4,\) of F32 needs 16"),
    (entry(shape=[3.0]), r"'weight'.shape\[0\] is 3.0, not an integer"),
    (entry(shape=[-3]), r"'weight'.shape\[0\] is -3, not an integer"),
    (entry(shape=[True, 3]), r"'weight'.shape\[0\] is True, not an integer"),
    (entry(shape=[1 << 62, 1 << 62]), r"shape\[0\] is 4611686018427387904, not an integer"),
    (entry(shape=[0, 1 << 52, 1 << 52]), "more elements than any memory"),
    (entry(shape=[1] * 33), "'weight'.shape is a list of length 33, not a list of 0 to 32 items"),
    (entry(shape="3"), "'weight'.shape is '3', not a list"),
    (entry(data_offsets=[0]), "'weight'.data_offsets is a list of length 1"),
    (entry(data_offsets=[4, 16]), "begins at 4, that before it ends at 0"),
    (entry(data_offsets=[0, 8], shape=[2]), "its tensors have 8 bytes, behind the header are 12"),
    (entry(data_offsets=[0, 1 << 50], shape=[1 << 48]), "its tensors have 1125899906842624 bytes, behind the header"),
    (lambda h: h.update(two=dict(h["weight"])), "the data of 'two' begins at 0, that before it ends at 12"),
    (lambda h: h.update(weight=[]), "'weight' is a list of length 0, not a dict"),
    (lambda h: h.update({"\ud800": h.pop("weight")}), "is not Unicode"),
    (lambda h: h["__metadata__"].update(alpha="{"), "it has no digest"),
    (lambda h: h["__metadata__"].update(more=5), "__metadata__ is not a dict of texts"),
    (lambda h: h["__metadata__"].update(note="\ud800"), "__metadata__: .* is not Unicode"),
    (lambda h: h["__metadata__"].update(note="x"), None),
    (lambda h: h["__metadata__"].update(alpha=h["__metadata__"]["alpha"].replace('"schema":1', '"schema":"1"')),
     "its schema is '1', not an integer"),
    (lambda h: h["__metadata__"].update(alpha=h["__metadata__"]["alpha"].replace('"schema":1', '"schema":0')),
     "its schema is 0, not an integer"),
    (lambda h: h["__metadata__"].update(alpha=h["__metadata__"]["alpha"].replace('{"scale":1.0}', '[]')),
     "its metadata is a list of length 0, not a dict"),
    (lambda h: h["__metadata__"].update(alpha=h["__metadata__"]["alpha"].replace('1.0', '[' * 100_000)),
     "__metadata__.alpha is nested too deeply"),
    (lambda h: h["__metadata__"].update(alpha=h["__metadata__"]["alpha"].replace('1.0', '9' * 5000)),
     "__metadata__.alpha is not JSON"),
    (lambda h: h["__metadata__"].update(alpha=h["__metadata__"]["alpha"].replace('1.0', '1,"scale":2')),
     "a name comes twice"),
    (lambda h: h["__metadata__"].update(other=h["__metadata__"].pop("alpha")), "__metadata__.alpha is not JSON"),
])
def test_a_forged_header_is_a_message(tmp_path, edit, text):
    path = forged(saved(tmp_path / "a"), edit)
    if text is None:
        assert checkpoint.load(path)[1] == {"scale": 1.0}
        return
    with pytest.raises(CheckpointError, match=rf"checkpoint.load: .*a is damaged.*{text}.*\nhelp: use the previous"):
        checkpoint.load(path)


@pytest.mark.parametrize("header, text", [
    (b"[]", "its header is a list"), (b"\xff", "its header is not JSON"), (b"", "its header is not JSON"),
    (b"[" * 200_000, "its header is nested too deeply"), (b'{"a":{},"a":{}}', "a name comes twice in its header"),
    (b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}', "its header is not JSON"),
    (b"{}", "its tensors have 0 bytes, behind the header are 3")])
def test_a_header_that_is_none_is_a_message(tmp_path, header, text):
    (tmp_path / "a").write_bytes(with_header(header, b"abc"))
    with pytest.raises(CheckpointError, match=f"is damaged, or no checkpoint of alpha: {text}"):
        checkpoint.load(tmp_path / "a")


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_001, 1000])
def test_a_header_length_that_lies_is_a_message(tmp_path, length):
    data = saved(tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(with_digest(length.to_bytes(8, "little") + data[8:]))
    with pytest.raises(CheckpointError, match=rf"its header has {length} bytes, the file {len(data)}"):
        checkpoint.load(tmp_path / "a")


def test_a_file_larger_than_memory_is_refused_by_its_header(tmp_path):
    path = saved(tmp_path / "a")
    os.truncate(path, 1 << 42)      # a hole: it takes no room on the disk
    with pytest.raises(CheckpointError, match="its tensors have 12 bytes, behind the header are 43980465"):
        checkpoint.load(path)


def test_a_file_without_room_in_memory_is_a_message(tmp_path, monkeypatch):
    def full(size):
        raise MemoryError
    path = saved(tmp_path / "a")
    monkeypatch.setattr(tensors_file, "bytearray", full, raising=False)
    with pytest.raises(CheckpointError, match=r"a has no room in memory\nhelp: use a machine with more"):
        checkpoint.load(path)


def test_a_dtype_that_alpha_lacks_is_named(tmp_path):
    for dtype, shape in (("C64", [1]), ("I16", [4]), ("F8_E4M3", [8])):
        path = tmp_path / "b"
        saved(path).write_bytes(with_header(header_of(entry(shape=shape, dtype=dtype, data_offsets=[0, 8]), path),
                                            b"\0" * 8))
        with pytest.raises(CheckpointError, match=r"weight in .*b has dtype (complex64|int16|F8_E4M3), which alpha"):
            checkpoint.load(path)


def test_truth_values_of_any_byte_are_truth_values(tmp_path):
    text = b'{"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}'
    (tmp_path / "m.safetensors").write_bytes(with_header(text, b"\0\1\7"))
    file = tensors_file.read("test", tmp_path / "m.safetensors")
    assert file.arrays("test", tmp_path)["m"].tobytes() == b"\0\1\1"


# ---- state_dicts of forged contents ----------------------------------------------------------------------------------

def trained():
    """Returns a model, an optimizer, an average and a scaler after two steps."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm2d(2))
    made = (model, optim.Adam(model.named_parameters()), optim.ExponentialMovingAverage(model), optim.LossScaler())
    for _ in range(2):
        model(ops.randn((4, 3))).sum().backward()
        made[1].step()
        made[2].update()
    return made


def contents(thing):
    """Returns all of a state as bytes and numbers, to be compared."""
    state = thing.state_dict()
    tensors = state.get("tensors", state)
    return {name: t.numpy().tobytes() for name, t in tensors.items()}, state.get("scalars")


BAD_VALUES = [None, "x", [1.0], 5, {}, np.array("x"), np.array(["x", "y"]), np.zeros((9, 9)), np.full((2, 3), "x"),
              np.full((2, 3), None), np.full((2, 3), 1e300), np.full((2, 3), 1j), np.zeros((2, 3), "M8[s]")]


@pytest.mark.parametrize("value", BAD_VALUES, ids=[str(k) for k in range(len(BAD_VALUES))])
def test_a_value_that_does_not_fit_loads_nothing(value):
    model, optimizer, ema, _ = trained()
    for thing, key in ((model, "0.weight"), (optimizer, "0.weight/v"), (ema, "0.weight")):
        before, state = contents(thing), thing.state_dict()
        tensors = {name: np.zeros(t.shape, np.float32) for name, t in state.get("tensors", state).items()}
        tensors[key] = value
        with pytest.raises(CheckpointError, match=r"0.weight.*\nhelp: "):
            thing.load_state_dict({**state, "tensors": tensors} if thing is optimizer else tensors)
        assert contents(thing) == before


@pytest.mark.parametrize("values", [None, 5, [("0.weight", 1)], {5: np.zeros(2)}, {None: np.zeros(2)}, "0.weight"])
def test_what_is_no_state_loads_nothing(values):
    for thing in trained():
        before = contents(thing)
        with pytest.raises(CheckpointError, match=r": .*\nhelp: "):
            thing.load_state_dict(values)
        assert contents(thing) == before


@pytest.mark.parametrize("changes, text", [
    ({"step_count": -1}, "scalars.step_count is -1, not an integer in"),
    ({"step_count": 2.0}, "scalars.step_count is 2.0, not an integer"),
    ({"step_count": 1}, "the state counts 2 steps of 0.weight, and 1 in all"),
    ({"step_count": 1 << 60}, "scalars.step_count is 1152921504606846976, not an integer"),
    ({"counts": {"0.weight": 0}}, "scalars.counts.0.weight is 0, not an integer in"),
    ({"counts": {"other": 1}}, "the state counts 1 steps of other, and 2 in all"),
    ({"counts": None}, "scalars.counts is None, not a dict"),
    ({"counts": {"0.weight": 2}}, "tensors of the state do not fit"),
    ({"names": "0.weight"}, "scalars.names is '0.weight', not a list"),
    ({"names": [5]}, r"scalars.names\[0\] is 5, not a text"),
    ({"optimizer": None}, "scalars.optimizer is None, not a text"),
    ({"optimizer": "SGD"}, "the state is that of SGD"),
    ({"more": 1}, "scalars has 'more', which is unknown"),
])
def test_forged_scalars_of_an_optimizer_load_nothing(changes, text):
    optimizer = trained()[1]
    before, state = contents(optimizer), optimizer.state_dict()
    with pytest.raises(CheckpointError, match=rf"Adam: {text}.*\nhelp: "):
        optimizer.load_state_dict({**state, "scalars": {**state["scalars"], **changes}})
    with pytest.raises(CheckpointError, match=r'Adam: the state is not a dict of "tensors" and "scalars"\nhelp: pass'):
        optimizer.load_state_dict(state["scalars"])
    assert contents(optimizer) == before


@pytest.mark.parametrize("scale, counts", [(0.0, [0, 0]), (np.nan, [0, 0]), (np.inf, [0, 0]), (2.0 ** 25, [0, 0]),
                                           (2.0, [-1, 0]), (2.0, [0, 1 << 30])])
def test_a_forged_loss_scale_is_refused(scale, counts):
    scaler = optim.LossScaler()
    before = contents(scaler)
    with pytest.raises(CheckpointError, match=r"LossScaler: the scale is .*, the counts are .*\nhelp: resume with"):
        scaler.load_state_dict({"scale": np.float32(scale), "counts": np.array(counts, np.int32)})
    assert contents(scaler) == before
    scaler.load_state_dict({"scale": np.float32(2.0), "counts": np.array([3, 4], np.int32)})
    assert (scaler.value, scaler.skipped) == (2.0, 4)


def test_what_a_dtype_does_not_hold_is_refused():
    class Counting(nn.Module):
        def __init__(self):
            self.register_buffer("seen", ops.zeros((2,), dtype="int32"))
    module = Counting()
    for bad in (np.array([1.0, 2.0]), np.array([1, 1 << 40])):
        with pytest.raises(CheckpointError, match=r"Counting.load_state_dict: seen has .*\nhelp: convert it to int32"):
            module.load_state_dict({"seen": bad})
    module.load_state_dict({"seen": np.array([1, 255], np.uint8)})
    assert module.seen.tolist() == [1, 255]


def test_numbers_of_other_dtypes_are_cast_as_before():
    layer = nn.Linear(3, 2)
    for dtype in ("float64", "float16", "int32", "bool"):
        layer.load_state_dict({"weight": np.ones((2, 3), dtype), "bias": ops.ones((2,), dtype="float64")})
        assert layer.weight.dtype == "float32" and (layer.weight.numpy() == 1).all()
    layer.load_state_dict({"weight": np.full((2, 3), np.nan), "bias": np.full((2,), np.inf)})
    assert np.isnan(layer.weight.numpy()).all() and np.isinf(layer.bias.numpy()).all()


def test_what_only_looks_like_an_array_is_refused():
    class Locked:
        shape = (2, 3)

        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("it is on another planet")
    with pytest.raises(CheckpointError, match=r"Linear.load_state_dict: weight cannot be read as an array: it is on "
                       r"another planet\nhelp: pass a Tensor or a NumPy array"):
        nn.Linear(3, 2).load_state_dict({"weight": Locked(), "bias": np.zeros(2)})


def test_a_file_that_shrinks_while_it_is_read_is_damaged(tmp_path, monkeypatch):
    path, real = tmp_path / "a", tensors_file.parse_header
    checkpoint.save(path, {"large": np.zeros(200_000, np.float32)})     # more than is read ahead

    def parse_header(text, nbytes):
        os.truncate(path, path.stat().st_size - 5)
        return real(text, nbytes)
    monkeypatch.setattr(tensors_file, "parse_header", parse_header)
    size = path.stat().st_size
    with pytest.raises(CheckpointError, match=f"a is damaged.*: it ends after {size - 5} of {size} bytes"):
        checkpoint.load(path)
