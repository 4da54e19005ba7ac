"""Does the emulator do what a device does? One GPU answers once, for all machines:

    python -m tests.emulator.compare_device record <file.npz>     where there is a GPU: its results
    python -m tests.emulator.compare_device record <file.npz> tile    ... of the problems whose names begin like this
    python -m tests.emulator.compare_device compare <file.npz>    anywhere: the emulator's results, bit by bit
    python -m tests.emulator.compare_device digest <file.npz>     digests of the results into h100_digests.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from emulator.toolchain import EmulatedToolchain, load_driver
from tests.emulator import cases
from tests.emulator.runner import KERNELS, Out, Problem, Runner

DIGESTS = Path(__file__).with_name("h100_digests.json")
FORMATS = ("f16", "bf16", "tf32")
SHAPES = {"mma": (16, 8, 32, 64), "wgmma": (64, 64, 128, 4)}  # rows, columns, threads, problems
WORDS = (8, 32)  # of K: one instruction, a chain of four


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


def one_instruction() -> Iterator[Problem]:
    """Yields the arithmetic: d = c + a b by one instruction or a chain of four."""
    for instruction, (rows, columns, threads, count) in SHAPES.items():
        hopper = {"HOPPER": 1} if instruction == "wgmma" else {}
        for kind in FORMATS:
            for words in WORDS:
                for data in ("alike", "apart", "cancel", "carry", "tiny"):
                    name = f"{instruction}_{kind}_{words}_{data}"
                    k = words * (1 if kind == "tf32" else 2)
                    rng = np.random.default_rng(list(name.encode()))
                    A, B, C = operands(data, rng, (count, rows, k), (count, columns, k), (count, rows, columns))
                    C = C.astype(np.float32)
                    arguments = encode(A, kind), encode(B, kind), C, Out(np.zeros_like(C))
                    yield Problem(name, "tensor_core.cu", f"{instruction}_{kind}", arguments, (count, 1, 1), threads,
                                  16384 if hopper else 0, {"WORDS": words, **hopper})


def layouts_and_widths() -> Iterator[Problem]:
    """Yields wgmma on random operands in every layout, width and sign."""
    rng = np.random.default_rng(2)
    for kind in FORMATS:
        k, word = (8, np.uint32) if kind == "tf32" else (16, np.uint16)
        A, B, _ = operands("apart", rng, (64, 2 * k), (256, 2 * k), (1,))
        a, b = encode(A, kind).view(word), encode(B, kind).view(word)
        for layout in cases.majors_and_spans(kind):
            yield cases.wgmma_layout(kind, a, b[:128], *layout)
        for source in ("ss", "rs"):
            yield cases.wgmma_widths(kind, source, np.ascontiguousarray(a[:, :k]), np.ascontiguousarray(b[:, :k]))
    yield cases.wgmma_signs(*(rng.standard_normal((64, 16)).astype(np.float16) for _ in range(2)))


def problems() -> list[Problem]:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0x3F80, 0x4080, (rows, 256), dtype=np.uint16) for rows in (128, 256))  # 1 to 4 in bfloat16
    return [*one_instruction(), *layouts_and_widths(), cases.matrix_moves(1), *cases.tile_problems(),
            cases.exchange((4, 6)), cases.matmul_multicast(a, b)]


def digest(results: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(results).tobytes()).hexdigest()[:16]


def bits(results: list[np.ndarray]) -> np.ndarray:
    """Returns all that a problem has written, as bytes."""
    return np.concatenate([np.ascontiguousarray(a).view(np.uint8).ravel() for a in results])


def record(path: str, prefix: str) -> None:
    """Writes the device's results; the operands follow from the names of the problems."""
    from alpha.cuda.runtime.toolchain import NvccToolchain

    nvcc = NvccToolchain()
    chosen = [problem for problem in problems() if problem.name.startswith(prefix)]
    units = {(problem.source, tuple(problem.defines.items())) for problem in chosen}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda unit: nvcc.compile(KERNELS / unit[0], dict(unit[1]), "sm_90a"), units))
    run = Runner(nvcc)
    np.savez_compressed(path, **{problem.name: bits(run(problem)) for problem in chosen})


def compare(path: str) -> int:
    """Prints how many bytes differ in each problem, and returns their number."""
    load_driver()
    run, expected, total = Runner(EmulatedToolchain()), np.load(path), 0
    for problem in problems():
        if problem.name not in expected:
            continue
        ours, theirs = bits(run(problem)), expected[problem.name]
        differ = ours != theirs
        total += int(differ.sum())
        line = f"{problem.name:28} {differ.sum():6} of {differ.size} bytes differ"
        if differ.any():
            at = int(np.argmax(differ)) // 4 * 4
            words = (x[at:at + 4].tobytes().hex() for x in (theirs, ours))
            line += f", first at {at}: device {next(words)}, here {next(words)}"
        print(line)
    print(f"{total} differences")
    return total


def main(mode: str, path: str, prefix: str = "") -> int:
    if mode == "record":
        record(path, prefix)
    elif mode == "digest":
        digests = json.loads(DIGESTS.read_text()) | {name: digest(all_) for name, all_ in np.load(path).items()}
        DIGESTS.write_text(json.dumps(digests, indent=0) + "\n")
    return int(mode == "compare" and compare(path) > 0)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("record", "compare", "digest"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
