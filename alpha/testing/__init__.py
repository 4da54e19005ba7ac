"""Help for tests of layers, ops and kernels of one's own.

    from alpha.testing import Case, agree, floats
    agree(Case("mish", floats(7, 33)))          # the op on the GPU, and on the CPU's NumPy, which is right

`gradcheck` compares gradients with differences, `assert_equal_at` names the first element that differs, `conv_cases` is
the catalogue of convolutions. The emulated driver runs CUDA kernels without a GPU:

    python -m alpha.testing.emulator.install_pycuda       # once, where there is no NVIDIA driver
    python -m alpha.testing.emulator my_program.py
    pytest -p alpha.testing.emulator.plugin               # it needs g++ and the CUDA toolkit's headers
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from alpha.gradcheck import assert_equal_at, gradcheck
from alpha.interop import twins
from alpha.testing.agree import Case, agree, floats, ints

__all__ = ["Case", "agree", "assert_equal_at", "floats", "gradcheck", "ints"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.testing", name, twins.TESTING, sys.modules[__name__])


def _offer_emulator(folder: Path) -> None:
    """Makes a clone's package emulator/ importable as alpha.testing.emulator, the name that a wheel gives it."""
    name = f"{__name__}.emulator"
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    globals()["emulator"] = module


_CLONE = Path(__file__).resolve().parents[2] / "emulator"
if not (Path(__file__).parent / "emulator").is_dir() and _CLONE.is_dir():
    _offer_emulator(_CLONE)
