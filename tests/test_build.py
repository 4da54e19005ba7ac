"""The cache of compiled files: keys, damage, concurrency, directories that cannot be used, compilers that fail."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alpha import build as build_module
from alpha.build import build, cache_dir, compilers, written
from alpha.core.config import config
from alpha.errors import CompileError, ConfigError

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
FLAGS = ("-O0", "-fPIC")


@pytest.fixture
def cxx() -> tuple[str, ...]:
    if not compilers():
        pytest.skip("there is no C++ compiler here")
    return compilers()[0]


@pytest.fixture
def cache(tmp_path: Path):
    with config(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def write_source(folder: Path, value: int = 42) -> Path:
    (folder / "inner.hpp").write_text(f"#define VALUE {value}\n")
    (folder / "outer.hpp").write_text('#include "inner.hpp"\n')
    source = folder / "answer.cpp"
    source.write_text('#include <cstdio>\n  # include "outer.hpp"\nextern "C" int answer() { return VALUE; }\n')
    return source


def answer(path: Path) -> int:
    return ctypes.CDLL(str(path)).answer()


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("compiled, though the cache had it")

    monkeypatch.setattr(build_module, "_compile", fail)


def test_a_second_build_comes_from_the_cache(tmp_path, cache, cxx, monkeypatch):
    source = write_source(tmp_path)
    path = build("t", [source], cxx, FLAGS)
    assert path.parent == cache and answer(path) == 42
    forbid_compiling(monkeypatch)
    assert build("t", [source], cxx, FLAGS) == path


def test_debug_tells_what_was_built_and_what_was_found(tmp_path, cache, cxx, capsys):
    source = write_source(tmp_path)
    build("t", [source], cxx, FLAGS)
    assert capsys.readouterr().err == ""
    with config(debug=1):
        path = build("t", [source], cxx, FLAGS)
        assert capsys.readouterr().err == f"alpha: {path} comes from the cache\n"
        path = build("u", [source], cxx, FLAGS)
        assert capsys.readouterr().err == f"alpha: {path} was built with {cxx[0]}\n"


def test_nothing_but_entries_stays_in_the_cache(tmp_path, cache, cxx):
    path = build("t", [write_source(tmp_path)], cxx, FLAGS)
    assert sorted(os.listdir(cache)) == [path.name, path.name + ".lock", path.name + ".sha256"]


def test_key_depends_on_includes_of_includes_and_on_flags(tmp_path, cache, cxx):
    source = write_source(tmp_path, 42)
    first = build("t", [source], cxx, FLAGS)
    assert build("t", [source], cxx, (*FLAGS, "-DX")) != first
    write_source(tmp_path, 43)
    second = build("t", [source], cxx, FLAGS)
    assert second != first and answer(second) == 43


def test_key_depends_on_the_cpu_where_the_code_does(tmp_path, cache, cxx, monkeypatch):
    source = write_source(tmp_path)
    flags = (*FLAGS, "-march=native")
    here, anywhere = build("t", [source], cxx, flags), build("t", [source], cxx, FLAGS)
    monkeypatch.setattr(build_module, "_cpu_features", lambda: "another processor")
    assert build("t", [source], cxx, flags) != here
    assert build("t", [source], cxx, FLAGS) == anywhere


@pytest.mark.parametrize("damage", ["truncate", "flip", "no digest", "digest not text"])
def test_a_damaged_entry_is_built_again(tmp_path, cache, cxx, damage):
    source = write_source(tmp_path)
    path = build("t", [source], cxx, FLAGS)
    sound, digest = path.read_bytes(), path.with_name(path.name + ".sha256")
    if damage == "truncate":
        path.write_bytes(sound[:100])
    elif damage == "flip":
        path.write_bytes(sound[:200] + bytes([sound[200] ^ 1]) + sound[201:])
    elif damage == "no digest":
        digest.unlink()
    else:
        digest.write_bytes(b"\xff\xfe")
    assert build("t", [source], cxx, FLAGS) == path
    assert path.read_bytes() == sound and answer(path) == 42


def test_several_objects_and_a_single_step(tmp_path, cache, cxx):
    one, two = tmp_path / "one.cpp", tmp_path / "two.cpp"
    one.write_text('int half(); extern "C" int answer() { return 2 * half(); }\n')
    two.write_text("int half() { return 21; }\n")
    assert answer(build("pair", [one, two], cxx, FLAGS)) == 42
    single = build("single", [write_source(tmp_path)], cxx, (*FLAGS, "-shared"), link=None, suffix=".bin")
    assert single.suffix == ".bin" and answer(single) == 42


def test_a_failing_source_names_the_command_and_publishes_nothing(tmp_path, cache, cxx):
    source = tmp_path / "wrong.cpp"
    source.write_text("int answer() { return nonsense; }\n" + "more nonsense;\n" * 50)
    with pytest.raises(CompileError) as caught:
        build("t", [source], cxx, FLAGS)
    text = str(caught.value)
    assert text.startswith(f"build: {cxx[0]} failed with status") and "compiling wrong.cpp" in text
    assert "nonsense" in text and "-O0" in text and str(source) in text and "\nhelp: " in text
    assert len(text.splitlines()) < 30
    assert [name for name in os.listdir(cache) if not name.endswith(".lock")] == []


def test_a_missing_compiler_and_a_missing_source_are_named(tmp_path, cache, cxx):
    for compiler, where in (("no-such-compiler", "CXX can name"), ("/no/such/nvcc", "CUDA_HOME names")):
        with pytest.raises(CompileError, match=rf"build: {compiler} cannot be run.*\nhelp: install a .*; {where}"):
            build("t", [write_source(tmp_path)], (compiler,), FLAGS)
    with pytest.raises(CompileError, match=r"build: cannot read .*absent\.cpp: No such file"):
        build("t", [tmp_path / "absent.cpp"], cxx, FLAGS)


def test_cxx_names_the_only_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "ccache my-compiler")
    assert compilers() == [("ccache", "my-compiler")]


@pytest.mark.parametrize("text, words", [("'/opt/my tools/g++' -m64", ("/opt/my tools/g++", "-m64")),
                                         ('"a b"', ("a b",)), (" g++ ", ("g++",))])
def test_cxx_is_split_as_a_shell_does(monkeypatch, text, words):
    monkeypatch.setenv("CXX", text)
    assert compilers() == [words]


@pytest.mark.parametrize("text", ["g++ 'open", '"', "g++ \\"])
def test_cxx_with_open_quotes_is_refused(monkeypatch, text):
    monkeypatch.setenv("CXX", text)
    with pytest.raises(ConfigError, match=r"CXX: .* is not a command: No .*\nhelp: close its quotes, or unset CXX"):
        compilers()


def test_cxx_of_blanks_is_none(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    expected = compilers()
    monkeypatch.setenv("CXX", "  ")
    assert compilers() == expected


def test_what_a_killed_compilation_left_is_removed_after_a_day(tmp_path, cache, cxx):
    source = write_source(tmp_path)
    path = build("t", [source], cxx, FLAGS)
    old, new, kept = (cache / name for name in (".t-abcdef", ".t-ghijkl", "another"))
    for folder in (old, new, kept):
        folder.mkdir()
        (folder / "0.o").write_bytes(b"x")
    for folder in (old, kept):
        os.utime(folder, (1, 1))
    assert build("t", [source], cxx, FLAGS) == path and old.exists()  # a cache that serves is not searched
    build("u", [source], cxx, FLAGS)
    assert not old.exists() and new.exists() and kept.exists() and path.exists()


def test_processes_that_start_together_compile_once(tmp_path, cache, cxx):
    source = write_source(tmp_path)
    counter = tmp_path / "count"
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo x >> {counter};; esac\nexec {" ".join(cxx)} "$@"\n')
    compiler.chmod(0o755)
    code = ("import ctypes, pathlib; from alpha.build import build; "
            f"p = build('t', [pathlib.Path({str(source)!r})], ({str(compiler)!r},), {FLAGS!r}); "
            "print(ctypes.CDLL(str(p)).answer())")
    env = {**os.environ, "ALPHA_CACHE_DIR": str(cache)}
    root = Path(__file__).resolve().parent.parent
    workers = [subprocess.Popen([sys.executable, "-c", code], env=env, cwd=root, stdout=subprocess.PIPE, text=True)
               for _ in range(6)]
    assert [worker.communicate()[0].strip() for worker in workers] == ["42"] * 6
    assert counter.read_text().count("x") == 1


@pytest.fixture
def nothing_said(monkeypatch):
    monkeypatch.setattr(build_module, "_said", set())


@pytest.mark.parametrize("kind", ["read-only", "a file"])
def test_a_cache_that_cannot_be_used_says_so_once_and_works(tmp_path, cxx, kind, monkeypatch, capsys, nothing_said):
    blocked = tmp_path / "blocked"
    if kind == "a file":
        blocked.write_text("")
    else:
        blocked.mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != blocked)  # root may write anywhere
    source = write_source(tmp_path)
    with config(cache_dir=str(blocked)):
        path = build("t", [source], cxx, FLAGS)
        assert answer(path) == 42 and blocked not in path.parents
        assert re.fullmatch(r"alpha: build: .*blocked cannot be .*; compiled kernels are kept for this process only\n"
                            r"help: point ALPHA_CACHE_DIR at a directory of your own\n", capsys.readouterr().err)
        assert build("t", [source], cxx, FLAGS) == path
        assert capsys.readouterr().err == ""


def test_a_read_only_cache_serves_what_it_has(tmp_path, cache, cxx, monkeypatch, capsys, nothing_said):
    source = write_source(tmp_path)
    path = build("t", [source], cxx, FLAGS)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != cache)
    with monkeypatch.context() as patch:
        forbid_compiling(patch)
        assert build("t", [source], cxx, FLAGS) == path
        assert capsys.readouterr().err == ""
    path.write_bytes(b"damaged")
    other = build("t", [source], cxx, FLAGS)
    assert answer(other) == 42 and other.parent != cache
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["read-only", "a file"])
def test_a_source_of_our_own_needs_no_cache_that_can_be_written(tmp_path, kind, monkeypatch, capsys, nothing_said):
    home = tmp_path / "home"
    if kind == "a file":
        home.write_text("")
    with config(cache_dir=str(home)):
        there = None if kind == "a file" else written("ours", "a", ".cu")
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != home)
        paths = {text: written("ours", text, ".cu") for text in "ab"}
        assert paths == {text: written("ours", text, ".cu") for text in "ab"}
    assert there in (None, paths["a"])
    for text, path in paths.items():
        assert path.read_text() == text and (path == there or home not in path.parents)
    assert capsys.readouterr().err == "", "nothing has been compiled"


def test_an_entry_of_the_administrator_is_loaded(tmp_path, cache, cxx, monkeypatch):
    path = build("t", [write_source(tmp_path)], cxx, FLAGS)
    if path.stat().st_uid:
        pytest.skip("only root can make files of root")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    forbid_compiling(monkeypatch)
    assert build("t", [write_source(tmp_path)], cxx, FLAGS) == path


def test_an_entry_of_another_user_is_not_loaded(tmp_path, cache, cxx, monkeypatch, capsys, nothing_said):
    source = write_source(tmp_path)
    path = build("t", [source], cxx, FLAGS)
    own = build_module._own
    monkeypatch.setattr(build_module, "_own", lambda p: p.parent != cache and own(p))
    other = build("t", [source], cxx, FLAGS)
    assert other != path and answer(other) == 42
    assert capsys.readouterr().err.startswith(f"alpha: build: {path} belongs to another user; ")


def test_default_directory_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with config(cache_dir=""):
        assert cache_dir() == tmp_path / "alpha"
    assert (tmp_path / "alpha").stat().st_mode & 0o777 == 0o700


def test_a_long_compilation_is_one_line_that_grows(tmp_path, cache, cxx, capsys):
    sources = [tmp_path / f"s{k}.cpp" for k in range(4)]
    for k, source in enumerate(sources):
        source.write_text(f"int f{k}() {{ return {k}; }}\n")
    build("told", sources, cxx, FLAGS, told="the CPU kernels")
    line = capsys.readouterr().err
    assert re.fullmatch(rf"alpha: compiling the CPU kernels with {re.escape(cxx[0])}, once on this machine, 4 files: "
                        r"25% 50% 75% 100% done after \d+ s\n", line)
    build("told", sources, cxx, FLAGS, told="the CPU kernels")
    assert capsys.readouterr().err == ""
    sources[0].write_text("no C++")
    with pytest.raises(CompileError):
        build("told", sources, cxx, FLAGS, told="the CPU kernels")
    assert re.search(r" failed after \d+ s\n$", capsys.readouterr().err)


def test_waiting_for_another_process_that_compiles_is_told(tmp_path, cache, cxx, capsys):
    fcntl = pytest.importorskip("fcntl")
    import threading
    source = write_source(tmp_path)
    path = build("held", [source], cxx, FLAGS)
    path.unlink()
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(0.3, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        assert build("held", [source], cxx, FLAGS, told="the CPU kernels") == path
    assert "another process compiles the CPU kernels: waiting for it\n" in capsys.readouterr().err
