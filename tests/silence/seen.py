"""Calls, and what can be seen of them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import nn
from alpha.errors import AlphaError
from tests.silence.values import Array

REFUSED = "refused"


def real(value: Any) -> Any:
    """Returns a value of a table as a call takes it: tensors are made anew."""
    if isinstance(value, Array):
        return alpha.tensor(value.values, requires_grad=value.grad, dtype=value.dtype)
    if isinstance(value, (list, tuple)):
        return type(value)([real(item) for item in value])
    return value


def tensors_in(value: Any) -> Iterator[alpha.Tensor]:
    """Yields the tensors of arguments or results."""
    if isinstance(value, alpha.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def backward(results: Any) -> None:
    """Goes back from all results of floats that have a gradient, each element with a weight of its own."""
    loss = None
    for t in tensors_in(results):
        if t.requires_grad and t.edge is not None:
            weights = np.cos(np.arange(t.numpy().size) + 1.0).reshape(t.shape)
            part = (t.astype("float64") * alpha.tensor(weights, dtype="float64")).sum()
            loss = part if loss is None else loss + part
    if loss is not None:
        loss.backward()


def note(digest: Any, value: Any) -> None:
    """Adds what can be seen of a value to a digest."""
    if isinstance(value, alpha.Tensor):
        a = value.numpy()
        digest.update(f"{a.shape}{value.dtype}{value.requires_grad}{value.device}".encode() + a.tobytes())
        if value.is_leaf and value.grad is not None:
            note(digest, value.grad)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
    elif isinstance(value, nn.Module):
        note(digest, {**value.state_dict(), "training": value.training})
        note(digest, [name for name, _ in value.named_modules()])
        note(digest, [p.grad for p in value.parameters()])
        note(digest, [p.requires_grad for p in value.parameters()])
    elif isinstance(value, dict):
        for key, item in value.items():
            digest.update(f"{key!r}:".encode())
            note(digest, item)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            note(digest, item)
    elif isinstance(value, Path):
        digest.update(value.read_bytes() if value.exists() else b"no file")
    else:
        digest.update(repr(value).encode())


def seen(call: Callable[..., Any], f: Callable[..., Any], given: dict[str, Any]) -> str:
    """Returns a digest of what can be seen of a call with settings, or REFUSED."""
    printed, digest = io.StringIO(), hashlib.sha1()
    alpha.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        here = os.getcwd()
        os.chdir(folder)
        try:
            note(digest, call(f, **{name: real(value) for name, value in given.items()}))
        except AlphaError as error:
            return f"{REFUSED}: {error}"
        finally:
            os.chdir(here)
    digest.update(printed.getvalue().encode())
    return digest.hexdigest()


def op(*args: Any, **fixed: Any) -> Callable[..., Any]:
    """Returns a call of a function of tensors: results, gradients, and its arguments behind the call."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        made, named = real(list(args)), {**{name: real(value) for name, value in fixed.items()}, **given}
        results = f(*made, **named)
        backward(results)
        return results, made, list(tensors_in(named))
    call.fixed = fixed  # type: ignore[attr-defined]
    return call


def layer(*args: Any, on: Any, **fixed: Any) -> Callable[..., Any]:
    """Returns a call that makes a layer and runs it in both modes over `on`: results, gradients and state."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        made = f(*real(list(args)), **{**{name: real(value) for name, value in fixed.items()}, **given})
        inputs = real(list(on) if isinstance(on, (list, tuple)) else [on])
        results = [made(*inputs)]
        backward(results)
        made.eval()
        results.append(made(*inputs))
        return results, inputs, made
    call.fixed = fixed  # type: ignore[attr-defined]
    return call


def method(of: Any, *args: Any, **fixed: Any) -> Callable[..., Any]:
    """Returns a call of a method of an object, which `of` makes if it is a function and no Array."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        made = real(of) if isinstance(of, Array) else of()
        inputs = real(list(args))
        results = f(made, *inputs, **{**fixed, **given})
        backward(results)
        return results, made, inputs
    call.fixed = fixed  # type: ignore[attr-defined]
    return call
