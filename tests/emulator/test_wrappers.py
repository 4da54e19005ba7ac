"""Every wrapper of an instruction is called by some kernel, and thereby run by a test; the headers stay readable."""

from __future__ import annotations

import re

import pytest

from emulator.toolchain import HOME
from tests.emulator.runner import KERNELS

pytestmark = pytest.mark.emulator
HEADERS = {path.name: path.read_text() for path in (
    *(HOME / "include" / name for name in ("ptx.cuh", "ptx_sm90.cuh", "ptx_wgmma.cuh")),
    KERNELS / "ptx_more.cuh")}
CALLED = set(re.findall(r"ptx::(?:template )?(\w+)", "\n".join(
    path.read_text() for folder in (HOME, KERNELS) for path in folder.rglob("*.cu*")
    if path.name not in HEADERS)))


def wrappers(header: str) -> set[str]:
    """Returns the names that a header defines; a macro defines one for each of its uses."""
    names = set(re.findall(r"^(?:template <.*> )?INLINE [\w*& ]*?(\w+)\(", header, re.MULTILINE)) - {"shared"}
    for macro, body in re.findall(r"^#define (\w+)\(.*\\\n((?:.*\\\n)*.*)", header, re.MULTILINE):
        uses = re.findall(rf"^{macro}\((\w+),", header, re.MULTILINE)
        for name in re.findall(r"INLINE [\w*& ]*?(\w+##[\w#]+)\(", body):
            prefix, _, *suffix = name.split("##")
            names |= {prefix + use + "".join(suffix) for use in uses}
    return names


def is_called(name: str) -> bool:
    return name in CALLED or any(name.startswith(begin) for begin in CALLED if begin.endswith("_"))  # mma_##type


@pytest.mark.parametrize("header", HEADERS)
def test_every_wrapper_is_called(header: str) -> None:
    names = wrappers(HEADERS[header])
    assert len(names) > 7 and not [name for name in sorted(names) if not is_called(name)]


def test_macros_are_seen() -> None:
    assert {"tma_load_multicast_5d", "tma_store_1d", "wgmma_ss_bf16", "wgmma_n64_f16", "cluster_map", "wgmma_desc",
            "cp_async_wait"} <= set().union(*map(wrappers, HEADERS.values()))


@pytest.mark.parametrize("header", HEADERS)
def test_headers_are_short(header: str) -> None:
    lines = HEADERS[header].split("\n")
    assert len(lines) <= 401 and max(map(len, lines)) <= 120
