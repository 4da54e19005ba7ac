"""What errors advise is true: names that they give exist, and calls that they propose work."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
import models
from alpha import checkpoint, errors, nn, ops, optim
from alpha.core.config import VARIABLES
from alpha.core.op import op
from alpha.interop import twins

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("TENSOR", "TOP", "NN", "FUNCTIONAL", "CUDA", "OPTIM", "SCHEDULE", "DATA", "INIT", "CHECKPOINT", "ONNX",
          "TRAINING", "TESTING", "LOADER", "OPTIMIZER", "SCALER", "MODULE", "UTILS",
          "FUNC", "LINALG")


def help_of(call: Callable[[], Any]) -> str:
    """Returns what a call that is refused advises."""
    with pytest.raises(errors.AlphaError) as caught:
        call()
    return str(caught.value).partition("\nhelp: ")[2]


def resolved(text: str) -> Any:
    """Returns what a dotted name that begins with alpha, np, models or math is."""
    found: Any = import_module({"np": "numpy"}.get(text.partition(".")[0], text.partition(".")[0]))
    for part in text.split(".")[1:]:
        found = getattr(found, part)
    return found


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_every_name_in_the_answers_exists(table: str) -> None:
    for name, text in vars(twins)[table].items():
        for dotted in re.findall(r"\b(?:alpha|np|models|math)(?:\.\w+)+", text):
            if not dotted.endswith((".py", ".x")):
                resolved(dotted.removesuffix("."))
        for variable in re.findall(r"\bALPHA_(\w+)", text):
            assert variable.lower() in {v.name for v in VARIABLES}, (name, text)
        for member in re.findall(r"\bschedule\.(\w+)\(", text):
            assert hasattr(optim.schedule, member), (name, text)
        for method in re.findall(r"\bx\.(\w+)\(", text):
            assert hasattr(alpha.Tensor, method), (name, text)
        for layer in re.findall(r"\bnn\.([A-Z]\w+)", text):
            assert hasattr(nn, layer), (name, text)


@pytest.mark.parametrize("place", [place for place, _ in twins.PLACES if place != "alpha"])
def test_a_name_of_another_room_is_told_with_the_room(place: str) -> None:
    for name in twins._public(place):
        if hasattr(alpha, name) or name in twins.TENSOR or name in twins.TOP or hasattr(alpha.Tensor, name):
            continue
        advice = help_of(lambda name=name: getattr(alpha, name))
        assert advice.startswith("it is "), (name, advice)
        assert callable(resolved(advice.removeprefix("it is "))) or "." in advice, (name, advice)


@pytest.mark.parametrize(("room", "name", "said"), [
    ("alpha", "memory_summary", "alpha.cuda.memory_summary"),
    ("alpha", "Adam", "alpha.optim.Adam"), ("alpha", "DataLoader", "alpha.data.DataLoader"),
    ("alpha", "lr_scheduler", "alpha.optim.schedule"), ("alpha", "resnet18", 'models.create("resnet18")'),
    ("alpha", "load_state_dict", "model.load_state_dict"), ("alpha", "max_memory_allocated", "memory_summary"),
    ("alpha.nn", "Adam", "alpha.optim.Adam"), ("alpha.nn", "relu", "alpha.relu"),
    ("alpha.optim", "Linear", "alpha.nn.Linear"), ("alpha.nn.functional", "upsample", "alpha.nn.Upsample"),
    ("alpha", "grid_sample", "alpha.nn.functional.grid_sample"), ("alpha.data", "fit", "alpha.training.fit")])
def test_names_are_told_where_they_are(room: str, name: str, said: str) -> None:
    advice = help_of(lambda: getattr(import_module(room), name))
    assert said in advice and "add an op" not in advice


def test_the_number_of_threads_is_set_as_is_told() -> None:
    advice = help_of(lambda: alpha.set_num_threads(2))
    assert "alpha.config.num_threads" in advice and "ALPHA_NUM_THREADS" in advice and "OMP" not in advice
    before = alpha.config.num_threads
    try:
        alpha.config.num_threads = 1
        assert (ops.ones((64, 64)) @ ops.ones((64, 64))).sum().item() == 64 ** 3
    finally:
        alpha.config.num_threads = before


def test_getattr_of_an_attribute_that_is_there_returns_it() -> None:
    class Levels(nn.Module):
        def __init__(self) -> None:
            self.level_1 = nn.Linear(2, 2)

        @property
        def broken(self) -> int:
            return {}["nothing"].value     # type: ignore[attr-defined]

        @property
        def inner(self) -> Any:
            return self.level_1.nothing

    net = Levels()
    assert net.__getattr__("level_1") is net.level_1
    assert help_of(lambda: net.level_2) == "did you mean level_1?"
    with pytest.raises(KeyError):
        net.broken  # noqa: B018
    with pytest.raises(AttributeError, match="Linear: there is no nothing"):    # not: there is no inner
        net.inner   # noqa: B018
    optimizer = optim.SGD(net.parameters(), 0.1)
    assert optimizer.__getattr__("lr") == optimizer.lr
    loader = alpha.data.DataLoader(alpha.data.TensorDataset(np.zeros((4, 2), np.float32)), batch_size=2)
    assert loader.__getattr__("batch_size") == 2
    x = ops.ones((2, 3))
    assert x.__getattr__("shape") == (2, 3) and x.__getattr__("nbytes") == x.nbytes


class Wrapper(nn.Module):
    """How PyTorch's users hand attributes on."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)    # type: ignore[misc]
        except AttributeError:
            return getattr(super().__getattr__("module"), name)     # type: ignore[misc]


def test_a_wrapper_hands_attributes_on() -> None:
    assert Wrapper(nn.Linear(3, 4)).in_features == 3


def test_models_answer_names_that_are_not_there() -> None:
    advice = help_of(lambda: models.resnet18)
    made = eval(advice.rpartition(": ")[2], {"models": models})
    assert isinstance(made, nn.Module)
    assert "did you mean 'create'" in help_of(lambda: models.creat)
    for wrong in ("nosuch", 3, None):
        with pytest.raises(errors.ConfigError, match=r"models.description: no model is called .*\nhelp: "):
            models.description(wrong)
    assert "resnet56" in help_of(lambda: models.description("resnet57"))


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_strict_is_not_proposed_to_who_passed_it() -> None:
    net, zeros = nn.Linear(2, 2), ops.zeros((2, 2))
    assert "strict=False" in help_of(lambda: net.load_state_dict({"weight": zeros}))
    assert net.load_state_dict({"weight": zeros}, strict=False) == (["bias"], [])
    values = {"weight": ops.zeros((3, 2)), "bias": ops.zeros((2,))}
    assert "pass strict=False" not in help_of(lambda: net.load_state_dict(values))
    advice = help_of(lambda: net.load_state_dict(values, strict=False))
    assert "strict" not in advice and "drop weight from the values" in advice
    values.pop("weight")
    net.load_state_dict(values, strict=False)


def cube(saved: str, read: str) -> Any:
    body = {"args": "x", "saves": saved, "shape": lambda x: x.shape,
            "vjp_x": lambda g, s: g * 3.0 * getattr(s, read) * getattr(s, read), "__doc__": "x ** 3."}
    name = f"cube_{saved.replace(' ', '_')}_{read}"
    made = op(type(name, (), body))
    made.impl("cpu")(lambda x: x * x * x)
    return made


def test_a_gradient_that_reads_what_is_not_saved_is_told_what_to_save() -> None:
    x = ops.randn((3,), requires_grad=True)
    with pytest.raises(errors.MissingError, match=r"cube_y_x: its gradient reads s\.x, and s has .*x_shape") as caught:
        cube("y", "x")(x).sum().backward()
    assert 'name it in saves = "... x"' in str(caught.value)
    cube("y x", "x")(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * x.detach().numpy() ** 2, rtol=1e-5)
    with pytest.raises(errors.MissingError, match=r"\nhelp: did you mean s\.x_shape\?"):
        cube("x", "x_shap")(x).sum().backward()


def test_reflection_of_an_empty_batch_is_empty() -> None:
    for mode in ("reflect", "replicate", "circular"):
        assert F.pad(ops.zeros((0, 4, 4, 2)), (1, 1, 1, 1), mode=mode).shape == (0, 6, 6, 2)
    assert nn.ReflectionPad2d(1)(ops.zeros((0, 4, 4, 2))).shape == (0, 6, 6, 2)
    assert "a narrower border" in help_of(lambda: F.pad(ops.zeros((1, 0, 4, 2)), (0, 0, 1, 1), mode="reflect"))


def test_a_missing_source_of_a_user_is_no_defect_of_alpha(tmp_path: Path) -> None:
    from alpha import build
    advice = help_of(lambda: build.source_key(tmp_path / "mine.cu", [], []))
    assert "reinstall" not in advice and 'with_name("mine.cu")' in advice
    own = Path(build.__file__).parent / "cuda" / "none.cu"
    assert help_of(lambda: build.source_key(own, [], [])) == "reinstall alpha"


def test_a_folder_that_is_not_there_can_be_made(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    for k, save in enumerate((lambda path: alpha.save(net, path), lambda path: checkpoint.save_torch(path, net),
                              lambda path: checkpoint.save(path, net.state_dict()))):
        place = tmp_path / str(k) / "deep" / "net.safetensors"
        advice = help_of(lambda save=save, place=place: save(place))
        assert advice.startswith("make the folder first: mkdir -p ")
        os.makedirs(advice.removeprefix("make the folder first: mkdir -p "))
        save(place)
        assert place.is_file()
    (tmp_path / "file").write_text("")
    assert "is none" in help_of(lambda: alpha.save(net, tmp_path / "file" / "net.safetensors"))
    assert "is a folder" in help_of(lambda: alpha.onnx.export(net, ops.zeros((1, 2)), tmp_path))
    assert help_of(lambda: alpha.onnx.export(net, ops.zeros((1, 2)), tmp_path / "no" / "x")).startswith("make the")
    assert "shorter name" in help_of(lambda: alpha.save(net, tmp_path / ("x" * 300)))


@pytest.mark.parametrize("name", ["m.pth", "m.pt", "m.npz", "m.npy", "m.onnx", "m.pkl"])
def test_names_of_other_programs_files_are_warned_of(name: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=rf"{name} has a name of .*\nhelp: name it m\.safetensors; "):
        alpha.save(nn.Linear(2, 2), tmp_path / name)
    assert set(alpha.load(tmp_path / name)) == {"weight", "bias"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alpha.save(nn.Linear(2, 2), tmp_path / "m.safetensors")


@pytest.mark.torch
def test_save_torch_writes_what_torch_reads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.save_torch(tmp_path / "m.pth", net)
    assert set(torch.load(tmp_path / "m.pth", weights_only=True)) == {"weight", "bias"}


def test_channels_are_last_in_errors_of_maps() -> None:
    xs = [ops.zeros((1, 8, 8, 4)), ops.zeros((1, 8, 8, 6))]
    call = re.search(r"concat\(xs, axis=3\)", help_of(lambda: alpha.cat(xs, 1)))
    assert call and eval(call[0], {"concat": ops.concat, "xs": xs}).shape == (1, 8, 8, 10)
    lines = [x[:, 0] for x in xs]
    assert "concat(xs, axis=2)" in help_of(lambda: alpha.cat(lines, dim=1))
    assert "axis=" not in help_of(lambda: alpha.cat([ops.zeros((1, 8, 8, 4)), ops.zeros((1, 4, 4, 4))], 3))
    joined = alpha.cat([ops.zeros((1, 8, 8, 4))] * 2, 1)    # higher, and not deeper
    assert "channels are the last axis" in help_of(lambda: nn.Conv2d(8, 4, 3)(joined))


@pytest.mark.parametrize("name", ["zeros", "ones", "rand", "randn"])
def test_shapes_are_taken_as_ints(name: str) -> None:
    make = getattr(alpha, name)
    alpha.manual_seed(3)
    one = make((2, 3))
    alpha.manual_seed(3)
    assert make(2, 3).tolist() == one.tolist() and make(np.int64(2), 3).shape == (2, 3)
    assert make(4).shape == (4,) and make(2, 3, 4, dtype="float64").dtype == "float64"
    assert make(2, 3, "float64").dtype == "float64" and make(2, 0).shape == (2, 0)
    assert make(2, 3, requires_grad=True).requires_grad
    with pytest.raises(errors.ShapeError, match=f"{name}: shape is "):
        make(2, -3)


# ---- PyTorch's weights -----------------------------------------------------------------------------------------------


class Flat(nn.Module):
    """A Linear behind maps of 2x2 that are flattened by hand."""

    def __init__(self, flattened: tuple[int, int, int] | None = None) -> None:
        self.conv = nn.Conv2d(3, 5, 3, padding=1)
        self.head = nn.Linear(5 * 2 * 2, 4, flattened=flattened)

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        return self.head(F.max_pool2d(self.conv(x), 2).flatten(1))


@pytest.mark.torch
def test_a_linear_behind_a_flattened_map_is_warned_of() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3, padding=1), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
                                 torch.nn.Linear(20, 4))
    state = {name.replace("0.", "conv.").replace("3.", "head."): t for name, t in theirs.state_dict().items()}
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 3)).astype(np.float32)
    want = theirs(torch.tensor(x.transpose(0, 3, 1, 2))).detach().numpy()
    wrong = Flat()
    with pytest.warns(UserWarning, match=r"head has 20 inputs behind maps of 5 channels.*\nhelp: .*flattened=\(height"):
        checkpoint.from_torch_state_dict(state, wrong)
    assert not np.allclose(wrong(alpha.tensor(x)).detach().numpy(), want, atol=1e-4)
    right = Flat((2, 2, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.from_torch_state_dict(state, right)
        checkpoint.from_torch_state_dict(state, Flat((1, 1, 20)))
    np.testing.assert_allclose(right(alpha.tensor(x)).detach().numpy(), want, atol=1e-5)


def shuffled(x: alpha.Tensor) -> alpha.Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Shuffle(nn.Module):
    """A channel shuffle as it is written for channels first."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        return shuffled(self.conv(x))


class Last(Shuffle):
    """As it is written here."""

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        n, h, w, c = x.shape
        return self.conv(x.reshape(n, h, w, c))


def test_a_shape_taken_apart_with_channels_second_is_warned_of() -> None:
    state = checkpoint.to_torch_state_dict(Last())
    with pytest.warns(UserWarning, match=r"shuffled takes a shape apart as n, c, h, w, and maps are \(n, h, w, c\)"):
        checkpoint.from_torch_state_dict(state, Shuffle())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.from_torch_state_dict(state, Last())


def test_no_shipped_model_is_warned_of() -> None:
    from alpha.checkpoint import nchw
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shipped = [m for m in map(models.create, models.list()) if type(m).__module__.startswith("models.")]
        for model in shipped:   # other tests register models of their own
            nchw.warn_of_order("test", model)
    assert len(shipped) > 25 and not [str(w.message) for w in told if str(w.message).startswith("test")]
