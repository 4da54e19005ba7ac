"""Products of matrices, and attention."""

from __future__ import annotations

import string

from alpha.interop.pytorch.build import Builder, Unsupported, Value
from alpha.interop.pytorch.graph import Node, Switch
from alpha.interop.pytorch.layout import Order, plain
from alpha.interop.pytorch.rules.registry import rule


def _matrices(b: Builder, value: Value, batch: Order) -> tuple[str, bool]:
    """Returns how a stack of matrices is written whose other axes lie in some order, and whether it is transposed."""
    r = value.ndim
    if value.order == (*batch, r - 1, r - 2):
        return value.text, True
    return b.to(value, (*batch, r - 2, r - 1)), False


@rule("matmul", "bmm", "mm")
def matmul(b: Builder, node: Node) -> Value:
    x, y = b.raw(node.args["self"]), b.raw(node.args.get("other", node.args.get("mat2")))
    return _product(b, node, x, y)


def _product(b: Builder, node: Node, x: Value, y: Value) -> Value:
    if x.ndim < 2 or y.ndim < 2:
        return b.result(node, f"ops.matmul({b.to(x, plain(x.ndim))}, {b.to(y, plain(y.ndim))})")
    if y.ndim == 2 and x.order[-1] == x.ndim - 1 and y.order == (1, 0):
        return b.result(node, f"F.linear({x.text}, {y.text})", x.order)
    batch = x.order[:-2]
    if x.ndim != y.ndim or y.order[:-2] != batch or {*batch} != {*range(x.ndim - 2)}:
        batch = plain(max(x.ndim, y.ndim) - 2)
    (left, turned), (right, also) = (_matrices(b, v, batch if v.ndim == node.ndim else plain(v.ndim - 2))
                                     for v in (x, y))
    flags = (", transpose_a=True" if turned else "") + (", transpose_b=True" if also else "")
    order = (*(batch if node.ndim - 2 == len(batch) else plain(node.ndim - 2)), node.ndim - 2, node.ndim - 1)
    return b.result(node, f"ops.matmul({left}, {right}{flags})", order)


@rule("addmm", "baddbmm")
def addmm(b: Builder, node: Node) -> Value:
    a = node.args
    x, y = (b.raw(a[name]) for name in (("mat1", "mat2") if node.op == "addmm" else ("batch1", "batch2")))
    made = _product(b, node, x, y)
    product = made.text if a["alpha"] == 1 else f"{b.setting(a['alpha'])} * {made.text}"
    if a["beta"] == 0:
        return b.result(node, product, made.order)
    added = b.to(b.raw(a["self"]), made.order, node.ndim)
    return b.result(node, f"{product} + {added if a['beta'] == 1 else b.setting(a['beta']) + ' * ' + added}",
                    made.order)


@rule("dot", "mv", "outer")
def vectors(b: Builder, node: Node) -> Value:
    texts = [b.plain(x) for x in node.inputs()]
    return b.result(node, f"ops.{node.op}({', '.join(texts)})")


@rule("einsum")
def einsum(b: Builder, node: Node) -> Value:
    equation, values = node.args["equation"].replace(" ", ""), [b.raw(x) for x in node.args["tensors"]]
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        raise Unsupported("its equation has no ->")
    free = [c for c in string.ascii_letters if c not in equation]
    dots = max([v.ndim - len(t.replace("...", "")) for t, v in zip(terms, values) if "..." in t], default=0)

    def whole(term: str, count: int) -> str:
        return term.replace("...", "".join(free[dots - count:dots]))

    terms = [whole(t, v.ndim - len(t.replace("...", ""))) for t, v in zip(terms, values)]
    right = whole(right, dots)
    order = next((tuple([right.index(t[k]) for k in v.order]) for t, v in zip(terms, values)
                  if sorted(t) == sorted(right)), plain(len(right)))
    turned = ["".join([t[k] for k in v.order]) for t, v in zip(terms, values)]
    result = "".join([right[k] for k in order])
    return b.result(node, f'ops.einsum("{",".join(turned)}->{result}", {", ".join([v.text for v in values])})', order)


@rule("scaled_dot_product_attention")
def attention(b: Builder, node: Node) -> Value:
    a = node.args
    if a.get("enable_gqa"):
        raise Unsupported("enable_gqa is set")
    q, k, v = (b.raw(a[name]) for name in ("query", "key", "value"))
    r = q.ndim
    order = q.order if q.order[-2:] == (r - 2, r - 1) and q.order == k.order == v.order and a["attn_mask"] is None \
        else plain(r)
    texts = [b.to(x, order if x.ndim == r else plain(x.ndim)) for x in (q, k, v)]
    settings = ""
    if a["attn_mask"] is not None:
        mask = b.raw(a["attn_mask"])
        settings += f", attn_mask={b.cast(mask, b.plain(a['attn_mask']), 'bool' if mask.dtype == 'bool' else q.dtype)}"
    if a["dropout_p"] != 0.0:
        p = a["dropout_p"]
        settings += f", dropout_p={b.setting(p if isinstance(p, Switch) else float(p))}"
    for name in ("is_causal", "scale"):
        if a.get(name):
            settings += f", {name}={b.setting(a[name])}"
    return b.result(node, f"F.scaled_dot_product_attention({', '.join(texts)}{settings})", order)


@rule("multi_head_attention")
def multi_head_attention(b: Builder, node: Node) -> Value:
    x, layer = b.raw(node.args["input"]), b.layers.called(node)
    if not layer:
        raise Unsupported("add_bias_kv, add_zero_attn, kdim and vdim are not there")
    text = b.to(x, plain(3))
    return b.result(node, f"{layer}({text}, {text}, {text}, need_weights=False)[0]")
