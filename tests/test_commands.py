"""The programs as a shell starts them: no traceback, two lines and a status, whatever folder they are started in."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import alpha
from alpha import __main__ as command
from alpha import start
from train.__main__ import main as train_main

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
ROOT = Path(__file__).resolve().parent.parent
TINY = ["--dataset", "digits", "--max-steps", "1", "--batch-size", "8", "--val-size", "0", "--device", "cpu"]
SCRIPT = """import sys
sys.path.append({root!r})
from train.__main__ import command
if __name__ == "__main__":
    sys.argv[0] = "alpha"
    sys.exit(command())
"""


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    """The command alpha, as an installation makes it: a file in a folder of its own, with our packages on the path."""
    path = tmp_path / "bin" / "alpha"
    path.parent.mkdir()
    path.write_text(SCRIPT.format(root=str(ROOT)))
    return [sys.executable, str(path)]


PROGRAMS = {"train": ["-m", "train"], "alpha": ["-m", "alpha"]}


def run(*args: str | bytes, cwd: Path = ROOT, env: dict[str, str] | None = None,
        shell: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program of ours, by hand of a shell if `shell` redirects its streams."""
    words = [sys.executable, *args] if args[0] != sys.executable else list(args)
    if shell:
        words = ["sh", "-c", f'"$0" "$@" {shell}', *words]
    return subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                          errors="surrogateescape", timeout=120)


def two_lines(done: subprocess.CompletedProcess[str], status: int) -> str:
    """Checks that a program failed with one message alone, and returns it."""
    assert done.returncode == status, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[1].startswith("help: "), done.stderr
    return done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_bad_variable_is_two_lines(program: str) -> None:
    for name, value in (("ALPHA_NUM_THREADS", "many"), ("ALPHA_PRECISION", "fp8")):
        text = two_lines(run(*PROGRAMS[program], env={name: value}), 2)
        assert f"{name}: {value!r} is not" in text


def test_a_bad_variable_is_two_lines_in_the_command_too(script: list[str], tmp_path: Path) -> None:
    for args in (["train"], ["doctor"], []):
        assert "ALPHA_SYNC" in two_lines(run(*script, *args, cwd=tmp_path, env={"ALPHA_SYNC": "maybe"}), 2)


@pytest.mark.parametrize("args", [
    ["train", "--no-such"], ["train", "--output", b"\xff\xfe"], ["train", "--config", b"\xff.toml"],
    ["train", "--data-dir", b"\xff"], ["alpha", "nothing"], ["alpha", b"\xff"],
], ids=lambda args: " ".join(map(str, args)))
def test_what_is_wrong_with_a_command_line_is_two_lines(args: list[str | bytes]) -> None:
    """Streams and their encoding are the shell's; what differs in words alone is called in this process, below."""
    text = two_lines(run(*PROGRAMS[str(args[0])], *args[1:]), 2)
    assert len(text) < 600


@pytest.mark.parametrize("program, args", [
    ("train", ["--step-size", "1e308"]), ("train", ["--lr", "nan"]),
    ("train", ["--data-dir", "/dev/null", "--dataset", "cifar10"]), ("alpha", ["--arch", "x"]),
    ("alpha", ["build-kernels", "--arch"]), ("alpha", ["doctor", "train"]), ("alpha", ["train", "--epochs", "x"]),
], ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_what_is_wrong_with_arguments_is_two_lines(program: str, args: list[str],
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    status = {"train": train_main, "alpha": command.main}[program](args)
    lines = capsys.readouterr().err.splitlines()
    assert status == 2 and len(lines) == 2 and lines[1].startswith("help: "), lines
    assert len("".join(lines)) < 600


def test_help_names_the_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    for main, args in ((train_main, ["--help"]), (command.main, ["train", "--help"]),
                       (command.main, ["doctor", "--help"]), (command.main, ["build-kernels", "--help"]),
                       (command.main, ["summary", "--help"])):
        with pytest.raises(SystemExit) as caught:
            main(args)
        assert caught.value.code == 0
        out = " ".join(capsys.readouterr().out.split())
        assert out.endswith(start.STATUSES)
    assert command.main(["--help"]) == 0
    assert " ".join(capsys.readouterr().out.split()).endswith(start.STATUSES)


def test_each_command_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, flag, foreign in (("doctor", "--help", "--arch"), ("build-kernels", "--pack", "--num-classes"),
                                ("summary", "--num-classes", "--arch"), ("train", "--lr", "--pack")):
        with pytest.raises(SystemExit):
            command.main([name, "--help"])
        out = capsys.readouterr().out
        assert flag in out and foreign not in out, name
    assert command.main(["--version"]) == 0 and capsys.readouterr().out == f"alpha {alpha.__version__}\n"
    for wrong, near in (("docotr", "doctor"), ("build-kernel", "build-kernels"), ("trian", "train"),
                        ("summry", "summary")):
        assert command.main([wrong]) == 2
        assert capsys.readouterr().err == f"alpha: there is no command {wrong!r}\nhelp: did you mean alpha {near}?\n"
    assert command.main(["build-kernels", "--precision", "bf16"]) == 2
    assert "--precision is given without --model" in capsys.readouterr().err


@pytest.mark.parametrize("program, streams", [("train", "<&- >&- 2>&-"), ("alpha", "2>&-"), ("alpha", ">&-")])
def test_closed_streams(program: str, streams: str, tmp_path: Path) -> None:
    """A file that is opened later must not take the place of stderr, nor may a message fail for want of it."""
    if program == "train":
        output = tmp_path / "out"
        done = run("-m", "train", *TINY, "--output", str(output), shell=streams)
        assert done.returncode == 0 and (output / "summary.json").is_file()
        for file in output.iterdir():
            assert b"lenet5" not in file.read_bytes() or file.suffix in (".toml", ".json", ".safetensors"), file
    else:
        done = run("-m", "alpha", shell=streams)
        assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
    done = run(*PROGRAMS[program], "--no-such", shell=streams)
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr


def test_output_that_nobody_takes(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    for unbuffered in ("", "1"):  # the failure comes at the end, or with the first line
        text = two_lines(run("-m", "alpha", shell=">/dev/full", env={"PYTHONUNBUFFERED": unbuffered}), 1)
        assert "alpha: standard output" in text and ": No space left on device\n" in text
    for unbuffered in ("", "1"):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([sys.executable, "-m", "alpha"], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE,
                              env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, text=True)
        os.close(writer)
        assert done.returncode == 1
        assert done.stderr.startswith("alpha: standard output is gone: Broken pipe\nhelp: ")
        assert done.stderr.count("\n") == 2


@pytest.mark.parametrize("program", ["train", "alpha"])
@pytest.mark.parametrize("imports", [0, 1, 2, 5, 20, 60, 120, 180, 240, 300])
def test_an_interrupt_while_starting_is_no_traceback(program: str, imports: int, tmp_path: Path) -> None:
    """Between two imports: Python names each on stderr. Those before `site` are of a Python without handlers."""
    args = [*PROGRAMS[program], *([*TINY, "--epochs", "1000", "--output", str(tmp_path)] if program == "train" else [])]
    with subprocess.Popen([sys.executable, "-X", "importtime", *args], cwd=ROOT, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stderr.readline, "")
        assert any(line.endswith(" site\n") for line in lines)
        for _ in itertools.islice(lines, imports):
            pass
        process.send_signal(signal.SIGINT)
        errors = "".join(line for line in lines if not line.startswith("import time:"))
    # One of Python's own, before it comes to our files, names none of them.
    assert not [line for line in errors.splitlines() if str(ROOT) in line and "site-packages" not in line], errors
    assert process.returncode in (0, 130) or "Traceback" in errors, (process.returncode, errors)


HOSTILE = "raise SystemExit('this is the file of somebody else')\n"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with files that have the names of our packages."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("train", "models", "benchmarks", "tests"):
        (folder / f"{name}.py").write_text(HOSTILE)
    return folder


def test_the_command_works_beside_files_with_our_names(script: list[str], hostile: Path) -> None:
    done = run(*script, "train", *TINY, "--output", "é☃", cwd=hostile, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "test accuracy" in done.stdout, done.stderr  # a name that this terminal lacks
    done = run(*script, cwd=hostile)
    assert done.returncode == 0 and done.stdout.startswith("alpha "), done.stderr


def test_python_m_alpha_train_works_beside_files_with_our_names(hostile: Path) -> None:
    installed = hostile.parent / "site"  # benchmarks are not installed
    installed.mkdir()
    for name in ("alpha", "train", "models"):
        (installed / name).symlink_to(ROOT / name)
    env = {"PYTHONPATH": str(installed)}
    done = run("-m", "alpha", "train", "--list-models", cwd=hostile, env=env)
    assert done.returncode == 0 and "lenet5" in done.stdout, done.stderr
    (hostile / "train.py").unlink()
    done = run("-m", "train", "--list-models", cwd=hostile, env=env)
    assert done.returncode == 0 and "lenet5" in done.stdout, done.stderr
    text = two_lines(run("-m", "alpha", "compare", cwd=hostile, env=env), 2)
    assert "compare: benchmarks/ is not here" in text and "clone alpha's repository" in text


def test_compare_is_found_in_a_clone(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    with pytest.raises(SystemExit) as caught:
        command.main(["compare", "--help"])
    assert caught.value.code == 0 and "--precision" in capsys.readouterr().out


def test_what_is_missing_for_compare_is_named(monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> None:
        raise ImportError("no", name="torch")

    monkeypatch.setattr(command.importlib, "import_module", missing)
    assert command.main(["compare"]) == 2
    assert capsys.readouterr().err == 'compare: it needs torch, which is not installed\nhelp: pip install ".[bench]"\n'


def test_errors_of_the_system_have_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> int:
        raise OSError(28, "No space left on device", "some/file")

    assert start.attempt("train", full) == 1
    assert capsys.readouterr().err.startswith("train: some/file: No space left on device\nhelp: free space")

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert start.attempt("train", interrupted) == 130


def test_the_entry_point_is_declared() -> None:
    assert '"alpha = train.__main__:command"' in (ROOT / "setup.py").read_text()


def test_summary_shows_a_model_and_refuses_what_is_none(capsys: pytest.CaptureFixture) -> None:
    assert command.main(["summary", "lenet5", "--num-classes", "7", "--batch-size", "2"]) == 0
    out = capsys.readouterr().out
    assert "conv1" in out and "(2, 7)" in out and out.splitlines()[-2].startswith("total")
    for wrong, text in ((["lenet6"], "no model is called 'lenet6'"), (["lenet5", "--input-shape", "3,x"], "'3,x'"),
                        (["lenet5", "--batch-size", "0"], "'0', a whole number is needed, each from 1 to 1048576")):
        assert command.main(["summary", *wrong]) == 2
        err = capsys.readouterr().err
        assert text in err and err.count("\n") == 2
