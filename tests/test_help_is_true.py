"""Each help of an error names what works: names that alpha has elsewhere, settings with an effect, true causes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import alpha
import models
from alpha import build, nn
from alpha.errors import AlphaError, CheckpointError, CompileError, ConfigError, MissingError, ShapeError
from alpha.op import op, registry


class Levels(nn.Module):
    """A module with a module, a buffer and a property that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.level_1 = nn.Linear(2, 2)
        self.register_buffer("seen", alpha.zeros((1,)))

    @property
    def width(self) -> int:
        return self.level_1.no_such_width


def test_getattr_by_hand_returns_an_attribute_that_is_there() -> None:
    model = Levels()
    assert model.__getattr__("level_1") is model.level_1 and model.__getattr__("seen") is model.seen
    optimizer = alpha.optim.SGD(model.parameters(), lr=0.1)
    assert optimizer.__getattr__("param_groups") is optimizer.param_groups
    assert alpha.ones((2,)).__getattr__("shape") == (2,)


def test_a_property_that_fails_tells_its_own_error() -> None:
    with pytest.raises(MissingError, match="Linear: there is no no_such_width"):
        _ = Levels().width


def test_a_missing_attribute_of_a_module_is_set_in_init() -> None:
    with pytest.raises(MissingError, match=r"Levels: there is no head\nhelp: set self.head in __init__"):
        _ = Levels().head
    with pytest.raises(MissingError, match=r"did you mean level_1\?"):
        _ = Levels().level_2


ELSEWHERE = {
    "alpha.SGD": "alpha.optim.SGD", "alpha.nn.SGD": "alpha.optim.SGD", "alpha.DataLoader": "alpha.data.DataLoader",
    "alpha.memory_summary": "alpha.cuda.memory_summary", "alpha.models": "import models", "alpha.Linear":
    "alpha.nn.Linear", "alpha.fit": "alpha.training.fit", "alpha.kaiming_normal_": "alpha.nn.init.kaiming_normal_",
    "alpha.empty_cache": "alpha.cuda.free_cached", "alpha.StepLR": "schedule.step", "alpha.optim.cosine":
    "alpha.optim.schedule.cosine", "alpha.clip_grad_norm_": "alpha.optim.clip_grad_norm_", "alpha.optim.zeros":
    "alpha.zeros", "alpha.data.nosuch": "dir(alpha.data)", "alpha.grid_sample": "interpolate",
    "alpha.ones(2).cross_entropy": "alpha.nn.functional.cross_entropy(x", "alpha.zzz": "an op of your own",
}


@pytest.mark.parametrize("line", ELSEWHERE)
def test_a_name_of_another_module_is_answered_with_it(line: str) -> None:
    with pytest.raises(MissingError) as caught:
        eval(line)
    help_ = str(caught.value).partition("\nhelp: ")[2]
    assert ELSEWHERE[line] in help_
    if help_ == ELSEWHERE[line] and "cuda" not in help_ and "schedule.step" not in help_:
        assert eval(help_) is not None


def test_the_number_of_threads_is_set_by_what_the_help_names() -> None:
    with pytest.raises(MissingError, match=r"alpha\.config\.num_threads = n, or the variable ALPHA_NUM_THREADS"):
        alpha.set_num_threads(2)  # type: ignore[attr-defined]
    before = alpha.config.num_threads
    try:
        alpha.config.num_threads = 2
        assert alpha.config.num_threads == 2
    finally:
        alpha.config.num_threads = before


def test_models_answers_names_of_models_and_others() -> None:
    with pytest.raises(MissingError, match=r'models.create\("lenet5"\)'):
        _ = models.lenet5  # type: ignore[attr-defined]
    with pytest.raises(MissingError, match="did you mean 'resnet18'"):
        _ = models.resnet81  # type: ignore[attr-defined]
    with pytest.raises(MissingError, match=r"models.list\(\)"):
        _ = models.nosuch  # type: ignore[attr-defined]
    for name in ("nosuch", "resnet81"):
        with pytest.raises(ConfigError, match="no model is called"):
            models.description(name)
    with pytest.raises(AlphaError, match="name is 3"):
        models.description(3)  # type: ignore[arg-type]


def test_a_missing_source_of_the_user_is_a_wrong_path(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"no.cu: No such file or directory\nhelp: correct the path"):
        build.source_key(tmp_path / "no.cu", [], [])
    with pytest.raises(CompileError, match="reinstall alpha"):
        build.source_key(Path(build.__file__).parent / "no.cu", [], [])


def test_strict_false_is_not_suggested_where_it_was_passed() -> None:
    model = Levels()
    with pytest.raises(CheckpointError) as caught:
        model.load_state_dict({"seen": alpha.zeros((3,)), "more": alpha.zeros((1,))}, strict=False)
    text = str(caught.value)
    assert "seen (3,), the module has (1,)" in text and "leave these names out" in text
    assert "missing" not in text and "unexpected" not in text     # which strict=False permits
    values: dict[str, Any] = {**model.state_dict(), "more": alpha.zeros((1,))}
    with pytest.raises(CheckpointError, match="or pass strict=False to skip names"):
        model.load_state_dict(values)


def test_a_vjp_that_reads_a_value_without_saving_it_is_told_which_are_saved() -> None:
    @op
    class forgetful:
        """y = x."""

        args, saves = "x", "x"

        def shape(x):  # type: ignore[no-untyped-def]
            return x.shape

        def vjp_x(g, s):  # type: ignore[no-untyped-def]
            return g * s.y

    forgetful.impl("cpu")(lambda x: x.copy())
    try:
        with pytest.raises(MissingError, match=r"(?s)it reads s.y, which the op has not saved; s has x, .*saves = "):
            forgetful(alpha.ones((2,), requires_grad=True)).sum().backward()
    finally:
        del registry["forgetful"]


def test_joining_maps_along_axis_1_says_that_channels_are_last() -> None:
    for a, b, axis in (((2, 4, 4, 3), (2, 4, 4, 5), 1), ((2, 4, 4, 3), (2, 2, 2, 3), -3)):
        with pytest.raises(ShapeError, match=r"channels are last \(NHWC\): join them along axis 3 or -1"):
            alpha.cat([alpha.zeros(a), alpha.zeros(b)], axis)
    assert alpha.cat([alpha.zeros(2, 4, 4, 3), alpha.zeros(2, 4, 4, 5)], -1).shape == (2, 4, 4, 8)
    with pytest.raises(ShapeError) as caught:
        alpha.cat([alpha.zeros(2, 4, 4, 3), alpha.zeros(1, 4, 4, 5)], 2)
    assert "channels" not in str(caught.value)


def test_saving_into_a_folder_that_does_not_exist_names_the_folder(tmp_path: Path) -> None:
    for save in (lambda path: alpha.save({"a": 1}, path), lambda path: alpha.checkpoint.save(path, {}),
                 lambda path: alpha.checkpoint.save_torch(path, nn.Linear(1, 1))):
        with pytest.raises(CheckpointError) as caught:
            save(tmp_path / "no" / "model.safetensors")
        assert f"the folder {tmp_path / 'no'} does not exist\nhelp: make the folder first" in str(caught.value)
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match=r"file is no folder\nhelp: name a folder"):
            save(tmp_path / "file" / "model.safetensors")


@pytest.mark.parametrize("name, writer", [("model.pth", "save_torch"), ("MODEL.PT", "save_torch"),
                                          ("model.onnx", "alpha.onnx.export"), ("model.npz", "np.savez")])
def test_a_name_of_another_library_is_refused_and_its_writer_named(name: str, writer: str, tmp_path: Path) -> None:
    for save in (lambda path: alpha.save({"a": 1}, path), lambda path: alpha.checkpoint.save(path, {})):
        with pytest.raises(CheckpointError, match=rf"named as a file of .*\nhelp: name it \w+.safetensors; .*{writer}"):
            save(tmp_path / name)
    assert not list(tmp_path.iterdir())
