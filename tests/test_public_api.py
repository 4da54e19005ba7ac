"""The public names: what `alpha` and `alpha.ops` offer, their docstrings, and the typed signatures beside them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import alpha
from alpha import ops
from alpha.core.op import Op

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
STUB = ast.parse((Path(ops.__file__).parent / "__init__.pyi").read_text())
SIGNATURES = {node.name: node.args for node in STUB.body if isinstance(node, ast.FunctionDef)}
TYPED = set(SIGNATURES) | {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}


def parameters(f: object) -> list[str]:
    if isinstance(f, Op):
        return [arg.name for arg in f.args] + list(f.attr_names)
    return list(inspect.signature(f).parameters)


def test_every_public_op_has_a_typed_signature_and_no_other_name_does() -> None:
    assert set(ops.__all__) == TYPED
    assert ops.__all__ == sorted(ops.__all__, key=lambda name: re.sub(r"\d+", lambda m: m[0].zfill(3), name))


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_typed_signature_is_that_of_the_code(name: str) -> None:
    args = SIGNATURES[name]
    names = [*args.args, *([args.vararg] if args.vararg else []), *args.kwonlyargs]
    assert [a.arg for a in names] == parameters(getattr(ops, name))


@pytest.mark.parametrize("name", ops.__all__)
def test_every_public_op_is_documented(name: str) -> None:
    assert (getattr(ops, name).__doc__ or "").strip(), name


def test_the_top_level_has_what_newcomers_look_for() -> None:
    for name in ("tensor", "Tensor", "zeros", "ones", "full", "arange", "randn", "rand", "zeros_like", "no_grad",
                 "manual_seed", "gradcheck", "grad", "detect_anomaly", "summary", "nn", "optim", "ops", "float32"):
        assert hasattr(alpha, name), name
    assert all(hasattr(alpha, name) for name in alpha.__all__)
