"""The process of a side: its environment."""

from __future__ import annotations

import pytest

from benchmarks import process

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_pytorch_is_held_to_the_vectors_that_alpha_is_held_to(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(process.subprocess, "Popen", lambda *args, env, **more: started.append(env))
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    for isa in ("", "avx2"):
        monkeypatch.setenv("ALPHA_CPU_ISA", isa)
        process.Worker("torch")
    assert "ATEN_CPU_CAPABILITY" not in started[0]
    assert (started[1]["ATEN_CPU_CAPABILITY"], started[1]["ONEDNN_MAX_CPU_ISA"]) == ("avx2", "AVX2")
