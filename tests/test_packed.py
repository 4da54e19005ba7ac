"""Compiled kernels that come with the package: packed by build-kernels, found without a compiler, and made anew where
their sources have changed."""
# ruff: noqa: F811  fixtures are named by their import and by who takes them

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from alpha import doctor
from alpha.core.config import config
from alpha.cuda.runtime import toolchain as chain
from alpha.cuda.runtime.kernel import Kernel
from alpha.errors import CompileError
from alpha.packed import Pack, serving
from tests.fake_cuda import declared, toolchain  # noqa: F401  fixtures
from tests.fake_nvcc import install

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with a source and its header, in the place of alpha/cuda."""
    folder = tmp_path / "cuda"
    folder.mkdir()
    (folder / "one.cuh").write_text("int one;")
    (folder / "one.cu").write_text('#include "one.cuh"\n')
    return folder


def pack_of(folder: Path) -> Pack:
    return Pack(folder / "packed", "nvcc", (folder,))


@pytest.mark.parametrize("arch, found", [
    ("sm_80", ["sm_80"]), ("sm_86", ["sm_86", "sm_80"]), ("sm_89", ["sm_89", "sm_86", "sm_80"]), ("sm_90a", ["sm_90a"]),
    ("sm_90", []), ("sm_100", ["sm_100"]), ("sm_120", [])])
def test_modules_run_on_what_follows_in_their_generation(arch: str, found: list[str]) -> None:
    assert serving(arch, ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"]) == found


def test_a_module_is_found_by_what_it_was_compiled_from(sources: Path, tmp_path: Path) -> None:
    compiled, source, macros = tmp_path / "compiled", sources / "one.cu", (("B", 2), ("A", "x"))
    compiled.write_bytes(b"module" * 100)
    pack_of(sources).write([(source, macros, compiled)], "sm_80")
    pack = pack_of(sources)
    assert pack.architectures() == ["sm_80"]
    for arch in ("sm_80", "sm_89"):
        assert pack.find(source, macros, arch) == pack.find(source, macros[::-1], arch) == b"module" * 100
    assert pack.find(source, macros, "sm_90a") is None
    assert pack.find(source, (), "sm_80") is pack.find(source, (("A", "x"), ("B", 3)), "sm_80") is None
    assert Pack(pack.folder, "other", (sources,)).find(source, macros, "sm_80") is None
    moved = sources.rename(tmp_path / "elsewhere")
    assert pack_of(moved).find(moved / "one.cu", macros, "sm_80") == b"module" * 100
    (moved / "one.cuh").write_text("int two;")
    assert pack_of(moved).find(moved / "one.cu", macros, "sm_80") is None


@pytest.mark.parametrize("damage", ["cut", "bits"])
def test_a_damaged_pack_is_named(damage: str, sources: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    compiled.write_bytes(bytes(range(256)))
    path = pack_of(sources).write([(sources / "one.cu", (), compiled)], "sm_80")
    content = bytearray(path.read_bytes())
    content[80] ^= 0xff
    path.write_bytes(content if damage == "bits" else content[:40])
    with pytest.raises(CompileError, match=r"cuda: .*kernels-sm_80\.zip, .* cannot be read: .*\nhelp: install alpha"):
        pack_of(sources).find(sources / "one.cu", (), "sm_80")


def test_kernels_of_a_pack_are_launched_without_a_compiler(toolchain, sources: Path, monkeypatch: pytest.MonkeyPatch,
                                                           tmp_path: Path) -> None:
    for name, value in dict(HOME=sources, PACKED=sources / "packed", INCLUDE_DIRS=(sources,)).items():
        monkeypatch.setattr(chain, name, value)
    monkeypatch.setattr(toolchain, "name", "nvcc")
    compiled = tmp_path / "compiled"
    compiled.write_bytes(b"relu")
    pack_of(sources).write([(sources / "one.cu", (), compiled)], "sm_90a")
    chain._pack.cache_clear()

    def no_compiler(*arguments: object) -> None:
        raise CompileError("cuda: nvcc is not found")

    monkeypatch.setattr(toolchain, "find", no_compiler)
    monkeypatch.setattr(toolchain, "compile", no_compiler)
    kernel = Kernel(sources / "one.cu", "relu", "i32 n")
    assert chain.is_at_hand(kernel.unit)
    kernel(1, 7)
    with pytest.raises(CompileError, match="nvcc is not found"):
        Kernel(sources / "one.cu", "relu", "i32 n", defines={"OTHER": 1})(1, 7)
    chain._pack.cache_clear()


def test_build_kernels_packs_what_it_built(declared, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "has_kernels", lambda: True)
    install(tmp_path, monkeypatch)
    Kernel(sources / "one.cu", "one", "ptr x")
    with config(cache_dir=str(tmp_path / "cache")):
        assert doctor.main(["build-kernels", "--arch", "sm_80", "sm_90a", "--pack", str(sources / "packed")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.rpartition(",")[0] for line in lines if line.startswith("packed: ")] == [
            f"packed: {sources}/packed/kernels-{arch}.zip" for arch in ("sm_80", "sm_90a")]
        for arch in ("sm_80", "sm_90a"):
            with zipfile.ZipFile(sources / "packed" / f"kernels-{arch}.zip") as archive:
                member, = archive.namelist()
                assert member.startswith("one-") and archive.read(member) == f"cubin of {sources}/one.cu\n".encode()
        (sources / "bad.cu").write_text("#error no\n")
        Kernel(sources / "bad.cu", "bad", "ptr x")
        assert doctor.main(["build-kernels", "--arch", "sm_89", "--pack", str(sources / "packed")]) == 1
    assert not (sources / "packed" / "kernels-sm_89.zip").exists()
