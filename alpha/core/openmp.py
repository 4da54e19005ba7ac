"""How long threads of the CPU kernels wait for each other before they sleep: a setting of libgomp, the OpenMP runtime.

libgomp reads its settings once, when it is mapped into the process. Other libraries use the same libgomp: PyTorch maps
the file at its import. So the setting is made when alpha is imported; where libgomp is there already, it is too late.
"""

from __future__ import annotations

import ctypes
import os

from alpha.core.errors import message, warn

# Loops of a waiting thread, some 50 us. libgomp's default, milliseconds, keeps the very core that the others wait for
# where cores are shared: a step of LeNet-5 beside one busy process takes 6.7 ms with this, 7 to 15 ms without; on idle
# cores they are equal within 2 %.
SPIN_COUNT = "3000"
RUNTIME = "libgomp.so.1"

_late = False   # whether libgomp was mapped without a setting when alpha was imported


def _is_mapped() -> bool:
    try:
        ctypes.CDLL(RUNTIME, mode=os.RTLD_NOLOAD)
    except (OSError, AttributeError):   # no library of that name is there; this system cannot tell
        return False
    return True


def spin_briefly() -> None:
    """Sets GOMP_SPINCOUNT, unless the user says how threads wait, or libgomp has read its settings already."""
    global _late
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    if _is_mapped():
        _late = True
    else:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def warn_if_late(threads: int) -> None:
    """Warns once, where several threads wait for each other as libgomp's default has it.  threads: of the kernels."""
    global _late
    if _late and threads > 1:
        _late = False
        what = (f"another library, such as PyTorch, loaded {RUNTIME} before alpha; {threads} threads of the CPU "
                "kernels spin for milliseconds in it, which is slow on busy cores")
        warn(message("alpha", what, f"import alpha first, or start Python with GOMP_SPINCOUNT={SPIN_COUNT}"))
