"""Which implementations of ops run, in their order: for tests of what is computed in one call."""

from __future__ import annotations

from typing import Any

import pytest

from alpha.core.op import registry


def implementations(monkeypatch: pytest.MonkeyPatch, *names: str, device: str = "cpu") -> list[tuple[str, Any]]:
    """Returns a list that grows by (name, activation or None) with each call of an implementation.

    names: of the ops that are looked at; default all.
    """
    calls: list[tuple[str, Any]] = []
    for name in names or registry:
        op = registry[name]
        if device in op.impls:
            monkeypatch.setitem(op.impls, device, _told(name, op.impls[device], calls))
    return calls


def _told(name: str, run: Any, calls: list[tuple[str, Any]]) -> Any:
    def told(*arrays: Any, **attrs: Any) -> Any:
        calls.append((name, attrs.get("activation")))
        return run(*arrays, **attrs)
    told.__module__ = run.__module__    # it stays one of alpha's
    return told
