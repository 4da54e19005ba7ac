"""The op attention on the CPU: against float64 and NumPy, all layouts, masks, dropout, refusals, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.cpu import native
from alpha.cpu.attention import of_attention, of_gradients, reference
from alpha.errors import AlphaError
from alpha.gradcheck import assert_equal_at
from alpha.ops.attention import attention, attention_grad, composed_alone
from alpha.ops.attention.desc import describe
from tests.op_checks import floats, refused

pytestmark = pytest.mark.same_without_kernels("both ways are tested here")

PROMISE = 2e-6
# n, heads, rows, keys, width, value_width, mask, causal, p
CASES = [(2, 3, 65, 65, 64, 64, "", False, 0), (1, 2, 70, 300, 19, 33, "bool", False, 0.25),
         (2, 2, 130, 130, 24, 24, "", True, 0.1), (1, 1, 5, 7, 1, 1, "added", False, 0),
         (1, 1, 100, 130, 200, 256, "", True, 0), (1, 2, 33, 129, 16, 16, "keys", False, 0.5),
         (1, 2, 3, 2, 5, 4, "bool", True, 1)]


def _mask(kind: str, n: int, h: int, rows: int, keys: int) -> np.ndarray | None:
    rng = np.random.default_rng(3)
    if kind == "bool":
        made = rng.random((n, 1, rows, keys)) < 0.5
        made[0, 0, 1] = False       # a query that sees no key
        return made
    if kind == "added":
        return floats((h, rows, keys), 5).astype(np.float32)
    return np.where(rng.random((n, 1, 1, keys)) < 0.5, 0, -np.inf).astype(np.float32) if kind else None


def _wide(*arrays: np.ndarray | None) -> list[Any]:
    return [a if a is None or a.dtype == bool else a.astype(np.float64) for a in arrays]


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_keeps_the_promise_of_float32(case: tuple[Any, ...]) -> None:
    if native.library() is None:
        pytest.skip("there are no compiled kernels")
    n, h, rows, keys, e, ev, kind, causal, p = case
    q, k, v, g = (floats(s, j).astype(np.float32) for j, s in enumerate(
        ((n, h, rows, e), (n, h, keys, e), (n, h, keys, ev), (n, h, rows, ev))))
    mask, how = _mask(kind, n, h, rows, keys), dict(causal=causal, scale=e**-0.5, p=p, seed=5, offset=7)
    desc = describe(q.shape, k.shape, v.shape, 0, True)
    y, lse = of_attention(desc, q, k, v, mask, **how)
    with np.errstate(divide="ignore"):
        expected = reference.forward(desc, *_wide(q, k, v, mask), **how)
    assert_equal_at(lse, expected[1], rtol=1e-6, atol=1e-6)
    found = (y, *of_gradients(desc, g, q, k, v, mask, y, lse, **how))
    for a, b in zip(found, (expected[0], *reference.gradients(desc, *_wide(g, q, k, v, mask), *expected, **how))):
        assert np.linalg.norm(a - b) <= PROMISE * np.linalg.norm(b)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_bits_depend_on_shapes_alone(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = [alpha.tensor(floats((1, 1, 300, 20), k).astype(np.float32), requires_grad=True) for k in range(3)]
    found = []
    for count in (1, threads):
        monkeypatch.setattr(config, "num_threads", count)
        y = F.scaled_dot_product_attention(*xs, is_causal=True)
        y.backward(ops.ones(y.shape))
        found.append([y.detach().numpy(), *[x.grad.numpy().copy() for x in xs]])
        for x in xs:
            x.grad = None
    assert all((a == b).all() for a, b in zip(*found))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("counts", [(3,), (1, 2), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_heads_are_read_where_a_layer_has_put_them(batch_first: bool, counts: tuple[int, ...], dtype: str) -> None:
    n, h, rows, e = 2, 3, 5, 4
    keys = rows if len(counts) == 1 else 7
    lengths = [rows, keys, keys][:len(counts)]
    xs = [alpha.tensor(floats((n, length, c * h * e) if batch_first else (length, n, c * h * e), k).astype(dtype),
                       requires_grad=True) for k, (length, c) in enumerate(zip(lengths, counts))]
    how = dict(causal=False, scale=0.7, p=0.25, seed=3, offset=4)

    def apart() -> list[alpha.Tensor]:
        order = (2, 0, 3, 1, 4) if batch_first else (2, 1, 3, 0, 4)
        return [part for x, c in zip(xs, counts) for part in ops.unbind(
            x.reshape(*x.shape[:2], c, h, e).permute(order))]
    y = attention(*xs, **dict.fromkeys(("k", "v")[len(xs) - 1:]), heads=h, batch_first=batch_first, **how)
    z = attention(*apart(), **how).permute((0, 2, 1, 3) if batch_first else (2, 0, 1, 3)).reshape(y.shape)
    assert_equal_at(y.detach(), z.detach().numpy(), rtol=1e-6, atol=1e-6)
    found = [alpha.grad((t * t).sum(), xs, retain_graph=True, create_graph=made)
             for t, made in ((y, False), (z, False), (y, True))]
    for others in found[1:]:
        for a, b in zip(found[0], others):
            assert_equal_at(a.detach(), b.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_composed_form_has_the_same_dropout() -> None:
    xs = [alpha.tensor(floats((2, 2, 9, 4), k)) for k in range(3)]
    alpha.manual_seed(4)
    y = F.scaled_dot_product_attention(*xs, dropout_p=0.5)
    alpha.manual_seed(4)
    with composed_alone():
        assert_equal_at(F.scaled_dot_product_attention(*xs, dropout_p=0.5), y.numpy(), rtol=1e-10, atol=1e-10)


def test_shapes_broadcast_and_may_have_any_number_of_axes() -> None:
    q, k, v = (alpha.tensor(floats(s, j)) for j, s in enumerate(((2, 3, 2, 5, 4), (2, 6, 4), (6, 3))))
    mask = alpha.tensor(floats((3, 1, 5, 6), 4) > 0)
    y = F.scaled_dot_product_attention(q, k, v, mask)
    with composed_alone():
        assert_equal_at(y, F.scaled_dot_product_attention(q, k, v, mask).numpy(), rtol=1e-12, atol=1e-12)
    assert y.shape == (2, 3, 2, 5, 3)
    assert F.scaled_dot_product_attention(q[:0], k, v).shape == (0, 3, 2, 5, 3)


def test_wide_heads_and_masks_with_gradients_are_composed() -> None:
    wide = [alpha.tensor(floats((1, 3, 300), k).astype(np.float32), requires_grad=True) for k in range(3)]
    bias = alpha.zeros((3, 3), requires_grad=True)
    for xs, mask in ((wide, None), ([x[..., :5] for x in wide], bias)):
        F.scaled_dot_product_attention(*xs, mask).sum().backward()
    assert bias.grad is not None and wide[0].grad is not None


def test_special_values() -> None:
    """NaN stays in its row; a score of infinity is NaN, as softmax has it; -infinity alone hides a key."""
    q, k = np.ones((1, 1, 3, 2), np.float32), np.ones((1, 1, 4, 2), np.float32)
    q[0, 0, 1, 0] = np.nan
    y = F.scaled_dot_product_attention(*map(alpha.tensor, (q, k, k))).numpy()
    assert np.isnan(y[0, 0, 1]).all() and (y[0, 0, [0, 2]] == 1).all()
    q[0, 0, 1, 0], k[0, 0, 2, 0] = 1, np.inf
    assert np.isnan(F.scaled_dot_product_attention(*map(alpha.tensor, (q, k, k))).numpy()[..., 0]).all()
    k[0, 0, 2, 0], values = -np.inf, np.arange(8, dtype=np.float32).reshape(1, 1, 4, 2)
    y = F.scaled_dot_product_attention(*map(alpha.tensor, (q, k, values))).numpy()
    assert_equal_at(y[0, 0, 0], values[0, 0, [0, 1, 3]].mean(0), rtol=1e-6)


def test_float16_is_computed_in_float32() -> None:
    xs = [floats((1, 2, 40, 8), k).astype(np.float16) for k in range(3)]
    y = F.scaled_dot_product_attention(*map(alpha.tensor, xs))
    wide = F.scaled_dot_product_attention(*[alpha.tensor(x.astype(np.float32)) for x in xs]).numpy()
    assert y.dtype == "float16" and (y.numpy() == wide.astype(np.float16)).all()


def test_no_scores_are_kept_for_backward() -> None:
    x = alpha.tensor(floats((1, 4, 512, 16), 1).astype(np.float32), requires_grad=True)
    before = get_backend("cpu").memory_stats()["live"]
    with alpha.profiler() as p:
        F.scaled_dot_product_attention(x, x, x).sum().backward()
    scores = 4 * 4 * 512 * 512
    assert p.peak - before < scores / 2


def test_the_layer_calls_one_op() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = alpha.tensor(floats((2, 5, 8), 1).astype(np.float32))
    with alpha.profiler() as p:
        layer(x, x, x, need_weights=False)
    assert [c.op for c in p.calls if c.op not in ("reshape",)] == ["linear", "attention", "linear"]


X = alpha.ones((2, 3, 8))
H = alpha.ones((2, 2, 3, 4))
REFUSED: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: attention(X, None, None, heads=2), ("q has shape (2, 3, 8)", "multiple of heads=2")),
    (lambda: attention(H, H, alpha.ones((2, 2, 4, 4))), ("v has (2, 2, 4, 4)", "(N, H, S, EV)")),
    (lambda: attention(X, X, alpha.ones((2, 4, 8)), heads=2), ("v has (2, 4, 8)", "as many values as keys")),
    (lambda: attention(H, H, H, alpha.ones((2, 2)).bool()), ("mask", "(2, 2)", "broadcast")),
    (lambda: attention(H, H, H, alpha.ones((5, 2, 3, 3)).bool()), ("(5, 2, 3, 3)", "broadcast")),
    (lambda: attention(H, H, H, alpha.ones((3, 3), "int64")), ("mask has dtype int64, q has float32",)),
    (lambda: attention_grad(X, H, H, H, None, H, alpha.ones((2, 2, 3)), heads=0, batch_first=True, causal=False,
                            scale=1.0, p=0.0, seed=0, offset=0), ("are not those of attention", "one call")),
]


@pytest.mark.parametrize("call, said", REFUSED)
def test_refusals_name_the_shapes(call: Callable[[], Any], said: tuple[str, ...]) -> None:
    with refused(AlphaError, *said):
        call()
