"""A side of a comparison in a process of its own."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Variables that hold PyTorch to the vectors that ALPHA_CPU_ISA holds alpha to.
TORCH_ISA = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}
LIMIT_S = 400.0  # for one answer: building kernels and torch.compile take their time


class Worker:
    """A library's process; `ask` sends one request and waits for the answer.

    Args:
        root: the checkout whose modules it imports.
        settings: variables of its environment, beside this process's.
    """

    def __init__(self, library: str, module: str = "benchmarks.step_worker", limit_s: float = LIMIT_S,
                 root: Path = ROOT, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.library, self.limit_s = library, limit_s
        self.process = subprocess.Popen([sys.executable, "-m", module, library], cwd=root, text=True,
                                        env={**TORCH_ISA.get(os.environ.get("ALPHA_CPU_ISA", ""), {}), **os.environ,
                                             **settings},
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Returns the answer.  Raises RuntimeError where the process fails, ends or is silent for too long."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            if not waiting.select(self.limit_s):
                self.process.kill()
                raise RuntimeError(f"the {self.library} process gave no answer for {self.limit_s:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.library} process ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.close()
            self.process.wait(30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
