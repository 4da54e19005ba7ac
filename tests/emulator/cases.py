"""Launches of the kernels for tensor cores, tiles and clusters, and what must come out: for tests, and for a GPU."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import numpy as np

from tests.emulator.runner import Out, Problem, Tiles

WIDTHS = range(8, 257, 8)


def zeros(*shape: int, dtype: str = "float32") -> Out:
    return Out(np.zeros(shape, dtype))


def swizzled(at: np.ndarray, span: int) -> np.ndarray:
    """Returns where TMA and wgmma put byte `at` of a tile: chunks of 16 bytes change places by the bits above."""
    return at ^ (at >> 3 & (span // 16 - 1) * 16) if span else at


# ---- wgmma


def operand_image(words: np.ndarray, span: int, mn_major: bool) -> tuple[np.ndarray, bytes]:
    """Returns an operand as it lies in shared memory, and the kernel's Layout of it.

    Args:
        words: (rows, K), a row along K of each row of A or column of B; K is 64 bytes, that of two instructions.
        span: bytes of the swizzle, or 0.
        mn_major: is M or N contiguous?
    """
    rows, size = len(words), words.itemsize
    row, k = np.indices(words.shape)
    per_chunk, lbo, sbo = 16 // size, 16, 8 * span
    if mn_major and span:
        lbo, sbo = 32 // 8 * 8 * span, 8 * span
        at = row // (span // size) * lbo + k // 8 * sbo + k % 8 * span + row % (span // size) * size
    elif mn_major:
        lbo, sbo = 128, 32 // 8 * 128
        at = row // 8 * sbo + k // 8 * lbo + k % 8 * 16 + row % 8 * size
    elif span:
        at = k * size // span * rows * span + row * span + k * size % span
    else:
        lbo, sbo = 128, 64 // 16 * 128
        at = row // 8 * sbo + k // per_chunk * lbo + row % 8 * 16 + k % per_chunk * size
    image = np.zeros((int(at.max()) // 1024 + 1) * 1024 // size, words.dtype)
    image[swizzled(at, span) // size] = words
    image, step = image.view(np.uint32), int(at[0, words.shape[1] // 2])
    return image, struct.pack("5i", image.size, span, lbo, sbo, step)


def wgmma_layout(kind: str, a: np.ndarray, b: np.ndarray, a_mn: bool, b_mn: bool, a_span: int, b_span: int) -> Problem:
    """d = a b^T; a (64, K), b (128, K) as words of the format."""
    (a_image, of_a), (b_image, of_b) = operand_image(a, a_span, a_mn), operand_image(b, b_span, b_mn)
    majors = "km"[a_mn] + "km"[b_mn]
    return Problem(f"layout_{kind}_{majors}_{a_span}_{b_span}", "wgmma_sm90.cu", f"layouts_{kind}_{majors}",
                   (a_image, b_image, zeros(64, 128), of_a, of_b), shared=a_image.nbytes + b_image.nbytes)


def majors_and_spans(kind: str) -> list[tuple[bool, bool, int, int]]:
    """Every layout of each operand, with both layouts of the other."""
    majors = [(False, False)] if kind == "tf32" else list(itertools.product((False, True), repeat=2))
    return [(*major, span, span) for major in majors for span in (128, 64, 32, 0)] + [(*majors[-1], 128, 0)]


def wgmma_widths(kind: str, source: str, a: np.ndarray, b: np.ndarray) -> Problem:
    """d[N / 8 - 1, :, :N] = 2 a b^T for all N; a (64, 32 bytes), b (256, 32 bytes); source: ss or rs."""
    return Problem(f"widths_{source}_{kind}", "wgmma_sm90.cu", f"widths_{source}_{kind}",
                   (a.view(np.uint32), b.view(np.uint32), zeros(len(WIDTHS), 64, 256)), (len(WIDTHS), 1, 1),
                   shared=320 * 32)


def wgmma_signs(a: np.ndarray, b: np.ndarray) -> Problem:
    """a (64, 16), b (64, 16), float16."""
    return Problem("signs", "wgmma_sm90.cu", "signs",
                   (a.view(np.uint32), np.ascontiguousarray(b.T).view(np.uint32), zeros(4, 64, 64)), shared=2048)


# ---- ldmatrix and stmatrix


def matrix_moves(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, (2, 128), dtype=np.uint32)
    return Problem("matrix_moves", "matrix_moves_sm90.cu", "matrix_moves",
                   (words[0], words[1], zeros(6, 4, 32, dtype="uint32"), zeros(6, 128, dtype="uint32")), threads=32)


def expected_moves(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    source, registers = (x.view(np.uint16) for x in problem.arguments[:2])
    matrices = source.reshape(4, 8, 8)[:, ::-1]                # [matrix][row][column], rows lie in reverse order
    fragments = registers.reshape(4, 8, 8)                     # register i of lane 4r + c: columns 2c, 2c + 1 of row r
    loaded, stored = np.zeros((6, 4, 8, 8), np.uint16), np.zeros((6, 4, 8, 8), np.uint16)
    for form in range(6):
        count = (1, 2, 4)[form % 3]
        for i in range(count):
            turn = (lambda m: m.T) if form >= 3 else (lambda m: m)
            loaded[form, i] = turn(matrices[i])
            stored[form, i] = turn(fragments[i])[::-1]
    return loaded.reshape(6, 4, 64).view(np.uint32), stored.reshape(6, 256).view(np.uint32)


# ---- TMA


def tile_extent(tiles: Tiles) -> tuple[int, ...]:
    """Returns the shape of a tile, as NumPy has it."""
    return tuple(-(-b // s) for b, s in zip(tiles.box, tiles.steps or [1] * len(tiles.box)))[::-1]


def tile_index(tiles: Tiles, corner: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the indices of a tile's elements along each dimension, clipped, and which of them exist."""
    array = tiles.of.before if isinstance(tiles.of, Out) else tiles.of
    sizes = (*array.shape[:-1], array.shape[-1] if tiles.inner is None else tiles.inner)
    steps = (tiles.steps or [1] * array.ndim)[::-1]
    at = [c + s * np.arange(n) for c, s, n in zip(corner[::-1], (*steps[:-1], 1), tile_extent(tiles))]
    exist = np.meshgrid(*[(a >= 0) & (a < n) for a, n in zip(at, sizes)], indexing="ij")
    return [np.clip(a, 0, n - 1) for a, n in zip(at, sizes)], np.logical_and.reduce(exist)


def move_tile(name: str, x: Tiles, y: Tiles, corner: Sequence[int], target: Sequence[int], multicast: bool = False
              ) -> Problem:
    """y's tile at `target` becomes x's tile at `corner`, and the bytes of shared memory come back."""
    rank = len(x.box)
    nbytes = int(np.prod(tile_extent(x))) * x.of.itemsize
    room = 2 * -(-nbytes // 1024) * 1024
    places = (np.resize(np.array(at, np.int32), 5).tobytes() for at in (corner, target))
    return Problem(name, "tiles_sm90.cu", f"move_tile_{rank}",
                   (x, y, zeros(room, dtype="uint8"), *places, nbytes, room // 4, int(multicast)), threads=32,
                   shared=room)


def expected_tile(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Returns y and the bytes of shared memory after move_tile."""
    x, y, raw, corner, target = problem.arguments[:5]
    rank = len(x.box)
    index, exist = tile_index(x, struct.unpack("5i", corner)[:rank])
    tile = np.where(exist, x.of[np.ix_(*index)], 0).astype(x.of.dtype)
    index, exist = tile_index(y, struct.unpack("5i", target)[:rank])
    moved = y.of.before.copy()
    for place, value, there in zip(itertools.product(*index), tile.ravel(), exist.ravel()):
        if there:
            moved[place] = value
    memory = (np.arange(raw.before.size // 4, dtype=np.uint32) * np.uint32(0x01010101)).view(np.uint8)
    memory[swizzled(np.arange(tile.nbytes), x.span)] = np.ascontiguousarray(tile).view(np.uint8).ravel()
    return moved, memory


def tile_problems() -> list[Problem]:
    """Moves of tiles of every rank, type and swizzle, with steps, from and to places inside, across and outside."""
    found = []
    for rank, (dtype, span) in itertools.product(range(1, 6), (("float16", 128), ("uint16", 64), ("float32", 32),
                                                               ("uint8", 0), ("float32", 128), ("uint8", 128))):
        name = f"tile_{rank}_{dtype}_{span}"
        rng = np.random.default_rng(list(name.encode()))
        size = np.dtype(dtype).itemsize
        inner = (span or 48) // size
        sizes = [int(n) for n in rng.integers(2, 6, rank - 1)]
        steps = [1, *(int(s) for s in rng.integers(1, 4, rank - 1))]
        box = [inner, *(int(n) for n in rng.integers(1, 9, rank - 1))]
        width = inner * 2
        x, y = (rng.integers(0, 100, (*sizes, width)).astype(dtype) for _ in range(2))
        corner = [int(rng.integers(-inner // 2, width)), *(int(c) for c in rng.integers(-2, 4, rank - 1))]
        target = [int(rng.integers(-inner // 2, width)), *(int(c) for c in rng.integers(-2, 4, rank - 1))]
        existing = width - int(rng.integers(1, inner))
        found.append(move_tile(name, Tiles(x, box, span, steps, existing), Tiles(Out(y), box, span, steps, existing),
                               corner, target, multicast=bool(rank % 2)))
    return found


# ---- clusters


def exchange(grid: tuple[int, int]) -> Problem:
    blocks = grid[0] * grid[1]
    return Problem("cluster_exchange", "clusters_sm90.cu", "exchange", (zeros(blocks, 64, dtype="int32"),),
                   (*grid, 1), 64, shared=4 * 64 * 4)


def expected_exchange(grid: tuple[int, int]) -> np.ndarray:
    columns, rows = grid
    out = np.zeros((rows * columns, 64), np.int64)
    t = np.arange(64)
    for y, x in np.ndindex(rows, columns):
        cluster = [(y // 2 * 2 + r // 2) * columns + x // 2 * 2 + r % 2 for r in range(4)]
        rank = y % 2 * 2 + x % 2
        received = sum((block * 100 + t) * (rank + 1) for block in cluster)
        out[y * columns + x] = cluster[(rank + 1) % 4] * 100 + t + received + 15_000_000
    return out


def matmul_multicast(a: np.ndarray, b: np.ndarray) -> Problem:
    """C = a b^T, bf16 as uint16; a (M, K), b (N, K)."""
    (M, K), N = a.shape, len(b)
    return Problem("cluster_multicast", "clusters_sm90.cu", "matmul_multicast",
                   (Tiles(a, (64, 32), 128), Tiles(b, (64, 64), 128), zeros(M, N), N, K), (N // 64, M // 64, 1), 160,
                   shared=4 * 8192)
