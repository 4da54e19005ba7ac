"""Attention on CUDA: every width of tiles and mode against float64, masks, dropout, layouts, whole rows hidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.cpu.attention import reference
from alpha.cuda.ops import attention as module
from alpha.gradcheck import assert_equal_at
from alpha.ops.attention import attention, attention_grad
from alpha.ops.attention.desc import describe
from tests.op_checks import floats

pytestmark = pytest.mark.cuda

DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ERRORS = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 1e-2, "fp16": 1.5e-3}


def _compare(precision: str, shapes: list[tuple[int, ...]], mask: np.ndarray | None = None, **how: Any) -> None:
    """y, lse and the gradients against NumPy's in float64, of elements that the dtype has."""
    dtype = DTYPES[precision]
    n, h, rows, ev = (*shapes[0][:3], shapes[2][3])
    tensors = [alpha.tensor(floats(s, j).astype(np.float32), device="cuda").astype(dtype) for j, s in enumerate(
        (*shapes, (n, h, rows, ev)))]
    q, k, v, g = (t.astype("float32").numpy().astype(np.float64) for t in tensors)
    how = dict(dict(causal=False, scale=shapes[0][3]**-0.5, p=0.0, seed=5, offset=7), **how)
    given = None if mask is None else alpha.tensor(mask, device="cuda")
    if given is not None and mask.dtype != bool:
        given = given.astype(dtype)
        mask = given.astype("float32").numpy().astype(np.float64)
    desc = describe(q.shape, k.shape, v.shape, 0, True)
    with alpha.precision(precision), np.errstate(divide="ignore"):
        y, lse = attention.full(*tensors[:3], given, **how)
        found = y, *attention_grad(tensors[3], *tensors[:3], given, y, lse, heads=0, batch_first=True, **how)
        expected = reference.forward(desc, q, k, v, mask, **how)
        wanted = expected[0], *reference.gradients(desc, g, q, k, v, mask, *expected, **how)
    assert_equal_at(lse, expected[1], rtol=1e-2, atol=1e-2)
    for a, b in zip(found, wanted):
        assert np.linalg.norm(a.astype("float32").numpy() - b) <= ERRORS[precision] * np.linalg.norm(b)


def _heads(rows: int, keys: int, e: int, ev: int, n: int = 1, h: int = 2) -> list[tuple[int, ...]]:
    return [(n, h, rows, e), (n, h, keys, e), (n, h, keys, ev)]


@pytest.mark.parametrize("precision", list(DTYPES))
def test_errors_are_those_of_the_mode(device, precision):
    _compare(precision, _heads(65, 65, 64, 64))
    _compare(precision, _heads(70, 70, 16, 24), causal=True, p=0.25)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("e, ev", [(5, 3), (72, 128), (130, 192), (256, 256)])
def test_every_width_of_tiles(device, precision, e, ev):
    _compare(precision, _heads(17, 35, e, ev, h=1), causal=e == 5)


@pytest.mark.classes
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_masks(device, precision):
    seen = np.random.default_rng(3).random((2, 1, 20, 37)) < 0.5
    seen[0, 0, 1] = False       # a query that sees no key
    _compare(precision, _heads(20, 37, 8, 8, n=2), seen, p=0.5)
    _compare(precision, _heads(20, 37, 8, 8, n=2), floats((2, 20, 37), 5).astype(np.float32))
    _compare(precision, _heads(20, 37, 8, 8, n=2), np.where(seen[:, :, :1], 0, -np.inf).astype(np.float32))


def test_a_query_that_sees_no_key_has_no_result_and_no_gradient(device):
    xs = [alpha.tensor(floats((1, 1, 3, 8), k).astype(np.float32), device="cuda", requires_grad=True) for k in range(3)]
    mask = alpha.tensor(np.array([[True, False, True], [False] * 3, [True] * 3]), device="cuda")
    y = F.scaled_dot_product_attention(*xs, mask)
    y.sum().backward()
    assert (y.detach().numpy()[0, 0, 1] == 0).all() and (xs[0].grad.numpy()[0, 0, 1] == 0).all()
    assert all(np.isfinite(x.grad.numpy()).all() for x in xs)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("counts", [(3,), (1, 2), (1, 1, 1)])
def test_heads_are_read_where_a_layer_has_put_them(device, batch_first, counts):
    n, h, rows, e, keys = 2, 2, 5, 8, 5 if len(counts) == 1 else 7
    lengths = [rows, keys, keys][:len(counts)]
    arrays = [floats((n, length, c * h * e) if batch_first else (length, n, c * h * e), k).astype(np.float32)
              for k, (length, c) in enumerate(zip(lengths, counts))]

    def found(where: str) -> list[np.ndarray]:
        xs = [alpha.tensor(a, device=where, requires_grad=True) for a in arrays]
        y = attention(*xs, heads=h, batch_first=batch_first, scale=0.7, p=0.25, seed=3, offset=5)
        return [t.detach().numpy() for t in (y, *alpha.grad((y * y).sum(), xs))]
    for a, b in zip(found("cuda"), found("cpu")):
        assert_equal_at(a, b, rtol=1e-4, atol=1e-5)


def test_an_encoder_agrees_with_the_cpu(device):
    layer = nn.TransformerEncoderLayer(16, 2, 16, 0.0, batch_first=True)
    x = floats((2, 9, 16), 1).astype(np.float32)

    def found(where: str) -> list[np.ndarray]:
        layer.to(where).zero_grad()
        ops.sum(layer(alpha.tensor(x, device=where), is_causal=True) ** 2).backward()
        return [p.grad.numpy() for p in layer.parameters()]
    for a, b in zip(found("cpu"), found("cuda")):
        assert_equal_at(b, a, rtol=1e-3, atol=1e-4)


def test_without_tensor_cores_attention_is_composed(device):
    xs = [alpha.tensor(floats((1, 1, 3, 8), k).astype(np.float32), device="cuda") for k in range(3)]
    with alpha.profiler() as p, alpha.config(tensor_cores=False):
        F.scaled_dot_product_attention(*xs)
    assert "attention" not in {call.op for call in p.calls}


def test_every_tile_fits_into_shared_memory():
    for tiles, rows in ((module.FORWARD, 1), (module.BACKWARD, 2)):
        assert all(tile.shared(head, itemsize, rows) <= 96 << 10 and head % tile.span == 0
                   for (itemsize, head), tile in tiles.items())
