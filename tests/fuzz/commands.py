"""Command lines and TOML files against the training program's parser: a Config that is whole, or ConfigError."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import random
from pathlib import Path

from alpha.data import Augment
from alpha.errors import AlphaError
from train.config import Config, parse, parser
from train.trainer import make_schedule

FIELDS = dataclasses.fields(Config)
FLAGS = [option for action in parser()._actions for option in action.option_strings]
TEXTS = ["", " ", "0", "1", "-1", "2.5", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "9" * 5000, "1_0", "٣",
         "0x10", "true", "auto", "none", "sgd", "adamw", "cosine", "step", "exponential", "lenet5", "resnet18",
         "cifar10", "cuda:999", "cuda:-1", "cpu", "bf16", "crop=2,flip", "crop=" + "9" * 99, "crop,,", "0.5,0.75",
         "0.5,0.5", ",", "a\0b", "\udcff", "\ud800", "é", "\x1b[2J", "a\nb", "x" * 70_000, "--", "-", "--lr", "=", "%s",
         "--epochs=3", "{}", "../..", "/dev/null", "/", "/proc/self/mem", "@file", "1" * 30, str(1 << 53), str(1 << 63),
         "1e15"]
VALUES = ["1", "-1", "0", "1e308", "nan", "inf", "-inf", "true", "false", '""', '"a\\u0000b"', '"lenet5"', '"cpu"',
          "[]", "[0.5]", "[0.5, 0.75]", "[[1]]", "{}", "{a = 1}", "1979-05-27", "07:32:00", "0xff", "0o7", "0b1",
          "0x" + "f" * 3000, "9" * 5000, "'''a\nb'''", "[" * 1500, "{a=" * 1500, '"' + "z" * 50_000 + '"',
          "[" + "1," * 20_000 + "]", "1e400", "[true]", "[nan]", '["a"]', "0x" + "f" * 60]


def number(rng: random.Random) -> str:
    return repr(rng.choice([rng.uniform(-2, 2), rng.randint(-5, 500), 10.0 ** rng.randint(-330, 308),
                            1 << rng.randint(0, 70)]))


def toml(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(0, 4)):
        key = rng.choice([rng.choice(FIELDS).name, rng.choice(FIELDS).name, rng.choice([
            "config", "list_models", "__init__", "a.b", "a." * 3000 + "a", '"\\u0000"', '"' + "k" * 9000 + '"', "[lr]",
            "[[lr]]", "lr.x", "''"])])
        lines.append(f"{key} = {rng.choice(VALUES) if rng.random() < 0.6 else number(rng)}")
    blob = "\n".join(lines).encode()
    if rng.random() < 0.1:
        blob = blob[: rng.randint(0, len(blob))] + rng.choice([b"\xff", b"\0", b"\r", b"\xef\xbb\xbf", b"#" * 70_000])
    return blob


def command_line(rng: random.Random, folder: Path) -> list[str]:
    argv = []
    for _ in range(rng.randint(0, 5)):
        flag = rng.choice(FLAGS) if rng.random() < 0.95 else rng.choice(TEXTS)
        value = rng.choice(TEXTS) if rng.random() < 0.6 else number(rng)
        argv += rng.choice([[flag, value], [flag, value], [f"{flag}={value}"], [flag]])
    if rng.random() < 0.6:
        path = folder / "a.toml"
        path.write_bytes(toml(rng))
        argv += ["--config", str(rng.choice([path, path, path, path, folder, folder / "none", "\0", "x" * 5000]))]
    return argv


def attempt(rng: random.Random, folder: Path) -> str:
    argv = command_line(rng, folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config = parse(argv)
    except AlphaError as error:
        text = str(error)
        assert text.count("\n") == 1 and "\nhelp: " in text and len(text) < 1500, text[:3000]
        assert all(c.isprintable() or c == "\n" for c in text), repr(text[:3000])
        return text.partition("\n")[0][:100]
    except SystemExit as done:
        assert done.code == 0
        return "help"
    assert Config.from_dict(config.to_dict()) == config
    if not config.output.startswith("-"):
        (folder / "again.toml").write_bytes(config.to_toml().encode())
        assert parse(["--config", str(folder / "again.toml")]) == config
    Augment.parse(config.augment)
    with contextlib.suppress(AlphaError):  # of milestones that are the same step
        lr = make_schedule(config, rng.choice([1, 7, 1000]))
        assert all(math.isfinite(lr(t)) and lr(t) >= 0 for t in (0, 1, 100, 10**9)), config
    return "accepted"
