"""Puts the emulated driver and its toolchain in the place of NVIDIA's, in this process."""

from __future__ import annotations

import importlib.util
import os
import re

from alpha.errors import AlphaError, message

from . import toolchain


def checked() -> bool:
    """Returns whether every load and store is to be checked."""
    return hooked() and os.environ["ALPHA_EMULATED_CHECKED"] != "off"


def hooked() -> bool:
    """Returns whether modules are compiled so that they could be checked."""
    return os.environ.get("ALPHA_EMULATED_CHECKED", "0") not in ("", "0")


def install() -> None:
    """Raises AlphaError where something is missing, with what to do about it."""
    arch = os.environ.get("ALPHA_EMULATED_ARCH", "")
    if arch and not re.fullmatch(r"sm_\d+a?", arch):
        raise AlphaError(message("emulator", f"ALPHA_EMULATED_ARCH is {arch!r}, which names no class of GPUs",
                                 "name one as nvcc does: sm_75, sm_80, sm_89, sm_90 or sm_120"))
    toolchain.require_compiler()
    toolchain.cuda_include()
    library = toolchain.load_driver()
    toolchain.engine()
    if importlib.util.find_spec("pycuda") is None:
        raise AlphaError(message("emulator", "PyCUDA is not installed", "python -m "
                                 "alpha.testing.emulator.install_pycuda builds it against the emulated driver"))
    from alpha.cuda.runtime import backlog, memory
    from alpha.cuda.runtime import toolchain as cuda_toolchain

    def claim(ptr: int, nbytes: int) -> None:
        if library.emuClaim(ptr, nbytes):
            raise AssertionError(f"emuClaim({ptr:#x}, {nbytes}): not the start of a block, or longer than the block")

    cuda_toolchain.current = toolchain.EmulatedToolchain(hooked())
    backlog.open = False  # a block is claimed when it is given away, so launches on it have been made by then
    memory.on_allocate = claim
