"""Kernels of every kind run on the emulated driver, plain and checked, and their results are right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.harness import RNG, STORED, empty, integers, launch, put, tensor_map, to_bf16

pytestmark = pytest.mark.emulator
both = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])


@both
def test_matmul_ffma(checked: bool) -> None:
    M, N, K = 128, 192, 80
    A, B, C = integers(M, K), integers(K, N), empty((M, N))
    args = put(A), put(B), C, M, N, K, np.float32(2)
    launch("matmul_ffma:matmul_ffma", "PPPiiif", (N // 64, M // 64), (16, 16), *args, checked=checked)
    assert np.array_equal(C.get(), 2 * A @ B)


@both
@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
def test_reduction_with_shuffles(threads: int, checked: bool) -> None:
    x, n, blocks = integers(5000), 4987, 3
    s, m, p = empty(blocks), empty(blocks), put(np.zeros(1, np.int32))
    launch("reduce:reduce", "PPPPi", blocks, threads, put(x), s, m, p, n, checked=checked)
    x = x[:n]
    assert s.get().sum() == x.sum() and m.get().max() == x.max() and p.get()[0] == (x > 0).sum()


@both
def test_16_bit_arithmetic(checked: bool) -> None:
    x, u16 = RNG.standard_normal(300).astype(np.float16), to_bf16(RNG.standard_normal(300))
    y, v = empty(300, np.float16), empty(300, np.uint16)
    args = put(x), y, put(u16), v, np.float32(1.5), np.float32(0.25), 300
    launch("reduce:axpb_half", "PPPPffi", 3, 128, *args, checked=checked)
    assert np.array_equal(y.get(), (x.astype(np.float64) * 1.5 + 0.25).astype(np.float16))
    u = (u16.astype(np.uint32) << 16).view(np.float32)
    f = (u * np.float32(1.5) + np.float32(0.25)).view(np.uint32)
    assert np.array_equal(v.get(), ((f + 0x7FFF + (f >> 16 & 1)) >> 16).astype(np.uint16))  # to nearest, ties to even


@both
def test_functions_of_one_instruction(checked: bool) -> None:
    x, y = np.append(RNG.standard_normal(99) * 8, np.inf).astype(np.float32), empty((3, 100))
    launch("functions:functions", "PPi", 1, 128, put(x), y, 100, checked=checked)
    reciprocal, power, tf32 = y.get()
    assert np.allclose(reciprocal, 1 / x, rtol=3e-7, atol=0) and np.allclose(power, np.exp2(x), rtol=3e-7, atol=0)
    mantissa, exponent = np.frexp(x[:-1].astype(np.float64))
    rounded = np.trunc(mantissa * 2048 + np.copysign(0.5, mantissa)) / 2048  # 11 bits, ties away from zero
    assert np.array_equal(tf32[:-1], np.ldexp(rounded, exponent)) and tf32[-1] == np.inf


@both
@pytest.mark.parametrize("K", [4, 16, 36, 132])
def test_cp_async_double_buffer(K: int, checked: bool) -> None:
    rows, y = 200, empty(200)
    x, w = integers(rows, K), integers(K)
    launch("async_copy:dot_rows", "PPPii", 2, 128, put(x), put(w), y, rows, K, shared=2 * 129 * 64, checked=checked)
    assert np.array_equal(y.get(), x @ w)


@both
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_matmul_mma_is_exact_on_integers(kind: str, checked: bool) -> None:
    M, N, K = 64, 128, 96
    A, B, C = integers(M, K), integers(N, K), empty((M, N))
    a, b = STORED[kind](A), STORED[kind](B)
    args = put(a), put(b), C, N, K * a.itemsize
    launch(f"matmul_mma:matmul_{kind}", "PPPii", (N // 64, M // 64), 128, *args, checked=checked)
    assert np.array_equal(C.get(), A @ B.T)


def test_mma_truncates_like_tensor_cores() -> None:
    A, B, C = np.zeros((64, 32), np.float16), np.zeros((64, 32), np.float16), empty((64, 64))
    A[:, 0], A[:, 16] = 1, 2.0**-12
    B[:, 0], B[:, 16] = 1, 1.5 * 2.0**-12
    launch("matmul_mma:matmul_f16", "PPPii", 1, 128, put(A), put(B), C, 64, 64)
    assert (C.get() == 1).all()  # 1 + 1.5 * 2^-24: rounding to nearest would give 1 + 2^-23


MAJORS = {"nt": (False, False), "nn": (False, True), "tn": (True, True)}  # in BLAS letters: is A, is B [K][...]?


def matmul_sm90(M: int, N: int, K: int, majors: str = "nt", kind: str = "bf16", checked: bool = False,
                defines: tuple[str, ...] = ()) -> None:
    """C = A B^T by TMA and wgmma on integers, asserted to be exact."""
    A, B, C = integers(M, K), integers(N, K), empty((M, N))
    a, b = (put(STORED[kind](X.T if k_first else X)) for X, k_first in zip((A, B), MAJORS[majors]))
    maps = [tensor_map(a, (64, 64), 128), tensor_map(b, (64, 64), 128), tensor_map(C, (32, 64))]
    launch(f"matmul_sm90:matmul_{kind}_{majors}", "128s128s128si", (-(-N // 64), -(-M // 64)), 160, *maps, K,
           shared=48 * 1024, checked=checked, defines=defines)
    assert np.array_equal(C.get(), A @ B.T)


@both
@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_matmul_by_tma_and_wgmma(kind: str, majors: str, checked: bool) -> None:
    matmul_sm90(64, 64, 64, majors, kind, checked)
    matmul_sm90(104, 136, 320, majors, kind, checked)  # tails: TMA fills zeros and clips stores


@both
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("name, defines, rows, columns, threads",
                         [("mma", (), 16, 8, 32), ("wgmma", ("HOPPER",), 64, 64, 128)])
def test_one_instruction(name: str, defines: tuple[str, ...], rows: int, columns: int, threads: int, kind: str,
                         checked: bool) -> None:
    k = 8 if kind == "tf32" else 16
    A, B, C, D = integers(3, rows, k), integers(3, columns, k), integers(3, rows, columns), empty((3, rows, columns))
    launch(f"tensor_core:{name}_{kind}", "PPPP", 3, threads, put(STORED[kind](A)), put(STORED[kind](B)), put(C), D,
           shared=16384, checked=checked, defines=defines)
    assert np.array_equal(D.get(), A @ B.transpose(0, 2, 1) + C)


@both
@pytest.mark.parametrize("seed", ["1", "2"])
def test_results_do_not_depend_on_thread_order(seed: str, checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_SEED", seed)
    test_matmul_ffma(checked)
    test_cp_async_double_buffer(132, checked)
    test_matmul_mma_is_exact_on_integers("f16", checked)
    test_reduction_with_shuffles(96, checked)
    test_matmul_by_tma_and_wgmma("bf16", "nn", checked)


@pytest.mark.parametrize("seed", range(6))
def test_correct_patterns_raise_no_alarm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_SEED", str(seed))
    x, y = put((np.arange(1024) % 13).astype(np.float32)), [empty(512), empty(512)]
    for checked in (False, True):
        launch("patterns:patterns", "PP", 2, 256, x, y[checked], checked=checked)
    a = x.get()
    own = (a[:256] + a[255::-1] + (256 - np.arange(256)) % 256).reshape(8, 32).sum(1)
    want = np.repeat(own, 32) + 1 + a.reshape(32, 32).T.reshape(4, 8, 32).sum(0).ravel() + 3
    want[:64] += want[[32] * 32 + [0] * 32]
    assert np.array_equal(y[0].get()[:256], want + 16) and np.array_equal(y[0].get(), y[1].get())
