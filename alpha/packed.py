"""Compiled modules that come with the package, for machines without a compiler: a zip file for each architecture.

    python -m alpha build-kernels --arch sm_80 sm_90a --pack alpha/cuda/packed    # as `make wheel ARCHES=...` does

The name of a member is a hash of its source with everything that it includes, its macros, the architecture. A source
that was edited since has no member, and is compiled as if there were no packs.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from alpha.build import source_key
from alpha.core.errors import CompileError, message

Defines = Iterable[tuple[str, "str | int"]]


class Pack:
    """The folder of packs, and the sources of their modules.

    Args:
        folder: of kernels-<architecture>.zip.
        maker: name of the toolchain that compiles the modules.
        include_dirs: where the sources find their headers.
    """

    def __init__(self, folder: Path, maker: str, include_dirs: Sequence[Path]) -> None:
        self.folder, self.maker, self.include_dirs = folder, maker, include_dirs

    def architectures(self) -> list[str]:
        """Returns those that there are packs for."""
        return sorted(path.stem.removeprefix("kernels-") for path in self.folder.glob("kernels-sm_*.zip"))

    def find(self, source: Path, defines: Defines, arch: str) -> bytes | None:
        """Returns the module of a source, None if no pack has it.  Raises CompileError if the pack is damaged."""
        for packed in serving(arch, tuple(_there(self))):
            path = self._path(packed)
            try:
                archive, names = _opened(path)
                name = self._member(source, defines, packed)
                if name in names:
                    return archive.read(name)
            except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise CompileError(message("cuda", f"{path}, the compiled kernels that came with alpha, cannot be "
                                           f"read: {error}", "install alpha again")) from error
        return None

    def write(self, modules: Iterable[tuple[Path, Defines, Path]], arch: str) -> Path:
        """Makes the pack of an architecture from (source, macros, compiled file) of its modules, and returns its path.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(self._path(arch), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for source, defines, compiled in modules:
                archive.writestr(zipfile.ZipInfo(self._member(source, defines, arch)), compiled.read_bytes(),
                                 zipfile.ZIP_DEFLATED)
        return self._path(arch)

    def _path(self, arch: str) -> Path:
        return self.folder / f"kernels-{arch}.zip"

    def _member(self, source: Path, defines: Defines, arch: str) -> str:
        macros = [f"{name}={value}" for name, value in sorted(defines)]
        return f"{source.stem}-{source_key(source, self.include_dirs, (self.maker, arch, *macros))}"


def serving(arch: str, there: Iterable[str]) -> list[str]:
    """Returns the architectures whose modules run on `arch`, best first: itself, and the lesser ones of its generation.

    A module compiled for an "a" runs on that alone.
    """
    def runs(other: str) -> bool:
        if "a" in arch + other:
            return other == arch
        return other[:-1] == arch[:-1] and other <= arch  # sm_86: generation 8, 6 in it

    return sorted(filter(runs, there), reverse=True)


@cache
def _there(pack: Pack) -> list[str]:
    return pack.architectures()


@cache
def _opened(path: Path) -> tuple[zipfile.ZipFile, frozenset[str]]:
    archive = zipfile.ZipFile(path)
    return archive, frozenset(archive.namelist())
