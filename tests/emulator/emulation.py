"""Puts the emulated driver and its toolchain in the place of NVIDIA's, in this process."""

from __future__ import annotations

import importlib.util
import os

from alpha.errors import AlphaError, message
from tests.emulator import toolchain


def checked() -> bool:
    """Returns whether every load and store is to be checked."""
    return os.environ.get("ALPHA_EMULATED_CHECKED", "0") not in ("", "0")


def install(ahead: bool = True) -> None:
    """Raises AlphaError where something is missing, with what to do about it.

    Args:
        ahead: whether the first launch compiles all kernels, as on a device, or each module is when it is asked for.
    """
    toolchain.require_compiler()
    toolchain.cuda_include()
    library = toolchain.load_driver()
    toolchain.engine()
    if importlib.util.find_spec("pycuda") is None:
        raise AlphaError(message("emulator", "PyCUDA is not installed", "run make test-emulated, which builds it "
                                 "against the emulated driver"))
    from alpha.cuda.runtime import kernel, memory

    def claim(ptr: int, nbytes: int) -> None:
        if library.emuClaim(ptr, nbytes):
            raise AssertionError(f"emuClaim({ptr:#x}, {nbytes}): not the start of a block, or longer than the block")

    kernel.toolchain = toolchain.EmulatedToolchain(checked())
    if not ahead:
        kernel.compile_all = lambda arch: {}
    memory.on_allocate = claim
