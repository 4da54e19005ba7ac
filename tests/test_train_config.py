"""The settings of the training program: defaults, precedence, and a readable refusal of everything else."""

import dataclasses
import sys

import pytest

import models
from alpha import nn, ops, optim
from alpha.errors import ConfigError
from train.config import OPTIMIZERS, PRECISIONS, SCHEDULES, Config, Interval, parse, parser, read_toml
from train.trainer import make_optimizer, make_schedule

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
FLAGS = ["--model", "--dataset", "--device", "--epochs", "--batch-size", "--lr", "--optimizer", "--schedule",
         "--warmup", "--momentum", "--weight-decay", "--label-smoothing", "--augment", "--ema", "--clip", "--seed",
         "--precision", "--algorithm", "--recompute", "--val-size", "--resume", "--evaluate", "--max-steps", "--runs",
         "--data-dir",
         "--config", "--list-models", "--output"]
needs_tomllib = pytest.mark.skipif(sys.version_info < (3, 11), reason="--config needs tomllib")


def refusal(*argv):
    with pytest.raises(ConfigError) as caught:
        parse(list(argv))
    text = str(caught.value)
    assert "\nhelp: " in text
    return text


def toml(tmp_path, text):
    path = tmp_path / "train.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_flag_has_a_help_text(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0
    assert all(flag in shown for flag in FLAGS)
    assert all(action.help for action in parser()._actions)


def test_list_models(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["--list-models"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == "".join(f"{name}\n" for name in models.list())


def test_no_flags_train_lenet5_on_digits():
    config = parse([])
    assert (config.model, config.dataset, config.output) == ("lenet5", "digits", "runs/lenet5-digits")
    assert config == Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 3


def test_all_flags_arrive_in_their_types():
    line = ("--model resnet18 --dataset cifar10 --device cuda:1 --epochs 3 --batch-size 8 --lr 1 --optimizer adamw "
            "--schedule multistep --milestones 0.25,0.5 --gamma 0.2 --warmup 1.5 --drop-last "
            "--weight-decay 0 --label-smoothing 0.1 --augment crop=2,flip --ema 0.99 --clip 1 --seed 7 "
            "--precision bf16 --algorithm fft --recompute full --val-size 500 --resume a.safetensors --evaluate "
            "--max-steps 9 --runs 1 --data-dir d --output o --import math --import json --loss smooth_l1 "
            "--tta flip --tta-views 3 --exact-over 8 --no-sync-batch-norm --gradient-dtype float16")
    config = parse(line.split())
    other = parse(["--optimizer", "rmsprop", "--momentum", "0", "--schedule", "step", "--step-size", "2", "--profile",
                   "4", "--tensorboard"])
    assert (other.momentum, other.step_size, other.profile, other.tensorboard) == (0.0, 2.0, 4, True)
    assert config == Config(
        model="resnet18", dataset="cifar10", device="cuda:1", epochs=3, batch_size=8, lr=1.0, optimizer="adamw",
        schedule="multistep", milestones=(0.25, 0.5), gamma=0.2, warmup=1.5, drop_last=True,
        weight_decay=0.0, label_smoothing=0.1, augment="crop=2,flip", ema=0.99, clip=1.0, seed=7, precision="bf16",
        algorithm="fft", recompute="full", val_size=500.0, resume="a.safetensors", evaluate=True, max_steps=9, runs=1,
        data_dir="d", output="o", imports=("math", "json"), loss="smooth_l1", tta="flip", tta_views=3, exact_over=8,
        sync_batch_norm=False, gradient_dtype="float16")
    default = Config()
    same = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) == getattr(default, f.name)]
    assert sorted(same) == sorted([
        "model_option", "finetune", "freeze", "image_size", "skip_bad", "accumulate", "balance", "lr_scale",
        "optimizer_option", "sam", "swa", "schedule_option", "loss_option", "metric", "mode", "patience", "momentum",
            "step_size",
        "runs", "profile", "tensorboard"])
    for f in dataclasses.fields(config):
        assert getattr(config, f.name) is None or type(getattr(config, f.name)) is f.metadata["kind"], f.name


def test_defaults_suit_the_other_settings():
    assert parse(["--optimizer", "adamw"]).lr == 1e-3
    assert parse(["--optimizer", "adamw", "--lr", "0.5"]).lr == 0.5
    assert parse(["--dataset", "cifar10"]).augment == "crop,flip"
    assert "flip" not in parse(["--dataset", "digits"]).augment
    assert parse(["--schedule", "exponential"]).gamma == 0.95
    assert parse(["--dataset", "cifar10", "--model", "resnet18"]).output == "runs/resnet18-cifar10"


def test_resume_without_a_path_is_auto():
    assert parse([]).resume is None
    assert parse(["--resume"]).resume == "auto"
    assert parse(["--resume", "--epochs", "2"]).epochs == 2
    assert parse(["--resume", "x", "--evaluate"]).evaluate


@pytest.mark.parametrize("field, names", [("optimizer", OPTIMIZERS), ("schedule", SCHEDULES),
                                          ("precision", PRECISIONS)])
def test_every_name_is_accepted(field, names):
    assert [getattr(parse([f"--{field}", name, "--device", "cuda"]), field) for name in names] == list(names)


def test_every_optimizer_of_alpha_has_its_name():
    kinds = {kind for kind in vars(optim).values() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)}
    kinds -= {optim.Optimizer, optim.Composed, optim.Muon, optim.MuonAdamW}     # the last is that of the name muon
    kinds -= {optim.ScheduleFreeSGD, optim.ScheduleFreeAdamW}
    others = {"muon": "muonadamw", "lookahead_sgd": "lookahead", "lookahead_adamw": "lookahead",
              "schedule_free_sgd": "schedulefreesgd", "schedule_free_adamw": "schedulefreeadamw"}
    assert set(OPTIMIZERS) == {kind.__name__.lower() for kind in kinds} | {*others}
    weight = nn.Parameter(ops.ones((1,)))
    for name in OPTIMIZERS:
        made = make_optimizer(parse(["--optimizer", name]), [("w", weight)], optim.schedule.constant(1.0))
        assert type(made).__name__.lower() == others.get(name, name)


def test_every_schedule_has_a_course_of_its_own():
    courses = [make_schedule(parse(["--schedule", name, "--epochs", "40", "--lr", "1"]), 5) for name in SCHEDULES]
    assert len({tuple(lr(t) for t in range(200)) for lr in courses}) == len(SCHEDULES)


@needs_tomllib
def test_flags_beat_the_file_and_the_file_beats_the_defaults(tmp_path):
    path = toml(tmp_path, 'epochs = 5\nlr = 1\noptimizer = "adamw"\nschedule = "multistep"\nmilestones = [0.5]\n'
                'evaluate = true\nresume = "a"\n')
    config = parse(["--config", path, "--epochs", "7", "--no-evaluate"])
    assert (config.epochs, config.lr, config.optimizer, config.milestones) == (7, 1.0, "adamw", (0.5,))
    assert config.evaluate is False and config.batch_size == Config.batch_size


@needs_tomllib
def test_round_trips(tmp_path):
    config = parse(["--output", 'a "b" \\ é', "--max-steps", "3", "--lr", "1e-7", "--schedule", "multistep",
                    "--milestones", "0.1,0.2"])
    assert Config.from_dict(config.to_dict()) == config
    assert parse(["--config", toml(tmp_path, config.to_toml())]) == config
    assert parse(["--config", toml(tmp_path, Config().to_toml())]) == Config()
    config = parse(["--config", toml(tmp_path, 'schedule = "multistep"\nmilestones = []')])
    assert config.milestones == () and parse(["--config", toml(tmp_path, config.to_toml())]) == config


@pytest.mark.parametrize("flag, value, shown", [
    ("--epochs", "0", "[1, 100000]"), ("--epochs", "1.5", "int"), ("--epochs", "x", "int"),
    ("--batch-size", "0", "[1, "), ("--lr", "0", "(0, 1e+30]"), ("--lr", "nan", "(0, "), ("--lr", "inf", "(0, "),
    ("--momentum", "1", "[0, 1)"), ("--momentum", "-0.1", "[0, 1)"), ("--weight-decay", "-1", "[0, 1e+30]"),
    ("--label-smoothing", "1", "[0, 1)"), ("--ema", "1", "[0, 1)"), ("--clip", "-1", "[0, 1e+30]"),
    ("--warmup", "-1", "[0, inf)"), ("--warmup", "20", "epochs, which is 20"), ("--gamma", "0", "(0, 1]"),
    ("--step-size", "0", "(0, 100000]"), ("--milestones", "0.5,1", "(0, 1)"), ("--milestones", "a", "numbers"),
    ("--milestones", "0.5,0.25", "rising"), ("--val-size", "-1", "[0, 2147483648)"), ("--val-size", "2.5", "share"),
    ("--seed", "-1", "[0, "), ("--seed", str(1 << 63), "[0, "), ("--runs", "0", "[1, 10000]"),
    ("--max-steps", "0", "[1, 1000000000000]"), ("--model", "lenet", "did you mean 'lenet5'"),
    ("--dataset", "cifar11", "did you mean 'cifar10'"), ("--optimizer", "adamv", "did you mean 'adam"),
    ("--schedule", "cosin", "did you mean 'cosine'"), ("--precision", "fp8", "fp32, tf32, bf16, fp16"),
    ("--device", "tpu", "cuda:N"), ("--device", "cuda:x", "cuda:N"), ("--output", "", "not empty"),
    ("--augment", "spin", "crop, flip, altflip, cutout"), ("--augment", "crop,crop", "twice"),
    ("--augment", "crop=0", "1 to 64"), ("--augment", "cutout=65", "1 to 64"), ("--augment", "flip=2", "1 to 1"),
    ("--augment", "crop,", "unknown"), ("--step-size", "1e+308", "(0, 100000]"), ("--lr", "1e+308", "(0, 1e+30]"),
    ("--weight-decay", "inf", "1e+30"), ("--clip", "nan", "1e+30"), ("--val-size", "1e+308", "[0, 2147483648)"),
    ("--warmup", "inf", "[0, inf)"), ("--gamma", "nan", "(0, 1]"), ("--momentum", "nan", "[0, 1)"),
    ("--ema", "nan", "[0, 1)"), ("--milestones", "nan", "(0, 1)"), ("--max-steps", "9" * 30, "[1, 1000000000000]"),
    ("--device", "cuda:٣", "cuda:N"),
])
def test_a_value_out_of_range_is_named_with_what_is_allowed(flag, value, shown):
    text = refusal(flag, value)
    assert shown in text
    assert value.split(",")[0] in text
    assert flag[2:].replace("-", "_") in text


@pytest.mark.parametrize("flag", ["--output", "--data-dir", "--resume"])
@pytest.mark.parametrize("value", ["a\0b", "a\nb", "\x1b[2J", "\udcff", "a\x7f"])
def test_a_name_that_is_no_text_is_refused(flag, value):
    assert "at most 4096 characters" in refusal(flag, "x" * 4097)
    text = refusal(flag, value)
    assert f"{value!r} is not allowed, expected UTF-8 without control characters" in text
    assert refusal("--config", value).startswith("config: ")
    assert text.count("\n") == 1


@pytest.mark.parametrize("argv", [["--output", "x" * 100_000 + "\0"], ["--epochs", "9" * 4000], ["--" + "x" * 100_000],
                                  ["--evaluate=" + "x" * 100_000], ["--device", "y" * 100_000]])
def test_long_values_are_cut_in_the_message(argv):
    assert len(refusal(*argv)) < 500


def test_interval_ends():
    assert 0 in Interval(0, 1) and 1 not in Interval(0, 1)
    assert 0 not in Interval(0, 1, "(]") and 1 in Interval(0, 1, "(]")
    assert float("nan") not in Interval(0) and float("inf") not in Interval(0)


def test_contradictions_are_refused():
    assert "--device cuda" in refusal("--device", "cpu", "--precision", "bf16")
    assert "--resume" in refusal("--evaluate")
    assert "auto for 2 runs" in refusal("--runs", "2", "--resume", "x")


@pytest.mark.parametrize("argv, both", [
    (["--optimizer", "adam", "--momentum", "0.9"], ("--momentum", "--optimizer adam")),
    (["--gamma", "0.1"], ("--gamma", "--schedule cosine")),
    (["--schedule", "multistep", "--step-size", "3"], ("--step-size", "--schedule multistep")),
    (["--schedule", "step", "--milestones", "0.5"], ("--milestones", "--schedule step")),
    (["--data-dir", "d"], ("--data-dir", "--dataset digits")),
    (["--data-dir", "d", "--dataset", "synthetic"], ("--data-dir", "--dataset synthetic")),
    (["--evaluate", "--resume", "auto", "--runs", "3"], ("--runs", "--evaluate")),
    (["--evaluate", "--resume", "a", "--profile", "3"], ("--profile", "--evaluate")),
    (["--evaluate", "--resume", "a", "--tensorboard"], ("--tensorboard", "--evaluate"))])
def test_a_flag_without_effect_beside_another_is_refused(argv, both):
    text = refusal(*argv)
    assert f"{both[0]} has no effect beside {both[1]}\nhelp: leave out {both[0]}" in text


@needs_tomllib
def test_a_file_of_all_settings_serves_beside_a_flag_that_makes_some_of_them_moot(tmp_path):
    path = toml(tmp_path, parse(["--schedule", "exponential", "--dataset", "cifar10", "--data-dir", "d"]).to_toml())
    assert parse(["--config", path, "--schedule", "cosine"]).gamma == 0.95
    assert "--momentum has no effect beside --optimizer adam" in refusal(
        "--config", toml(tmp_path, 'optimizer = "adam"\nmomentum = 0.5'))


def test_unknown_arguments_are_refused():
    assert "did you mean '--epochs'" in refusal("--epoch", "3")
    assert "'stray'" in refusal("stray")
    for argv in (["--epochs"], ["--epochs=--"], ["--milestones=--"], ["--config=--"], ["--output=--"]):
        assert f"{argv[0].partition('=')[0]}: expected one argument" in refusal(*argv)


@needs_tomllib
@pytest.mark.parametrize("text, shown", [
    ("epohcs = 3", "'epohcs'; did you mean 'epochs'"), ("[train]\nepochs = 3", "'train'"), ("epochs = ", "not TOML"),
    ('epochs = "3"', "type int"), ("epochs = true", "type int"), ("epochs = 3.0", "type int"),
    ("lr = false", "type float"), ("model = 3", "type str"), ("dataset = [1]", "type str"),
    ("optimizer = [1]", "type str"), ("evaluate = 1", "type bool"),
    ("milestones = [" + "0.5," * 1001 + "]", "a list of at most"),
    ("milestones = 0.5", "a list of at most 1000 numbers"), ('milestones = ["a"]', "a list of at most 1000 numbers"),
    ("lr = 1" + "0" * 400, "type float"), ("lr = nan", "a number in (0, 1e+30]"), ("lr = inf", "a number in (0, "),
    ("lr = 1" + "0" * 5000, "not TOML"), ("epochs = 0x" + "f" * 5000, "an integer of 20000 bits is not allowed"),
    ("dataset = 0x" + "f" * 5000, "type str"), ("model = [0x" + "f" * 5000 + "]", "a list is not allowed"),
    ("x = " + "[" * 2000, "nested too deeply"), ("x = " + "{a=" * 2000, "nested too deeply"),
    ("[" + "a." * 3000 + "a]", "no setting 'a'"), ('output = "a\\u0000b"', "without control characters"),
    ("epochs = 3\n" + "# x\n" * 20_000, "more than 65536 bytes"), ('"' + "k" * 60_000 + '" = 1', "no setting 'kkk"),
])
def test_a_bad_file_is_refused(tmp_path, text, shown):
    message = refusal("--config", toml(tmp_path, text))
    assert shown in message and len(message) < 500 and message.count("\n") == 1


@needs_tomllib
def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    assert "No such file" in refusal("--config", str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b'model = "\xe9"')
    assert "not TOML" in refusal("--config", str(tmp_path / "latin.toml"))


def test_an_old_python_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    with pytest.raises(ConfigError, match=r"needs Python 3\.11"):
        read_toml(tmp_path / "x.toml")
