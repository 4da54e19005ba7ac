"""Are the emulator's matrix instructions those of a device? One GPU answers once, for all machines:

    python -m tests.emulator.compare_device record <file.npz>     where there is a GPU: its results on random operands
    python -m tests.emulator.compare_device compare <file.npz>    anywhere: the emulator's results, bit by bit
    python -m tests.emulator.compare_device digest <file.npz>     digests of the results, for test_device.py
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.emulator.toolchain import HERE, EmulatedToolchain, load_driver

FORMATS = ("f16", "bf16", "tf32")
SHAPES = {"mma": (16, 8, 32, 64), "wgmma": (64, 64, 128, 4)}  # rows, columns, threads, problems
WORDS = (8, 32)  # of K: one instruction, a chain of four
Arrays = dict[str, np.ndarray]


def spread(rng: np.random.Generator, shape: tuple[int, ...], width: int) -> np.ndarray:
    """Returns numbers of 25 bits in [-2, 2) times powers of two from 2^-width to 2^width, the same on every machine."""
    return rng.integers(-(1 << 24), 1 << 24, shape) * 2.0 ** (rng.integers(-width, width + 1, shape) - 23)


def operands(kind: str, rng: np.random.Generator, a: tuple, b: tuple, c: tuple) -> tuple[np.ndarray, ...]:
    """Returns float64 operands: alike in size, far apart, cancelling, beside a large accumulator, or tiny."""
    width = {"alike": 0, "apart": 6, "cancel": 3, "carry": 0, "tiny": 4}[kind]
    A, B, C = (spread(rng, shape, width) for shape in (a, b, c))
    if kind == "cancel":
        half = a[-1] // 2
        A[..., half:], B[..., half:] = -A[..., :half] * (1 + 2.0**-9), B[..., :half]
    elif kind == "carry":
        C = C * 2.0 ** rng.integers(-12, 24, c)
    elif kind == "tiny":  # denormal numbers in fp16 and denormal products in fp32
        A, B, C = A * 2.0**-16, B * 2.0**-14, C * 2.0**-34
    return A, B, C


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Returns values as 32-bit words, rounded to a format: two fp16 or bf16 numbers in each, or one of tf32."""
    if kind == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    bits = values.astype(np.float32).view(np.uint32)
    if kind == "tf32":
        return (bits + 0x1000) & np.uint32(0xFFFFE000)
    return np.ascontiguousarray(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)).view(np.uint32)


def problems() -> Iterator[tuple[str, str, str, int, Arrays]]:
    """Yields (name, instruction, format, words of K, operands) of every comparison."""
    for instruction, (rows, columns, _, count) in SHAPES.items():
        for kind in FORMATS:
            for words in WORDS:
                for data in ("alike", "apart", "cancel", "carry", "tiny"):
                    name = f"{instruction}_{kind}_{words}_{data}"
                    k = words * (1 if kind == "tf32" else 2)
                    rng = np.random.default_rng(list(name.encode()))
                    A, B, C = operands(data, rng, (count, rows, k), (count, columns, k), (count, rows, columns))
                    yield name, instruction, kind, words, {
                        "a": encode(A, kind), "b": encode(B, kind), "c": C.astype(np.float32)}


class Runner:
    """Runs tensor_core.cu on the device of the loaded driver, with modules of a toolchain."""

    def __init__(self, toolchain: Any) -> None:
        from pycuda import autoprimaryctx, driver  # noqa: F401

        self.toolchain, self.driver, self.modules = toolchain, driver, {}

    def __call__(self, instruction: str, kind: str, words: int, arrays: Arrays) -> np.ndarray:
        driver, key = self.driver, (instruction, words)
        if key not in self.modules:
            defines = {"WORDS": words, **({"HOPPER": 1} if instruction == "wgmma" else {})}
            path = self.toolchain.compile(HERE / "kernels" / "tensor_core.cu", defines, "sm_90a")
            self.modules[key] = driver.module_from_file(str(path))
        _, _, threads, count = SHAPES[instruction]
        out = np.empty_like(arrays["c"])
        blocks = [driver.to_device(arrays[name]) for name in "abc"] + [driver.mem_alloc(out.nbytes)]
        function = self.modules[key].get_function(f"{instruction}_{kind}")
        shared = 16384 if instruction == "wgmma" else 0
        function._launch_kernel((count, 1, 1), (threads, 1, 1), struct.pack("PPPP", *map(int, blocks)), shared, None)
        driver.memcpy_dtoh(out, blocks[-1])
        return out


def digest(results: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(results).tobytes()).hexdigest()[:16]


def record(path: str) -> None:
    """Writes the device's results; the operands follow from the names of the problems."""
    from alpha.cuda.kernel import NvccToolchain

    run = Runner(NvccToolchain())
    np.savez_compressed(path, **{name: run(*rest) for name, *rest in problems()})


def compare(path: str) -> int:
    """Prints how many results differ in each problem, and returns their number."""
    load_driver()
    run, expected, total = Runner(EmulatedToolchain()), np.load(path), 0
    for name, *rest in problems():
        ours, theirs = run(*rest), expected[name]
        differ = ours.view(np.uint32) != theirs.view(np.uint32)
        total += int(differ.sum())
        line = f"{name:24} {differ.sum():6} of {differ.size} differ"
        if differ.any():
            at = tuple(map(int, np.argwhere(differ)[0]))
            line += f", first at {at}: device {float(theirs[at]).hex()}, here {float(ours[at]).hex()}"
        print(line)
    print(f"{total} differences")
    return total


def main(mode: str, path: str) -> int:
    if mode == "record":
        record(path)
    elif mode == "digest":
        print(json.dumps({name: digest(results) for name, results in np.load(path).items()}, indent=0))
    return int(mode == "compare" and compare(path) > 0)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "compare", "digest"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
